"""The tracker pair: small rules by hand, then every interleaving of a few operations."""

from __future__ import annotations

import itertools

import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts import BucketTracker, Tracker, tracker
from slackwater.errors import InvariantViolation, Overloaded
from tests.twins.heap_tracker import HeapTracker

PAIR = pytest.mark.parametrize("make", [HeapTracker, BucketTracker])


@PAIR
def test_an_empty_tracker_has_no_bound(make: type[Tracker]) -> None:
    t = make()
    assert t.lower_bound() is None
    assert t.count == 0


@PAIR
def test_one_request_is_the_bound_until_it_leaves(make: type[Tracker]) -> None:
    t = make()
    token = t.track(Timestamp(7))
    assert t.lower_bound() == 7
    assert t.count == 1
    t.untrack(token)
    assert t.lower_bound() is None
    assert t.count == 0


@PAIR
def test_leaving_twice_is_a_violation_even_when_others_are_inside(make: type[Tracker]) -> None:
    t = make()
    token = t.track(Timestamp(7))
    t.track(Timestamp(7))
    t.untrack(token)
    with pytest.raises(InvariantViolation) as caught:
        t.untrack(token)
    assert caught.value.rule == "A-tracker-untrack-once"
    assert t.count == 1, "the failed call must not have taken somebody else out"


@PAIR
def test_a_token_of_nobody_is_a_violation(make: type[Tracker]) -> None:
    with pytest.raises(InvariantViolation):
        make().untrack(tracker.Token(99))


@PAIR
def test_the_bound_on_requests_inside(make: type[Tracker], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.closedts.tracker.TRACKED_MAX", 2)
    monkeypatch.setattr("tests.twins.heap_tracker.TRACKED_MAX", 2)
    t = make()
    first = t.track(Timestamp(1))
    t.track(Timestamp(2))
    with pytest.raises(Overloaded):
        t.track(Timestamp(3))
    assert t.count == 2
    t.untrack(first)
    t.track(Timestamp(3))


def test_later_arrivals_never_join_the_first_bucket_so_it_drains() -> None:
    t = BucketTracker()
    old = t.track(Timestamp(10))
    young = [t.track(Timestamp(ts)) for ts in (15, 12, 20)]
    assert t.status() == "first={ts=10, count=1} second={ts=12, count=3}"
    t.untrack(old)
    assert t.status() == "first={ts=12, count=3} second={}"
    for token in young:
        t.untrack(token)
    assert t.status() == "first={} second={}"


def test_a_drained_second_bucket_forgets_its_timestamp() -> None:
    t = BucketTracker()
    t.track(Timestamp(10))
    t.untrack(t.track(Timestamp(12)))
    t.track(Timestamp(30))
    assert t.status() == "first={ts=10, count=1} second={ts=30, count=1}"


def test_a_lower_arrival_lowers_the_first_bucket() -> None:
    t = BucketTracker()
    t.track(Timestamp(10))
    low = t.track(Timestamp(4))
    assert t.lower_bound() == 4
    t.untrack(low)
    assert t.lower_bound() == 4, "a bucket's timestamp only decreases while anybody is in it"


OPERATIONS = 4
TIMESTAMPS = (1, 2, 3, 4)


def interleavings(requests: int) -> list[tuple[int, ...]]:
    """All orders in which `requests` requests can enter and leave (or stay): request numbers, first time = enter."""
    slots = [r for r in range(requests) for _ in range(2)]
    orders = set()
    for length in range(requests, 2 * requests + 1):
        orders.update(itertools.permutations(slots, length))
    # Requests enter in the order of their numbers (the timestamps are what is varied), and all of them enter.
    return sorted(o for o in orders if list(dict.fromkeys(o)) == list(range(requests)))


@pytest.mark.parametrize("requests", range(1, OPERATIONS + 1))
def test_every_interleaving_against_the_heap(requests: int) -> None:
    """Every way 4 requests can enter and leave, with every choice out of 4 timestamps."""
    orders = interleavings(requests)
    steps = 0
    for stamps in itertools.product(TIMESTAMPS, repeat=requests):
        for order in orders:
            bucket, heap = BucketTracker(), HeapTracker()
            inside: dict[int, tuple[tracker.Token, tracker.Token]] = {}
            for request in order:
                if request in inside:
                    mine, twins = inside.pop(request)
                    bucket.untrack(mine)
                    heap.untrack(twins)
                else:
                    ts = Timestamp(stamps[request])
                    inside[request] = (bucket.track(ts), heap.track(ts))
                bucket.check()
                agree(bucket, heap, [stamps[r] for r in inside])
                steps += 1
    assert steps >= requests * len(orders)


def agree(bucket: BucketTracker, heap: HeapTracker, inside: list[int]) -> None:
    """The heap is exact; the buckets are never above it, and empty exactly when it is."""
    low, exact = bucket.lower_bound(), heap.lower_bound()
    assert exact == (min(inside) if inside else None)
    assert (low is None) == (exact is None)
    if low is not None and exact is not None:
        assert low <= exact
    assert bucket.count == heap.count == len(inside)
