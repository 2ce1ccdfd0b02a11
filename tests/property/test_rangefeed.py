"""A range with transactions, splits of attention and slow consumers: what every consumer rebuilds is the table."""

from __future__ import annotations

from contextlib import suppress

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import SlackwaterError
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.spans import Span
from slackwater.model.txns import TxnStatus
from slackwater.protocol.feeds.events import Changes, EndReason, Resolved
from tests.unit.feeds.world import World, key, name_of

NAMES = "bcdefg"
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["put", "put", "delete", "txn put", "txn put", "txn put", "decide", "resolve", "resolve", "restart", "lost put",
             "push", "doubt", "pass", "barrier", "close", "close", "register", "locks", "history", "history",
             "take", "take", "publish"]
        ),
        st.integers(0, len(NAMES) - 1),
        st.integers(0, 5),
    ),
    min_size=10,
    max_size=90,
)  # fmt: skip


class Story:
    """Interprets random steps; refuses those that a real range would refuse."""

    def __init__(self) -> None:
        self.world = World(slots=2)
        self.now = 10
        self.made = 0
        self.txn = dict.fromkeys(range(3), 0)

    def step(self, what: str, at: int, number: int) -> None:
        with suppress(_Refused):
            getattr(self, "do_" + what.replace(" ", "_"))(NAMES[at], number)

    def stamp(self, number: int) -> int:
        self.now += 1
        return max(int(self.world.closed) + 1, self.now - 3 * number)

    def allowed(self, call, *args, **options) -> None:
        try:
            call(*args, **options)
        except SlackwaterError as error:
            if error.__class__.__name__ in ("WriteTooOld", "ConflictError", "TransactionAborted"):
                raise _Refused from None
            raise

    def owner(self, number: int) -> str:
        slot = number % 3
        name = f"t{slot}x{self.txn[slot]}"
        found = self.world.txns.get(name)
        if found is not None and found.status is not TxnStatus.PENDING and not found.keys:
            self.txn[slot] += 1
            name = f"t{slot}x{self.txn[slot]}"
        return name

    def do_put(self, name, number):
        ts = self.stamp(number)
        self.allowed(self.world.put, name, f"v{self.now}", ts, closed=self.now - 8 if number == 5 else None)

    def do_delete(self, name, number):
        self.allowed(self.world.delete, name, self.stamp(number))

    def do_txn_put(self, name, number):
        txn = self.owner(number)
        found = self.world.txns.get(txn)
        if found is None or found.status is TxnStatus.PENDING:
            self.allowed(self.world.txn_put, txn, name, f"{txn}-{self.now}", self.stamp(number))

    def do_decide(self, name, number):
        found = self.world.txns.get(self.owner(number))
        if found is not None and found.status is TxnStatus.PENDING:
            found.status = TxnStatus.COMMITTED if number < 4 else TxnStatus.ABORTED

    def do_resolve(self, name, number):
        txn = self.owner(number)
        found = self.world.txns.get(txn)
        if found is not None and found.keys and found.status is not TxnStatus.PENDING:
            self.world.resolve(txn, name_of(min(found.keys)))

    def do_restart(self, name, number):
        found = self.world.txns.get(self.owner(number))
        if found is not None and found.status is TxnStatus.PENDING:
            found.epoch += 1
            found.ts = Timestamp(max(found.ts, self.now))

    def do_lost_put(self, name, number):
        """The leaseholder writes the intent higher than asked; the answer is lost, and the coordinator restarts lower."""
        txn = self.owner(number)
        found = self.world.txns.get(txn)
        if found is not None and found.status is TxnStatus.PENDING:
            asked = found.ts
            try:
                self.allowed(self.world.txn_put, txn, name, "lost", max(self.now + 6, int(self.world.closed) + 1))
            finally:
                found.ts = asked
                found.epoch += 1
            self.now += 6

    def do_push(self, name, number):
        txn = self.owner(number)
        if txn in self.world.txns and self.world.feed is not None and not self.world.feed.over:
            self.world.push(txn, to=self.now)

    def do_doubt(self, name, number):
        """A push that finds no record. Only transactions whose intents are all resolved at the leaseholder lose it."""
        txn = self.owner(number)
        found = self.world.txns.get(txn)
        if found is None or self.world.feed is None or found.status is TxnStatus.PENDING:
            return
        truth, found.status = found.status, TxnStatus.ABORTED
        self.world.push(txn, ambiguous=True)
        found.status = truth
        keys = sorted(found.keys)  # what the log holds before the barrier
        barriers, self.world.barriers = self.world.barriers, []
        at = LeaseAppliedIndex(self.world.lai + len(keys) + 1)
        if barriers:
            self.world.follow(self.world.feed.barrier_proposed(barriers, at, applied=self.world.lai))
        for held in keys:
            self.world.resolve(txn, name_of(held))
            self.do_publish(name, number)

    def do_pass(self, name, number):
        self.world.write(lambda batch: None)

    def do_barrier(self, name, number):
        if self.world.feed is not None:
            self.world.publish()

    def do_close(self, name, number):
        self.world.close(self.now - 2 * number)

    def do_register(self, name, number):
        world = self.world
        settled = [c for c in world.consumers.values() if c.ended is not None]
        after = int(settled[-1].ended.resolved) if settled else 0
        self.made += 1
        span = Span(world.span.start, key("e")) if number == 1 else None
        if len(world.consumers) - len(settled) < 4:
            budget = 1024 if number == 2 else 1 << 16
            world.register(self.made, after, span=span, befores=number == 3, budget=budget)

    def do_locks(self, name, number):
        self.world.scan_locks(1 + number)

    def do_history(self, name, number):
        for id_ in list(self.world.consumers):
            self.world.read_history(id_, 1 + number)

    def do_take(self, name, number):
        for id_, consumer in self.world.consumers.items():
            if (id_ + number) % 3:
                consumer.take(200 if number == 4 else 1 << 30)
                consumer.check()

    def do_publish(self, name, number):
        if self.world.feed is not None:
            self.world.publish()

    def finish(self) -> None:
        """Settle everything; then every consumer that is still there must hold the whole table."""
        world = self.world
        for txn, found in world.txns.items():
            if found.status is TxnStatus.PENDING:
                found.status = TxnStatus.COMMITTED
            for held in sorted(found.keys):
                world.resolve(txn, name_of(held))
        world.close(self.now + 1)
        for _ in range(len(world.consumers) * 100):
            world.scan_locks()
            moved = [world.read_history(id_) for id_ in world.consumers]
            for consumer in world.consumers.values():
                moved.append(bool(consumer.take()))
            if not any(moved):
                break
        if world.feed is not None:
            world.publish()
        for consumer in world.consumers.values():
            consumer.take()
            consumer.check()
            if consumer.ended is None:
                assert consumer.events[-1] == Resolved(Timestamp(self.now + 1))
            else:
                assert consumer.ended.reason is EndReason.SLOW_CONSUMER


