"""Schema changes that cannot be made: one clear error each, and the table as it was, whichever way they are asked for."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.client.definitions import Index
from slackwater.errors import SlackwaterError, UsageError
from slackwater.model.jobs import Status
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}
ALTER: dict[str, tuple[dict[str, Any], str]] = {
    "a column of this name": ({"add_column": {"owner": "text"}}, "has a column 'owner' already"),
    "two columns of one name": (
        {"add_column": {"x": "text"}, "rename_column": {"balance": "x"}},
        "'x' already|column x",
    ),
    "an unknown type": ({"add_column": {"x": "varchar2"}}, "varchar2"),
    "a type that is no text": ({"add_column": {"x": 5}}, "a type is a text such as"),
    "not null without a default": ({"add_column": {"x": "text not null"}}, "rows that are there need a default"),
    "a default of another type": ({"add_column": {"x": "int8 default 'five'"}}, "int"),
    "a default that is too long": (
        {"add_column": {"x": f"text default '{'x' * 3000}'"}},
        "default of column x is too long",
    ),
    "a default that equals nothing": ({"add_column": {"x": "float8 default 'NaN'"}}, "x cannot default to NaN"),
    "a name that cannot be printed": ({"rename_column": {"owner": "a\nb"}}, "printable characters"),
    "no such column to drop": ({"drop_column": "nope"}, "has no column 'nope'; its columns are id, owner, balance"),
    "a key column to drop": ({"drop_column": "id"}, "part of the primary key"),
    "a column that an index uses": ({"drop_column": "owner"}, "is used by index by_owner"),
    "a column that a check uses": ({"drop_column": "balance"}, "is used by check solvent"),
    "renamed to a name that is there": ({"rename_column": {"owner": "balance"}}, "has a column 'balance' already"),
    "renamed from nothing": ({"rename_column": {"nope": "x"}}, "has no column 'nope'"),
    "narrowed": ({"set_type": {"balance": "int4"}}, "types can only be widened"),
    "the type it has": ({"set_type": {"balance": "int8"}}, "is int already"),
    "a check of this name": ({"add_check": {"solvent": "id > 0"}}, "has a check 'solvent' already"),
    "a check over nothing": ({"add_check": {"c": "nope > 0"}}, "has no column 'nope'"),
    "a check that is no condition": ({"add_check": {"c": "balance >"}}, "c|condition|balance"),
    "no such check": ({"drop_check": "nope"}, "has no check 'nope'; its checks: solvent"),
    "null is forbidden already": ({"set_not_null": "balance"}, "is NOT NULL already"),
    "null is allowed already": ({"drop_not_null": "owner"}, "may be NULL already"),
    "the name of another table": ({"rename_to": "other"}, "there is a table 'other' already"),
    "its own name": ({"rename_to": "accounts"}, "is called that already"),
    "a name of the system": ({"rename_to": "system.accounts"}, "belong to tables of the system"),
    "a name that is none": ({"rename_to": "a b"}, "a table's name has"),
    "nothing": ({}, "say what to change"),
}
INDEXES: dict[str, tuple[tuple[str, Any], str]] = {
    "an index of this name": (("by_owner", "balance"), "has an index 'by_owner' already"),
    "a column that is not there": (("i", "nope"), "has no column 'nope'"),
    "a column twice": (("i", ["owner", "owner"]), "names a column twice"),
    "no column": (("i", []), "at least one column|columns"),
    "a name that is none": (("a b", "owner"), "an index's name has"),
}


async def made(db: Any) -> None:
    await db.create_table("accounts", ACCOUNTS, primary_key="id", indexes=[Index("by_owner", "owner")])
    await db.create_table("other", ACCOUNTS, primary_key="id")
    await db.alter_table("accounts", add_check={"solvent": "balance >= 0"})
    await db.upsert("accounts", accounts(3))


def refused(ask: Callable[[Any], Awaitable[Any]], says: str) -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await made(db)
            before, rows, jobs = await db.history("accounts"), await db.scan("accounts"), await db.jobs.list()
            with pytest.raises(UsageError, match=says):
                await ask(db)
            assert await db.history("accounts") == before, "nothing is half-changed"
            assert await db.scan("accounts") == rows
            assert await db.jobs.list() == jobs, "no job was made"
            await db.alter_table("accounts", add_column={"fine": "text"})

    asyncio.run(main())


@pytest.mark.parametrize("what", ALTER)
def test_an_alteration_that_cannot_be_made_is_refused_in_one_sentence(what: str) -> None:
    asked, says = ALTER[what]
    refused(lambda db: db.alter_table("accounts", **asked), says)


@pytest.mark.parametrize("what", ["a column of this name", "a column that an index uses", "narrowed", "nothing"])
def test_a_transaction_and_a_dry_run_refuse_the_same(what: str) -> None:
    asked, says = ALTER[what]

    async def in_transaction(db: Any) -> None:
        async with db.transaction() as tx:
            await tx.alter_table("accounts", **asked)

    refused(in_transaction, says)
    refused(lambda db: db.alter_table("accounts", **asked, dry_run=True), says)


@pytest.mark.parametrize("what", INDEXES)
def test_an_index_that_cannot_be_is_refused_in_one_sentence(what: str) -> None:
    (name, columns), says = INDEXES[what]
    refused(lambda db: db.create_index("accounts", name, columns), says)


@pytest.mark.parametrize(
    ("name", "columns", "key", "says"),
    [
        ("accounts", {"id": "int8"}, "id", "there is a table 'accounts' already"),
        ("t", {"id": "int9"}, "id", "int9"),
        ("t", {"id": "int8"}, "nope", "none of its columns"),
        ("t", {"id": "int8"}, [], "primary key"),
        ("t", {}, "id", "at least one column"),
        ("t", {"id": "json"}, "id", "json"),
        ("t", {"id": "int8", "x": f"text default '{'x' * 3000}'"}, "id", "default of column x is too long"),
        ("t", {"id": "int8", "a\x00b": "text"}, "id", "printable characters"),
        ("t", {"id": "int8", "x": "float8 default 'nan'"}, "id", "x cannot default to NaN"),
        ("a b", {"id": "int8"}, "id", "a table's name has"),
    ],
)
def test_a_table_that_cannot_be_is_refused_in_one_sentence(name: str, columns: Any, key: Any, says: str) -> None:
    refused(lambda db: db.create_table(name, columns, primary_key=key), says)


def test_a_backfill_that_meets_two_rows_of_one_value_names_them_and_leaves_nothing() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", [*accounts(4), {"id": 9, "owner": "o2", "balance": 1}])
            with pytest.raises(UsageError, match="two rows have the same values, id=2 and id=9"):
                await db.create_index("accounts", "by_owner", "owner", unique=True)
            latest = (await db.history("accounts")).latest
            assert (latest.indexes, latest.mutations) == ((), ())
            with pytest.raises(SlackwaterError, match=r"id=\d"):
                await db.alter_table("accounts", add_check={"rich": "balance > 50"})
            await db.upsert("accounts", [{"id": 10, "owner": None, "balance": 1}])
            with pytest.raises(SlackwaterError, match="id=10"):
                await db.alter_table("accounts", set_not_null="owner")
            latest = (await db.history("accounts")).latest
            assert (latest.checks, latest.mutations) == ((), ())
            assert latest.schema.column("owner").nullable
            await db.upsert("accounts", [{"id": 11, "owner": None, "balance": -1}])  # nothing forbids it

    asyncio.run(main())


def test_what_a_change_under_way_has_in_hand_is_not_changed_by_another() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            made = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(3))
            used = await cluster.nodes[0].catalog.leases.take(made.table_id, 1)  # the first step waits
            (job,) = (await db.create_index("accounts", "by_owner", "owner", wait=False)).jobs
            used_too = await cluster.nodes[0].catalog.leases.take(made.table_id, 2)
            used.give_back()
            for ask, says in (
                (
                    db.drop_index("accounts", "by_owner"),
                    f"index by_owner of accounts is part of a change .*job {job.id}",
                ),
                (db.create_index("accounts", "by_owner", "balance"), "wait for it or cancel it"),
                (db.alter_table("accounts", drop_column="owner"), "used by index by_owner"),
            ):
                with pytest.raises(UsageError, match=says):
                    await ask
            used_too.give_back()
            assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
            assert [m.job for m in (await db.history("accounts")).latest.mutations] == []

    asyncio.run(main())
