"""Jobs as clients see them: listed, steered, waited for, started, and worked on from outside of the cluster."""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING

import pytest

from slackwater.cli.jobs import Bar
from slackwater.clock.timestamp import from_us
from slackwater.codec.layout import schema_span
from slackwater.errors import ClaimLost, DeadlineExceeded, UsageError
from slackwater.model.jobs import Job, Status, instant
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.jobs.world import JobsCluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase


def play(story: Callable[[JobsCluster, AsyncDatabase], Awaitable[None]], **how) -> None:
    async def main() -> None:
        async with JobsCluster(1, **how) as cluster, session(cluster) as db:
            await story(cluster, db)

    asyncio.run(main())


def test_jobs_are_listed_steered_and_waited_for() -> None:
    async def story(cluster: JobsCluster, db: AsyncDatabase) -> None:
        cluster.counting[0].upto = 1
        job = await cluster.make()
        await cluster.until_status(job.id, "running")
        with pytest.raises(DeadlineExceeded, match=r"has not ended after 0\.1 s: it is running"):
            await db.jobs.wait(job.id, timeout=0.1)
        assert (await db.jobs.pause(job.id)).status is Status.PAUSING
        await cluster.until_status(job.id, "paused")
        other = await cluster.make()
        assert [j.id for j in await db.jobs.list()] == [job.id, other.id]
        assert [j.id for j in await db.jobs.list(status="paused")] == [job.id]
        assert await db.jobs.list(kind="backup") == []
        cluster.counting[0].upto = 3
        assert (await db.jobs.resume(job.id)).status is Status.PENDING
        assert (await db.jobs.wait(job.id)).status is Status.SUCCEEDED
        row = await db.get("system.jobs", job.id)
        assert (row["status"], row["progress"], json.loads(row["checkpoint"])) == ("succeeded", "3 of 3", {"done": 3})
        await db.jobs.wait(other.id)
        bad = [
            (db.jobs.pause(job.id), "cannot pause job .* it succeeded"),
            (db.jobs.cancel(job.id), "cannot cancel job .* it succeeded"),
            (db.jobs.resume(job.id), "cannot resume job .* it succeeded"),
            (db.jobs.get(99), "there is no job 99"),
            (db.jobs.get("x"), "a job has a number"),
            (db.jobs.cancel(0), "a job has a number"),
            (db.jobs.list(status="dead"), "there is no status 'dead'"),
            (db.jobs.verify("nothing"), "no table 'nothing'"),
            (db.jobs.start("x", application=""), "needs a name"),
            (db.jobs.start("x", application="a", payload=object()), "what JSON has"),
            (db.jobs.claim(job.id, application="a"), "is run by nodes"),
        ]
        before = await db.jobs.list()
        for work, said in bad:
            with pytest.raises(UsageError, match=said):
                await work
        assert await db.jobs.list() == before

    play(story)


def test_a_table_is_verified_row_by_row_and_a_damaged_row_is_named() -> None:
    async def story(cluster: JobsCluster, db: AsyncDatabase) -> None:
        made = await db.create_table("accounts", ACCOUNTS, primary_key="id")
        await db.upsert("accounts", accounts(5_000))
        good = await db.jobs.verify("accounts", name="once")
        (owned,) = good.owns
        assert owned.kind == "protection"
        assert (await db.jobs.verify("accounts", name="once")).id == good.id
        done = await db.jobs.wait(good.id)
        assert (done.status, done.progress) == (Status.SUCCEEDED, "5000 rows read")
        assert (await db.scan("system.protected_ts_timestamps")).num_rows == 0, "released with the end"
        span = schema_span(made)
        rows = await cluster.nodes[0].kv.scan(span.start, span.end, max_keys=1)
        await cluster.nodes[0].kv.put(rows.keys[0], rows.values[0][:-3])
        failed = await db.jobs.wait((await db.jobs.verify("accounts")).id)
        assert failed.status is Status.FAILED
        assert "cannot be decoded" in failed.error
        assert (await db.scan("system.protected_ts_timestamps")).num_rows == 0
        with pytest.raises(UsageError, match="in the future"):
            await db.jobs.verify("accounts", at=db.now() + (10**9 << 10))

    play(story)


def test_an_application_works_on_its_job_until_its_lease_runs_out_and_another_goes_on() -> None:
    async def story(cluster: JobsCluster, db: AsyncDatabase) -> None:
        first = await db.jobs.start("export", application="host-1", payload={"month": 5}, name="export/5")
        assert first.payload == {"month": 5}
        await first.work(checkpoint={"files": 2}, fraction=0.2, progress="2 of 10 files")
        with pytest.raises(UsageError, match="is claimed by host-1"):
            await db.jobs.claim(first.job.id, application="host-2")
        with pytest.raises(UsageError, match="is there already"):
            await db.jobs.start("export", application="host-2", name="export/5")
        waiting = await cluster.until_status(first.job.id, "pending")  # host-1 says nothing for a second
        assert "did not renew its claim" in waiting.error
        second = await db.jobs.claim(first.job.id, application="host-2")
        assert second.checkpoint == {"files": 2}
        for late in (first.work(fraction=0.9), first.succeed(), first.fail("x"), first.give_up()):
            with pytest.raises(ClaimLost, match="nothing was changed"):
                await late
        given = await second.give_up()
        assert (given.status, given.claimed_by) == (Status.PENDING, "")
        third = await db.jobs.claim(first.job.id, application="host-3")
        assert (await third.succeed()).status is Status.SUCCEEDED
        with pytest.raises(ClaimLost):
            await third.work()

    play(story, jobs__lease_duration=1.0)


def test_an_application_hears_that_its_job_is_to_stop() -> None:
    async def story(cluster: JobsCluster, db: AsyncDatabase) -> None:
        paused = await db.jobs.start("one", application="a")
        await db.jobs.pause(paused.job.id)
        with pytest.raises(ClaimLost, match="was asked to stop and is paused"):
            await paused.work(checkpoint={"at": 1})
        assert json.loads((await db.jobs.get(paused.job.id)).checkpoint) == {"at": 1}, "what it had done is kept"
        cancelled = await db.jobs.start("two", application="a")
        await db.jobs.cancel(cancelled.job.id)
        for late in (cancelled.succeed(), cancelled.work()):  # a node reverts it, or will
            with pytest.raises(ClaimLost, match=r"cannot succeed any more|was asked to stop|nothing was changed"):
                await late
        assert (await db.jobs.wait(cancelled.job.id)).status is Status.CANCELLED
        failed = await db.jobs.start("three", application="a")
        await failed.fail("the disk is full")
        ended = await db.jobs.wait(failed.job.id)
        assert (ended.status, ended.error) == (Status.FAILED, "the disk is full")

    play(story)


def test_the_bar_tells_rate_and_time_left() -> None:
    bar = Bar()
    job = Job(id=7, type="verify", description="", creator="", created=instant(from_us(0)), status=Status.RUNNING)
    assert bar.line(job, 0.0) == f"job 7  running  {'·' * 30}    0%"
    from msgspec.structs import replace

    half = replace(job, fraction=0.5, progress="5 of 10")
    assert bar.line(half, 10.0) == f"job 7  running  {'█' * 15}{'·' * 15}   50%  300.0%/min  10 s left  5 of 10"
    assert "left" not in bar.line(half, 60.0), "nothing moved in the last half minute"
