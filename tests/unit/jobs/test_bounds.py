"""What one client's jobs may take: nodes read all jobs that have not ended, and a list of jobs is one message."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from slackwater.errors import AccessDenied, LimitReached, UsageError
from slackwater.gateway.context import LocalCall
from slackwater.model.jobs import Status
from slackwater.model.kinds import INT
from slackwater.protocol.client import jobs as calls
from slackwater.protocol.client import protections as pr
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import ColumnSpec, CreateTable, KeySpec
from slackwater.runtime.access import Role
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase
    from slackwater.server.member import Member

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


def play(story: Callable[[Cluster, AsyncDatabase], Awaitable[None]], *, nodes: int = 1, **how: float) -> None:
    async def main() -> None:
        async with Cluster(nodes, **FAST, **how) as cluster, session(cluster, nodes - 1) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(20))
            await story(cluster, db)

    asyncio.run(main())


def by(user: str, node: Member) -> LocalCall:
    """A call of a client."""
    return LocalCall(node.runtime.clock, user=user, roles=Role.CLIENT, timeout_s=10.0)


def test_many_large_jobs_of_one_client_are_in_no_others_way() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        leads, asks = cluster.nodes  # the second has every row from the first, in messages of 16 MB at most
        leads.settings.set("jobs.running_max", 0)
        large = "x" * 60_000
        for number in range(150):
            claim = await db.jobs.start(f"job {number}", application="export", payload=large)
            await claim.work(checkpoint=large, progress="begun")
        listed = await db.jobs.list()
        assert [job.description for job in listed] == [f"job {number}" for number in range(150)]
        assert {(job.payload, job.checkpoint, job.progress) for job in listed} == {("", "", "begun")}, "long: left out"
        assert (await db.jobs.get(listed[0].id)).payload == f'"{large}"'
        assert len(await db.jobs.list(status="running", kind="application")) == 150
        await db.create_index("accounts", "by_owner", "owner")
        for job in listed:
            await db.jobs.cancel(job.id)
        asks.settings.override({"jobs.retention": 2.0})
        async with asyncio.timeout(60):
            while any(job.description.startswith("job ") for job in await db.jobs.list()):
                await asyncio.sleep(0.05)

    play(story, nodes=2)


def test_a_client_has_so_many_jobs_at_a_time_and_operators_more() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        (node,) = cluster.nodes
        gateway, ann, bob = node.gateway, by("ann", node), by("bob", node)
        table = CreateTable("hers", (ColumnSpec("id", INT), ColumnSpec("a", INT)), (KeySpec("id"),))
        await gateway.tables.create(table, ann)
        for number in range(3):
            await gateway.jobs.start(calls.StartJob(f"{number}", name=f"{number}"), ann)
        await node.jobs.look()
        refused = [
            gateway.jobs.start(calls.StartJob("one more"), ann),
            gateway.jobs.verify(calls.VerifyTable("hers"), ann),
            gateway.schema.change(to.ChangeTable("hers", (to.DropColumn("a"),)), ann),
            gateway.schema.in_txns.define(
                to.DefineInTxn(b"a" * 16, table="hers", changes=(to.DropColumn("a"),), opens=True), ann
            ),
        ]
        for work in refused:
            with pytest.raises(
                LimitReached, match=r"3 jobs of ann .* one client may have 3 \(jobs\.open_per_owner_max\)"
            ):
                await work
        again = (await gateway.jobs.start(calls.StartJob("2", name="2"), ann)).job
        assert again.description == "2", "one that is there is no more"
        assert (await db.history("hers")).latest.version == 1
        await gateway.jobs.start(calls.StartJob("of another"), bob)
        await db.jobs.start("of an operator", application="a")
        (first, *_) = await db.jobs.list()
        await db.jobs.cancel(first.id)
        await db.jobs.wait(first.id)
        await node.jobs.look()
        await gateway.jobs.start(calls.StartJob("in its place"), ann)

    play(story, jobs__open_per_owner_max=3)


def test_what_a_client_says_of_a_job_is_bounded_and_names_are_not_shared() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        (node,) = cluster.nodes
        gateway, ann, bob = node.gateway, by("ann", node), by("bob", node)
        before = await db.jobs.list()
        with pytest.raises(UsageError, match="a payload has at most 65536 bytes"):
            await db.jobs.start("x", application="a", payload="é" * 40_000)
        assert await db.jobs.list() == before
        claim = await db.jobs.start("x", application="a", name="mine")
        with pytest.raises(UsageError, match="a checkpoint has at most"):
            await claim.work(checkpoint="x" * 70_000)
        with pytest.raises(UsageError, match="a line of progress has at most"):
            await claim.work(progress="x" * 5_000)
        node.settings.set("jobs.running_max", 0)
        taken = await gateway.jobs.verify(calls.VerifyTable("accounts", name="hers"), ann)
        assert len(taken.job.owns) == 1
        with pytest.raises(AccessDenied, match="belongs to a job of another user"):
            await gateway.jobs.verify(calls.VerifyTable("accounts", name="hers"), bob)
        with pytest.raises(UsageError, match=r"belongs to job .*, which is of type application"):
            await db.jobs.verify("accounts", name="mine")
        with pytest.raises(UsageError, match=r"belongs to job .*, which is of type verify"):
            await db.jobs.start("x", application="a", name="hers")
        await db.jobs.start("x", application="a", name="change/0")
        with pytest.raises(UsageError, match=r"belongs to job .*, which is of type application"):
            await gateway.schema.change(
                to.ChangeTable("accounts", (to.DropColumn("owner"),), name="change"),
                LocalCall(node.runtime.clock, user="root", roles=Role.OPERATOR, timeout_s=10.0),
            )

    play(story)


def test_protections_of_a_clients_jobs_are_counted_and_go_with_their_jobs_only() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        (node,) = cluster.nodes
        node.settings.set("jobs.running_max", 0)
        gateway, ann, bob = node.gateway, by("ann", node), by("bob", node)
        for _ in range(2):
            await gateway.jobs.verify(calls.VerifyTable("accounts"), ann)
        with pytest.raises(LimitReached, match=r"ann holds 2 protections by jobs, .*records_per_owner_max"):
            await gateway.jobs.verify(calls.VerifyTable("accounts"), ann)
        await gateway.jobs.verify(calls.VerifyTable("accounts"), bob)
        await db.protect("accounts", at="-0s")
        held = [p for p in await db.protections() if p.kind == "job"]
        assert sorted(p.user for p in held) == ["ann", "ann", "bob"]
        for one in held:
            with pytest.raises(UsageError, match=r"belongs to job .* and goes when that ends"):
                await db.release(one)
            with pytest.raises(UsageError, match="belongs to job"):
                await db.renew_protection(one, expires=1)
        with pytest.raises(UsageError, match="belongs to job"):
            await gateway.protections.release(pr.ReleaseProtection(bytes.fromhex(held[0].id)), by(held[0].user, node))
        assert len(await db.protections()) == 4
        node.settings.set("jobs.running_max", 8)
        for job in await db.jobs.list():
            assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
        assert [p.kind for p in await db.protections()] == ["user"]

    play(story, protected_timestamp__records_per_owner_max=2)
