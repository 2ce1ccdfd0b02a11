"""The resolved timestamp of one range: at and below it, everything has been said.

    resolved = min(closed, oldest unresolved intent − 1)

    closed      ─────────────────────────────────►│             no new write will come at or below
    intents           ╳ T1@12        ╳ T2@20                     these may still commit, at or above where they are
    resolved    ─────►│11                                        until T1 is settled

Rules
    I-23  It never goes back; it is at most closed and below every unresolved intent. Whatever is committed or locked
          later lies above it: checked for every version and every lock, because a breach is a lost row at a consumer.
          Until the first scan of the locks is done there is no resolved timestamp at all: unknown ⇒ do not resolve.

Transactions that hold it back for long are pushed by the driver. Outcomes of a push:

    pending             forward(txn, ts): in the epoch it is in, it cannot commit below
    committed           forward(txn, commit ts); its intents are resolved, and the commit arrives as an event
    aborted             abort(txn): its intents are garbage
    aborted, *ambiguous*: the record was missing. It may be missing because the transaction committed, all its intents
          were resolved, and the record was collected; this replica, being behind, just has not applied that yet.
          Trusting it would let resolved pass the commit (pitfall 24). So a barrier goes through the range's log, and
          only when its index has been applied *here* is the abort believed, of what then is still unresolved.

    push ─► "no record" ─► Barrier ─► index 71 ─► … applied 70, 71 ─► still there? then it is dead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import invariant
from slackwater.hooks import probe
from slackwater.model.txns import Resolution, TxnStatus

if TYPE_CHECKING:
    from slackwater.feeds.unresolved import UnresolvedQueue
    from slackwater.model.descriptors import LeaseAppliedIndex

BARRIERS_MAX = 1024
"""Transactions that may wait for a barrier; more are asked again in a later round."""


class ResolvedTimestamp:
    """Combines what is closed with what is unresolved."""

    def __init__(self, queue: UnresolvedQueue, *, closed: Timestamp = MIN) -> None:
        self.queue = queue
        self.closed = closed
        self.value = MIN
        """Everything at or below this is settled; MIN: not known yet."""
        self._doubted: dict[bytes, LeaseAppliedIndex | None] = {}

    def forward_closed(self, closed: Timestamp) -> None:
        """More is closed. Lower values, which may come over another way, change nothing."""
        self.closed = Timestamp(max(self.closed, closed))

    def advance(self) -> bool:
        """Work out the value again; whether it moved."""
        if not self.queue.complete:
            return False
        oldest = self.queue.oldest()
        new = self.closed if oldest is None else Timestamp(min(self.closed, oldest - 1))
        if new <= self.value:
            return False
        self.value = new
        return True

    def check_new(self, timestamps: list[int], *, what: str) -> None:
        """What is committed or locked now lies above everything resolved (I-23)."""
        if timestamps and (lowest := min(timestamps)) <= self.value:
            invariant(False, "I-23", what=what, ts=lowest, resolved=self.value)  # noqa: FBT003

    def pushed(self, outcome: Resolution, *, ambiguous: bool) -> bool:
        """What came of a push; True when a barrier is needed before an abort can be believed."""
        txn_id = outcome.txn_id
        if outcome.status is not TxnStatus.ABORTED:
            self.queue.forward(txn_id, outcome.ts, epoch=outcome.epoch)
            return False
        if not ambiguous:
            self.queue.abort(txn_id)
            return False
        if txn_id in self._doubted or len(self._doubted) >= BARRIERS_MAX or not self.queue.references(txn_id):
            return False
        probe("feeds.ambiguous_abort")
        self._doubted[txn_id] = None
        return True

    def barrier_proposed(self, txn_ids: list[bytes], lai: LeaseAppliedIndex | None) -> None:
        """The barrier applies at this lease applied index; None: it failed, and the push is to be repeated."""
        for txn_id in txn_ids:
            if lai is None:
                self._doubted.pop(txn_id, None)
            elif txn_id in self._doubted:
                self._doubted[txn_id] = lai

    def applied(self, lai: LeaseAppliedIndex) -> list[bytes]:
        """Note how far the replica has applied: doubts whose barrier is below are over. Returns dead transactions."""
        if not self._doubted:
            return []
        dead = []
        for txn_id in [t for t, at in self._doubted.items() if at is not None and at <= lai]:
            del self._doubted[txn_id]
            if self.queue.references(txn_id):
                self.queue.abort(txn_id)
                dead.append(txn_id)
            else:
                probe("feeds.barrier_brought_the_outcome")
        return dead

    @property
    def in_doubt(self) -> dict[bytes, LeaseAppliedIndex | None]:
        """Transactions that wait for a barrier, and for which index."""
        return self._doubted

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        doubt = f" in-doubt={len(self._doubted)}" if self._doubted else ""
        return f"resolved={self.value} closed={self.closed} {self.queue.status()}{doubt}"
