"""A play for the schemes of closing: a drawn one at the start, and moves from any to any other under load and all faults.

    mover      sets `closed_timestamp.scheme` every few seconds, and now and then which ranges close at all; nodes hear of it at
               different moments, or are down when it is said, or come back believing in another one
    frontier   everything that makes closing hard: little lag, short leases, crowded buffers, merges whose right side moves

The same oracles judge all schemes (I-09 … I-16): each promise of whichever kind is in one ledger. `store_wide` is the same with
that scheme from the first moment to the last, and with transactions that write late, at the very edge of what is closed; `ages`
with writes that may be half a second old.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from slackwater.closedts.activation import Activation
from slackwater.closedts.kinds import Scheme
from slackwater.codec.layout import kv
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.server.cluster_settings import reset_setting, write_setting
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_plan import cluster_of
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.cluster_worker import finish, operation
from slackwater.sim.scenarios.frontier import FAULTS, SETTINGS, Shaking, _plan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenario import Scenario
    from slackwater.sim.scenarios.cluster_plan import Cluster, ClusterPlan
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import SimRuntime, World
    from slackwater.txn import Transaction

MOVE_MEAN_NS = 4 * NS
TARDY_KEYS = 4
TARDY_NS = (NS // 5, NS)
NAME = "closed_timestamp.scheme"
ACTIVATION = "closed_timestamp.activation"
SCHEME_SETTINGS = {
    **SETTINGS,
    "closed_timestamp.max_write_age": 0.5,
    "closed_timestamp.empty_command_interval": 0.3,
    "closed_timestamp.rest_after": 3.0,
    "feed.poll_interval": 1.0,
}


@operation("tardy")
async def tardy(me: Worker, timeout: float) -> None:
    """A transaction that writes long after it has read: what it writes is moved to just above what may be closed."""
    keys = [kv(b"tar/%02d" % me.draw.below(TARDY_KEYS)) for _ in range(me.draw.between(1, 3))]
    page = me.cluster.recorder.txn(client=me.number)
    told: list[int] = []

    async def attempt(txn: Transaction) -> None:
        page.restart()
        page.read(keys[0], await txn.get(keys[0]))
        await me.client.runtime.clock.sleep(me.draw.between(*TARDY_NS) / NS)
        for key in keys:
            value = me.unique()
            page.write(key, value)
            await txn.put(key, value)
        told.append(await txn.commit())

    await finish(page, me.kv.run(attempt, timeout=timeout), lambda: page.ok(commit_ts=told[-1]))


class Mover:
    """Sets the scheme of the cluster at random."""

    def __init__(self, client: Client, cluster: Cluster) -> None:
        self._client = client
        self._cluster = cluster

    async def main(self) -> None:
        """Until the traffic ends."""
        cluster = self._cluster
        await self._client.meet(cluster.early)
        while not cluster.ready:
            await self._client.runtime.clock.sleep(0.1)
        while cluster.traffic:
            number = cluster.next_operation("mover")
            draw = cluster.world.tape.stream(f"op/mover/{number}")
            await self._client.runtime.clock.sleep(draw.decay(MOVE_MEAN_NS) / NS)
            if cluster.world.allows_operation("mover", number):
                chosen, rests = draw.pick((*Scheme, None)), draw.pick((None, None, *Activation))
                with suppress(SlackwaterError):
                    await self._move(chosen)
                    if rests is not None:
                        await write_setting(self._client.kv, ACTIVATION, rests)
                        probe(f"schemes.{rests.name.lower()}")

    async def _move(self, chosen: Scheme | None) -> None:
        if chosen is None:
            await reset_setting(self._client.kv, NAME)
        else:
            await write_setting(self._client.kv, NAME, chosen)
        probe(f"schemes.{'unset' if chosen is None else chosen.name.lower()}")


class Moving:
    """The mover as a workload."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """One more machine."""

        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            await Mover(Client(runtime, cluster), cluster).main()

        world.add_client("mover", boot)

    def unsettled(self, world: World) -> str | None:
        """Nothing of its own to wait for."""
        return None

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(6, 6), duration_s=duration_s)
    first, rests = tape.stream("schemes").pick(tuple(Scheme)), tape.stream("activation").pick(tuple(Activation))
    return replace(
        drawn,
        settings={**SCHEME_SETTINGS, NAME: int(first), ACTIVATION: int(rests)},
        faults=drawn.faults | FAULTS,
        fault_mean_ns=NS,
    )


def _tardy_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """The frontier's, with writers that are late: a command at the very timestamp above which it must lie is common here."""
    plan = _plan(tape, nodes=nodes)
    return replace(plan, workloads=(*plan.workloads, *("tardy",) * 6), think_mean_ns=NS // 16)


def _only(scheme: Scheme, tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(3, 3), clients=(6, 6), duration_s=duration_s)
    return replace(drawn, settings={**SCHEME_SETTINGS, NAME: int(scheme)}, faults=FAULTS, fault_mean_ns=NS)


register(
    Play(
        name="schemes",
        summary="a drawn scheme and activation of closing, changed every few seconds, with little lag and all faults",
        draw=_draw,
        workloads=lambda: [Traffic(_plan), Shaking(), Moving(), following.Advances()],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
register(
    Play(
        name="store_wide",
        summary="the frontier play under the store-wide scheme of 2018, with writers that are late",
        draw=lambda tape, duration_s: _only(Scheme.STORE_WIDE, tape, duration_s),
        workloads=lambda: [Traffic(_tardy_plan), Shaking(), following.Advances()],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
register(
    Play(
        name="ages",
        summary="the frontier play under the max-write-age scheme of 2017",
        draw=lambda tape, duration_s: _only(Scheme.MAX_WRITE_AGE, tape, duration_s),
        workloads=lambda: [Traffic(_plan), Shaking(), following.Advances()],
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
