"""Jobs that count, on real nodes in one process: each step writes a key of its own, once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import kv
from slackwater.jobs import JobType
from slackwater.model.jobs import Job, JobProgress, Owned
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.jobs import RunningJob
    from slackwater.server.member import Member
    from slackwater.txn import Transaction


class At(msgspec.Struct):
    done: int = 0


class Counting:
    """Counts to three, and waits before step `upto` until it is told to go further."""

    def __init__(self, node: Member) -> None:
        self.node = node
        self.upto = 3
        self.fail: list[Exception] = []
        self.fail_revert: list[Exception] = []
        self.started: list[int] = []
        self.last: RunningJob | None = None

    async def resume(self, job: RunningJob) -> None:
        self.last = job
        self.started.append(job.checkpoint(At).done)
        for number in range(job.checkpoint(At).done, 3):
            while number >= self.upto:
                await asyncio.sleep(0.005)
            if self.fail:
                raise self.fail.pop()

            async def step(txn: Transaction, number: int = number) -> JobProgress:
                await txn.put(step_key(job.job.id, number), str(job.ticket.number).encode())
                if number == 0:
                    await txn.put(owned_key(str(job.job.id)), b"kept")
                at = msgspec.json.encode(At(number + 1)).decode()
                owned = (Owned("thing", str(job.job.id)),)
                return JobProgress(checkpoint=at, fraction=(number + 1) / 3, progress=f"{number + 1} of 3", owns=owned)

            await job.step(step)

    async def revert(self, job: RunningJob) -> None:
        if self.fail_revert:
            raise self.fail_revert.pop()
        for number in range(3):

            async def step(txn: Transaction, number: int = number) -> None:
                await txn.delete(step_key(job.job.id, number))

            await job.step(step)


def step_key(job_id: int, number: int) -> bytes:
    return kv(b"step/%d/%d" % (job_id, number))


def owned_key(ref: str) -> bytes:
    return kv(b"owned/" + ref.encode())


async def release_thing(txn: Transaction, ref: str) -> None:
    await txn.delete(owned_key(ref))


class JobsCluster(Cluster):
    """A cluster whose nodes can count; only the named ones claim."""

    def __init__(self, size: int, *, claim: tuple[int, ...] = (), **settings: float) -> None:
        super().__init__(size, **{"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, **settings})
        self.counting: list[Counting] = []
        self._claim = claim or tuple(range(size))

    async def __aenter__(self) -> JobsCluster:
        await super().__aenter__()
        for number, node in enumerate(self.nodes):
            self.counting.append(know(node))
            node.settings.set("jobs.running_max", 8 if number in self._claim else 0)
        return self

    async def make(self, node: int = 0, **fields: str) -> Job:
        return await self.nodes[node].jobs.create("count", description="to three", **fields)

    async def job(self, job_id: int) -> Job:
        store = self.nodes[0].jobs.store
        return await store.get(self.nodes[0].kv, job_id)

    async def until_status(self, job_id: int, status: str) -> Job:
        async with asyncio.timeout(20):
            while (job := await self.job(job_id)).status.value != status:
                await asyncio.sleep(0.01)
        return job

    async def steps(self, job_id: int) -> list[str]:
        """The claim numbers by which each step was done."""
        found = [await self.nodes[0].kv.get(step_key(job_id, n)) for n in range(3)]
        return [value.decode() for value in found if value is not None]

    async def owned(self, job_id: int) -> bytes | None:
        return await self.nodes[0].kv.get(owned_key(str(job_id)))


def know(node: Member) -> Counting:
    counting = Counting(node)
    node.job_types.add(JobType("count", counting))
    node.job_types.releases["thing"] = release_thing
    return counting
