"""Staged writes as jobs: a job of type `staged write` owns the rows that were staged under its name, until it ends.

    first chunk    ──► job `staged/<name>`, running, claimed by the client that stages, with a lease of `staging.ttl`
    more chunks    ──► the lease is renewed
    publish        ──► the rows become visible, the job succeeds and its staged rows go: one transaction
    drop           ──► the job is cancelled, and its staged rows go
    silence        ──► the lease runs out; a node takes the job over, it fails, and its staged rows go

So `slackwater jobs` shows every write that is on its way, and cancels it. A name is 16 bytes that the client chose: of a whole
write with many tasks, or of a part that stands alone.

Chunks are written outside of transactions, because they are many and large; afterwards the claim is looked at once more. Either
it still holds, and then the end of the job will find them; or it has ended, and they are removed at once. What a gateway leaves
that dies in between is removed when the job's row is (`forget`).
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from slackwater.codec.layout import system
from slackwater.errors import ClaimLost, UsageError
from slackwater.hooks import level, probe
from slackwater.jobs import JobType
from slackwater.jobs import transitions as to
from slackwater.model.jobs import Job, JobProgress, Owned, Status
from slackwater.model.spans import Span
from slackwater.protocol.client.staging import PART_BYTES

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.gateway.service import Gateway
    from slackwater.jobs import RunningJob
    from slackwater.jobs.store import JobStore
    from slackwater.txn.coordinator import Transaction

STAGED = "staged write"
_STAGING, _COUNT = "staging", "staged_rows"
NUMBER_BYTES = 4
TASKS_MAX = 1 << 24
KNOWN_MAX = 1024
"""Writes under way whose claims a gateway remembers; others are read again."""
GONE = "staged rows are gone: they were published, dropped, or not renewed for staging.ttl; run the job again"


class RowsPublished(msgspec.Struct, frozen=True):
    """The checkpoint of a staged write: how many rows its publish brought."""

    rows: int = 0


class StagedWrite:
    """Staged writes in the hands of a node: the client fell silent, or the write was cancelled."""

    async def resume(self, job: RunningJob) -> None:
        """Fail: only the client has the rest of the rows."""
        raise UsageError("the client that staged rows did not go on for staging.ttl; they were removed")

    async def revert(self, job: RunningJob) -> None:
        """Undo nothing: no row is visible yet, and the staged rows go with the end of the job."""


class StagedJobs:
    """The jobs of staged writes, as one gateway knows them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._known: dict[bytes, Job] = {}
        types = gateway.node.job_types
        types.add(
            JobType(STAGED, StagedWrite(), external=True, pausable=False, retention="staging.ttl", forget=_forget)
        )
        types.releases[STAGED] = _release

    @property
    def _store(self) -> JobStore:
        self._gateway.catalog  # noqa: B018 - refuses while there is no cluster
        return self._gateway.node.jobs.store

    async def open(self, name: bytes, *, table: str, creator: str, timeout: float | None) -> Job:
        """The job of a write, made if this is its first word; an error if it has ended."""
        found = self._known.get(name)
        if found is not None:
            return found
        store = self._store
        claimant = to.Claimant("client", 0, self._lease_end())

        async def work(txn: Transaction) -> Job:
            return await store.create(
                txn,
                STAGED,
                description=f"write to table {table}" if table else "write from many processes",
                creator=creator,
                name=job_name(name),
                owns=(Owned(STAGED, name.hex()),),
                claimant=claimant,
            )

        return self._remember(name, _open(await store.run(work, timeout=timeout)))

    async def confirm(self, name: bytes, job: Job, *, timeout: float | None) -> None:
        """After chunks were written: renew the lease, or remove them if the job has ended meanwhile."""
        store, lease_s = self._store, self._gateway.node.settings["staging.ttl"]
        try:
            if job.claim_expires is not None and job.claim_expires - store.now() > dt.timedelta(seconds=lease_s / 2):
                to.held(await store.get(self._gateway.kv, job.id), to.ticket_of(job))
                return
            end = self._lease_end()
            ticket = to.ticket_of(job)
            renewed = await store.run(
                lambda txn: store.change(txn, ticket, lambda now: to.renewed(now, end)), timeout=timeout
            )
            self._remember(name, renewed)
        except (ClaimLost, UsageError):
            probe("staging.ended_meanwhile")
            self._known.pop(name, None)
            for span in spans(name):
                await self._gateway.kv.delete_range(span.start, span.end, timeout=timeout)
            raise UsageError(GONE) from None

    async def published(self, txn: Transaction, names: Iterable[bytes], *, rows: int) -> None:
        """End the jobs of parts that the transaction publishes; an error if one has ended."""
        store = self._store
        said = JobProgress(
            checkpoint=msgspec.json.encode(RowsPublished(rows)).decode(), progress=f"{rows} rows published"
        )
        for name in names:
            job = _open(await store.named(txn, job_name(name)))
            await store.end(txn, to.succeeded(to.checkpointed(job, said), store.now()), before=job)
            self._known.pop(name, None)

    async def publish_of(self, txn: Transaction, names: Iterable[bytes]) -> RowsPublished | None:
        """What was published if every one of these jobs has succeeded; None otherwise."""
        found = None
        for name in names:
            job = await self._store.named(txn, job_name(name))
            if job is None or job.status is not Status.SUCCEEDED:
                return None
            found = msgspec.json.decode(job.checkpoint, type=RowsPublished)
        return found

    async def dropped(self, txn: Transaction, names: Iterable[bytes], *, why: str) -> None:
        """End the jobs of parts that are not needed, with their rows; those that have ended stay as they are."""
        store = self._store
        for name in names:
            job = await store.named(txn, job_name(name))
            self._known.pop(name, None)
            if job is not None and not job.status.ended and not job.claim_epoch:
                cancelled = to.reverted(replace(job, ending=Status.CANCELLED, progress=why), store.now())
                await store.end(txn, cancelled, before=job)

    def _lease_end(self) -> dt.datetime:
        return self._store.now() + dt.timedelta(seconds=self._gateway.node.settings["staging.ttl"])

    def _remember(self, name: bytes, job: Job) -> Job:
        if name not in self._known and len(self._known) >= KNOWN_MAX:
            del self._known[next(iter(self._known))]
        self._known[name] = job
        level("staging.known", len(self._known), KNOWN_MAX)
        return job


