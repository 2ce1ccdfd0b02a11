"""A play for gateways: applications with the real client library, whose gateways stop, crash and pause under them.

    founder    makes a table of a few rows and has its present closed ahead of time (`lead`); and then, again and again, a
               table that lives for a second or two and is dropped while others write to it (I-30)
    c1 … c6    upserts, transactions and nearest reads of those rows, each over a gateway of its own choice

A write to a leading table commits in the future and is acknowledged when that has become the present. A gateway that ends
while it waits for that leaves its client to ask another gateway what became of the write, and that answer must wait as well
(I-19).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.codec.layout import table_span
from slackwater.config.zones import PolicyKind
from slackwater.errors import SlackwaterError, UsageError
from slackwater.protect.zone_changes import change_zone
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_operator import ACT_TIMEOUT_S
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, ClusterPlan, _splits, cluster_of
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.gateways_work import COLUMNS, REGISTERS, SETUP_TIMEOUT_S, session

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenario import Scenario, Workload
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

SETTINGS = {
    "clock.max_offset": 0.25,
    "closed_timestamp.target_duration": 1.0,
    "closed_timestamp.side_transport_interval": 0.1,
    "span_config.poll_interval": 0.5,
    "rpc.heartbeat_interval": 0.2,
    "rpc.heartbeat_timeout": 1.0,
    "drain.timeout": 2.0,
    "catalog.lease.duration": 2.0,
    "catalog.lease.abandoned_duration": 2.0,
}
ENDS = frozenset({FaultKind.STOP, FaultKind.KILL, FaultKind.CRASH})
"""A gateway ends: in good manners, or not. Of all else that can go wrong there is little, so that this is seen often."""
UNTIMELY = frozenset({FaultKind.CLOCK_BEYOND})
"""While a clock is simply wrong nothing is promised about real time, which is what this play is about."""
RANGES = 4
AGAIN_S = 0.3
BRIEF_MEAN_NS = 2 * NS


class Founder:
    """Makes the tables."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    async def main(self) -> None:
        """Again and again, until it is done."""
        cluster = self._cluster
        await self._client.meet(cluster.early)
        while not cluster.ready:
            await self._client.runtime.clock.sleep(AGAIN_S)
        while not cluster.world.facts.get("tables ready"):
            try:
                await self._found()
            except SlackwaterError:
                await self._client.runtime.clock.sleep(AGAIN_S)
        while cluster.traffic:
            with suppress(SlackwaterError):
                await self._brief(cluster.next_operation("founder"))
            await self._client.runtime.clock.sleep(AGAIN_S)

    async def _brief(self, number: int) -> None:
        """A table that does not live long. A drop that fails is made again; its writers are told in any case."""
        facts, draw = self._cluster.world.facts, self._cluster.world.tape.stream(f"op/founder/{number}")
        db = session(self._client, self._cluster, timeout_s=SETUP_TIMEOUT_S)
        name = f"brief{number}"
        await db.create_table(name, COLUMNS, primary_key="id")
        facts["brief table"] = name
        await self._client.runtime.clock.sleep(draw.decay(BRIEF_MEAN_NS) / NS)
        await db.drop_table(name)
        await self._client.runtime.clock.sleep(AGAIN_S)
        facts["brief table"] = None

    async def _found(self) -> None:
        db = session(self._client, self._cluster, timeout_s=SETUP_TIMEOUT_S)
        try:
            made = await db.table(REGISTERS)
        except UsageError:
            made = await db.create_table(REGISTERS, COLUMNS, primary_key="id")
        span = table_span(made.table_id)
        await change_zone(self._client.kv, span.start, span.end, policy=PolicyKind.LEAD, timeout=ACT_TIMEOUT_S)
        self._cluster.world.facts["tables ready"] = True


class Founding:
    """The founder as a workload."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """One more machine."""

        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            await Founder(Client(runtime, cluster), cluster).main()

        world.add_client("founder", boot)

    def unsettled(self, world: World) -> str | None:
        """Without tables nothing was played."""
        return None if world.facts.get("tables ready") else "the tables were never made"

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=("rows", "rows", "rows", "brief", "brief"),
        think_mean_ns=NS // 20,
        operator_mean_ns=draw.between(NS, 4 * NS),
        merges=False,
        moves=False,
        rolling=True,
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 4), clients=(4, 6), duration_s=duration_s)
    mean_ns = tape.stream("gateways").between(NS, 3 * NS)
    some = [kind for kind in FaultKind if kind in drawn.faults and tape.stream(f"gateways/{kind.value}").chance(1, 3)]
    faults = (ENDS | frozenset(some)) - UNTIMELY
    return replace(drawn, settings=dict(SETTINGS), faults=faults, fault_mean_ns=mean_ns)


def _workloads() -> list[Workload]:
    return [Traffic(_plan), Founding(), following.Advances()]


register(
    Play(
        name="gateways",
        summary="applications over gateways that stop, crash and pause; their writes are settled through others",
        draw=_draw,
        workloads=_workloads,
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
