"""Drawn and forged requests about jobs and protections of an ordinary client: each is done or refused in one sentence.

What holds, whatever a client with a certificate sends to `db.jobs_*`, `db.protect` and its like:

    only errors of the tree come back, and never an invariant's or an assertion's
    jobs and protections of others stay as they are
    in the end jobs are still worked on, listed and ended, and the counts of the protections are those of the records
"""

from __future__ import annotations

import asyncio
import random
import time

import pytest

from slackwater.clock.timestamp import MAX, MIN, add_seconds
from slackwater.gateway.context import LocalCall
from slackwater.model.jobs import JobProgress, Owned, Status
from slackwater.model.protection import Mode
from slackwater.protocol.client import jobs, protections
from slackwater.runtime.access import Role
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.gateway.forging import FAST, SECONDS, ForgingClient
from tests.unit.server.cluster import Cluster

REQUESTS = 250
DEEP = "[" * 20_000 + "]" * 20_000
TEXTS = ["", "{}", '{"a": 1}', "nonsense", DEEP, "x" * 70_000, '"' + "y" * 50_000 + '"', "\x00", "é" * 300]
NAMES = ["", "", "n1", "app", "staged/" + "00" * 16, "other/0", "z" * 600, "mine"]
NUMBERS = [0, 1, 2, 3, -1, 1 << 62, (1 << 63) - 1, -(1 << 63)]
SECONDS_ASKED = [0.0, 1.0, -1.0, float("nan"), float("inf"), 1e300, 60.0]
TABLES = ["mine", "theirs", "nowhere", "system.jobs", "system.descriptor", "", "a b", "x" * 300]


class Client(ForgingClient):
    """Draws requests and sends them as `bob`."""

    def __init__(self, cluster: Cluster, seed: int) -> None:
        super().__init__(cluster)
        self.draw = random.Random(seed)
        self.ids: list[bytes] = [b"", b"x" * 16, b"y" * 5, b"z" * 400]

    async def once(self) -> None:
        pick, gateway = self.draw.choice, self.node.gateway
        bob = LocalCall(self.node.runtime.clock, user="bob", roles=Role.CLIENT, timeout_s=5.0)
        now = self.node.clock.now()
        job = self.draw.choice([*NUMBERS, *range(1, 40)])
        ts = pick([MIN, MAX, now, add_seconds(now, -1.0), add_seconds(now, 3600.0), 1, -5, add_seconds(now, -1e6)])
        said = JobProgress(
            checkpoint=pick([None, *TEXTS]),
            fraction=pick([None, 0.5, float("nan"), float("-inf"), 1e300]),
            progress=pick([None, "half", "p" * 5_000, "a\nb\x1b[2J"]),
            owns=pick([(), (), (), (Owned("protection", "00" * 16),), (Owned("nothing", "x"),)]),
        )
        record = pick(self.ids)
        calls = [
            lambda: gateway.jobs.start(jobs.StartJob(pick(TEXTS), pick(TEXTS), pick(NAMES), pick(["", "app", "n1"])), bob),
            lambda: gateway.jobs.claim(jobs.ClaimJob(job, pick(["", "app", "n1", "z" * 600])), bob),
            lambda: gateway.jobs.work(
                jobs.WorkOnJob(job, pick([0, 1, 2, 1 << 62]), said, pick(list(jobs.JobWork)), pick(TEXTS)), bob
            ),
            lambda: gateway.jobs.change(jobs.ChangeJob(job, pick(list(jobs.JobChange))), bob),
            lambda: gateway.jobs.get(jobs.GetJob(job), bob),
            lambda: gateway.jobs.list(jobs.ListJobs(pick([(), ("running",), ("dead",)]), pick(["", "verify"])), bob),
            lambda: gateway.jobs.verify(jobs.VerifyTable(pick(TABLES), ts, pick(NAMES)), bob),
            lambda: gateway.protections.protect(
                protections.ProtectTables(
                    tuple(pick(TABLES) for _ in range(pick([0, 1, 1, 2, 300]))),
                    ts,
                    pick(list(Mode)),
                    pick(SECONDS_ASKED),
                    pick(["user", "user", "spark", "job", "feed", ""]),
                    pick(["", "why", "a" * 300, '{"x"']),
                ),
                bob,
            ),
            lambda: gateway.protections.renew(protections.RenewProtection(record, pick(SECONDS_ASKED), ts), bob),
            lambda: gateway.protections.release(protections.ReleaseProtection(record), bob),
            lambda: gateway.protections.all(protections.ListProtections(), bob),
        ]  # fmt: skip
        answer = await self.told_of(pick(calls)())
        if isinstance(answer, protections.ProtectionsReply):
            self.ids = self.ids[:4] + [bytes.fromhex(one.id) for one in answer.protections]


@pytest.mark.parametrize("seed", [time.time_ns() & 0xFFFFFF] if SECONDS else [1, 2])
def test_forged_requests_about_jobs_and_protections_harm_no_others(seed: int) -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            (node,) = cluster.nodes
            for name in ("mine", "theirs"):
                await db.create_table(name, ACCOUNTS, primary_key="id")
                await db.upsert(name, accounts(3))
            kept = await db.protect("theirs", at="-0s")
            claim = await db.jobs.start("of an operator", application="app", name="other/0")
            before = await db.jobs.get(claim.job.id)
            client, ends, done = Client(cluster, seed), time.monotonic() + SECONDS, 0
            while done < REQUESTS or time.monotonic() < ends:
                await client.once()
                done += 1
            assert await db.jobs.get(claim.job.id) == before
            assert kept.id in {one.id for one in await db.protections()}
            for job in await db.jobs.list():
                if job.type == "verify" and not job.status.ended:
                    if job.status is Status.PAUSED:
                        await db.jobs.resume(job.id)
                    await db.jobs.wait(job.id, timeout=20)
            await claim.succeed()
            checked = await db.jobs.verify("theirs")
            assert (await db.jobs.wait(checked.id, timeout=20)).status is Status.SUCCEEDED
            state = await node.protections.list()
            assert (state.metadata.records, state.metadata.spans) == (
                len(state.records), sum(len(record.spans) for record in state.records),
            )  # fmt: skip
            print(f"seed {seed}: {done} requests, {client.told}")
            assert client.told["done"] > 10
            assert client.told["UsageError"] > 10

    asyncio.run(main())
