"""What was written in the span of a segment since its anchor: the stored keys of all newer versions, without values.

    segment      a  b  c  d  e  f  g            live at the anchor 20
    delta        c@23   e@31   e@24   x@25      in the order in which they were applied

A read at T looks at those at or below T, newest of each key, and gets their values by their full keys; a key whose newest
version is above T is as it was at the anchor. So a read pays for what has changed, not for what there is.

Only the loop adds to a delta. A read that goes to a thread takes a `Changes`: the first so many entries, which never change.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.runtime.seam import Family
from slackwater.storage.versions import AFTER_VERSIONS, suffix, ts_of, uncertain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.runtime.seam import Reader

VALUES_BYTES_MAX = 8 << 20
"""Of the values of changed rows that are kept in memory for one segment: each is read again and again."""


class Delta:
    """The stored keys of versions above the anchor of one segment."""

    __slots__ = ("_bytes", "_newest", "_ordered", "_values", "stored")

    def __init__(self, stored: Iterable[bytes] = ()) -> None:
        self.stored: list[bytes] = list(stored)
        self._ordered: tuple[list[bytes], int] = ([], 0)
        self._newest: tuple[list[bytes], bytes, int] = ([], b"", -1)
        self._values: dict[bytes, bytes] = {}
        """Of versions that were read; a version never changes."""
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.stored)

    def frozen(self) -> Changes:
        """What there is now."""
        return Changes(self, len(self.stored))

    def ordered(self, count: int) -> list[bytes]:
        """The first `count` in the engine's order; may be called on any thread."""
        assert 0 <= count <= len(self.stored), "a count of what was written"
        known, upto = self._ordered
        if upto == count:
            return known
        if upto > count:
            return sorted(self.stored[:count])
        found = sorted(known + self.stored[upto:count])  # two runs, which sorting merges
        assert len(found) == count, "no change is lost"
        self._ordered = found, count
        return found

    def newest(self, count: int) -> tuple[list[bytes], bytes]:
        """Of the first `count` the newest of each key, in order, and the mark of the newest of all; on any thread."""
        found, mark, upto = self._newest
        if upto != count:
            ordered = self.ordered(count)
            found = [v for before, v in pairwise([b"", *ordered]) if before[:-8] != v[:-8]]
            mark = min((v[-8:] for v in ordered), default=AFTER_VERSIONS)
            self._newest = found, mark, count
        return found, mark

    def values(self, reader: Reader, picked: Sequence[bytes]) -> list[bytes | None]:
        """The values of some of them, kept as far as there is room; on any thread."""
        held = self._values
        missing = [version for version in picked if version not in held]
        if not missing:
            return [held[version] for version in picked]
        found = dict(zip(missing, reader.multi_get(Family.DATA, missing), strict=True))
        size = sum(len(key) + len(value or b"") for key, value in found.items())
        if self._bytes + size <= VALUES_BYTES_MAX:
            self._bytes += size
            held.update((key, value) for key, value in found.items() if value is not None)
        return [found[version] if version in found else held[version] for version in picked]


class Changes:
    """A delta as it was in one step."""

    __slots__ = ("_count", "_delta", "_more")

    def __init__(self, delta: Delta, count: int, more: Sequence[bytes] = ()) -> None:
        self._delta = delta
        self._count = count
        self._more = more

    def __len__(self) -> int:
        return self._count + len(self._more)

    def also(self, stored: Sequence[bytes]) -> Changes:
        """With versions that are not in the engine, such as intents that are shown as what they have become."""
        return Changes(self._delta, self._count, [*self._more, *stored])

    def values(self, reader: Reader, picked: Sequence[bytes]) -> list[bytes | None]:
        """The values of some of them."""
        if self._more:
            return reader.multi_get(Family.DATA, picked)
        return self._delta.values(reader, picked)

    def visible(self, low: bytes, high: bytes, *, ts: Timestamp, bound: Timestamp) -> list[bytes]:
        """The newest at or below `ts` of each key with low <= key < high; those in (ts, bound] are uncertain."""
        if not self._more:
            newest, mark = self._delta.newest(self._count)
            if mark >= suffix(ts):  # all of them are in the past of the read
                return _within(newest, low, high)
        return visible_changes(self.between(low, high), ts=ts, bound=bound)

    def between(self, low: bytes, high: bytes) -> list[bytes]:
        """Those of keys with low <= key < high, in order, newest first within a key."""
        assert low <= high, "a span"
        ordered = self._delta.ordered(self._count)
        if self._more:
            ordered = sorted([*ordered, *self._more])
        return _within(ordered, low, high)


def _within(ordered: list[bytes], low: bytes, high: bytes) -> list[bytes]:
    """Those of keys with low <= key < high."""
    first = bisect_left(ordered, low)
    behind = high[:-1] + AFTER_VERSIONS if high.endswith(b"\x00") else high  # versions of a key that the bound extends
    last = bisect_left(ordered, behind, first)
    found = ordered[first:last]
    if found and not (low <= found[0][:-8] and found[-1][:-8] < high):
        found = [stored for stored in found if low <= stored[:-8] < high]
    return found


def visible_changes(stored: Sequence[bytes], *, ts: Timestamp, bound: Timestamp) -> list[bytes]:
    """Of changes in order, the newest of each key at or below `ts`; those in (ts, bound] are uncertain."""
    newest, first = suffix(ts), suffix(bound)
    picked: list[bytes] = []
    last = b""
    for version in stored:
        mark = version[-8:]
        if mark < newest:
            if mark >= first:
                raise uncertain(version[:-8], ts_of(version), ts, bound)
            continue
        key = version[:-8]
        if key != last:
            picked.append(version)
            last = key
    assert len(picked) <= len(stored), "one version of each key at most"
    return picked
