"""Jobs on real processes: another node goes on when the claimant is killed or stands still, and people steer by commands."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import pytest

import slackwater
from slackwater.model.jobs import Status
from tests.integration.cluster import Processes

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
ROWS = 60_000
SETTINGS = {"jobs.poll_interval": 0.5, "jobs.verify_rate": 10_000}
"""A verification takes six seconds: time to kill its node, and to type a command."""


async def command(*words: str) -> tuple[int, str, str]:
    """`slackwater jobs …`, its exit status and what it printed."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "slackwater.cli.main", "jobs", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), 120)
    return process.returncode or 0, out.decode(), err.decode()


async def underway(db, job_id: int):
    """The job, once it has a checkpoint and is not done."""
    async with asyncio.timeout(60):
        while not (job := await db.jobs.get(job_id)).progress:
            await asyncio.sleep(0.01)
    assert job.status is Status.RUNNING, "it was too quick for this test"
    return job


async def index_of(cluster: Processes, db, node: str) -> int:
    """Nodes are numbered in the order in which they joined."""
    (address,) = [place.address for place in await db.nodes() if f"n{place.node}" == node]
    return cluster.addresses.index(address)


async def play(directory, story) -> None:
    log = f"sqlite://{directory}/log.db"
    async with Processes(directory, nodes=3, log_url=log, settings=SETTINGS) as cluster:
        await cluster.make_whole()
        url = f"slackwater://{','.join(cluster.addresses)}"
        async with slackwater.aconnect(url) as db:
            await db.create_table("t", {"id": "int8", "v": "text"}, primary_key="id")
            for low in range(0, ROWS, 20_000):
                await db.upsert("t", [{"id": n, "v": "x"} for n in range(low, low + 20_000)])
            await story(cluster, db)


def test_the_job_of_a_node_that_is_killed_or_stands_still_is_gone_on_with_and_ends_once(tmp_path) -> None:
    async def story(cluster: Processes, db) -> None:
        for end, come_back in ((cluster.kill, cluster.start), (cluster.pause, None)):
            job = await underway(db, (await db.jobs.verify("t")).id)
            claimant = await index_of(cluster, db, job.claimed_by)
            end(claimant)
            try:
                done = await db.jobs.wait(job.id, timeout=90)
            finally:
                if come_back is None:
                    cluster.resume(claimant)
                else:
                    await come_back(claimant)
            assert (done.status, done.progress) == (Status.SUCCEEDED, f"{ROWS} rows read"), "each row once"
            assert done.claim_number > job.claim_number + 1, "another claim ended it"
            await cluster.wait_live()
            assert await db.jobs.get(job.id) == done, "who came back changed nothing"

    asyncio.run(play(tmp_path, story))


def test_people_steer_jobs_by_commands(tmp_path) -> None:
    async def story(cluster: Processes, db) -> None:
        host = ("--host", cluster.addresses[1])
        job = await underway(db, (await db.jobs.verify("t")).id)
        status, out, _ = await command("pause", str(job.id), "--json", *host)
        assert (status, json.loads(out)["status"]) == (0, "pausing")
        async with asyncio.timeout(30):
            while (paused := await db.jobs.get(job.id)).status is not Status.PAUSED:
                await asyncio.sleep(0.05)
        assert 0 < json.loads(paused.checkpoint)["rows"] < ROWS
        status, out, _ = await command("list", "--status", "paused,running", *host)
        assert status == 0
        assert f"{job.id}  verify  paused" in " ".join(out.split(" ")).replace("    ", "  ")
        assert (await command("resume", str(job.id), *host))[0] == 0
        status, out, _ = await command("wait", str(job.id), "--json", *host)
        assert (status, json.loads(out)["progress"]) == (0, f"{ROWS} rows read")

        other = await underway(db, (await db.jobs.verify("t")).id)
        assert (await command("cancel", str(other.id), *host))[0] == 0
        status, out, _ = await command("wait", str(other.id), *host)
        assert status == 1
        assert "cancelled" in out
        status, out, _ = await command("verify", "t", "--wait", "--json", *host)
        assert (status, json.loads(out)["status"]) == (0, "succeeded")

        for words, said in (
            (("pause", str(job.id)), f"cannot pause job {job.id}: it has ended, it succeeded"),
            (("cancel", str(other.id)), f"cannot cancel job {other.id}: it has ended, it was cancelled"),
            (("resume", str(other.id)), "it has ended"),
            (("show", "4711"), "there is no job 4711"),
            (("verify", "nothing"), "there is no table 'nothing'"),
            (("list", "--status", "dead"), "there is no status 'dead'"),
        ):
            status, out, err = await command(*words, *host)
            assert (status, out) == (1, "")
            assert said in err
            assert err.count("\n") == 1

    asyncio.run(play(tmp_path, story))
