"""What a replica applies waits until somebody looks, and nobody sees a feed that is behind."""

from __future__ import annotations

from types import SimpleNamespace

import msgspec
import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import kv, versioned
from slackwater.feeds.attached import WAITING_ROWS_MAX, WAITING_RUNS_MAX, Attached
from slackwater.feeds.rangefeed import WantSlot
from slackwater.model.descriptors import Generation, LeaseAppliedIndex, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes, Ended, EndReason, Resolved
from slackwater.replica.driver import DetachReason
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.intents import StoredIntent, encode_intent
from slackwater.storage.memory import MemoryEngine

DESCRIPTOR = RangeDescriptor(RangeId(7), kv(b"a"), kv(b"z"), (NodeId(1),), Generation(1))
WHOLE = Span(DESCRIPTOR.start, DESCRIPTOR.end)


class State(msgspec.Struct, frozen=True):
    """As much of a range's state as a feed looks at."""

    descriptor: RangeDescriptor = DESCRIPTOR
    closed: Timestamp = MIN
    lai: LeaseAppliedIndex = LeaseAppliedIndex(0)
    gc_threshold: Timestamp = MIN
    kept: tuple[()] = ()
    position: Position = Position(0)


class Owner:
    """Notes what it is told, in place of a node."""

    def __init__(self) -> None:
        self.stirred: list[list[int]] = []
        self.followed: list[object] = []
        self.forgotten: list[int] = []

    def stir(self, registrations) -> None:
        self.stirred.append(list(registrations))

    def follow(self, attached, effects) -> None:
        self.followed += effects

    def forget(self, number: int) -> None:
        self.forgotten.append(number)


class Range:
    """A replica by hand, with one live consumer."""

    def __init__(self, *, befores: bool = False) -> None:
        self.owner = Owner()
        self.engine = MemoryEngine()
        self.state = State()
        context = SimpleNamespace(settings=Settings(), engine=self.engine)
        closing = SimpleNamespace(closed=lambda: self.state.closed)
        self.replica = SimpleNamespace(state=self.state, context=context, closing=closing, stopped=False)
        self.attached = Attached(self.owner, self.replica)
        feed = self.attached.feed
        feed.register(1, WHOLE, after=MIN, befores=befores)
        assert feed.locks_scanned([], done=True) == [WantSlot(1)]
        feed.open(1)
        feed.history(1, Changes([], [], []), done=True)

    def apply(self, *batches: WriteBatch, **changes) -> None:
        """One run of entries."""
        run, whole = [], WriteBatch()
        for batch in batches:
            before = self.state
            after = msgspec.structs.replace(
                before, lai=LeaseAppliedIndex(before.lai + 1), position=Position(before.position + 1), **changes
            )
            run.append((before, SimpleNamespace(batch=batch, state=after), after.position))
            self.state = self.replica.state = after
            whole.extend(batch)
        self.engine.write(whole)
        self.attached.applied(run, whole if len(batches) > 1 else batches[0])

    def take(self) -> list:
        return self.attached.take(1, bytes_max=1 << 20)[0]


def commit(*versions: tuple[bytes, int], unlock: bool = False) -> WriteBatch:
    batch = WriteBatch()
    for name, ts in versions:
        batch.put(Family.DATA, versioned(kv(name), Timestamp(ts)), b"v%d" % ts)
        if unlock:
            batch.delete(Family.LOCK, kv(name))
    return batch


def lock(name: bytes, ts: int, txn: bytes = b"t" * 16) -> WriteBatch:
    batch = WriteBatch()
    intent = StoredIntent(txn, kv(name), Timestamp(ts), 0, Timestamp(ts), 1, b"x")
    batch.put(Family.LOCK, kv(name), encode_intent(intent))
    return batch


def test_runs_wait_and_come_as_one_block() -> None:
    world = Range()
    for ts in (11, 12, 13):
        world.apply(commit((b"k", ts), (b"m", ts)))
    assert world.owner.stirred == [[1]], "once, for the first"
    (changes,) = world.take()
    assert changes.timestamps == [11, 11, 12, 12, 13, 13]
    assert changes.keys == [kv(b"k"), kv(b"m")] * 3
    world.apply(commit((b"k", 14)))
    assert world.owner.stirred == [[1], [1]]


def test_a_batch_that_was_applied_is_not_what_others_are_joined_into() -> None:
    world = Range()
    batches = [commit((b"k", ts)) for ts in (11, 12, 13)]
    for batch in batches:
        world.apply(batch)
    assert [len(batch.writes[Family.DATA]) for batch in batches] == [1, 1, 1]
    assert world.take()[0].timestamps == [11, 12, 13]


def collect(name: bytes, ts: int) -> WriteBatch:
    batch = WriteBatch()
    batch.delete(Family.DATA, versioned(kv(name), Timestamp(ts)))
    return batch


