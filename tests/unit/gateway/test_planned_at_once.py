"""Upserts of a table with indexes that are begun in the step in which they arrive, and which of them are left to the long way."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog.bulk_fill import BulkBackfill
from slackwater.codec.index_entries import IndexCodec
from slackwater.errors import UniqueViolation
from slackwater.gateway import rows as gateway_rows
from slackwater.gateway.planned_at_once import ROWS_MAX, begin_planned
from slackwater.model.indexes import ElementState
from slackwater.storage.intents import intents_in
from tests.unit.catalog.test_schema_changes import FAST, check_index
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.client.database import AsyncDatabase

SHORT, LONG = "short", "long"


@pytest.fixture
def ways(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Which way every planned upsert went, in order."""
    taken: list[str] = []

    def counted(*args: Any, **named: Any) -> Any:
        begun = begin_planned(*args, **named)
        taken.append(LONG if begun is None else SHORT)
        return begun

    monkeypatch.setattr(gateway_rows, "begin_planned", counted)
    return taken


async def make(db: AsyncDatabase, *, unique: bool = True) -> None:
    await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
    await db.create_index("accounts", "by_owner", "owner", unique=unique)
    await db.create_index("accounts", "by_balance", ["balance desc"], storing=["owner"])
    await db.upsert("accounts", accounts(40))


def played(story: Callable[[Cluster, AsyncDatabase], Any], **settings: Any) -> Any:
    async def main() -> Any:
        async with Cluster(1, **(FAST | settings)) as cluster, session(cluster) as db:
            return await story(cluster, db)

    return asyncio.run(main())


