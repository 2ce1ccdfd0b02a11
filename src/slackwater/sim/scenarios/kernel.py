"""The kernel scenario: every simulated part at work, before there is a replica.

Its programs are in `kernel_programs`, what its oracles know in `kernel_witness`. Three bugs are planted in it; each
must be killed by the oracle named, and by no other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.sim.faults import CLUSTER_KINDS
from slackwater.sim.handles import NS
from slackwater.sim.scenario import Oracle, Play, Scenario, Workload, draw_scenario, register
from slackwater.sim.scenarios.kernel_programs import PORT, ClientProgram, NodeProgram
from slackwater.sim.scenarios.kernel_witness import KernelWitness

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable
    from typing import Any

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

NODES = (1, 5)
CLIENTS = (1, 4)
RANGES = 3
TRAFFIC_END_NS = 2 * NS
"""Clients begin no new entry in the last two seconds."""


class Appends:
    """Clients append numbered entries through any node; every node applies the log."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Nodes, then clients."""
        traffic_upto_ns = scenario.duration_ns - TRAFFIC_END_NS
        witness = KernelWitness(world, ranges=RANGES, traffic_upto_ns=traffic_upto_ns)
        world.facts["kernel"] = witness
        addresses = [f"n{i}:{PORT}" for i in range(1, scenario.nodes + 1)]
        for i in range(1, scenario.nodes + 1):
            world.add_node(f"n{i}", self._node(witness, i, addresses))
        for i in range(1, scenario.clients + 1):
            world.add_client(f"c{i}", self._client(world, witness, i, addresses))

    def _node(
        self, witness: KernelWitness, node_id: int, addresses: list[str]
    ) -> Callable[[SimRuntime], Coroutine[Any, Any, None]]:
        peers = [address for i, address in enumerate(addresses, 1) if i != node_id]

        async def boot(runtime: SimRuntime) -> None:
            await NodeProgram(runtime, witness, node_id=node_id, peers=peers, ranges=RANGES).main()

        return boot

    def _client(
        self, world: World, witness: KernelWitness, client: int, nodes: list[str]
    ) -> Callable[[SimRuntime], Coroutine[Any, Any, None]]:
        async def boot(runtime: SimRuntime) -> None:
            await ClientProgram(world, runtime, witness, client=client, nodes=nodes).main()

        return boot

    def unsettled(self, world: World) -> str | None:
        """Until every client is done and every node has applied the whole log."""
        return _witness(world).unsettled()

    def check(self, world: World) -> Iterable[Violation]:
        """Every node holds the state of the log."""
        return _witness(world).judge_states()


class Acknowledged:
    """L-1: what was acknowledged is in the log."""

    name = "L-1"

    def attach(self, world: World) -> None:
        """The witness listens already."""

    def judge(self, world: World) -> Iterable[Violation]:
        """Compare acknowledgements with the log."""
        return _witness(world).judge_acknowledged()


def _witness(world: World) -> KernelWitness:
    witness: KernelWitness = world.facts["kernel"]
    return witness


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=NODES, clients=CLIENTS, duration_s=duration_s)
    return replace(drawn, faults=drawn.faults - CLUSTER_KINDS)


def _workloads() -> list[Workload]:
    return [Appends()]


def _oracles() -> list[Oracle]:
    return [Acknowledged()]


register(
    Play(
        name="kernel",
        summary="nodes tail the log into their engines over real RPC; clients append until acknowledged",
        draw=_draw,
        workloads=_workloads,
        oracles=_oracles,
    )
)
