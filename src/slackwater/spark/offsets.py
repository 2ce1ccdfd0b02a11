"""Where a stream stands, and where a micro-batch may end.

An offset is one timestamp: everything at or below it has been delivered. It names no range, because ranges split and merge
while a stream sleeps; the ranges of a batch are looked up when the batch is planned.

    {"v": 1, "table": "104", "schema": 1, "resolved": "1837861234567168", "snapshot": true}

`resolved` is text: JSON numbers are doubles in half of the world. `snapshot` marks an offset before the first batch of a
stream that begins with the table as it is: the batch that starts there holds the table at its end, as inserts, and not
every version that led to it.

Where a batch may end. Spark's contract for change feeds: all rows of a commit are in one batch, and every batch is later in
`_commit_timestamp` than all before it, or a watermark drops its rows as late. Our versions are finer than the
microseconds of `_commit_timestamp`, so a batch ends where the microsecond changes:

    versions       10.0  10.1  10.2 │ 11.0 │ 12.0  12.1          (microsecond.logical)
    may end at                     ^      ^            ^ only once 13.0 is resolved too
    resolved = 12.1  ──►  end at 11.max

A limit on rows is therefore soft: a batch takes the commits up to the limit, and the rest of the last one's microsecond.
Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from slackwater.clock.timestamp import LOGICAL_MAX, MIN, Timestamp, floor
from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

VERSION = 1
WINDOW_TICKS_FIRST = 1_000_000 << 10
"""How far a limited batch looks ahead at first: one second. It doubles for as long as too few rows are found."""


class Offset(msgspec.Struct, frozen=True):
    """Everything at or below `resolved` has been delivered."""

    table: int
    schema: int
    resolved: Timestamp
    snapshot: bool = False

    def encode(self) -> dict[str, Any]:
        """The text that Spark stores for this offset."""
        found: dict[str, Any] = {
            "v": VERSION,
            "table": str(self.table),
            "schema": self.schema,
            "resolved": str(int(self.resolved)),
        }
        return found | ({"snapshot": True} if self.snapshot else {})


def decode(found: dict[str, Any]) -> Offset:
    """Read what `encode` wrote, perhaps long ago."""
    try:
        version = found["v"]
        offset = Offset(
            int(found["table"]), int(found["schema"]), Timestamp(int(found["resolved"])), bool(found.get("snapshot"))
        )
    except (KeyError, TypeError, ValueError):
        raise UsageError(
            "the checkpoint holds an offset that is not ours; use a new checkpoint", offset=found
        ) from None
    if version != VERSION:
        raise UsageError(f"the checkpoint was written by another release (offset version {version})", known=VERSION)
    return offset


def check_table(offset: Offset, *, table: int, schema: int, name: str) -> None:
    """Refuse to go on with another table, or with columns that the running query does not know."""
    if offset.table != table:
        raise UsageError(
            f"table {name} was dropped and made again since this checkpoint was written; use a new checkpoint",
            checkpoint=offset.table,
            now=table,
        )
    if offset.schema > schema:
        raise UsageError(f"the checkpoint of table {name} is of a newer schema than the one read", schema=schema)


def batch_end(resolved: Timestamp) -> Timestamp:
    """The last timestamp at or below `resolved` that ends a microsecond."""
    return Timestamp(max(MIN, floor(Timestamp(resolved + 1)) - 1))


def limited_end(
    versions: Callable[[Timestamp, Timestamp], NDArray[np.int64]], *, after: Timestamp, upto: Timestamp, rows: int
) -> Timestamp:
    """Where a batch of about `rows` rows ends, at most at `upto`.

    `versions(after, upto)` gives the commit version of each change in that interval. It is asked for a second's worth at
    first and then for twice as much each time, so a stream far behind does not read all it has missed to find the next
    few rows. At least one microsecond with changes is taken, however many rows it has: a stream always goes on.
    """
    found = np.empty(0, dtype=np.int64)
    low, window = after, WINDOW_TICKS_FIRST
    while low < upto:
        high = min(upto, batch_end(Timestamp(low + window)))
        more = np.sort(versions(low, high))
        found = np.concatenate([found, more])
        if len(found) > rows:
            return _cut(found, rows, upto)
        low, window = high, window * 2
    return upto


def _cut(ordered: NDArray[np.int64], rows: int, upto: Timestamp) -> Timestamp:
    """The end of the microsecond before the one in which the limit is passed; or of that one, if it is the first."""
    first_over = Timestamp(int(ordered[rows]))
    end = Timestamp(floor(first_over) - 1)
    if int(ordered[0]) > end:
        end = Timestamp(floor(first_over) | LOGICAL_MAX)
    return min(end, upto)
