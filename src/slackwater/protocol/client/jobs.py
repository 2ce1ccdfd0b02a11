"""Durable jobs, as clients ask for them: look, steer, start, and work on one from outside of the cluster.

    all clients   jobs.list jobs.get                    the rows of `system.jobs`, as objects
    its creator   jobs.change                           pause, resume, cancel; operators may do it to every job
                  jobs.verify                           starts a job that nodes run
    application   jobs.start jobs.claim jobs.work       a job of type `application`, worked on outside: a Spark driver, a script

An application holds its claim for `jobs.lease_duration` from each message on (`jobs.work` renews it). When it falls silent, the
job waits for another application; what the former one still sends is refused by the number of its claim.
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.ids import Natural, Whole
from slackwater.model.jobs import Job, JobProgress
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import HEAVY, Method

LISTED_MAX = 10_000


class JobChange(enum.Enum):
    """What a user may ask of a job."""

    PAUSE = "pause"
    RESUME = "resume"
    CANCEL = "cancel"


class JobWork(enum.Enum):
    """What a claimant says of its job."""

    GOES_ON = "goes on"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    GIVEN_UP = "given up"


class ListJobs(msgspec.Struct, frozen=True):
    """Every job that is kept, newest last; with `statuses` or a `type`, only those."""

    statuses: tuple[str, ...] = ()
    type: str = ""


class JobsReply(msgspec.Struct, frozen=True):
    """Jobs, by id."""

    jobs: list[Job]


class GetJob(msgspec.Struct, frozen=True):
    """One job."""

    id: Whole


class JobReply(msgspec.Struct, frozen=True):
    """A job as it is now."""

    job: Job


class ChangeJob(msgspec.Struct, frozen=True):
    """Pause, resume or cancel a job."""

    id: Whole
    what: JobChange


class VerifyTable(msgspec.Struct, frozen=True):
    """Make a job that reads and decodes every row of a table as of a time (`MIN`: now)."""

    table: str
    at: Timestamp = MIN
    name: str = ""


class StartJob(msgspec.Struct, frozen=True):
    """Make a job that applications work on; with `application`, claimed by it at once."""

    description: str
    payload: str = "{}"
    name: str = ""
    application: str = ""


class ClaimJob(msgspec.Struct, frozen=True):
    """Claim a job for an application. The number of the claim is in the answer."""

    id: Whole
    application: str


class WorkOnJob(msgspec.Struct, frozen=True):
    """Renew a claim, write progress, or end the work."""

    id: Whole
    claim: Natural
    said: JobProgress = JobProgress()
    work: JobWork = JobWork.GOES_ON
    error: str = ""


LIST_JOBS: Method[ListJobs, JobsReply] = Method("db.jobs_list", ListJobs, JobsReply, callers=CLIENTS)
GET_JOB: Method[GetJob, JobReply] = Method("db.jobs_get", GetJob, JobReply, callers=CLIENTS)
CHANGE_JOB: Method[ChangeJob, JobReply] = Method("db.jobs_change", ChangeJob, JobReply, callers=CLIENTS)
VERIFY: Method[VerifyTable, JobReply] = Method("db.jobs_verify", VerifyTable, JobReply, callers=CLIENTS, weight=HEAVY)
START_JOB: Method[StartJob, JobReply] = Method("db.jobs_start", StartJob, JobReply, callers=CLIENTS)
CLAIM_JOB: Method[ClaimJob, JobReply] = Method("db.jobs_claim", ClaimJob, JobReply, callers=CLIENTS)
WORK_ON_JOB: Method[WorkOnJob, JobReply] = Method("db.jobs_work", WorkOnJob, JobReply, callers=CLIENTS)
