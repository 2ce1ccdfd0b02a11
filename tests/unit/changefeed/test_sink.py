"""A sink between a feed and a receiver that fails: order, completeness, and errors that last."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from slackwater.changefeed.sink import Sink
from slackwater.errors import UnavailableError, UsageError
from slackwater.runtime import LocalNet, RealRuntime, run
from slackwater.settings import Settings
from slackwater.sim.mutants import applied
from slackwater.storage.memory import MemoryDisk


@pytest.fixture
def plant():
    with ExitStack() as stack:
        yield lambda *names: stack.enter_context(applied(names))


async def through(blocks: list[int], fails: dict[int, int]) -> list[int]:
    """What a receiver gets that refuses each block as often as `fails` says, by the time `flush` returns."""
    runtime = RealRuntime(disk=MemoryDisk(), net=LocalNet(Settings()))
    scope = runtime.scope("sink")
    taken: list[int] = []

    async def emit(block: int) -> None:
        if fails.get(block, 0) > 0:
            fails[block] -= 1
            raise UnavailableError("not now")
        taken.append(block)

    sink: Sink[int] = Sink(emit, runtime=runtime, scope=scope, blocks_max=3)
    try:
        for block in blocks:
            await sink.put(block)
        await sink.flush()
        return list(taken)
    finally:
        await scope.close()


def test_a_retry_never_overtakes_and_flush_waits(plant) -> None:
    assert run(through([1, 2, 3, 4, 5], {2: 2, 5: 1})) == [1, 2, 3, 4, 5]
    plant("M15")
    assert run(through([1, 2, 3], {1: 1})) != [1, 2, 3]
    plant("M14")
    assert run(through([1], {1: 1})) == []


def test_an_error_that_lasts_ends_it() -> None:
    async def main() -> None:
        runtime = RealRuntime(disk=MemoryDisk(), net=LocalNet(Settings()))
        scope = runtime.scope("sink")

        async def emit(_: int) -> None:
            raise UsageError("never")

        sink: Sink[int] = Sink(emit, runtime=runtime, scope=scope)
        await sink.put(1)
        with pytest.raises(UsageError, match="never"):
            await sink.flush()
        with pytest.raises(UsageError, match="never"):
            await sink.put(2)
        await scope.close()

    run(main())
