"""Schema changes as durable jobs: one executor for each table climbs the ladder of its first change, step by step.

    db.alter_table ──► begin: one transaction ─ job (payload: the change), its mutation appended to the descriptor
                                │ first of the table's mutations: worked on; the others are parked and woken in turn
                                ▼
    SchemaChanger.resume ──► step: claim compared, version published, checkpoint written: one transaction (I-36, I-29)
                         ├─ LeasesInTheWay: nodes use the version before the present one; the job says which, and waits
                         ├─ work between two versions: backfill, validation
                         └─ the last version, without the mutation, in the transaction that ends the job and wakes the next

    cancelled or failed ──► revert: `ladder.way_back` from the last rung that was published, in the same way

A change that takes one version and waits for nothing is made in the transaction that begins it; its job has succeeded when it is
first seen. Everything else is resumable at every step: the checkpoint names the rung and is written together with its version.
A node that was paused over a take-over publishes nothing, and its backfill writes nothing: both compare what they go by.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.catalog import ladder
from slackwater.catalog.climbing import SCHEMA_CHANGE, Climb, Payload, Worked, climb_of, payload_of, projected_from
from slackwater.catalog.definition import next_version
from slackwater.catalog.ladder import Rung, Step, Work
from slackwater.catalog.records import decode_id, encode_id, name_key
from slackwater.errors import AccessDenied, LeasesInTheWay, UniqueViolation, UsageError
from slackwater.hooks import probe
from slackwater.model.indexes import Mutation
from slackwater.model.jobs import Job, JobProgress, Status
from slackwater.model.system_tables import check_not_system
from slackwater.protocol.client import schema as to

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.backfill import Backfills
    from slackwater.catalog.driver import TableCatalog
    from slackwater.catalog.records import TableRecord
    from slackwater.jobs.running import RunningJob
    from slackwater.jobs.store import JobStore
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.schema import Change
    from slackwater.runtime.seam import Clock
    from slackwater.txn import Transaction

WAITING_MAX = 32
"""Changes of one table that have not ended."""
assert to.CHANGES_MAX <= WAITING_MAX, "as many changes as can be asked for at a time can wait"
LEASE_WAIT_S_MIN, LEASE_WAIT_S_MAX = 0.02, 0.5
"""Pauses between two looks at leases that are in the way."""
assert 0 < LEASE_WAIT_S_MIN < LEASE_WAIT_S_MAX, "pauses grow"
replace = msgspec.structs.replace


class ChangeStore(Protocol):
    """What the executor asks of the node's jobs."""

    @property
    def store(self) -> JobStore:
        """The jobs of the cluster."""
        ...

    def ring(self) -> None:
        """Have this node look for jobs."""
        ...


