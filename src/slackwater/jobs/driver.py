"""The jobs of one node: it looks for work, claims it under its liveness epoch, runs it, and stops when it must.

    every `jobs.poll_interval`, and when the bell rings (a feed announces what changed, a local user made a job)
      └─ look: the jobs that have not ended
           mine, and my epoch or my claim is over     stop working
           mine, and to be paused or cancelled        stop working, then say so
           unclaimed, and its time has come           claim
           of a node whose epoch has ended            claim (take-over); a node that has expired has its epoch ended first
           of an application whose lease ran out      claim; at once if the job is to be cancelled

Taking a job over too early is not dangerous, only wasteful: what the former claimant still writes is compared with the number of
its claim in the same transaction, and refused (I-36). Clocks, pauses and lost messages decide when work moves, never whether it
is done twice.
"""

from __future__ import annotations

import datetime as dt
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Protocol

from slackwater.errors import ClaimLost, InvariantViolation, LimitReached, Retry, SlackwaterError, UnavailableError
from slackwater.hooks import level, probe
from slackwater.jobs import transitions as to
from slackwater.jobs.running import RunningJob
from slackwater.jobs.store import OPEN_MAX, JobStore
from slackwater.model.ids import NodeId
from slackwater.model.jobs import Status
from slackwater.runtime.sync import CancelledError, Event, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    from slackwater.jobs.registry import JobTypes
    from slackwater.model.descriptors import Liveness
    from slackwater.model.jobs import Job
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn.kv import KV

PER_OWNER_MAX = "jobs.open_per_owner_max"
COLLECTIONS_PER_RETENTION = 8
COLLECT_S_MAX = 60.0
STOP_S = 5.0
"""How long a stopping node tries to give its jobs up for others to go on with at once."""
_DOUBLINGS_MAX = 20
_NODE = "n"


class ClaimantLiveness(Protocol):
    """What the driver asks of node liveness."""

    def own(self) -> Liveness | None:
        """This node's record while it is live."""
        ...

    def get(self, node: NodeId, /) -> Liveness | None:
        """The newest known record of a node."""
        ...

    async def end_epoch(self, record: Liveness, /) -> Liveness:
        """Raise the epoch of an expired node."""
        ...


class _JobRun:
    """A job that this node works on."""

    def __init__(self, job: Job, scope: TaskScope) -> None:
        self.ticket = to.ticket_of(job)
        self.epoch = job.claim_epoch
        self.scope = scope


