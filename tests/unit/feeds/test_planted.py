"""Each planted bug of the feed cores is killed here, and the same story passes without it."""

from contextlib import ExitStack

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import InvariantViolation
from slackwater.feeds.frontier import Frontier, decode_token, frontier_from, token_of
from slackwater.feeds.rangefeed import RangeFeed
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import EndReason
from slackwater.sim.mutants import applied
from tests.unit.feeds.world import WHOLE, World


@pytest.fixture
def plant():
    with ExitStack() as stack:
        yield lambda *names: stack.enter_context(applied(names))


def open_transaction(world):
    """A consumer, and a transaction whose intent at 12 commits after 20 is closed."""
    consumer = world.live(1, 0)
    world.put("b", "mine", 12, txn="t1")
    world.close(20)
    world.publish()
    consumer.take()
    world.decide("t1", commit=True)
    world.resolve("t1")
    world.publish()
    consumer.take()
    return consumer


def test_m10_resolved_ignores_intents(plant):
    open_transaction(World()).check()
    plant("M10")
    with pytest.raises(InvariantViolation, match="I-23"):
        open_transaction(World())


def missing_record(world):
    """The leaseholder has committed and forgotten t1; this replica is told "no record" before it has applied that."""
    consumer = world.live(1, 0)
    world.put("b", "mine", 12, txn="t1")
    world.close(20)
    world.decide("t1", commit=False)
    world.push("t1", ambiguous=True)
    world.feed.barrier_proposed(world.barriers, LeaseAppliedIndex(world.lai + 2), applied=world.lai)
    world.publish()
    consumer.take()
    world.decide("t1", commit=True)
    world.resolve("t1")
    world.write(lambda batch: None)
    world.publish()
    consumer.take()
    return consumer


def test_m11_missing_record_taken_for_an_abort(plant):
    missing_record(World()).check()
    plant("M11")
    with pytest.raises(InvariantViolation, match="I-23"):
        missing_record(World())


def resume_right_behind(world):
    """A commit at resolved + 1 happens while nobody listens."""
    first = world.live(1, 0)
    world.put("b", "one", 10)
    world.close(20)
    world.publish()
    first.take()
    frontier = Frontier([WHOLE])
    frontier.forward(WHOLE, first.events[-1].ts)
    world.feed.drop(1)
    world.put("c", "two", 21)
    world.close(30)
    for span, after in frontier_from(decode_token(token_of(frontier).encode()), [WHOLE]).resume_points():
        second = world.live(2, after, span=span)
    second.validators = first.validators  # one consumer, resumed
    second.validators.restarted()
    world.publish()
    second.take()
    return second


def test_m12_resume_is_exclusive_on_both_sides(plant):
    resume_right_behind(World()).check()
    plant("M12")
    assert {breach.rule for breach in resume_right_behind(World()).validators.breaches} == {"I-22"}


def interrupted_scan():
    """An initial scan at 50 that has done one of three spans, saved and restored."""
    spans = [Span(b"a", b"c"), Span(b"d", b"f"), Span(b"g", b"k")]
    frontier = Frontier(spans)
    frontier.forward(spans[1], Timestamp(50))
    back = frontier_from(decode_token(token_of(frontier, scan_ts=Timestamp(50)).encode()), spans)
    return [span for span, ts in back.resume_points() if ts < 50]


def test_m13_restart_in_the_initial_scan(plant):
    assert interrupted_scan() == [Span(b"a", b"c"), Span(b"g", b"k")]
    plant("M13")
    assert interrupted_scan() == []


def progress_behind_events(world):
    consumer = world.live(1, 0)
    world.put("b", "one", 10, closed=9)
    world.put("c", "two", 11, closed=11)
    world.publish()
    consumer.take()
    return consumer


def test_m16_progress_overtakes_events(plant):
    progress_behind_events(World()).check()
    plant("M16")
    rules = {breach.rule for breach in progress_behind_events(World()).validators.breaches}
    assert rules == {"I-22", "I-23"}


def slow(world):
    consumer = world.live(1, 0, budget=1024)
    for at in range(10, 40):
        world.put("bcdefghijk"[at % 10], "x" * 100, at)
    world.close(50)
    world.publish()
    consumer.take()
    return consumer


def test_m17_dropped_when_full(plant):
    consumer = slow(World())
    consumer.check()
    assert consumer.ended is not None
    assert consumer.ended.reason is EndReason.SLOW_CONSUMER
    plant("M17")
    assert {breach.rule for breach in slow(World()).validators.breaches} == {"I-22"}


def test_m18_watch_that_starts_below_the_gc_threshold(plant):
    def started(after):
        feed = RangeFeed(WHOLE, closed=MIN, gc_threshold=Timestamp(30))
        feed.register(1, WHOLE, after=Timestamp(after))
        return [e.reason for e in feed.take(1, bytes_max=100)]

    assert started(29) == [EndReason.BELOW_GC_THRESHOLD]
    assert started(30) == []
    plant("M18")
    assert started(29) == [], "the deletion at 30, already collected, would never be heard of"
