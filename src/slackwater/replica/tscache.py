"""Remembers up to when every key was read, so that no write changes what a reader was already told.

A read at 10 that found nothing, answered, and then a write at 9: the reader was lied to. So the leaseholder notes every
read it serves, and a write goes above the highest read of its keys:

    add(k, ts=10, txn=A)         A read k at 10
    get(k)            -> (10, A)
    first_writable(k, txn=B)     11: above the read
    first_writable(k, txn=A)     10: a transaction does not stand in its own way
    add(k, ts=10, txn=B)         both read at 10: the owner is forgotten
    get(k)            -> (10, None)

Memory is bounded. When it is full, the older half is forgotten and a low-water mark takes its place:

    ts
     |   k3 ·        · k9
     |        [a ──── m)          kept exactly
     |- - - - - - - - - - - - - - low water: every key counts as read up to here, by no one transaction
     |   (k1, k2, [c, d) …)       forgotten

Rules
    1. get() is never below the truth: forgetting only raises. A write pushed too far is a retry, one not pushed far
       enough is a broken promise (I-18).
    2. get() is the exact truth, with its owner, for all that lies above the low-water mark.
    3. `low_water` never falls. A new leaseholder raises it to the start of its lease: what others served before is not
       known here, unless a summary of it came along (`read_summary`).

Points are in a dict, spans in a `SpanMap` (disjoint segments, the higher read wins on the way in), and a `KeyIndex`
finds the points in a span when one is asked for.

Cost with 1 000 points inside: add 0.5 µs (a new key 1.4 µs), get of a point 0.3 µs, get of a span of 10 keys 4.6 µs;
forgetting half of 4 MiB takes 5 ms, once in some 7 000 new keys (CPython 3.11, shared two-core machine;
`bench/closedts.py` measures add and get beside the naive twin).
Worked examples: `tests/scripts/replica/tscache_*.txt`.
"""

from __future__ import annotations

from typing import TypeAlias

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import UsageError
from slackwater.hooks import buggify, level, probe
from slackwater.replica.read_summary import ReadEntry, ReadSummary, TxnId, collapse
from slackwater.replica.spanmap import KeyIndex, SpanMap, check_span
from slackwater.settings import describe

Read: TypeAlias = tuple[Timestamp, TxnId | None]
"""The highest read of something, and which transaction's it was; None when it was several transactions', or none's."""

BYTES_MAX = 4 << 20
"""What one range's cache may take, unless its owner says otherwise."""
POINT_BYTES = 288
"""Memory of one point besides its key (measured 253 to 274): dict slot, tuple, integer, headers, its index entries."""
SEGMENT_BYTES = 128
"""Memory of one segment boundary besides its key (measured 110)."""
assert BYTES_MAX > 1000 * (POINT_BYTES + SEGMENT_BYTES), "a cache holds enough reads to be of use"
assert describe("replica.tscache_bytes_max").hostile[0] >= POINT_BYTES + SEGMENT_BYTES, (
    "the smallest cache holds a read"
)


def higher(a: Read, b: Read) -> Read:
    """The later of two reads. Two transactions at the same timestamp: the owner is forgotten."""
    if a[0] != b[0]:
        return a if a[0] > b[0] else b
    return a if a[1] == b[1] else (a[0], None)


