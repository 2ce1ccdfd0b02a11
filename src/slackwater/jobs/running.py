"""A job in the hands of its claimant on a node: what a resumer is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec

from slackwater.errors import ClaimLost
from slackwater.hooks import probe
from slackwater.jobs.transitions import parked, ticket_of

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.jobs.store import JobStore, Work
    from slackwater.model.jobs import Job, JobProgress
    from slackwater.txn.coordinator import Transaction

T = TypeVar("T")


class RunningJob:
    """One claim on one job. Everything it writes is written only while the claim holds (I-36)."""

    def __init__(self, store: JobStore, job: Job) -> None:
        self._store = store
        self.ticket = ticket_of(job)
        self.job = job
        """As of the last step."""

    def payload(self, shape: type[T]) -> T:
        """What to do."""
        return msgspec.json.decode(self.job.payload, type=shape)

    def checkpoint(self, shape: type[T]) -> T:
        """How far it is; fields that the checkpoint lacks take their defaults."""
        return msgspec.json.decode(self.job.checkpoint, type=shape)

    async def step(self, work: Work) -> None:
        """Run `work` in a transaction that also compares the claim and writes the progress that `work` returns.

        `ClaimLost` when the job is not this claimant's any more; then nothing of it was written. `work` may run several times.
        """
        self.job = await self._store.run(lambda txn: self._store.step(txn, self.ticket, work))

    async def said(self, progress: JobProgress) -> None:
        """Write progress alone."""

        async def work(_: Transaction) -> JobProgress:
            return progress

        await self.step(work)

    async def park(self, *, unless: Callable[[Transaction], Awaitable[bool]]) -> None:
        """Give the job up until another one wakes it; raises `ClaimLost`, which ends this attempt without a trace.

        Returns if `unless` says, in the transaction that would park it, that it need not wait: what a job looked at before may
        have changed since, and the one that changed it has woken it already.
        """

        async def work(txn: Transaction) -> Job | None:
            return None if await unless(txn) else await self._store.change(txn, self.ticket, parked)

        job = await self._store.run(work)
        if job is None:
            probe("jobs.not_parked")
            return
        self.job = job
        raise ClaimLost(f"job {job.id} waits for another one", job=job.id)

    async def succeed(self, work: Work | None = None) -> None:
        """End the job, with what `work` writes, in one transaction; `resume` returns afterwards."""
        self.job = await self._store.run(lambda txn: self._store.succeed(txn, self.ticket, work))
