"""Keeps requests that touch the same keys out of each other's way, first come, first served.

Evaluation reads the state, decides and proposes; until the proposal has applied, no other request may decide on the same
keys. A latch is that right: short, in memory, held by one request of the leaseholder (locks of transactions are intents
and live in the store). A request declares every span it will touch and gets all of them at once:

    acquire(7, [write k1 @30, read [a, m) @30])
        granted  -> Latch                     evaluate, propose, apply, then release(7)
        blocked  -> Waiting(behind=(3, 5))    release(3) and release(5) will name 7 among those now granted

What conflicts
                     read @r                      write @w'
    read             never                        if w' <= r
    write @w         if w <= r                    always
A write above a read's timestamp cannot change what it sees, so they pass each other. A latch with no timestamp
(`NON_MVCC`: range-local state, splits, leases) conflicts with every write, and as a write with every read.

Rules
    1. Latches are queued in order of arrival, and what a request waits for is known when it arrives: the *earlier*
       requests that conflict with it, granted or not. So edges point backwards in time: there is no cycle and no
       deadlock, and no later arrival can overtake or starve a waiting request.
    2. A request is granted exactly when no earlier conflicting request is left (what the naive twin says in one line).
    3. Leaving names every request it granted, in order of arrival: no request polls, and no wake-up is lost.

On one key all writes conflict, so the last of them stands for all before it: a new request waits for that one alone,
and a queue of n writers on a hot key costs n, not n². When a waiting request is cancelled it stands for no request any
more; those behind it look again.

    points   dict key -> queue                     one lookup; nearly every latch
    spans    SpanMap segment -> latches over it    and a KeyIndex of the points, for spans that ask

Cost: 1.8 µs for acquire + release of one point write with 1 000 others held, against a goal of 3 µs; 2.5 µs for a point
write and a read latch that every writer shares (CPython 3.11, best of many short runs on
the shared two-core machine; `bench/closedts.py` measures it beside the naive twin).
Worked examples: `tests/scripts/replica/latches_*.txt`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType, TypeAlias

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import InvariantViolation, Overloaded, UsageError
from slackwater.hooks import level
from slackwater.replica.spanmap import KeyIndex, SpanMap, check_span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

RequestId = NewType("RequestId", int)

NON_MVCC = MIN
"""The timestamp of a latch on state that has no versions: it conflicts whatever the other's timestamp."""

REQUESTS_MAX = 1 << 14
"""Requests one range may have holding or waiting."""
LATCHES_PER_REQUEST_MAX = 1 << 14
"""Latches one request may declare; a wider one declares the span around its keys."""


class LatchSpan(msgspec.Struct, frozen=True, gc=False):
    """One thing a request will touch: the key `start`, or [start, end) when there is an end."""

    start: bytes
    end: bytes | None
    write: bool
    ts: Timestamp


def read_latch(start: bytes, end: bytes | None = None, *, at: Timestamp = NON_MVCC) -> LatchSpan:
    """A read of one key or span at a timestamp."""
    return LatchSpan(start, end, False, at or MAX)  # noqa: FBT003 - a non-MVCC read is disturbed by every write


def write_latch(start: bytes, end: bytes | None = None, *, at: Timestamp = NON_MVCC) -> LatchSpan:
    """A write of one key or span at a timestamp or above."""
    return LatchSpan(start, end, True, at)  # noqa: FBT003


class Latch:
    """The place of one request, waiting or granted, with all of its spans."""

    __slots__ = ("dependents", "request", "sequence", "spans", "waits_for")

    def __init__(self, request: RequestId, sequence: int, spans: Sequence[LatchSpan]) -> None:
        self.request = request
        self.sequence = sequence
        self.spans = spans
        self.waits_for: dict[int, Latch] | None = None  # by sequence; None once granted
        self.dependents: dict[int, Latch] | None = None

    @property
    def granted(self) -> bool:
        """Whether the request may evaluate."""
        return self.waits_for is None


class WaitingLatch(msgspec.Struct, frozen=True):
    """A latch that is not granted: `behind` must leave first. On a hot key the last in the queue stands for all before it."""

    request: RequestId
    behind: tuple[RequestId, ...]


_Held: TypeAlias = tuple[Latch, Timestamp]
_Queue: TypeAlias = dict[int, _Held]
"""In order of arrival, by sequence: leaving from the middle costs the same as from either end."""
_Cover: TypeAlias = tuple[_Held, ...]


