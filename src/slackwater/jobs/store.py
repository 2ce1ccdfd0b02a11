"""Jobs in the store: every change of one is a transaction that reads its row first.

create, take        a new row; another claim
step, succeed, …    what a claimant does, with the number of its claim compared in the same transaction (I-36)
end                 the last write of a job; what it owns is released with it
collect             rows of jobs that ended are removed once their retention is over
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
from msgspec.structs import replace

from slackwater.errors import AccessDenied, UsageError, invariant
from slackwater.hooks import probe
from slackwater.jobs import transitions as to
from slackwater.jobs.record import (
    JOB_ID_KEY,
    decode_id,
    encode_id,
    id_of_open,
    job_of,
    name_key,
    open_key,
    open_span,
    row_of,
)
from slackwater.model.jobs import Job, Owned, Status, instant
from slackwater.model.system_tables import JOBS
from slackwater.protocol.range.requests import Get, Value
from slackwater.settings import describe
from slackwater.txn.system_rows import RowReader, SystemRows

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from slackwater.jobs.registry import JobTypes
    from slackwater.model.jobs import JobProgress
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.kv import KV

    Work = Callable[[Transaction], Awaitable[JobProgress | None]]
    T = TypeVar("T")

OPEN_MAX = 10_000
"""Jobs that have not ended; more cannot be made."""
DATA_BYTES_MAX = 64 << 10
"""Of a payload, and of a checkpoint, that a client writes: nodes read all jobs that have not ended, whenever one changes."""
NAME_CHARS_MAX = 512
TEXT_CHARS_MAX = 4000
OPEN_AT_ONCE = 32
LISTED_BYTES = 4 << 20
"""Of a list of jobs, which goes to a client in one message."""
COLLECTED_AT_ONCE = 256
PAGE_BYTES = 1 << 20
"""Stored bytes of rows after which one read of many ends."""
assert describe("rpc.frame_bytes_max").default > OPEN_AT_ONCE * (2 * DATA_BYTES_MAX + 8 * TEXT_CHARS_MAX), (
    "jobs that are read together fit one message"
)


class JobStore:
    """The jobs of a cluster."""

    def __init__(self, kv: KV, types: JobTypes) -> None:
        self._kv = kv
        self.types = types
        self.rows = SystemRows(JOBS)
        self.check_room: Callable[[str], None] = lambda _creator: None
        """Refuses one more job of a creator who has as many as may be. `Jobs`, which looks through them, sets it."""

    def now(self) -> dt.datetime:
        """What times in rows are taken from."""
        return instant(self._kv.context.clock.now())

    # --- reading

    async def get(self, reader: RowReader, job_id: int) -> Job:
        """A job by its id."""
        found = await self.rows.get(reader, job_id) if 0 <= job_id < 1 << 63 else None
        if found is None:
            raise UsageError(f"there is no job {job_id}; `slackwater jobs list` shows those that are kept", job=job_id)
        return job_of(found)

    async def newest(
        self,
        wanted: Callable[[Job], Job | None] = lambda job: job,
        *,
        most: int = OPEN_MAX,
        bytes_most: int = LISTED_BYTES,
        timeout: float | None = None,
    ) -> list[Job]:
        """The newest jobs that are kept, by id, as `wanted` shows them (None: not at all): at most so many, and so many bytes."""
        span, deadline = self.rows.span(), self._kv.context.deadline(timeout)
        found: list[Job] = []
        size, end = 0, span.end
        while span.start < end:
            page = await self._kv.reverse_scan(span.start, end, max_bytes=PAGE_BYTES, timeout=deadline.remaining())
            for value in page.values:
                job = wanted(job_of(self.rows.codec.decode(value)))
                if job is None:
                    continue
                size += len(msgspec.json.encode(job))
                if found and (len(found) == most or size > bytes_most):
                    return found[::-1]
                found.append(job)
            end = span.start if page.resume is None else page.resume
        return found[::-1]

    async def open(self) -> list[Job]:
        """Every job that has not ended, by id, without what only its claimant needs: payload and checkpoint."""
        start, end = open_span().start, open_span().end
        found: list[Job] = []
        while start < end:
            page = await self._kv.scan(start, end, max_keys=OPEN_AT_ONCE)
            start = end if page.resume is None else page.resume
            if page.keys:
                rows = await self._kv.batch([Get(self.rows.key(id_of_open(key))) for key in page.keys])
                values = [row.value for row in rows if isinstance(row, Value) and row.value is not None]
                jobs = [job_of(self.rows.codec.decode(value)) for value in values]
                found += [replace(job, payload="", checkpoint="") for job in jobs if not job.status.ended]
        return found

    async def named(self, txn: Transaction, name: str) -> Job | None:
        """The job that has this name."""
        found = await txn.get(name_key(name))
        return None if found is None else await self.get(txn, decode_id(found))

    # --- making

    async def create(
        self,
        txn: Transaction,
        kind: str,
        *,
        description: str,
        payload: str = "{}",
        creator: str = "",
        name: str = "",
        owns: Sequence[Owned] = (),
        claimant: to.Claimant | None = None,
        parked: bool = False,
    ) -> Job:
        """Make a job in the caller's transaction; one that has the same name already is returned instead.

        One that is `parked` is not worked on before another job wakes it.
        """
        if self.types.find(kind) is None:
            raise UsageError(f"there are no jobs of type {kind!r}", type=kind)
        if len(name) > NAME_CHARS_MAX or len(description) > TEXT_CHARS_MAX:
            raise UsageError(
                f"a job's name has at most {NAME_CHARS_MAX} characters and its description {TEXT_CHARS_MAX}",
                name=name[:NAME_CHARS_MAX],
            )
        if name and (found := await self.named(txn, name)) is not None:
            if found.type != kind:
                raise UsageError(
                    f"the name {name!r} belongs to job {found.id}, which is of type {found.type}; pick another",
                    job=found.id,
                )
            probe("jobs.made_already")
            return found
        self.check_room(creator)
        # outside of the transaction: creators do not wait for one another, and an id that is not used is no loss
        job_id = await self._kv.increment(JOB_ID_KEY)
        now = self.now()
        job = Job(
            id=job_id,
            type=kind,
            description=description,
            creator=creator,
            created=now,
            payload=payload,
            name=name,
            owns=tuple(owns),
            next_attempt=to.NOT_BEFORE_WOKEN if parked else None,
        )
        if claimant is not None:
            job = to.taken(job, claimant, now=now, attempts_max=1)
        await self.write(txn, job, before=None)
        if name:
            await txn.put(name_key(name), encode_id(job_id))
        return job

    # --- changing

    async def write(self, txn: Transaction, job: Job, *, before: Job | None) -> None:
        """Write a job's row and the note that it has not ended. Every change of a job passes here."""
        if before is not None:
            invariant(not before.status.ended, "I-36", job=job.id, status=before.status.value)
            invariant(job.claim_number >= before.claim_number, "I-36", job=job.id, claim=job.claim_number)
        await self.rows.put(txn, row_of(job))
        if job.status.ended:
            await txn.delete(open_key(job.id))
        elif before is None or before.status is not job.status or before.claim_number != job.claim_number:
            await txn.put(open_key(job.id), job.status.value.encode())

    async def end(self, txn: Transaction, job: Job, *, before: Job) -> Job:
        """Write the last state of a job and release what it owns."""
        invariant(job.status.ended, "I-36", job=job.id, status=job.status.value)
        await self.types.release(txn, job)
        done = replace(job, owns=())
        await self.write(txn, done, before=before)
        return done

    async def step(self, txn: Transaction, ticket: to.Ticket, work: Work) -> Job:
        """One step of a claimant in its transaction: the claim is compared, `work` done, and what it says written."""
        before = to.held(await self.get(txn, ticket.job_id), ticket)
        said = await work(txn)
        if said is None:
            return before
        job = to.checkpointed(before, said)
        await self.write(txn, job, before=before)
        return job

    async def succeed(self, txn: Transaction, ticket: to.Ticket, work: Work | None = None) -> Job:
        """End a job that is done, with the last things it does."""
        before = to.held(await self.get(txn, ticket.job_id), ticket)
        to.succeeded(before, self.now())  # what cannot succeed is told before it writes
        said = None if work is None else await work(txn)
        job = before if said is None else to.checkpointed(before, said)
        return await self.end(txn, to.succeeded(job, self.now()), before=before)

    async def change(self, txn: Transaction, ticket: to.Ticket, how: Callable[[Job], Job]) -> Job:
        """Any other change by a claimant; one that ends the job releases what it owns."""
        before = to.held(await self.get(txn, ticket.job_id), ticket)
        job = how(before)
        if job.status.ended:
            return await self.end(txn, job, before=before)
        await self.write(txn, job, before=before)
        return job

    async def ask(self, txn: Transaction, job_id: int, how: Callable[[Job], Job], *, by: str | None) -> Job:
        """A user's pause, resume or cancel; `by` None is for those who may do it to every job."""
        before = await self.get(txn, job_id)
        if by is not None and before.creator != by:
            whose = before.creator or "the operators"
            raise AccessDenied(f"job {job_id} belongs to {whose}; its creator or an operator may change it", job=job_id)
        job = how(before)
        kind = self.types.find(job.type)
        if job.status in (Status.PAUSING, Status.PAUSED) and kind is not None and not kind.pausable:
            raise UsageError(f"job {job_id} is a {job.type} and cannot be paused; cancel it, or let it end")
        await self.write(txn, job, before=before)
        return job

    async def wake(self, txn: Transaction, job_id: int) -> None:
        """Let a parked job be worked on, and have nodes look for it at once."""
        before = await self.get(txn, job_id)
        if (job := to.woken(before)) != before:
            await self.write(txn, job, before=before)
            await txn.put(open_key(job.id), job.status.value.encode())

    async def let_end(self, txn: Transaction, job_id: int) -> None:
        """Have a job end whose work is pointless now: it is woken to find that out, and cancelled if it is paused."""
        before = await self.get(txn, job_id)
        if before.status in (Status.PAUSED, Status.PAUSING):
            probe("jobs.paused_for_nothing")
            await self.write(txn, to.cancel(before), before=before)
        else:
            await self.wake(txn, job_id)

    async def take(self, txn: Transaction, seen: Job, claimant: to.Claimant, *, attempts_max: int) -> Job | None:
        """Claim a job whose claimant, as of `seen`, is gone or was never there; None if it has changed since."""
        before = await self.get(txn, seen.id)
        if before.claim_number != seen.claim_number or before.status.ended or before.status is Status.PAUSED:
            return None
        job = to.taken(before, claimant, now=self.now(), attempts_max=attempts_max)
        await self.write(txn, job, before=before)
        return job

    async def collect(self, start: bytes, *, older_than: Mapping[str, dt.datetime]) -> bytes:
        """Remove rows of jobs that ended before the time of their type, of some rows from `start` on; returns where to go on."""
        span = self.rows.span()
        found = await self._kv.scan(max(start, span.start), span.end, max_keys=COLLECTED_AT_ONCE, max_bytes=PAGE_BYTES)
        jobs = map(job_of, map(self.rows.codec.decode, found.values))
        old = [job for job in jobs if job.type in older_than and _is_old(job, older_than[job.type])]
        if old:
            probe("jobs.collected")

            async def work(txn: Transaction) -> None:
                for job in old:  # it has ended, so it is what it was
                    kind = self.types.find(job.type)
                    if kind is not None and kind.forget is not None:
                        await kind.forget(txn, job)
                    await self.rows.delete(txn, job.id)
                    if job.name:
                        await txn.delete(name_key(job.name))

            await self._kv.run(work)
        return b"" if found.resume is None else found.resume

    async def run(self, function: Callable[[Transaction], Awaitable[T]], *, timeout: float | None = None) -> T:
        """Run a function of these in a transaction of its own."""
        return await self._kv.run(function, timeout=timeout)


def _is_old(job: Job, older_than: dt.datetime) -> bool:
    return job.status.ended and job.finished is not None and job.finished < older_than
