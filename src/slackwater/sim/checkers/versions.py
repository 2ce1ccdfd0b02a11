"""An index over V that answers, fast, what a read may have seen and when.

    V(k)      12:a        30:b        47:a                 a read of k that saw `a` is right
    time  ----+===========+-----------+==========>  ∞      in [12, 30) and in [47, ∞)

Every question of the interval oracle is one of two: what was at `ts` (a bisection), and in which intervals was `value`
there (an index by value, built when first asked). A writing transaction's own versions must not count as what it read,
so both questions can leave out the version at one timestamp.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.sim.checkers.history import ObservedVersion, Value, VersionHistory

FOREVER = 1 << 63
"""Above every timestamp."""

Interval = tuple[int, int]
"""[from, until): timestamps at which something holds."""


class KeyLookup:
    """V of one key."""

    __slots__ = ("_by_time", "_by_value", "times", "values", "versions")

    def __init__(self, versions: tuple[ObservedVersion, ...]) -> None:
        self.versions = versions
        self.times = [version.ts for version in versions]
        self.values = [version.value for version in versions]
        # Built by the first question that needs them.
        self._by_time: dict[int, ObservedVersion] | None = None
        self._by_value: dict[Value, list[int]] | None = None

    def place_at(self, ts: int, *, own: bool = False) -> int:
        """Position of the version visible at `ts`, -1 for none; `own`: leave out a version at exactly `ts`."""
        return (bisect_left(self.times, ts) if own else bisect_right(self.times, ts)) - 1

    def exact(self, ts: int) -> ObservedVersion | None:
        """The version written at exactly `ts`."""
        if self._by_time is None:
            self._by_time = dict(zip(self.times, self.versions, strict=True))
        return self._by_time.get(ts)

    def without(self, ts: int) -> KeyLookup:
        """V with the version at `ts` left out: what the transaction that wrote it could see."""
        return KeyLookup(tuple(version for version in self.versions if version.ts != ts))

    def intervals(self, value: Value, version: int | None) -> list[Interval]:
        """When a read returns `value` (from the version at `version`, if given): one interval for each version."""
        times = self.times
        found: list[Interval] = []
        if value is None and version is None:
            found.append((0, times[0] if times else FOREVER))
        for place in self._places_of(value):
            begin, end = times[place], times[place + 1] if place + 1 < len(times) else FOREVER
            if version in (None, begin):
                found.append((begin, end))
        return found

    def _places_of(self, value: Value) -> list[int]:
        if self._by_value is None:
            self._by_value = {}
            for place, held in enumerate(self.values):
                self._by_value.setdefault(held, []).append(place)
        return self._by_value.get(value, [])


class VersionIndex:
    """V of every key."""

    def __init__(self, history: VersionHistory) -> None:
        self.loaded_upto = history.loaded_upto
        self.keys = {row.key: KeyLookup(row.versions) for row in history.keys}
        self.names = [row.key for row in history.keys]
        self.empty = KeyLookup(())

    def of(self, key: bytes) -> KeyLookup:
        """V of `key`; empty when it was never written."""
        return self.keys.get(key, self.empty)

    def names_in(self, *, start: bytes, end: bytes) -> list[bytes]:
        """Keys ever written in [start, end)."""
        return self.names[bisect_left(self.names, start) : bisect_left(self.names, end)]


def intersect(left: list[Interval], right: list[Interval]) -> list[Interval]:
    """Where both hold; inputs and result are sorted and disjoint."""
    found = []
    i = j = 0
    while i < len(left) and j < len(right):
        begin, end = max(left[i][0], right[j][0]), min(left[i][1], right[j][1])
        if begin < end:
            found.append((begin, end))
        if left[i][1] < right[j][1]:
            i += 1
        else:
            j += 1
    return found