class TimestampCache:
    """The reads served by one range's leaseholder."""

    def __init__(self, *, low_water: Timestamp = MIN, bytes_max: int = BYTES_MAX) -> None:
        if bytes_max <= 0:
            raise UsageError("a timestamp cache needs some memory", bytes_max=bytes_max)
        self._bytes_max = bytes_max
        self._low_water = low_water
        self._highest = low_water
        self._points: dict[bytes, Read] = {}
        self._index = KeyIndex(self._points)
        self._spans: SpanMap[Read | None] = SpanMap(None)
        self._point_bytes = 0
        self.evictions = 0

    @property
    def low_water(self) -> Timestamp:
        """Every key counts as read up to this timestamp."""
        return self._low_water

    @property
    def highest(self) -> Timestamp:
        """At or above every read noted here: what a successor that knows nothing else must write above."""
        return self._highest

    @property
    def bytes_used(self) -> int:
        """Estimate of the memory in use."""
        return self._point_bytes + self._spans.key_bytes + (len(self._spans) - 1) * SEGMENT_BYTES

    def add(self, start: bytes, end: bytes | None = None, *, ts: Timestamp, txn: TxnId | None = None) -> None:
        """Note that the key `start`, or [start, end), was read at `ts`."""
        if end is not None:
            check_span(start, end)
        if ts <= self._low_water:
            return
        if ts > self._highest:
            self._highest = ts
        read = (ts, txn)
        if end is None:
            old = self._points.get(start)
            if old is not None:
                self._points[start] = higher(old, read)
                return
            self._points[start] = read
            self._index.note(start)
            self._point_bytes += len(start) + POINT_BYTES
        else:
            self._spans.change(start, end, lambda old: read if old is None else higher(old, read))
        if self.bytes_used > self._bytes_max or buggify("tscache.evict_early"):
            self._evict()
            assert self.bytes_used <= self._bytes_max, "a cache is bounded"
            level("replica.tscache_bytes", self.bytes_used, self._bytes_max)

    def get(self, start: bytes, end: bytes | None = None) -> Read:
        """The highest read of the key `start`, or of anything in [start, end)."""
        best: Read = (self._low_water, None)
        if end is None:
            point, span = self._points.get(start), self._spans.at(start)
            if point is not None:
                best = higher(best, point)
            return best if span is None else higher(best, span)
        check_span(start, end)
        for read in self._spans.over(start, end):
            if read is not None:
                best = higher(best, read)
        for key in self._index.between(start, end):
            best = higher(best, self._points[key])
        return best

    def first_writable(self, start: bytes, end: bytes | None = None, *, txn: TxnId | None = None) -> Timestamp:
        """The lowest timestamp at which `txn` (None: a write of its own) may write here."""
        ts, owner = self.get(start, end)
        first = ts if txn is not None and owner == txn else Timestamp(ts + 1)
        assert first > self._low_water, "no write lies at or below what was served (I-15)"
        return first

    def raise_floor(self, ts: Timestamp) -> None:
        """Count everything as read up to `ts`, and forget what that makes superfluous. Never lowers."""
        if ts <= self._low_water:
            return
        self._low_water = ts
        self._highest = max(self._highest, ts)
        assert self._highest >= self._low_water, "the highest read is at or above the floor"
        # In place: the index holds on to this very dict. A read at exactly ts ties with the floor, which has no owner.
        for key in [key for key, read in self._points.items() if read[0] <= ts]:
            del self._points[key]
            self._point_bytes -= len(key) + POINT_BYTES
        assert self._point_bytes >= 0, "bytes are given back once"
        self._spans.change_all(lambda read: None if read is None or read[0] <= ts else read)

    def summary(self, *, bytes_max: int, start: bytes = b"", end: bytes | None = None) -> ReadSummary:
        """What a successor must know of [start, end) in at most `bytes_max` bytes; the rest raises its floor."""
        assert end is None or start <= end, "a summary is of a span"
        entries = [ReadEntry(low, high, *read) for low, high, read in self._spans.segments(start, end) if read]
        entries += [
            ReadEntry(key, None, *read)
            for key, read in sorted(self._points.items())
            if start <= key and (end is None or key < end)
        ]
        assert all(entry.ts > self._low_water for entry in entries), "what is below the floor is forgotten"
        return collapse(ReadSummary(self._low_water, tuple(entries)), bytes_max=bytes_max)

    def apply_summary(self, summary: ReadSummary, *, within: tuple[bytes, bytes] | None = None) -> None:
        """Take over a predecessor's reads; `within` limits its floor to one span (a merge: the right side's keys)."""
        if within is None:
            self.raise_floor(summary.floor)
            assert self._low_water >= summary.floor, "a successor writes above what was served (I-15)"
        else:
            self.add(*within, ts=summary.floor)
        for entry in summary.entries:
            self.add(entry.start, entry.end, ts=entry.ts, txn=entry.txn)

    def status(self) -> str:
        """One line."""
        return (
            f"low_water={self._low_water} points={len(self._points)} "
            f"segments={sum(1 for _ in self._spans.segments())} evictions={self.evictions}"
        )

    def _evict(self) -> None:
        """Forget the older half, until half of the memory is free: the cost is spread over as many adds."""
        probe("tscache.evicted")
        self.evictions += 1
        while True:
            stamps = [read[0] for read in self._points.values()]
            stamps += [read[0] for _, _, read in self._spans.segments() if read]
            if not stamps:
                return
            stamps.sort()
            self.raise_floor(stamps[len(stamps) // 2])
            assert self._low_water <= self._highest, "eviction rounds up to a read, not above all of them"
            if self.bytes_used <= self._bytes_max // 2:
                return
