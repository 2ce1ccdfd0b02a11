"""However many consumers a node has, all their feeds of another node come over one connection (decision 013)."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import LOGICAL_BITS
from slackwater.codec.layout import KV, kv
from slackwater.errors import ProtocolError
from slackwater.feeds.client import Checkpoint
from slackwater.runtime import run
from tests.unit.feeds.test_cluster import SOON, WHOLE, Reader, check
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.clock.timestamp import Timestamp
    from slackwater.feeds.client import SpanFeed
    from slackwater.model.ids import NodeId
    from slackwater.model.spans import Span
    from slackwater.protocol.feeds.messages import RegisterFeed
    from slackwater.server.member import Member

CONSUMERS = 6
SMALL = {"feed__consumer_bytes_max": 1 << 16, "feed__client_bytes_max": 1 << 16, "rpc__stream_window": 2}


@asynccontextmanager
async def watched(*, split: bool = False) -> AsyncIterator[tuple[Member, SpanFeed]]:
    """A node alone, in one range or two, and a feed of all of it that has not begun."""
    async with Cluster(1, **SOON) as cluster:
        (node,) = cluster.nodes
        if split:
            await node.admin.split(kv(b"k000050"))
        yield node, node.feed_client.watch([WHOLE])


def test_all_consumers_of_a_node_share_one_connection_and_not_one_fate() -> None:
    async def feeds() -> None:
        async with Cluster(2, **SOON, **SMALL) as cluster:
            first, second = cluster.nodes
            await first.admin.change_replicas(KV, [first.node_id])
            await first.admin.split(kv(b"k000050"))
            await cluster.until(lambda: second.store.holding(kv(b"a")) is None)
            second.sender.cache.clear()
            watching = [second.feed_client.watch([WHOLE]) for _ in range(CONSUMERS)]
            readers = [Reader(feed) for feed in watching]
            for feed in watching:
                await feed.__aenter__()
            idle, *busy = readers
            while not isinstance(await anext(idle.feed), Checkpoint):
                pass  # it listens, and from now on does not
            for size in (100, 101, 102):
                await cluster.fill(1000, size=size)
                for reader in busy:
                    await check(cluster, reader, first.clock.now())
            others = [session for session in first.server._sessions if session.node_id != first.node_id]
            assert len(others) == 1, "one connection from the other node"
            served = [s for s in first.feeds.sessions.values() if s.registrations]
            assert len(served) > CONSUMERS, "a stream for each, and the announcements of both nodes"
            assert others[0].in_flight > CONSUMERS
            assert all(reader.feed.serving() == {first.node_id: 2} for reader in busy), "both ranges, one stream"
            for feed in watching:
                await feed.__aexit__()

    run(feeds())


def test_a_feed_closes_although_a_piece_of_it_ended_before_its_registration_was_answered() -> None:
    """The task that placed the piece took its cancellation for the lost answer and went on for ever (seed 109900504)."""

    async def closing() -> None:
        async with watched(split=True) as (node, feed):  # so that there is more to place
            asked = asyncio.Event()

            async def unanswered(node_id: NodeId, request: RegisterFeed) -> None:
                feed._registrations.pop(request.registration)  # as `Ended` does, which overtook the answer
                asked.set()
                await asyncio.Event().wait()

            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(node.feed_client.links, "register", unanswered)
                await feed.__aenter__()
                await asked.wait()
                async with asyncio.timeout(20):
                    await feed.__aexit__()

    run(closing())


def test_a_piece_whose_node_is_not_believed_is_placed_elsewhere_and_after_a_pause() -> None:
    """Its own node said the same at once, over and over, in no time at all (sessions seed 2721065917)."""

    async def refusing() -> None:
        async with watched() as (node, feed):
            placed: list[tuple[NodeId | None, bool]] = []
            again = asyncio.Event()
            place, check_event = feed._place, feed._check

            async def noted(span: Span, after: Timestamp, avoid: NodeId | None, stalls: int, *, pause: bool) -> None:
                placed.append((avoid, pause))
                if pause:
                    feed._check = check_event
                    again.set()
                await place(span, after, avoid, stalls, pause=pause)

            def refused(*_: object) -> None:
                raise ProtocolError("not to be believed")

            feed._place, feed._check = noted, refused
            await feed.__aenter__()
            async with asyncio.timeout(20):
                await again.wait()
                while not isinstance(await anext(feed), Checkpoint):
                    pass
            assert placed[0] == (None, False), "at first nothing is known against any node"
            assert placed[1] == (node.node_id, True)
            await feed.__aexit__()

    run(refusing())


def test_a_time_that_a_lease_to_come_begins_at_is_believed() -> None:
    """A lease may begin when the one before it ends, and its range is closed up to there at once."""

    async def leasing() -> None:
        async with Cluster(1, **SOON) as cluster:
            (node,) = cluster.nodes
            node.settings.set("lease.duration", 30.0)
            ahead = node.sender.furthest() - node.clock.now()
            assert ahead >= (30.0 * 1e6) * (1 << LOGICAL_BITS)

    run(leasing())
