"""The work between two versions of a table: filling an index, and looking whether rows satisfy what is required of them.

    backfill      rows that were there before writers kept the index get their entries (`bulk_fill`), parallel by range, paced by
                  `schema.backfill_rate`; the checkpoint is the spans that are done
    count         at one timestamp, the index has as many entries as the table has rows
    check         at one timestamp, every row satisfies the check

Entries are written at the present. One that was computed from a row as of yesterday and written today could bring back what was
deleted in between, so it is written only where that cannot be; one that was written as of yesterday would change what followers
and feeds have closed (pitfall 51).
"""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.catalog.climbing import DONE, Worked
from slackwater.catalog.filling import Filled, FillTask, ReadRun
from slackwater.catalog.ladder import Work
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.damage import decode_row
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import (
    ConstraintViolation,
    DamageError,
    SchemaChanged,
    SlackwaterError,
    TooLate,
    UnavailableError,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.model.conditions import bind_condition, condition_holds
from slackwater.model.indexes import ElementState, find_index, index_schemas
from slackwater.model.scan_plan import ScanPlan
from slackwater.model.spans import Span, SpanSet
from slackwater.protocol.client import schema as to
from slackwater.protocol.range.bulk import Blocks, ScanArrow
from slackwater.protocol.range.requests import Header
from slackwater.routing.parallel import in_parallel
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.sync import Semaphore
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping, Sequence

    from slackwater.catalog.climbing import Climb, Payload
    from slackwater.catalog.driver import TableCatalog
    from slackwater.catalog.filling import BackfillRunner
    from slackwater.jobs.running import RunningJob
    from slackwater.model.indexes import Check
    from slackwater.model.jobs import Job, JobProgress, Owned
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.seam import Clock, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn import Transaction
    from slackwater.txn.kv import KV

    Protect = Callable[[Transaction, Timestamp, Job, int], Awaitable[Owned]]
    """Protects a table at a timestamp for a job: (transaction, timestamp, job, table)."""

ROUND_S = 2.0
"""How long parts are worked on before the checkpoint is written."""
READ_ROWS = 5_000
READ_BYTES = 2 << 20
COUNT_BYTES = 1 << 20
"""Stored bytes of rows that are counted by one read: some milliseconds, between which point work has the loop."""
MISCOUNTED = "has not as many entries as the table has rows"
FILL, COUNT, CHECK = "fill", "count", "check"
assert DONE not in (FILL, COUNT, CHECK), "work that is done is told from work under way"
assert describe("schema.backfill_chunk").default <= ROUND_S * describe("schema.backfill_rate").default, (
    "a run of the usual size is no more than a round may write"
)
replace = msgspec.structs.replace


class TableAccess(Protocol):
    """What is asked of the node about the place of rows."""

    async def ranges_of(self, start: bytes, end: bytes, /) -> list[Span]:
        """The parts of a span, one for each range that holds some of it."""
        ...

    def rows_about(self, span: Span, /) -> int:
        """About how many rows a span has, as far as this node knows; 0: it does not."""
        ...


class Backfills:
    """Does the work of schema changes on one node."""

    def __init__(
        self,
        catalog: TableCatalog,
        kv: KV,
        *,
        runner: BackfillRunner,
        access: TableAccess,
        protect: Protect,
        settings: Settings,
        clock: Clock,
        scope: TaskScope,
    ) -> None:
        self._catalog = catalog
        self._kv = kv
        self._runner = runner
        self._access = access
        self._protect = protect
        self._settings = settings
        self._clock = clock
        self._scope = scope

    async def work(self, job: RunningJob, wanted: Payload, climb: Climb, work: Work) -> None:
        """Do the work after the step that was taken last, from its checkpoint on."""
        assert 0 < climb.taken <= len(climb.way), "work follows a step that was taken"
        assert climb.way[climb.taken - 1].work is work, "the work is that of the step that was taken last"
        if climb.worked.phase == DONE:
            return
        if work is Work.BACKFILL:
            climb = await self._fill(job, wanted, climb)
            climb = await self._count(job, wanted, climb)
        else:
            climb = await self._check(job, wanted, climb)
        await job.said(replace(climb, worked=Worked(DONE)).said(share=1.0))

    # --- filling

    async def _fill(self, job: RunningJob, wanted: Payload, climb: Climb) -> Climb:
        if climb.worked.phase not in ("", FILL):
            return climb
        task = await self._task(wanted)
        whole = schema_span(task.history.latest.schema)
        done, rows = climb.worked.spans(), climb.worked.rows
        total = self._access.rows_about(whole)
        ahead: dict[bytes, ReadRun] = {}
        reading = Semaphore(1)
        while left := SpanSet([whole]).subtract(done):
            began_ns = self._clock.monotonic_ns()
            parts = as_read(await self._parts(left), ahead)
            assert parts, "what is left to fill lies in ranges"
            outcomes = await in_parallel(
                self._scope,
                [partial(self._fill_part, task, part, ahead.pop(part.start, None), reading) for part in parts],
                limit=len(parts),
                name="backfill",
            )
            ahead.clear()  # of parts whose turn it was not
            moved = False
            before = rows
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, SchemaChanged):
                    moved = True
                elif isinstance(outcome, SlackwaterError):
                    raise outcome
                else:
                    filled, further = outcome
                    assert part.start <= filled.upto <= part.end, "a part is filled from its start on"
                    rows += filled.rows
                    done = done.add(Span(part.start, filled.upto)) if filled.upto > part.start else done
                    if further is not None:
                        ahead[filled.upto] = further
            climb = replace(climb, worked=replace(climb.worked, phase=FILL).further(done, rows))
            share = min(1.0, rows / total) if total else 0.0
            await job.said(climb.said(_told(rows, total, rows - before, self._since(began_ns)), share=share * 0.9))
            if moved:
                probe("schema.backfill_version_moved")
                task = await self._task(wanted)
                ahead.clear()
            await self._pace(rows - before, began_ns)
        return climb

    async def _fill_part(
        self, task: FillTask, part: Span, run: ReadRun | None, reading: Semaphore
    ) -> tuple[Filled, ReadRun | None]:
        """Fill from the beginning of a part, for about as long as a round lasts; the run that follows was read meanwhile.

        `run` is what the round before has read of this part already. `reading` is held while a run is read.
        """
        began_ns, start, rows = self._clock.monotonic_ns(), part.start, 0
        most = self._settings["schema.backfill_rate"] * ROUND_S
        chunk = max(
            1, min(int(self._settings["schema.backfill_chunk"]), int(most))
        )  # a pause is no longer than a round
        if run is None:
            run = await self._read(task, part, chunk, reading)
        while run is not None:
            assert start <= run.filled.upto <= part.end, "a backfill only moves on"
            assert run.task is task, "what was read by another version is read again"
            works: list[Callable[[], Awaitable[ReadRun | None]]] = [partial(self._runner.write, run)]
            if run.filled.upto < part.end:
                works.append(partial(self._read, task, Span(run.filled.upto, part.end), chunk, reading))
            written, *read = await in_parallel(self._scope, works, limit=2, name="backfill run")
            if isinstance(written, SlackwaterError):
                if isinstance(written, SchemaChanged) and start > part.start:
                    return Filled(start, rows), None
                raise written
            start, rows = run.filled.upto, rows + run.filled.rows
            # what could not be read is tried again, and complained of, by the next round
            run = read[0] if read and not isinstance(read[0], SlackwaterError) else None
            if self._since(began_ns) >= ROUND_S or rows >= most:
                break
        assert part.start <= start <= part.end, "a part is filled from its start on, and no further than its end"
        return Filled(start, rows), run

    async def _read(self, task: FillTask, span: Span, rows: int, reading: Semaphore) -> ReadRun:
        """Read a run when no other one of this index is being read: of many at once, all would be late."""
        async with reading:
            return await self._runner.read(task, span, rows=rows)

    async def _task(self, wanted: Payload) -> FillTask:
        """The newest version, which must still say that the index is being filled."""
        await self._catalog.refresh()
        history = await self._catalog.find_id(wanted.table_id)
        assert isinstance(wanted.change, to.CreateIndex | to.DropIndex), wanted.change
        if history.latest.dropped or history.latest.dropping:
            raise UsageError(f"table {wanted.table} was dropped", table=wanted.table)
        index = find_index(history.latest.indexes, wanted.change.index, table=wanted.table)
        if index.state is not ElementState.BACKFILLING:
            raise SchemaChanged(
                f"index {index.name} is {index.state.value}: another node works on it", index=index.name
            )
        return FillTask(history, index)

    async def _parts(self, left: SpanSet) -> list[Span]:
        """Up to `schema.backfill_parallel` parts of what is left, of one range each."""
        most, found = int(self._settings["schema.backfill_parallel"]), []
        for span in left:
            for part in await self._access.ranges_of(span.start, span.end):
                assert span.start <= part.start < part.end <= span.end, "only what is left is filled"
                found.append(part)
                if len(found) == most:
                    return found
        return found

    # --- validating

    async def _count(self, job: RunningJob, wanted: Payload, climb: Climb) -> Climb:
        """At one timestamp, there are as many entries as rows."""
        task = await self._task(wanted)
        climb, at = await self._at(job, wanted, climb, COUNT)
        schemas = task.history.schemas()
        rows = await self._counted(schemas, at)
        entries = await self._counted(list(index_schemas(schemas, task.index)), at)
        if rows != entries:
            raise DamageError(
                f"index {task.index.name} of table {wanted.table} {MISCOUNTED}: {entries} for {rows} at one time; it is"
                " removed, and the table is as it was",
                index=task.index.name,
            )
        return climb

    async def _counted(self, schemas: Sequence[TableSchema], at: Timestamp) -> int:
        """Rows of the last of some schemas' tables, or entries of an index, whose values these have written."""
        schema = schemas[-1]
        span = schema_span(schema)
        plan, count, start = ScanPlan(tuple(schemas), schema.version, columns=()).encode(), 0, span.start
        header = Header(NO_RANGE, ts=at, follower_ok=True, max_bytes=COUNT_BYTES)
        while start < span.end:
            (found,) = (await self._kv.read([ScanArrow(start, span.end, plan, once=True)], header)).results
            assert isinstance(found, Blocks), found
            count += found.rows
            start = span.end if found.resume is None else found.resume
            assert start <= span.end, "what is counted is of one table, or of one index"
        return count

    async def _check(self, job: RunningJob, wanted: Payload, climb: Climb) -> Climb:
        """At one timestamp, every row satisfies the check that writers have to satisfy by now."""
        await self._catalog.refresh()
        climb, at = await self._at(job, wanted, climb, CHECK)
        history = await self._catalog.find_id(wanted.table_id)
        checking = [check for check in history.latest.checks if check.state is ElementState.BACKFILLING]
        span = schema_span(history.latest.schema)
        done, rows = climb.worked.spans(), climb.worked.rows
        total = self._access.rows_about(span)
        for part in SpanSet([span]).subtract(done):
            start = part.start
            while start < part.end:
                began_ns = self._clock.monotonic_ns()
                page = await self._kv.scan(
                    start, part.end, max_keys=READ_ROWS, max_bytes=READ_BYTES, ts=at, follower_ok=True
                )
                check_rows(history, checking, page.keys, page.values)
                start = part.end if page.resume is None else page.resume
                assert part.start <= start <= part.end, (
                    "a part is checked from its start on, and no further than its end"
                )
                done, rows = done.add(Span(part.start, start)), rows + len(page.keys)
                climb = replace(climb, worked=climb.worked.further(done, rows))
                share = min(1.0, rows / total) if total else 0.0
                await job.said(climb.said(_told(rows, total, len(page.keys), self._since(began_ns)), share=share))
                await self._pace(len(page.keys), began_ns)
        return climb

    async def _at(self, job: RunningJob, wanted: Payload, climb: Climb, phase: str) -> tuple[Climb, Timestamp]:
        """The timestamp at which a phase reads, protected from collection for as long as the job lasts."""
        if climb.worked.phase == phase:
            return climb, Timestamp(climb.worked.at)
        begun = climb

        async def work(txn: Transaction) -> JobProgress:
            nonlocal begun  # of each try: what was the present for the first may be too late by now, where little is kept
            begun = replace(climb, worked=Worked(phase, at=self._kv.context.clock.now()))
            owned = await self._protect(txn, Timestamp(begun.worked.at), job.job, wanted.table_id)
            return replace(begun.said(share=0.9), owns=(owned,))

        try:
            await job.step(work)
        except TooLate as error:
            raise UnavailableError(f"the present of a moment ago could not be protected: {error.message}") from error
        assert begun.worked.at > 0, "rows are counted at one time"
        return begun, Timestamp(begun.worked.at)

    # --- pace

    def _since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    async def _pace(self, rows: int, began_ns: int) -> None:
        pause_s = rows / self._settings["schema.backfill_rate"] - self._since(began_ns)
        if pause_s > 0:
            await self._clock.sleep(pause_s)


