"""What may happen to a job, as functions from one state to the next. Pure: no clock, no I/O.

    by its claimant, with the number of the claim     checkpointed, succeeded, failed, retried, stopped, reverted, renewed
    by a node that finds it without living claimant   taken
    by a user                                         pause, resume, cancel

Rules
    I-36  A claimant changes a job only while it holds the number of its claim (`held`); a job ends once (`store.write`).

A user's request that makes no sense in the job's state is refused with one sentence that says what the state is.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from slackwater.errors import ClaimLost, UsageError
from slackwater.model.jobs import Status

if TYPE_CHECKING:
    from slackwater.model.jobs import Job, JobProgress

ERROR_CHARS_MAX = 2000
NOT_BEFORE_WOKEN = dt.datetime(9999, 1, 1, tzinfo=dt.UTC)
"""The next attempt at a job that waits for another one, which wakes it in the transaction in which it ends."""


class Ticket(NamedTuple):
    """The right to work on a job: good for as long as the row has this number."""

    job_id: int
    number: int


class Claimant(NamedTuple):
    """A node with its liveness epoch, or an application outside of the cluster with the end of its lease."""

    by: str
    epoch: int = 0
    expires: dt.datetime | None = None


def ticket_of(job: Job) -> Ticket:
    """The ticket of the present claimant."""
    return Ticket(job.id, job.claim_number)


# --- by the claimant


def held(job: Job, ticket: Ticket) -> Job:
    """`job`, if the ticket is still good; `ClaimLost` otherwise (I-36)."""
    if job.claim_number != ticket.number or not job.claimed_by:
        raise ClaimLost(
            f"job {job.id} is {_whose(job)}; this claim ended, and nothing was changed",
            job=job.id,
            claim=ticket.number,
            current=job.claim_number,
        )
    return job


def checkpointed(job: Job, said: JobProgress) -> Job:
    """The job with what its claimant says of it; with a new checkpoint, attempts are counted anew."""
    moved = said.checkpoint is not None and said.checkpoint != job.checkpoint
    new = tuple(thing for thing in said.owns if thing not in job.owns)
    return replace(
        job,
        checkpoint=job.checkpoint if said.checkpoint is None else said.checkpoint,
        fraction=job.fraction if said.fraction is None else min(1.0, max(0.0, said.fraction)),
        progress=job.progress if said.progress is None else said.progress,
        owns=job.owns + new,
        attempts=1 if moved else job.attempts,
        error="" if moved and job.ending is None else job.error,
    )


def succeeded(job: Job, now: dt.datetime) -> Job:
    """The job is done. One that is being cancelled is not: its claimant has to stop."""
    if job.status not in (Status.RUNNING, Status.PAUSING):
        raise ClaimLost(f"job {job.id} is {job.status.value}; it cannot succeed any more", job=job.id)
    done = replace(job, status=Status.SUCCEEDED, finished=now, fraction=1.0, error="")
    return _unclaimed(done)


def failed(job: Job, error: str) -> Job:
    """The job cannot be done; it is to be reverted, and has failed then."""
    return replace(
        _unclaimed(job),
        status=Status.REVERTING,
        ending=job.ending or Status.FAILED,
        error=error[:ERROR_CHARS_MAX],
        attempts=0,
    )


def retried(job: Job, error: str, *, at: dt.datetime) -> Job:
    """The job, or its reverting, is to be tried again, not before `at`."""
    status = Status.PENDING if job.status is Status.RUNNING else job.status
    return replace(_unclaimed(job), status=status, error=error[:ERROR_CHARS_MAX], next_attempt=at)


def parked(job: Job) -> Job:
    """The job gives its claim up and waits until it is woken; that is no failed attempt."""
    status = Status.PENDING if job.status is Status.RUNNING else job.status
    return replace(_unclaimed(job), status=status, attempts=0, next_attempt=NOT_BEFORE_WOKEN)


def stopped(job: Job) -> Job:
    """The claimant of a job that is to be paused or cancelled has stopped; any other one is given up for the next claimant."""
    if job.status is Status.PAUSING:
        return replace(_unclaimed(job), status=Status.PAUSED)
    if job.status is Status.CANCELLING:
        return replace(_unclaimed(job), status=Status.REVERTING, attempts=0)
    status = Status.PENDING if job.status is Status.RUNNING else job.status
    return replace(_unclaimed(job), status=status, attempts=max(0, job.attempts - 1))


def reverted(job: Job, now: dt.datetime) -> Job:
    """Everything was undone: the job has failed, or is cancelled."""
    return replace(_unclaimed(job), status=job.ending or Status.CANCELLED, finished=now)


def renewed(job: Job, expires: dt.datetime) -> Job:
    """The job of an application whose lease goes on."""
    return replace(job, claim_expires=expires)


def _unclaimed(job: Job) -> Job:
    return replace(
        job, claimed_by="", claim_epoch=0, claim_expires=None, claim_number=job.claim_number + 1, next_attempt=None
    )


# --- by another job


def woken(job: Job) -> Job:
    """A job that waited may be worked on now; any other stays as it is."""
    return replace(job, next_attempt=None) if job.next_attempt == NOT_BEFORE_WOKEN else job


# --- by a node that finds it


def waits_for_claim(job: Job, *, now: dt.datetime) -> bool:
    """Whether a job without a claimant is to be worked on now; whether a claimant is gone is asked elsewhere."""
    if job.status.ended or job.status is Status.PAUSED or job.claimed_by:
        return False
    return job.next_attempt is None or job.next_attempt <= now


def taken(job: Job, claimant: Claimant, *, now: dt.datetime, attempts_max: int) -> Job:
    """The job in the hands of another claimant, or, if it was to be paused, paused."""
    if job.status is Status.PAUSING:
        return stopped(job)
    claimed = replace(
        job,
        claimed_by=claimant.by,
        claim_epoch=claimant.epoch,
        claim_expires=claimant.expires,
        claim_number=job.claim_number + 1,
        next_attempt=None,
        started=job.started or now,
        attempts=job.attempts + 1,
    )
    if job.status in (Status.CANCELLING, Status.REVERTING):
        return replace(claimed, status=Status.REVERTING, ending=job.ending or Status.CANCELLED)
    if job.attempts >= attempts_max:
        why = f"gave up after {job.attempts} attempts without progress: {job.error or 'each of its claimants was lost'}"
        return replace(claimed, status=Status.REVERTING, ending=Status.FAILED, error=why[:ERROR_CHARS_MAX], attempts=1)
    return replace(claimed, status=Status.RUNNING)


# --- by a user


def pause(job: Job) -> Job:
    """Stop working on a job until it is resumed."""
    if job.status is Status.PENDING:
        return replace(job, status=Status.PAUSED, next_attempt=None)
    if job.status is Status.RUNNING:
        return replace(job, status=Status.PAUSING)
    if job.status in (Status.PAUSING, Status.PAUSED):
        raise UsageError(
            f"job {job.id} is {job.status.value} already; resume it with `slackwater jobs resume {job.id}`"
        )
    raise _refused(job, "pause")


def resume(job: Job) -> Job:
    """Go on with a paused job."""
    if job.status is Status.PAUSED:
        return replace(job, status=Status.PENDING, attempts=0, next_attempt=None)
    if job.status is Status.PAUSING:
        raise UsageError(f"job {job.id} is still being paused; wait until it is paused, then resume it")
    if job.status in (Status.PENDING, Status.RUNNING):
        raise UsageError(f"job {job.id} is not paused: it is {job.status.value}")
    raise _refused(job, "resume")


def cancel(job: Job) -> Job:
    """Stop a job for good and undo what it did."""
    if job.status in (Status.PENDING, Status.PAUSED):
        return replace(job, status=Status.REVERTING, ending=Status.CANCELLED, next_attempt=None, attempts=0)
    if job.status in (Status.RUNNING, Status.PAUSING):
        return replace(job, status=Status.CANCELLING, ending=Status.CANCELLED)
    if not job.status.ended and job.ending is Status.CANCELLED:
        raise UsageError(f"job {job.id} is being cancelled already ({job.status.value})")
    raise _refused(job, "cancel")


def _refused(job: Job, what: str) -> UsageError:
    if job.status.ended:
        return UsageError(f"cannot {what} job {job.id}: it has ended, it {_ENDS[job.status]}")
    why = "failed and is being reverted" if job.ending is Status.FAILED else "is being cancelled"
    return UsageError(f"cannot {what} job {job.id}: it {why}")


_ENDS = {Status.SUCCEEDED: "succeeded", Status.FAILED: "failed", Status.CANCELLED: "was cancelled"}


def _whose(job: Job) -> str:
    return f"{job.status.value}, claimed by {job.claimed_by}" if job.claimed_by else job.status.value
