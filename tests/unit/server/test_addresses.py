"""Nodes and clients find each other, whatever they have missed."""

from __future__ import annotations

import asyncio

from slackwater.codec.layout import META, kv
from slackwater.model.ids import NodeId
from slackwater.runtime import run
from slackwater.runtime.seam import Family
from slackwater.server.addresses import BOOK_KEY
from slackwater.server.remote import Remote
from slackwater.settings import Settings
from tests.unit.server.cluster import Cluster

N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)


def test_a_node_finds_the_leader_of_the_first_range_whose_address_it_never_learned() -> None:
    """Found by killing real nodes: n2 could not read range 1 to learn where n3 was, because n3 led range 1."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            one, two, _ = cluster.nodes
            await one.admin.relocate(META, (N1, N2, N3))
            await one.admin.transfer_lease(META, N3)
            del two.book.nodes[N3]
            two.sender.cache.clear()
            heard = two.liveness.get(N2)
            await cluster.until(lambda: two.book.resolve(N3) is not None)
            await cluster.until(lambda: two.liveness.get(N2).expiration > heard.expiration)

    run(main())


def test_a_greeting_introduces_both_sides() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            one, two = cluster.nodes
            one.book.nodes.pop(N2)
            await two.book.greet("n1:7400")
            assert one.book.nodes[N2].address == "n2:7400"

    run(main())


def test_nodes_greet_each_other_in_turn_so_that_one_who_lost_every_address_is_found() -> None:
    """Found by seed 124: the founder knows nobody to join, range 1 had moved away, and a power cut took its notes."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            one, two, three = cluster.nodes
            two.book.nodes.clear()
            three.book.nodes.clear()
            await one.book.greet_next()
            await one.book.greet_next()
            assert N1 in two.book.nodes
            assert N1 in three.book.nodes

    run(main())


def test_a_node_that_lost_every_address_is_greeted_by_the_next_node_that_calls_it() -> None:
    """Found by seed 767297969: its turn in `greet_next` came after 13 s, and no stream of closed timestamps reached it."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            one, two, three = cluster.nodes
            one.book.nodes = {N1: one.book.nodes[N1]}
            for node in (one, two, three):  # neither by reading, nor by turns
                node.book.greet_next = node.book.greet_all = node.book.refresh = _nothing  # type: ignore[method-assign]
            await cluster.until(lambda: {N2, N3} <= one.book.nodes.keys())

    run(main())


async def _nothing(*_: object) -> None:
    pass


def test_a_founder_that_led_nothing_finds_its_cluster_again_by_what_it_wrote_down() -> None:
    """It was started without --join, and range 1 has moved away since: only its own notes say whom to ask."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            founder, two, _ = cluster.nodes
            for key in (META, b"\x03\xf0", kv(b"")):
                await two.admin.relocate(key, (N2, N3))
            await cluster.until(lambda: not founder.store.replicas)
            await cluster.until(lambda: founder.engine.get(Family.LOCAL, BOOK_KEY) is not None)
            await founder.book.keep(founder.engine)
            await cluster.kill(founder)
            again = await cluster.add(founder.engine.crash(keep=lambda unflushed: 0), 0)  # type: ignore[attr-defined]
            assert again.node.join == ()
            assert {N2, N3} <= again.book.nodes.keys(), "from the disk, before it has asked anybody"
            await cluster.until(lambda: again.liveness.own() is not None)
            await again.kv.put(kv(b"a"), b"1")

    run(main())


def test_a_client_meets_a_node_that_joined_later() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            one, _ = cluster.nodes
            scope = one.runtime.scope("client")
            remote = Remote(one.runtime, scope, ["n1:7400"], settings=Settings())
            await remote.greet()
            assert remote.identity.cluster_id == "test"
            remote.start()
            await remote.kv.put(kv(b"a"), b"1")
            del remote.book.nodes[N2]
            await one.admin.relocate(kv(b"a"), (N1, N2))
            await one.admin.transfer_lease(kv(b"a"), N2)
            async with asyncio.timeout(20):
                assert await remote.kv.get(kv(b"a")) == b"1"
            assert remote.book.nodes[N2].address == "n2:7400"
            await remote.dialer.close()
            await scope.close()

    run(main())
