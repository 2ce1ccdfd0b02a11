"""Scans by secondary indexes: the same rows as without them, now, in a transaction and at a time; and which index is chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from slackwater.errors import UsageError
from tests.unit.client.test_indexes import play, user

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase
    from tests.unit.server.cluster import Cluster

CONDITIONS: list[list[tuple[Any, ...]]] = [
    [("city", "=", "oslo")],
    [("city", "=", "oslo"), ("age", ">", 2), ("age", "<=", 5)],
    [("city", "is null")],
    [("city", "is not null"), ("age", "=", 3)],
    [("age", ">=", 2), ("age", "<", 4), ("note", "!=", "n9")],
    [("email", "=", "u7@x"), ("id", ">=", 5)],
    [("email", "=", "u7@x"), ("id", ">", 7)],
    [("email", ">=", "u3"), ("email", "<", "u5")],
    [("age", "in", [1, 6])],
    [("city", "=", "nowhere")],
    [],
]


def ids(table: Any) -> list[int]:
    found: list[int] = table["id"].to_pylist()
    return found


@pytest.mark.parametrize("where", CONDITIONS, ids=str)
def test_every_index_gives_the_rows_that_a_scan_of_the_table_gives(where: list[tuple[Any, ...]]) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(60)])
        await db.upsert("users", user(9, email=None))
        before = db.now()
        wanted = sorted((await db.scan("users", where=where, index="primary")).to_pylist(), key=lambda row: row["id"])
        await db.upsert("users", user(7, age=1, city="rome", email="changed@x"))
        snap = await db.snapshot(as_of=before)
        for index in (None, "primary", "by_city", "by_age", "by_email"):
            found = await snap.scan("users", where=where, index=index, order="id")
            assert found.to_pylist() == wanted, index
            few = await snap.scan("users", columns=["age", "id"], where=where, index=index, order=["age", "id desc"])
            assert few.column_names == ["age", "id"]
            assert ids(few) == [r["id"] for r in sorted(wanted, key=lambda r: (r["age"], -r["id"]))], index
        async with db.transaction() as tx:
            await tx.upsert("users", user(7))
            for index in (None, "by_city", "by_age", "by_email"):
                assert (await tx.scan("users", where=where, index=index, order="id")).to_pylist() == wanted, index

    play(story)


def test_the_best_index_is_chosen_and_explained() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        async def chosen(**asked: Any) -> tuple[str, bool, bool]:
            found = await db.explain_scan("users", **asked)
            assert found.index_name in str(found)
            return found.index_name, found.covering, found.sorted_after

        assert await chosen() == ("primary", True, False)
        assert await chosen(where=[("id", "=", 1), ("email", "=", "x")]) == ("primary", True, False)
        assert await chosen(where=[("email", "=", "x")]) == ("by_email", False, False)
        assert await chosen(where=[("email", "=", "x")], columns=["id", "email"]) == ("by_email", True, False)
        assert await chosen(where=[("city", "=", "x")], columns=["note", "age"]) == ("by_city", True, False)
        assert await chosen(where=[("city", "=", "x")], order="age desc") == ("by_city", False, False)
        assert await chosen(where=[("age", ">=", 3)]) == ("primary", True, False)  # a third of the rows, one by one: no
        assert await chosen(where=[("age", ">=", 3)], limit=5, order="age") == ("by_age", False, False)
        assert await chosen(where=[("age", ">=", 3)], columns=["age"]) == ("by_age", True, False)
        assert await chosen(order="note") == ("primary", True, True)
        with pytest.raises(UsageError, match="has no index 'nope'"):
            await db.scan("users", index="nope")
        with pytest.raises(UsageError, match="use scan"):
            _ = [batch async for batch in db.scan_batches("users", order="note")]

    play(story)


def test_a_limit_reads_the_first_rows_of_the_order() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(5_000)])
        top = await db.scan("users", where=[("city", "=", "rome")], order=["age desc", "id"], limit=3)
        rome = [user(n) for n in range(5_000) if n % 3 == 1]
        assert top.to_pylist() == sorted(rome, key=lambda r: (-r["age"], r["id"]))[:3]
        joined = await db.scan("users", where=[("age", "=", 4)], index="by_age")
        assert ids(joined) == [n for n in range(5_000) if n % 7 == 4]

    play(story, size=3)


def test_partitions_by_an_index_bring_each_row_once() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(2_000)])
        where, now = [("age", "=", 4)], db.now()
        found: list[int] = []
        for part in await db.partitions("users", 3, at=now, where=where):
            async for batch in db.read_partition(part, at=now, where=where):
                found += batch["id"].to_pylist()
        assert sorted(found) == [n for n in range(2_000) if n % 7 == 4]

    play(story)
