from __future__ import annotations

import asyncio
import contextvars
import gc
import itertools
import sys

import pytest

from slackwater.sim.handles import NS, SimFuture
from slackwater.sim.loop import EscapedSimulation, Livelock
from slackwater.sim.schedule import SchedulePolicy
from tests.unit.sim.helpers import loop


def run(lp, *coroutines, seconds=100):
    tasks = []
    lp.call_soon(lambda: tasks.extend(lp.create_task(c, name=f"w{i}") for i, c in enumerate(coroutines)))
    lp.run(upto_ns=lp.now_ns + seconds * NS)
    return [t.result() for t in tasks]


def test_time_is_virtual_and_moves_to_the_next_timer():
    lp = loop()
    seen = []

    async def sleeper(seconds):
        await asyncio.sleep(seconds)
        seen.append((seconds, lp.time()))

    run(lp, sleeper(50.5), sleeper(0.25), sleeper(3))
    assert seen == [(0.25, 0.25), (3, 3.0), (50.5, 50.5)]
    assert lp.now_ns == 100 * NS, "the run ends at its time even when idle"


def work(log, name):
    async def steps():
        for i in range(20):
            log.append((name, i))
            await asyncio.sleep(0)

    return steps()


def order(policy, seed=1):
    lp, log = loop(seed, policy), []
    run(lp, *(work(log, n) for n in "abcd"))
    return log, lp.trace_hash


def test_policies_and_seeds_give_different_orders_and_the_same_seed_the_same():
    runs = {p: order(p) for p in SchedulePolicy}
    assert len({tuple(log) for log, _ in runs.values()}) == len(runs)
    assert len({trace for _, trace in runs.values()}) == len(runs)
    for policy, expected in runs.items():
        assert order(policy) == expected
    assert order(SchedulePolicy.UNIFORM, seed=2) != runs[SchedulePolicy.UNIFORM]
    assert order(SchedulePolicy.FIFO, seed=2) == runs[SchedulePolicy.FIFO]


def test_fifo_is_asyncio_order():
    log, _ = order(SchedulePolicy.FIFO)
    assert log == [(n, i) for i in range(20) for n in "abcd"]


def test_pct_runs_one_task_until_its_priority_changes():
    log, _ = order(SchedulePolicy.PCT2)
    switches = sum(a[0] != b[0] for a, b in itertools.pairwise(log))
    assert switches <= 4, "strict priorities, at most one change point"


def test_starve_lets_the_victim_run_last():
    log, _ = order(SchedulePolicy.STARVE)
    last = {n: max(i for i, (m, _) in enumerate(log) if m == n) for n in "abcd"}
    first = {n: min(i for i, (m, k) in enumerate(log) if m == n and k == 1) for n in "abcd"}
    victim = max(first, key=first.get)
    assert first[victim] > min(last.values()), "somebody finished before the victim's second step"


def test_sets_of_tasks_and_futures_iterate_in_order_of_birth():
    lp = loop()

    async def main():
        tasks = {lp.create_task(asyncio.sleep(1)) for _ in range(50)}
        births = [t.birth for t in tasks]
        assert births == sorted(births)
        futures = [lp.create_future() for _ in range(50)]
        assert all(isinstance(f, SimFuture) for f in futures)
        assert [hash(f) for f in futures] == sorted(hash(f) for f in futures)
        done, _ = await asyncio.wait(tasks)
        assert len(done) == 50
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.sleep(1))
        return True

    assert run(lp, main()) == [True]


def test_context_variables_follow_their_task():
    lp, var = loop(), contextvars.ContextVar("v", default=0)

    async def main(value):
        var.set(value)
        for _ in range(5):
            await asyncio.sleep(0)
            assert var.get() == value
        seen = []
        lp.call_soon(lambda: seen.append(var.get()))
        await asyncio.sleep(1)
        return seen

    assert run(lp, main(1), main(2)) == [[1], [2]]


