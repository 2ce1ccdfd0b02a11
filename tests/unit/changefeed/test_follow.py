"""Feeds into directories: names and bytes from history alone, wherever the writer was stopped."""

from __future__ import annotations

import asyncio
import io
from typing import TYPE_CHECKING, Any

import msgspec
import pyarrow.parquet as pq
import pytest

from slackwater.catalog import definition
from slackwater.changefeed.files import DataFile, DirectoryWriter, FeedConfig, final, read_path
from slackwater.changefeed.follow import DirectoryFeed
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import UsageError
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import ColumnSpec
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from slackwater.client.database import AsyncDatabase

QUICK = {"closed_timestamp.target_duration": 0.1, "feed.publish_interval": 0.05}


def play(story: Callable[[Cluster, AsyncDatabase], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(1, **QUICK) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.create_table("ledger", {"id": "int8", "amount": "int8"}, primary_key=["id"])
            async with asyncio.timeout(60):
                await story(cluster, db)

    asyncio.run(main())


def config(after: Timestamp, **asked: Any) -> FeedConfig:
    given: dict[str, Any] = {"tables": ("accounts", "ledger"), "form": "json", "interval_s": 0.05, "after": after}
    return FeedConfig(**given | asked)


def content(root: Path) -> dict[str, bytes]:
    return {path: (root / path).read_bytes() for path in DirectoryWriter(root).paths()}


async def history(db: AsyncDatabase, first: int) -> None:
    """Transactions over both tables, some with a deletion."""
    for n in range(first, first + 10):
        async with db.transaction() as tx:
            await tx.upsert("accounts", [{"id": n % 4, "owner": "x", "balance": n}])
            await tx.upsert("ledger", [{"id": n, "amount": n}])
            if n % 5 == 0:
                await tx.delete("accounts", [(n + 1) % 4])


async def stopped_after(feed: DirectoryFeed, db: AsyncDatabase, items: int) -> None:
    """Run a feed and kill it after so many items."""
    stream = db.change_items(feed.request())
    try:
        async for item in stream:
            feed.take(item)
            items -= 1
            if not items:
                return
    finally:
        await stream.aclose()


@pytest.mark.parametrize("form", ["json", "parquet"])
def test_however_often_it_is_stopped_the_directory_is_the_same(tmp_path: Path, form: str) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(30))
        await history(db, 0)
        asked = config(db.now(), form=form, initial_scan=True, befores=True)
        await history(db, 10)
        schema = await db.table("accounts")
        await cluster.nodes[0].catalog.publish(
            schema.table_id, lambda now: definition.with_column(now, ColumnSpec("level", INT))
        )
        await db.history("accounts")
        await history(db, 20)
        until = db.now()
        straight = DirectoryFeed(DirectoryWriter(tmp_path / "straight"), asked, until=until)
        await straight.run(db)
        assert straight.resolved == until
        for turn in range(1, 40):
            feed = DirectoryFeed(DirectoryWriter(tmp_path / "stopped"), asked, until=until)
            if feed.ended:
                break
            await stopped_after(feed, db, turn)
        assert feed.ended
        assert content(tmp_path / "stopped") == content(tmp_path / "straight")
        found = [read_path(path) for path in final(content(tmp_path / "straight"))]
        assert {(f.table, f.version) for f in found if isinstance(f, DataFile)} >= {("accounts", 1), ("accounts", 2)}

    play(story)


def test_rebuilt_from_files_the_table_is_the_table(tmp_path: Path) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        asked = config(db.now(), form="parquet", initial_scan=True, tables=("accounts",))
        await history(db, 0)
        until = db.now()
        feed = DirectoryFeed(DirectoryWriter(tmp_path), asked, until=until)
        await feed.run(db)
        mirror: dict[int, dict[str, Any]] = {}
        for path in final(content(tmp_path)):
            for row in pq.read_table(io.BytesIO((tmp_path / path).read_bytes())).to_pylist():
                if row["_op"] == "delete":
                    mirror.pop(row["id"])
                else:
                    mirror[row["id"]] = {name: row[name] for name in ACCOUNTS}
        there = await (await db.snapshot(as_of=until)).scan("accounts")
        assert [mirror[i] for i in sorted(mirror)] == there.to_pylist()

    play(story)


def test_files_end_where_a_table_was_emptied_and_say_so(tmp_path: Path) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        asked = config(db.now(), form="parquet", initial_scan=True, tables=("accounts",))
        await db.upsert("accounts", accounts(5))
        await db.truncate_table("accounts")
        (emptied,) = (await db.history("accounts")).emptied()
        await db.upsert("accounts", accounts(2, first=50))
        for _ in range(2):  # resumed, it says the same
            feed = DirectoryFeed(DirectoryWriter(tmp_path), asked, until=db.now())
            with pytest.raises(UsageError, match=r"table accounts was emptied at .*: follow into a new directory"):
                await feed.run(db)
            assert feed.resolved == emptied.modified
        found = [pq.read_table(io.BytesIO((tmp_path / path).read_bytes())) for path in final(content(tmp_path))]
        assert {key for table in found for key in table["id"].to_pylist()} == {0, 1, 2, 3, 4}

    play(story)


def test_only_a_scan(tmp_path: Path) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        asked = config(db.now(), initial_scan=True)
        feed = DirectoryFeed(DirectoryWriter(tmp_path), asked, only=True)
        assert feed.resolved == MIN
        await feed.run(db)
        assert feed.ended
        assert feed.resolved == asked.after
        (path,) = final(content(tmp_path))
        rows = [msgspec.json.decode(line) for line in (tmp_path / path).read_bytes().splitlines()]
        assert [row["after"]["id"] for row in rows] == [0, 1, 2]
        again = DirectoryFeed(DirectoryWriter(tmp_path), config(db.now(), initial_scan=True), only=True)
        assert again.ended
        with pytest.raises(UsageError, match="another feed"):
            DirectoryFeed(DirectoryWriter(tmp_path), config(db.now(), tables=("accounts",)))

    play(story)
