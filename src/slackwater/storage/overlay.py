"""Reading one's own batch: a `Reader` that shows a base reader with a batch on top.

A request batch is evaluated against one state and proposed as one command. Its second request must see what its first
one wrote, although nothing has been applied yet:

    Overlay(snapshot, batch)
        get      the batch's dictionary, its range deletions, then the base
        cursor   a merge of the batch's sorted keys and the base's blocks

The batch may grow while the overlay is in use; a cursor shows it as it was when the cursor was made. Sorted keys are
kept between calls and only new ones are inserted, so that n writes with a look before each cost O(n log n), not O(n²).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from itertools import islice
from typing import TYPE_CHECKING

from slackwater.storage.batch import FAMILIES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.runtime.seam import Cursor, Family, Reader
    from slackwater.storage.batch import WriteBatch

RESORT_AT = 64
"""From this many new keys on, sorting anew is cheaper than inserting."""


class Overlay:
    """A base reader with a batch's writes on top."""

    def __init__(self, base: Reader, batch: WriteBatch) -> None:
        self._base = base
        self._batch = batch
        self._sorted: list[list[bytes]] = [[] for _ in FAMILIES]
        self._ranges = [0 for _ in FAMILIES]

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        writes = self._batch.writes[family]
        if key in writes:
            return writes[key]
        if any(start <= key < end for start, end in self._batch.ranges[family]):
            return None
        return self._base.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        if not self._batch.writes[family] and not self._batch.ranges[family]:
            return self._base.multi_get(family, keys)
        return [self.get(family, key) for key in keys]

    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> Cursor:
        """A cursor over start <= key < end of base and batch together."""
        base = self._base.cursor(family, start=start, end=end, reverse=reverse)
        ranges = self._batch.ranges[family]
        ours = self._keys(family)
        low, high = bisect_left(ours, start), bisect_left(ours, end)
        if low >= high and not ranges:
            return base
        writes = self._batch.writes[family]
        mine = ours[low:high]
        assert all(start <= key < end for key in mine[:1] + mine[-1:]), "writes of the span"
        return OverlayCursor(base, mine, [writes[k] for k in mine], list(ranges), reverse=reverse)

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end."""
        keys, values = self.cursor(family, start=start, end=end).chunk(1)
        return (keys[0], values[0]) if keys else None

    def _keys(self, family: Family) -> list[bytes]:
        writes, ours = self._batch.writes[family], self._sorted[family]
        new = len(writes) - len(ours)
        if self._ranges[family] != len(self._batch.ranges[family]) or new >= RESORT_AT or new < 0:
            ours = self._sorted[family] = sorted(writes)
            self._ranges[family] = len(self._batch.ranges[family])
        elif new:
            for key in islice(reversed(writes), new):  # a dictionary keeps the order of first writes
                insort(ours, key)
        assert len(ours) == len(writes), "every write is shown once"
        return ours


class OverlayCursor:
    """The merge of a base cursor with sorted writes; None is a deletion."""

    def __init__(
        self,
        base: Cursor,
        keys: list[bytes],
        values: list[bytes | None],
        ranges: list[tuple[bytes, bytes]],
        *,
        reverse: bool,
    ) -> None:
        assert len(keys) == len(values), "a value for every key"
        assert len(keys) < 2 or keys[0] < keys[-1], "writes come in key order"
        self._base = base
        self._keys = keys
        self._values = values
        self._ranges = ranges
        self._reverse = reverse
        self._at = len(keys) - 1 if reverse else 0
        self._base_keys: list[bytes] = []
        self._base_values: list[bytes] = []
        self._base_at = 0
        self._base_ended = False

    def seek(self, key: bytes) -> None:
        """Move to the first key >= key (forward) or the last key <= key (reverse), inside the bounds."""
        self._base.seek(key)
        self._base_keys, self._base_values, self._base_at, self._base_ended = [], [], 0, False
        self._at = bisect_right(self._keys, key) - 1 if self._reverse else bisect_left(self._keys, key)

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` keys and values from here on, as two lists; advances."""
        keys: list[bytes] = []
        values: list[bytes] = []
        while len(keys) < limit:
            if self._base_at == len(self._base_keys) and not self._base_ended:
                self._base_keys, self._base_values = self._base.chunk(limit)
                self._base_at, self._base_ended = 0, not self._base_keys
            base = self._base_keys[self._base_at] if self._base_keys else None
            mine = self._keys[self._at] if 0 <= self._at < len(self._keys) else None
            if base is None and mine is None:
                break
            if mine is None or (base is not None and base != mine and (base > mine) == self._reverse):
                assert base is not None
                if not any(start <= base < end for start, end in self._ranges):
                    keys.append(base)
                    values.append(self._base_values[self._base_at])
                self._base_at += 1
                continue
            value = self._values[self._at]
            if value is not None:
                keys.append(mine)
                values.append(value)
            self._at += -1 if self._reverse else 1
            if base == mine:
                self._base_at += 1
        assert len(keys) == len(values) <= limit, "no more than was asked for"
        return keys, values

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values. A batch of one's own is small: nothing is saved here."""
        return self.chunk(limit)[0]
