"""Programs of clients beside a cluster's traffic, operator and faults: what plays with tables have in common.

Beside             a workload: each program on a machine of its own, judged by what it says itself as it runs
TableClient        a program with a session of the native client over every node, which waits for the cluster first
register_beside    the play: the cluster's traffic and oracles, these programs, and settings of their own
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.codec.arrow import settle_pandas
from slackwater.errors import SlackwaterError
from slackwater.sim.scenario import Oracle, Play, Scenario, Workload, draw_scenario, register
from slackwater.sim.scenarios import cluster as base
from slackwater.sim.scenarios.cluster_plan import cluster_of, draw_plan

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import Tape, TapeStream
    from slackwater.sim.world import SimRuntime, World

TIMEOUT_S = 8.0
"""Of every operation of a client."""


class Program(Protocol):
    """What one machine runs."""

    async def main(self) -> None:
        """Until the traffic ends."""
        ...


ProgramFactory: TypeAlias = "Callable[[SimRuntime, Cluster, TapeStream], Program]"


class TableClient(ABC):
    """One session of the native client over every node."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster, draw: TapeStream, *, scope: str) -> None:
        self.name = runtime.name
        self._runtime = runtime
        self._cluster = cluster
        self._draw = draw
        owner = runtime.scope(f"{runtime.name}/{scope}")
        addresses = draw.shuffled(list(cluster.addresses.values()))
        self._gateways = Gateways(
            runtime, owner.child("gateways"), addresses, settings=runtime.settings, timeout_s=TIMEOUT_S
        )
        self.db = AsyncDatabase(self._gateways, owner.child("client"))

    async def begin(self) -> None:
        """Return once there is a cluster that this client has prepared its table in, or the traffic has ended."""
        cluster = self._cluster
        cluster.busy[self.name] = "waiting for the cluster"
        while not cluster.ready:
            await self._runtime.clock.sleep(0.1)
        while cluster.traffic and not await self._began():
            await self._runtime.clock.sleep(0.5)

    async def _began(self) -> bool:
        try:
            await self._gateways.greet()
            await self._prepare()
        except SlackwaterError:
            return False
        return True

    @abstractmethod
    async def _prepare(self) -> None:
        """Make the table if this client is the one that does, and learn of it; repeated until it succeeds."""


class Beside:
    """Programs as a workload."""

    def __init__(self, programs: Mapping[str, ProgramFactory]) -> None:
        self._programs = programs

    def setup(self, world: World, scenario: Scenario) -> None:
        """A machine for each."""
        for name, program in self._programs.items():
            world.add_client(name, self._boot(world, name, program))

    def _boot(self, world: World, name: str, program: ProgramFactory) -> Any:
        async def boot(runtime: SimRuntime) -> None:
            await program(runtime, cluster_of(world), world.tape.stream(f"workload/{name}")).main()

        return boot

    def unsettled(self, world: World) -> str | None:
        """They count among the cluster's clients."""
        return None

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged as it is read."""
        return ()


def register_beside(
    name: str,
    summary: str,
    programs: Mapping[str, ProgramFactory],
    *,
    nodes: tuple[int, int],
    clients: tuple[int, int],
    settings: Mapping[str, float],
    oracles: Callable[[], list[Oracle]] = list,
) -> None:
    """Register a play of these programs, by the names of their machines; `oracles` makes those beside the cluster's."""

    def draw(tape: Tape, duration_s: float) -> Scenario:
        drawn = draw_scenario(tape, nodes=nodes, clients=clients, duration_s=duration_s)
        return replace(drawn, settings={**drawn.settings, **settings})

    def workloads() -> list[Workload]:
        return [base.Traffic(draw_plan), Beside(programs)]

    def all_oracles() -> list[Oracle]:
        return [*base._oracles(), *oracles()]

    settle_pandas()  # imports something that asks for entropy: not during a run
    register(
        Play(
            name=name,
            summary=summary,
            draw=draw,
            workloads=workloads,
            oracles=all_oracles,
            settle_s=base.SETTLE_S,
        )
    )
