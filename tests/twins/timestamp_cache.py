"""The timestamp cache's twin: a list of every read there ever was.

It forgets nothing and looks at everything. `TimestampCache.get` may never be below what this says, and is equal to it
while nothing was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.replica.spanmap import after

if TYPE_CHECKING:
    from slackwater.replica.read_summary import TxnId
    from slackwater.replica.tscache import Read


class NaiveTimestampCache:
    """Same answers as `TimestampCache` with unlimited memory."""

    def __init__(self) -> None:
        self.low_water = MIN
        self._reads: list[tuple[bytes, bytes, Timestamp, TxnId | None]] = []

    def add(self, start: bytes, end: bytes | None = None, *, ts: Timestamp, txn: TxnId | None = None) -> None:
        """Note a read."""
        self._reads.append((start, after(start) if end is None else end, ts, txn))

    def raise_floor(self, ts: Timestamp) -> None:
        """Count everything as read up to `ts`."""
        self.low_water = max(self.low_water, ts)

    def get(self, start: bytes, end: bytes | None = None) -> Read:
        """The highest read that touches the key or span; its owner if there is only one at that timestamp."""
        end = after(start) if end is None else end
        touching = [(ts, txn) for low, high, ts, txn in self._reads if low < end and start < high]
        touching.append((self.low_water, None))
        top = max(ts for ts, _ in touching)
        owners = {txn for ts, txn in touching if ts == top}
        return top, owners.pop() if len(owners) == 1 else None