class Jobs:
    """Claims and runs jobs on one node."""

    def __init__(
        self,
        kv: KV,
        types: JobTypes,
        *,
        node_id: NodeId,
        liveness: ClaimantLiveness,
        runtime: Runtime,
        settings: Settings,
        scope: TaskScope,
    ) -> None:
        self.types = types
        self.store = JobStore(kv, types)
        self.store.check_room = self.check_room
        self._kv = kv
        self._me = f"{_NODE}{node_id}"
        self._liveness = liveness
        self._runtime = runtime
        self._settings = settings
        self._scope = scope
        self._bell = Event()
        self._running: dict[int, _JobRun] = {}
        self._over: list[TaskScope] = []
        """Scopes of runs that have ended by themselves."""
        self.seen: list[Job] = []
        """The jobs that had not ended at the last look, by id, without payload and checkpoint."""
        self.failed_total = 0
        """Jobs whose failure this process wrote."""
        self._stopping = False
        self._cursor = b""
        self._collected_ns = 0

    def ring(self, key: bytes = b"", value: bytes = b"") -> None:
        """Some job may have changed; the arguments are those of an announcement."""
        self._bell.set()

    @property
    def running(self) -> list[int]:
        """The jobs that this node works on."""
        return sorted(self._running)

    def status(self) -> str:
        """One line for logs and the console."""
        return f"jobs running={len(self._running)}"

    async def run(self) -> None:
        """Look for work for as long as the node lives."""
        while not self._stopping:
            with _unless_broken():
                await self.look()
            with _unless_broken():
                await self._collect()
            while self._over:
                await self._over.pop().close()
            with suppress(TimeoutError):
                async with timeout(self._settings["jobs.poll_interval"]):
                    await self._bell.wait()
            self._bell.clear()

    async def stop(self) -> None:
        """Stop working, and give up what this node has claimed, so that others need not wait for its epoch to end."""
        self._stopping = True
        with suppress(SlackwaterError, TimeoutError):
            async with timeout(STOP_S):
                for job_id in self.running:
                    await self._stop(job_id, say=True)

    # --- what users and other parts of the node ask

    def check_room(self, creator: str) -> None:
        """Refuse one more job where there are as many as may be, by the last look: all have to be looked through."""
        if len(self.seen) >= OPEN_MAX:
            raise LimitReached(f"{OPEN_MAX} jobs have not ended; cancel some of them", limit=OPEN_MAX)
        limit = int(self._settings[PER_OWNER_MAX])
        held = sum(job.creator == creator for job in self.seen) if creator else 0
        if held >= limit:
            probe("jobs.owner_limit")
            raise LimitReached(
                f"{held} jobs of {creator} have not ended, and one client may have {limit} ({PER_OWNER_MAX}); cancel some, or"
                " have an operator raise the limit",
                limit=limit,
            )

    async def create(
        self,
        kind: str,
        *,
        description: str,
        payload: str = "{}",
        creator: str = "",
        name: str = "",
        timeout: float | None = None,
    ) -> Job:
        """Make a job in a transaction of its own; `store.create` does it in the caller's."""
        job = await self.store.run(
            lambda txn: self.store.create(
                txn, kind, description=description, payload=payload, creator=creator, name=name
            ),
            timeout=timeout,
        )
        self.ring()
        return job

    async def ask(
        self, job_id: int, how: Callable[[Job], Job], *, by: str | None = None, timeout: float | None = None
    ) -> Job:
        """Pause, resume or cancel a job (`transitions`); a user who is named by `by` only what they made."""
        job = await self.store.run(lambda txn: self.store.ask(txn, job_id, how, by=by), timeout=timeout)
        self.ring()
        return job

    # --- looking

    async def look(self) -> None:
        """Go once through the jobs that have not ended."""
        jobs = self.seen = await self.store.open()
        found = {job.id for job in jobs}
        for job_id in [job_id for job_id in self.running if job_id not in found]:
            await self._stop(job_id, say=False)
        for job in jobs:
            if self._stopping:
                return
            with _unless_broken():  # of one job; the others go on
                await self._see_to(job)

    async def _see_to(self, job: Job) -> None:
        own = self._liveness.own()
        run = self._running.get(job.id)
        if run is not None:
            if run.ticket != to.ticket_of(job) or own is None or own.epoch != run.epoch:
                probe("jobs.claim_lost")
                await self._stop(job.id, say=False)
            elif job.status in (Status.PAUSING, Status.CANCELLING):
                await self._stop(job.id, say=True)
            return
        room = int(self._settings["jobs.running_max"]) - len(self._running)
        if own is None or room <= 0 or not self.types.known(job) or not await self._free(job, own):
            return
        await self._claim(job, own)

    async def _free(self, job: Job, own: Liveness) -> bool:
        """Whether a job has no claimant that is alive, and is to be worked on by a node."""
        now = self.store.now()
        if not job.claimed_by:
            kind = self.types.find(job.type)
            outside = kind is not None and kind.external and job.status is Status.PENDING
            return to.waits_for_claim(job, now=now) and not outside
        if job.claim_expires is not None:
            # what is to be undone need not wait for its application, which is fenced
            return job.claim_expires <= now or job.status is Status.CANCELLING
        if job.claimed_by == self._me and job.claim_epoch == own.epoch:
            return True  # claimed by this very process, which does not work on it: the answer to its claim was lost
        return await self._epoch_ended(job)

    async def _epoch_ended(self, job: Job) -> bool:
        """Whether the epoch under which a node claimed has ended; it is ended here if the node has expired."""
        record = self._liveness.get(NodeId(int(job.claimed_by.removeprefix(_NODE))))
        if record is None:
            return False  # unknown is not dead
        if record.epoch == job.claim_epoch and not record.live_at(self._kv.context.clock.now()):
            try:
                record = await self._liveness.end_epoch(record)
            except UnavailableError:
                return False  # it came back
        return record.epoch > job.claim_epoch

    async def _claim(self, job: Job, own: Liveness) -> None:
        if job.claimed_by:
            probe("jobs.taken_over")
        attempts_max = int(self._settings["jobs.attempts_max"])
        claimant = to.Claimant(self._me, int(own.epoch))
        claimed = await self.store.run(lambda txn: self.store.take(txn, job, claimant, attempts_max=attempts_max))
        if claimed is None or claimed.claimed_by != self._me or self._stopping:
            return
        run = self._running[job.id] = _JobRun(claimed, self._scope.child(f"job {job.id}"))
        level("jobs.running", len(self._running), self._settings["jobs.running_max"])
        run.scope.spawn(self._work(claimed, run), name=f"job {job.id}")

    async def _stop(self, job_id: int, *, say: bool) -> None:
        """Stop working on a job; with `say`, write that it is paused, may be reverted, or is free."""
        run = self._running.pop(job_id, None)
        if run is None:
            return  # it has ended by itself while another one was being stopped
        await run.scope.close()
        if say:
            with suppress(ClaimLost):
                await self.store.run(lambda txn: self.store.change(txn, run.ticket, to.stopped))
            self.ring()

    # --- working

    async def _work(self, job: Job, run: _JobRun) -> None:
        """Run a resumer, and write what came of it. What cannot be written is found by the next look."""
        kind = self.types.find(job.type)
        assert kind is not None, job.type
        running = RunningJob(self.store, job)
        undo = job.status is Status.REVERTING
        try:
            error = await self._outcome(kind.resumer.revert(running) if undo else kind.resumer.resume(running))
            with _unless_broken():
                if not running.job.status.ended:
                    await self._conclude(running, error, undo=undo)
        finally:
            if self._running.get(job.id) is run:
                del self._running[job.id]
                self._over.append(run.scope)
            self.ring()

    async def _outcome(self, work: Awaitable[None]) -> Exception | None:
        """What a resumer raised. A mistake in its code fails its job, not the node."""
        try:
            await work
        except CancelledError:
            raise
        except Exception as error:
            if isinstance(error, InvariantViolation) and not error.remote:
                raise
            return error
        return None

    async def _conclude(self, running: RunningJob, error: Exception | None, *, undo: bool) -> None:
        """Write the end of an attempt."""
        if isinstance(error, ClaimLost):
            probe("jobs.fenced")
            return
        if error is None and not undo:
            await running.succeed()
            return
        now, change = self.store.now(), self._after(running.job, error, undo=undo)
        job = await self.store.run(lambda txn: self.store.change(txn, running.ticket, lambda job: change(job, now)))
        self.failed_total += job.status is Status.FAILED

    def _after(self, job: Job, error: Exception | None, *, undo: bool) -> Callable[[Job, dt.datetime], Job]:
        """What becomes of a job after an attempt that did not succeed, or after its reverting."""
        if error is None:
            return to.reverted
        said, pause = _said(error), dt.timedelta(seconds=self._pause_s(job.attempts))
        if undo or _passes(error):
            probe("jobs.retried")
            return lambda job, now: to.retried(job, said, at=now + pause)
        return lambda job, now: to.failed(job, said)

    def _pause_s(self, attempts: int) -> float:
        least, most = self._settings["jobs.retry_pause_min"], self._settings["jobs.retry_pause_max"]
        return float(min(most, least * 2 ** min(max(0, attempts - 1), _DOUBLINGS_MAX)))

    # --- history

    async def _collect(self) -> None:
        """Remove what ended longer ago than its type is kept for (`jobs.retention`), some rows at a time."""
        kept_s = {kind.name: self._settings[kind.retention] for kind in self.types.all()}
        now_ns = self._runtime.clock.monotonic_ns()
        every_s = min(COLLECT_S_MAX, min(kept_s.values(), default=0.0) / COLLECTIONS_PER_RETENTION)
        if now_ns - self._collected_ns < every_s * 1e9:
            return
        self._collected_ns = now_ns
        now = self.store.now()
        older_than = {kind: now - dt.timedelta(seconds=kept) for kind, kept in kept_s.items()}
        self._cursor = await self.store.collect(self._cursor, older_than=older_than)


@contextmanager
def _unless_broken() -> Iterator[None]:
    """Let errors pass that the next look makes good; an invariant that is broken here is none of those."""
    try:
        yield
    except SlackwaterError as error:
        if isinstance(error, InvariantViolation) and not error.remote:
            raise
        probe("jobs.look_failed")


def _passes(error: Exception) -> bool:
    """Whether trying again may help."""
    return isinstance(error, SlackwaterError) and error.retry is not Retry.NEVER


def _said(error: Exception) -> str:
    return str(error) if isinstance(error, SlackwaterError) else f"{type(error).__name__}: {error}"