class _Table:
    """All latches of one kind (reads or writes), by point and by span."""

    __slots__ = ("index", "points", "spans", "spans_held")

    def __init__(self) -> None:
        self.points: dict[bytes, _Queue] = {}
        self.index = KeyIndex(self.points)
        self.spans: SpanMap[_Cover] = SpanMap(())
        self.spans_held = 0

    def insert(self, latch: Latch, span: LatchSpan) -> None:
        held = (latch, span.ts)
        if span.end is None:
            queue = self.points.get(span.start)
            if queue is None:
                self.points[span.start] = {latch.sequence: held}
                self.index.note(span.start)
            else:
                _join(queue, held, span)
        else:
            self.spans.change(span.start, span.end, lambda cover: (*cover, held))
            self.spans_held += 1

    def remove(self, latch: Latch, span: LatchSpan) -> None:
        if span.end is None:
            queue = self.points.get(span.start)  # gone already if the request declared the key twice
            if queue is not None:
                queue.pop(latch.sequence, None)
                if not queue:
                    del self.points[span.start]
        else:
            self.spans.change(span.start, span.end, lambda cover: tuple(h for h in cover if h[0] is not latch))
            self.spans_held -= 1
            assert self.spans_held >= 0, "a span is given back once"
            assert self.spans_held or len(self.spans) == 1, "nothing is left of spans that were given back"


class LatchManager:
    """All latches of one range. Pure: `release` returns the requests that are granted by it."""

    def __init__(self, *, requests_max: int = REQUESTS_MAX) -> None:
        assert requests_max > 0, "a range takes requests"
        self._requests_max = requests_max
        self._latches: dict[RequestId, Latch] = {}
        self.inside: Mapping[RequestId, Latch] = self._latches
        """Requests inside, waiting or granted."""
        self._reads = _Table()
        self._writes = _Table()
        self._sequence = 0

    def __len__(self) -> int:
        """Requests inside, waiting or granted."""
        return len(self._latches)

    def acquire(self, request: RequestId, spans: Sequence[LatchSpan]) -> Latch | WaitingLatch:
        """Queue a request with everything it will touch; `Latch` if it may go ahead at once."""
        latch = self._arrival(request, spans)
        free = self._take_free_points(latch)
        behind = None if free else self._earlier_conflicts(latch)
        self._enter(latch, inserted=free)
        if not behind:
            return latch
        assert all(other.sequence < latch.sequence for other in behind.values()), (
            "a latch waits only for earlier ones: no cycle"
        )
        latch.waits_for = behind
        for other in behind.values():
            _add_dependent(other, latch)
        return WaitingLatch(request, self.behind(request))

    def acquire_free(self, request: RequestId, spans: Sequence[LatchSpan]) -> bool:
        """Like `acquire`, for a request that will not wait: whether it got everything; if not, nothing was queued."""
        latch = self._arrival(request, spans)
        free = self._take_free_points(latch)
        if not free and self._earlier_conflicts(latch):
            return False
        self._enter(latch, inserted=free)
        return True

    def passes(self, spans: Sequence[LatchSpan]) -> bool:
        """Whether a request that is done in this very step, and so needs to hold nothing, may go ahead."""
        reads, writes = self._reads, self._writes
        if not (writes.points or writes.spans_held or reads.points or reads.spans_held):
            return True
        return not self._earlier_conflicts(Latch(RequestId(0), self._sequence + 1, spans))

    def may_touch(self, key: bytes) -> bool:
        """Whether a request inside has declared this key, or any span."""
        reads, writes = self._reads, self._writes
        return key in writes.points or key in reads.points or writes.spans_held > 0 or reads.spans_held > 0

    def _arrival(self, request: RequestId, spans: Sequence[LatchSpan]) -> Latch:
        """The place of a request that arrives now, if there is room and what it declares is in order."""
        if request in self._latches:
            raise InvariantViolation("A-latch-acquire-once", {"request": request})
        if len(self._latches) >= self._requests_max:
            raise Overloaded("too many requests hold or wait for latches in this range", limit=self._requests_max)
        if len(spans) > LATCHES_PER_REQUEST_MAX:
            raise UsageError(
                "declare the span around the keys instead", latches=len(spans), limit=LATCHES_PER_REQUEST_MAX
            )
        for span in spans:
            if span.end is not None:
                check_span(span.start, span.end)
        self._sequence += 1
        return Latch(request, self._sequence, spans)

    def _enter(self, latch: Latch, *, inserted: bool) -> None:
        assert latch.request not in self._latches, "a request holds its latches once"
        self._latches[latch.request] = latch
        level("replica.latched", len(self._latches), self._requests_max)
        if not inserted:
            for span in latch.spans:
                (self._writes if span.write else self._reads).insert(latch, span)

    def release(self, request: RequestId) -> list[RequestId]:
        """A granted request is done. Returns those it was the last to hold up, in order of arrival."""
        latch = self._latches.get(request)
        if latch is None or latch.waits_for is not None:
            state = "unknown" if latch is None else "waiting"
            raise InvariantViolation("A-latch-release-granted", {"request": request, "state": state})
        self._remove(latch)
        return self._wake(latch) if latch.dependents else []

    def cancel(self, request: RequestId) -> list[RequestId]:
        """A request gives up, waiting or (if it was granted in the meantime) not. Returns those now granted."""
        latch = self._latches.get(request)
        if latch is None:
            raise InvariantViolation("A-latch-cancel-known", {"request": request})
        if latch.waits_for is None:
            return self.release(request)
        self._remove(latch)
        for other in latch.waits_for.values():
            if other.dependents:
                other.dependents.pop(latch.sequence, None)
        # Those behind waited for this one in the name of earlier requests too: they look again.
        for dependent in (latch.dependents or {}).values():
            assert dependent.waits_for is not None
            for sequence, other in self._earlier_conflicts(dependent).items():
                dependent.waits_for[sequence] = other
                _add_dependent(other, dependent)
        assert latch.request not in self._latches, "a request that gave up holds nothing"
        return self._wake(latch)

    def is_granted(self, request: RequestId) -> bool:
        """Whether a request inside may evaluate."""
        return self._latches[request].waits_for is None

    def behind(self, request: RequestId) -> tuple[RequestId, ...]:
        """The requests that one waits for, earliest first; empty when it is granted."""
        waits_for = self._latches[request].waits_for
        return tuple(waits_for[s].request for s in sorted(waits_for)) if waits_for else ()

    def status(self) -> str:
        """One line: the requests that hold latches, and what each waiting one is behind."""
        held = [str(r) for r, latch in self._latches.items() if latch.waits_for is None]
        waiting = [f"{r}<-{','.join(map(str, self.behind(r)))}" for r, la in self._latches.items() if la.waits_for]
        return f"held=[{' '.join(held)}] waiting=[{' '.join(waiting)}]"

    def _take_free_points(self, latch: Latch) -> bool:
        """Take latches on single keys that no other request touches (reads may share); False: take the general way."""
        reads, writes = self._reads, self._writes
        if reads.spans_held or writes.spans_held:
            return False
        for span in latch.spans:
            key = span.start
            if span.end is not None or key in writes.points or (span.write and key in reads.points):
                return False
        for span in latch.spans:
            (writes if span.write else reads).insert(latch, span)
        return True

    def _remove(self, latch: Latch) -> None:
        del self._latches[latch.request]
        for span in latch.spans:
            (self._writes if span.write else self._reads).remove(latch, span)

    def _wake(self, gone: Latch) -> list[RequestId]:
        granted: list[Latch] = []
        for dependent in (gone.dependents or {}).values():
            waits_for = dependent.waits_for
            assert waits_for is not None
            del waits_for[gone.sequence]
            if not waits_for:
                assert dependent.request in self._latches, "a request that is woken still waits"
                dependent.waits_for = None
                granted.append(dependent)
        assert all(latch.sequence > gone.sequence for latch in granted), "only later requests wait for an earlier one"
        granted.sort(key=_by_arrival)
        return [latch.request for latch in granted]

    def _earlier_conflicts(self, latch: Latch) -> dict[int, Latch]:
        """The earlier requests this one must wait for, by sequence; enough of them, as the docstring explains."""
        found: dict[int, Latch] = {}
        before = latch.sequence
        for span in latch.spans:
            if span.write:
                _writes_before(self._writes, span, before, MAX, found)
                _reads_before(self._reads, span, before, found)
            else:
                _writes_before(self._writes, span, before, span.ts, found)
        return found


