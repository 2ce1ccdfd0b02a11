"""Rows that were staged before their table changed are published as rows of its present version, or refused whole."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from slackwater.errors import ConstraintViolation, UsageError
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


async def staged(db: Any, rows: list[dict[str, Any]]) -> Any:
    part = await db.staging("accounts")
    await part.add(rows)
    return await part.finish()


def test_staged_rows_follow_the_changes_of_their_table() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            old = await staged(other, accounts(3))
            await db.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
            middle = await staged(other, [{"id": 7, "owner": "m", "balance": 1, "city": "Oslo"}])
            await db.alter_table("accounts", rename_column={"owner": "holder"})
            await db.create_index("accounts", "by_holder", "holder", unique=True)
            new = await staged(other, [{"id": 8, "holder": "n", "balance": 2, "city": "Bonn"}])
            await other.publish("accounts", [old, middle, new])
            found = {row["id"]: row for row in (await db.scan("accounts")).to_pylist()}
            assert found[1] == {"id": 1, "holder": "o1", "balance": 100, "city": "Rome"}
            assert found[7] == {"id": 7, "holder": "m", "balance": 1, "city": "Oslo"}
            assert found[8] == {"id": 8, "holder": "n", "balance": 2, "city": "Bonn"}
            assert (await db.get("accounts", "m", by="by_holder"))["id"] == 7, "and their entries are there"

    asyncio.run(main())


def test_staged_rows_that_the_present_table_does_not_take_are_refused_whole() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            poor = await staged(db, [*accounts(2), {"id": 5, "owner": "x", "balance": -1}])
            nameless = await staged(db, [{"id": 6, "owner": None, "balance": 1}])
            before = await staged(db, accounts(2))
            await db.alter_table("accounts", add_check={"solvent": "balance >= 0"})
            with pytest.raises(ConstraintViolation, match="solvent"):
                await db.publish("accounts", [poor])
            await db.alter_table("accounts", set_not_null="owner")
            with pytest.raises(UsageError, match="has changed since rows were staged, and they are no rows of version"):
                await db.publish("accounts", [nameless])
            await db.truncate_table("accounts")
            with pytest.raises(UsageError, match="was emptied since rows were staged"):
                await db.publish("accounts", [before])
            assert (await db.scan("accounts")).num_rows == 0

    asyncio.run(main())
