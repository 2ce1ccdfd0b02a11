"""Durable jobs of a cluster: look at them, steer them, wait for them, and work on one from here.

    db.jobs.list(status="running")              rows of `system.jobs`, as objects
    db.jobs.pause(17); db.jobs.resume(17); db.jobs.cancel(17)
    job = db.jobs.verify("orders")              nodes read and decode every row of a table
    db.jobs.wait(job.id)

    claim = db.jobs.start("export of May", application="export-host-3")     a job whose work is done here
    claim.work(checkpoint=…, fraction=0.5, progress="7 of 14 files")        renews the claim, too
    claim.succeed()

A claim that is not renewed for `jobs.lease_duration` runs out, and another application may `claim` the job and go on from its
checkpoint. Whatever the former one still says is refused with `ClaimLost`, and it has to stop.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.client.arguments import duration_of, names_of, text_of, time_of
from slackwater.client.gateways import Resend
from slackwater.clock.timestamp import MIN
from slackwater.errors import ClaimLost, DeadlineExceeded, UsageError
from slackwater.model.jobs import Job, JobProgress, Status
from slackwater.protocol.client import jobs as calls

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.clock.timestamp import Timestamp

WAIT_S_MIN, WAIT_S_MAX = 0.05, 1.0
WAIT_SHARE = 0.05
"""Pauses between two looks at a job that is waited for: a share of the time since the first, within these bounds."""


class AsyncJobClaim:
    """The right to work on a job from outside of the cluster. Made by `db.jobs.start` and `claim`."""

    def __init__(self, gateways: Gateways, job: Job) -> None:
        self._gateways = gateways
        self._job = job
        self._number = job.claim_number

    @property
    def job(self) -> Job:
        """The job as of the last message."""
        return self._job

    @property
    def number(self) -> int:
        """The number of this claim; the row of the job has another one once the claim has ended."""
        return self._number

    @property
    def payload(self) -> Any:
        """What to do."""
        return msgspec.json.decode(self._job.payload)

    @property
    def checkpoint(self) -> Any:
        """How far the job is."""
        return msgspec.json.decode(self._job.checkpoint)

    async def work(self, *, checkpoint: Any = None, fraction: float | None = None, progress: str | None = None) -> Job:
        """Renew the claim, and write how far the job is. `ClaimLost` when it is to be stopped, or is another's."""
        encoded = None if checkpoint is None else _json(checkpoint)
        said = JobProgress(checkpoint=encoded, fraction=fraction, progress=progress)
        job = await self._say(said, calls.JobWork.GOES_ON)
        if job.status is not Status.RUNNING:
            raise ClaimLost(f"job {job.id} was asked to stop and is {job.status.value}; this claim ended", job=job.id)
        return job

    async def succeed(self) -> Job:
        """End the job: it is done."""
        return await self._say(JobProgress(), calls.JobWork.SUCCEEDED)

    async def fail(self, error: str) -> Job:
        """End the job: it cannot be done."""
        return await self._say(JobProgress(), calls.JobWork.FAILED, text_of(error, "error", "disk full"))

    async def give_up(self) -> Job:
        """Let another application go on with the job at once."""
        return await self._say(JobProgress(), calls.JobWork.GIVEN_UP)

    async def _say(self, said: JobProgress, work: calls.JobWork, error: str = "") -> Job:
        request = calls.WorkOnJob(self._job.id, self._number, said, work, error)
        # what ends the claim must not be told twice: the second time it would be refused
        resend = Resend.ALWAYS if work is calls.JobWork.GOES_ON else Resend.IF_UNSENT
        reply = await self._gateways.call(calls.WORK_ON_JOB, request, deadline=self._gateways.deadline(), resend=resend)
        self._job = reply.job
        return reply.job


