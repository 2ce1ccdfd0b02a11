"""What scripts do not show: bounds, ends, and odd orders of events."""

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import DecodeError, InvariantViolation, Overloaded, UsageError
from slackwater.feeds.effects import LockMap, lock_of, read_effects
from slackwater.feeds.rangefeed import REGISTRATIONS_MAX, RangeFeed, ScanLocks, WantSlot
from slackwater.feeds.unresolved import UnresolvedQueue
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes, Ended, EndReason, Next, Resolved, decode_event, encode_event
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.versions import suffix
from tests.unit.feeds.world import WHOLE, World, key


def version(batch, name, ts, value=b"\x00v"):
    batch.writes[Family.DATA][key(name) + suffix(Timestamp(ts))] = value


def test_collected_versions_are_no_events():
    batch = WriteBatch()
    version(batch, "b", 10, None)
    version(batch, "c", 11)
    effects = read_effects(batch)
    assert (effects.changes.keys, effects.changes.timestamps) == ([key("c")], [11])
    assert read_effects(WriteBatch()).changes == Changes([], [], [])


def test_a_version_at_or_below_resolved_stops_the_range():
    world = World()
    world.live(1, 0)
    world.close(20)
    batch = WriteBatch()
    version(batch, "b", 20)
    with pytest.raises(InvariantViolation, match="I-23"):
        world.apply(batch)


def test_too_many_locks_end_everybody_with_a_reason():
    world = World()
    world.feed = RangeFeed(WHOLE, closed=MIN, locks_max=2)
    consumer = world.live(1, 0)
    for name in "bcd":
        world.put(name, "x", 10, txn="t1")
    assert [e.reason for e in consumer.take()] == [EndReason.TOO_MANY_LOCKS]
    assert world.feed.over
    with pytest.raises(InvariantViolation):
        world.feed.register(2, WHOLE, after=MIN)


def test_too_many_locks_in_the_first_scan():
    world = World()
    for name in "bcd":
        world.put(name, "x", 10, txn="t1")
    world.feed = RangeFeed(WHOLE, closed=MIN, locks_max=2)
    consumer = world.live(1, 0)
    assert isinstance(consumer.take()[-1], Ended)


def test_locks_cleared_wholesale():
    queue = UnresolvedQueue()
    locks = LockMap(WHOLE, queue)
    locks.finish_scan()
    world = World()
    batch = world.engine.batch()
    world.feed = None
    world.put("b", "x", 10, txn="t1")
    raw = world.engine.get(Family.LOCK, key("b"))
    batch.put(Family.LOCK, key("b"), raw)
    locks.apply(read_effects(batch))
    assert len(locks) == 1
    cleared = WriteBatch()
    cleared.delete_range(Family.LOCK, WHOLE.start, WHOLE.end)
    assert locks.apply(read_effects(cleared)).went == {key("b"): b"t1".ljust(16, b".")}
    assert queue.oldest() is None
    with pytest.raises(Overloaded):
        LockMap(WHOLE, UnresolvedQueue()).apply(read_effects(cleared))


def test_registrations_are_bounded_and_inside_their_range():
    feed = RangeFeed(WHOLE, closed=MIN)
    with pytest.raises(UsageError):
        feed.register(0, Span(b"\x01", kv(b"c")), after=MIN)
    assert feed.register(0, WHOLE, after=MIN) == [ScanLocks(WHOLE)]
    for id_ in range(1, REGISTRATIONS_MAX):
        assert feed.register(id_, WHOLE, after=MIN) == []
    with pytest.raises(Overloaded):
        feed.register(REGISTRATIONS_MAX, WHOLE, after=MIN)
    assert len(feed.locks_scanned([], done=True)) == REGISTRATIONS_MAX


def test_a_consumer_that_leaves_while_it_waits_gives_its_slot_back():
    feed = RangeFeed(WHOLE, closed=MIN)
    feed.register(1, WHOLE, after=MIN)
    assert feed.locks_scanned([], done=True) == [WantSlot(1)]
    feed.drop(1)
    assert feed.open(1) is None
    assert feed.idle
    assert feed.history(1, Changes([], [], []), done=True) == []
    assert feed.take(1, bytes_max=1) == []


def test_the_end_comes_after_what_is_buffered_and_resolves_it():
    world = World()
    consumer = world.live(1, 0)
    world.put("b", "x", 10, closed=10)
    world.end_all(EndReason.REPLICA_GONE)
    kinds = consumer.take()
    assert isinstance(kinds[0], Changes)
    assert kinds[1:] == [Resolved(Timestamp(10)), Ended(EndReason.REPLICA_GONE, Timestamp(10))]
    consumer.check()
    assert world.feed.idle


