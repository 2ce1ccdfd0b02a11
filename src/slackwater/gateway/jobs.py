"""What a gateway does about jobs for its clients (`protocol.client.jobs`).

Reading is for every client. A job is paused, resumed, cancelled and worked on by the user who made it, by the name in the
certificate, or by operators.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from slackwater.clock.timestamp import show
from slackwater.errors import AccessDenied, UnavailableError, UsageError
from slackwater.gateway.tables import owner_of
from slackwater.gateway.verify import VERIFY_TYPE, Verify, payload_of
from slackwater.jobs import JobType
from slackwater.jobs import transitions as to
from slackwater.jobs.store import DATA_BYTES_MAX, TEXT_CHARS_MAX
from slackwater.model.jobs import Job, JobProgress, Owned, Status
from slackwater.model.protection import OWNED, OWNED_BY_JOB, Mode
from slackwater.protocol.client import jobs as calls

if TYPE_CHECKING:
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.jobs import Jobs, RunningJob
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.txn import Transaction

APPLICATION = "application"
"""The type of jobs that are worked on outside of the cluster."""
APPLICATION_CHARS_MAX = 256
SHOWN_CHARS = 4_000
"""Of a payload or a checkpoint: a list leaves longer ones out."""
_CHANGES = {calls.JobChange.PAUSE: to.pause, calls.JobChange.RESUME: to.resume, calls.JobChange.CANCEL: to.cancel}


class Application:
    """Jobs of applications, in the hands of a node: their claim ran out, or they are to be reverted."""

    async def resume(self, job: RunningJob) -> None:
        """Let the job wait for another application; an attempt without progress is over."""
        raise UnavailableError("the application that worked on the job did not renew its claim")

    async def revert(self, job: RunningJob) -> None:
        """Undo nothing: only the application knows what to undo. What the job owns is released in any case."""


class JobService:
    """Jobs, on one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        types = gateway.node.job_types
        types.add(JobType(APPLICATION, Application(), external=True))
        types.add(JobType(VERIFY_TYPE, Verify(gateway)))

    def serve(self, server: RpcServer) -> None:
        """Answer clients."""
        server.handle(calls.LIST_JOBS, self.list)
        server.handle(calls.GET_JOB, self.get)
        server.handle(calls.CHANGE_JOB, self.change)
        server.handle(calls.VERIFY, self.verify)
        server.handle(calls.START_JOB, self.start)
        server.handle(calls.CLAIM_JOB, self.claim)
        server.handle(calls.WORK_ON_JOB, self.work)

    @property
    def _jobs(self) -> Jobs:
        return self._gateway.node.jobs

    async def list(self, request: calls.ListJobs, context: CallContext) -> calls.JobsReply:
        """Jobs by id; of too many, the newest. Long payloads and checkpoints are left out: `get` has them."""
        known = {status.value for status in Status}
        if unknown := sorted(set(request.statuses) - known):
            raise UsageError(f"there is no status {unknown[0]!r}; there are {', '.join(s.value for s in Status)}")

        def wanted(job: Job) -> Job | None:
            right = not request.statuses or job.status.value in request.statuses
            return _shortened(job) if right and (not request.type or job.type == request.type) else None

        found = await self._jobs.store.newest(wanted, most=calls.LISTED_MAX, timeout=context.remaining())
        return calls.JobsReply(found)

    async def get(self, request: calls.GetJob, context: CallContext) -> calls.JobReply:
        """One job."""
        return calls.JobReply(await self._jobs.store.get(self._gateway.kv, request.id))

    async def change(self, request: calls.ChangeJob, context: CallContext) -> calls.JobReply:
        """Pause, resume or cancel."""
        how, by = _CHANGES[request.what], owner_of(context)
        return calls.JobReply(await self._jobs.ask(request.id, how, by=by, timeout=context.remaining()))

    async def verify(self, request: calls.VerifyTable, context: CallContext) -> calls.JobReply:
        """Start the verification of a table, with what it reads protected from collection for as long as the job lasts."""
        creator = owner_of(context) or ""
        history = await self._gateway.catalog.find(request.table)
        now = self._gateway.node.clock.now()
        at = request.at or now
        if at > now:
            raise UsageError(f"{show(at)} is in the future; verify a table as of now or of the past", at=at)
        history.readable_at(at)
        jobs, table_id = self._jobs, history.latest.table_id
        protections = self._gateway.node.protections.store

        async def work(txn: Transaction) -> Job:
            job = await jobs.store.create(
                txn,
                VERIFY_TYPE,
                description=f"read and decode every row of table {request.table}",
                payload=payload_of(table_id, at),
                creator=creator,
                name=request.name,
            )
            if job.creator != creator:
                raise AccessDenied(
                    f"the name {request.name!r} belongs to a job of another user; pick another", job=job.id
                )
            if job.owns or job.attempts or job.status is not Status.PENDING:
                return job  # it was made before, under the same name
            record = await protections.protect(
                txn, at, Mode.AT, OWNED_BY_JOB, str(job.id).encode(), tables=[table_id], user=creator
            )
            kept = to.checkpointed(job, JobProgress(owns=(Owned(OWNED, record.hex()),)))
            await jobs.store.write(txn, kept, before=job)
            return kept

        made = await jobs.store.run(work, timeout=context.remaining())
        jobs.ring()
        return calls.JobReply(made)

    # --- applications

    async def start(self, request: calls.StartJob, context: CallContext) -> calls.JobReply:
        """Make a job for applications."""
        jobs, creator = self._jobs, owner_of(context) or ""
        claimant = self._claimant(request.application) if request.application else None
        _check_json(request.payload, "payload")

        async def work(txn: Transaction) -> Job:
            return await jobs.store.create(
                txn,
                APPLICATION,
                description=request.description,
                payload=request.payload,
                creator=creator,
                name=request.name,
                claimant=claimant,
            )

        return calls.JobReply(await jobs.store.run(work, timeout=context.remaining()))

    async def claim(self, request: calls.ClaimJob, context: CallContext) -> calls.JobReply:
        """Claim a job that waits for an application, or whose application has fallen silent."""
        jobs, claimant = self._jobs, self._claimant(request.application)
        attempts_max = int(self._gateway.node.settings["jobs.attempts_max"])

        async def work(txn: Transaction) -> Job:
            before = await self._mine(txn, request.id, context)
            if before.status not in (Status.PENDING, Status.RUNNING):
                raise UsageError(f"job {before.id} cannot be claimed: it is {before.status.value}")
            held = before.claim_expires is None or before.claim_expires > jobs.store.now()
            if before.claimed_by and held:
                raise UsageError(f"job {before.id} is claimed by {before.claimed_by}; wait until its lease runs out")
            job = to.taken(before, claimant, now=jobs.store.now(), attempts_max=attempts_max)
            await jobs.store.write(txn, job, before=before)
            return job

        claimed = await jobs.store.run(work, timeout=context.remaining())
        jobs.ring()
        if claimed.status is not Status.RUNNING:
            raise UsageError(f"job {claimed.id} cannot be claimed: {claimed.error}")
        return calls.JobReply(claimed)

    async def work(self, request: calls.WorkOnJob, context: CallContext) -> calls.JobReply:
        """Renew, write progress, end. A job that is to be paused or cancelled is given up instead, and the answer tells."""
        jobs, ticket = self._jobs, to.Ticket(request.id, request.claim)
        if request.said.checkpoint is not None:
            _check_json(request.said.checkpoint, "checkpoint")
        if len(request.said.progress or "") > TEXT_CHARS_MAX:
            raise UsageError(f"a line of progress has at most {TEXT_CHARS_MAX} characters")
        if request.said.owns:
            raise UsageError("what a job owns is added by what makes it, such as a protection for the job")

        async def work(txn: Transaction) -> Job:
            before = to.held(await self._mine(txn, request.id, context), ticket)
            job = to.checkpointed(before, request.said)
            if request.work is calls.JobWork.SUCCEEDED:
                return await jobs.store.end(txn, to.succeeded(job, jobs.store.now()), before=before)
            if request.work is calls.JobWork.FAILED:
                job = to.failed(job, request.error)
            elif request.work is calls.JobWork.GIVEN_UP or job.status is not Status.RUNNING:
                job = to.stopped(job)
            else:
                job = to.renewed(job, self._lease_end())
            await jobs.store.write(txn, job, before=before)
            return job

        done = await jobs.store.run(work, timeout=context.remaining())
        jobs.ring()
        return calls.JobReply(done)

    async def _mine(self, txn: Transaction, job_id: int, context: CallContext) -> Job:
        """A job of applications that the caller may work on."""
        job, by = await self._jobs.store.get(txn, job_id), owner_of(context)
        if job.type != APPLICATION:
            raise UsageError(
                f"job {job.id} is run by nodes ({job.type}); applications work on jobs of type {APPLICATION}"
            )
        if by is not None and job.creator != by:
            raise AccessDenied(f"job {job_id} belongs to {job.creator or 'the operators'}", job=job_id)
        return job

    def _claimant(self, application: str) -> to.Claimant:
        if not 0 < len(application) <= APPLICATION_CHARS_MAX:
            raise UsageError(f"an application has a name of 1 to {APPLICATION_CHARS_MAX} characters")
        return to.Claimant(application, 0, self._lease_end())

    def _lease_end(self) -> dt.datetime:
        lease = dt.timedelta(seconds=self._gateway.node.settings["jobs.lease_duration"])
        return self._jobs.store.now() + lease


def _check_json(text: str, what: str) -> None:
    if (size := len(text.encode())) > DATA_BYTES_MAX:
        raise UsageError(f"a {what} has at most {DATA_BYTES_MAX} bytes; keep more in a table", bytes=size)
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise UsageError(f"a {what} is JSON: {error}") from None


def _shortened(job: Job) -> Job:
    """A job as a list shows it."""
    payload, checkpoint = (text if len(text) <= SHOWN_CHARS else "" for text in (job.payload, job.checkpoint))
    return replace(job, payload=payload, checkpoint=checkpoint)
