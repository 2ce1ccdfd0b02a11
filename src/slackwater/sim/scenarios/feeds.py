"""Feeds on a cluster under fire: a mirror, a restarter, and writers that make trouble for them.

feeds        the cluster's own traffic and operator, with all its faults, and everything closing soon
feeds_tight  a mirror alone, with buffers that a pause of its reader fills
feeds_back   a consumer that comes back from every checkpoint, and one that never has to
feeds_lag    followers that lag behind a log they cannot read, and records that are collected quickly (M11)
feeds_lead   spans switched between lead and lag under their feeds: what is resolved may lie in the future
feeds_behind followers so far behind that they apply commits together with their collection (X-FEED-COLLECTED)
feeds_gc     history that is collected right behind a deletion (M18)
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from slackwater.config.zones import PolicyKind
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles.feeds import FeedHistory
from slackwater.sim.oracles.versions import VersionsOracle
from slackwater.sim.scenario import Oracle, Play, Scenario, Workload, draw_scenario, register
from slackwater.sim.scenarios import cluster as base
from slackwater.sim.scenarios import policies
from slackwater.sim.scenarios.cluster_plan import cluster_of, draw_plan
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.feeds_work import COLLECTED_END, EDGE, Consumer, Seen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenarios.cluster_plan import ClusterPlan
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

_SOON = {
    "closed_timestamp.target_duration": 0.5,
    "feed.push_after": 1.0,
    "feed.push_interval": 0.5,
    "feed.stall_timeout": 5.0,
}
_SCANS = {"feed.recent_bytes_max": 0}
"""Nothing recent is kept: a consumer that resumes has to scan."""
_TIGHT = {
    **_SOON,
    "feed.consumer_bytes_max": 1 << 12,
    "feed.client_bytes_max": 1 << 10,
    "feed.message_bytes": 1 << 10,
    "rpc.stream_window": 1,
}
"""A reader that pauses for a second falls behind."""
_LAG = {
    **_SOON,
    "closed_timestamp.target_duration": 0.2,
    "feed.push_after": 0.2,
    "feed.push_interval": 0.1,
    "txn.buffer_bytes_max": 0,
    "txn.record_retention": 1.0,
    "txn.expiration": 0.5,
    "queue.interval": 0.2,
}
_BEHIND = {"gc.interval": 0.2, "queue.interval": 0.2}
TTL_MIN_S = 1.0
_BY_HAND = {"gc.interval": 0.0, "protected_timestamp.refresh_interval": 0.5, "span_config.poll_interval": 0.5}
"""The collector says itself what goes, and copies of zones and protections are new enough for it."""
_LAGGING = frozenset({FaultKind.READER_LAG})
_BEHIND_BY = frozenset({FaultKind.READER_LAG, FaultKind.DISK_FULL})
_PROGRAMS = {
    "mirror": Consumer.mirror,
    "restarter": Consumer.restarter,
    "dawdler1": Consumer.dawdler,
    "dawdler2": Consumer.dawdler,
}
_RETURNING = {
    **{name: program for name, program in _PROGRAMS.items() if name != "restarter"},
    "returner": Consumer.returner,
}
_MIRRORING = {"mirror": Consumer.slow_mirror, "dawdler1": Consumer.dawdler, "dawdler2": Consumer.dawdler}
_COLLECTING = {"mirror": Consumer.mirror, "collector": Consumer.collector}


class FeedTraffic:
    """The cluster's traffic, with consumers of feeds beside it."""

    def __init__(self, plan: Callable[..., ClusterPlan], programs: dict[str, Any]) -> None:
        self._traffic = base.Traffic(plan)
        self._programs = programs

    def setup(self, world: World, scenario: Scenario) -> None:
        """Add every machine."""
        self._traffic.setup(world, scenario)
        for name, program in self._programs.items():
            world.add_client(name, self._boot(world, name, program))

    def _boot(self, world: World, name: str, program: Any) -> Any:
        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            draw = world.tape.stream(f"workload/{name}")
            await program(Consumer(Client(runtime, cluster), cluster, Seen(name), draw))

        return boot

    def unsettled(self, world: World) -> str | None:
        """What the cluster says; consumers count among its clients."""
        return self._traffic.unsettled(world)

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _collecting_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    plan = draw_plan(tape, nodes=nodes)
    # What is collected is collected in a range of its own, which must not become part of another. The operator does little,
    # but wakes up in time to see that the traffic is over: a run waits for him.
    splits = (*plan.splits, EDGE, COLLECTED_END)
    return replace(plan, splits=splits, ranges=plan.ranges + 2, merges=False, operator_mean_ns=10 * NS, gc_ttl_s=0.0)


