"""A durable job as every layer sees it: one row of `system.jobs`, its status, its claim, what it owns. Pure.

    pending ──► running ──────────────────────────────► succeeded
      ▲  │        │  │ error that passes, node lost
      │  │        │  └──► pending again, after a pause
      │  │        ├─────► pausing ──► paused ──► pending (resume)
      │  │        ├─ error that stays ──────────┐
      │  │        └─────► cancelling ──► reverting ──► failed | cancelled
      │  └────── paused, cancelled before it ran

A job that ended never changes again. `claim_number` grows whenever the claim is taken or given up, so a claimant that holds the
number of the row holds the job, and one that holds any other number holds nothing (I-36).
"""

from __future__ import annotations

import datetime as dt
import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp, us_of

if TYPE_CHECKING:
    from collections.abc import Iterable


class Status(enum.Enum):
    """Where a job stands."""

    PENDING = "pending"
    RUNNING = "running"
    PAUSING = "pausing"
    PAUSED = "paused"
    CANCELLING = "cancelling"
    REVERTING = "reverting"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    CANCELLED = "cancelled"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens to the job."""
        return self in _ENDED


_ENDED = frozenset((Status.SUCCEEDED, Status.FAILED, Status.CANCELLED))


class Owned(msgspec.Struct, frozen=True, array_like=True):
    """Something that exists only for a job and is released in the transaction that ends it."""

    kind: str
    """Names the release function (`jobs.registry`)."""
    ref: str


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """One job."""

    id: int
    type: str
    description: str
    creator: str
    """The user who made it, by the name in the certificate; "" for the system and for operators."""
    created: dt.datetime
    status: Status = Status.PENDING
    payload: str = "{}"
    """What to do: JSON, written once."""
    checkpoint: str = "{}"
    """How far it is: JSON, for the next claimant to go on from."""
    fraction: float = 0.0
    progress: str = ""
    """One line for people."""
    claimed_by: str = ""
    """`n3`, or the name of an application outside of the cluster; "" without a claim."""
    claim_epoch: int = 0
    """The liveness epoch under which a node claimed; 0 for an application."""
    claim_expires: dt.datetime | None = None
    """When an application's claim ends unless it is renewed; None for a node's, which ends with its epoch."""
    claim_number: int = 0
    started: dt.datetime | None = None
    finished: dt.datetime | None = None
    next_attempt: dt.datetime | None = None
    """Not claimed again before."""
    attempts: int = 0
    """Claims since the last checkpoint."""
    error: str = ""
    """Why it failed, or what went wrong last."""
    ending: Status | None = None
    """What a job that is being reverted becomes: failed or cancelled."""
    owns: tuple[Owned, ...] = ()
    name: str = ""
    """Unique among jobs that are kept; makes creating a job repeatable."""


class JobProgress(msgspec.Struct, frozen=True, kw_only=True):
    """What a claimant says of its job; what is None stays as it is."""

    checkpoint: str | None = None
    fraction: float | None = None
    progress: str | None = None
    owns: tuple[Owned, ...] = ()
    """What the job owns from now on, beside what it owned before."""


def oldest_running_s(jobs: Iterable[Job], now: dt.datetime) -> float:
    """How long ago the oldest of the running jobs was first started; 0 without any."""
    started = [job.started for job in jobs if job.status is Status.RUNNING and job.started is not None]
    return max(0.0, (now - min(started)).total_seconds()) if started else 0.0


_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def instant(ts: Timestamp) -> dt.datetime:
    """A timestamp as the rows of jobs have it."""
    return _EPOCH + dt.timedelta(microseconds=us_of(ts))
