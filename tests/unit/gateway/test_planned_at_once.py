"""Upserts of a table with indexes that are begun in the step in which they arrive, and which of them are left to the long way."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from slackwater.catalog.planning import WritePlanner
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import table_span
from slackwater.errors import UniqueViolation
from slackwater.gateway import rows as gateway_rows
from slackwater.gateway.planned_at_once import ROWS_MAX, begin_planned
from slackwater.model.indexes import ElementState, Index
from slackwater.model.kinds import INT
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor
from slackwater.storage.intents import intents_in
from tests.unit.catalog.test_schema_changes import FAST, check_index
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.client.database import AsyncDatabase

SHORT, LONG = "short", "long"
SCHEMA = TableSchema(7, "t", 1, (Column(1, "id", INT, nullable=False), Column(2, "a", INT)), (KeyColumn(1),))


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


def test_a_writer_of_an_index_that_is_filled_elsewhere_does_not_begin_in_vain() -> None:
    table = TableDescriptor(
        SCHEMA, Timestamp(1), 4, indexes=(Index(2, "i", (KeyColumn(2),), state=ElementState.PUBLIC),)
    )
    assert WritePlanner(table).writes_from == b""
    for state in (ElementState.WRITE_ONLY, ElementState.BACKFILLING):
        later = msgspec.structs.replace(table.indexes[0], id=3, name="j", state=state)
        planner = WritePlanner(msgspec.structs.replace(table, indexes=(*table.indexes, later)))
        keys, _ = planner.indexes[1].entries([{"id": 1, "a": 1}])
        assert table_span(SCHEMA.table_id).start < planner.writes_from < keys[0]
        assert not planner.indexes[0].entries([{"id": 1, "a": 1}])[0][0].startswith(planner.writes_from)
