"""Defaults, NOT NULL and checks hold on every way to write: single rows, transactions, bulk Arrow, pandas, staged parts."""

from __future__ import annotations

import asyncio
import datetime as dt
import uuid
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
import pytest

from slackwater.errors import ConstraintViolation, SlackwaterError, UsageError
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}
COLUMNS = {
    "id": "uuid not null default gen_random_uuid()",
    "n": "int8 not null",
    "made": "timestamptz not null default now()",
    "day": "date default current_timestamp",
    "plain": "timestamp default NOW ( )",
    "state": "text not null default 'new'",
}


async def staged(db: Any, rows: Any) -> None:
    part = await db.staging("t")
    await part.add(rows)
    await db.publish("t", [await part.finish()])


async def in_transaction(db: Any, rows: Any) -> None:
    async with db.transaction() as tx:
        await tx.insert("t", rows)


PATHS: dict[str, Callable[[Any, list[dict[str, Any]]], Awaitable[Any]]] = {
    "one dict": lambda db, rows: db.upsert("t", rows[:1]),
    "dicts": lambda db, rows: db.insert("t", rows),
    "arrow": lambda db, rows: db.upsert("t", pa.Table.from_pylist(rows)),
    "pandas": lambda db, rows: db.upsert("t", pd.DataFrame(rows)),
    "bulk arrow": lambda db, rows: db.upsert("t", pa.Table.from_pylist(rows * 6_000)),
    "bulk dicts": lambda db, rows: db.upsert("t", [dict(row) for row in rows * 6_000]),
    "transaction": in_transaction,
    "staged": lambda db, rows: staged(db, pa.Table.from_pylist(rows)),
}


@pytest.mark.parametrize("path", PATHS)
def test_a_function_makes_the_values_of_columns_that_rows_leave_out(path: str) -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            made = await db.create_table("t", COLUMNS, primary_key="id")
            functions = [column.function for column in made.columns]
            assert functions == ["gen_random_uuid()", "", "now()", "now()", "now()", ""]
            before = dt.datetime.now(dt.UTC)
            await PATHS[path](db, [{"n": 1}, {"n": 2}])
            found = (await db.scan("t")).to_pylist()
            assert len({row["id"] for row in found}) == len(found) >= 1, "every row has an id of its own"
            assert all(uuid.UUID(bytes=bytes(row["id"])).version == 4 for row in found)
            assert all(abs(row["made"] - before) < dt.timedelta(minutes=1) for row in found)
            assert all(row["plain"] == row["made"].replace(tzinfo=None) for row in found)
            assert all(row["day"] == row["made"].date() for row in found)
            assert {row["state"] for row in found} == {"new"}

    asyncio.run(main())


def test_a_value_that_is_given_is_kept_and_null_is_a_value() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            await db.create_table("t", COLUMNS, primary_key="id")
            mine, then = uuid.UUID(int=7), dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
            await db.upsert("t", [{"id": mine, "n": 1, "made": then, "day": None}])
            row = await db.get("t", mine)
            assert (row["made"], row["day"]) == (then, None)
            with pytest.raises(UsageError, match="column made of table t is NOT NULL"):
                await db.upsert("t", [{"id": mine, "n": 1, "made": None}])
            with pytest.raises(UsageError, match="needs a value for id"):
                await db.delete("t", [{}])

    asyncio.run(main())


def test_a_default_is_shown_as_it_can_be_written() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            written = {
                "b": "bool default false",
                "s": "text default 'it''s'",
                "i": "int8 default -5",
                "f": "float8 default 0.5",
                "n": "decimal(10,2) default 1.50",
                "d": "date default '2026-01-02'",
                "t": "timestamptz default '2026-01-02T03:04:05+00:00'",
                "u": "uuid default '00010203-0405-0607-0809-0a0b0c0d0e0f'",
                "j": """json default '{"a": 1}'""",
                "y": "bytes default 'AAEC'",
            }
            await db.create_table("one", {"id": "int8", **written}, primary_key="id")
            one = (await db.table("one")).columns
            assert {c.name: c.shown_default for c in one}["b"] == "false"
            again = {c.name: f"{c.type} default {c.shown_default}" for c in one if c.has_default}
            assert again.keys() == written.keys()
            await db.create_table("two", {"id": "int8", **again}, primary_key="id")
            assert (await db.table("two")).columns == one
            await db.upsert("two", [{"id": 1}])
            assert (await db.get("two", 1))["s"] == "it's"
            made = await db.alter_table("one", add_column={"more": "bool not null default true"})
            assert made.jobs[0].description == "alter table one add column more bool not null default true"

    asyncio.run(main())


def test_a_column_added_with_now_gives_old_rows_the_time_of_the_change() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8"}, primary_key="id")
            await db.upsert("t", [{"id": 1}])
            await db.alter_table("t", add_column={"seen": "timestamptz not null default now()"})
            first = (await db.scan("t")).to_pylist()[0]["seen"]
            await db.upsert("t", [{"id": 2}])
            assert (await db.get("t", 1))["seen"] == first, "no row was rewritten"
            assert (await db.get("t", 2))["seen"] > first
            assert (await db.table("t")).column("seen").shown_default == "now()"
            with pytest.raises(UsageError, match="every row that is there would need a value of its own"):
                await db.alter_table("t", add_column={"u": "uuid default gen_random_uuid()"})
            assert [column.name for column in (await db.table("t")).columns] == ["id", "seen"]

    asyncio.run(main())


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"id": "int8", "a": "int8 default now()"}, r"column a is int and cannot default to now\(\)"),
        ({"id": "int8", "a": "text default gen_random_uuid()"}, "cannot default to gen_random_uuid"),
        (
            {"id": "int8", "a": "int8 default random()"},
            r"there is no default 'random\(\)'; a default is a constant or now",
        ),
        ({"id": "int8", "a": "int8 default id + 1"}, r"cannot read the default 'id \+ 1'"),
        ({"id": "int8", "a": "int8 default 'x'"}, "int"),
    ],
)
def test_defaults_that_cannot_be_are_refused(columns: dict[str, str], says: str) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            with pytest.raises(UsageError, match=says):
                await db.create_table("t", columns, primary_key="id")
            assert await db.tables() == []

    asyncio.run(main())


@pytest.mark.parametrize("path", PATHS)
def test_checks_and_not_null_hold_on_every_path(path: str) -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("t", COLUMNS, primary_key="id")
            await db.alter_table("t", add_check={"positive": "n > 0"})
            await PATHS[path](db, [{"n": 1}, {"n": 2}])
            count = (await db.scan("t")).num_rows
            assert count >= 1
            with pytest.raises(ConstraintViolation, match="positive"):
                await PATHS[path](db, [{"n": -1}, {"n": -2}])
            with pytest.raises(SlackwaterError, match="NOT NULL"):
                await PATHS[path](db, [{"n": None}, {"n": None}])
            assert (await db.scan("t")).num_rows == count, "what was refused wrote nothing"

    asyncio.run(main())
