"""Feeds and reads of the past across every kind of schema change: the schema as of the time, and no row missed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from slackwater.errors import UsageError
from tests.unit.client.test_changes import QUICK, collect, rows_of
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase
    from slackwater.clock.timestamp import Timestamp

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def play(story: Callable[[AsyncDatabase], Awaitable[None]], *, size: int = 2) -> None:
    async def main() -> None:
        async with Cluster(size, **QUICK, **FAST) as cluster, session(cluster) as db:
            async with asyncio.timeout(60):
                await story(db)

    asyncio.run(main())


async def many_changes(db: AsyncDatabase) -> list[tuple[Timestamp, list[dict[str, Any]]]]:
    """A table through every kind of change; what it held after each."""
    await db.create_table("t", {"id": "int8", "a": "int4", "b": "text"}, primary_key="id")
    seen: list[tuple[Timestamp, list[dict[str, Any]]]] = []

    async def note(rows: list[dict[str, Any]]) -> None:
        if rows:
            await db.upsert("t", rows)
        at = db.now()
        seen.append((at, (await (await db.snapshot(as_of=at)).scan("t")).to_pylist()))

    await note([{"id": 1, "a": 1, "b": "x"}, {"id": 2, "a": 2, "b": None}])
    await db.alter_table("t", add_column={"c": "int8 not null default 7"})
    await note([{"id": 3, "a": 3, "b": "y", "c": 8}])
    await db.alter_table("t", rename_column={"b": "bb"})
    await note([{"id": 4, "a": 4, "bb": "z"}])
    await db.alter_table("t", set_type={"a": "int8"})
    await note([{"id": 5, "a": 1 << 40, "bb": "w"}])
    await db.alter_table("t", drop_column="bb")
    await note([{"id": 1, "a": 11}])
    await db.create_index("t", "by_a", "a")
    await note([{"id": 6, "a": 6}])
    await db.truncate_table("t")
    await note([])
    await note([{"id": 9, "a": 9, "c": 9}])
    return seen


def test_every_read_of_the_past_has_the_schema_and_the_rows_of_then() -> None:
    async def story(db: AsyncDatabase) -> None:
        seen = await many_changes(db)
        names = [list(rows[0]) if rows else [] for _, rows in seen]
        new, last = ["id", "a", "bb", "c"], ["id", "a", "c"]
        assert names == [["id", "a", "b"], ["id", "a", "b", "c"], new, new, last, last, [], last]
        assert [len(rows) for _, rows in seen] == [2, 3, 4, 5, 5, 6, 0, 1]
        for at, rows in seen:
            snapshot = await db.snapshot(as_of=at)
            assert (await snapshot.scan("t")).to_pylist() == rows
            for row in rows:
                assert await snapshot.get("t", row["id"]) == row
                found = await snapshot.scan("t", where=[("a", "=", row["a"])])
                assert row in found.to_pylist()
            parts = await snapshot.partitions("t", 2)
            read = [batch for part in parts async for batch in db.read_partition(part, at=at)]
            assert (pa.Table.from_batches(read).to_pylist() if read else []) == rows, "as tasks of Spark read it"

    play(story)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_feed_tells_every_change_at_its_time_and_follows_a_table_that_is_emptied(atomic: bool) -> None:
    async def story(db: AsyncDatabase) -> None:
        start = db.now()
        seen = await many_changes(db)
        history = await db.history("t")
        batches = await collect(db, "t", after=max(start, history.versions[0].modified), until=db.now(), atomic=atomic)
        events = [b for b in batches if b.kind == "schema"]
        assert [b.timestamp for b in events] == [v.modified for v in history.visible_changes()]
        assert [[c.name for c in b.schema.columns] for b in events if b.schema is not None][:3] == [
            ["id", "a", "b", "c"],
            ["id", "a", "bb", "c"],
            ["id", "a", "bb", "c"],
        ]
        (emptied,) = [b for b in events if b.emptied]
        assert emptied.timestamp == history.emptied()[0].modified
        for at, rows in seen:  # the table, built from the feed, is the table
            held: dict[int, dict[str, Any]] = {}
            for row in sorted(rows_of(batches, "t"), key=lambda row: row["_commit_ts"]):
                if row["_commit_ts"] <= at and (at < emptied.timestamp or row["_commit_ts"] > emptied.timestamp):
                    held[row["id"]] = row
            assert sorted(held) == [row["id"] for row in rows]
            assert [held[row["id"]]["a"] for row in rows] == [row["a"] for row in rows]

    play(story)


def test_a_feed_that_was_away_gets_what_was_written_before_the_table_was_emptied() -> None:
    async def story(db: AsyncDatabase) -> None:
        await db.create_table("t", {"id": "int8"}, primary_key="id")
        begun = await collect(db, "t", until=db.now())
        await db.upsert("t", [{"id": 1}])
        await db.truncate_table("t")
        await db.upsert("t", [{"id": 2}])
        await db.truncate_table("t")
        await db.upsert("t", [{"id": 3}])
        rest = await collect(db, "t", after=begun[-1].token, until=db.now())
        assert [row["id"] for row in rows_of(rest, "t")] == [1, 2, 3]
        assert [b.emptied for b in rest if b.kind == "schema"] == [True, True]
        stopped = await collect(db, "t", after=begun[-1].token, on_schema_change="stop")
        assert [row["id"] for row in rows_of(stopped, "t")] == [1]

    play(story, size=1)


def test_columns_of_reserved_names_are_refused_when_tables_are_made_or_altered() -> None:
    async def story(db: AsyncDatabase) -> None:
        await db.create_table("t", {"id": "int8", "a": "text"}, primary_key="id")
        for name in ("_op", "_version", "_commit_ts", "_txn", "_before", "_change_type", "_commit_version"):
            with pytest.raises(UsageError, match=f"{name}.* is reserved"):
                await db.create_table("u", {"id": "int8", name: "text"}, primary_key="id")
            with pytest.raises(UsageError, match=f"{name}.* is reserved"):
                await db.alter_table("t", add_column={name: "text"})
            with pytest.raises(UsageError, match=f"{name}.* is reserved"):
                await db.alter_table("t", rename_column={"a": name})
        assert [t.name for t in await db.tables()] == ["t"]
        assert (await db.table("t")).version == 1

    play(story, size=1)
