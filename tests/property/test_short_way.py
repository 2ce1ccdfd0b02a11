"""The short way against the long one: the same batches, the same answers, and the same state afterwards.

A program of batches runs twice on the simulator, once as the product runs it and once with every batch sent the long way. Some
batches come together, so that latches are held and intents are met. Compared are the answers and errors in order, and then
all that the leaseholder knows: versions, intents, statistics, index, closed timestamp, tracker, timestamp cache, latches,
and the load.

Timestamps are compared in microseconds: the long way reads the clock more often, which shows in the logical part alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import LOGICAL_BITS, MAX, MIN, Timestamp
from slackwater.errors import SlackwaterError
from slackwater.model.txns import Txn
from slackwater.protocol.range.requests import (
    Batch,
    BatchResult,
    ConditionalPut,
    Delete,
    EndTxn,
    Get,
    Header,
    Put,
    PutRows,
    Request,
    Scan,
)
from slackwater.replica.driver import store as store_module
from slackwater.replica.driver.executing import Executor
from slackwater.runtime.seam import Family
from slackwater.sim.schedule import SchedulePolicy
from slackwater.txn.at_once import begin_write, write_at_once
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.replica.driver import Replica
    from slackwater.runtime.later import Later

NAMES = (b"a", b"b", b"c")
BLIND = b"d"
"""Written as a gateway writes a row, and otherwise not: an intent in the way is met once by one way and twice by the other."""
ROUND_S = 0.5
SETTINGS = {"queue.interval": 0.0, "closed_timestamp.target_duration": 1.0}

names = st.sampled_from(NAMES)
values = st.sampled_from([b"1", b"22", b"333"])
ages = st.sampled_from([0.0, 0.0, 0.0, 0.2, 0.9, 3.0])
"""Seconds in the past at which a batch asks to be; 0: the leaseholder chooses."""

steps = st.one_of(
    st.tuples(st.just("get"), names, ages),
    st.tuples(st.just("put"), names, ages, values),
    st.tuples(st.just("delete"), names, ages),
    st.tuples(st.just("cput"), names, ages, values, st.none() | values),
    st.tuples(st.just("scan"), names, ages),
    st.tuples(st.just("rows"), names, ages, values),
    st.tuples(st.just("get and put"), names, ages, values),
    st.tuples(st.just("one phase"), names, ages, values),
    st.tuples(st.just("intent"), names, ages, values),
    st.tuples(st.just("elsewhere"), names, ages),
    st.tuples(st.just("blind"), st.just(BLIND), st.just(0.0), values),
)
programs = st.lists(st.lists(steps, min_size=1, max_size=3), min_size=1, max_size=8)

many = st.sampled_from([*NAMES, b"e", b"f", b"g", b"h"])
lone = st.one_of(
    st.tuples(st.just("put"), many, st.just(0.0), values),
    st.tuples(st.just("one phase"), many, st.just(0.0), values),
    st.tuples(st.just("blind"), st.just(BLIND), st.just(0.0), values),
    st.tuples(st.sampled_from(["get", "intent", "again", "old", "below", "nothing"]), many, st.just(0.0), values),
)
crowds = st.lists(st.lists(lone, min_size=3, max_size=8), min_size=1, max_size=5)
"""Rounds of writes that share a command, with some among them that may not, or that something is in the way of."""


def us(value: Any) -> Any:
    """What is compared of an answer: timestamps lose their logical part."""
    return value >> LOGICAL_BITS if isinstance(value, int) and value > 1 << 50 else value


def flat(value: Any) -> Any:
    """A value with every timestamp in it in microseconds."""
    if isinstance(value, msgspec.Struct):
        return (type(value).__name__, *(flat(part) for part in msgspec.structs.astuple(value)))
    if isinstance(value, dict):
        return {key: flat(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [flat(part) for part in value]
    return us(value)


class Program:
    """One run of a program."""

    def __init__(self, rounds: list[list[tuple[Any, ...]]]) -> None:
        self.rounds = rounds
        self.answers: list[Any] = []
        self.state: dict[str, Any] = {}
        self.at_once = 0
        self.saved = 0
        """Commands that were saved by writes which shared one."""

    async def story(self, c: Cluster) -> None:
        """Send every round at its own time, and look at what it came to."""
        for name in NAMES[:2]:
            await c.kv.put(c.key(name), b"0")
        replica = c.node.store.holding(c.key(NAMES[0]))
        assert replica is not None
        start_ns = 20 * 1_000_000_000
        for number, batches in enumerate(self.rounds):
            due_ns = start_ns + int(number * ROUND_S * 1e9)
            await c.runtime.clock.sleep((due_ns - c.world.loop.now_ns) / 1e9)
            now = c.node.clock.physical()
            works = [
                self.blind(c, step[-1], bytes([number + 1, at + 1]) * 8)
                if step[0] == "blind"
                else self.send(c, self.batch(c, replica, now, number, at, step))
                for at, step in enumerate(batches)
            ]
            tasks = [c.scope.spawn(work, name="batch") for work in works]
            self.answers += [await task for task in tasks]
        await c.settle(0.05)
        self.state = known(c, replica, saved=self.saved)

    async def send(self, c: Cluster, batch: Batch) -> Any:
        """What a caller is told."""
        try:
            answer = await c.node.store.execute(batch)
        except SlackwaterError as error:
            return type(error).__name__
        return flat(answer)

    async def blind(self, c: Cluster, value: bytes, txn_id: bytes) -> Any:
        """Write one row as a gateway does: begun in this very step with a reading of the clock taken here, or sent."""
        context, keys = c.node.kv.context, [c.key(BLIND)]
        begun = begin_write(context, txn_id, keys, [value], below=MAX)
        if begun is None:
            return us(await write_at_once(context, txn_id, keys, [value], timeout=5.0))
        told = await begun.wait()
        if told is None:
            return us(await write_at_once(context, txn_id, keys, [value], timeout=5.0))
        ts, passed = told
        assert passed, "what a leaseholder commits now lies in the past of its own clock"
        return us(ts)

    def batch(self, c: Cluster, replica: Replica, now: Timestamp, number: int, at: int, step: tuple[Any, ...]) -> Batch:
        """The batch that a step stands for."""
        kind, name, age, *rest = step
        key = c.key(name)
        ts = Timestamp(now - (int(age * 1e6) << LOGICAL_BITS)) if age else MIN
        txn_id = bytes([number + 1, at + 1]) * 8
        began = Timestamp(ts or now)
        txn = Txn(txn_id, key, began, 0, began, began, Timestamp(now + (250_000 << LOGICAL_BITS)), 1)
        value = rest[0] if rest else b""
        requests: list[Request] = {
            "get": lambda: [Get(key)],
            "put": lambda: [Put(key, value)],
            "delete": lambda: [Delete(key)],
            "cput": lambda: [ConditionalPut(key, value, rest[1])],
            "scan": lambda: [Scan(key, c.key(b"z"))],
            "rows": lambda: [PutRows([key, c.key(name + b"x")], [value, value])],
            "get and put": lambda: [Get(key), Put(key, value)],
            "one phase": lambda: [Put(key, value), EndTxn(commit=True, one_phase=True, can_forward=True)],
            "intent": lambda: [Put(key, value)],
            "nothing": list,
            "again": lambda: [Put(key, value), EndTxn(commit=True, one_phase=True, can_forward=True)],
            "old": lambda: [Put(key, value), EndTxn(commit=True, one_phase=True)],
            "below": lambda: [
                Put(key, value),
                EndTxn(commit=True, one_phase=True, can_forward=True, deadline=Timestamp(began)),
            ],
            "elsewhere": lambda: [Get(b"\x01outside")],
        }[kind]()
        header = Header(replica.state.descriptor.range_id, ts=ts)
        if kind == "again":  # it had committed before, in an earlier round
            txn = msgspec.structs.replace(txn, txn_id=key[-8:].rjust(16, b"t"))
        if kind in ("one phase", "intent", "again", "old", "below"):
            header = Header(replica.state.descriptor.range_id, ts=began, txn=txn)
        return Batch(header, requests)


def known(c: Cluster, replica: Replica, *, saved: int) -> dict[str, Any]:
    """All that the leaseholder of a range knows, and what its engine holds of it; indexes as if no command had been saved."""
    descriptor, engine = replica.state.descriptor, c.node.engine
    data = engine.cursor(Family.DATA, start=c.key(b"a"), end=c.key(b"z")).chunk(10_000)
    locks = engine.cursor(Family.LOCK, start=c.key(b"a"), end=c.key(b"z")).chunk(10_000)
    buffer, cache, load = replica.pipeline.buffer, replica.tscache, replica.load
    stamps = [(~int.from_bytes(key[-8:], "big") & ((1 << 64) - 1)) >> LOGICAL_BITS for key in data[0]]
    return {
        "versions": [(key[:-8], at, value) for key, at, value in zip(data[0], stamps, data[1], strict=True)],
        "intents": locks[0],
        "stats": replica.state.stats,
        "lai": (replica.state.lai + saved, buffer.assigned_lai + saved),
        "closed": (us(replica.state.closed), us(buffer.assigned_closed)),
        "tracked": (buffer.tracker.count, buffer.in_flight, buffer.buffered),
        "read": {key: (us(ts), txn) for key, (ts, txn) in sorted(cache._points.items())},
        "read spans": [(low, high, flat(read)) for low, high, read in cache._spans.segments()],
        "latches": len(replica.executor._latches),
        "load": (load._seen, load._keys),
        "end": descriptor.end,
    }


def run(rounds: list[list[tuple[Any, ...]]], *, short: bool, together: bool = False) -> Program:
    """Run a program one way; `together`: writes that arrive together may share a command."""
    program = Program(rounds)
    original = Executor.at_once

    def counted(
        self: Executor, batch: Batch, now: Timestamp | None = None, of: Sequence[Batch] = ()
    ) -> BatchResult | Later[BatchResult] | None:
        begun = original(self, batch, now, of) if short else None
        program.at_once += begun is not None
        program.saved += len(of) - 1 if of and begun is not None else 0
        return begun

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Executor, "at_once", counted)
        if not together:
            patch.setattr(store_module, "may_join", lambda _batch: False)
        play(program.story, settings=SETTINGS, policy=SchedulePolicy.FIFO)
    return program


@settings(max_examples=20)
@given(programs)
def test_both_ways_answer_alike_and_leave_the_same_state(rounds: list[list[tuple[Any, ...]]]) -> None:
    short, long = run(rounds, short=True), run(rounds, short=False)
    assert short.at_once > 0
    assert long.at_once == 0
    assert short.answers == long.answers
    assert short.state == long.state
    assert short.state["latches"] == 0
    assert short.state["tracked"] == (0, 0, 0)


@settings(max_examples=30)
@given(crowds)
def test_writes_that_share_a_command_are_answered_as_if_alone_and_leave_the_same_state(
    rounds: list[list[tuple[Any, ...]]],
) -> None:
    short, long = run(rounds, short=True, together=True), run(rounds, short=False)
    for program in (short, long):  # writes of one turn are metered in another order: another key may be the sample
        seen, keys = program.state["load"]
        program.state["load"] = (seen, len(keys))
    assert long.saved == 0
    assert short.answers == long.answers
    assert short.state == long.state
    assert short.state["tracked"] == (0, 0, 0)


def test_writes_of_different_keys_share_a_command_and_those_in_the_way_do_not_stop_them() -> None:
    puts = [("put", name, 0.0, b"1") for name in (b"a", b"b", b"e")]
    commits = [("one phase", name, 0.0, b"2") for name in (b"c", b"f", b"g")]
    free = run([[*puts, *commits]], short=True, together=True)
    assert free.saved == 4, "the first finds the range idle, the others share one command"
    met = run([[("intent", b"e", 0.0, b"3")], [*puts, *commits]], short=True, together=True)
    assert met.saved == 0, "an intent is in the way of one: each is served by itself"
    assert [type(answer) for answer in met.answers[1:]].count(str) == 1, "and only that one is told of it"
