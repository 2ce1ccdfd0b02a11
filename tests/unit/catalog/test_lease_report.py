"""What people are told of leases: who holds which version, since when, and what a waiting change waits for."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.cli.schema import shown_leases
from slackwater.errors import UsageError
from tests.unit.catalog.test_lease_driver import SHORT
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def test_leases_name_the_node_the_version_and_its_age() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 1) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.create_table("other", ACCOUNTS, primary_key=["id"])
            assert (await db.leases()).leases == []
            before = db.now()
            await db.upsert("accounts", accounts(3))
            await db.upsert("other", accounts(1))
            found = await db.leases("accounts")
            (lease,) = found.leases
            assert (lease.table, lease.version, lease.newest, lease.node) == ("accounts", 1, 1, 2)
            assert lease.epoch == cluster.nodes[1].liveness.own().epoch
            assert before < lease.since < found.at < lease.until
            assert lease.age_s >= 0
            assert not lease.in_the_way
            assert found.waiting == []
            assert {lease.table for lease in (await db.leases()).leases} == {"accounts", "other"}
            assert "the newest version" in shown_leases(found)[1]
            with pytest.raises(UsageError, match="there is no table 'acounts'"):
                await db.leases("acounts")

    asyncio.run(main())


def test_a_waiting_change_says_which_node_it_waits_for_and_the_queue_behind_it() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db:
            schema = await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            used = await cluster.nodes[1].catalog.leases.take(schema.table_id, 1)
            two = {"rich": "balance >= 0", "named": "owner is not null"}
            change = await db.alter_table("accounts", add_check=two, wait=False)
            while not (first := (await db.leases("accounts")).waiting[0]).waits_for:
                await asyncio.sleep(0.01)
            assert first.job == change.jobs[0].id
            assert first.waits_for == ["n2 to release version 1: writes that began with this version have not ended"]
            waiting = (await db.leases()).waiting
            assert waiting[1].job == change.jobs[1].id
            assert waiting[1].waits_for == [f"job {first.job}: {first.description}"]
            plan = (await db.alter_table("accounts", add_column={"note": "text"}, dry_run=True)).plan
            assert plan is not None
            assert [(held.node, held.version) for held in plan.holders if held.in_the_way] == [(2, 1)]
            assert any("n2 to release version 1" in blocker for blocker in plan.blocked_by)
            lines = "\n".join(shown_leases(await db.leases("accounts")))
            assert f"job {first.job}, alter table accounts add check rich" in lines
            assert "for n2 to release version 1" in lines
            used.give_back()
            assert (await db.jobs.wait(change.jobs[1].id)).status.value == "succeeded"
            assert (await db.leases("accounts")).waiting == []

    asyncio.run(main())


def test_the_lease_of_a_dead_node_says_when_it_is_deleted() -> None:
    async def main() -> None:
        how = {**SHORT, "catalog__lease__abandoned_duration": 600.0}
        async with Cluster(3, **how) as cluster, session(cluster, 0) as db:
            schema = await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await cluster.nodes[1].catalog.leases.take(schema.table_id, 1)
            await cluster.kill(cluster.nodes[1])
            await db.alter_table("accounts", add_column={"note": "text"})
            while (
                "its epoch has ended; other nodes delete it after"
                not in (says := [lease.says for lease in (await db.leases("accounts")).leases])[0]
            ):
                assert len(says) == 1
                await asyncio.sleep(0.02)
                cluster.nodes[0].catalog.leases.want_gone(schema.table_id, 1)

    asyncio.run(main())
