"""What commands, lease requests, snapshots and follower reads do to closed timestamps, on real nodes in virtual time.

Here are rows of docs/seeds.md that no other test would notice: each story fails when its row is taken out of the code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import NotLeaseholder
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.log.commands import NO_LAI, LeaseTrigger, decode_packet
from slackwater.protocol.range.requests import Batch, Get, Header, Scan, Value
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.protocol.log.commands import Command
    from slackwater.replica.driver import Replica

LAG_S = 0.2
SELDOM_S = 10.0
QUIET = {"queue.interval": 0.0, "closed_timestamp.target_duration": LAG_S}
COMMANDS_ONLY = {**QUIET, "closed_timestamp.side_transport_interval": SELDOM_S}
"""The side transport is silent for most of a story: what moves within ten seconds was moved by the log."""


def replica_of(c: Cluster, node: str, name: bytes) -> Replica:
    """The replica on a node that holds a key."""
    found = c.nodes[node].store.holding(c.key(name))
    assert found is not None
    return found


def test_a_busy_range_closes_with_its_commands_however_seldom_the_side_transport_speaks() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"0")
        await c.second_node(b"a")
        follower = replica_of(c, "n2", b"a")
        lags = []
        for n in range(40):
            await c.kv.put(c.key(b"a"), str(n).encode())
            await c.settle(0.1)
            lags.append(seconds_between(follower.state.closed, c.clock.now()))
        assert max(lags[10:]) < LAG_S + 0.6, "the follower's applied state is as fresh as the last command"
        before = follower.state.closed
        await c.settle(SELDOM_S / 2)
        assert follower.state.closed == before, "without commands the log closes nothing: no timer does"

    play(story, settings=COMMANDS_ONLY)


def test_a_snapshot_brings_the_closed_timestamp_of_its_range() -> None:
    async def story(c: Cluster) -> None:
        for n in range(10):
            await c.kv.put(c.key(b"a"), str(n).encode())
            await c.settle(0.1)
        before = replica_of(c, "n1", b"a").state.closed
        assert before > MIN
        await c.second_node(b"a")
        assert replica_of(c, "n2", b"a").state.closed >= before

    play(story, settings=COMMANDS_ONLY)


def test_a_lease_request_carries_no_closed_timestamp_and_is_not_tracked() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        replica, log = replica_of(c, "n1", b"a"), c.node.store.context.log
        append, requests, tracked = log.append, [], []

        async def noted(range_id: RangeId, payloads: Any) -> Any:
            commands: list[Command] = [command for p in payloads for command in decode_packet(p).commands]
            asked = [command for command in commands if isinstance(command.trigger, LeaseTrigger)]
            if asked and range_id == replica.state.descriptor.range_id:
                requests.extend(asked)
                tracked.append((replica.pipeline.buffer.tracker.count, replica.pipeline.buffer.in_flight))
            return await append(range_id, payloads)

        log.append = noted  # type: ignore[method-assign]
        sequence = replica.state.lease.sequence
        replica.leasing.abandon()
        await c.kv.put(a, b"2")
        assert replica.state.lease.sequence == sequence + 1
        assert [(r.closed, r.lai, r.min_write_ts) for r in requests] == [(MIN, NO_LAI, MIN)]
        assert tracked == [(0, 0)], "it goes past the proposal buffer"
        assert replica.state.closed >= replica.state.lease.start, "its start is what it closes"

    play(story, settings=QUIET)


def test_a_release_that_was_never_decided_does_not_keep_a_lone_node_from_its_lease() -> None:
    """Seed 504280007: the store was full while the lease was given up; once it could be written, nobody could take it."""

    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        replica = replica_of(c, "n1", b"a")
        replica.leasing.transferring_to = NodeId(1)  # as a release that is abandoned on its way leaves it
        replica.leasing.abandon()
        await c.kv.put(a, b"2")
        assert await c.kv.get(a) == b"2"

    play(story, settings=QUIET)


def test_follower_reads_leave_the_timestamp_cache_alone() -> None:
    """A read at a closed timestamp needs no entry: writes lie above it anyway."""

    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.settle(3)
        for name, node_id in (("n2", NodeId(2)), ("n1", NodeId(1))):
            replica = replica_of(c, name, b"a")
            closed, before = replica.closing.closed(), replica.tscache.get(a, a + b"\xff")
            assert closed > before[0], "an entry at the closed timestamp would be seen"
            header = Header(replica.state.descriptor.range_id, ts=closed, follower_ok=True)
            answer = await replica.executor.execute(Batch(header, [Get(a), Scan(a, a + b"\xff")]))
            assert answer.served_by == node_id
            assert isinstance(answer.results[0], Value)
            assert answer.results[0].value == b"1"
            assert replica.tscache.get(a, a + b"\xff") == before

    play(story, settings=QUIET)


def test_a_follower_that_cannot_serve_names_the_leaseholder() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.settle(3)
        follower = replica_of(c, "n2", b"a")
        header = Header(follower.state.descriptor.range_id, ts=c.clock.now(), follower_ok=True)
        with pytest.raises(NotLeaseholder) as refused:
            await follower.executor.execute(Batch(header, [Get(a)]))
        assert refused.value.facts["hint"] == NodeId(1)

    play(story, settings=QUIET)
