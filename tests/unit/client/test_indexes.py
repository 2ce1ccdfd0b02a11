"""Tables with secondary indexes, as an application sees them, against real nodes in this process."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.client.definitions import Index
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import table_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConditionFailed, SlackwaterError, UniqueViolation, UsageError
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction

USERS = {"id": "int8", "email": "text", "city": "text", "age": "int8", "note": "text"}
INDEXES = [
    Index("by_email", "email", unique=True),
    Index("by_city", ["city", "age desc"], storing=["note"]),
    Index("by_age", ["age"]),
]


def play(story: Callable[[Cluster, AsyncDatabase], Awaitable[None]], *, size: int = 1, **settings: float) -> None:
    """Run a story against a fresh cluster with a table `users` that has indexes."""

    async def main() -> None:
        async with Cluster(size, **settings) as cluster, session(cluster) as db:
            await db.create_table("users", USERS, primary_key="id", indexes=INDEXES)
            await story(cluster, db)
            await check_indexes(cluster, db, "users")

    asyncio.run(main())


def user(number: int, **more: Any) -> dict[str, Any]:
    cities = ("oslo", "rome", None)
    row = {"id": number, "email": f"u{number}@x", "city": cities[number % 3], "age": number % 7, "note": f"n{number}"}
    return row | more


async def check_indexes(cluster: Cluster, db: AsyncDatabase, table: str) -> int:
    """Every index of a table has exactly the entries of its rows; how many those are."""
    latest = (await db.history(table)).latest
    kv = cluster.nodes[0].kv
    rows, codec = await stored(kv, latest.table_id, latest.schema.index_id), RowCodec(latest.schema)
    count = 0
    for index in latest.indexes:
        entries = IndexCodec(latest.schema, index)
        wanted = dict(entries.entry(codec.decode(value)) for value in rows.values())
        assert await stored(kv, latest.table_id, index.id) == wanted, index.name
        count += len(wanted)
    return count


async def stored(kv: Any, table_id: int, index_id: int) -> dict[bytes, bytes]:
    span = table_span(table_id, index_id)
    found = await kv.scan(span.start, span.end)
    return dict(zip(found.keys, found.values, strict=True))


def test_every_way_to_write_keeps_indexes_in_step() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        assert (await db.insert("users", [user(n) for n in range(50)])).rows == 50
        assert await check_indexes(cluster, db, "users") == 150
        await db.upsert("users", user(3, city="rome", email=None))
        await db.upsert("users", [user(n, age=99) for n in range(40, 60)])
        await db.delete("users", [1, 2, 77])
        async with db.transaction() as tx:
            await tx.upsert("users", [user(100)])
            await tx.upsert("users", [user(100, email="other@x"), user(101)])
            await tx.delete("users", [4])
            await tx.insert("users", [user(4, city="bonn")])
            assert await tx.get("users", "u100@x", by="email") is None
            assert (await tx.get("users", "other@x", by="by_email") or {})["id"] == 100
        assert await check_indexes(cluster, db, "users") == 60 * 3
        await db.upsert("users", [user(n) for n in range(1_000, 12_500)])  # a bulk load
        await db.upsert("users", [user(n, city="kyiv") for n in range(1_000, 12_500)])
        assert await check_indexes(cluster, db, "users") == 11_560 * 3

    play(story)


def test_get_by_a_unique_index_now_in_a_transaction_and_at_a_time() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(10)])
        assert await db.get("users", "u7@x", by="email") == user(7)
        assert await db.get("users", {"email": "u7@x"}, by="by_email") == user(7)
        assert await db.get("users", "nobody@x", by="email") is None
        assert await db.get("users", None, by="email") is None
        before = db.now()
        await db.upsert("users", user(7, email="new@x"))
        assert await db.get("users", "u7@x", by="email") is None
        assert await db.get("users", "new@x", by="email") == user(7, email="new@x")
        snap = await db.snapshot(as_of=before)
        assert await snap.get("users", "u7@x", by="email") == user(7)
        assert await snap.get("users", "new@x", by="email") is None
        async with db.transaction() as tx:
            await tx.upsert("users", user(7, email="mine@x"))
            assert await tx.get("users", "mine@x", by="email") == user(7, email="mine@x")
            assert await tx.get("users", "new@x", by="email") is None
            assert await db.get("users", "new@x", by="email") == user(7, email="new@x")
        assert await db.get("users", "mine@x", by="email") == user(7, email="mine@x")

    play(story)


@pytest.mark.parametrize(
    ("by", "key", "why"),
    [
        ("by_city", ("oslo", 1), "is not unique"),
        ("age", 1, "is not unique"),
        ("nope", 1, "no unique index 'nope'"),
        ("email", ("a", "b"), "give 1 values"),
        ("email", {"nope": 1}, "no column 'nope'"),
        ("email", {"age": 1}, "needs a value for email"),
        ("email", 5, "does not take int"),
    ],
)
def test_a_get_by_what_is_no_unique_index_says_what_to_do(by: str, key: object, why: str) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        with pytest.raises(UsageError, match=why):
            await db.get("users", key, by=by)

    play(story)


def test_a_unique_value_is_refused_on_every_way_in_and_nothing_is_written() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(10)])
        twin = user(500, email="u3@x")
        beside = [user(n) for n in range(600, 700)]
        with pytest.raises(UniqueViolation, match=r"by_email of table users: another row .*email='u3@x'") as one:
            await db.upsert("users", twin)
        assert one.value.sqlstate == "23505"
        with pytest.raises(UniqueViolation):
            await db.insert("users", [*beside, twin])
        with pytest.raises(UniqueViolation, match="two rows of this write"):
            await db.upsert("users", [user(800, email="q"), user(801, email="q")])
        with pytest.raises(ConditionFailed, match="has a row with this key"):
            await db.insert("users", [user(3, email="fresh@x")])
        async with db.transaction() as tx:
            await tx.insert("users", [user(900)])
            with pytest.raises(UniqueViolation):
                await tx.insert("users", [twin])
            await tx.insert("users", [user(901)])  # a statement that failed leaves the transaction usable

        async def hold_back() -> None:
            async with db.transaction() as tx:
                await tx.upsert("users", [twin])  # told at the commit
                await tx.upsert("users", [user(903)])

        with pytest.raises(UniqueViolation):
            await hold_back()
        found = await db.scan("users", columns=["id"])
        assert found["id"].to_pylist() == [*range(10), 900, 901]

    play(story)


def test_a_transaction_whose_held_write_was_refused_cannot_commit_the_rest() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(1)])

        async def go_on() -> None:
            async with db.transaction() as tx:
                await tx.upsert("users", [user(2, email="u1@x")])
                with pytest.raises(UniqueViolation):
                    await tx.get("users", 1)
                await tx.upsert("users", [user(3)])

        with pytest.raises(SlackwaterError, match="may not have arrived"):
            await go_on()
        assert await db.get("users", 3) is None

    play(story)


def test_of_two_clients_that_race_for_one_value_exactly_one_wins() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        async with session(cluster, 1) as other, session(cluster, 2) as third:
            clients = [db, other, third]
            for client in clients:
                await client.history("users")
            for value in range(25):

                async def claim(number: int, value: int = value) -> int | None:
                    client = clients[number % 3]
                    try:
                        row = user(value * 10 + number, email=f"claimed{value}")
                        if number % 2:
                            await client.insert("users", [row])
                        else:
                            await client.upsert("users", row)
                    except UniqueViolation:
                        return None
                    return int(row["id"])

                won = [w for w in await asyncio.gather(*(claim(n) for n in range(6))) if w is not None]
                assert len(won) == 1
                found = await db.get("users", f"claimed{value}", by="email")
                assert found is not None
                assert found["id"] == won[0]

    play(story, size=3)


def test_concurrent_transactions_and_bulk_loads_leave_indexes_in_step() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.insert("users", [user(n) for n in range(200)])

        async def move(number: int) -> None:
            async def work(tx: AsyncTransaction) -> None:
                one = await tx.get("users", number)
                two = await tx.get("users", number + 1)
                assert one is not None
                assert two is not None
                await tx.upsert("users", [one | {"age": two["age"] + 1}, two | {"age": one["age"]}])

            await db.run(work)

        await asyncio.gather(
            *(move(n % 7) for n in range(30)),
            db.upsert("users", [user(n, city="lima") for n in range(150, 12_000)]),
            db.delete("users", list(range(100, 140))),
        )

    play(story, size=3)


@pytest.mark.parametrize(
    ("index", "why"),
    [
        (Index("i", ["nope"]), "no column 'nope'"),
        (Index("i", []), "at least one column|columns of a primary key"),
        (Index("i", ["age", "age"]), "names a column twice"),
        (Index("i", ["age"], storing=["age"]), "names a column twice"),
        (Index("i", ["age"], storing=["id"]), "part of the primary key"),
        (Index("primary", ["age"]), "is not 'primary'"),
        (Index("no name", ["age"]), "begins with a letter"),
        ("by_age", "an index is slackwater.client.Index"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused_and_no_table_is_made(index: Any, why: str) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        with pytest.raises(UsageError, match=why):
            await db.create_table("t", USERS, primary_key="id", indexes=[index])
        with pytest.raises(UsageError, match="has an index 'a' already"):
            await db.create_table("t", USERS, primary_key="id", indexes=[Index("a", "age"), Index("a", "city")])
        assert [t.name for t in await db.tables()] == ["users"]

    play(story)