class SchemaChanger:
    """Begins schema changes, and runs those that this node has claimed."""

    def __init__(self, catalog: TableCatalog, jobs: ChangeStore, backfills: Backfills, clock: Clock) -> None:
        self._catalog = catalog
        self._jobs = jobs
        self._backfills = backfills
        self._clock = clock

    # --- beginning

    async def begin(
        self, txn: Transaction, name: str, changes: Sequence[Change], *, by: str | None, job_name: str = ""
    ) -> list[Job]:
        """Begin changes of a table in a transaction: all of them, in this order, or none. Returns their jobs.

        A user who is named by `by` may change only what belongs to them; None is for those who may change everything.
        """
        store = self._jobs.store
        if job_name and (found := await self._begun_before(txn, job_name, len(changes))):
            return found
        now = await self.owned(txn, name, by)
        await self.check(txn, now, changes)
        if isinstance(changes[0], to.DropTable):
            _, record = await self._catalog.begin_drop(txn, name, by=by, job_name=_numbered(job_name, 0))
            assert record is not None, "a table that is being dropped takes no changes"
            return [await store.get(txn, record.mutations[0].job)]
        jobs: list[Job] = []
        at_once, record = ladder.folded(changes, now)
        mutations = list(now.mutations)
        for number, change in enumerate(changes):
            later, name_of_job = number >= at_once, _numbered(job_name, number)
            made = await self._job(
                txn, now, change, creator=by or "", name=name_of_job, parked=later and bool(mutations)
            )
            jobs.append(made if later else await self._done(txn, made))
            if later:
                mutations.append(Mutation(made.id, made.description))
        assert (record is None) == (not at_once), "changes that are made at once are a version"
        assert len(mutations) <= WAITING_MAX, "changes that wait for each other are bounded"
        assert len(jobs) == len(changes), "every change has its job"
        assert len({mutation.job for mutation in mutations}) == len(mutations), "a job is one change"
        new = replace(record or next_version(now), mutations=tuple(mutations))
        await self._catalog.publish_in(txn, now.table_id, lambda _: new)
        return jobs

    async def _job(
        self,
        txn: Transaction,
        now: TableDescriptor,
        change: Change,
        *,
        creator: str,
        name: str = "",
        parked: bool = False,
    ) -> Job:
        payload = msgspec.json.encode(Payload(now.table_id, now.name, change)).decode()
        said = ladder.describe(change, now.name)
        return await self._jobs.store.create(
            txn, SCHEMA_CHANGE, description=said, payload=payload, creator=creator, name=name, parked=parked
        )

    async def drop_job(self, txn: Transaction, now: TableDescriptor, creator: str, name: str) -> Mutation:
        """Make the job that finishes the drop of a table, and let those of its other changes end: there is nothing to change."""
        for mutation in now.mutations:
            await self._jobs.store.let_end(txn, mutation.job)
        made = await self._job(txn, now, to.DropTable(), creator=creator, name=name)
        return Mutation(made.id, made.description)

    async def _begun_before(self, txn: Transaction, job_name: str, count: int) -> list[Job]:
        names = [_numbered(job_name, number) for number in range(count)]
        found = [job for job in [await self._jobs.store.named(txn, name) for name in names] if job is not None]
        for job in found:
            if job.type != SCHEMA_CHANGE:
                raise UsageError(
                    f"the name {job_name!r} belongs to job {job.id}, which is of type {job.type}", job=job.id
                )
        return found

    async def _done(self, txn: Transaction, job: Job) -> Job:
        """End the job of a change that is part of the version which its transaction publishes: it is a row of history."""
        store = self._jobs.store
        at = store.now()
        done = replace(job, status=Status.SUCCEEDED, started=at, finished=at, fraction=1.0, progress="done at once")
        return await store.end(txn, done, before=job)

    async def owned(self, txn: Transaction, name: str, by: str | None) -> TableDescriptor:
        """The table of that name, if `by` may change it."""
        check_not_system(name, what="alter")
        found = await txn.get(name_key(name))
        now = None if found is None else await self._catalog.latest_in(txn, decode_id(found))
        if now is None or now.dropped or now.name != name:
            raise UsageError(f"there is no table {name!r} to change; tables() lists them", table=name)
        if by is not None and now.owner != by:
            whose = now.owner or "the operators"
            raise AccessDenied(f"table {name} belongs to {whose}; its owner or an operator may change it", table=name)
        if now.dropping:
            raise UsageError(f"table {name} is being dropped; it cannot be changed", table=name)
        return now

    async def check(self, txn: Transaction, now: TableDescriptor, changes: Sequence[Change]) -> None:
        """Refuse what cannot be done once the changes that wait before it are done."""
        if not 0 < len(changes) <= to.CHANGES_MAX:
            raise UsageError(f"say 1 to {to.CHANGES_MAX} changes at a time", changes=len(changes))
        if len(now.mutations) + len(changes) > WAITING_MAX:
            raise UsageError(
                f"table {now.name} has {len(now.mutations)} changes that have not ended; wait for some of them"
            )
        if any(isinstance(change, to.DropTable) for change in changes):
            if len(changes) > 1:
                raise UsageError(f"table {now.name} is to be dropped: no other change goes with that; ask for it alone")
            return  # whatever is under way ends with the table
        under_way: dict[str, str] = {}
        table = now
        for mutation in now.mutations:
            job = await self._jobs.store.get(txn, mutation.job)
            change = payload_of(job).change
            under_way |= dict.fromkeys(ladder.elements(change), f"job {job.id}, {job.description}")
            climb = climb_of(job)
            if not mutation.reverting and not climb.back:
                table = projected_from(change, climb, table)
        for change in changes:
            for element in sorted(ladder.elements(change) & under_way.keys()):
                raise UsageError(
                    f"{element} of {now.name} is part of a change that has not ended ({under_way[element]}); wait for it or"
                    " cancel it",
                    element=element,
                )
            ladder.check_change(change, table)
            if isinstance(change, to.RenameTable):
                await self._check_free(txn, change.to)
            table = ladder.projected(change, table)

    async def _check_free(self, txn: Transaction, name: str) -> None:
        if await txn.get(name_key(name)) is not None:
            raise UsageError(f"there is a table {name!r} already; drop it first or pick another name", table=name)

    @staticmethod
    def table_of(job: Job) -> int:
        """The table that a schema change is about."""
        return payload_of(job).table_id

    async def planned(
        self, txn: Transaction, name: str, changes: Sequence[Change]
    ) -> tuple[TableDescriptor, list[tuple[str, tuple[Step, ...]]]]:
        """What `begin` would do: the table, and for each change its description and steps. Writes nothing."""
        now = await self.owned(txn, name, None)
        await self.check(txn, now, changes)
        table, found = now, []
        for change in changes:
            found.append((ladder.describe(change, now.name), ladder.steps(change, table)))
            table = ladder.projected(change, table)
        return now, found

    # --- running

    async def resume(self, job: RunningJob) -> None:
        """Climb from the checkpoint on."""
        wanted = job.payload(Payload)
        if isinstance(wanted.change, to.DropTable):
            await self._finish_drop(job, wanted)
            return
        now = await self._turn(job, wanted)
        climb = job.checkpoint(Climb)
        if not climb.way:
            ladder.check_change(wanted.change, now)  # again: what it waited for may have failed
            climb = replace(climb, way=ladder.steps(wanted.change, now))
        await self._climb(job, wanted, climb)

    async def revert(self, job: RunningJob) -> None:
        """Go back from the rung that was published last; nothing to do if the table is gone."""
        wanted, climb = job.payload(Payload), job.checkpoint(Climb)
        if isinstance(wanted.change, to.DropTable):
            await self._finish_drop(job, wanted, back=True)  # changes that ended with the table do not come back
            return
        now = await self._present(wanted.table_id)
        if now is None or all(mutation.job != job.job.id for mutation in now.mutations):
            return  # the table was dropped, or the last step back was taken and its answer lost
        if not climb.back:
            climb = Climb(climb.rung, ladder.way_back(wanted.change, climb.rung), back=True)
        if not climb.way:
            await self._publish(job, wanted, climb, None)
            return
        try:
            await self._climb(job, wanted, climb)
        except UniqueViolation:
            # an index that was being dropped cannot be made whole again: rows that it forbids were written meanwhile
            probe("schema.not_restored")
            reached = job.checkpoint(Climb).rung
            await self._climb(job, wanted, Climb(reached, ladder.way_down(reached), back=True))

    async def _finish_drop(self, job: RunningJob, wanted: Payload, *, back: bool = False) -> None:
        """Publish that a table which takes no more rows is dropped, unless that was done where the drop was asked for."""
        try:
            climb = Climb(Rung.DROPPING, (Step(Rung.DROPPING), Step(Rung.DROPPED)), taken=1, back=back)
            await self._climb(job, wanted, climb)
        except UsageError:
            await self._catalog.refresh()
            if not (await self._catalog.find_id(wanted.table_id)).latest.dropped:
                raise
            if not back:
                await job.succeed()

    async def _turn(self, job: RunningJob, wanted: Payload) -> TableDescriptor:
        """The table, when this change is the first of its changes; a job that comes too early is parked."""

        async def waits_for_none(txn: Transaction) -> bool:
            latest = await self._catalog.latest_in(txn, wanted.table_id)
            return latest.dropped or latest.dropping or _is_first(latest, job.job.id)

        while True:
            now = await self._present(wanted.table_id)
            if now is None:
                raise UsageError(f"table {wanted.table} was dropped", table=wanted.table)
            if _is_first(now, job.job.id):  # changes of a table are made one after the other (I-29)
                return now
            probe("schema.parked")
            await job.park(unless=waits_for_none)

    async def _present(self, table_id: int) -> TableDescriptor | None:
        """The newest version; None of a table that was dropped, or takes no changes any more because it is being dropped."""
        await self._catalog.refresh()
        latest = (await self._catalog.find_id(table_id)).latest
        return None if latest.dropped or latest.dropping else latest

    async def _climb(self, job: RunningJob, wanted: Payload, climb: Climb) -> None:
        """Take the steps that are left, each with its work."""
        while True:
            if climb.taken and (done := climb.way[climb.taken - 1]).work is not Work.NONE:
                await self._backfills.work(job, wanted, climb, done.work)
            assert climb.taken < len(climb.way), "a step is left"
            step = climb.way[climb.taken]
            climb = replace(climb, rung=step.rung, taken=climb.taken + 1, worked=Worked())
            await self._publish(job, wanted, climb, step)
            if climb.taken == len(climb.way):
                return

    async def _publish(self, job: RunningJob, wanted: Payload, climb: Climb, step: Step | None) -> None:
        """Publish a step and write that it was taken; the last one ends the change. Waits while leases are in the way."""
        assert (step is None) == (not climb.way), "a change without a way only ends"
        assert step is None or climb.way[climb.taken - 1] == step, (
            "the checkpoint names the step that is written with it"
        )
        last = climb.taken == len(climb.way)

        async def work(txn: Transaction) -> JobProgress:
            await self._write_step(txn, job, wanted, climb, step)
            return climb.said()

        pause_s = LEASE_WAIT_S_MIN
        while True:
            try:
                if last and not climb.back:
                    await job.succeed(work)
                else:
                    await job.step(work)
                break
            except LeasesInTheWay as error:
                probe("schema.waited_for_leases")
                if pause_s >= LEASE_WAIT_S_MAX:  # a long wait is worth a line for people
                    await job.said(JobProgress(progress=f"waits: {error.message}"))
                await self._clock.sleep(pause_s)
                pause_s = min(LEASE_WAIT_S_MAX, 2 * pause_s)
        await self._catalog.refresh()
        self._jobs.ring()

    async def _write_step(
        self, txn: Transaction, job: RunningJob, wanted: Payload, climb: Climb, step: Step | None
    ) -> None:
        last = climb.taken == len(climb.way)

        def change(now: TableDescriptor) -> TableRecord:
            return stepped(now, wanted, climb, step, job=job.job.id, last=last)

        table = await self._catalog.publish_in(txn, wanted.table_id, change)
        assert not last or all(m.job != job.job.id for m in table.mutations), (
            "a change that has ended is no longer under way"
        )
        if isinstance(wanted.change, to.RenameTable) and step is not None:
            await self._rename(txn, wanted, climb, step)
        if table.dropped:
            await self._catalog.free_names(txn, wanted.table_id)
        if last and table.mutations:
            await self._jobs.store.wake(txn, table.mutations[0].job)

    async def _rename(self, txn: Transaction, wanted: Payload, climb: Climb, step: Step) -> None:
        """Claim the new name before the old one is let go; on the way back the other way round."""
        assert isinstance(wanted.change, to.RenameTable), wanted.change
        if step.rung is Rung.RENAMED:
            await self._check_free(txn, wanted.change.to)
            await txn.put(name_key(wanted.change.to), encode_id(wanted.table_id))
        elif step.rung is Rung.FREED:
            await txn.delete(name_key(wanted.change.to if climb.back else wanted.table))


def stepped(
    now: TableDescriptor, wanted: Payload, climb: Climb, step: Step | None, *, job: int, last: bool
) -> TableRecord:
    """The version of a step, with the job's mutation as it stands then."""
    if step is None:
        record = next_version(now)
    elif isinstance(wanted.change, to.RenameTable) and climb.back and step.rung is Rung.GONE:
        record = ladder.named_back(now, wanted.table)
    else:
        record = ladder.next_record(wanted.change, step.rung, now)
    assert record.schema.version == now.version + 1, "versions grow by one (I-29)"
    others = tuple(mutation for mutation in now.mutations if mutation.job != job)
    if last:
        return replace(record, mutations=others)
    mine = tuple(replace(m, reverting=climb.back) if m.job == job else m for m in now.mutations)
    return replace(record, mutations=mine)


def _numbered(name: str, number: int) -> str:
    return f"{name}/{number}" if name else ""


def _is_first(table: TableDescriptor, job_id: int) -> bool:
    """Whether the change that a job makes is the first of its table's that have not ended."""
    return bool(table.mutations) and table.mutations[0].job == job_id
