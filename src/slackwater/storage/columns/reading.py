"""Reading segments: the columns of a batch as a plan asks for them, with what has changed since merged in.

    nothing changed          the stored bytes, as they are
    some rows changed        the stored bytes, and a patch: the reader merges (`codec.patch_arrow`), who decompresses anyway
    predicates, or a part    decompressed here and merged, whole columns at a time: positions by one search in the sorted keys

A plan may ask for another version of the table than the segment was made with. Columns meet by id, as everywhere: one that the
segment lacks was added later and has its default in every row; one that was dropped before the segment was made is not there
to be read. What a segment cannot give exactly (`fit`) is read from rows.

Predicates: a batch whose lowest and highest values say that no row can pass is not read at all; what changed in its span is.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow

from slackwater.codec.arrow import arrow_fields, literal_array
from slackwater.codec.bulk_arrow import pack, plan_columns
from slackwater.codec.filters_arrow import bind
from slackwater.codec.patch_arrow import merged
from slackwater.codec.retype_arrow import widen_array
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.hooks import probe
from slackwater.model.predicates import Op, Predicate, literals
from slackwater.model.schema import can_retype
from slackwater.storage.columns.ipc import message
from slackwater.storage.columns.placing import PATCHES_MAX, Ordered, Placed, search

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.patches import Patch
    from slackwater.model.scan_plan import ScanPlan
    from slackwater.model.schema import Column
    from slackwater.runtime.seam import Reader
    from slackwater.storage.columns.delta import DeltaView, VisibleChanges
    from slackwater.storage.columns.segment import Segment

pa: Any = pyarrow
IN_LIST_PRUNED_MAX = 64
PICKED_MAX = 8192
PICKED_BYTES_MAX = 2 << 20
"""Changed rows that one piece merges: what was added between two rows may be more than an answer holds."""

Array = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """The rows of one batch as a message, and the key up to which they are all there is."""

    message: memoryview
    rows: int
    """With the patch, if there is one."""
    rows_read: int
    bytes_read: int
    upto: bytes
    patch: Patch | None = None
    remade: int = 0
    """Rows of the batch, if changes were merged into it that no read before had merged."""


class PlanReader:
    """A plan, bound to its columns and predicates: made once for each plan."""

    def __init__(self, plan: ScanPlan) -> None:
        schema = plan.schema()
        wanted = plan_columns(plan)
        names = {column.name for column in wanted}
        more = [p.column for p in plan.predicates if p.column not in names]
        self.columns = [*wanted, *(schema.column(name) for name in dict.fromkeys(more))]
        """Those asked for, and behind them those that only predicates need."""
        self.count = len(wanted)
        self.schema = arrow_fields(wanted)
        self._version = plan.read_version
        place = {column.name: at for at, column in enumerate(self.columns)}
        self.filters = [(place[p.column], bind(p, schema.column(p.column))) for p in plan.predicates]
        self._bounds = [(schema.column(p.column), p) for p in plan.predicates]
        versions = {found.version: found for found in plan.schemas}
        self.decoder = BlockDecoder(schema, versions, [column.name for column in self.columns])

    def fit(self, segment: Segment) -> list[int | None] | None:
        """Where the segment has each column, None where all rows have its default; None: it cannot serve this plan."""
        stored = segment.index.schema
        found: list[int | None] = []
        for column in self.columns:
            at = segment.places.get(column.id)
            if at is None:
                if self._version <= stored.version or (column.default is None and not column.nullable):
                    return None
            else:
                known = stored.columns[at]
                if known.default != column.default or not can_retype(known.type, column.type):
                    return None
                if known.nullable and not column.nullable and segment.nulls(at):
                    return None
            found.append(at)
        assert len(found) == len(self.columns), "a place for every column"
        return found

    def as_stored(self, segment: Segment, places: Sequence[int | None]) -> list[int] | None:
        """The places of the columns asked for, if they can be sent as they are stored."""
        if self.filters:
            return None
        types = segment.index.schema.columns
        found = []
        for column, at in zip(self.columns, places, strict=True):
            if at is None or types[at].type != column.type:
                return None
            found.append(at)
        assert len(found) == self.count, "columns that only predicates need are not sent"
        return found

    def may_match(self, segment: Segment) -> Array:
        """For each batch, whether a row of it may pass the predicates."""
        batches = segment.index.batches
        possible = np.ones(len(batches), bool)
        for column, predicate in self._bounds:
            at = segment.places.get(column.id)
            if at is None or segment.index.schema.columns[at].type != column.type:
                continue
            if predicate.op is Op.IS_NULL:
                possible &= np.array([batch.chunks[at].nulls > 0 for batch in batches], bool)
            extremes = segment.statistics(column.id)
            if extremes is not None and len(batches):
                possible &= _possible(predicate, column, *extremes)
        assert len(possible) == len(batches), "an answer for every batch"
        return possible


def _possible(predicate: Predicate, column: Column, lows: Any, highs: Any) -> Array:
    """Which batches may hold a value that satisfies a predicate, by their lowest and highest values."""
    match predicate.op:
        case Op.LT | Op.LE:
            return bind(predicate, column)(lows)
        case Op.GT | Op.GE:
            return bind(predicate, column)(highs)
        case Op.EQ:
            return _holds(column, predicate.literal, lows, highs)
        case Op.IN if len(wanted := literals(predicate)) <= IN_LIST_PRUNED_MAX:
            possible = np.zeros(len(lows), bool)
            for value in wanted:
                possible |= _holds(column, value, lows, highs)
            return possible
    return np.ones(len(lows), bool)


def _holds(column: Column, value: object, lows: Any, highs: Any) -> Array:
    """Which batches may hold one value."""
    above = bind(Predicate(column.name, Op.LE, value), column)(lows)
    return above & bind(Predicate(column.name, Op.GE, value), column)(highs)


def read_segment(
    segment: Segment,
    changes: DeltaView,
    reader: Reader,
    plan: PlanReader,
    places: Sequence[int | None],
    *,
    start: bytes,
    end: bytes,
    ts: Timestamp,
    bound: Timestamp,
    patches: bool = False,
) -> Iterator[Piece]:
    """The rows of [start, end) at `ts`, batch by batch; the span lies in the segment's, and `ts` at or above its anchor.

    `places` is what `fit` said; with `patches`, batches of which some rows have changed may come as they are stored, with a
    patch beside them. Raises `SegmentDamaged` before a piece that would not be right; what was given before is.
    """
    stored, possible = plan.as_stored(segment, places), plan.may_match(segment)
    firsts = segment.firsts
    at, number = start, segment.batch_of(start)
    while at < end:
        behind = segment.end_of(number)
        upto = min(behind, end)
        assert at < upto <= end, "pieces follow each other inside the span"
        whole = bool(firsts) and at <= (firsts[number] if number else segment.index.start) and upto == behind
        piece = None
        if whole and stored is not None:
            seen = changes.seen(firsts, number, ts=ts, bound=bound)
            if seen is not None and (patches or not len(seen.mask)):
                piece = _stored_piece(segment, number, changes, seen, reader, plan, stored)
        if piece is None:
            picked = changes.visible(firsts, number, at, upto, ts=ts, bound=bound)
            values = changes.values(reader, picked[:PICKED_MAX]) if picked else []
            room = _room(values)
            if room < len(picked):  # much was added here: more than one answer can hold
                upto = picked[room][:-8]
                picked, values = picked[:room], values[:room]
            assert at < upto, "an answer moves on"
            wanted = number if firsts and possible[number] else None
            merge = BatchMerge(segment, wanted, picked, values, low=at, end=upto)
            batch = _filtered(plan, merge.columns(plan, places), merge.rows)
            packed = pack(batch)
            assert batch.num_rows <= merge.rows, "a filter adds no rows"
            remade = merge.rows if picked else 0
            piece = Piece(packed, batch.num_rows, merge.rows, len(packed), upto, remade=remade)
        yield piece
        at = upto
        number += upto == behind


def _stored_piece(
    segment: Segment,
    number: int,
    changes: DeltaView,
    seen: VisibleChanges,
    reader: Reader,
    plan: PlanReader,
    stored: Sequence[int],
) -> Piece | None:
    """A whole batch as it is stored, with a patch for what has changed; None: that is too much for one answer."""
    rows, patch, more = segment.index.batches[number].rows, None, 0
    remade = 0
    if len(seen.mask):
        remade = rows if seen.made() is None else 0
        placed = _placed(segment, number, changes, seen, reader)
        if placed is None:
            return None
        patch = placed.patches.get(plan)
        if patch is None:
            probe("columns.patch_made")
            patch = placed.patch(plan)
            if len(placed.patches) < PATCHES_MAX and changes.delta.grew(seen, len(patch.fresh)):
                placed.patches[plan] = patch
        rows, more = placed.rows(rows), len(patch.fresh)
    made = message(segment.index.batches[number].rows, segment.packed(number, stored)).joined()
    return Piece(memoryview(made), rows, rows, len(made) + more, segment.end_of(number), patch, remade)


def _placed(segment: Segment, number: int, changes: DeltaView, seen: VisibleChanges, reader: Reader) -> Placed | None:
    """Where the changes that a read sees go in a batch, looked up once for as long as they stay the same."""
    found: Placed | None = seen.made()
    if found is not None:
        return found
    picked = seen.newest()
    if len(picked) > PICKED_MAX:
        return None
    values = changes.values(reader, picked)
    if _room(values) < len(values):
        return None
    before = seen.bucket.kept
    known = before[1].known() if before is not None else {}
    found = Placed(picked, values, *search([v[:-8] for v in picked], lambda: segment.keys(number), known))
    assert len(values) == len(picked), "a value for every change"
    changes.delta.keep(seen, found, found.size)
    return found


def _room(values: Sequence[bytes | None]) -> int:
    """How many of these values fit in one piece; at least one."""
    size = 0
    for count, value in enumerate(values):
        size += len(value or b"")
        if size > PICKED_BYTES_MAX and count:
            return count
    return len(values)


def _filtered(plan: PlanReader, arrays: list[Any], rows: int) -> Any:
    """The batch of the columns asked for, without the rows that a predicate refuses."""
    mask: Array | None = None
    for place, keep in plan.filters:
        found = keep(arrays[place])
        mask = found if mask is None else mask & found
        assert len(mask) == rows, "an answer for every row"
    arrays = arrays[: plan.count]
    if mask is not None and not mask.all():
        rows = int(mask.sum())
        kept = pa.array(mask)
        arrays = [array.filter(kept) for array in arrays]
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)
    # A batch of no columns still counts its rows: from_arrays would forget them.
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


class BatchMerge:
    """The rows of one batch with keys in [low, end), and what has become of them."""

    def __init__(
        self,
        segment: Segment,
        number: int | None,
        picked: Sequence[bytes],
        found: Sequence[bytes | None],
        *,
        low: bytes,
        end: bytes,
    ) -> None:
        """`number` None: of the batch itself nothing is wanted. `picked`: the visible changes and their values, in order."""
        self._segment = segment
        self._number = number
        self._slice = (0, 0)
        self._keys: Any = None
        if number is not None:
            self._slice = self._rows_between(number, low, end)
        first, behind = self._slice
        assert 0 <= first <= behind, "rows of the batch"
        self._changes: Placed | None = None
        if picked:
            wanted = [stored[:-8] for stored in picked]
            at, there = np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
            if first < behind:
                at, there = search(wanted, self._all_keys, {})
            self._changes = Placed(picked, found, at - first if first < behind else at, there)
        self.rows = behind - first if self._changes is None else self._changes.rows(behind - first)
        assert self.rows >= 0, "rows are counted"

    def columns(self, plan: PlanReader, places: Sequence[int | None]) -> list[Any]:
        """The columns of a plan, merged."""
        stored = self._stored([at for at in places if at is not None])
        low, high = self._slice
        types = self._segment.index.schema.columns
        bases = []
        for column, at in zip(plan.columns, places, strict=True):
            if at is None:
                base = literal_array(column.default, column.type, size=high - low)
            else:
                base = next(stored)
                if types[at].type != column.type:
                    base = widen_array(base, old=types[at].type, new=column.type)
            bases.append(base)
        assert all(len(base) == high - low for base in bases), "every column has every row"
        if self._changes is None or not bases:
            return bases
        arrays = merged(bases, self._changes.decoded(plan), self._changes.places)
        assert all(len(array) == self.rows for array in arrays), "every column has every row"
        return arrays

    def keys(self) -> Any:
        """The keys of all rows."""
        low, high = self._slice
        held = self._keys
        base = next(self._stored([len(self._segment.places) + 1])) if held is None else held.slice(low, high - low)
        if self._changes is None:
            return base
        keys = self._with(base, pa.array([stored[:-8] for stored in self._changes.written], pa.binary()))
        assert len(keys) == self.rows, "a key for every row"
        return keys

    def begins(self) -> Any:
        """When each row was written."""
        base = next(self._stored([len(self._segment.places)]))
        if self._changes is None:
            return base
        marks = np.frombuffer(b"".join(stored[-8:] for stored in self._changes.written), ">u8")
        begins = self._with(base, pa.array((~marks.astype(np.uint64)).astype(np.int64), pa.int64()))
        assert len(begins) == self.rows, "a time for every row"
        return begins

    def _with(self, base: Any, fresh: Any) -> Any:
        assert self._changes is not None, "there is something to merge"
        return merged([base], self._changes.fresh([fresh]), self._changes.places)[0]

    def _stored(self, places: Sequence[int]) -> Iterator[Any]:
        """Columns of the batch, of the rows that are wanted."""
        low, high = self._slice
        if self._number is None:
            fields = self._segment.fields
            return (pa.nulls(0, fields.field(at).type) for at in places)
        return (array.slice(low, high - low) for array in self._segment.arrays(self._number, places))

    def _all_keys(self) -> Any:
        if self._keys is None:
            assert self._number is not None, "keys are of a batch"
            self._keys = self._segment.keys(self._number)
        return self._keys

    def _rows_between(self, number: int, low: bytes, end: bytes) -> tuple[int, int]:
        segment, rows = self._segment, self._segment.index.batches[number].rows
        behind = segment.end_of(number)
        if low <= segment.firsts[number] and behind <= end:
            return 0, rows
        ordered = Ordered(self._all_keys())
        first = 0 if low <= segment.firsts[number] else bisect_left(ordered, low)
        assert 0 <= first <= rows, "rows of the batch"
        return first, max(first, rows if behind <= end else bisect_left(ordered, end))
