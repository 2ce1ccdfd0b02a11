"""Small worlds for the simulator's own tests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.settings import Settings
from slackwater.sim.handles import NS
from slackwater.sim.loop import SimLoop
from slackwater.sim.schedule import SchedulePolicy, scheduler_for
from slackwater.sim.tape import Tape
from slackwater.sim.world import SimRuntime, World

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable


def loop(seed: int = 1, policy: SchedulePolicy = SchedulePolicy.UNIFORM) -> SimLoop:
    return SimLoop(scheduler_for(policy, Tape(seed).stream("schedule")))


def world(seed: int = 1, **settings: float) -> World:
    return World(Tape(seed), Settings({name.replace("__", "."): value for name, value in settings.items()}))


async def idle(runtime: SimRuntime) -> None:
    """A program that does nothing."""


def run_in(w: World, machine: str, work: Callable[[SimRuntime], Awaitable[Any]], *, seconds: float = 60.0) -> Any:
    """Run work as a task of a machine's present incarnation and return its result."""
    outcome: list[Any] = []
    target = w.machines[machine]

    async def main(runtime: SimRuntime) -> None:
        outcome.append(await work(runtime))

    def start() -> None:
        target.runtime.scope("test").spawn(main(target.runtime), name="test")

    w.loop.call_soon(start, context=target.domain.context)
    until = w.loop.now_ns + round(seconds * NS)
    while not outcome and w.loop.now_ns < until:
        w.loop.run(upto_ns=min(until, w.loop.now_ns + NS // 100))
    return outcome[0] if outcome else None


class Ears:
    """A frame handler that remembers."""

    def __init__(self, connection: Any = None) -> None:
        self.connection = connection
        self.heard: list[bytes] = []
        self.reason: str | None = None
        self.closings = 0
        self.writables = 0

    def frames(self, frames: list[bytes]) -> None:
        self.heard.extend(frames)

    def closed(self, reason: str) -> None:
        self.reason = reason
        self.closings += 1

    def writable(self) -> None:
        self.writables += 1
