"""Which ranges close at all, on real nodes in virtual time: by zone, by demand, by both; what wakes them, and when they rest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import add_seconds, seconds_between
from slackwater.closedts.activation import Activation
from slackwater.closedts.kinds import Scheme
from slackwater.codec.layout import kv, table_span
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import NotClosing, NotLeaseholder
from slackwater.model.ids import NodeId
from slackwater.protect.zone_changes import change_zone, write_zone
from slackwater.protocol.range.requests import Batch, Get, Header
from slackwater.server.cluster_settings import write_setting
from slackwater.txn.staleness import Staleness
from tests.sim.cluster import Cluster, play
from tests.sim.test_changes import first_resolved, table

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica

N1, N2 = NodeId(1), NodeId(2)
A = kv(b"ga")
SPAN = (kv(b"g"), kv(b"h"))
LAG_S, REST_S = 0.5, 5.0


def settings(activation: Activation, scheme: Scheme = Scheme.LOG_DRIVEN) -> dict[str, float]:
    return {
        "queue.interval": 0.0,
        "span_config.poll_interval": 1.0,
        "closed_timestamp.target_duration": LAG_S,
        "closed_timestamp.max_write_age": LAG_S,
        "closed_timestamp.empty_command_interval": 0.3,
        "closed_timestamp.rest_after": REST_S,
        "closed_timestamp.scheme": float(scheme),
        "closed_timestamp.activation": float(activation),
    }


async def own_range(c: Cluster) -> tuple[Replica, Replica]:
    """A range of its own on both nodes; the lease is on n1."""
    await c.kv.put(A, b"0")
    await c.node.admin.split(SPAN[0])
    await c.node.admin.split(SPAN[1])
    await c.second_node(b"ga")
    await c.settle(3)
    leader, follower = (c.nodes[name].store.holding(A) for name in ("n1", "n2"))
    assert leader is not None
    assert follower is not None
    return leader, follower


def lag_s(c: Cluster, replica: Replica) -> float:
    return seconds_between(replica.closing.closed(), c.clock.now())


async def read(c: Cluster, replica: Replica, *, ago_s: float) -> bool:
    """Ask the follower itself for a read of the past; whether it served it."""
    range_id = replica.state.descriptor.range_id
    ts = add_seconds(c.clock.now(), -ago_s)
    try:
        answer = await c.nodes["n2"].store.execute(Batch(Header(range_id, ts=ts, follower_ok=True), [Get(A)]))
    except NotLeaseholder:
        return False
    return answer.by_follower


@pytest.mark.parametrize("scheme", Scheme)
def test_a_refused_read_wakes_closing_which_rests_again(scheme: Scheme) -> None:
    async def story(c: Cluster) -> None:
        leader, follower = await own_range(c)
        await c.settle(10)
        assert lag_s(c, follower) > 8, "nothing asks for it"
        position = follower.state.position
        assert leader.closing.explain().refusal.startswith("closing rests")
        assert not await read(c, follower, ago_s=2)
        await c.settle(4)
        assert await read(c, follower, ago_s=3), "the refusal has woken it"
        for _ in range(10):
            await c.settle(1)
            assert await read(c, follower, ago_s=3), "as long as it is read, it does not rest"
        await c.settle(3 * REST_S)
        assert lag_s(c, follower) > REST_S, "it rests again"
        assert not await read(c, follower, ago_s=2)
        if scheme is not Scheme.MAX_WRITE_AGE:
            assert follower.state.position == position, "no log entries for any of it"

    world = play(story, settings=settings(Activation.ON_DEMAND, scheme))
    assert world.probes["closedts.range_wakes"] >= 1
    assert world.probes["closedts.range_rests"] >= 1


def test_writers_of_a_range_at_rest_are_moved_above_nothing_and_those_of_one_that_wakes_are() -> None:
    async def story(c: Cluster) -> None:
        leader, follower = await own_range(c)
        await c.settle(5)
        before = leader.pipeline.buffer.assigned_closed
        await c.kv.put(A, b"1")
        assert leader.pipeline.buffer.assigned_closed == before, "commands of a range at rest close nothing, either"
        assert not await read(c, follower, ago_s=2)
        await c.settle(3)
        await c.kv.put(A, b"2")
        assert leader.pipeline.buffer.assigned_closed > before

    play(story, settings=settings(Activation.ON_DEMAND))


def test_a_new_leaseholder_is_told_as_well() -> None:
    async def story(c: Cluster) -> None:
        leader, follower = await own_range(c)
        await read(c, follower, ago_s=2)
        await c.settle(3)
        assert await read(c, follower, ago_s=2)
        await c.transfer(b"ga", N2)
        await c.settle(4)
        assert leader.state.lease.holder == N2
        assert lag_s(c, leader) < 2, "n2 leads now, and was told by itself"

    play(story, settings=settings(Activation.ON_DEMAND))


def test_a_policy_of_a_zone_wakes_closing_where_that_counts() -> None:
    async def story(c: Cluster) -> None:
        _, follower = await own_range(c)
        await c.settle(8)
        assert lag_s(c, follower) > 6
        await read(c, follower, ago_s=2)
        await c.settle(4)
        assert lag_s(c, follower) > 6, "demand does not count here"
        await write_zone(c.kv, ZoneConfig(*SPAN, policy=PolicyKind.LAG))
        await c.settle(4)
        assert lag_s(c, follower) < 2
        await c.settle(3 * REST_S)
        assert lag_s(c, follower) < 2, "what a zone wants does not rest"
        await write_setting(c.kv, "closed_timestamp.activation", Activation.ON_DEMAND)
        await c.settle(12)
        assert lag_s(c, follower) > 6, "now only demand counts"
        await write_setting(c.kv, "closed_timestamp.activation", Activation.CONFIGURED_OR_ON_DEMAND)
        await c.settle(12)
        assert lag_s(c, follower) < 2

    play(story, settings={**settings(Activation.CONFIGURED), "feed.poll_interval": 1.0})


def test_asking_how_far_a_range_is_resolved_wakes_it() -> None:
    async def story(c: Cluster) -> None:
        _, follower = await own_range(c)
        await c.settle(8)
        staleness = Staleness(sender=c.sender, clock=c.clock, settings=c.settings)
        await staleness.resolved([SPAN])
        await c.settle(4)
        assert lag_s(c, follower) < 2

    play(story, settings=settings(Activation.ON_DEMAND))


def test_a_feed_wakes_its_table_and_keeps_it_awake() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        begin = c.clock.now()
        assert await first_resolved(db) > begin

        behind = []
        async for batch in db.changes("accounts", resolved=0.5):
            if batch.kind == "resolved" and batch.resolved:
                behind.append(seconds_between(batch.resolved, c.clock.now()))
            if seconds_between(begin, c.clock.now()) > 6 * REST_S:
                break
        assert max(behind[5:]) < 4, "it never rests while the feed is attached"

    play(story, settings=settings(Activation.ON_DEMAND))


def test_a_feed_of_a_table_that_no_zone_activates_says_why_and_what_to_do() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        with pytest.raises(NotClosing, match=r"activation is `configured`, and it has no policy.*zone set accounts"):
            await first_resolved(db)
        span = table_span((await db.table("accounts")).table_id)
        await change_zone(c.kv, span.start, span.end, policy=PolicyKind.LAG)
        assert await first_resolved(db) > 0

    play(story, settings=settings(Activation.CONFIGURED))
