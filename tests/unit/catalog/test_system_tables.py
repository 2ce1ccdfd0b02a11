"""Tables of the system: known at once on every node, read like any table, changed by users in no way."""

from __future__ import annotations

import asyncio
import datetime as dt

import pytest

from slackwater.catalog import definition
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.model.kinds import INT
from slackwater.model.system_tables import FIRST_USER_TABLE_ID, JOBS, SYSTEM_TABLES, is_system, system_descriptors
from slackwater.protocol.client.calls import ColumnSpec
from slackwater.protocol.range import requests
from slackwater.server.raw_writes import check_raw
from slackwater.txn.system_rows import SystemRows
from tests.unit.client.world import ACCOUNTS, session
from tests.unit.server.cluster import Cluster

ROW = {
    "id": 7,
    "type": "backup",
    "description": "",
    "creator": "ann",
    "status": "pending",
    "payload": "{}",
    "checkpoint": "{}",
    "fraction": 0.0,
    "progress": "",
    "claim_epoch": 0,
    "claim_number": 0,
    "created": dt.datetime(2026, 11, 18, tzinfo=dt.UTC),
    "attempts": 0,
    "owns": "[]",
}


def test_ids_are_below_those_of_users_and_versions_have_no_gaps() -> None:
    by_id: dict[int, list[int]] = {}
    for schema in SYSTEM_TABLES:
        assert 0 < schema.table_id < FIRST_USER_TABLE_ID
        by_id.setdefault(schema.table_id, []).append(schema.version)
    assert all(versions == list(range(1, len(versions) + 1)) for versions in by_id.values())
    assert len({schema.name for schema in SYSTEM_TABLES}) == len(by_id)
    assert all(is_system(d.table_id) and d.next_column_id > len(d.columns) - 1 for d in system_descriptors())


def test_every_node_reads_them_like_any_table_from_the_beginning() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster, session(cluster, 1) as db:
            assert (await db.scan("system.jobs")).num_rows == 0
            jobs = SystemRows(JOBS)

            async def work(txn):
                await jobs.put(txn, ROW)
                await jobs.put(txn, ROW | {"id": 8})
                assert (await jobs.get(txn, 8) or {})["creator"] == "ann"
                await jobs.delete(txn, 8)

            await cluster.nodes[0].kv.run(work)
            assert [row["id"] for row in await jobs.scan(cluster.nodes[1].kv)] == [7]
            assert (await db.get("system.jobs", 7))["type"] == "backup"
            found = await db.scan("system.jobs", where=[("id", "=", 7)], columns=["id", "creator"])
            assert found.to_pylist() == [{"id": 7, "creator": "ann"}]
            snapshot = await db.snapshot(as_of=db.now())
            assert (await snapshot.get("system.jobs", 7))["id"] == 7
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            assert [t.name for t in await db.tables()] == ["accounts"], "users see their own"

    asyncio.run(main())


def test_users_neither_make_nor_drop_nor_alter_nor_write_them() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            node = cluster.nodes[0]
            part = await db.staging("system.jobs")
            await part.add([ROW])
            ref = await part.finish()
            key, value = RowCodec(JOBS).encode(ROW)
            raw = requests.Batch(requests.Header(0), [requests.Put(key, value)])

            async def in_txn() -> None:
                async with db.transaction() as tx:
                    await tx.upsert("system.jobs", [ROW])

            refused = [
                (db.create_table("system.mine", ACCOUNTS, primary_key="id"), "cannot create system.mine"),
                (db.create_table("System.jobs", ACCOUNTS, primary_key="id"), "cannot create System.jobs"),
                (db.drop_table("system.jobs"), "cannot drop system.jobs"),
                (
                    node.catalog.publish(1, lambda now: definition.with_column(now, ColumnSpec("a", INT))),
                    "cannot alter",
                ),
                (db.upsert("system.jobs", [ROW]), "cannot write to system.jobs"),
                (db.insert("system.jobs", [ROW]), "cannot write to system.jobs"),
                (db.delete("system.jobs", [7]), "cannot write to system.jobs"),
                (in_txn(), "cannot write to system.jobs"),
                (db.publish("system.jobs", [ref]), "cannot write to system.jobs"),
                (db.publish("system.jobs", []), "cannot write to system.jobs"),
                (check_raw(node.gateway, raw), "cannot write to system.jobs"),
            ]
            for work, said in refused:
                with pytest.raises(UsageError, match=said):
                    await work
            jobs = (await db.scan("system.jobs")).to_pylist()
            assert [job["description"] for job in jobs if job["id"] == ROW["id"]] == [], (
                "only the staged write's own job"
            )

    asyncio.run(main())
