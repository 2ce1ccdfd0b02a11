"""A play for schema changes: tables that are altered all the time beside their writers, on nodes that die under both.

    change   create and drop indexes (some unique), add, drop, rename and widen columns, NOT NULL, checks; now and then the table
             is emptied, or dropped and made anew
    steer    pause, resume and cancel the jobs of those changes, at any moment
    write    rows by every way there is: single rows, transactions that dawdle, blocks of a bulk load, staged writes
    audit    read an index and its table at one timestamp of the past, on any replica: both show the same
    cut      divide the table or an index, or hand the lease of one of its ranges over

In the end every job that was paused is resumed, and all of them end. Judged by I-29 and I-30 (`oracles.schema`): at every
timestamp at which something changed, in whatever state an index was, it fits its table; and by I-36, for changes are jobs.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.catalog.backfill import MISCOUNTED
from slackwater.errors import SlackwaterError
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.oracles.jobs import FencedJobs, fenced_jobs
from slackwater.sim.oracles.versions import VersionsOracle
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, ClusterPlan, _splits, cluster_of
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.gateways_work import SETUP_TIMEOUT_S, session
from slackwater.sim.scenarios.schema_work import HELD_OPEN, TABLES, make_table

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.scenario import Oracle, Scenario, Workload
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

SETTINGS = {
    "clock.max_offset": 0.25,
    "closed_timestamp.target_duration": 1.0,
    "closed_timestamp.side_transport_interval": 0.1,
    "liveness.duration": 1.2,
    "liveness.heartbeat_interval": 0.3,
    "lease.duration": 1.5,
    "rpc.heartbeat_interval": 0.2,
    "rpc.heartbeat_timeout": 1.0,
    "drain.timeout": 2.0,
    "jobs.poll_interval": 1.0,
    "jobs.retry_pause_min": 0.05,
    "jobs.retry_pause_max": 1.0,
    "staging.ttl": 4.0,
    "queue.interval": 2.0,
    "catalog.poll_interval": 0.5,
    "catalog.lease.duration": 1.0,
    "catalog.lease.abandoned_duration": 1.0,
    "schema.backfill_chunk": 24,
    "schema.backfill_block": 150,
    "schema.backfill_rate": 10,
    "schema.backfill_parallel": 2,
}
ENDS = frozenset({FaultKind.STOP, FaultKind.KILL, FaultKind.CRASH, FaultKind.PAUSE, FaultKind.CLIENT_PAUSE})
"""Nodes die, stop and stand still. Of all else that can go wrong there is little, so that changes get somewhere."""
RANGES = 4
AGAIN_S = 0.3


class Keeper:
    """Makes the tables before the traffic, and afterwards resumes whatever was paused."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    async def main(self) -> None:
        """Until every change has ended."""
        cluster = self._cluster
        cluster.busy["keeper"] = "making tables"
        await self._client.meet(cluster.early)
        while not cluster.ready:
            await self._client.runtime.clock.sleep(AGAIN_S)
        while not cluster.world.facts.get(HELD_OPEN):
            with suppress(SlackwaterError):
                await self._make()
            await self._client.runtime.clock.sleep(AGAIN_S)
        cluster.busy["keeper"] = ""
        while cluster.traffic:
            await self._client.runtime.clock.sleep(AGAIN_S)
        while True:
            with suppress(SlackwaterError):
                await self._resume()
            await self._client.runtime.clock.sleep(AGAIN_S)

    async def _make(self) -> None:
        db = session(self._client, self._cluster, timeout_s=SETUP_TIMEOUT_S)
        there = {table.name for table in await db.tables()}
        for name in TABLES:
            if name not in there:
                await make_table(db, name)
        self._cluster.world.facts[HELD_OPEN] = True

    async def _resume(self) -> None:
        db = session(self._client, self._cluster, timeout_s=SETUP_TIMEOUT_S)
        for job in await db.jobs.list(status=("paused", "pausing"), kind="schema-change"):
            await db.jobs.resume(job.id)


class Changing:
    """The keeper as a workload."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """One more machine."""

        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            await Keeper(Client(runtime, cluster), cluster).main()

        world.add_client("keeper", boot)

    def unsettled(self, world: World) -> str | None:
        """Changes that have not ended."""
        if not world.facts.get(HELD_OPEN):
            return "the tables were never made"
        jobs = fenced_jobs(world)
        for job in [*jobs.open_jobs(), *jobs.paused()]:
            holder = job.claimed_by or "no node"
            return f"I-31 job {job.id} ({job.description}) is {job.status.value}, claimed by {holder}: {job.progress} {job.error}"
        return None

    def check(self, world: World) -> Iterable[Violation]:
        """A change that found its own index to have more or fewer entries than rows; all else is judged by oracles."""
        for job in fenced_jobs(world).latest():
            if MISCOUNTED in job.error:
                yield Violation("I-30", "entries-miscounted", f"job {job.id} ({job.description}): {job.error}", {})


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=(
            *("schema write",) * 6,
            *("schema change",) * 2,
            *("schema steer", "schema audit", "schema cut"),
        ),
        think_mean_ns=NS // 8,
        operator_mean_ns=draw.between(NS, 4 * NS),
        merges=False,
        moves=draw.chance(1, 2),
        rolling=tape.stream("cluster/rolling").chance(1, 4),
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 4), clients=(4, 6), duration_s=duration_s)
    some = [kind for kind in FaultKind if kind in drawn.faults and tape.stream(f"schema/{kind.value}").chance(1, 3)]
    mean_ns = tape.stream("schema").between(NS, 4 * NS)
    return replace(drawn, settings=dict(SETTINGS), faults=ENDS | frozenset(some), fault_mean_ns=mean_ns)


def _workloads() -> list[Workload]:
    return [Traffic(_plan), Changing(), following.Advances()]


def _with_fenced() -> list[Oracle]:
    oracles = _oracles()
    versions = next(oracle for oracle in oracles if isinstance(oracle, VersionsOracle))
    return [*oracles, FencedJobs(versions)]


register(
    Play(
        name="schema",
        summary="tables whose schema changes all the time beside their writers; changes are paused and cancelled, nodes die",
        draw=_draw,
        workloads=_workloads,
        oracles=_with_fenced,
        settle_s=SETTLE_S,
    )
)
