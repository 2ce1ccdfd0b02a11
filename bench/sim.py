"""How fast the simulator runs, beside asyncio itself and beside real time.

steps        task switches per second of the deterministic loop (seeded order, full trace) over those of a plain
             asyncio loop doing the same work in the same run. The floor is 80 000 steps/s on an idle core
pings        simulated seconds per real second of three nodes that call each other over the real RPC layer,
             20 calls a simulated second
kernel       simulated seconds per real second of the kernel scenario with all faults and oracles
"""

from __future__ import annotations

import asyncio
import gc
import statistics
from time import perf_counter
from typing import TYPE_CHECKING, Any

import msgspec

from bench.harness import Figure, figure, interleaved
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Context, Dialer, Identity, Method, RpcServer
from slackwater.settings import Settings
from slackwater.sim.handles import NS
from slackwater.sim.loop import SimLoop
from slackwater.sim.run import SimJob, run_job
from slackwater.sim.schedule import SchedulePolicy, scheduler_for
from slackwater.sim.tape import Tape
from slackwater.sim.world import World

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterator

    from slackwater.sim.world import SimRuntime

TASKS = 20
STEPS_FLOOR = 80_000.0
SPEED_GOAL = 60.0
PING_EVERY_S = 0.15
NODES = 3


async def _switch(times: int) -> None:
    """Two switches a round: one yield, one future resolved by a callback."""
    loop = asyncio.get_running_loop()
    for _ in range(times):
        await asyncio.sleep(0)
        future = loop.create_future()
        loop.call_soon(future.set_result, None)
        await future


def _simulated(policy: SchedulePolicy, times: int) -> int:
    loop = SimLoop(scheduler_for(policy, Tape(1).stream("schedule")))  # type: ignore[abstract]
    loop.call_soon(lambda: [loop.create_task(_switch(times)) for _ in range(TASKS)])
    loop.run(upto_ns=NS)
    steps = loop.steps
    loop.dispose()
    return steps


def _plain(times: int) -> int:
    async def main() -> None:
        await asyncio.gather(*(_switch(times) for _ in range(TASKS)))

    asyncio.run(main())
    return TASKS * times * 3  # as the simulated loop counts: the yield, the callback, the wake-up


class Ping(msgspec.Struct, frozen=True):
    """A number there and back."""

    number: int


PING = Method("bench.ping", Ping, Ping, callers=ANYBODY)


def _node(number: int) -> Callable[[SimRuntime], Coroutine[Any, Any, None]]:
    async def boot(runtime: SimRuntime) -> None:
        scope = runtime.scope("ping")
        identity = Identity(cluster_id="bench", node_id=number)
        server = RpcServer(runtime, scope, identity=identity, settings=runtime.settings)
        server.handle_sync(PING, _pong)
        await server.listen(f"n{number}:7400")
        dialer = Dialer(runtime, scope, identity=identity, settings=runtime.settings)
        await runtime.clock.sleep(0.1)
        for count in range(1 << 40):
            await dialer.call(f"n{1 + count % NODES}:7400", PING, Ping(count), timeout=5.0)
            await runtime.clock.sleep(PING_EVERY_S)

    return boot


def _pong(request: Ping, context: Context) -> Ping:
    return request


def _pings_speed(sim_seconds: int) -> float:
    """Simulated seconds per real second."""
    world = World(Tape(1), Settings())
    for number in range(1, NODES + 1):
        world.add_node(f"n{number}", _node(number))
    world.loop.run(upto_ns=NS)
    gc.collect()
    began = perf_counter()
    world.loop.run(upto_ns=(1 + sim_seconds) * NS)
    took_s = perf_counter() - began
    world.loop.dispose()
    return sim_seconds / took_s


def _kernel_speed(seeds: range) -> float:
    results = [run_job(SimJob(seed=seed)) for seed in seeds]
    return sum(r.sim_seconds for r in results) / sum(r.real_seconds for r in results)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    times = 500 if quick else 2_000
    rounds = 3 if quick else 7
    works: dict[str, Callable[[], int]] = {"asyncio": lambda: _plain(times)}
    for policy in (SchedulePolicy.UNIFORM, SchedulePolicy.FIFO, SchedulePolicy.PCT3):
        works[policy.value] = lambda policy=policy: _simulated(policy, times)  # type: ignore[misc]
    rates = interleaved(works, rounds=rounds)
    peer = "plain asyncio loop, same tasks"
    for name in ("uniform", "fifo", "pct3"):
        goal = 0.25 if name == "uniform" else None
        yield figure("sim", f"steps {name}", rates[name], "steps/s", peer=peer, peer_value=rates["asyncio"], goal=goal)
    floor = "floor of the design"
    yield figure("sim", "steps floor", rates["uniform"], "steps/s", peer=floor, peer_value=STEPS_FLOOR, goal=1.0)
    seconds = 200 if quick else 1_000
    speed = statistics.median(_pings_speed(seconds) for _ in range(rounds))
    yield figure("sim", "pings 3 nodes", speed, "sim s/s", peer="real time", peer_value=1.0, goal=SPEED_GOAL)
    speed = _kernel_speed(range(5) if quick else range(20))
    yield figure("sim", "kernel scenario", speed, "sim s/s", peer="real time", peer_value=1.0, goal=SPEED_GOAL)