def as_read(parts: Sequence[Span], ahead: Mapping[bytes, ReadRun]) -> list[Span]:
    """Parts, in order, each at least as long as the run that was read from its beginning: its range may have been divided."""
    found: list[Span] = []
    reached = b""
    for part in parts:
        start = max(part.start, reached)
        if start >= part.end:
            continue
        run = ahead.get(start)
        reached = part.end if run is None else max(part.end, run.filled.upto)
        found.append(Span(start, reached))
    assert all(one.end <= other.start for one, other in pairwise(found)), "no row is in two parts"
    return found


def check_rows(history: TableHistory, checks: Sequence[Check], keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Refuse rows that make a check false, and name the first."""
    latest = history.latest
    codec = RowCodec(latest.schema, history.by_version())
    bound = [(check, bind_condition(latest.schema, check.text)) for check in checks]
    for key, value in zip(keys, values, strict=True):
        row = decode_row(codec, key, value)
        for check, condition in bound:
            if not condition_holds(condition, row):
                shown = ", ".join(f"{name}={row[name]!r}" for name in dict.fromkeys(p.column for p in condition))
                raise ConstraintViolation(
                    f"row {codec.show_key(key)} of table {latest.name} does not satisfy {check.text} ({shown})",
                    check=check.name,
                )


def _told(rows: int, total: int, new: int, seconds: float) -> str:
    """Rows, rate and time left, for people."""
    rate = new / seconds if seconds > 0 else 0.0
    about = f" of about {total}" if total >= rows else ""
    left = f", {(total - rows) / rate:.0f} s left" if rate and total > rows else ""
    return f"{rows}{about} rows, {rate:.0f}/s{left}"
