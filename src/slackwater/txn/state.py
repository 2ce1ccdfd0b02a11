"""What a transaction is between two messages: identity, epoch, timestamps. Pure.

    start ≤ read_ts ≤ write_ts          read_ts: everything read is true here
                                        write_ts: the intents are here, or will be; the commit timestamp in the end

    moved(ts)       the server had to write higher, or the record was pushed           write_ts goes up
    refreshed(ts)   every span read is unchanged up to ts                              read_ts goes up
    restart(now)    a read no longer holds: same transaction, next epoch               both start over
    reborn(id, now) it was aborted: another identity with the same age                 epoch 0 again

The uncertainty limit stays where the epoch began: it bounds which values may have been written before the epoch in real
time, and refreshing does not change when it began.
"""

from __future__ import annotations

import enum

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp
from slackwater.errors import invariant
from slackwater.model.txns import TXN_ID_BYTES, Intent, Txn


class TxnPhase(enum.Enum):
    """Where a transaction is in its life."""

    OPEN = "open"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    UNKNOWN = "unknown"


class TxnState:
    """Identity and timestamps of one transaction."""

    __slots__ = (
        "_max_offset", "_sequence", "anchor", "epoch", "read_ts", "start", "txn_id", "uncertainty_limit", "write_ts",
    )  # fmt: skip

    def __init__(self, *, txn_id: bytes, now: Timestamp, max_offset_us: int) -> None:
        invariant(len(txn_id) == TXN_ID_BYTES, "A-txn-id", length=len(txn_id))
        self.txn_id = txn_id
        self.start = now
        self.anchor = b""
        self.epoch = 0
        self._max_offset = max_offset_us << LOGICAL_BITS
        self._sequence = 0
        self._begin(now)

    def _begin(self, now: Timestamp) -> None:
        assert now > 0, "an epoch begins at a time"
        self.read_ts = now
        self.write_ts = now
        self.uncertainty_limit = Timestamp(now + self._max_offset)
        assert self.read_ts <= self.write_ts, "a transaction reads at or below where it writes"

    def message(self, *, sequence: int | None = None) -> Txn:
        """The transaction as it travels with a batch."""
        assert self.read_ts <= self.write_ts, "a transaction reads at or below where it writes"
        return Txn(
            self.txn_id,
            self.anchor,
            self.start,
            self.epoch,
            self.read_ts,
            self.write_ts,
            self.uncertainty_limit,
            self._sequence if sequence is None else sequence,
        )

    def as_intent(self) -> Intent:
        """The intent that the transaction would have on its anchor: the name by which its record is asked for."""
        assert self.anchor, "a record is found by its anchor"
        return Intent(self.anchor, self.txn_id, self.anchor, self.start, self.epoch, self.write_ts)

    def take_sequences(self, count: int) -> int:
        """Numbers for the next `count` requests; returns the first. Numbers are never used twice."""
        assert count > 0, "a request has a sequence"
        first = self._sequence + 1
        self._sequence += count
        return first

    def moved(self, ts: Timestamp) -> None:
        """The writes are at `ts` now, if that is higher."""
        self.write_ts = max(self.write_ts, ts)
        assert self.read_ts <= self.write_ts, "a transaction reads at or below where it writes"

    def refreshed(self, upto: Timestamp) -> None:
        """Everything read is true at `upto` too."""
        invariant(upto >= self.read_ts, "I-18", upto=upto, read_ts=self.read_ts)
        self.read_ts = upto
        self.write_ts = max(self.write_ts, upto)
        assert self.read_ts <= self.write_ts, "a transaction reads at or below where it writes"

    def restart(self, now: Timestamp) -> None:
        """The next epoch, at a timestamp above everything that was in the way."""
        self.epoch += 1
        self._begin(max(now, self.write_ts))
        assert self.epoch > 0, "another epoch has begun"

    def reborn(self, *, txn_id: bytes, now: Timestamp, too_old: bool = False) -> None:
        """Another transaction with the same age, after this one was aborted.

        `too_old`: a range has collected the records of that age, so that no transaction so old can be known there any more.
        """
        assert len(txn_id) == TXN_ID_BYTES, "ids have one length"
        self.txn_id = txn_id
        if too_old:
            self.start = now
        self.anchor = b""
        self.epoch = 0
        self._begin(max(now, self.write_ts))
        assert self.start <= self.read_ts, "a transaction reads no earlier than it began"

    def status(self) -> str:
        """One line for logs and scripts."""
        return (
            f"txn {self.txn_id.hex()[:8]} epoch={self.epoch} start={self.start} read={self.read_ts} "
            f"write={self.write_ts} limit={self.uncertainty_limit} seq={self._sequence}"
        )