def _writes_before(table: _Table, span: LatchSpan, before: int, upto: Timestamp, found: dict[int, Latch]) -> None:
    """Writes at or below `upto`: per key the last one only, per covering span all."""
    for queue in _queues(table, span):
        for other, ts in reversed(queue.values()):
            if ts <= upto and other.sequence < before:
                found[other.sequence] = other
                break
    for other, ts in _covers(table, span):
        if ts <= upto and other.sequence < before:
            found[other.sequence] = other


def _reads_before(table: _Table, span: LatchSpan, before: int, found: dict[int, Latch]) -> None:
    """Reads at or above the write: each of them, because reads do not wait for each other."""
    for queue in _queues(table, span):
        for other, ts in queue.values():
            if ts >= span.ts and other.sequence < before:
                found[other.sequence] = other
    for other, ts in _covers(table, span):
        if ts >= span.ts and other.sequence < before:
            found[other.sequence] = other


def _queues(table: _Table, span: LatchSpan) -> Sequence[_Queue]:
    """The point queues a span touches."""
    points = table.points
    if not points:
        return ()
    if span.end is None:
        queue = points.get(span.start)
        return () if queue is None else (queue,)
    return [points[key] for key in table.index.between(span.start, span.end)]


def _covers(table: _Table, span: LatchSpan) -> Sequence[_Held]:
    """The span latches a span touches."""
    if not table.spans_held:
        return ()
    if span.end is None:
        return table.spans.at(span.start)
    return [held for cover in table.spans.over(span.start, span.end) for held in cover]


def _join(queue: _Queue, held: _Held, span: LatchSpan) -> None:
    """Queue up; a request that declares a key twice is in the queue once, with the timestamp that excludes more."""
    latch, ts = held
    twice = queue.get(latch.sequence)
    if twice is not None:
        held = (latch, min(ts, twice[1]) if span.write else max(ts, twice[1]))
    queue[latch.sequence] = held


def _add_dependent(latch: Latch, dependent: Latch) -> None:
    assert dependent.sequence > latch.sequence, "only later requests depend on a latch"
    if latch.dependents is None:
        latch.dependents = {}
    latch.dependents[dependent.sequence] = dependent


def _by_arrival(latch: Latch) -> int:
    return latch.sequence
