import asyncio
import gc
import os
import threading
import weakref

import pytest

from slackwater.errors import Overloaded
from slackwater.runtime import RealRuntime, real, run
from slackwater.runtime.rng import RealRng
from slackwater.settings import Settings


def test_offload_runs_on_a_bounded_number_of_threads():
    async def main():
        runtime = RealRuntime(disk=None, settings=Settings({"runtime.offload_threads": 2}))
        barrier = threading.Barrier(2)

        def work(n):
            barrier.wait()
            return n, threading.get_ident()

        results = await asyncio.gather(*[runtime.offload(work, n) for n in range(20)])
        assert [n for n, _ in results] == list(range(20))
        assert len({ident for _, ident in results}) == 2
        assert threading.get_ident() not in {ident for _, ident in results}
        runtime.close()

    run(main())


def test_offload_carries_errors_and_refuses_beyond_its_bound(monkeypatch):
    async def main():
        monkeypatch.setattr(real, "OFFLOAD_PENDING_MAX", 2)
        runtime = RealRuntime(disk=None)
        gate = threading.Event()
        waiting = [asyncio.ensure_future(runtime.offload(gate.wait)) for _ in range(2)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await runtime.offload(gate.wait)
        gate.set()
        assert await asyncio.gather(*waiting) == [True, True]
        with pytest.raises(ZeroDivisionError):
            await runtime.offload(lambda: 1 // 0)
        runtime.close()

    run(main())


def test_the_error_of_work_that_its_caller_has_left_is_not_reported():
    async def main():
        told = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context["message"]))
        runtime, gate = RealRuntime(disk=None), threading.Event()

        def fail():
            gate.wait()
            raise ValueError("the snapshot was closed")

        work = runtime.offload(fail)
        work.send(None)  # as a handler that is interrupted in its first step leaves it: nothing is cancelled
        work.close()
        gate.set()
        while runtime._pending:
            await asyncio.sleep(0.001)
        del work
        gc.collect()
        runtime.close()
        assert told == []

    run(main())


def test_run_uses_uvloop():
    async def main():
        return type(asyncio.get_running_loop()).__module__

    assert run(main()).startswith("uvloop")


def test_cycles_that_nobody_refers_to_are_bounded():
    class Node:
        def __init__(self):
            self.itself = self

    async def main():
        made = [weakref.ref(Node()) for _ in range(3 * real.COLLECT_OBJECTS)]
        return sum(node() is not None for node in made)

    assert run(main()) <= real.COLLECT_OBJECTS


def test_chance_stays_in_its_bounds():
    rng = RealRng()
    assert {rng.below(3) for _ in range(500)} == {0, 1, 2}
    assert not any(rng.chance(0, 5) for _ in range(50))
    assert all(rng.chance(5, 5) for _ in range(50))
    assert len(rng.bytes(16)) == 16
    assert rng.bytes(16) != rng.bytes(16)


def test_entropy_is_handed_out_once_whatever_the_sizes():
    rng = RealRng()
    assert [len(rng.bytes(n)) for n in (0, 1, 4095, 4096, 4097, 12)] == [0, 1, 4095, 4096, 4097, 12]
    assert len({rng.bytes(12) for _ in range(2000)}) == 2000


def test_a_forked_process_does_not_repeat_its_parent():
    rng = RealRng()
    rng.bytes(12)  # a block is open
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, rng.bytes(12))
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(read, 12) != rng.bytes(12)
    os.close(read)
    os.close(write)


def test_clocks_move_on():
    async def main():
        runtime = RealRuntime(disk=None)
        before = runtime.clock.monotonic_ns()
        await runtime.clock.sleep(0)
        assert runtime.clock.monotonic_ns() >= before
        assert runtime.clock.wall_ns() > 1_700_000_000 * 10**9
        runtime.close()

    run(main())


def test_work_that_waits_for_a_thread_is_done_though_its_caller_has_given_up():
    """It may own a snapshot that nobody else closes."""

    async def main():
        runtime = RealRuntime(disk=None, settings=Settings({"runtime.offload_threads": 1}))
        gate, done = threading.Event(), threading.Event()
        first = asyncio.ensure_future(runtime.offload(gate.wait))
        second = asyncio.ensure_future(runtime.offload(done.set))
        await asyncio.sleep(0)
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert not done.is_set()
        gate.set()
        await first
        await runtime.offload(int)
        assert done.is_set()
        runtime.close()

    asyncio.run(main())
