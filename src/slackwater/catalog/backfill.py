"""The work between two versions of a table: filling an index, and looking whether rows satisfy what is required of them.

    backfill      rows that were there before writers kept the index get their entries, chunk by chunk, each chunk one transaction
                  that reads its rows and writes their entries: it meets concurrent writers like any other, at the present
    count         at one timestamp, the index has as many entries as the table has rows
    check         at one timestamp, every row satisfies the check

Why at the present. An entry that was computed from a row as of yesterday and written today could bring back what was deleted in
between; one that was written as of yesterday would change what followers and feeds have closed (pitfall 51). A transaction that
read the row and finds it changed is run again. All writers keep the index by now (`ladder`), so every row is either written by
one of them, entry included, or is as the backfill reads it.

A chunk reads the key at which the table's next version would lie: if there is one by the time it commits, it does not commit. A
node that was paused over a take-over therefore writes nothing into an index that was given up meanwhile.

Parallel by range, paced by `schema.backfill_rate`. The checkpoint is the spans that are done. Who fills a chunk is behind
`BackfillRunner`, so that work may be given to Spark.
"""

from __future__ import annotations

from bisect import bisect_right
from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from slackwater.catalog.climbing import DONE, Worked
from slackwater.catalog.ladder import Work
from slackwater.catalog.planning import WritePlanner
from slackwater.catalog.records import descriptor_key
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.damage import decode_row
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import (
    ConstraintViolation,
    DamageError,
    SchemaChanged,
    SlackwaterError,
    UniqueViolation,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.model.conditions import bind_condition, condition_holds
from slackwater.model.indexes import ElementState, Index, find_index, index_schema
from slackwater.model.spans import Span, SpanSet
from slackwater.model.tables import TableHistory
from slackwater.protocol.client import schema as to
from slackwater.protocol.range.requests import Get, Value
from slackwater.routing.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.catalog.climbing import Climb, Payload
    from slackwater.catalog.driver import TableCatalog
    from slackwater.jobs.running import RunningJob
    from slackwater.model.indexes import Check
    from slackwater.model.jobs import JobProgress, Owned
    from slackwater.protocol.range.requests import Result
    from slackwater.runtime.seam import Clock, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn import Transaction
    from slackwater.txn.kv import KV

    Protect = Callable[[Transaction, Timestamp, int, int], Awaitable[Owned]]
    """Protects a table at a timestamp for a job: (transaction, timestamp, job, table)."""

CHUNK_BYTES = 2 << 20
KEYS_READ_AT_ONCE = 2_000
"""Keys of one message to a range; more are read in several."""
ROWS_MORE = 64
"""Rows that are read beyond those whose entries fitted last time."""
CHUNKS_KEPT_MAX = 1024
ROUND_S = 0.5
"""How long parts are worked on before the checkpoint is written."""
READ_ROWS = 5_000
READ_BYTES = 2 << 20
assert CHUNK_BYTES <= READ_BYTES, "a transaction writes no more than a read takes"
FILL, COUNT, CHECK = "fill", "count", "check"
replace = msgspec.structs.replace


class FillTask(msgspec.Struct, frozen=True):
    """An index to be filled, by the version of its table that is the newest."""

    history: TableHistory
    index: Index


class Filled(NamedTuple):
    """A part of a span that is done: its end, and rows."""

    upto: bytes
    rows: int


class BackfillRunner(Protocol):
    """Fills an index for rows of a span."""

    async def fill(self, task: FillTask, span: Span, *, rows: int) -> Filled:
        """Write the entries of up to `rows` rows from the beginning of `span`; done when `upto` is its end.

        `SchemaChanged` when the table has a newer version than the task; then nothing was written.
        """
        ...


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
        while left := SpanSet([whole]).subtract(done):
            began_ns = self._clock.monotonic_ns()
            parts = await self._parts(left)
            assert parts, "what is left to fill lies in ranges"
            outcomes = await in_parallel(
                self._scope, [partial(self._fill_part, task, part) for part in parts], limit=len(parts), name="backfill"
            )
            moved = False
            before = rows
            for part, outcome in zip(parts, outcomes, strict=True):
                if isinstance(outcome, SchemaChanged):
                    moved = True
                elif isinstance(outcome, SlackwaterError):
                    raise outcome
                else:
                    assert part.start <= outcome.upto <= part.end, "a part is filled from its start on"
                    rows += outcome.rows
                    done = done.add(Span(part.start, outcome.upto)) if outcome.upto > part.start else done
            climb = replace(climb, worked=replace(climb.worked, phase=FILL).further(done, rows))
            share = min(1.0, rows / total) if total else 0.0
            await job.said(climb.said(_told(rows, total, rows - before, self._since(began_ns)), share=share * 0.9))
            if moved:
                probe("schema.backfill_version_moved")
                task = await self._task(wanted)
            await self._pace(rows - before, began_ns)
        return climb

    async def _fill_part(self, task: FillTask, part: Span) -> Filled:
        """Fill from the beginning of a part, for about as long as a round lasts."""
        began_ns, start, rows = self._clock.monotonic_ns(), part.start, 0
        most = self._settings["schema.backfill_rate"] * ROUND_S
        chunk = max(
            1, min(int(self._settings["schema.backfill_chunk"]), int(most))
        )  # a pause is no longer than a round
        while start < part.end and self._since(began_ns) < ROUND_S and rows < most:
            try:
                filled = await self._runner.fill(task, Span(start, part.end), rows=chunk)
            except SchemaChanged:
                if not rows:
                    raise
                break
            assert start <= filled.upto <= part.end, "a backfill only moves on"
            start, rows = filled.upto, rows + filled.rows
        return Filled(start, rows)

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
                found.append(part)
                if len(found) == most:
                    return found
        return found

    # --- validating

    async def _count(self, job: RunningJob, wanted: Payload, climb: Climb) -> Climb:
        """At one timestamp, there are as many entries as rows."""
        task = await self._task(wanted)
        climb, at = await self._at(job, wanted, climb, COUNT)
        schema = task.history.latest.schema
        rows = await self._counted(schema_span(schema), at)
        entries = await self._counted(schema_span(index_schema(schema, task.index)), at)
        if rows != entries:
            raise DamageError(
                f"index {task.index.name} of table {wanted.table} has {entries} entries for {rows} rows at one time; it is"
                " removed, and the table is as it was",
                index=task.index.name,
            )
        return climb

    async def _counted(self, span: Span, at: Timestamp) -> int:
        count, start = 0, span.start
        while start < span.end:
            page = await self._kv.scan(
                start, span.end, max_keys=READ_ROWS, max_bytes=READ_BYTES, ts=at, follower_ok=True
            )
            count += len(page.keys)
            start = span.end if page.resume is None else page.resume
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
        begun = replace(climb, worked=Worked(phase, at=self._kv.context.clock.now()))

        async def work(txn: Transaction) -> JobProgress:
            owned = await self._protect(txn, Timestamp(begun.worked.at), job.job.id, wanted.table_id)
            return replace(begun.said(share=0.9), owns=(owned,))

        await job.step(work)
        assert begun.worked.at > 0, "rows are counted at one time"
        return begun, Timestamp(begun.worked.at)

    # --- pace

    def _since(self, began_ns: int) -> float:
        return (self._clock.monotonic_ns() - began_ns) / 1e9

    async def _pace(self, rows: int, began_ns: int) -> None:
        pause_s = rows / self._settings["schema.backfill_rate"] - self._since(began_ns)
        if pause_s > 0:
            await self._clock.sleep(pause_s)


class TransactionalBackfill:
    """Implements `BackfillRunner` with one transaction for each chunk."""

    def __init__(self, kv: KV) -> None:
        self._kv = kv
        self._chunks: dict[tuple[int, int], int] = {}
        """By table and index, how many rows to try next."""

    async def fill(self, task: FillTask, span: Span, *, rows: int) -> Filled:
        """Read rows and write their entries, in one transaction.

        As many as it holds back (`txn.buffer_bytes_max`): they are committed in one phase, where more would be intents first, at
        twice the cost. Each time that a writer was in the way, half as many.
        """
        latest = task.history.latest
        planner = WritePlanner(latest, task.history.schemas())
        codec = IndexCodec(latest.schema, task.index, task.history.schemas())
        place = (latest.table_id, task.index.id)
        bytes_max = int(self._kv.context.settings["txn.buffer_bytes_max"])
        tries: list[int] = []

        async def once(txn: Transaction) -> Filled:
            tries.append(min(rows, tries[-1] // 2 + 1 if tries else self._chunks.get(place, rows)))
            if await txn.get(descriptor_key(latest.table_id, latest.version + 1)) is not None:
                raise SchemaChanged(f"table {latest.name} has a newer version", table_id=latest.table_id)
            found = await txn.scan(span.start, span.end, max_keys=tries[-1], max_bytes=CHUNK_BYTES)
            upto, count = span.end if found.resume is None else found.resume, len(found.keys)
            if found.keys:
                keys, values = codec.entries(planner.rows_of(found.keys, found.values))
                count = _fitting(keys, values, bytes_max)
                if count < len(keys):
                    probe("schema.backfill_chunk_cut")
                    upto, keys, values = found.keys[count], keys[:count], values[:count]
                if task.index.unique:
                    await self._check_unique(txn, codec, RowCodec(latest.schema), found.keys[:count], keys)
                assert len(keys) == len(values) == count, "an entry for every row"
                order = sorted(range(len(keys)), key=keys.__getitem__)
                await txn.put_rows([keys[i] for i in order], [values[i] for i in order])
            return Filled(upto, count)

        filled = await self._kv.run(once)
        self._next_chunk(place, tries, filled.rows)
        return filled

    def _next_chunk(self, place: tuple[int, int], tries: list[int], done: int) -> None:
        """Try as many rows next time as could be written, or twice as many if nothing was in the way."""
        if len(self._chunks) >= CHUNKS_KEPT_MAX:
            self._chunks.clear()
        if len(tries) > 1:
            probe("schema.backfill_chunk_halved")
        cut = done < tries[-1]
        self._chunks[place] = done + ROWS_MORE if cut else tries[-1] * (2 if len(tries) == 1 else 1)

    async def _check_unique(
        self, txn: Transaction, codec: IndexCodec, table: RowCodec, rows: Sequence[bytes], entries: Sequence[bytes]
    ) -> None:
        """Refuse a value that two rows have, and name both."""
        owners: dict[bytes, bytes] = {}
        for row, entry in zip(rows, entries, strict=True):
            if (other := owners.setdefault(entry, row)) != row:
                raise self._violation(codec, table, other, row)
        found: list[Result] = []
        for low in range(0, len(entries), KEYS_READ_AT_ONCE):
            found += await txn.batch([Get(entry) for entry in entries[low : low + KEYS_READ_AT_ONCE]])
        for row, there in zip(rows, found, strict=True):
            if isinstance(there, Value) and there.value is not None and (owner := codec.row_key(there.value)) != row:
                raise self._violation(codec, table, owner, row)

    def _violation(self, codec: IndexCodec, rows: RowCodec, one: bytes, other: bytes) -> UniqueViolation:
        first, second = sorted((one, other))
        return UniqueViolation(
            f"unique index {codec.index.name} cannot be built: two rows have the same values,"
            f" {show_key(rows, first)} and {show_key(rows, second)}",
            index=codec.index.name,
        )


def _fitting(keys: Sequence[bytes], values: Sequence[bytes], bytes_max: int) -> int:
    """How many entries, of the first ones, have no more bytes than this; at least one."""
    sizes = accumulate(len(key) + len(value) for key, value in zip(keys, values, strict=True))
    return max(1, bisect_right(list(sizes), bytes_max))


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
                    f"row {show_key(codec, key)} of table {latest.name} does not satisfy {check.text} ({shown})",
                    check=check.name,
                )


def show_key(codec: RowCodec, key: bytes) -> str:
    """The primary key of a row, for people."""
    return ", ".join(f"{name}={value!r}" for name, value in codec.decode_key(key).items())


def _told(rows: int, total: int, new: int, seconds: float) -> str:
    """Rows, rate and time left, for people."""
    rate = new / seconds if seconds > 0 else 0.0
    about = f" of about {total}" if total >= rows else ""
    left = f", {(total - rows) / rate:.0f} s left" if rate and total > rows else ""
    return f"{rows}{about} rows, {rate:.0f}/s{left}"
