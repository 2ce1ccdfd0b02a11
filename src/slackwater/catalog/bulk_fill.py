"""Fills an index for the rows that were there before its writers kept it: in sorted blocks, beside those writers.

    T = now ─► rows of the span at T, as columns ─► entries, sorted ─► lease on version v ─► blocks ─► FillRows(above=T)
                   off the loop, a run ahead of what is written                       │ left out, of a unique index
                                                                                      ▼
                                                              a transaction: these rows as they are now, both named if they clash

Why this is right. The version that says *backfilling* was published when no lease was left on the one before *write-only*. So
every write above T, which lies above that publication, keeps the entry of each row that it touches: it deletes the old one and
puts the new one, and where the two are the same it writes neither (`planning`). Take a row that had the entry `e` at T:

    the same entry since T    whether the row was written or not, `e` is what it has now, and has no version above T: it is put
    another one since T       `e` was deleted by the row's writer: it has a version above T, and is left as it is
    being changed             either the writer's intent is on `e`: the block waits for what becomes of it; or the writer has not
                              come to `e` yet, will find what the block wrote, and commit above it

So for an index the history of a row is that of its entry: a write that leaves it as it was is no part of it, and what was written
by versions without the index lies below T, where the backfill reads it.

The key of a non-unique entry holds the row's primary key, so no other row's writer can have made that version. At a key of a
unique index rows meet. There each writer reads `e` first, and a row that goes deletes `e` if that is its own *or is not there*
(`planning`). So a version above T, or a value from before, tells that another row may be involved: the block leaves `e` out, and
its row is settled in a transaction that reads the row and the entry of the present. So are rows that share a key at T already.

T is chosen for each run, not for the whole job. Whatever T is, later writes are their writers' business, so a run that is
repeated, by this node or another, at a higher T is right too, and the checkpoint is the spans that are done. A deletion that was
collected would be taken for a key that was never written: blocks are refused where history above T is not whole (`check_window`).

The fence is the one that all writers have: a lease on the version, and its deadline on every block. A run of a node that was
paused over a take-over writes below the deadline or not at all, so before the publication of v+2: while the index is being
filled, is complete, or is on its way down, where every change of a row still takes the old entry away. What it writes then is
right, or goes with the index.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.catalog.filling import Filled, ReadRun
from slackwater.catalog.planning import WritePlanner
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.rows import RowCodec
from slackwater.errors import BelowGcThreshold, RetryableError, SchemaChanged, UniqueViolation
from slackwater.hooks import probe
from slackwater.model.scan_plan import ScanPlan
from slackwater.protocol.range.bulk import Blocks, ScanArrow
from slackwater.protocol.range.requests import Get, Header, Value
from slackwater.routing.sender import NO_RANGE
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.catalog.driver import TableCatalog
    from slackwater.catalog.filling import FillTask
    from slackwater.catalog.leases import DescriptorLease
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableDescriptor
    from slackwater.txn import Transaction
    from slackwater.txn.kv import KV

PAGE_BYTES = 512 << 10
"""Stored bytes of rows that one read covers: some milliseconds, between which point work has the loop."""
RUN_BYTES_MAX = 32 << 20
"""Bytes of entries that one run sorts; of each part of a table, one run is written while another is read."""
SETTLED_AT_ONCE = 256
"""Rows of one transaction."""
assert PAGE_BYTES <= RUN_BYTES_MAX, "a run takes at least one page"
assert describe("schema.backfill_block").default <= describe("log.entry_bytes_max").default // 4, (
    "a block of a backfill fits one command"
)


class Run(NamedTuple):
    """Entries of rows at one timestamp, in the order of their keys, as binary arrays."""

    keys: Any
    values: Any
    shared: Any
    """Values of entries whose keys several rows have; their entries are not among the others."""


class _Lease:
    """A lease of a run; it stays in use up to its deadline only if the outcome of a write is not known."""

    def __init__(self, lease: DescriptorLease) -> None:
        self._lease = lease
        self._unsure = False

    @property
    def deadline(self) -> Timestamp:
        """What is written lies below this."""
        return self._lease.deadline

    @contextmanager
    def writing(self) -> Iterator[None]:
        """A write is under way; one that is cancelled or fails may still come to pass, below the deadline it was sent with."""
        assert not self._unsure, "after a write of unknown outcome nothing more is written by this lease (I-30)"
        self._unsure = True
        try:
            yield
        except UniqueViolation:  # of a transaction that was rolled back
            self._unsure = False
            raise
        self._unsure = False

    def give_back(self) -> None:
        """End the run."""
        if self._unsure:
            self._lease.give_back_after(self._lease.deadline)
        else:
            self._lease.give_back()


class BulkBackfill:
    """Implements `BackfillRunner`: see the module docstring."""

    def __init__(self, kv: KV, catalog: TableCatalog) -> None:
        self._kv = kv
        self._catalog = catalog

    async def read(self, task: FillTask, span: Span, *, rows: int) -> ReadRun:
        """Sort the entries of up to about `rows` rows from the beginning of `span`."""
        latest = task.history.latest
        self._check_newest(latest)
        codec = IndexCodec(latest.schema, task.index, task.history.schemas())
        at = Timestamp(max(self._kv.context.clock.now(), latest.modified))
        with _history(latest):
            pages, filled = await self._read(task, codec, span, at, rows=rows)
        return ReadRun(task, at, filled, await self._kv.context.runtime.offload(_sorted, codec, pages))

    async def write(self, run: ReadRun) -> None:
        """Put the entries of a run, by a lease on the version that made them."""
        task, entries = run.task, run.entries
        latest = task.history.latest
        self._check_newest(latest)
        if entries is None:
            return
        codec = IndexCodec(latest.schema, task.index, task.history.schemas())
        taken = await self._catalog.leases.take(latest.table_id, latest.version)
        assert taken.version == latest.version, "entries are written by a lease on the version that made them (I-30)"
        lease = _Lease(taken)
        try:
            with _history(latest):
                await self._settle(task, codec, lease, entries.shared.to_pylist())
                await self._settle(task, codec, lease, await self._put(codec, lease, entries, run.at))
        finally:
            lease.give_back()

    def _check_newest(self, table: TableDescriptor) -> None:
        """Refuse to go on by an old version: run after run would hold its lease, and no change could be published meanwhile."""
        known = self._catalog.tables.by_id(table.table_id)
        if known is not None and known.latest.version > table.version:
            raise SchemaChanged(f"table {table.name} has a newer version", table_id=table.table_id)

    async def _read(
        self, task: FillTask, codec: IndexCodec, span: Span, at: Timestamp, *, rows: int
    ) -> tuple[list[tuple[Any, Any]], Filled]:
        """Entries of rows at a timestamp, page by page in the order of the rows, and how far they reach."""
        latest, offload = task.history.latest, self._kv.context.runtime.offload
        plan = ScanPlan(task.history.schemas(), latest.version, tuple(codec.names))
        encoded, start, count, size = plan.encode(), span.start, 0, 0
        pages: list[tuple[Any, Any]] = []
        while start < span.end and count < rows and size < RUN_BYTES_MAX:
            header = Header(NO_RANGE, ts=at, follower_ok=True, max_keys=rows - count, max_bytes=PAGE_BYTES)
            (found,) = (await self._kv.read([ScanArrow(start, span.end, encoded, once=True)], header)).results
            assert isinstance(found, Blocks), found
            if found.rows:
                page = await offload(_encoded, codec, plan, found.blocks)
                size += sum(part.nbytes for part in page)
                pages.append(page)
            count, start = count + found.rows, span.end if found.resume is None else found.resume
        assert span.start <= start <= span.end, "a run reaches no further than what was to be read"
        return pages, Filled(start, count)

    async def _put(self, codec: IndexCodec, lease: _Lease, run: Run, at: Timestamp) -> list[bytes]:
        """Put entries block by block; returns those that were left out and have to be settled: of a unique index."""
        unsettled: list[bytes] = []
        unique, settings, clock = codec.index.unique, self._kv.context.settings, self._kv.context.runtime.clock
        block_bytes = min(int(settings["schema.backfill_block"]), self._kv.block_bytes())
        for low, high in _blocks(run, block_bytes):
            keys, values = _cut(run.keys, low, high), _cut(run.values, low, high)
            began_ns = clock.monotonic_ns()
            with lease.writing():
                left = await self._kv.fill_rows(keys, values, above=at, alone=unique, below=lease.deadline)
            if left:
                probe("schema.backfill_left_out")
            if left and unique:
                by_key = dict(zip(keys, values, strict=True))
                unsettled += [by_key[key] for key in left]
            pause_s = len(keys) / settings["schema.backfill_rate"] - (clock.monotonic_ns() - began_ns) / 1e9
            if pause_s > 0:
                await clock.sleep(pause_s)
        return unsettled

    # --- rows of a unique index that meet others

    async def _settle(self, task: FillTask, codec: IndexCodec, lease: _Lease, entries: Sequence[bytes]) -> None:
        """Give the rows that entries name their entries of now, in transactions; refuse a value that two rows have."""
        latest = task.history.latest
        planner, table = WritePlanner(latest, task.history.schemas()), RowCodec(latest.schema)
        for low in range(0, len(entries), SETTLED_AT_ONCE):
            keys = sorted({codec.row_key(value) for value in entries[low : low + SETTLED_AT_ONCE]})

            async def once(txn: Transaction, keys: list[bytes] = keys) -> None:
                txn.deadline = lease.deadline
                found = await _values(txn, keys)
                there = [key for key in keys if found[key] is not None]
                if not there:
                    return
                made = codec.entries(planner.rows_of(there, [found[key] or b"" for key in there]))
                owners = dict.fromkeys(made[0], b"")
                for row, entry in zip(there, made[0], strict=True):
                    if (other := owners[entry]) and other != row:
                        raise _violation(codec, table, other, row)
                    owners[entry] = row
                stored_at = await _values(txn, list(owners))
                for entry, row in owners.items():
                    stored = stored_at[entry]
                    if stored is not None and (owner := codec.row_key(stored)) != row:
                        raise _violation(codec, table, owner, row)
                puts = sorted(pair for pair in zip(*made, strict=True) if stored_at[pair[0]] != pair[1])
                if puts:
                    probe("schema.backfill_settled")
                    await txn.put_rows([key for key, _ in puts], [value for _, value in puts])

            with lease.writing():
                await self._kv.run(once)


@contextmanager
def _history(table: TableDescriptor) -> Iterator[None]:
    """Have a run that is older than what is kept of the past read again."""
    try:
        yield
    except BelowGcThreshold as error:
        probe("schema.backfill_history_gone")
        raise RetryableError(
            f"history of table {table.name} was collected while its rows were read; the rows are read again"
        ) from error


async def _values(txn: Transaction, keys: Sequence[bytes]) -> dict[bytes, bytes | None]:
    found = await txn.batch([Get(key) for key in keys])
    return {key: one.value if isinstance(one, Value) else None for key, one in zip(keys, found, strict=True)}


def _violation(codec: IndexCodec, rows: RowCodec, one: bytes, other: bytes) -> UniqueViolation:
    first, second = sorted((one, other))
    return UniqueViolation(
        f"unique index {codec.index.name} cannot be built: two rows have the same values,"
        f" {rows.show_key(first)} and {rows.show_key(second)}",
        index=codec.index.name,
    )


# --- columns; pyarrow only when it is used


def _encoded(codec: IndexCodec, plan: ScanPlan, blocks: list[memoryview]) -> tuple[Any, Any]:
    """(keys, values) of the entries of the rows in blocks. Long work: off the loop."""
    import pyarrow as pa

    from slackwater.codec.bulk_arrow import plan_schema, unpack

    schema = plan_schema(plan)
    (batch,) = pa.Table.from_batches(unpack(blocks, schema), schema).combine_chunks().to_batches()
    keys, values = codec.entry_arrays(batch)
    assert len(keys) == batch.num_rows, "every row that was read has its entry"
    return keys, values


def _sorted(codec: IndexCodec, pages: list[tuple[Any, Any]]) -> Run | None:
    """The entries of all pages by their keys; None of no rows. Long work: off the loop."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pac

    pc: Any = pac
    if not pages:
        return None
    keys = pa.concat_arrays([keys for keys, _ in pages])
    values = pa.concat_arrays([values for _, values in pages])
    assert len(keys) == len(values), "an entry has a key and a value"
    order = pc.array_sort_indices(keys)
    keys, values = keys.take(order), values.take(order)
    if not codec.index.unique or len(keys) < 2:
        return Run(keys, values, values.slice(0, 0))
    same = np.asarray(pc.equal(keys.slice(1), keys.slice(0, len(keys) - 1)))
    if not same.any():
        return Run(keys, values, values.slice(0, 0))
    probe("schema.backfill_shared")
    shared = pa.array(np.append(same, [False]) | np.append([False], same))
    alone = pc.invert(shared)
    run = Run(keys.filter(alone), values.filter(alone), values.filter(shared))
    assert len(run.keys) + len(run.shared) == len(keys), "an entry is put by itself or settled, and none is lost"
    return run


def _blocks(run: Run, size_max: int) -> list[tuple[int, int]]:
    """Where to cut a run so that a block has no more bytes than this, or one entry."""
    import numpy as np

    from slackwater.codec.keys_arrow import binary_offsets

    ends = (binary_offsets(run.keys).astype(np.int64) + binary_offsets(run.values))[1:]
    found, low, before = [], 0, int(binary_offsets(run.keys)[0]) + int(binary_offsets(run.values)[0])
    while low < len(ends):
        high = max(low + 1, int(np.searchsorted(ends, before + size_max, side="right")))
        found.append((low, high))
        low, before = high, int(ends[high - 1])
    assert low == len(run.keys) == len(run.values), "the blocks are all of the run"
    return found


def _cut(array: Any, low: int, high: int) -> list[bytes]:
    from slackwater.codec.keys_arrow import binary_rows

    rows = binary_rows(array.slice(low, high - low))
    assert len(rows) == high - low, "a block has the entries between its cuts"
    return rows
