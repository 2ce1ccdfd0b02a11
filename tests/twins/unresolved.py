"""The twin of the queue of unresolved transactions: a dict, and a minimum over it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import invariant

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.txns import Intent


class UnresolvedNaive:
    """The twin: every fact in a dict, every answer by looking at all of it."""

    def __init__(self) -> None:
        self.complete = False
        self.counts: dict[bytes, int] = {}
        self.seen: dict[bytes, list[tuple[int, Timestamp]]] = {}
        """(epoch, ts) of everything learnt."""
        self.dead: set[bytes] = set()

    def written(self, intent: Intent) -> None:
        """One more."""
        self.counts[intent.txn_id] = self.counts.get(intent.txn_id, 0) + 1
        self.moved(intent)
        self._settle(intent.txn_id)

    def moved(self, intent: Intent) -> None:
        """One more fact about a transaction that is known."""
        if intent.txn_id in self.counts:
            self.seen.setdefault(intent.txn_id, []).append((intent.epoch, intent.ts))

    def gone(self, txn_id: bytes) -> None:
        """One less."""
        self.counts[txn_id] = self.counts.get(txn_id, 0) - 1
        invariant(self.counts[txn_id] >= 0 or not self.complete, "A-feed-references", txn=txn_id.hex())
        self._settle(txn_id)

    def forward(self, txn_id: bytes, ts: Timestamp, *, epoch: int) -> None:
        """One more fact, if known."""
        if txn_id in self.counts:
            self.seen.setdefault(txn_id, []).append((epoch, ts))

    def abort(self, txn_id: bytes) -> None:
        """Dead, if known."""
        if txn_id in self.counts:
            self.dead.add(txn_id)

    def finish_scan(self) -> None:
        """Exact from now on."""
        invariant(min(self.counts.values(), default=0) >= 0, "A-feed-references")
        self.complete = True

    def oldest(self) -> Timestamp | None:
        """The minimum over all that may commit."""
        return min((self._bound(t) for t, n in self.counts.items() if n > 0 and t not in self.dead), default=None)

    def _bound(self, txn_id: bytes) -> Timestamp:
        newest = max(epoch for epoch, _ in self.seen[txn_id])
        return max(ts for epoch, ts in self.seen[txn_id] if epoch == newest)

    def _settle(self, txn_id: bytes) -> None:
        if self.counts[txn_id] == 0 and not (txn_id in self.dead and not self.complete):
            del self.counts[txn_id]
            self.seen.pop(txn_id, None)
            self.dead.discard(txn_id)
