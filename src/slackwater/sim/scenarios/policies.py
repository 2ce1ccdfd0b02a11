"""A play for closing policies: spans are switched between lag, lead and off under load, and the present is read everywhere.

    switcher   gives one of a few spans another policy every few seconds: lead most often, another lag, off, none
    global     reads the present through whichever replica is nearest: single keys (linearizable in true time, I-19),
               all accounts at one timestamp, and transactions that begin to read nearby and may go on to write (I-18)
    audit      the past, as everywhere (I-15)

Everything else goes on as in `cluster`: transactions cross spans of different policies, leases move, nodes crash, ranges
split at the bounds of spans by their queues, merge and move; in half of the runs every node is restarted in good order once the
world is well, one after the other, under traffic. What a span closed ahead of time under `lead` binds every
later lease and every later policy; a write that was acknowledged is seen by every later read, on every replica.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from slackwater.codec.layout import kv, prefix_end
from slackwater.config.zones import PolicyKind
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protect.zone_changes import change_zone, unset_zone
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.sim.handles import NS
from slackwater.sim.oracles import following
from slackwater.sim.scenario import Play, draw_scenario, register
from slackwater.sim.scenarios.cluster import SETTLE_S, Traffic, _oracles
from slackwater.sim.scenarios.cluster_operator import ACT_TIMEOUT_S
from slackwater.sim.scenarios.cluster_plan import (
    COPIES_MAX,
    WORKLOADS,
    ClusterPlan,
    _splits,
    account_keys,
    cluster_of,
    register_keys,
)
from slackwater.sim.scenarios.cluster_programs import Client
from slackwater.sim.scenarios.cluster_work import balance
from slackwater.sim.scenarios.cluster_worker import operation

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers import TxnPen
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.scenario import Scenario, Workload
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_worker import Worker
    from slackwater.sim.tape import Tape, TapeStream
    from slackwater.sim.world import SimRuntime, World
    from slackwater.txn import Transaction

SETTINGS = {
    "clock.max_offset": 0.25,
    "closed_timestamp.target_duration": 1.0,
    "closed_timestamp.side_transport_interval": 0.1,
    "span_config.poll_interval": 0.5,
    "queue.interval": 2.0,
}
SPANS = (
    (kv(b"bnk/"), kv(b"bnk0")),
    (kv(b"reg/"), kv(b"reg/03")),
    (kv(b"reg/03"), kv(b"reg0")),
    (kv(b"lst/"), kv(b"lst/02")),
    (kv(b"frk/02"), kv(b"frk/06")),
)
"""Some are whole workloads, some divide one: transactions cross their bounds."""
POLICIES = (PolicyKind.LEAD, PolicyKind.LEAD, PolicyKind.LEAD, PolicyKind.LAG, PolicyKind.OFF, None)
LAGS_MS = (0, 100, 3_000)
LEADING_AT_FIRST = 3
SWITCH_MEAN_NS = 3 * NS
RANGES = 6


# --- reads of the present ---------------------------------------------------------------------------------------------


@operation("global")
async def read_globally(me: Worker, timeout: float) -> None:
    """One key, or all accounts, at present time, by the nearest replica that can."""
    what = me.draw.below(4)
    if what == 0:
        await _all_accounts(me, timeout)
        return
    if what == 1:
        await me.txn(partial(_move, me), timeout, nearest=True)
        return
    key = me.draw.pick(register_keys())
    pen = me.cluster.recorder.read(key, client=me.number)
    try:
        value = await me.kv.get(key, nearest=True, timeout=timeout)
    except SlackwaterError:
        pen.failed()
        raise
    probe("cluster.ok")
    pen.ok(saw=value)


async def _all_accounts(me: Worker, timeout: float) -> None:
    start, end = account_keys()[0], prefix_end(account_keys()[-1])
    pen = me.cluster.recorder.txn(client=me.number)
    kernel = me.kv.context
    now = kernel.clock.now()
    header = requests.Header(NO_RANGE, ts=now, uncertainty_limit=me.kv.uncertain_upto(now), follower_ok=True)
    try:
        answer = await me.kv.read([requests.Scan(start, end)], header, timeout=timeout, movable=True)
    except SlackwaterError:
        pen.failed()
        raise
    probe("cluster.ok")
    if answer.by_follower:
        probe("policies.present_by_follower")
    (rows,) = answer.results
    assert isinstance(rows, requests.Rows)
    pen.scan(start=start, end=end, rows=list(zip(rows.keys, rows.values, strict=True)))
    pen.ok(read_ts=answer.ts)


async def _move(me: Worker, txn: Transaction, pen: TxnPen) -> None:
    """Read two accounts from wherever is near; sometimes move money between them."""
    giver, taker = me.draw.shuffled(account_keys())[:2]
    held = {}
    for key in (giver, taker):
        value = await txn.get(key)
        pen.read(key, value)
        held[key] = balance(value or b"0")
    if me.draw.chance(1, 2):
        return
    some = min(me.draw.between(1, 20), held[giver])
    for key, change in ((giver, -some), (taker, some)):
        value = b"%d:%s" % (held[key] + change, me.unique())
        pen.write(key, value)
        await txn.put(key, value)


# --- the switcher -----------------------------------------------------------------------------------------------------


class Switcher:
    """Switches the policies of spans at random."""

    def __init__(self, client: Client, cluster: Cluster, kinds: tuple[PolicyKind | None, ...]) -> None:
        self._client = client
        self._cluster = cluster
        self._kinds = kinds

    async def main(self) -> None:
        """Until the traffic ends."""
        cluster = self._cluster
        await self._client.meet(cluster.early)
        while not cluster.ready:
            await self._client.runtime.clock.sleep(0.1)
        for span in SPANS[:LEADING_AT_FIRST]:
            with suppress(SlackwaterError):
                await change_zone(self._client.kv, *span, policy=PolicyKind.LEAD, timeout=ACT_TIMEOUT_S)
        while cluster.traffic:
            number = cluster.next_operation("switcher")
            draw = cluster.world.tape.stream(f"op/switcher/{number}")
            pause_ns = draw.decay(SWITCH_MEAN_NS)
            if cluster.world.allows_operation("switcher", number):
                with suppress(SlackwaterError):
                    await self._switch(draw)
            await self._client.runtime.clock.sleep(pause_ns / NS)

    async def _switch(self, draw: TapeStream) -> None:
        span, kind = draw.pick(SPANS), draw.pick(self._kinds)
        lag_ms = draw.pick(LAGS_MS) if kind is PolicyKind.LAG else 0
        if kind is None:
            await unset_zone(self._client.kv, *span, timeout=ACT_TIMEOUT_S)
        else:
            await change_zone(self._client.kv, *span, policy=kind, duration_ms=lag_ms, timeout=ACT_TIMEOUT_S)
        probe(f"policies.{kind.value if kind else 'unset'}")


class Switching:
    """The switcher as a workload."""

    def __init__(self, kinds: tuple[PolicyKind | None, ...] = POLICIES) -> None:
        self._kinds = kinds

    def setup(self, world: World, scenario: Scenario) -> None:
        """One more machine."""

        async def boot(runtime: SimRuntime) -> None:
            cluster = cluster_of(world)
            await Switcher(Client(runtime, cluster), cluster, self._kinds).main()

        world.add_client("switcher", boot)

    def unsettled(self, world: World) -> str | None:
        """Nothing of its own to wait for."""
        return None

    def check(self, world: World) -> Iterable[Violation]:
        """All is judged by oracles."""
        return ()


def _plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    draw = tape.stream("cluster")
    return ClusterPlan(
        ranges=RANGES,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, RANGES),
        workloads=(*WORKLOADS, "register", "global", "global", "global"),
        think_mean_ns=NS // 8,
        operator_mean_ns=draw.between(NS // 2, 2 * NS),
        merges=draw.chance(1, 2),
        moves=draw.chance(1, 2),
        rolling=tape.stream("cluster/rolling").chance(1, 2),
    )


def _draw(tape: Tape, duration_s: float) -> Scenario:
    drawn = draw_scenario(tape, nodes=(2, 4), clients=(4, 6), duration_s=duration_s)
    return replace(drawn, settings=dict(SETTINGS))


def _workloads() -> list[Workload]:
    return [Traffic(_plan), Switching(), following.Advances()]


register(
    Play(
        name="policies",
        summary="spans switched between lag, lead and off under load, the present read on every replica, all faults",
        draw=_draw,
        workloads=_workloads,
        oracles=_oracles,
        settle_s=SETTLE_S,
    )
)
