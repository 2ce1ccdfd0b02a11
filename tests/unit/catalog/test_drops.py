"""Dropping tables: what was begun is finished by a job, whatever ends in between, and every name becomes free."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.catalog.definition import next_version
from slackwater.catalog.records import encode_id, name_key
from slackwater.errors import UsageError
from slackwater.model.jobs import Status
from slackwater.protocol.client import schema as to
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def test_a_drop_that_is_cut_off_is_finished_by_its_job() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.upsert("t", accounts(3))
            node = cluster.nodes[0]
            await node.kv.run(lambda txn: node.catalog.begin_drop(txn, "t", by=None))  # and the gateway is gone
            (job,) = await other.jobs.list(kind="schema-change")
            assert job.description == "drop table t"
            assert (await other.jobs.wait(job.id)).status is Status.SUCCEEDED
            assert await other.tables() == []
            await other.create_table("t", {"id": "int8"}, primary_key="id")

    asyncio.run(main())


def test_a_drop_waits_for_writers_and_takes_no_changes_meanwhile() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            made = await db.create_table("t", ACCOUNTS, primary_key="id")
            used = await cluster.nodes[1].catalog.leases.take(made.table_id, 1)
            begun = await db.drop_table("t", wait=False)
            (job,) = begun.jobs
            for what in (other.alter_table("t", add_column={"a": "text"}), other.create_index("t", "i", "owner")):
                with pytest.raises(UsageError, match="table t is being dropped; it cannot be changed"):
                    await what
            with pytest.raises(UsageError, match="there is a table 't' already"):
                await other.create_table("t", ACCOUNTS, primary_key="id")
            (waiting,) = (await db.leases("t")).waiting
            assert (waiting.job, waiting.description) == (job.id, "drop table t")
            assert "n2 to release version 1" in waiting.waits_for[0]
            await db.jobs.cancel(job.id)  # other changes ended when it began, so it goes on
            used.give_back()
            assert (await db.jobs.wait(job.id)).status is Status.CANCELLED
            assert await other.tables() == []
            await other.create_table("t", {"id": "int8"}, primary_key="id")

    asyncio.run(main())


def test_a_drop_ends_what_was_under_way_and_frees_both_names_of_a_table_that_was_being_renamed() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            made = await db.create_table("old", ACCOUNTS, primary_key="id")
            node = cluster.nodes[0]

            async def renamed(txn) -> None:  # as the first step of a renaming leaves it
                await node.catalog.publish_in(txn, made.table_id, lambda now: next_version(now, name="new"))
                await txn.put(name_key("new"), encode_id(made.table_id))

            await node.kv.run(renamed)
            await node.catalog.refresh()
            with pytest.raises(UsageError, match="there is no table 'old' to drop"):
                await db.drop_table("old")
            plan = (await db.drop_table("new", dry_run=True)).plan
            assert [step.says for step in plan.changes[0].steps] == ["dropping", "dropped"]
            await db.drop_table("new")
            for name in ("old", "new"):
                await db.create_table(name, {"id": "int8"}, primary_key="id")

    asyncio.run(main())


def test_a_paused_change_ends_with_its_table_and_lets_go_of_what_it_protects() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST, schema__backfill_rate=100) as cluster, session(cluster) as db:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.upsert("t", accounts(400))
            (job,) = (await db.alter_table("t", set_not_null="owner", wait=False)).jobs
            async with asyncio.timeout(20):
                while not await db.protections():
                    await asyncio.sleep(0.01)
            await db.jobs.pause(job.id)
            async with asyncio.timeout(20):
                while (await db.jobs.get(job.id)).status is not Status.PAUSED:
                    await asyncio.sleep(0.01)
            (kept,) = await db.protections()
            assert kept.kind == "job"
            await db.drop_table("t")
            assert (await db.jobs.wait(job.id, timeout=20)).status is Status.CANCELLED
            assert await db.protections() == []

    asyncio.run(main())


def test_a_drop_stands_alone_and_is_repeatable() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            call, until = db._gateways.call, db._gateways.deadline
            both = to.ChangeTable("t", (to.DropTable(), to.DropColumn("owner")))
            with pytest.raises(UsageError, match="no other change goes with that"):
                await call(to.CHANGE_TABLE, both, deadline=until())
            request = to.ChangeTable("t", (to.DropTable(),), name="my drop")
            first = await call(to.CHANGE_TABLE, request, deadline=until())
            assert (await db.jobs.wait(first.jobs[0].id)).status is Status.SUCCEEDED
            again = await call(to.CHANGE_TABLE, request, deadline=until())
            assert [job.id for job in again.jobs] == [first.jobs[0].id]

    asyncio.run(main())
