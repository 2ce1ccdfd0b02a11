"""Replicas that are filled twice at once, while their ranges move, split and merge.

A snapshot is installed in many steps: make room, write block after block, flush, add the replica. Two installs of the same
keys must never overlap: the second would wipe out what the first wrote, after its replica had begun to apply on top of it.
In production two are asked for at once when a node notices that its log was trimmed while a queue elsewhere fills it; that
takes a node that was away for long. Here a mover does it on purpose, all the time:

    mover ── ChangeReplicas(+ n4) ──┬── n4: fetch r7 from n1          both are told to begin in the same instant
                                    └── n4: fetch r7 from n2
          ── ChangeReplicas(- n2)                                     and the next move finds a spare node again

The play has a node more than there are copies, and little ranges, so that a move takes a moment. What must hold is what
holds anyway: what is closed does not change (I-02), replicas at one position are equal (I-06), and every acknowledged
write is there (I-03).
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.routing.parallel import in_parallel
from slackwater.sim.handles import NS
from slackwater.sim.scenario import Play, Scenario, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_operator import PAUSE_S, Operator
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, WORKLOADS, ClusterPlan, _splits, all_keys, cluster_of
from slackwater.sim.scenarios.cluster_programs import Client

if TYPE_CHECKING:
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

RANGES = 6
MOVER = "mover"
MOVE_MEAN_NS = NS // 4


class ReplicaMover(Operator):
    """A second operator, that moves replicas all the time."""

    async def main(self) -> None:
        """Wait until the cluster is set up, then move replicas until the traffic ends."""
        cluster, name = self._cluster, self._client.runtime.name
        cluster.busy[name] = "moving"
        while not cluster.ready:
            await self._clock.sleep(PAUSE_S)
        await self._client.meet(1)
        while cluster.traffic:
            number = cluster.next_operation(name)
            self._draw = cluster.world.tape.stream(f"op/{name}/{number}")
            await self._clock.sleep(self._draw.decay(MOVE_MEAN_NS) / NS)
            if cluster.world.allows_operation(name, number):
                with suppress(SlackwaterError):
                    await self._move_twice(self._draw.pick(all_keys()))
        cluster.busy[name] = ""

    async def _move_twice(self, key: bytes) -> None:
        """Add a replica, have it filled from two others at once, and remove one of the old ones."""
        found = await self.admin.describe(key)
        here, holder = found.descriptor, found.lease.holder
        spare = [n for n in sorted(self._client.book.nodes) if n not in here.replicas]
        victims = [n for n in here.replicas if n != holder]
        if not spare or not victims:
            return
        new, victim = self._draw.pick(spare), self._draw.pick(victims)
        self._cluster.world.story(f"mover: r{here.range_id} on n{new} twice at once, then off n{victim}")
        grown = await self.admin._set_replicas(here, (*here.replicas, new))
        sources = [holder, self._draw.pick([n for n in grown.replicas if n != new])]
        works = [partial(self.admin.peers.fetch, new, grown.range_id, source=source) for source in sources]
        answers = await in_parallel(self._client.scope, works, limit=len(works), name="fetch")
        if sum(not isinstance(answer, SlackwaterError) for answer in answers):
            probe("snapshots.filled")
        await self.admin.change_replicas(key, [n for n in grown.replicas if n != victim])
        probe("snapshots.moved")


class Hurried(Traffic):
    """The traffic of the cluster play, with a mover."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Add every machine, and the mover's."""
        super().setup(world, scenario)
        world.add_client(MOVER, _mover(cluster_of(world)))


def _mover(cluster: Cluster) -> Any:
    async def boot(runtime: SimRuntime) -> None:
        await ReplicaMover(Client(runtime, cluster), cluster).main()

    return boot


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=tuple(w for w in WORKLOADS if draw.chance(2, 3)) or WORKLOADS,
        think_mean_ns=draw.between(NS // 20, NS // 4),
        operator_mean_ns=NS // 2,
        merges=True,
        moves=True,
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(COPIES_MAX + 1, COPIES_MAX + 1), clients=(3, 6), duration_s=duration_s)
    return replace(drawn, settings={**drawn.settings, "range.replication_factor": COPIES_MAX})


register(
    Play(
        name="snapshots",
        summary="4 nodes whose replicas move all the time, each filled from two sources at once, with splits and merges",
        draw=_draw,
        workloads=lambda: [Hurried(_plan)],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
