"""Columns: which spans of which tables get a segment, when, and which lose theirs.

    nothing there        a read has walked many rows      ► make one at once, where it was read
                         not written for a while          ► make one, on followers first
                         few rows                         ► none: a walk of them is as cheap
    a segment            much has changed (`is_worth_it`) ► make it anew, from itself and its changes
                         nothing has changed for long     ► move its anchor up: it is as good as made now
                         columns were added or widened    ► make it anew: only what is stored as it is read is sent as it is
                         its anchor is below what was collected, or there are many small ones ► make it anew from rows
                         its table was dropped or truncated, or the disk budget is exceeded ► drop it
    dropped for the budget                                ► none until there is room for one as large

A range may have rows of many tables, one of them written all the time: rows and quiet are those of a table in a range. A table
is quiet where its range is (a large table is written at one end), and also where it has not been written anywhere on this store.

One at a time for each node, with pauses (`replica.driver.columns`), in a lane of its own: a sweep over a large table takes
minutes, and nothing else waits for it. `next_segment` is the decision and knows no clock and no disk.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import seconds_between
from slackwater.codec.layout import INDEX_BYTES, TABLE, VERSION_BYTES, split_table_key, table_span
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.model.spans import Span
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import DELTA_MIN
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.replica.driver import Replica
    from slackwater.runtime.seam import Reader
    from slackwater.server.queues.context import QueueContext
    from slackwater.storage.columns.shelf import KeptSegment

SEGMENT_ROWS = 1_000_000
"""Rows of one segment, about; a larger range gets several."""
ANCHOR_AGE_S = 600.0
"""An anchor that is older than this moves up when nothing has changed."""
WANTED_S = 300.0
"""A read that walked rows makes its table wanted for so long."""
MERGES_WORTH = 5
"""Making a segment anew costs 430 ns a row, merging changes for the first time 45 to 200 (300 000 rows, 8 columns)."""
COUNTED_AT_ONCE = 1024
COUNTED_SHARE = 4
"""Versions walked to count the rows of a table: so many times as many as have to be found."""
LEADER_PATIENCE = 2
"""A leaseholder waits so many times as long as its followers do: readers prefer those, and it has the writes."""


class SegmentPlan(NamedTuple):
    """A span to make a segment of, and why."""

    start: bytes
    end: bytes
    why: str


class Range(NamedTuple):
    """What there is to know of the rows of one table in one range."""

    span: Span
    rows: int
    threshold: Timestamp
    quiet: bool
    """Whether it has not been written for long enough."""
    wanted: bool
    """Whether it has been read row by row."""
    outdated: frozenset[int] = frozenset()
    """Versions of the table that lack a column of the newest one, or have it by another type."""


def next_segment(
    here: Range, kept: Sequence[KeptSegment], *, rows_min: int, delta_percent: float
) -> SegmentPlan | None:
    """The next thing to make, if there is one; `kept` are the segments of the span, in order."""
    at, end = here.span.start, here.span.end
    if here.rows < rows_min:
        return None
    due = here.wanted or here.quiet
    if due and len(kept) > 2 + 2 * (here.rows // SEGMENT_ROWS):
        return SegmentPlan(at, end, "many small ones")
    for one in kept:
        start, upto = max(at, one.record.start), min(end, one.record.end)
        if start > at and due:
            return SegmentPlan(at, start, "a gap")
        if one.anchor < here.threshold and due:
            return SegmentPlan(start, upto, "collected")
        limit = max(min(DELTA_MIN // 4, rows_min), one.record.rows * delta_percent / 100)
        if len(one.delta) > limit and is_worth_it(one, quiet=here.quiet):
            return SegmentPlan(start, upto, "changed")
        if one.record.version in here.outdated and due:
            return SegmentPlan(start, upto, "altered")
        at = upto
    return SegmentPlan(at, end, "new") if at < end and due else None


def is_worth_it(one: KeptSegment, *, quiet: bool) -> bool:
    """Whether to make a segment anew of which much has changed.

    Without writers, at once: it is done once, and holds no writer up. Where rows are written all the time, it is a matter
    of what it costs and what it saves. To make it anew costs about MERGES_WORTH times what its readers pay to merge
    changes into all of its batches; what they have paid since it was made is counted (`remade_rows`), and when
    that is as much, it is made: both together cost at most twice what knowing the future would. One that is read, and soon
    to be dropped because too much has changed, is made before that: from rows it would cost more.
    """
    if quiet:
        return True
    if one.uses and len(one.delta) > one.worn_at // 2:
        probe("queues.columns_wearing")
        return True
    return one.remade_rows >= MERGES_WORTH * max(1, one.record.rows)


class Unchanged:
    """For how long each of some numbers has been what it is."""

    def __init__(self) -> None:
        self._seen: dict[RangeId | bytes, tuple[int, int]] = {}

    def since(self, name: RangeId | bytes, number: int, *, now_ns: int) -> int:
        """When this number was first seen."""
        known = self._seen.get(name)
        if known is None or known[0] != number:
            self._seen[name] = known = number, now_ns
        return known[1]

    def keep(self, names: Container[RangeId | bytes]) -> None:
        """Forget the others."""
        for name in [name for name in self._seen if name not in names]:
            del self._seen[name]


class ColumnsQueue:
    """Makes and drops the segments of one node."""

    name = "columns"

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._commands = Unchanged()
        """The last command of each range."""
        self._writes = Unchanged()
        """The last write of each index."""
        self._asked: dict[int, tuple[int, int]] = {}
        """Of wanted tables: how often they were, and since when that often."""
        self._few: dict[tuple[RangeId, bytes], int] = {}
        """Indexes with few rows in a range, and their last write when those were counted."""
        self._too_large: dict[bytes, int] = {}
        """By the first key of segments that were dropped because the disk budget was exceeded: their bytes."""

    async def sweep(self) -> None:
        """Look at every replica here, and make what is due."""
        context, shelf = self._context, self._context.store.context.columns
        for finding in shelf.findings:
            context.report(finding)
        shelf.findings.clear()
        self._keep_within(int(context.settings["columns.disk_bytes"]))
        self._note_wanted()
        indexes: set[RangeId | bytes] = set()
        for range_id in sorted(context.store.replicas):
            replica = context.store.replicas.get(range_id)
            if replica is not None and replica.failure is None and not replica.retired:
                indexes.update(await self._visit(replica))
        self._commands.keep(context.store.replicas)
        self._writes.keep(indexes)
        for start in [key for key in self._too_large if key[:INDEX_BYTES] not in indexes]:
            del self._too_large[start]
        for place in [p for p in self._few if p[0] not in context.store.replicas or p[1][:INDEX_BYTES] not in indexes]:
            del self._few[place]

    def _note_wanted(self) -> None:
        """What was wanted long ago is not wanted any more."""
        shelf, now_ns = self._context.store.context.columns, self._context.now_ns()
        asked, self._asked = self._asked, {}
        for table_id, times in list(shelf.wanted.items()):
            known = asked.get(table_id)
            if known is None or known[0] != times:
                known = times, now_ns
            if now_ns - known[1] < WANTED_S * 1e9:
                self._asked[table_id] = known
            else:
                del shelf.wanted[table_id]

    def _keep_within(self, budget: int) -> None:
        """Drop what is used least, until the rest fits."""
        columns = self._context.store.context.columns
        while columns.size > budget:
            least = min(columns, key=lambda kept: (kept.uses, kept.record.number))
            probe("queues.columns_over_budget")
            self._too_large[least.record.start] = least.record.size
            self._drop(least, "over the disk budget")

    def _has_room(self, what: SegmentPlan, budget: int) -> bool:
        """Whether a segment fits the disk budget, as far as can be told: one that did not was dropped, and says how large it was.

        Without this it would be made and dropped again with every sweep.
        """
        columns = self._context.store.context.columns
        known = self._too_large.get(what.start, 0)
        return columns.size + known < budget

    def _drop(self, kept: KeptSegment, reason: str) -> None:
        store = self._context.store.context
        batch = WriteBatch()
        store.columns.drop(kept, batch, reason)
        store.write(batch)

    async def _visit(self, replica: Replica) -> list[bytes]:
        """Make and drop what is due in one range; the indexes that have rows there."""
        state, columns = replica.state, self._context.store.context.columns
        calm = self._quiet(replica, self._commands, state.descriptor.range_id, state.lai)
        if Stats(*state.stats).live_keys < self._context.settings["columns.rows_min"] and not columns.size:
            return []
        spans = list(tables_in(self._context.store.context.engine, state.descriptor))
        for span in spans:
            quiet = self._quiet(replica, self._writes, span.start, columns.last_write(span.start)) or calm
            table_id, index_id, _ = split_table_key(span.start)
            try:
                history = await self._context.tables(table_id)
            except SlackwaterError:  # it is not in the catalog: its rows cannot be decoded
                continue
            if history.latest.dropped or history.latest.schema.index_id != index_id:
                for kept in columns.overlapping(span.start, span.end):  # entries of an index have none
                    self._drop(kept, "its table was dropped or truncated")
                continue
            self._drop_small(span)
            await self._table(replica, span, history, quiet=quiet, alone=len(spans) == 1)
        return [span.start for span in spans]

    def _drop_small(self, span: Span) -> None:
        """Drop segments that are not worth a note with every write: the table has few rows here, or has shrunk."""
        kept = self._context.store.context.columns.overlapping(span.start, span.end)
        if sum(one.record.rows + len(one.delta) for one in kept) < self._context.settings["columns.rows_min"] // 2:
            for one in kept:
                probe("queues.columns_small")
                self._drop(one, "it has few rows")

    async def _table(self, replica: Replica, span: Span, history: TableHistory, *, quiet: bool, alone: bool) -> None:
        """Make what is due of one table in one range, piece by piece; `alone`: the range has rows of no other index."""
        settings, columns = self._context.settings, self._context.store.context.columns
        budget, rows_min = int(settings["columns.disk_bytes"]), int(settings["columns.rows_min"])
        while not (replica.retired or replica.stopped) and replica.failure is None:
            descriptor = replica.state.descriptor
            start, end = max(span.start, descriptor.start), min(span.end, descriptor.end)
            if start >= end:
                return
            rows = Stats(*replica.state.stats).live_keys
            wanted = history.latest.table_id in self._asked
            here = Range(Span(start, end), rows, replica.state.gc_threshold, quiet, wanted, outdated(history))
            kept = columns.overlapping(start, end)
            self._move_anchors(replica, kept)
            next_one = next_segment(here, kept, rows_min=rows_min, delta_percent=settings["columns.delta_percent"])
            if next_one is None or not self._has_room(next_one, budget):
                return
            if not (kept or alone or await self._many(replica, here.span, rows_min)):
                return
            if not await self._make(replica, next_one, history):
                return

    async def _many(self, replica: Replica, span: Span, rows_min: int) -> bool:
        """Whether an index has enough rows in a range that has rows of others; counted once for as long as it is not written."""
        columns, engine = self._context.store.context.columns, self._context.store.context.engine
        place = replica.state.descriptor.range_id, span.start
        written = columns.last_write(span.start[:INDEX_BYTES])
        if self._few.get(place) == written:
            return False
        at, live, walked = span.start, 0, 0
        while live < rows_min and walked < COUNTED_SHARE * rows_min:
            keys, values = engine.cursor(Family.DATA, start=at, end=span.end).chunk(COUNTED_AT_ONCE)
            if not keys:
                break
            rows, at = live_rows(keys, values)
            live, walked = live + rows, walked + len(keys)
            await self._context.runtime.clock.sleep(0)
        if live >= rows_min:
            self._few.pop(place, None)
            return True
        self._few[place] = written
        return False

    async def _make(self, replica: Replica, what: SegmentPlan, history: TableHistory) -> bool:
        """Make one segment; whether there is one more now."""
        from slackwater.replica.driver.columns import make, shape_of

        probe(f"queues.columns_{what.why.replace(' ', '_')}")
        try:
            made = await make(replica, what.start, what.end, history.schemas(), shape_of(self._context.settings))
        except SlackwaterError as error:  # a row of a version that is not known here yet; a disk that is full
            probe("queues.columns_failed")
            self._context.report(f"columns of r{replica.state.descriptor.range_id} were not made: {error}")
            return False
        return made is not None

    def _move_anchors(self, replica: Replica, kept: Sequence[KeptSegment]) -> None:
        """Move anchors up where nothing has changed for long. One step: what is closed, and that nothing was written."""
        store = replica.context
        closed = replica.closing.closed()
        for one in kept:
            inside = replica.state.descriptor.covers(one.record.start, one.record.end)
            if one.delta or not inside or seconds_between(one.anchor, closed) < ANCHOR_AGE_S:
                continue
            from slackwater.storage.columns.build import anchor_of

            anchor = anchor_of(store.engine, one.record.start, one.record.end, closed=closed)
            if anchor is not None and anchor > one.anchor >= replica.state.gc_threshold:
                probe("queues.columns_anchor_moved")
                batch = WriteBatch()
                store.columns.anchored(one, anchor, batch)
                store.write(batch)

    def _quiet(self, replica: Replica, known: Unchanged, name: RangeId | bytes, number: int) -> bool:
        """Whether a number that writes change is the same for long enough."""
        state, now_ns = replica.state, self._context.now_ns()
        leads = state.lease.holder == self._context.node_id and len(state.descriptor.replicas) > 1
        patience_s = self._context.settings["columns.quiet_period"] * (LEADER_PATIENCE if leads else 1)
        return now_ns - known.since(name, number, now_ns=now_ns) >= patience_s * 1e9


def outdated(history: TableHistory) -> frozenset[int]:
    """The versions of a table that lack a column of the newest one, or have it by another type; names do not matter."""
    newest = _shape(history.latest)
    shapes = [(version.version, _shape(version)) for version in history.versions]
    return frozenset(number for number, known in shapes if any(column not in known for column in newest))


def _shape(version: TableDescriptor) -> list[tuple[object, ...]]:
    return [(column.id, column.type, column.default) for column in version.columns]


def live_rows(keys: Sequence[bytes], values: Sequence[bytes]) -> tuple[int, bytes]:
    """How many rows there are among stored versions in order, and behind which key; the last key's others are passed over."""
    plain = [stored[:-VERSION_BYTES] for stored in keys]
    newest = [True, *(before != key for before, key in pairwise(plain))]
    return sum(bool(first and value) for first, value in zip(newest, values, strict=True)), plain[-1] + b"\xff" * 9


def tables_in(reader: Reader, descriptor: RangeDescriptor) -> Iterator[Span]:
    """The spans of the indexes that have rows in a range: one look for each."""
    at, end = max(descriptor.start, TABLE), min(descriptor.end, TABLE + b"\xff")
    while at < end:
        keys = reader.cursor(Family.DATA, start=at, end=end).keys(1)
        if not keys:
            return
        table_id, index_id, _ = split_table_key(keys[0])
        span = table_span(table_id, index_id)
        yield span
        at = span.end
