"""A play for closed timestamps: little lag, short leases, crowded proposal buffers, merges whose right side changes hands.

Most planted bugs of closing need several rare things at once. Here they are common, by settings and programs rather than
by luck:

    lag 0.1 s, ticks of 0.1 s      what is closed is close to what is written, and to the end of the lease
    leases and liveness of 2 s     holders that cannot renew come to the end of their lease while they still close
    entries of 4 KiB, fat writes   two writes do not fit one entry: what is left in the buffer is overtaken by closing
    appends time out after 0.5 s   an append that was lost holds up the buffer, and its commands are sent again
    shaker                         merges, splits, and moves the lease of every range that a merge has frozen
    first                          writes to range 1, whose lease alone is extended through the proposal buffer

An append whose answer is missing here never landed (`LOG_LOST` alone makes unknown outcomes; no node is paused): sending
commands again is then the planted bug M05 and not also a command applied twice.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slackwater.codec.layout import kv, system
from slackwater.errors import AmbiguousResult, SlackwaterError
from slackwater.hooks import probe
from slackwater.protocol.range import requests
from slackwater.routing.parallel import in_parallel
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_operator import Operator
from slackwater.sim.scenarios.cluster_plan import COPIES_MAX, ClusterPlan, _splits, all_keys, cluster_of
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.cluster_worker import operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenario import Scenario
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World

SETTINGS = {
    "clock.max_offset": 0.5,
    "closed_timestamp.target_duration": 0.1,
    "closed_timestamp.side_transport_interval": 0.1,
    "lease.duration": 2.0,
    "liveness.duration": 2.0,
    "liveness.heartbeat_interval": 0.4,
    "log.append_timeout": 0.5,
    "log.entry_bytes_max": 4096,
    "range.frozen_patience": 2.0,
    "queue.interval": 2.0,
}
FAULTS = frozenset(
    {
        FaultKind.LOG_LOST,
        FaultKind.READER_LAG,
        FaultKind.READER_RESTART,
        FaultKind.CRASH,
        FaultKind.KILL,
        FaultKind.ISOLATE,
        FaultKind.RESET,
        FaultKind.CLOCK_JUMP,
    }
)
RESEND_LAG_S = 2.0
RANGES = 6
FAT_BYTES = (1_000, 3_000)
FAT_KEYS = 6
FIRST_WRITES = 8
FIRST_APART_S = 0.04
LOOK_S = 0.02
MERGE_LOOKS_MAX = 200


# --- fat writes -------------------------------------------------------------------------------------------------------


@operation("fat")
async def fat(me: Worker, timeout: float) -> None:
    """One large value, written down like any other."""
    key, value = kv(b"fat/%02d" % me.draw.below(FAT_KEYS)), me.unique().ljust(me.draw.between(*FAT_BYTES), b".")
    page = me.cluster.recorder.txn(client=me.number)
    page.write(key, value)
    try:
        ts = await me.kv.put(key, value, timeout=timeout)
    except AmbiguousResult:
        page.unknown()
        raise
    except SlackwaterError:
        page.failed()
        raise
    probe("cluster.ok")
    page.ok(commit_ts=ts)


@operation("first")
async def first(me: Worker, timeout: float) -> None:
    """Large values to range 1, one soon after the other.

    When the log stalls, some come to wait behind an extension of the lease, and do not fit its entry.
    """

    async def put(number: int, value: bytes) -> None:
        await me.client.runtime.clock.sleep(number * FIRST_APART_S)
        await me.kv.put(system("alloc", b"sim/%d/%d" % (me.number, number)), value, timeout=timeout)

    values = [b".".ljust(me.draw.between(*FAT_BYTES), b".") for _ in range(FIRST_WRITES)]
    works = [partial(put, number, value) for number, value in enumerate(values)]
    for outcome in await in_parallel(me.client.scope, works, limit=FIRST_WRITES, name="first"):
        if isinstance(outcome, SlackwaterError):
            raise outcome


# --- the shaker -------------------------------------------------------------------------------------------------------


class Shaker(Operator):
    """A second operator, who merges and splits without end, and moves leases just when that is awkward."""

    async def main(self) -> None:
        """Until the traffic ends."""
        cluster = self._cluster
        await self._client.meet(cluster.early)
        while not cluster.ready:
            await self._clock.sleep(0.1)
        while cluster.traffic:
            number = cluster.next_operation("shaker")
            draw = self._draw = cluster.world.tape.stream(f"op/shaker/{number}")
            await self._clock.sleep(draw.decay(NS // 2) / NS)
            if cluster.world.allows_operation("shaker", number):
                with suppress(SlackwaterError):
                    await self._shake(draw.pick(all_keys()[1:]), merges=draw.chance(2, 3))

    async def _shake(self, key: bytes, *, merges: bool) -> None:
        if not merges:
            await self.admin.split(key)
            return
        self._client.scope.spawn(self._merges(key), name=f"merge at {key!r}")
        for _ in range(MERGE_LOOKS_MAX):
            await self._clock.sleep(LOOK_S)
            frozen = self._frozen()
            if frozen is not None:
                probe("frontier.shaken")
                to = self._draw.pick(frozen.replicas)
                await self.admin.ask(requests.TransferLease(to), at=frozen.start)
                return

    async def _merges(self, key: bytes) -> None:
        with suppress(SlackwaterError):  # what is left frozen is thawed by the queues
            await self.admin.merge(key)
            probe("frontier.merged")

    def _frozen(self) -> RangeDescriptor | None:
        """A range that is frozen somewhere, which only the simulator can know at once."""
        for _, node in self._cluster.up():
            for replica in node.member.store.replicas.values() if node.member else ():
                if replica.state.frozen is not None:
                    return replica.state.descriptor
        return None


class Shaking:
    """The shaker as a workload."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """One more machine."""

        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            await Shaker(Client(runtime, cluster), cluster).main()

        world.add_client("shaker", boot)

    def unsettled(self, world: World) -> str | None:
        """Nothing of its own to wait for."""
        return None

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """Everything at once."""
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(tape.stream("cluster"), RANGES),
        workloads=("register", "bank", "list", "follow", "follow", "fat", "fat", "first", "first", "first"),
        think_mean_ns=NS // 8,
        operator_mean_ns=NS,
        merges=True,
        moves=False,
    )


def _resend_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """Only the policy closes, and not so far that commands sent again would be refused for their writes."""
    return replace(_plan(tape, nodes=nodes), workloads=("register", "bank", "list", "fat", "fat", "audit"))


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(6, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(SETTINGS), faults=FAULTS, fault_mean_ns=NS)


def _draw_resend(tape: Tape, duration_s: float) -> Scenario:
    drawn = _draw(tape, duration_s)
    return replace(drawn, settings={**drawn.settings, "closed_timestamp.target_duration": RESEND_LAG_S})


register(
    Play(
        name="frontier",
        summary="3 nodes that close nearly up to now, with short leases, crowded buffers and merges under transfer",
        draw=_draw,
        workloads=lambda: [Traffic(_plan), Shaking(), following.Advances()],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
register(
    Play(
        name="resend",
        summary="the same with a lag of 2 s and nothing that closes the present: commands are lost and sent again",
        draw=_draw_resend,
        workloads=lambda: [Traffic(_resend_plan), Shaking(), following.Advances()],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
