"""Which transactions still have intents here, and which of them holds the resolved timestamp back.

    txn   { references, epoch, ts, aborted, a sample intent to push it by }
    heap  (ts, txn) of those that can still commit, lowest first; entries that no longer hold are skipped when met

A transaction counts once, however many keys it has locked. It commits at or above every intent *of the epoch it commits
in*, so the highest timestamp among the intents of its newest epoch is a lower bound of its commit, and lets resolved go
further than each intent's own. Older epochs say nothing: a leaseholder may have moved one of their intents up without the
coordinator ever hearing of it, and the next epoch may begin, and commit, below. So a new epoch can *lower* the bound; it
does so by a new write, which lies above everything closed, hence above everything resolved. What a push says of an epoch
counts like an intent of it.

How references are counted
    +1  an intent was written on a key that the transaction did not hold       (a rewrite or a move up is not a new one)
    −1  an intent went: resolved, aborted, or replaced. One intent's abort says nothing of the transaction: it may be a
        leftover of an epoch that was abandoned, and the transaction commits in the next.

The first scan of the locks races with what is applied meanwhile, so a reference may be taken away before the scan has
brought it: counts may be negative **until the scan is done, and never afterwards** (A-feed-references). Before that,
nothing is known of the oldest, and nothing may resolve.

`abort` is a decision about the whole transaction. It stays known, with its references, until its intents are gone: they
are garbage, and a straggler that the dead transaction still writes is garbage too.

Its twin in the tests is a dict, and a minimum over it.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING, Protocol

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.errors import invariant
from slackwater.hooks import probe

if TYPE_CHECKING:
    from slackwater.model.txns import Intent

PUSHES_MAX = 64
"""Transactions that one round pushes; the oldest first, the rest in the next."""
HEAP_SLACK = 64


class Unresolved(Protocol):
    """What the resolved timestamp needs to know of intents."""

    complete: bool

    def written(self, intent: Intent) -> None:
        """A key was locked by a transaction that did not hold it; also: the scan has met a lock."""
        ...

    def moved(self, intent: Intent) -> None:
        """A held key was written again or moved up."""
        ...

    def gone(self, txn_id: bytes) -> None:
        """An intent is no longer there, for whatever reason."""
        ...

    def forward(self, txn_id: bytes, ts: Timestamp, *, epoch: int) -> None:
        """In this epoch the transaction cannot commit below `ts`."""
        ...

    def abort(self, txn_id: bytes) -> None:
        """The transaction will never commit."""
        ...

    def finish_scan(self) -> None:
        """The scan of the locks has brought everything that was there when it began."""
        ...

    def oldest(self) -> Timestamp | None:
        """The lowest timestamp at which one of them may still commit; None when there is none."""
        ...


class _Entry:
    __slots__ = ("aborted", "epoch", "highest", "references", "sample", "ts")

    def __init__(self) -> None:
        self.references = 0
        self.epoch = -1
        self.highest = MIN
        """What is known of that epoch: it may commit at or above this."""
        self.ts = MIN
        """The one of them that stands in the heap."""
        self.aborted = False
        self.sample: Intent | None = None

    @property
    def holds(self) -> bool:
        """Whether it may still commit something here."""
        return self.references > 0 and not self.aborted


class UnresolvedQueue:
    """References by transaction and a heap over their timestamps."""

    def __init__(self) -> None:
        self.complete = False
        self._entries: dict[bytes, _Entry] = {}
        self._heap: list[tuple[Timestamp, bytes]] = []

    def __len__(self) -> int:
        """Transactions known."""
        return len(self._entries)

    def references(self, txn_id: bytes) -> int:
        """Intents of a transaction, as far as known."""
        entry = self._entries.get(txn_id)
        return 0 if entry is None else entry.references

    def written(self, intent: Intent) -> None:
        """A key was locked by a transaction that did not hold it; also: the scan has met a lock."""
        entry = self._entries.get(intent.txn_id)
        if entry is None:
            entry = self._entries[intent.txn_id] = _Entry()
        entry.references += 1
        self._note(entry, intent)
        self._forget_if_done(intent.txn_id, entry)

    def moved(self, intent: Intent) -> None:
        """A held key was written again or moved up."""
        entry = self._entries.get(intent.txn_id)
        # Before the scan is done, references that cancel out make a transaction unknown that still holds a key.
        invariant(entry is not None or not self.complete, "A-feed-references", txn=intent.txn_id.hex())
        if entry is not None:
            self._note(entry, intent)

    def gone(self, txn_id: bytes) -> None:
        """An intent is no longer there, for whatever reason."""
        entry = self._entries.get(txn_id)
        if entry is None:
            entry = self._entries[txn_id] = _Entry()
        entry.references -= 1
        invariant(entry.references >= 0 or not self.complete, "A-feed-references", txn=txn_id.hex())
        self._forget_if_done(txn_id, entry)

    def forward(self, txn_id: bytes, ts: Timestamp, *, epoch: int) -> None:
        """In this epoch the transaction cannot commit below `ts`; one that is not known has nothing here any more."""
        entry = self._entries.get(txn_id)
        if entry is not None:
            self._learn(txn_id, entry, ts, epoch)

    def abort(self, txn_id: bytes) -> None:
        """The transaction will never commit: its intents are garbage, and no longer hold anything back."""
        entry = self._entries.get(txn_id)
        if entry is not None:
            entry.aborted = True

    def finish_scan(self) -> None:
        """The scan of the locks is done: from now on every count is exact."""
        owed = [txn.hex() for txn, entry in self._entries.items() if entry.references < 0]
        invariant(not owed, "A-feed-references", owed=owed)
        self.complete = True

    def oldest(self) -> Timestamp | None:
        """The lowest timestamp at which one of them may still commit; None when there is none."""
        while self._heap:
            ts, txn_id = self._heap[0]
            entry = self._entries.get(txn_id)
            if entry is not None and entry.ts == ts and entry.holds:
                return ts
            heapq.heappop(self._heap)  # a transaction that takes a first reference again is pushed again
        return None

    def to_push(self, *, now: Timestamp, older_than_s: float, limit: int = PUSHES_MAX) -> list[Intent]:
        """One intent each of the oldest transactions that have been at it for longer than `older_than_s`."""
        bound = add_seconds(now, -older_than_s)
        old = [(e.ts, txn, e.sample) for txn, e in self._entries.items() if e.holds and e.ts <= bound]
        return [sample for _, _, sample in heapq.nsmallest(limit, old, key=lambda o: o[:2]) if sample is not None]

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        aborted = sum(entry.aborted for entry in self._entries.values())
        scan = "" if self.complete else " scanning"
        return f"txns={len(self._entries)} aborted={aborted} oldest={self.oldest() or '-'}{scan}"

    def _note(self, entry: _Entry, intent: Intent) -> None:
        if entry.sample is None or (intent.epoch, intent.ts) > (entry.sample.epoch, entry.sample.ts):
            entry.sample = intent
        self._learn(intent.txn_id, entry, intent.ts, intent.epoch)

    def _learn(self, txn_id: bytes, entry: _Entry, ts: Timestamp, epoch: int) -> None:
        """One fact about an epoch: the newest epoch's highest counts."""
        if epoch > entry.epoch:
            if ts < entry.highest:
                probe("feeds.epoch_begins_lower")
            entry.epoch, entry.highest = epoch, ts
        elif epoch == entry.epoch:
            entry.highest = Timestamp(max(entry.highest, ts))
        if entry.ts == entry.highest and entry.references != 1:
            return  # it stands in the heap already
        entry.ts = entry.highest
        heapq.heappush(self._heap, (entry.ts, txn_id))
        if len(self._heap) > 2 * len(self._entries) + HEAP_SLACK:
            self._heap = [(e.ts, txn) for txn, e in self._entries.items()]
            heapq.heapify(self._heap)

    def _forget_if_done(self, txn_id: bytes, entry: _Entry) -> None:
        # Before the scan is done, zero may be a debt paid by another key's lock: the dead are not forgotten for that.
        if entry.references == 0 and not (entry.aborted and not self.complete):
            del self._entries[txn_id]
