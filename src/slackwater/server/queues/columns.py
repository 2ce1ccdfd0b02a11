"""Columns: which spans of which tables get a segment, when, and which lose theirs.

    nothing there        a read has walked many rows      ► make one at once, where it was read
                         not written for a while          ► make one, on followers first
    a segment            much has changed, and it is used ► make it anew, from itself and its changes
                         nothing has changed for long     ► move its anchor up: it is as good as made now
                         its anchor is below what was collected, or there are many small ones ► make it anew from rows
                         its table was dropped, or the disk budget is exceeded ► drop it

One at a time for each node, with pauses (`replica.driver.columns`), in a lane of its own: a sweep over a large table takes
minutes, and nothing else waits for it. `todo` is the decision and knows no clock and no disk.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import seconds_between
from slackwater.codec.layout import TABLE, split_table_key, table_span
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import DELTA_MIN
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableHistory
    from slackwater.replica.driver import Replica
    from slackwater.runtime.seam import Reader
    from slackwater.server.queues.context import QueueContext
    from slackwater.storage.columns.shelf import Kept

SEGMENT_ROWS = 1_000_000
"""Rows of one segment, about; a larger range gets several."""
ANCHOR_AGE_S = 600.0
"""An anchor that is older than this moves up when nothing has changed."""
LEADER_PATIENCE = 2
"""A leaseholder waits so many times as long as its followers do: readers prefer those, and it has the writes."""


class Todo(NamedTuple):
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


def todo(here: Range, kept: Sequence[Kept], *, rows_min: int, delta_percent: float) -> Todo | None:
    """The next thing to make, if there is one; `kept` are the segments of the span, in order."""
    at, end = here.span.start, here.span.end
    if here.rows < rows_min:
        return None
    due = here.wanted or here.quiet
    if due and len(kept) > 2 + 2 * (here.rows // SEGMENT_ROWS):
        return Todo(at, end, "many small ones")
    for one in kept:
        start, upto = max(at, one.record.start), min(end, one.record.end)
        if start > at and due:
            return Todo(at, start, "a gap")
        if one.anchor < here.threshold and due:
            return Todo(start, upto, "collected")
        limit = max(min(DELTA_MIN // 4, rows_min), one.record.rows * delta_percent / 100)
        if len(one.delta) > limit and (one.uses or here.quiet):
            return Todo(start, upto, "changed")
        at = upto
    return Todo(at, end, "new") if at < end and due else None


class ColumnsQueue:
    """Makes and drops the segments of one node."""

    name = "columns"

    def __init__(self, context: QueueContext) -> None:
        self._context = context
        self._written: dict[RangeId, tuple[int, int]] = {}
        """The last command of each range that was seen, and since when that is the last."""

    async def sweep(self) -> None:
        """Look at every replica here, and make what is due."""
        context, shelf = self._context, self._context.store.context.columns
        for finding in shelf.findings:
            context.report(finding)
        shelf.findings.clear()
        self._keep_within(int(context.settings["columns.disk_bytes"]))
        for range_id in sorted(context.store.replicas):
            replica = context.store.replicas.get(range_id)
            if replica is not None and replica.failure is None and not replica.retired:
                await self._visit(replica)
        for range_id in [r for r in self._written if r not in context.store.replicas]:
            del self._written[range_id]

    def _keep_within(self, budget: int) -> None:
        """Drop what is used least, until the rest fits."""
        columns = self._context.store.context.columns
        while columns.size > budget:
            least = min(columns, key=lambda kept: (kept.uses, kept.record.number))
            probe("queues.columns_over_budget")
            self._drop(least, "over the disk budget")

    def _drop(self, kept: Kept, reason: str) -> None:
        store = self._context.store.context
        batch = WriteBatch()
        store.columns.drop(kept, batch, reason)
        store.write(batch)

    async def _visit(self, replica: Replica) -> None:
        quiet = self._quiet(replica)
        state, columns = replica.state, self._context.store.context.columns
        if Stats(*state.stats).live_keys < self._context.settings["columns.rows_min"] and not columns.size:
            return
        for span in list(tables_in(self._context.store.context.engine, state.descriptor)):
            table_id, index_id, _ = split_table_key(span.start)
            try:
                history = await self._context.tables(table_id)
            except SlackwaterError:  # it is not in the catalog: its rows cannot be decoded
                continue
            if history.latest.schema.index_id != index_id:
                continue
            if history.latest.dropped:
                for kept in columns.overlapping(span.start, span.end):
                    self._drop(kept, "its table was dropped")
                continue
            await self._table(replica, span, history, quiet=quiet)

    async def _table(self, replica: Replica, span: Span, history: TableHistory, *, quiet: bool) -> None:
        """Make what is due of one table in one range, piece by piece."""
        settings, columns = self._context.settings, self._context.store.context.columns
        budget = int(settings["columns.disk_bytes"])
        while not (replica.retired or replica.stopped) and replica.failure is None:
            descriptor = replica.state.descriptor
            start, end = max(span.start, descriptor.start), min(span.end, descriptor.end)
            if start >= end or columns.size >= budget:
                return
            rows = Stats(*replica.state.stats).live_keys
            wanted = history.latest.table_id in columns.wanted
            here = Range(span.__class__(start, end), rows, replica.state.gc_threshold, quiet, wanted)
            kept = columns.overlapping(start, end)
            self._move_anchors(replica, kept)
            next_one = todo(
                here, kept, rows_min=int(settings["columns.rows_min"]), delta_percent=settings["columns.delta_percent"]
            )
            if next_one is None or not await self._make(replica, next_one, history):
                return

    async def _make(self, replica: Replica, what: Todo, history: TableHistory) -> bool:
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

    def _move_anchors(self, replica: Replica, kept: Sequence[Kept]) -> None:
        """Where nothing has changed for long, the anchor is now. One step: what is closed, and that nothing was written."""
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

    def _quiet(self, replica: Replica) -> bool:
        """Whether a replica has applied nothing for long enough."""
        state, now_ns = replica.state, self._context.now_ns()
        known = self._written.get(state.descriptor.range_id)
        if known is None or known[0] != state.lai:
            self._written[state.descriptor.range_id] = known = state.lai, now_ns
        leads = state.lease.holder == self._context.node_id and len(state.descriptor.replicas) > 1
        patience_s = self._context.settings["columns.quiet_period"] * (LEADER_PATIENCE if leads else 1)
        return now_ns - known[1] >= patience_s * 1e9


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