def test_the_end_in_half_a_history_resumes_from_the_beginning():
    world = World()
    world.put("b", "x", 10)
    world.put("c", "x", 11)
    world.close(20)
    consumer = world.register(1, 3)
    world.scan_locks()
    world.read_history(1, 1)
    world.put("d", "x", 21)
    world.end_all(EndReason.RANGE_MERGED)
    assert consumer.take()[-1] == Ended(EndReason.RANGE_MERGED, Timestamp(3))
    assert world.feed.history(1, Changes([], [], []), done=True) == []


def test_take_gives_at_least_one_event_and_then_what_fits():
    world = World()
    consumer = world.live(1, 0)
    for at, name in enumerate("bcd"):
        world.put(name, "x" * 50, 10 + at)
    world.put("e", "x" * 50, 20, closed=19)
    world.publish()
    assert [len(e) for e in consumer.take(1)] == [1]
    assert [len(e) for e in consumer.take(200)] == [2], "what waits together comes as one block"
    assert [type(e) for e in consumer.take(300)] == [Changes, Resolved]
    assert world.feed.registrations[1].bytes == 0


def test_history_does_not_wait_for_what_waits_for_history():
    world = World()
    world.put("b", "x", 10)
    world.put("c", "x", 11)
    consumer = world.register(1, 0, budget=1024)
    world.scan_locks()
    world.put("d", "x" * 700, 20)
    assert world.read_history(1, 1)
    consumer.take()
    assert world.read_history(1, 1), "the consumer has taken everything it can take"
    consumer.take()
    assert world.feed.registrations[1].bytes == 0
    world.close(20)
    world.publish()
    consumer.take()
    consumer.check()
    assert consumer.events[-1] == Resolved(Timestamp(20))


def test_a_failed_barrier_leaves_the_transaction_to_be_pushed_again():
    world = World()
    world.live(1, 0)
    world.put("b", "x", 1 << 30, txn="t1")
    world.decide("t1", commit=False)
    world.push("t1", ambiguous=True)
    assert world.feed.to_push(now=Timestamp(1 << 40), older_than_s=1) == []
    world.push("t1", ambiguous=True)
    assert len(world.barriers) == 1, "one barrier at a time"
    world.feed.barrier_proposed(world.barriers, None, applied=world.lai)
    assert len(world.feed.to_push(now=Timestamp(1 << 40), older_than_s=1)) == 1


def test_a_barrier_already_applied_ends_the_doubt_at_once():
    world = World()
    world.live(1, 0)
    world.put("b", "x", 10, txn="t1")
    world.close(20)
    world.decide("t1", commit=False)
    world.push("t1", ambiguous=True)
    world.follow(world.feed.barrier_proposed(world.barriers, LeaseAppliedIndex(1), applied=world.lai))
    assert world.feed.resolved.value == 20
    assert [r.keys for r in world.to_resolve] == [[key("b")]]


def test_before_images_need_a_reader():
    world = World()
    world.live(1, 0, befores=True)
    batch = WriteBatch()
    version(batch, "b", 10)
    with pytest.raises(UsageError):
        world.feed.applied(batch, closed=MIN, lai=LeaseAppliedIndex(9))


def test_every_reason_says_what_to_do_next():
    assert {reason: reason.next for reason in EndReason}[EndReason.BELOW_GC_THRESHOLD] is Next.STOP
    assert all(isinstance(reason.next, Next) for reason in EndReason)


def test_broken_bytes_are_decode_errors():
    for data in (b"", b"\x93", encode_event(Changes([b"a"], [1], []))):
        with pytest.raises(DecodeError):
            decode_event(data)
    with pytest.raises(DecodeError):
        lock_of(b"k", b"nonsense")


def test_an_epoch_that_begins_below_an_intent_its_coordinator_never_heard_of():
    world = World()
    consumer = world.live(1, 0)
    world.put("b", "lost", 25, txn="t1")  # the leaseholder moved it up from 21; the answer never came
    world.txns["t1"].epoch, world.txns["t1"].ts = 1, Timestamp(22)
    world.put("c", "mine", 22, txn="t1")
    world.close(30)
    world.publish()
    world.decide("t1", commit=True)
    world.resolve("t1")
    world.publish()
    consumer.take()
    consumer.check()
    assert [v.ts for e in consumer.events if isinstance(e, Changes) for v in e.rows()] == [22]
    assert consumer.events[-1] == Resolved(Timestamp(30))
