"""The bucket tracker against its exact twin: never above, and never later than the proof says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts import BucketTracker
from tests.twins.heap_tracker import HeapTracker

if TYPE_CHECKING:
    from slackwater.closedts import Token

EVALUATION_MAX = 5
"""Longest stay of a request, in ticks of the simulated streams below."""


class Pair:
    """Both trackers fed alike; every step checks what must hold between them."""

    def __init__(self) -> None:
        self.bucket = BucketTracker()
        self.heap = HeapTracker()
        self.inside: list[tuple[Token, Token, int]] = []

    def enter(self, ts: int) -> None:
        stamp = Timestamp(ts)
        self.inside.append((self.bucket.track(stamp), self.heap.track(stamp), ts))
        self.check()

    def leave(self, position: int) -> None:
        mine, twins, _ = self.inside.pop(position % len(self.inside))
        self.bucket.untrack(mine)
        self.heap.untrack(twins)
        self.check()

    def check(self) -> None:
        self.bucket.check()
        assert self.bucket.count == self.heap.count == len(self.inside)
        low, exact = self.bucket.lower_bound(), self.heap.lower_bound()
        assert exact == min((ts for _, _, ts in self.inside), default=None)
        assert (low is None) == (exact is None)
        assert low is None or exact is None or low <= exact


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_never_above_a_tracked_timestamp_and_empty_at_the_end(steps: list[tuple[bool, int]]) -> None:
    pair = Pair()
    for enters, number in steps:
        if enters or not pair.inside:
            pair.enter(number)
        else:
            pair.leave(number)
    while pair.inside:
        pair.leave(0)
    assert pair.bucket.lower_bound() is None
    assert pair.bucket.count == 0


# One tick: the requests that arrive in it, as (how far their timestamp is behind the tick, how long they stay).
arrivals = st.lists(
    st.lists(st.tuples(st.integers(0, 30), st.integers(1, EVALUATION_MAX)), max_size=4), min_size=1, max_size=60
)


@settings(deadline=None, max_examples=200)
@given(arrivals)
def test_never_later_than_the_exact_bound_of_two_evaluations_ago(ticks: list[list[tuple[int, int]]]) -> None:
    """lower_bound(t) >= min of the exact bound over [t - 2E, t], for any timestamps whatever."""
    bucket, heap = BucketTracker(), HeapTracker()
    leaving: dict[int, list[tuple[Token, Token]]] = {}
    exact_at: list[tuple[int, int]] = []
    for now in range(len(ticks) + EVALUATION_MAX + 1):
        for mine, twins in leaving.pop(now, []):
            bucket.untrack(mine)
            heap.untrack(twins)
        for behind, stays in ticks[now] if now < len(ticks) else []:
            ts = Timestamp(100 + now - behind)
            leaving.setdefault(now + stays, []).append((bucket.track(ts), heap.track(ts)))
            exact_at.append((now, heap.lower_bound() or 0))
        low, exact = bucket.lower_bound(), heap.lower_bound()
        if low is None:
            assert exact is None
            continue
        recently = [bound for at, bound in exact_at if at >= now - 2 * EVALUATION_MAX]
        assert low >= min(recently)
    assert bucket.count == 0


@settings(deadline=None, max_examples=100)
@given(st.lists(st.lists(st.integers(1, EVALUATION_MAX), min_size=1, max_size=4), min_size=20, max_size=120))
def test_lag_behind_now_is_within_three_evaluations_under_constant_load(stays: list[list[int]]) -> None:
    """Requests that write at their time of arrival, never a pause: what could be closed keeps up with now."""
    tracker = BucketTracker()
    leaving: dict[int, list[Token]] = {}
    for now, lengths in enumerate(stays, start=1):
        for token in leaving.pop(now, []):
            tracker.untrack(token)
        for length in lengths:
            leaving.setdefault(now + length, []).append(tracker.track(Timestamp(now)))
        low = tracker.lower_bound()
        assert low is not None
        assert now - low <= 3 * EVALUATION_MAX