def _open(job: Job | None) -> Job:
    """A job whose rows are still staged and whose client still has its claim."""
    if job is None or job.status.ended or job.claim_epoch:
        raise UsageError(GONE)
    if job.status is not Status.RUNNING:
        raise UsageError(
            f"job {job.id}, which staged these rows, is {job.status.value}; `slackwater jobs show {job.id}`"
        )
    return job


async def _release(txn: Transaction, ref: str) -> None:
    for span in spans(bytes.fromhex(ref)):
        await txn.delete_range(span.start, span.end)


async def _forget(txn: Transaction, job: Job) -> None:
    """Remove what a task that outlived the job may have staged after its end."""
    await _release(txn, job.name.removeprefix("staged/"))


def job_name(name: bytes) -> str:
    """What the job of a write is called."""
    return f"staged/{name.hex()}"


def chunk_key(name: bytes, part: bytes, number: int) -> bytes:
    """Where one chunk of a part lies."""
    return system(_STAGING, name + part + number.to_bytes(NUMBER_BYTES, "big"))


def count_key(name: bytes, task: int) -> bytes:
    """Where the number of rows lies that a task of a write has staged."""
    return system(_COUNT, name + task.to_bytes(NUMBER_BYTES, "big"))


def counts_end(name: bytes) -> bytes:
    """The end of the numbers of a write's tasks."""
    return count_key(name, TASKS_MAX) + b"\x00"


def spans(name: bytes) -> list[Span]:
    """Everything that is staged under a name."""
    last = b"\xff" * (PART_BYTES + NUMBER_BYTES + 1)
    return [
        Span(system(_STAGING, name), system(_STAGING, name + last)),
        Span(count_key(name, 0), counts_end(name)),
    ]
