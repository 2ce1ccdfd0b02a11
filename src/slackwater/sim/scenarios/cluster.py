"""The cluster scenario: real nodes, real clients, every fault, all oracles.

    n1 … n5   server.Node over the simulated disk, log, network and clocks
    c1 … c6   clients of their own machines, each with the real routing and transaction code
    op        an operator who sets up, transfers leases, splits, merges, moves replicas, retires a node

`cluster` draws everything. `leases` makes leases move and expire all the time. In `late`, entries come to the log late, and
their proposers die meanwhile: what a former leaseholder sent arrives under the next lease. In `gray` leaseholders fail without
dying. `standard` is the fixed size by which speed is measured: 3 nodes, 8 ranges, 6 clients, about 20 operations a second,
default settings.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slackwater.sim.checkers import Recorder
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following, leases, replication, settled
from slackwater.sim.oracles.bounded import Bounded
from slackwater.sim.oracles.collecting import GarbageGoes, NothingOutlivesItsOwner, OnlyGarbageGoes
from slackwater.sim.oracles.dropped import WithinItsLife
from slackwater.sim.oracles.history import Told
from slackwater.sim.oracles.recovered import Recovered
from slackwater.sim.oracles.schema import Descriptors, TwoVersions, WithinItsVersion
from slackwater.sim.oracles.stopping import Stops
from slackwater.sim.oracles.versions import ClosedStays, VersionsOracle
from slackwater.sim.oracles.whole import Whole
from slackwater.sim.oracles.witness import Witness
from slackwater.sim.scenario import Oracle, Play, Scenario, Workload, draw_scenario, register
from slackwater.sim.scenarios.cluster_clone import clone
from slackwater.sim.scenarios.cluster_gray import fail_gray
from slackwater.sim.scenarios.cluster_operator import Operator
from slackwater.sim.scenarios.cluster_plan import (
    PORT,
    SYSTEM_RANGES,
    TRAFFIC_END_NS,
    Cluster,
    ClusterPlan,
    draw_plan,
    gray_plan,
    late_plan,
    leases_plan,
    spare,
    standard_plan,
    unheard_plan,
)
from slackwater.sim.scenarios.cluster_programs import Client, node_program
from slackwater.sim.scenarios.cluster_sever import sever
from slackwater.sim.scenarios.cluster_spoil import spoil
from slackwater.sim.scenarios.cluster_stops import rolling_restart
from slackwater.sim.scenarios.cluster_unheard import unheard
from slackwater.sim.scenarios.cluster_worker import Worker

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

NODES = (1, 5)
CLIENTS = (1, 6)
FIRST_RANGES = SYSTEM_RANGES + 1
SETTLE_S = 120.0

_SHORT_LEASES = {
    "clock.max_offset": 2.0,
    "lease.duration": 5.0,
    "liveness.duration": 4.5,
    "liveness.heartbeat_interval": 0.5,
    "rpc.heartbeat_interval": 0.2,
    "rpc.heartbeat_timeout": 0.5,
    "rpc.connect_timeout": 0.3,
    "rpc.reconnect_pause_min": 0.05,
    "rpc.reconnect_pause_max": 0.1,
}
"""Clocks may differ a lot, leases end soon, and a silent holder is noticed at once: the time in which two nodes could take
themselves for the holder is long, and one of them tries."""
_LATE_ENTRIES = {
    "lease.duration": 1.2,
    "liveness.duration": 1.2,
    "liveness.heartbeat_interval": 0.2,
    "log.append_timeout": 10.0,
    "rpc.heartbeat_interval": 0.2,
    "rpc.heartbeat_timeout": 0.5,
}
"""A silent holder is replaced before what it sent to the log has arrived, and it is not sent again meanwhile."""
_LATE_FAULTS = frozenset({FaultKind.LOG_LATE, FaultKind.LOG_SLOW, FaultKind.KILL, FaultKind.PAUSE})
_LOST_LEASE = frozenset({FaultKind.LOG_CUT})


class Traffic:
    """Nodes, clients and the operator."""

    def __init__(self, plan: Callable[..., ClusterPlan]) -> None:
        self._plan = plan

    def setup(self, world: World, scenario: Scenario) -> None:
        """Add every machine."""
        plan = self._plan(world.tape, nodes=scenario.nodes)
        if scenario.nodes <= max(plan.copies, int(world.settings["range.replication_factor"])):
            plan = replace(plan, retires=None)  # its replicas would have nowhere to go
        if world.edits.ranges is not None:
            plan = replace(plan, ranges=world.edits.ranges, splits=plan.splits[: world.edits.ranges - FIRST_RANGES])
        addresses = {f"n{i}": f"n{i}:{PORT}" for i in range(1, scenario.nodes + 1)}
        cluster = Cluster(
            world=world,
            plan=plan,
            addresses=addresses,
            recorder=Recorder(lambda: world.loop.now_ns),
            traffic_upto_ns=scenario.duration_ns - TRAFFIC_END_NS,
        )
        world.facts["cluster"] = cluster
        world.facts["witness"] = Witness(world)
        world.calm = lambda: not cluster.ready and not plan.rough
        world.calm_clients = lambda: not cluster.ready
        world.focus = lambda: _holder(cluster)
        world.spoil = lambda draw: spoil(cluster, draw)
        world.spare = partial(spare, cluster)
        for name in addresses:
            world.add_node(name, _node(cluster))
        for i in range(1, scenario.clients + 1):
            world.add_client(f"c{i}", _client(cluster, i))
        world.add_client("op", _operator(cluster))
        if plan.severs:
            world.spawn(sever(cluster), name="sever")
        if plan.unheard:
            world.spawn(unheard(cluster), name="unheard")
        if plan.grays:
            world.spawn(fail_gray(cluster), name="gray failures")
        if plan.clones and plan.retires is None and scenario.nodes > 1:
            world.spawn(clone(cluster), name="clone")
        if plan.rolling:
            world.spawn(rolling_restart(cluster), name="rolling restart")

    def unsettled(self, world: World) -> str | None:
        """See `oracles.settled`."""
        return settled.unsettled(world)

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _holder(cluster: Cluster) -> str | None:
    """A node that holds the lease of the first range: worth hurting."""
    for name, node in cluster.up():
        replica = node.member.store.replicas.get(1) if node.member else None  # type: ignore[call-overload]
        if replica is not None and replica.state.lease.holder == node.node_id:
            return name
    return None


def _node(cluster: Cluster) -> Any:
    async def boot(runtime: SimRuntime) -> None:
        witness: Witness = cluster.world.facts["witness"]
        await node_program(runtime, cluster, witness.listener(runtime.name))

    return boot


def _client(cluster: Cluster, number: int) -> Any:
    async def boot(runtime: SimRuntime) -> None:
        await Worker(Client(runtime, cluster), cluster, number).main()

    return boot


def _operator(cluster: Cluster) -> Any:
    async def boot(runtime: SimRuntime) -> None:
        await Operator(Client(runtime, cluster), cluster).main()

    return boot


def _draw(tape: Tape, duration_s: float) -> Scenario:
    return draw_scenario(tape, nodes=NODES, clients=CLIENTS, duration_s=duration_s)


def _draw_standard(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(6, 6), duration_s=duration_s)
    return replace(drawn, settings={})


def _draw_leases(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(6, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(_SHORT_LEASES), faults=_LOST_LEASE, fault_mean_ns=5 * NS)


def _draw_unheard(tape: Tape, duration_s: float) -> Scenario:
    return replace(_draw_leases(tape, duration_s), faults=frozenset())


def _draw_gray(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 5), clients=(4, 6), duration_s=duration_s)
    return replace(drawn, settings={}, faults=frozenset(), buggify=False)


def _draw_late(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(4, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(_LATE_ENTRIES), faults=_LATE_FAULTS, fault_mean_ns=NS)


def _oracles() -> list[Oracle]:
    versions, tables = VersionsOracle(), Descriptors()
    return [
        replication.OneOrder(),
        replication.OnceOnly(),
        replication.OneState(),
        replication.OwnLease(),
        *following.watchers(versions),
        leases.Clocks(),
        leases.OneHolder(),
        versions,
        Whole(),
        ClosedStays(),
        OnlyGarbageGoes(versions),
        Told(versions),
        tables,
        TwoVersions(versions, tables),
        WithinItsVersion(versions, tables),
        WithinItsLife(),
        Stops(),
        Bounded(),
        settled.Equal(),
        Recovered(versions),
    ]


def _workloads(plan: Callable[..., ClusterPlan]) -> Callable[[], list[Workload]]:
    return lambda: [Traffic(plan), following.Advances(), GarbageGoes(), NothingOutlivesItsOwner()]


for _name, _summary, _drawn, _plan in (
    ("cluster", "1-5 real nodes, transactions, splits, merges, lease transfers, all faults", _draw, draw_plan),
    (
        "standard",
        "the same with 3 nodes, 8 ranges, 6 clients and default settings: the measure of speed",
        _draw_standard,
        standard_plan,
    ),
    (
        "leases",
        "3 nodes with short leases and clocks far apart, cut off from one another and from the log",
        _draw_leases,
        leases_plan,
    ),
    (
        "unheard",
        "3 nodes that end their epochs while another, whose clock is behind, hears of it by the log alone",
        _draw_unheard,
        unheard_plan,
    ),
    (
        "gray",
        "3-5 nodes whose leaseholders are cut off or have full disks for longer than any lease, and live on",
        _draw_gray,
        gray_plan,
    ),
    ("late", "3 nodes that die while entries of theirs are still on the way to the log", _draw_late, late_plan),
):
    register(
        Play(
            name=_name, summary=_summary, draw=_drawn, workloads=_workloads(_plan), oracles=_oracles, settle_s=SETTLE_S
        )
    )
