"""Reading segments: the columns of a batch as a plan asks for them, with what has changed since merged in.

    batch      id name …      keys a b c d e                       nothing changed: the stored bytes, as they are
    changes    b@31 (new row)  d@30 (deleted)  f@33 (new key)      otherwise, whole columns at a time:
               take [0, 5, 2, 4, 6] of  a b c d e ++ b' f          positions by one search in the sorted keys, one take a column

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
import pyarrow.compute as pac

from slackwater.codec.arrow import arrow_fields, literal_array
from slackwater.codec.bulk_arrow import pack, plan_columns
from slackwater.codec.filters_arrow import bind
from slackwater.codec.keys_arrow import binary_offsets
from slackwater.codec.retype_arrow import widen_array
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import SegmentDamaged
from slackwater.model.predicates import Op, Predicate, literals
from slackwater.model.schema import can_retype
from slackwater.storage.columns.ipc import message

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.scan_plan import ScanPlan
    from slackwater.model.schema import Column
    from slackwater.runtime.seam import Reader
    from slackwater.storage.columns.delta import Changes
    from slackwater.storage.columns.segment import Segment

pa: Any = pyarrow
pc: Any = pac
KEY_BYTES_TOGETHER = 256
"""Keys up to this long are searched for together; longer ones one by one."""
IN_LIST_PRUNED_MAX = 64
PICKED_MAX = 8192
PICKED_BYTES_MAX = 2 << 20
"""Changed rows that one piece merges: what was added between two rows may be more than an answer holds."""
KNOWN_MAX = 1 << 16
"""Changed keys whose place in a segment is remembered."""

Array = np.ndarray[Any, Any]


class Piece(NamedTuple):
    """The rows of one batch as a message, and the key up to which they are all there is."""

    message: memoryview
    rows: int
    rows_read: int
    bytes_read: int
    upto: bytes


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
                if known.nullable and not column.nullable:
                    return None
            found.append(at)
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
    changes: Changes,
    reader: Reader,
    plan: PlanReader,
    places: Sequence[int | None],
    *,
    start: bytes,
    end: bytes,
    ts: Timestamp,
    bound: Timestamp,
) -> Iterator[Piece]:
    """The rows of [start, end) at `ts`, batch by batch; the span lies in the segment's, and `ts` at or above its anchor.

    `places` is what `fit` said. Raises `SegmentDamaged` before a piece that would not be right; what was given before is.
    """
    whole, possible = plan.as_stored(segment, places), plan.may_match(segment)
    firsts = segment.firsts
    at, number = start, segment.batch_of(start)
    while at < end:
        behind = firsts[number + 1] if number + 1 < len(firsts) else segment.index.end
        upto = min(behind, end)
        picked = changes.visible(at, upto, ts=ts, bound=bound)
        values = changes.values(reader, picked[:PICKED_MAX]) if picked else []
        room = _room(values)
        if room < len(picked):  # much was added here: more than one answer can hold
            upto = picked[room][:-8]
            picked, values = picked[:room], values[:room]
        inside = bool(firsts) and at <= firsts[number] and behind <= upto
        if not picked and inside and whole is not None:
            rows = segment.index.batches[number].rows
            made = message(rows, segment.packed(number, whole)).joined()
            yield Piece(memoryview(made), rows, rows, len(made), upto)
        else:
            merge = Merge(segment, number if firsts and possible[number] else None, picked, values, low=at, end=upto)
            batch = _filtered(plan, merge.columns(plan, places), merge.rows)
            packed = pack(batch)
            yield Piece(packed, batch.num_rows, merge.rows, len(packed), upto)
        at = upto
        number += upto == behind


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
    arrays = arrays[: plan.count]
    if mask is not None and not mask.all():
        rows = int(mask.sum())
        kept = pa.array(mask)
        arrays = [array.filter(kept) for array in arrays]
    if arrays:
        return pa.RecordBatch.from_arrays(arrays, schema=plan.schema)
    # A batch of no columns still counts its rows: from_arrays would forget them.
    return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))


class Merge:
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
        values = [value for value in found if value is not None]
        if len(values) < len(picked):
            raise SegmentDamaged("a version that was written is not there", versions=len(picked) - len(values))
        self._live = [value for value in values if value]
        self._written = [stored for stored, value in zip(picked, values, strict=True) if value]
        if number is not None:
            self._slice = self._rows_between(number, low, end)
        size = self._slice[1] - self._slice[0]
        self._order = self._placed(size, picked, values) if picked else None
        self.rows = size if self._order is None else len(self._order)

    def columns(self, plan: PlanReader, places: Sequence[int | None]) -> list[Any]:
        """The columns of a plan, merged."""
        stored = self._stored([at for at in places if at is not None])
        low, high = self._slice
        types = self._segment.index.schema.columns
        fresh = plan.decoder.decode(self._live).columns if self._live else ()
        found = []
        for number, (column, at) in enumerate(zip(plan.columns, places, strict=True)):
            if at is None:
                base = literal_array(column.default, column.type, size=high - low)
            else:
                base = next(stored)
                if types[at].type != column.type:
                    base = widen_array(base, old=types[at].type, new=column.type)
            found.append(self._merged(base, fresh[number] if fresh else None))
        return found

    def keys(self) -> Any:
        """The keys of all rows."""
        base = self._base_keys()
        return self._merged(base, pa.array([stored[:-8] for stored in self._written], pa.binary()))

    def begins(self) -> Any:
        """When each row was written."""
        base = next(self._stored([len(self._segment.places)]))
        marks = np.frombuffer(b"".join(stored[-8:] for stored in self._written), ">u8")
        return self._merged(base, pa.array((~marks.astype(np.uint64)).astype(np.int64), pa.int64()))

    def _stored(self, places: Sequence[int]) -> Iterator[Any]:
        """Columns of the batch, of the rows that are wanted."""
        low, high = self._slice
        if self._number is None:
            fields = self._segment.fields
            return (pa.nulls(0, fields.field(at).type) for at in places)
        return (array.slice(low, high - low) for array in self._segment.arrays(self._number, places))

    def _base_keys(self) -> Any:
        low, high = self._slice
        if self._keys is None:
            return next(self._stored([len(self._segment.places) + 1]))
        return self._keys.slice(low, high - low)

    def _rows_between(self, number: int, low: bytes, end: bytes) -> tuple[int, int]:
        segment, rows = self._segment, self._segment.index.batches[number].rows
        behind = segment.firsts[number + 1] if number + 1 < len(segment.firsts) else segment.index.end
        if low <= segment.firsts[number] and behind <= end:
            return 0, rows
        self._keys = keys = segment.keys(number)
        ordered = _Ordered(keys)
        first = 0 if low <= segment.firsts[number] else bisect_left(ordered, low)
        return first, max(first, rows if behind <= end else bisect_left(ordered, end))

    def _placed(self, size: int, picked: Sequence[bytes], values: Sequence[bytes]) -> Array:
        """Which rows there are, in order: of the batch by their number, of what was written behind those."""
        alive = np.fromiter(map(bool, values), bool, len(values))
        at, there = self._found([stored[:-8] for stored in picked])
        fresh = size + np.arange(len(self._live))
        if there.all() and alive.all():  # rows were replaced, and nothing else
            order = np.arange(size)
            order[at] = fresh
            return order
        keep = np.ones(size, bool)
        keep[at[there]] = False
        kept = np.flatnonzero(keep)
        return np.insert(kept, np.searchsorted(kept, at[alive]), fresh)

    def _found(self, wanted: list[bytes]) -> tuple[Array, Array]:
        """Where keys are, or would be, among the rows that are wanted, and whether they are there; looked up once each."""
        low, high = self._slice
        if self._number is None or low == high:
            return np.zeros(len(wanted), np.int64), np.zeros(len(wanted), bool)
        known = self._segment.known
        found = list(map(known.get, wanted))
        missing = [number for number, place in enumerate(found) if place is None]
        if missing:
            if self._keys is None:
                self._keys = self._segment.keys(self._number)
            keys = [wanted[number] for number in missing]
            at, there = _positions(self._keys, keys)
            fresh = np.where(there, at, ~at).tolist()
            for number, place in zip(missing, fresh, strict=True):
                found[number] = place
            if len(known) + len(keys) <= KNOWN_MAX:
                known.update(zip(keys, fresh, strict=True))
        places = np.array(found, np.int64)
        there = places >= 0
        return np.where(there, places, ~places) - low, there

    def _merged(self, base: Any, fresh: Any) -> Any:
        if self._order is None:
            return base
        whole = base if fresh is None or not len(fresh) else pa.concat_arrays([base, fresh])
        return whole.take(pa.array(self._order))


class _Ordered:
    """An Arrow array of keys, for bisection."""

    def __init__(self, keys: Any) -> None:
        self._keys = keys

    def __len__(self) -> int:
        return len(self._keys)

    def __getitem__(self, at: int) -> bytes:
        key: bytes = self._keys[at].as_py()
        return key


def _positions(keys: Any, wanted: Sequence[bytes]) -> tuple[Array, Array]:
    """For each wanted key, which are in order: the first row at or above it, and whether that is of the same key."""
    longest = max(map(len, wanted))
    offsets = binary_offsets(keys)
    widths = np.diff(offsets)
    longest = max(longest, int(widths.max()))
    if longest > KEY_BYTES_TOGETHER:
        ordered = _Ordered(keys)
        at = np.fromiter((bisect_left(ordered, key) for key in wanted), np.int64, len(wanted))
        same = [place < len(ordered) and ordered[place] == key for place, key in zip(at.tolist(), wanted, strict=True)]
        return at, np.array(same, bool)
    # Keys are prefix-free: padded to one length they keep their order, and stay different.
    if int(widths.min()) == longest:
        data = np.frombuffer(keys.buffers()[2], np.uint8, longest * len(keys), int(offsets[0]))
        held = data.view(f"S{longest}")
    else:
        held = np.array(keys.to_pylist(), f"S{longest}")
    looked = np.array(wanted, f"S{longest}")
    at = np.searchsorted(held, looked)
    inside = at < len(held)
    there = np.zeros(len(wanted), bool)
    there[inside] = held[at[inside]] == looked[inside]
    return at, there
