"""What a node can do for jobs: run those of the types that are registered here, and release what jobs own.

    types.add(JobType("backup", Backup(node)))
    types.releases["protection"] = release_protection        async (transaction, ref) -> None

A *resumer* does the work. It is called with a `RunningJob` wherever the job is claimed, on the first node and on every later one,
and goes on from the checkpoint:

    async def resume(self, job):
        done = job.decoded(State)
        for part in self.parts(after=done.last):

            async def write(txn):                             runs in one transaction with the check of the claim
                await self.copy(txn, part)
                return Progress(checkpoint=…, fraction=…, progress="7 of 12 parts")

            await job.step(write)

It needs no code for pausing, cancelling and take-over: it is cancelled (`CancelledError`), and whatever it still tries to write
fails with `ClaimLost`. Effects outside of `step` must therefore be harmless when they happen twice or late. When `resume`
returns, the job has succeeded; `job.succeed(work)` does the last writes in the transaction that ends it.

An error with a retry class (`errors.Retry`) other than NEVER is tried again after a pause; any other fails the job. `revert`
undoes what the checkpoint says was done; it is tried until it succeeds.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.errors import UnavailableError, UsageError

if TYPE_CHECKING:
    from slackwater.jobs.running import RunningJob
    from slackwater.model.jobs import Job
    from slackwater.txn.coordinator import Transaction

Release = Callable[["Transaction", str], Awaitable[None]]
Forget = Callable[["Transaction", "Job"], Awaitable[None]]


class Resumer(Protocol):
    """The work of one type of jobs."""

    async def resume(self, job: RunningJob, /) -> None:
        """Do the work, from the checkpoint on. Returning means that the job is done."""
        ...

    async def revert(self, job: RunningJob, /) -> None:
        """Undo what was done, after the job failed or was cancelled. What the job owns is released without this."""
        ...


class JobType(msgspec.Struct, frozen=True):
    """A type of jobs that this node knows."""

    name: str
    resumer: Resumer
    external: bool = False
    """Worked on by applications outside of the cluster: nodes claim it only to revert it, or when a lease has run out."""
    pausable: bool = True
    retention: str = "jobs.retention"
    """The setting that says how long jobs that ended are kept."""
    forget: Forget | None = None
    """Removes what a late worker may have left behind, in the transaction that removes the row."""


class JobTypes:
    """The types of jobs, and the kinds of things that jobs own, that this node knows."""

    def __init__(self) -> None:
        self._types: dict[str, JobType] = {}
        self.releases: dict[str, Release] = {}

    def add(self, kind: JobType) -> None:
        """Know a type."""
        if kind.name in self._types:
            raise UsageError(f"there are two resumers for jobs of type {kind.name}")
        self._types[kind.name] = kind

    def find(self, name: str) -> JobType | None:
        """A type by name; None for one that this node does not know."""
        return self._types.get(name)

    def all(self) -> list[JobType]:
        """Every type that this node knows, by name."""
        return [self._types[name] for name in sorted(self._types)]

    def known(self, job: Job) -> bool:
        """Whether this node can run a job to its end; one of a newer version is left to nodes that can."""
        return job.type in self._types and all(thing.kind in self.releases for thing in job.owns)

    async def release(self, txn: Transaction, job: Job) -> None:
        """Release everything that a job owns, in the transaction that ends it."""
        for thing in job.owns:
            release = self.releases.get(thing.kind)
            if release is None:
                raise UnavailableError(
                    f"this node does not know how to release a {thing.kind}, which job {job.id} owns", job=job.id
                )
            await release(txn, thing.ref)