class AsyncJobs:
    """The jobs of a cluster. Made by `db.jobs`."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways

    async def list(self, *, status: str | Sequence[str] = (), kind: str = "") -> list[Job]:
        """Every job that is kept, by id; those of some status or kind."""
        request = calls.ListJobs(names_of(status, "status"), text_of(kind, "kind", "verify"))
        return (await self._gateways.call(calls.LIST_JOBS, request, deadline=self._gateways.deadline())).jobs

    async def get(self, job_id: int) -> Job:
        """One job."""
        request = calls.GetJob(_id(job_id))
        return (await self._gateways.call(calls.GET_JOB, request, deadline=self._gateways.deadline())).job

    async def pause(self, job_id: int) -> Job:
        """Have a job stopped until it is resumed."""
        return await self._change(job_id, calls.JobChange.PAUSE)

    async def resume(self, job_id: int) -> Job:
        """Have a paused job gone on with."""
        return await self._change(job_id, calls.JobChange.RESUME)

    async def cancel(self, job_id: int) -> Job:
        """Have a job stopped for good, and what it did undone."""
        return await self._change(job_id, calls.JobChange.CANCEL)

    async def wait(self, job_id: int, *, timeout: float | None = None) -> Job:
        """Return when a job has ended, however it ended; `DeadlineExceeded` after `timeout` seconds."""
        limit_s = duration_of(timeout, "timeout")
        clock = self._gateways.runtime.clock
        began_ns = clock.monotonic_ns()
        while not (job := await self.get(job_id)).status.ended:
            waited_s = (clock.monotonic_ns() - began_ns) / 1e9
            if limit_s is not None and waited_s >= limit_s:
                raise DeadlineExceeded(f"job {job.id} has not ended after {limit_s:g} s: it is {job.status.value}")
            await clock.sleep(min(WAIT_S_MAX, max(WAIT_S_MIN, WAIT_SHARE * waited_s)))
        return job

    async def verify(self, table: str, *, at: Timestamp | dt.datetime | str | int | None = None, name: str = "") -> Job:
        """Start a job that reads and decodes every row of a table as of a time, or as of now.

        With a `name`, at most once: the second call returns the job of the first.
        """
        ts = MIN if at is None else time_of(at, self._gateways.clock)
        request = calls.VerifyTable(text_of(table, "table", "orders"), ts, text_of(name, "name", "nightly/7"))
        resend = Resend.ALWAYS if name else Resend.IF_UNSENT
        return (await self._gateways.call(calls.VERIFY, request, deadline=self._gateways.deadline(), resend=resend)).job

    async def start(self, description: str, *, application: str, payload: Any = None, name: str = "") -> AsyncJobClaim:
        """Make a job whose work is done by an application, and claim it. With a `name`, at most once: see `claim`."""
        text_of(description, "description", "export of May")
        encoded = _json({} if payload is None else payload)
        request = calls.StartJob(
            description, encoded, text_of(name, "name", "export/2026-05"), _application(application)
        )
        resend = Resend.ALWAYS if name else Resend.IF_UNSENT
        reply = await self._gateways.call(calls.START_JOB, request, deadline=self._gateways.deadline(), resend=resend)
        if reply.job.claimed_by != application:
            raise UsageError(
                f"the job {name!r} is there already: job {reply.job.id}, {reply.job.status.value}; `claim` it to go on with it",
                job=reply.job.id,
            )
        return AsyncJobClaim(self._gateways, reply.job)

    async def claim(self, job_id: int, *, application: str) -> AsyncJobClaim:
        """Go on with a job that waits for an application, or whose application has fallen silent."""
        request = calls.ClaimJob(_id(job_id), _application(application))
        deadline = self._gateways.deadline()
        reply = await self._gateways.call(calls.CLAIM_JOB, request, deadline=deadline, resend=Resend.IF_UNSENT)
        return AsyncJobClaim(self._gateways, reply.job)

    async def _change(self, job_id: int, what: calls.JobChange) -> Job:
        request = calls.ChangeJob(_id(job_id), what)
        deadline = self._gateways.deadline()
        return (await self._gateways.call(calls.CHANGE_JOB, request, deadline=deadline, resend=Resend.IF_UNSENT)).job


def _id(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 63:
        raise UsageError("a job has a number, such as 17", got=value)
    return value


def _application(value: object) -> str:
    if not text_of(value, "application", "export-host-3"):
        raise UsageError("an application needs a name, such as export-host-3, that tells it from others")
    return str(value)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value).decode()
    except (TypeError, msgspec.MsgspecError) as error:
        raise UsageError(f"a payload or checkpoint is made of what JSON has: {error}") from None
