"""Tables made and changed inside a transaction: seen by it at once, by others with its commit, by none after a rollback."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.client.definitions import Index
from slackwater.errors import AccessDenied, ConstraintViolation, RetryableError, UniqueViolation, UsageError
from slackwater.gateway.context import LocalCall
from slackwater.model.jobs import Status
from slackwater.model.kinds import INT
from slackwater.protocol.client import calls
from slackwater.protocol.client.calls import ColumnSpec, CreateTable, KeySpec
from slackwater.protocol.client.schema import AddColumn, DefineInTxn
from slackwater.runtime.access import Role
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def test_a_table_is_made_used_and_committed_in_one_transaction() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("log", {"id": "int8", "what": "text"}, primary_key="id")
            before = db.now()
            async with db.transaction() as tx:
                made = await tx.create_table(
                    "accounts", ACCOUNTS, primary_key="id", indexes=[Index("by_owner", "owner", unique=True)]
                )
                assert made.version == 1
                await tx.upsert("accounts", accounts(3))
                await tx.upsert("log", [{"id": 1, "what": "made accounts"}])  # leases another table: no deadlock
                assert (await tx.get("accounts", 2))["owner"] == "o2"
                assert (await tx.get("accounts", "o1", by="by_owner"))["id"] == 1
                assert (await tx.scan("accounts", where=[("balance", ">=", 100)])).num_rows == 3
                assert (await tx.scan("accounts", index="by_owner", columns=["id", "balance"])).num_rows == 3
                with pytest.raises(UniqueViolation):
                    await tx.insert("accounts", [{"id": 9, "owner": "o1", "balance": 1}])
                await tx.delete("accounts", [0])
                for session_ in (db, other):
                    assert [t.name for t in await session_.tables()] == ["log"], "nobody else sees it, and nobody waits"
                    with pytest.raises(UsageError, match="there is no table 'accounts'"):
                        await session_.get("accounts", 1)
            assert tx.commit_timestamp > before
            history = await other.history("accounts")
            assert history.versions[0].modified == tx.commit_timestamp, "rows and table have one time"
            assert (await other.scan("accounts")).num_rows == 2
            assert (await db.get("accounts", "o2", by="by_owner"))["id"] == 2
            await other.upsert("accounts", accounts(5))
            old = await db.snapshot(as_of=before)
            with pytest.raises(UsageError, match="did not exist yet"):
                await old.scan("accounts")
            (held,) = [lease for lease in (await db.leases("accounts")).leases if lease.node == 2]
            assert held.version == 1

    asyncio.run(main())


def test_nothing_is_left_of_a_transaction_that_is_rolled_back() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(2))

            async def cut_off(tx):
                await tx.create_table("t", {"id": "int8"}, primary_key="id")
                await tx.upsert("t", [{"id": 1}])
                await tx.alter_table("accounts", add_column={"note": "text"})
                await tx.upsert("accounts", [{"id": 1, "owner": "x", "balance": 5, "note": "n"}])
                assert (await tx.get("accounts", 1))["note"] == "n"
                assert (await tx.get("accounts", 0))["note"] is None
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await db.run(cut_off)
            assert [t.name for t in await db.tables()] == ["accounts"]
            assert (await db.table("accounts")).version == 1
            assert (await db.scan("system.descriptor")).num_rows == 1
            # the same version number, another shape: nothing of the first was kept anywhere
            await db.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
            await db.upsert("accounts", [{"id": 1, "owner": "y", "balance": 6, "city": "Oslo"}])
            assert (await db.scan("accounts")).to_pylist() == [
                {"id": 0, "owner": "o0", "balance": 100, "city": "Rome"},
                {"id": 1, "owner": "y", "balance": 6, "city": "Oslo"},
            ]

    asyncio.run(main())


def test_an_alteration_is_seen_inside_and_commits_with_the_rows() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(2))

            async def altered(tx):
                await tx.upsert("accounts", [{"id": 5, "owner": "before", "balance": 1}])
                schema = await tx.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
                assert schema.version == 2
                await tx.upsert("accounts", [{"id": 6, "owner": "after", "balance": 1, "city": "Oslo"}])
                cities = (await tx.scan("accounts", columns=["id", "city"])).to_pylist()
                assert [row["city"] for row in cities if row["id"] != 7] == ["Rome", "Rome", "Rome", "Oslo"]
                assert "city" not in (await other.get("accounts", 1)), "others see the version before"
                await other.upsert("accounts", [{"id": 7, "owner": "meanwhile", "balance": 1}])
                return tx

            tx = await db.run(altered)
            found = (await other.scan("accounts")).to_pylist()
            assert {row["id"]: row["city"] for row in found}[6] == "Oslo"
            assert {row["id"]: row["city"] for row in found}[7] == "Rome"
            history = await db.history("accounts")
            assert history.latest.modified == tx.commit_timestamp
            assert tx.jobs == [], "it was done with the commit"

    asyncio.run(main())


def test_several_alterations_of_one_table_are_one_version() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("accounts", ACCOUNTS, primary_key="id", indexes=[Index("by_owner", "owner")])
            await db.upsert("accounts", accounts(2))

            async def altered(tx):
                await tx.upsert("accounts", [{"id": 5, "owner": "before", "balance": 1}])
                await tx.alter_table("accounts", add_column={"city": "text not null default 'Rome'", "n": "int2"})
                await tx.alter_table("accounts", add_column={"note": "text"})
                await tx.upsert(
                    "accounts", [{"id": 6, "owner": "first", "balance": 1, "city": "Oslo", "n": 6, "note": "x"}]
                )
                await tx.upsert("accounts", [{"id": 8, "owner": "goes", "balance": 1}])
                await tx.alter_table("accounts", rename_column={"city": "town"}, set_type={"n": "int8"})
                await tx.delete("accounts", [8])
                await tx.upsert("accounts", [{"id": 7, "owner": "second", "balance": 1, "town": "Bonn", "n": 2**40}])
                schema = await tx.alter_table("accounts", drop_column="note")
                assert (schema.version, [c.name for c in schema.columns]) == (
                    2,
                    ["id", "owner", "balance", "town", "n"],
                )
                seen = (await tx.scan("accounts")).to_pylist()
                assert (await tx.scan("accounts", index="by_owner", where=[("owner", "=", "first")])).num_rows == 1
                assert "town" not in (await other.get("accounts", 1)), "others see the version before"
                await other.upsert("accounts", [{"id": 9, "owner": "meanwhile", "balance": 1}])
                return tx, seen

            tx, seen = await db.run(altered)
            found = (await other.scan("accounts")).to_pylist()
            assert [row for row in found if row["id"] != 9] == [row for row in seen if row["id"] != 9]
            assert {row["id"]: (row["town"], row["n"]) for row in found} == {
                0: ("Rome", None), 1: ("Rome", None), 5: ("Rome", None), 6: ("Oslo", 6), 7: ("Bonn", 2**40), 9: ("Rome", None)
            }  # fmt: skip
            by_owner = (await other.scan("accounts", index="by_owner")).to_pylist()
            assert sorted(by_owner, key=lambda row: row["id"]) == found
            history = await db.history("accounts")
            assert [table.modified for table in history.versions[1:]] == [tx.commit_timestamp], "one version"
            assert tx.jobs == []

    asyncio.run(main())


def test_an_index_and_alterations_in_one_transaction_begin_together() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(20))
            async with db.transaction() as tx:
                await tx.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
                await tx.upsert("accounts", [{"id": 100, "owner": "o100", "balance": 1, "city": "Oslo"}])
                await tx.create_index("accounts", "by_city", ["city", "owner"])
                await tx.alter_table("accounts", add_column={"more": "int8"})
                with pytest.raises(UsageError, match="has a column 'more' already"):
                    await tx.alter_table("accounts", add_column={"more": "int8"})
                with pytest.raises(UsageError, match="no column 'more'"):
                    await tx.upsert("accounts", [{"id": 101, "owner": "x", "balance": 1, "more": 1}])
                await tx.upsert("accounts", [{"id": 102, "owner": "o102", "balance": 1, "city": "Bonn"}])
            assert [job.description.split(" on ")[0] for job in tx.jobs] == [
                "create index by_city",
                "alter table accounts add column more int",
            ]
            for job in tx.jobs:
                assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
            found = (await db.scan("accounts", index="by_city", where=[("city", "=", "Oslo")])).to_pylist()
            assert [(row["id"], row["more"]) for row in found] == [(100, None)]
            assert (await db.scan("accounts", index="by_city")).num_rows == 22

    asyncio.run(main())


def test_a_table_made_in_a_transaction_shows_every_change_at_once() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            async with db.transaction() as tx:
                await tx.create_table("fresh", ACCOUNTS, primary_key="id")
                await tx.upsert("fresh", accounts(4))
                await tx.create_index("fresh", "by_owner", "owner", unique=True)
                assert (await tx.get("fresh", "o2", by="by_owner"))["id"] == 2
                with pytest.raises(UniqueViolation):
                    await tx.insert("fresh", [{"id": 9, "owner": "o2", "balance": 1}])
                await tx.alter_table("fresh", add_check={"rich": "balance > 0"}, add_column={"note": "text"})
                with pytest.raises(ConstraintViolation):
                    await tx.insert("fresh", [{"id": 9, "owner": "x", "balance": 0}])
                with pytest.raises(UsageError, match="column note of table fresh is NOT NULL"):
                    await tx.alter_table("fresh", set_not_null="note")
                with pytest.raises(UniqueViolation, match="balance=100"):
                    await tx.create_index("fresh", "by_balance", "balance", unique=True)
                await tx.alter_table("fresh", rename_to="renamed")
                assert (await tx.scan("renamed")).num_rows == 4, "what was refused has changed nothing"
                await tx.create_table("fresh", {"id": "int8"}, primary_key="id")
                await tx.upsert("fresh", [{"id": 1}])
            assert tx.jobs == []
            assert [t.name for t in await db.tables()] == ["fresh", "renamed"]
            assert (await db.history("renamed")).latest.version == 1
            assert (await db.scan("renamed", index="by_owner")).num_rows == 4
            assert (await db.scan("fresh")).to_pylist() == [{"id": 1}]

    asyncio.run(main())


def test_a_table_is_dropped_with_a_transaction_or_not_at_all() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            for name in ("old", "kept", "log"):
                await db.create_table(name, ACCOUNTS, primary_key="id")
                await db.upsert(name, accounts(3))

            async def cut_off(tx):
                await tx.drop_table("kept")
                with pytest.raises(UsageError, match="this transaction drops table 'kept'"):
                    await tx.get("kept", 1)
                raise ZeroDivisionError

            with pytest.raises(ZeroDivisionError):
                await db.run(cut_off)
            assert (await other.get("kept", 1)) is not None
            async with db.transaction() as tx:
                await tx.upsert("old", [{"id": 7, "owner": "last", "balance": 1}])
                await tx.create_index("old", "never", "owner")  # goes with the table
                await tx.drop_table("old")
                for use in (
                    tx.scan("old"),
                    tx.upsert("old", accounts(1)),
                    tx.alter_table("old", add_column={"a": "text"}),
                ):
                    with pytest.raises(UsageError, match="this transaction drops table 'old'"):
                        await use
                with pytest.raises(UsageError, match="its name is free when the drop has ended"):
                    await tx.create_table("old", {"id": "int8"}, primary_key="id")
                with pytest.raises(UsageError, match="this transaction drops table 'old'"):
                    await tx.drop_table("old")
                with pytest.raises(UsageError, match="there is no table 'nowhere'"):
                    await tx.drop_table("nowhere")
                await tx.upsert("log", [{"id": 9, "owner": "dropped old", "balance": 0}])
                await tx.create_table("short", {"id": "int8"}, primary_key="id")
                await tx.upsert("short", [{"id": 1}])
                await tx.drop_table("short")
                await tx.create_table("short", {"name": "text"}, primary_key="name")
                assert (await other.get("old", 2))["owner"] == "o2", "others see it until the commit"
            (job,) = tx.jobs
            assert job.description == "drop table old"
            assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
            with pytest.raises(UsageError, match="there is no table 'old'"):
                await other.upsert("old", accounts(1))
            then = await db.snapshot(as_of=tx.commit_timestamp)
            assert (await then.scan("old")).num_rows == 4, "history stays readable"
            await other.create_table("old", {"id": "int8"}, primary_key="id")
            assert [t.name for t in await db.tables()] == ["kept", "log", "old", "short"]
            assert (await db.scan("short")).num_rows == 0

    asyncio.run(main())


def test_what_cannot_be_decided_in_a_transaction_is_refused() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            async with db.transaction() as tx:
                await tx.alter_table("accounts", add_column={"note": "text"})
                await tx.upsert("accounts", [{"id": 1, "owner": "x", "balance": 5, "note": "n"}])
                with pytest.raises(UsageError, match="has altered table accounts and written rows to it since"):
                    await tx.drop_table("accounts")
                node, name = cluster.nodes[0], tx._name
                found = node.gateway.txns._open[name]
                found.in_use += 1  # another operation of the transaction is under way
                with pytest.raises(UsageError, match="do one after the other"):
                    await tx.alter_table("accounts", add_column={"more": "text"})
                found.in_use -= 1
                found.definitions.tables[(await db.table("accounts")).table_id].keys = None  # too many to be remembered
                with pytest.raises(UsageError, match="written more than 10000 rows to table accounts"):
                    await tx.alter_table("accounts", add_column={"more": "text"})
            assert (await db.get("accounts", 1))["note"] == "n"

    asyncio.run(main())


def test_what_takes_several_versions_becomes_jobs_that_begin_with_the_commit() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(20))
            async with db.transaction() as tx:
                await tx.create_index("accounts", "by_owner", "owner", unique=True)
                await tx.upsert("accounts", accounts(5, first=100))
                assert (await db.jobs.list()) == []
            (job,) = tx.jobs
            assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
            assert (await db.get("accounts", "o102", by="by_owner"))["id"] == 102

            async def made(tx):
                await tx.create_table("fresh", ACCOUNTS, primary_key="id")
                await tx.alter_table("fresh", add_column={"note": "text"})
                await tx.upsert("fresh", [{**accounts(1)[0], "note": "n"}])
                await tx.alter_table("fresh", rename_column={"note": "remark"})
                assert (await tx.get("fresh", 0))["remark"] == "n"
                await tx.alter_table("fresh", add_check={"rich": "balance > 0"})

            await db.run(made)
            assert (await db.get("fresh", 0)) == {**accounts(1)[0], "remark": "n"}
            with pytest.raises(ConstraintViolation):
                await db.upsert("fresh", [{"id": 1, "owner": "x", "balance": -1}])

    asyncio.run(main())


def test_refusals_inside_a_transaction_leave_it_usable() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            async with db.transaction() as tx:
                for name, columns, says in (
                    ("accounts", ACCOUNTS, "there is a table 'accounts' already"),
                    ("system.x", ACCOUNTS, "belong to tables of the system"),
                    ("t", {"id": "int8", "_op": "text"}, "reserved"),
                ):
                    with pytest.raises(UsageError, match=says):
                        await tx.create_table(name, columns, primary_key="id")
                with pytest.raises(UsageError, match="there is no table 'nowhere' to change"):
                    await tx.alter_table("nowhere", add_column={"a": "text"})
                with pytest.raises(UsageError, match="has a column 'owner' already"):
                    await tx.alter_table("accounts", add_column={"owner": "text"})
                await tx.create_table("t", {"id": "int8"}, primary_key="id")
                with pytest.raises(UsageError, match="this transaction has made a table 't' already"):
                    await tx.create_table("t", {"id": "int8"}, primary_key="id")
                with pytest.raises(UsageError, match="no column 'nope'"):
                    await tx.upsert("t", [{"id": 1, "nope": 2}])
                await tx.upsert("t", [{"id": 1}])
            assert (await db.scan("t")).num_rows == 1

    asyncio.run(main())


def test_two_transactions_that_make_one_table_do_not_both_commit() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as one, session(cluster, 1) as two:

            async def make(db, columns, *, meanwhile=None):
                async with db.transaction() as tx:
                    await tx.create_table("t", columns, primary_key="id")
                    await (meanwhile() if meanwhile else asyncio.sleep(0))

            with pytest.raises((RetryableError, UsageError)):
                await make(one, {"id": "int8"}, meanwhile=lambda: make(two, {"id": "int8", "b": "text"}))
            assert [c.name for c in (await one.table("t")).columns] == ["id", "b"]

            async def alter(column, *, meanwhile):
                async with one.transaction() as tx:
                    await tx.alter_table("t", add_column={column: "text"})
                    await meanwhile

            with pytest.raises((RetryableError, UsageError)):
                await alter("c", meanwhile=two.alter_table("t", add_column={"d": "text"}))
            assert [c.name for c in (await one.table("t")).columns] == ["id", "b", "d"]

    asyncio.run(main())


def test_an_alteration_leases_the_present_version_first_and_waits_for_the_one_before() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            made = await db.create_table("t", {"id": "int8"}, primary_key="id")
            async with db.transaction() as tx:
                await tx.alter_table("t", add_column={"a": "text"})
                (held,) = (await other.leases("t")).leases
                assert (held.node, held.version) == (1, 1), "leased before it is altered"
            used = await cluster.nodes[1].catalog.leases.take(made.table_id, 2)
            await db.alter_table("t", add_column={"b": "text"})
            altered = asyncio.create_task(db.run(lambda tx: tx.alter_table("t", add_column={"c": "text"})))
            await asyncio.sleep(0.2)
            assert not altered.done(), "version 4 waits for those who write by version 2"
            used.give_back()
            assert (await altered).version == 4
            assert [column.name for column in (await other.table("t")).columns] == ["id", "a", "b", "c"]

    asyncio.run(main())


def test_a_commit_whose_answer_is_lost_is_found_out_though_no_row_was_written() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster) as db:
            async with db.transaction() as tx:
                await tx.create_table("t", {"id": "int8"}, primary_key="id")
                assert tx._mark is not None
                assert tx._mark.anchor, "where its record lives is known before the commit"
            mark = tx._mark
            settled = await db._gateways.call(calls.SETTLE, calls.Settle(mark), deadline=db._gateways.deadline())
            assert settled.committed
            assert settled.ts == tx.commit_timestamp

    asyncio.run(main())


def test_only_its_owner_and_operators_alter_a_table_in_a_transaction() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8"}, primary_key="id")
            node = cluster.nodes[0]
            define = node.gateway.schema.in_txns.define
            change = AddColumn(ColumnSpec("a", INT))
            bob = LocalCall(node.runtime.clock, user="bob", roles=Role.CLIENT, timeout_s=10.0)
            request = DefineInTxn(b"b" * 16, table="t", changes=(change,), opens=True)
            with pytest.raises(AccessDenied, match="table t belongs to the operators"):
                await define(request, bob)
            mine = CreateTable("mine", (ColumnSpec("id", INT),), (KeySpec("id"),))
            made = await define(DefineInTxn(b"b" * 16, create=mine), bob)
            assert made.table.latest.owner == "bob"
            await define(DefineInTxn(b"b" * 16, table="mine", changes=(change,)), bob)
            await node.gateway.txns.commit(calls.EndClientTxn(b"b" * 16), bob)
            assert (await db.history("mine")).latest.owner == "bob"
            assert [c.name for c in (await db.table("mine")).columns] == ["id", "a"]
            assert (await db.table("t")).version == 1

    asyncio.run(main())
