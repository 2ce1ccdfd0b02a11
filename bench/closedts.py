"""What closing costs: the structures every request passes on the leaseholder, each beside its naive twin.

    tracker     track + lower_bound + untrack with 64 requests inside; the peer is the exact heap. Its precision: how
                far the bound lags behind now under constant load, in units of the longest evaluation (goal: 3)
    latches     acquire + release of one point write, of a span, and one turn of a queue on a hot key; the peer is the
                quadratic list, with 1 000 requests inside
    tscache     add and get of a point, get of a span of ten keys, with 1 000 reads inside; the peer is the list of them

All times are CPU of one thread in one process; lower is better.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from bench.harness import Figure, figure, interleaved
from slackwater.clock.timestamp import Timestamp
from slackwater.closedts import BucketTracker, Token, Tracker
from slackwater.replica.latches import LatchManager, LatchSpan, RequestId, read_latch, write_latch
from slackwater.replica.tscache import TimestampCache
from tests.twins.heap_tracker import HeapTracker
from tests.twins.latches import NaiveLatches
from tests.twins.timestamp_cache import NaiveTimestampCache

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

INSIDE = 64
ENTRIES = 1_000


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    yield from tracker_cost(quick=quick)
    yield tracker_lag(quick=quick)
    yield from latch_cost(quick=quick)
    yield from tscache_cost(quick=quick)


def _beside(
    metric: str, ours: Callable[[], int], twins: Callable[[], int], *, peer: str, goal: float, quick: bool
) -> Figure:
    """Time per operation of the real structure and of its twin, measured in turns."""
    rates = interleaved({"ours": ours, "twin": twins}, rounds=3 if quick else 7)
    ours_ns, twin_ns = 1e9 / rates["ours"], 1e9 / rates["twin"]
    return figure("closedts", metric, ours_ns, "ns/op", peer=peer, peer_value=twin_ns, goal=goal, better="lower")


# --- tracker -------------------------------------------------------------------------------------------------------


def tracker_cost(*, quick: bool) -> Iterator[Figure]:
    """One request's visit to the tracker, leaving in order of arrival and out of order."""
    operations = 20_000 if quick else 200_000

    def visits(tracker: Tracker, stays: tuple[int, ...]) -> Callable[[], int]:
        inside: deque[Token] = deque(tracker.track(Timestamp(n)) for n in range(INSIDE))
        now = INSIDE

        def work() -> int:
            nonlocal now
            for n in range(operations):
                now += 1
                inside.append(tracker.track(Timestamp(now)))
                tracker.lower_bound()
                inside.rotate(stays[n % len(stays)])
                tracker.untrack(inside.popleft())
            return operations

        return work

    for metric, stays in (("tracker visit, in order", (0,)), ("tracker visit, out of order", (3, -5, 7, -2))):
        yield _beside(
            metric,
            visits(BucketTracker(), stays),
            visits(HeapTracker(), stays),
            peer="HeapTracker",
            goal=1.0,
            quick=quick,
        )


def tracker_lag(*, quick: bool) -> Figure:
    """The largest lag of the lower bound behind now, under constant load, in evaluations."""
    longest, worst = 50, 0
    tracker = BucketTracker()
    leaving: dict[int, list[Token]] = {}
    for now in range(1, 5_000 if quick else 50_000):
        for token in leaving.pop(now, []):
            tracker.untrack(token)
        # Stays between 1 and `longest` ticks in a fixed, well mixed order, two arrivals per tick.
        for stay in (1 + now * 7919 % longest, 1 + now * 104_729 % longest):
            leaving.setdefault(now + stay, []).append(tracker.track(Timestamp(now)))
        worst = max(worst, now - (tracker.lower_bound() or now))
    return figure(
        "closedts",
        "tracker lag, worst",
        worst,
        "ticks",
        peer="longest evaluation",
        peer_value=longest,
        goal=3.0,
        better="lower",
    )


# --- latches -------------------------------------------------------------------------------------------------------