def test_rows_and_entries_are_those_of_the_long_way(ways: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same upserts one after the other: rows that are there and new ones, entries that change and others that do not."""

    async def story(cluster: Cluster, db: AsyncDatabase) -> list[dict[str, Any]]:
        await make(db)
        draw = random.Random(11)
        ways.clear()
        for number in range(60):
            some = draw.sample(range(50), draw.choice([1, 1, 3]))
            changed = [{"id": n, "owner": f"o{n}-{number % 3}", "balance": draw.randrange(5)} for n in sorted(some)]
            await db.upsert("accounts", changed)
        for name in ("by_owner", "by_balance"):
            await check_index(cluster, db, "accounts", name)
        found: list[dict[str, Any]] = (await db.scan("accounts")).to_pylist()
        return found

    short = played(story)
    assert ways == [SHORT] * 60
    monkeypatch.setattr(gateway_rows, "begin_planned", lambda *args, **named: ways.append("none"))
    assert played(story) == short
    assert ways == ["none"] * 60


def test_writers_of_the_same_rows_leave_one_entry_of_each(ways: list[str]) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await make(db, unique=False)
        ways.clear()

        async def writer(seed: int) -> None:
            draw = random.Random(seed)
            for number in range(20):
                row = {"id": draw.randrange(4), "owner": f"w{seed}-{number}", "balance": draw.randrange(100)}
                if number % 5:
                    await db.upsert("accounts", [row])
                else:
                    await db.delete("accounts", [row["id"]])

        await asyncio.gather(*map(writer, range(8)))
        rows = len((await db.scan("accounts")).to_pylist())
        for name in ("by_owner", "by_balance"):
            assert await check_index(cluster, db, "accounts", name) == rows

    played(story)
    assert SHORT in ways
    assert LONG in ways, "some meet a row that another is writing"


def test_a_value_that_another_row_has_is_refused_and_nothing_is_written(ways: list[str]) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await make(db)
        before = (await db.scan("accounts")).to_pylist()
        ways.clear()
        with pytest.raises(UniqueViolation, match="another row has these values"):
            await db.upsert("accounts", [{"id": 1, "owner": "o2", "balance": 5}])
        with pytest.raises(UniqueViolation, match="two rows of this write"):
            await db.upsert("accounts", [{"id": n, "owner": "new", "balance": 5} for n in (1, 2)])
        assert (await db.scan("accounts")).to_pylist() == before
        assert await check_index(cluster, db, "accounts", "by_owner") == 40
        # A value that a row of the same write gives up is free.
        swapped = [{"id": 1, "owner": "o2", "balance": 1}, {"id": 2, "owner": "o1", "balance": 2}]
        await db.upsert("accounts", swapped)
        assert await check_index(cluster, db, "accounts", "by_owner") == 40

    played(story)
    assert ways == [LONG, LONG, SHORT], "what is wrong is said by the long way"


def test_a_transaction_in_the_way_is_waited_for(ways: list[str]) -> None:
    """Its intent is on the entry alone: the rows differ."""

    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await make(db)
        async with db.transaction() as tx:
            await tx.upsert("accounts", [{"id": 100, "owner": "mine", "balance": 1}])
            await tx.scan("accounts")  # what is held back is written: intents
            ways.clear()
            rival = asyncio.ensure_future(db.upsert("accounts", [{"id": 101, "owner": "mine", "balance": 2}]))
            while not ways:
                await asyncio.sleep(0.01)
        with pytest.raises(UniqueViolation, match="another row has these values"):
            await rival
        assert await check_index(cluster, db, "accounts", "by_owner") == 41
        engine = cluster.nodes[0].engine
        for _ in range(500):
            if not list(intents_in(engine, b"\x12", b"\xff")):
                return
            await asyncio.sleep(0.01)
        raise AssertionError("intents are resolved")

    played(story)
    assert ways == [LONG]


def test_many_rows_go_the_long_way(ways: list[str]) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await make(db)
        ways.clear()
        await db.upsert("accounts", accounts(ROWS_MAX))
        await db.upsert("accounts", accounts(ROWS_MAX + 1))
        assert await check_index(cluster, db, "accounts", "by_owner") == 40

    played(story)
    assert ways == [SHORT, LONG]


def test_entries_of_another_range_are_read_from_there_and_written_the_long_way(ways: list[str]) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await make(db)
        history = await db.history("accounts")
        (by_owner,) = [index for index in history.latest.indexes if index.name == "by_owner"]
        codec = IndexCodec(history.latest.schema, by_owner, history.schemas())
        await cluster.nodes[0].admin.split(codec.codec.prefix)
        await cluster.nodes[0].admin.split(codec.key(["o2"]))
        for place in (codec.codec.prefix, codec.key(["o1"]), codec.key(["o3"])):
            await db.upsert("accounts", [{"id": 7, "owner": "o7", "balance": place[-1]}])  # the ranges are known now

        async def way(row: dict[str, Any]) -> str:
            ways.clear()
            await db.upsert("accounts", [row])
            await check_index(cluster, db, "accounts", "by_owner")
            await check_index(cluster, db, "accounts", "by_balance")
            return ways[-1]

        assert await way({"id": 7, "owner": "o7", "balance": 8}) == LONG
        assert await way({"id": 7, "owner": "o7", "balance": 8}) == SHORT, "nothing changes but the row"
        assert await way({"id": 1, "owner": "o1", "balance": 100}) == SHORT
        assert await way({"id": 1, "owner": "new", "balance": 100}) == LONG
        with pytest.raises(UniqueViolation, match="another row has these values"):
            await way({"id": 1, "owner": "o7", "balance": 100})
        assert ways == [LONG]

    played(story)


def test_while_an_index_is_filled_elsewhere_an_upsert_that_keeps_its_entry_writes_to_one_range(
    ways: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = BulkBackfill.read

    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        may_read = asyncio.Event()

        async def held(self: BulkBackfill, *args: Any, **named: Any) -> Any:
            await may_read.wait()
            return await read(self, *args, **named)

        monkeypatch.setattr(BulkBackfill, "read", held)
        await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
        await db.upsert("accounts", accounts(40))
        building = asyncio.ensure_future(db.create_index("accounts", "by_owner", "owner", unique=True))
        while True:
            history = await db.history("accounts")
            if any(index.state is ElementState.BACKFILLING for index in history.latest.indexes):
                break
            await asyncio.sleep(0.02)
        codec = IndexCodec(history.latest.schema, history.latest.indexes[0], history.schemas())
        await cluster.nodes[0].admin.split(codec.codec.prefix)
        for _ in range(2):
            await db.upsert("accounts", [{"id": 9, "owner": "nine", "balance": 0}])  # the ranges are known now
        ways.clear()
        await db.upsert("accounts", [{"id": 7, "owner": "o7", "balance": 700}])
        assert ways == [SHORT], "its entry stays what it is, and the backfill has yet to put it"
        await db.upsert("accounts", [{"id": 8, "owner": "new", "balance": 800}])
        assert ways == [SHORT, LONG], "what is written lies in two ranges"
        may_read.set()
        await building
        assert await check_index(cluster, db, "accounts", "by_owner") == 40

    played(story)
