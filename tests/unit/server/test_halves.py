"""A split counts its right half while writes go on, and both halves know what they hold."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.codec.layout import kv
from slackwater.protocol.range.requests import Split
from slackwater.replica.driver.halves import counted_half
from slackwater.storage.stats import recompute
from slackwater.storage.versions import raw_value
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.replica.driver.replica import Replica
    from slackwater.server.member import Member

VALUE = raw_value(b"v" * 30)


def name(number: int) -> bytes:
    return kv(b"k%06d" % number)


def holding(node: Member, key: bytes) -> Replica:
    return next(r for r in node.store.replicas.values() if r.state.descriptor.contains(key))


def check_stats(node: Member) -> None:
    for replica in node.store.replicas.values():
        here = replica.state.descriptor
        if here.start >= kv(b""):
            assert replica.state.stats == tuple(recompute(node.engine, here.start, here.end)), here.status()


async def load(node: Member, numbers: range) -> None:
    await node.kv.put_rows([name(n) for n in numbers], [VALUE] * len(numbers))


@asynccontextmanager
async def loaded() -> AsyncIterator[tuple[Member, Replica]]:
    """A node with 400 rows, and the replica that holds them."""
    async with Cluster(1) as cluster:
        (node,) = cluster.nodes
        await load(node, range(400))
        yield node, holding(node, name(0))


def test_writes_beside_the_count_are_in_the_numbers_of_their_side() -> None:
    async def main() -> None:
        async with loaded() as (node, replica):
            async with counted_half(replica, Split(name(200), 0)):
                await load(node, range(400, 500))
                await node.kv.put(name(300), VALUE * 2)
                await node.kv.delete(name(301))
                await node.kv.delete(name(3))
                await load(node, range(100, 150))
                assert replica.counted is not None
                expected = replica.counted.now(replica.state)
                assert expected == tuple(recompute(node.engine, name(200), replica.state.descriptor.end))
                await node.admin.split(name(200))
            assert replica.counted is None
            assert holding(node, name(200)).state.stats == expected
            check_stats(node)

    asyncio.run(main())


def test_a_block_on_both_sides_is_counted_with_nothing_under_way() -> None:
    async def main() -> None:
        async with loaded() as (node, replica):
            async with counted_half(replica, Split(name(200), 0)):
                await load(node, range(190, 210))
                assert replica.counted is not None
                assert replica.counted.now(replica.state) is None
                await node.admin.split(name(200))
            assert holding(node, name(200)) is not replica
            check_stats(node)

    asyncio.run(main())


def test_both_halves_are_right_whatever_is_written_while_ranges_split() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            node, done = cluster.nodes[0], asyncio.Event()
            await load(node, range(1000))

            async def write() -> None:
                turn = 0
                while not done.is_set():
                    turn += 1
                    low = turn * 37 % 900
                    await load(node, range(low, low + turn % 60 + 1))
                    await node.kv.delete(name(turn * 11 % 1000))

            writers = [asyncio.create_task(write()) for _ in range(3)]
            for at in (500, 250, 750, 125, 875):
                await node.admin.split(name(at))
            done.set()
            await asyncio.gather(*writers)
            check_stats(node)

    asyncio.run(main())