class _Refused(Exception):
    pass


@settings(max_examples=250)
@given(STEPS)
def test_every_consumer_rebuilds_the_table_at_every_resolved_timestamp(steps) -> None:
    story = Story()
    for step in steps:
        story.step(*step)
    story.finish()


@settings(max_examples=60)
@given(STEPS, st.sets(st.integers(0, 89)))
def test_resuming_at_any_point_leaves_no_gap(steps, cuts) -> None:
    """One consumer, cut off anywhere, resumes after the last resolved timestamp it took; the union is the table."""
    story = Story()
    world = story.world
    consumer = world.live(0, 0)
    validators = consumer.validators
    for at, step in enumerate(steps):
        if step[0] != "register":
            story.step(*step)
        if at in cuts:
            world.feed.drop(consumer.id)
            world.slots.release(consumer.id)
            del world.consumers[consumer.id]
            after = int(validators.holds.frontier.resolved)
            consumer = world.register(1000 + at, after)
            consumer.validators = validators
            validators.restarted()
            world.scan_locks()
            world.read_history(consumer.id, 2)
    story.finish()
    assert not validators.breaches, validators.breaches
    rebuilt = dict(validators.mirror.table_at(Timestamp(story.now + 1)))
    assert rebuilt == dict(world.table_at(Timestamp(story.now + 1), world.span))


def test_blocks_travel_and_come_back() -> None:
    from slackwater.protocol.feeds.events import Ended, decode_event, encode_event

    for event in (
        Changes([b"a"], [7], [b"x"], [b""], [b"t" * 16]),
        Resolved(Timestamp(5)),
        Ended(EndReason.RANGE_SPLIT, Timestamp(4), "why"),
        Ended(EndReason.BELOW_GC_THRESHOLD, Timestamp(4), floor=Timestamp(9)),
    ):
        assert decode_event(encode_event(event)) == event