def test_timeouts_locks_events_and_cancellation_work():
    lp = loop()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(2):
                await asyncio.sleep(60)
        assert lp.time() == 2.0
        lock, event = asyncio.Lock(), asyncio.Event()
        async with lock:
            lp.call_later(1, event.set)
            await event.wait()
        task = lp.create_task(asyncio.sleep(10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return lp.time()

    assert run(lp, main()) == [3.0]


def test_cancelled_timers_are_swept():
    lp = loop()
    for i in range(5000):
        lp.call_at_ns(NS + i, print).cancel()
    assert len(lp._timers) < 1000
    lp.run(upto_ns=2 * NS)
    assert lp.steps == 0


def test_everything_else_of_a_loop_raises():
    lp = loop()
    for name in (
        "run_in_executor",
        "call_soon_threadsafe",
        "create_connection",
        "getaddrinfo",
        "add_reader",
        "subprocess_exec",
    ):
        with pytest.raises(EscapedSimulation, match=name):
            getattr(lp, name)()


def test_endless_steps_without_time_are_a_livelock():
    lp = loop()

    async def spin():
        while True:
            await asyncio.sleep(0)

    with pytest.raises(Livelock, match="task w0 of world"):
        run(lp, spin())
    lp.dispose()


def test_an_error_in_a_callback_ends_the_run():
    lp = loop()
    lp.call_soon(lambda: 1 // 0)
    lp.call_later(1, lambda: pytest.fail("ran on"))
    with pytest.raises(ZeroDivisionError):
        lp.run(upto_ns=NS * 5)


class Resource:
    """Counts what `finally` blocks and generators do."""

    def __init__(self):
        self.released = []


def parked_world(resource):
    """A domain with a task that sits in a `finally`, in an async generator and in a nested call."""
    lp = loop()
    domain = lp.new_domain("n1.1")

    async def generator():
        try:
            while True:
                yield 1
        finally:
            resource.released.append("generator")

    async def inner():
        try:
            await lp.create_future()
        finally:
            resource.released.append("inner")
            await asyncio.sleep(1)

    async def main():
        try:
            async for _ in generator():
                await inner()
        finally:
            resource.released.append("outer")

    lp.call_soon(lambda: lp.create_task(main()), context=domain.context)
    return lp, domain


def test_a_power_cut_runs_no_finally_block():
    resource = Resource()
    lp, domain = parked_world(resource)
    lp.run(upto_ns=NS)
    assert lp.park(domain) == 1
    lp.run(upto_ns=60 * NS)
    gc.collect()
    assert resource.released == []
    complaints = []
    hook, sys.unraisablehook = sys.unraisablehook, complaints.append
    try:
        lp.dispose()
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert complaints == []


def test_dispose_is_silent_whatever_the_finally_blocks_do():
    lp = loop()
    domain = lp.new_domain("n1.1")

    async def rude():
        try:
            await lp.create_future()
        finally:
            lp.create_task(asyncio.sleep(1))
            lp.call_later(1, print)
            await lp.create_future()

    async def ruder():
        try:
            await lp.create_future()
        except GeneratorExit:
            raise ValueError("no") from None

    lp.call_soon(lambda: [lp.create_task(rude()), lp.create_task(ruder())], context=domain.context)
    lp.run(upto_ns=NS)
    complaints = []
    hook, sys.unraisablehook = sys.unraisablehook, complaints.append
    try:
        lp.dispose()
        gc.collect()
    finally:
        sys.unraisablehook = hook
    assert complaints == []
    assert lp.unretrieved == []


def test_a_live_generator_that_is_dropped_is_closed():
    lp, closed = loop(), []

    async def generator():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    async def main():
        async for _ in generator():
            break
        await asyncio.sleep(1)

    run(lp, main())
    assert closed == [True]


def test_gates_see_every_handle_of_their_domain_and_no_other():
    lp, ran, held = loop(), [], []
    one, two = lp.new_domain("n1.1"), lp.new_domain("n2.1")

    async def main(name):
        for i in range(3):
            ran.append((name, i))
            await asyncio.sleep(1)

    lp.call_soon(lambda: lp.create_task(main("n1")), context=one.context)
    lp.call_soon(lambda: lp.create_task(main("n2")), context=two.context)
    lp.run(upto_ns=NS // 2)
    one.gate = lambda handle: held.append(handle) or True
    lp.run(upto_ns=10 * NS)
    assert [i for n, i in ran if n == "n1"] == [0]
    assert [i for n, i in ran if n == "n2"] == [0, 1, 2]
    one.gate = None
    for handle in held:
        lp.requeue(handle)
    lp.run(upto_ns=20 * NS)
    assert [i for n, i in ran if n == "n1"] == [0, 1, 2]


def test_the_trace_knows_names_times_and_notes():
    def trace(name="w0", sleep=1, note="x"):
        lp = loop()
        lp.call_soon(lambda: lp.create_task(asyncio.sleep(sleep), name=name))
        lp.run(upto_ns=10 * NS)
        lp.note(note)
        return lp.trace_hash

    assert trace() == trace()
    assert len({trace(), trace(name="w1"), trace(sleep=2), trace(note="y")}) == 4
