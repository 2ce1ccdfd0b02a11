"""The catalog of several nodes: one truth, followed by polling or at the ring of a bell."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING

import pytest

from slackwater.catalog import definition
from slackwater.catalog.records import descriptors_span
from slackwater.clock.timestamp import Timestamp
from slackwater.errors import UsageError
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from slackwater.protocol.range import requests
from tests.table_helpers import without_column
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.txn import Transaction

COLUMNS, KEY = (ColumnSpec("id", INT),), (KeySpec("id"),)


def test_of_two_who_create_one_name_one_is_told() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            catalogs = [node.catalog for node in cluster.nodes]
            made = await asyncio.gather(
                *(c.create("t", COLUMNS, KEY) for c in catalogs for _ in range(3)), return_exceptions=True
            )
            refused = [m for m in made if isinstance(m, UsageError)]
            assert len(refused) == 5
            assert all("already" in str(error) for error in refused)
            others = await asyncio.gather(*(c.create(f"u{i}", COLUMNS, KEY) for i in range(3) for c in catalogs[:1]))
            assert len({t.table_id for t in others}) == 3  # an id is used once

    asyncio.run(main())


def test_other_nodes_find_what_is_new_at_once_and_what_is_gone_soon() -> None:
    async def main() -> None:
        async with Cluster(2, catalog__poll_interval=0.05) as cluster:
            one, two = (node.catalog for node in cluster.nodes)
            made = await one.create("t", COLUMNS, KEY)
            found = await two.find("t")
            assert found.latest == made  # the modification time is the commit timestamp, for everybody
            await one.publish(made.table_id, lambda now: definition.with_column(now, ColumnSpec("a", INT)))
            assert (await two.find_id(made.table_id, version=2)).latest.version == 2
            gone = await one.drop("t")
            await cluster.until(lambda: two.tables.by_name("t") is None)
            assert (await two.find("t", at=Timestamp(gone.modified - 1))).latest.dropped
            with pytest.raises(UsageError, match="no table 't'"):
                await two.find("t")
            with pytest.raises(UsageError, match="was dropped"):
                await two.publish(made.table_id, lambda now: without_column(now, "a"))

    asyncio.run(main())


def test_a_version_is_published_with_the_rest_of_a_transaction_or_not_at_all() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            made = await node.catalog.create("t", COLUMNS, KEY)
            committed: list[Transaction] = []

            async def work(txn: Transaction) -> None:
                committed[:] = [txn]
                await txn.put(b"beside", b"1")
                add = partial(definition.with_column, spec=ColumnSpec("a", INT))
                assert (await node.catalog.publish_in(txn, made.table_id, add)).version == 2
                assert (await node.catalog.publish_in(txn, made.table_id, add_b)).version == 3  # it sees its own

            add_b = partial(definition.with_column, spec=ColumnSpec("b", INT))
            await node.kv.run(work)
            await node.catalog.refresh()
            found = (await node.catalog.find("t")).latest
            assert (found.version, found.modified) == (3, committed[0].commit_ts)

            async def fails(txn: Transaction) -> None:
                await node.catalog.publish_in(txn, made.table_id, lambda now: without_column(now, "a"))
                raise RuntimeError("the rest failed")

            with pytest.raises(RuntimeError):
                await node.kv.run(fails)
            await node.catalog.refresh()
            assert (await node.catalog.find("t")).latest.version == 3
            with pytest.raises(UsageError, match=r"cannot alter system\.jobs"):
                await node.catalog.publish(1, add_b)

    asyncio.run(main())


def test_a_bell_makes_a_node_look_at_once() -> None:
    class Bell:
        def __init__(self) -> None:
            self.rung = asyncio.Event()

        async def changed(self) -> None:
            await self.rung.wait()
            self.rung.clear()

    async def main() -> None:
        async with Cluster(2, catalog__poll_interval=60.0) as cluster:
            one, two = (node.catalog for node in cluster.nodes)
            await one.create("t", COLUMNS, KEY)
            bell = two.watch = Bell()
            await two.find("t")
            await one.drop("t")
            bell.rung.set()
            await cluster.until(lambda: two.tables.by_name("t") is None)

    asyncio.run(main())


def test_descriptors_outlive_the_history_around_them() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            one, two = cluster.nodes
            made = await one.catalog.create("t", COLUMNS, KEY)
            cluster.collect_upto_now()
            threshold = requests.RaiseGcThreshold(one.clock.now())
            await one.admin.ask(threshold, at=descriptors_span().start)
            assert (await two.catalog.find("t")).latest == made

    asyncio.run(main())


def test_a_table_that_is_known_is_found_without_reading_its_descriptor() -> None:
    async def main() -> None:
        async with Cluster(1, catalog__poll_interval=60.0) as cluster:
            catalog = cluster.nodes[0].catalog
            catalog.watch = None  # no announcement makes it look either
            made = await catalog.create("t", COLUMNS, KEY)
            await catalog.find("t")
            reads = 0
            read = catalog._kv.read

            async def counted(*args: object, **how: object) -> object:
                nonlocal reads
                reads += 1
                return await read(*args, **how)  # type: ignore[arg-type]

            catalog._kv.read = counted  # type: ignore[method-assign,assignment]
            for _ in range(10):
                assert (await catalog.find("t")).latest == made
                assert (await catalog.find_id(made.table_id, version=1)).latest == made
            assert reads == 0
            await catalog.refresh()
            assert reads > 0, "what is counted is what reads descriptors"

    asyncio.run(main())
