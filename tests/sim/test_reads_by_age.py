"""Plain reads that are old enough go to the nearest replica by themselves, and no follower is asked in vain again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import add_seconds
from slackwater.closedts.kinds import Scheme
from slackwater.codec.layout import kv
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.model.ids import NodeId
from slackwater.protect.zone_changes import write_zone
from slackwater.protocol.range.requests import BatchResult, Get, Header, Value
from slackwater.routing.sender import NO_RANGE
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.clock import Timestamp

N1, N2 = NodeId(1), NodeId(2)
A = kv(b"ga")
SPAN = (kv(b"g"), kv(b"h"))
LAG_S, TICK_S, SLACK_S, AGE_S, EMPTY_S = 1.0, 0.2, 0.5, 4.0, 0.3
SETTINGS = {
    "queue.interval": 0.0,
    "span_config.poll_interval": 1.0,
    "closed_timestamp.target_duration": LAG_S,
    "closed_timestamp.side_transport_interval": TICK_S,
    "closed_timestamp.propagation_slack": SLACK_S,
    "closed_timestamp.max_write_age": AGE_S,
    "closed_timestamp.empty_command_interval": EMPTY_S,
}
BEHIND_S = {
    Scheme.LOG_DRIVEN: LAG_S + TICK_S,
    Scheme.STORE_WIDE: LAG_S + 2 * TICK_S,
    Scheme.MAX_WRITE_AGE: AGE_S + EMPTY_S,
}


async def own_range(c: Cluster) -> None:
    """A range of its own on both nodes; the lease is on n1."""
    await c.kv.put(A, b"1")
    await c.node.admin.split(SPAN[0])
    await c.node.admin.split(SPAN[1])
    await c.second_node(b"ga")
    await c.settle(12)


async def read(
    c: Cluster, *, ago_s: float = 0.0, at: Timestamp | None = None, leader_only: bool = False
) -> BatchResult:
    """A plain read by a client on n2: nothing in it says that a follower may serve."""
    client = c.nodes["n2"].kv
    ts = at or add_seconds(client.context.clock.now(), -ago_s)
    return await client.read([Get(A)], Header(NO_RANGE, ts=ts, leader_only=leader_only))


@pytest.mark.parametrize("scheme", Scheme)
def test_the_nearest_replica_serves_what_is_old_enough_under_each_scheme(scheme: Scheme) -> None:
    async def story(c: Cluster) -> None:
        await own_range(c)
        for _ in range(20):
            old = await read(c, ago_s=BEHIND_S[scheme] + SLACK_S + 0.1)
            assert (old.served_by, old.by_follower) == (N2, True), "n2 was not asked, or could not serve"
            assert isinstance(old.results[0], Value)
            assert old.results[0].value == b"1"
            young = await read(c, ago_s=BEHIND_S[scheme] + SLACK_S - 0.3)
            assert (young.served_by, young.by_follower) == (N1, False)
            await c.settle(0.37)
        asked = await read(c, ago_s=20, leader_only=True)
        assert asked.served_by == N1, "who wants the leaseholder gets it"

    world = play(story, settings={**SETTINGS, "closed_timestamp.scheme": float(scheme)})
    assert world.probes["routing.by_age"] >= 20
    assert not world.probes["routing.follower_refused"], "what is chosen by age is closed"


def test_where_nothing_closes_no_follower_is_asked_however_old_a_read_is() -> None:
    async def story(c: Cluster) -> None:
        await own_range(c)
        await write_zone(c.kv, ZoneConfig(*SPAN, policy=PolicyKind.OFF))
        await c.settle(30)
        assert (await read(c, ago_s=20)).served_by == N1
        await write_zone(c.kv, ZoneConfig(*SPAN, policy=PolicyKind.LAG, duration_ms=5_000))
        await c.settle(30)
        assert (await read(c, ago_s=4)).served_by == N1
        assert (await read(c, ago_s=6)).served_by == N2

    play(story, settings=SETTINGS)


def test_a_follower_that_lags_is_asked_once_a_tick_not_by_every_read() -> None:
    async def story(c: Cluster) -> None:
        await own_range(c)
        c.world.log.link("n2").cut = True
        await c.kv.put(A, b"2")
        await c.settle(8)
        at = add_seconds(c.clock.now(), -3)
        before = dict(c.world.probes)
        for _ in range(50):
            answer = await read(c, at=at)
            assert answer.served_by == N1
        refused = c.world.probes["routing.follower_refused"] - before.get("routing.follower_refused", 0)
        spared = c.world.probes["routing.follower_spared"] - before.get("routing.follower_spared", 0)
        assert refused + spared == 50
        assert refused < 10, "the next read knows that the follower is behind"
        older = await read(c, at=add_seconds(c.clock.now(), -60))
        assert older.served_by == N2, "what it has closed it goes on to serve"

    play(story, settings=SETTINGS)
