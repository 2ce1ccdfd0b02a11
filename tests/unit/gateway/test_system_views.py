"""Views of the system's records: read like any table, now, in the past and in a transaction; no feed, no writes."""

from __future__ import annotations

import asyncio
import json

import pytest

from slackwater.codec.layout import table_span
from slackwater.errors import UsageError
from slackwater.protect.zone_changes import change_zone
from slackwater.server.cluster_settings import reset_setting, write_setting
from tests.unit.client.world import ACCOUNTS, session
from tests.unit.server.cluster import Cluster

NAME = "range.max_bytes"


def test_every_version_of_every_table_is_a_row_of_system_descriptor() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster, session(cluster, 1) as db:
            before = db.now()
            made = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.alter_table("accounts", add_column={"note": "text"})
            rows = (await db.scan("system.descriptor")).to_pylist()
            assert [(row["id"], row["version"], row["name"]) for row in rows] == [
                (made.table_id, 1, "accounts"),
                (made.table_id, 2, "accounts"),
            ]
            history = await db.history("accounts")
            assert [row["modified"] for row in rows] == [version.modified for version in history.versions]
            assert len(json.loads(rows[1]["descriptor"])["schema"]["columns"]) == 4
            found = await db.scan("system.descriptor", where=[("version", "=", 2)], columns=["name"], limit=1)
            assert found.to_pylist() == [{"name": "accounts"}]
            assert (await db.get("system.descriptor", (made.table_id, 1)))["version"] == 1
            assert await db.get("system.descriptor", (made.table_id, 9)) is None
            old = await db.snapshot(as_of=before)
            assert (await old.scan("system.descriptor")).num_rows == 0, "as of before there was none"
            parts = await (await db.snapshot(as_of=db.now())).partitions("system.descriptor")
            assert len(parts) == 1
            await db.drop_table("accounts")
            last = (await db.scan("system.descriptor")).to_pylist()[-1]
            assert last["dropped"]

    asyncio.run(main())


def test_zones_and_settings_are_rows_with_the_time_they_were_written() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            node = cluster.nodes[0]
            made = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            assert (await db.scan("system.settings")).num_rows == 0
            await write_setting(node.kv, NAME, 1 << 20)
            between = node.clock.now()
            span = table_span(made.table_id)
            await change_zone(node.kv, span.start, span.end, gc_ttl_s=600.0)
            (zone,) = (await db.scan("system.zones")).to_pylist()
            assert (zone["start"], zone["gc_ttl_s"], zone["replicas"], zone["policy"]) == (
                span.start,
                600.0,
                None,
                None,
            )
            assert zone["written"] > between
            (setting,) = (await db.scan("system.settings")).to_pylist()
            assert (setting["name"], setting["value"]) == (NAME, float(1 << 20))
            assert setting["written"] < between
            async with db.transaction() as tx:
                assert (await tx.get("system.settings", NAME))["value"] == float(1 << 20)
                assert (await tx.scan("system.zones")).num_rows == 1
                both = await asyncio.gather(tx.get("accounts", 1), tx.get("system.settings", NAME))
                assert both[0] is None
                assert both[1]["name"] == NAME
            await reset_setting(node.kv, NAME)
            assert await db.get("system.settings", NAME) is None
            then = await db.snapshot(as_of=between)
            assert (await then.get("system.settings", NAME))["value"] == float(1 << 20)

    asyncio.run(main())


def test_views_take_no_writes_feeds_or_protections() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            with pytest.raises(UsageError, match="users may only read"):
                await db.upsert("system.settings", [{"name": NAME, "value": 1.0, "written": 0}])
            with pytest.raises(UsageError, match="is a view of the system's records and cannot be protected"):
                await db.protect("system.zones", at=db.now())
            with pytest.raises(UsageError, match="is a view of the system's records and cannot be followed"):
                async for _ in db.changes("system.descriptor"):
                    pass
            (part,) = await (await db.snapshot(as_of=db.now())).partitions("system.descriptor")
            with pytest.raises(UsageError, match="is a view of the system's records and cannot be read as changes"):
                async for _ in db.read_changes(part, after=part.known_upto - 1, upto=part.known_upto):
                    pass

    asyncio.run(main())
