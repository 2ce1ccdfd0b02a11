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
            async with db.transaction() as tx:
                await tx.upsert("accounts", [{"id": 5, "owner": "before", "balance": 1}])
                schema = await tx.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
                assert schema.version == 2
                await tx.upsert("accounts", [{"id": 6, "owner": "after", "balance": 1, "city": "Oslo"}])
                cities = (await tx.scan("accounts", columns=["id", "city"])).to_pylist()
                assert [row["city"] for row in cities] == ["Rome", "Rome", "Rome", "Oslo"]
                assert "city" not in (await other.get("accounts", 1)), "others see the version before"
                await other.upsert("accounts", [{"id": 7, "owner": "meanwhile", "balance": 1}])
                with pytest.raises(UsageError, match="has altered table accounts already"):
                    await tx.alter_table("accounts", add_column={"more": "text"})
            found = (await other.scan("accounts")).to_pylist()
            assert {row["id"]: row["city"] for row in found}[6] == "Oslo"
            assert {row["id"]: row["city"] for row in found}[7] == "Rome"
            history = await db.history("accounts")
            assert history.latest.modified == tx.commit_timestamp
            assert tx.jobs == [], "it was done with the commit"

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
                return tx

            tx = await db.run(made)
            for job in tx.jobs:
                assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
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
            assert (await db.table("mine")).version == 2
            assert (await db.table("t")).version == 1

    asyncio.run(main())
