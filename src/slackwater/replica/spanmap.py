"""Two ways to find things by key range, shared by the latches and the timestamp cache.

`SpanMap` gives every key a value, by cutting the key space where the value changes:

    starts   b""        b"d"         b"m"       b"t"
    values   None       7            9          None          [d, m) -> 7, [m, t) -> 9, everything else -> None

    at(k)                    one bisection
    over(start, end)         the values of the segments that touch [start, end)
    change(start, end, f)    cuts at both ends, maps the segments between through f, joins equal neighbors

Overlap is not stored, it is resolved on the way in: a timestamp cache keeps the higher of two reads per segment, a
latch table keeps the tuple of latches that cover it. So one structure serves both and no interval tree is needed. A
change costs the segments it covers plus a memory move; with the bounds of its two users that is microseconds.

    1. starts[0] is b"" and the starts strictly increase: every key lies in exactly one segment.
    2. No two neighboring segments have equal values.
    3. The last segment has the default value: every change has an end.

`KeyIndex` answers "which of these keys lie in [start, end)?" for a dict that is mostly used by key. Keeping a dict's
keys in order costs 3 µs per key; point requests, which are nearly all requests, never ask. So new keys are only noted,
and sorted when the first span asks. Keys that left the dict stay in the index until they outnumber the living.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING, Generic, TypeVar

from sortedcontainers import SortedList

from slackwater.errors import UsageError, invariant

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

V = TypeVar("V")

INDEX_SLACK = 1024
"""Noted or dead keys a `KeyIndex` may hold beyond twice the living before it starts afresh."""


def check_span(start: bytes, end: bytes | None) -> None:
    """Refuse an empty or inverted span; None is the single key `start`."""
    if end is not None and start >= end:
        raise UsageError("a span's start must be below its end", start=start, end=end)


def after(key: bytes) -> bytes:
    """The key right after `key`."""
    return key + b"\x00"


class SpanMap(Generic[V]):
    """A value for every key, stored as segments."""

    __slots__ = ("_default", "_starts", "_values", "key_bytes")

    def __init__(self, default: V) -> None:
        self._default = default
        self._starts: list[bytes] = [b""]
        self._values: list[V] = [default]
        self.key_bytes = 0
        """Bytes of all segment starts, for owners that bound memory."""

    def __len__(self) -> int:
        """Segments, counting those with the default value; an empty map has one."""
        return len(self._starts)

    def at(self, key: bytes) -> V:
        """The value of one key."""
        return self._values[bisect_right(self._starts, key) - 1]

    def over(self, start: bytes, end: bytes) -> list[V]:
        """The values of the segments that touch [start, end), in key order."""
        return self._values[bisect_right(self._starts, start) - 1 : bisect_left(self._starts, end)]

    def segments(self, start: bytes = b"", end: bytes | None = None) -> Iterator[tuple[bytes, bytes, V]]:
        """Segments with a value other than the default, cut to [start, end)."""
        for i in range(bisect_right(self._starts, start) - 1, len(self._starts) - 1):
            low, high = max(self._starts[i], start), self._starts[i + 1]
            if end is not None:
                high = min(high, end)
            if low >= high:
                return
            if self._values[i] != self._default:
                yield low, high, self._values[i]

    def change(self, start: bytes, end: bytes, to: Callable[[V], V]) -> None:
        """Map the values of every key in [start, end) through `to`."""
        check_span(start, end)
        starts, values = self._starts, self._values
        first = bisect_right(starts, start) - 1
        last = bisect_left(starts, end)
        cut = [(s, to(v)) for s, v in zip(starts[first:last], values[first:last], strict=True)]
        cut[0] = (start, cut[0][1])
        if starts[first] < start:
            cut.insert(0, (starts[first], values[first]))
        if last == len(starts) or starts[last] != end:
            cut.append((end, values[last - 1]))
        assert first < last, "a span touches at least one segment"
        assert cut[0][0] <= start, "what is left of the span stays"
        self._replace(first, last, cut)

    def change_all(self, to: Callable[[V], V]) -> None:
        """Map every value through `to`; the default must stay the default."""
        invariant(to(self._default) == self._default, "A-spanmap-default-is-kept", default=self._default)
        self._replace(0, len(self._starts), [(s, to(v)) for s, v in zip(self._starts, self._values, strict=True)])

    def _replace(self, first: int, last: int, cut: list[tuple[bytes, V]]) -> None:
        """Put `cut` in the place of segments [first, last), joining equal neighbors, also with those outside."""
        starts, values = self._starts, self._values
        if last < len(starts):
            cut.append((starts[last], values[last]))
            last += 1
        if first > 0:
            first -= 1
            cut.insert(0, (starts[first], values[first]))
        new_starts, new_values = [cut[0][0]], [cut[0][1]]
        for start, value in cut[1:]:
            if value != new_values[-1]:
                new_starts.append(start)
                new_values.append(value)
        self.key_bytes += sum(map(len, new_starts)) - sum(map(len, starts[first:last]))
        starts[first:last] = new_starts
        values[first:last] = new_values
        assert len(starts) == len(values), "a value for every segment"
        assert self.key_bytes >= 0, "bytes are given back once"

    def check(self) -> None:
        """Rules 1 to 3, for tests."""
        starts, values = self._starts, self._values
        invariant(starts[0] == b"", "A-spanmap-covers-all", first=starts[0])
        invariant(all(a < b for a, b in itertools.pairwise(starts)), "A-spanmap-order")
        invariant(all(a != b for a, b in itertools.pairwise(values)), "A-spanmap-joined")
        invariant(values[-1] == self._default, "A-spanmap-ends")
        invariant(self.key_bytes == sum(map(len, starts)), "A-spanmap-bytes", bytes=self.key_bytes)


class KeyIndex:
    """The keys of a dict in order, sorted only when a range of them is asked for."""

    __slots__ = ("_indexed", "_keys", "_noted", "_sorted")

    def __init__(self, keys: Mapping[bytes, object]) -> None:
        self._keys = keys
        self._noted: list[bytes] = list(keys)
        self._sorted = SortedList()
        self._indexed: set[bytes] = set()

    def note(self, key: bytes) -> None:
        """Say that `key` was added to the dict. Leaving needs no word."""
        self._noted.append(key)
        if len(self._noted) > 2 * len(self._keys) + INDEX_SLACK:
            self._noted = [k for k in self._keys if k not in self._indexed]

    def between(self, start: bytes, end: bytes) -> list[bytes]:
        """The dict's keys in [start, end), in order."""
        if self._noted:
            self._settle()
        keys = self._keys
        assert not self._noted, "every key is sorted in"
        return [k for k in self._sorted.irange(start, end, inclusive=(True, False)) if k in keys]

    def _settle(self) -> None:
        if len(self._indexed) > 2 * len(self._keys) + INDEX_SLACK:
            self._indexed = set(self._keys)
            self._sorted = SortedList(self._keys)
        else:
            new = {k for k in self._noted if k in self._keys} - self._indexed
            self._indexed |= new
            self._sorted.update(new)
        assert len(self._sorted) == len(self._indexed), "the sorted list and the set hold the same keys"
        self._noted.clear()