@pytest.mark.parametrize("together", [True, False], ids=["in one run", "in two"])
def test_what_was_committed_and_collected_before_a_look_is_told(*, together: bool) -> None:
    world = Range()
    batches = [commit((b"k", 11)), commit((b"k", 12)), collect(b"k", 11)]
    for run in [batches] if together else [[batch] for batch in batches]:
        world.apply(*run)
    world.apply(WriteBatch(), closed=Timestamp(12))
    world.attached._owner.follow(world.attached, world.attached.publish(quiet=True))
    told = world.take()
    assert [ts for event in told if isinstance(event, Changes) for ts in event.timestamps] == [11, 12]
    assert isinstance(told[-1], Resolved)
    assert told[-1].ts == 12


def test_deletions_are_events_and_are_joined() -> None:
    world = Range()
    for ts in (11, 12):
        batch = commit((b"k", ts))
        batch.put(Family.DATA, versioned(kv(b"m"), Timestamp(ts)), b"")
        world.apply(batch)
    assert world.take()[0].timestamps == [11, 11, 12, 12], "one block"


def test_what_waits_is_bounded() -> None:
    world = Range()
    for ts in range(10, 10 + WAITING_RUNS_MAX - 1):
        world.apply(commit((b"k", ts)))
    assert not world.attached._feed.registrations[1].pending()
    world.apply(commit((b"k", 1000)))
    assert world.attached._feed.registrations[1].pending()
    world.take()
    world.apply(commit(*((b"n%05d" % i, 2000) for i in range(WAITING_ROWS_MAX))))
    assert world.attached._feed.registrations[1].pending(), "a large run does not wait"


def test_before_images_are_read_at_once() -> None:
    world = Range(befores=True)
    world.apply(commit((b"k", 11)))
    world.apply(commit((b"k", 12)))
    assert [event.befores for event in world.take()] == [[b"", b"v11"]]


def test_a_resolved_timestamp_knows_of_locks_that_wait() -> None:
    world = Range()
    world.apply(lock(b"k", 12))
    world.apply(commit((b"m", 15)), closed=Timestamp(20))
    world.attached.publish(quiet=True)
    changes, resolved = world.take()
    assert changes.timestamps == [15]
    assert resolved.ts == 11
    world.apply(commit((b"k", 12), unlock=True))
    world.attached.publish(quiet=True)
    changes, resolved = world.take()
    assert (changes.timestamps, changes.txn_ids, resolved.ts) == ([12], [b"t" * 16], 20)


def test_entries_of_one_run_with_locks_are_read_one_by_one() -> None:
    world = Range()
    world.apply(lock(b"k", 12), commit((b"k", 12), unlock=True), lock(b"k", 14, b"u" * 16))
    assert world.attached.feed.locks.locks[kv(b"k")].txn_id == b"u" * 16
    (changes,) = world.take()
    assert changes.txn_ids == [b"t" * 16]


def test_a_split_takes_its_place_among_what_waits() -> None:
    world = Range()
    left = msgspec.structs.replace(DESCRIPTOR, end=kv(b"m"), generation=Generation(2))
    world.apply(commit((b"k", 11), (b"p", 11)))
    world.apply(WriteBatch(), descriptor=left)
    events = world.take()
    assert events[0].keys == [kv(b"k"), kv(b"p")]
    assert isinstance(events[-1], Ended)
    assert events[-1].reason is EndReason.RANGE_SPLIT
    assert world.owner.forgotten == [1]


def test_what_waits_comes_before_the_last_word() -> None:
    world = Range()
    world.apply(commit((b"k", 11)))
    world.attached.gone(DetachReason.REMOVED, "moved")
    changes, ended = world.take()
    assert changes.timestamps == [11]
    assert ended.reason is EndReason.REPLICA_GONE


def test_a_broken_rule_ends_the_feed_and_only_that() -> None:
    world = Range()
    world.apply(commit((b"k", 11)), closed=Timestamp(20))
    world.take()
    world.apply(commit((b"k", 19)))
    (ended,) = [event for event in world.take() if isinstance(event, Ended)]
    assert "I-23" in ended.detail
    world.apply(commit((b"k", 30)))
    assert world.take() == []


@pytest.mark.parametrize("first", [1, 2])
def test_neighbors_are_joined_around_what_has_to_stand_alone(first: int) -> None:
    world = Range()
    for ts in range(10, 10 + first):
        world.apply(commit((b"a%d" % ts, ts)))
    world.apply(lock(b"k", 30))
    world.apply(commit((b"k", 30), unlock=True))
    for ts in (40, 41):
        world.apply(commit((b"b%d" % ts, ts)))
    (changes,) = world.take()
    assert changes.timestamps == [*range(10, 10 + first), 30, 40, 41]


def test_a_node_that_stops_keeps_the_index_of_its_last_flush():
    """After the last flush nothing may be written: it would not be durable, and the next life could use what is there (I-31)."""
    held = Range()
    held.apply(commit((b"k", 10)))
    held.attached.flushing()
    assert held.attached.index.written
    written: list[object] = []
    held.engine.write = written.append  # type: ignore[method-assign]
    held.replica.stopped = True
    held.attached.forget_index()
    assert not written
    held.replica.stopped = False
    held.attached.forget_index()
    assert written