def _behind_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    return replace(draw_plan(tape, nodes=nodes), gc_ttl_s=TTL_MIN_S)


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(1, 4), clients=(1, 4), duration_s=duration_s)
    scans = _SCANS if tape.stream("feeds/scans").chance(1, 2) else {}
    return replace(drawn, settings={**drawn.settings, **_SOON, **scans})


def _draw_tight(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(1, 3), clients=(3, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(_TIGHT))


def _draw_lag(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(2, 4), duration_s=duration_s)
    return replace(drawn, settings={**_LAG, **_SCANS}, faults=_LAGGING, fault_mean_ns=NS)


def _draw_behind(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(4, 6), duration_s=duration_s)
    return replace(drawn, settings={**_SOON, **_BEHIND}, faults=_BEHIND_BY, fault_mean_ns=NS // 2)


def _draw_lead(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(1, 3), clients=(2, 4), duration_s=duration_s)
    return replace(drawn, settings={**policies.SETTINGS, **_SOON})


def _leading() -> list[Workload]:
    # Not `off`: what is never closed is never resolved, and no consumer would come to an end.
    return [
        FeedTraffic(draw_plan, _PROGRAMS),
        policies.Switching((PolicyKind.LEAD, PolicyKind.LEAD, PolicyKind.LAG, None)),
    ]


def _draw_gc(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(1, 3), clients=(1, 1), duration_s=duration_s)
    return replace(drawn, settings={**_SOON, **_SCANS, **_BY_HAND}, faults=frozenset())


def _oracles() -> list[Oracle]:
    return [*base._oracles(), FeedHistory()]


def _oracles_gc() -> list[Oracle]:
    return [VersionsOracle(), FeedHistory()]  # others compare what a collected deletion leaves behind with what it was


def _workloads(plan: Callable[..., ClusterPlan], programs: dict[str, Any]) -> Callable[[], list[Workload]]:
    return lambda: [FeedTraffic(plan, programs)]


for _play in (
    Play(
        name="feeds",
        summary="the cluster with change feeds: a mirror, a restarter, writers at resolved + 1",
        draw=_draw,
        workloads=_workloads(draw_plan, _PROGRAMS),
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_back",
        summary="the same, with a consumer that restarts at every checkpoint instead of some",
        draw=_draw,
        workloads=_workloads(draw_plan, _RETURNING),
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_tight",
        summary="one feed that is never restarted, with buffers that a pause of its reader fills",
        draw=_draw_tight,
        workloads=_workloads(draw_plan, _MIRRORING),
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_lag",
        summary="feeds on followers that lag behind, while records of transactions are collected",
        draw=_draw_lag,
        workloads=_workloads(draw_plan, _PROGRAMS),
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_behind",
        summary="feeds on followers so far behind that they apply commits together with their collection",
        draw=_draw_behind,
        workloads=_workloads(_behind_plan, _PROGRAMS),
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_lead",
        summary="feeds over spans that are switched between lead and lag: what is resolved may lie in the future",
        draw=_draw_lead,
        workloads=_leading,
        oracles=_oracles,
        settle_s=base.SETTLE_S,
    ),
    Play(
        name="feeds_gc",
        summary="feeds that begin where history has been collected",
        draw=_draw_gc,
        workloads=_workloads(_collecting_plan, _COLLECTING),
        oracles=_oracles_gc,
        settle_s=base.SETTLE_S,
    ),
):
    register(_play)