def latch_cost(*, quick: bool) -> Iterator[Figure]:
    """Acquire and release beside 1 000 held point latches."""
    point = [write_latch(b"key/00500/x", at=Timestamp(7))]
    span = [read_latch(b"key/00500", b"key/00510", at=Timestamp(3))]
    for metric, spans, goal in (("latch, one point", point, 0.05), ("latch, span over ten keys", span, 0.2)):
        ours, twin = LatchManager(), NaiveLatches()
        for n in range(ENTRIES):
            held = [write_latch(b"key/%05d" % n, at=Timestamp(5))]
            ours.acquire(RequestId(n), held)
            twin.acquire(RequestId(n), held)
        yield _beside(
            metric,
            _turns(ours, spans, 5_000 if quick else 50_000),
            _turns(twin, spans, 20 if quick else 100),
            peer="quadratic list, 1 000 requests",
            goal=goal,
            quick=quick,
        )
    yield _beside(
        "latch, hot key of 256 writers",
        _hot_key(LatchManager(), 2_000 if quick else 20_000),
        _hot_key(NaiveLatches(), 5 if quick else 20),
        peer="quadratic list, 256 requests",
        goal=0.05,
        quick=quick,
    )


def _turns(manager: LatchManager | NaiveLatches, spans: list[LatchSpan], operations: int) -> Callable[[], int]:
    mine = RequestId(1 << 40)

    def work() -> int:
        for _ in range(operations):
            manager.acquire(mine, spans)
            manager.release(mine)
        return operations

    return work


def _hot_key(manager: LatchManager | NaiveLatches, operations: int) -> Callable[[], int]:
    spans = [write_latch(b"counter", at=Timestamp(5))]
    for n in range(256):
        manager.acquire(RequestId(n), spans)
    first = 0

    def work() -> int:
        nonlocal first
        for _ in range(operations):
            manager.acquire(RequestId(first + 256), spans)
            granted = manager.release(RequestId(first))
            first += 1
            assert granted == [first]
        return operations

    return work


# --- timestamp cache -----------------------------------------------------------------------------------------------


def tscache_cost(*, quick: bool) -> Iterator[Figure]:
    """Add and get beside 1 000 noted reads."""
    ours, twin = TimestampCache(), NaiveTimestampCache()
    for n in range(ENTRIES):
        for cache in (ours, twin):
            cache.add(b"key/%05d" % n, ts=Timestamp(10 + n), txn=b"A")
    calls, naive_calls = (5_000, 50) if quick else (50_000, 300)

    def gets(cache: TimestampCache | NaiveTimestampCache, end: bytes | None, operations: int) -> Callable[[], int]:
        def work() -> int:
            for _ in range(operations):
                cache.get(b"key/00500", end)
            return operations

        return work

    def adds(cache: TimestampCache, operations: int) -> Callable[[], int]:
        now = 10_000

        def work() -> int:
            nonlocal now
            for _ in range(operations):
                now += 1
                cache.add(b"key/%05d" % (now % ENTRIES), ts=Timestamp(now), txn=b"B")
            return operations

        return work

    peer = "list of 1 000 reads"
    for metric, end, goal in (("tscache get, point", None, 0.05), ("tscache get, span of ten keys", b"key/00510", 0.2)):
        ours_work, twins_work = gets(ours, end, calls), gets(twin, end, naive_calls)
        yield _beside(metric, ours_work, twins_work, peer=peer, goal=goal, quick=quick)
    # A list only pays when asked, so it is no peer for noting a read; the least one could do is one dict assignment.
    plain: dict[bytes, tuple[Timestamp, bytes]] = {}

    def assignments() -> int:
        for n in range(calls):
            plain[b"key/%05d" % (n % ENTRIES)] = (Timestamp(n), b"B")
        return calls

    yield _beside(
        "tscache add, known point", adds(ours, calls), assignments, peer="dict assignment", goal=6.0, quick=quick
    )
