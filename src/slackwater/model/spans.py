"""Half-open spans of keys, and sets of them.

    Span(b"b", b"d")          b <= key < d
    Span.point(b"b")          the one key b (its end is b ++ 00, the next byte string)

    SpanSet    always normalized: sorted, disjoint, with a gap between neighbors

        ──[───────)──────[──)────[────────)──►   contains, covers and overlaps are binary searches,
          s0     e0      s1 e1   s2      e2      union, subtract and intersect one sweep each

A set is immutable: what was handed out as the spans of a read cannot change behind the reader's back.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


class Span(msgspec.Struct, frozen=True, order=True):
    """The keys from `start` up to, not including, `end`. Never empty."""

    start: bytes
    end: bytes

    def __post_init__(self) -> None:
        if self.start >= self.end:
            raise UsageError("a span's start must be below its end", start=self.start, end=self.end)

    @classmethod
    def point(cls, key: bytes) -> Span:
        """The span of one key."""
        return cls(key, key + b"\x00")

    def __contains__(self, key: bytes) -> bool:
        return self.start <= key < self.end

    @property
    def is_point(self) -> bool:
        """Whether the span holds one key only."""
        return len(self.end) == len(self.start) + 1 and self.end[-1] == 0 and self.end.startswith(self.start)

    def covers(self, other: Span) -> bool:
        """Whether every key of `other` is in this span."""
        return self.start <= other.start and other.end <= self.end

    def overlaps(self, other: Span) -> bool:
        """Whether some key is in both."""
        return self.start < other.end and other.start < self.end

    def intersect(self, other: Span) -> Span | None:
        """The keys in both, or None."""
        start, end = max(self.start, other.start), min(self.end, other.end)
        return Span(start, end) if start < end else None


class SpanSet:
    """A set of keys as normalized spans. Immutable."""

    __slots__ = ("_ends", "_starts")

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._starts: list[bytes] = []
        self._ends: list[bytes] = []
        for start, end in sorted((s.start, s.end) for s in spans):
            if self._ends and start <= self._ends[-1]:
                if end > self._ends[-1]:
                    self._ends[-1] = end
            else:
                self._starts.append(start)
                self._ends.append(end)

    @classmethod
    def _of(cls, starts: list[bytes], ends: list[bytes]) -> SpanSet:
        made = cls()
        made._starts, made._ends = starts, ends
        return made

    def __iter__(self) -> Iterator[Span]:
        return map(Span, self._starts, self._ends)

    def __len__(self) -> int:
        return len(self._starts)

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SpanSet) and self._starts == other._starts and self._ends == other._ends

    def __hash__(self) -> int:
        return hash((tuple(self._starts), tuple(self._ends)))

    def __repr__(self) -> str:
        return "SpanSet{" + ", ".join(f"[{s!r}, {e!r})" for s, e in zip(self._starts, self._ends, strict=True)) + "}"

    def __contains__(self, key: bytes) -> bool:
        i = bisect_right(self._starts, key) - 1
        return i >= 0 and key < self._ends[i]

    def covers(self, span: Span) -> bool:
        """Whether every key of `span` is in the set."""
        i = bisect_right(self._starts, span.start) - 1
        return i >= 0 and span.end <= self._ends[i]

    def overlaps(self, span: Span) -> bool:
        """Whether some key of `span` is in the set."""
        i = bisect_right(self._ends, span.start)
        return i < len(self._starts) and self._starts[i] < span.end

    def overlapping(self, span: Span) -> Iterator[Span]:
        """The set's own spans that share a key with `span`, whole."""
        low = bisect_right(self._ends, span.start)
        high = bisect_left(self._starts, span.end)
        return map(Span, self._starts[low:high], self._ends[low:high])

    def add(self, span: Span) -> SpanSet:
        """The set with one span more; touches only the neighbors of `span`."""
        low = bisect_left(self._ends, span.start)
        high = bisect_right(self._starts, span.end)
        start, end = span.start, span.end
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        return SpanSet._of(
            [*self._starts[:low], start, *self._starts[high:]],
            [*self._ends[:low], end, *self._ends[high:]],
        )

    def union(self, other: SpanSet) -> SpanSet:
        """The keys in either."""
        if not other or not self:
            return self or other
        return SpanSet((*self, *other))

    def intersect(self, other: SpanSet) -> SpanSet:
        """The keys in both."""
        starts: list[bytes] = []
        ends: list[bytes] = []
        i = j = 0
        while i < len(self._starts) and j < len(other._starts):
            start = max(self._starts[i], other._starts[j])
            end = min(self._ends[i], other._ends[j])
            if start < end:
                starts.append(start)
                ends.append(end)
            if self._ends[i] < other._ends[j]:
                i += 1
            else:
                j += 1
        return SpanSet._of(starts, ends)

    def subtract(self, other: SpanSet) -> SpanSet:
        """The keys in this set and not in the other."""
        starts: list[bytes] = []
        ends: list[bytes] = []
        j = 0
        for start, end in zip(self._starts, self._ends, strict=True):
            while j < len(other._starts) and other._ends[j] <= start:
                j += 1
            k, at = j, start
            while k < len(other._starts) and other._starts[k] < end:
                if at < other._starts[k]:
                    starts.append(at)
                    ends.append(other._starts[k])
                at = max(at, other._ends[k])
                k += 1
            if at < end:
                starts.append(at)
                ends.append(end)
        return SpanSet._of(starts, ends)

    __or__ = union
    __and__ = intersect
    __sub__ = subtract
