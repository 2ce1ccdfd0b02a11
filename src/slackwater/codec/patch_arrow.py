"""Merging changed rows into a record batch, whole columns at a time: both the node and its readers do it.

    batch      a b c d e        replaced [1]      b' takes the place of b         fixed width: one scatter
    fresh      b' x             inserted [3]      x goes in before d              texts: a scatter where lengths are the same,
    merged     a b' c x e       removed  [3]      d is gone                       else what lies between changes, piece by piece

Most changed rows are replaced ones: then no row moves. A reader that has just decompressed a batch writes into its buffers
(`own`); a copy of them costs more than all the rest, because its pages are new. Where rows come or go, a column of fixed width is
one take. Positions come from another process and are checked before anything is read by them.
"""

from __future__ import annotations

from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.codec.keys_arrow import binary_offsets
from slackwater.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.patches import Patch

pa: Any = pyarrow
pc: Any = pac
Array = np.ndarray[Any, Any]
_POSITION = np.dtype("<i4")
"""As they are sent."""
_NOWHERE = np.zeros(0, np.intp)
_TEXTS = frozenset({pa.string().id, pa.binary().id})
_BOOL: int = pa.bool_().id
_FIXED = frozenset(
    kind.id
    for kind in (
        *(pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()),
        *(pa.float16(), pa.float32(), pa.float64(), pa.date32(), pa.date64(), pa.time32("s"), pa.time64("us")),
        *(pa.timestamp("us"), pa.duration("us"), pa.decimal128(1), pa.decimal256(1), pa.binary(1)),
    )
)
"""Kinds of columns, by the numbers Arrow has for them: they are asked for with every column of every batch."""
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


class Places(NamedTuple):
    """Positions in a batch, ascending: see `Patch`. As numpy's own integers: with others an index costs ten times as much."""

    removed: Array
    replaced: Array
    inserted: Array

    def check(self, rows: int, fresh: int) -> None:
        """Raise `DecodeError` unless these are positions in a batch of so many rows, for so many fresh ones."""
        if len(self.replaced) + len(self.inserted) != fresh:
            raise DecodeError("a patch has another number of rows than of places for them", rows=fresh)
        fit = _ascend(self.removed, rows) and _ascend(self.replaced, rows) and _ascend(self.inserted, rows + 1, np.less)
        if not fit:
            raise DecodeError("the places of a patch are outside its block, or out of order", rows=rows)

    @property
    def moves(self) -> bool:
        """Whether rows come or go, so that others move."""
        return bool(len(self.removed) or len(self.inserted))

    def order(self, rows: int) -> Array:
        """Which rows of batch ++ fresh there are, in order."""
        order = np.arange(rows, dtype=np.int32)
        order[self.replaced] = np.arange(rows, rows + len(self.replaced), dtype=np.int32)
        if not self.moves:
            return order
        first = rows + len(self.replaced)
        added = np.arange(first, first + len(self.inserted), dtype=np.int32)
        if not len(self.removed):
            return np.insert(order, self.inserted, added)
        keep = np.ones(rows, bool)
        keep[self.removed] = False
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])  # rows kept before each place
        return np.insert(order[keep], before[self.inserted], added)


def _ascend(places: Array, limit: int, misplaced: Any = np.less_equal) -> bool:
    """Whether places are within [0, limit) and in order; `misplaced` says of one and the one before that they are not."""
    if not len(places):
        return True
    return places.item(0) >= 0 and places.item(-1) < limit and not np.count_nonzero(misplaced(places[1:], places[:-1]))


def places_of(patch: Patch) -> Places:
    """The positions of a patch."""
    return Places(_sent(patch.removed), _sent(patch.replaced), _sent(patch.inserted))


def _sent(raw: bytes) -> Array:
    if not raw:
        return _NOWHERE
    if len(raw) % _POSITION.itemsize:
        raise DecodeError("the places of a patch are cut short", size=len(raw))
    return np.frombuffer(raw, _POSITION).astype(np.intp)


def patched(batch: Any, fresh: Any, places: Places) -> Any:
    """A record batch with changes merged in; `fresh` has its schema: first the rows that replace, then those inserted.

    The batch is used up: where its buffers can be written, they are.
    """
    if not batch.num_columns:  # only the number of rows counts
        rows = batch.num_rows - len(places.removed) + len(places.inserted)
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    places.check(batch.num_rows, fresh.num_rows)
    columns = batch.columns
    found = merged(columns, fresh.columns, places, own=True)
    if all(map(is_, found, columns)):
        return batch
    return pa.RecordBatch.from_arrays(found, schema=batch.schema)


def merged(base: Sequence[Any], fresh: Sequence[Any], places: Places, *, own: bool = False) -> list[Any]:
    """Columns with changes merged in: of arrays of one length each, and checked places.

    `own`: `base` may be written to; a column of which no buffer had to be made is then the same object.
    """
    assert len(base) == len(fresh), "a fresh column for every column"
    ways = _Ways(places, len(base[0])) if base else None
    found = []
    for column, new in zip(base, fresh, strict=True):
        assert ways is not None, "there are columns"
        done = None
        if not places.moves:
            done = _replaced(column, new, places.replaced, own=own)
        if done is None and column.type.id in _TEXTS:
            done = ways.texts(column, new)
        found.append(pc.take(pa.concat_arrays([column, new]), ways.rows(), boundscheck=False) if done is None else done)
    return found


class _Ways:
    """The order of merged rows, worked out once for all columns that need it."""

    def __init__(self, places: Places, size: int) -> None:
        self._places = places
        self._size = size
        self._order: Array | None = None
        self._rows: Any = None
        self._runs: tuple[Array, Any] | None = None

    def order(self) -> Array:
        """The order of the rows of batch ++ fresh."""
        if self._order is None:
            self._order = self._places.order(self._size)
        return self._order

    def rows(self) -> Any:
        """The order, for Arrow."""
        if self._rows is None:
            self._rows = pa.array(self.order())
        return self._rows

    def runs(self) -> tuple[Array, Any]:
        """The rows of batch ++ fresh in pieces that stay together: between which rows they lie, and which come, in order.

        run │ changed row │ run │ … │ run │ fresh │ fresh …        where a row is inserted, the changed row has no length
        """
        if self._runs is None and not self._places.moves:
            at, size = self._places.replaced, self._size
            count = len(at)
            bounds = np.empty(3 * count + 2, np.int32)
            bounds[0] = 0
            bounds[1 : 2 * count + 1 : 2] = at
            bounds[2 : 2 * count + 1 : 2] = at + 1
            bounds[2 * count + 1 :] = np.arange(size, size + count + 1, dtype=np.int32)
            chosen = np.arange(2 * count + 1, dtype=np.int32)
            chosen[1::2] = np.arange(2 * count + 1, 3 * count + 1, dtype=np.int32)
            self._runs = bounds, pa.array(chosen)
        elif self._runs is None:
            removed, replaced, inserted = self._places
            at = np.concatenate([removed, replaced, inserted]).astype(np.int64)
            taken = np.ones(len(at), np.int64)
            taken[len(at) - len(inserted) :] = 0
            fresh = np.concatenate([np.full(len(removed), -1), np.arange(len(replaced) + len(inserted))])
            order = np.lexsort((taken, at))  # what is inserted before a row comes before what becomes of the row
            at, taken, fresh = at[order], taken[order], fresh[order]
            last = 2 * len(at) + 1
            behind = self._size + np.arange(1, len(replaced) + len(inserted) + 1)
            bounds = np.concatenate([np.zeros(last, np.int32), [self._size], behind]).astype(np.int32)
            bounds[1:last:2] = at
            bounds[2:last:2] = at + taken
            chosen = np.arange(last, dtype=np.int32)
            chosen[1::2] = np.where(fresh < 0, -1, last + fresh)
            self._runs = bounds, pa.array(chosen[chosen >= 0] if len(removed) else chosen)
        return self._runs

    def texts(self, column: Any, new: Any) -> Any:
        """A column of texts, piece by piece: what lies between two changes is copied at once. None: there is no byte."""
        whole = pa.concat_arrays([column, new])
        offsets, data = binary_offsets(whole), whole.buffers()[2]
        if data is None:
            return None
        bounds, chosen = self.runs()
        between = pa.py_buffer(offsets[bounds])
        pieces = pa.Array.from_buffers(pa.binary(), len(bounds) - 1, [None, between, data])
        joined = pc.take(pieces, chosen, boundscheck=False)
        assert joined.offset == 0, "what was taken is new"
        if self._places.moves:
            order = self.order()
            ends = np.zeros(len(order) + 1, np.int32)
            np.cumsum(np.diff(offsets)[order], out=ends[1:])
            valid = _bits(whole.buffers()[0], whole)[order] if whole.null_count else None
            validity = None if valid is None else pa.py_buffer(np.packbits(valid, bitorder="little"))
            return pa.Array.from_buffers(column.type, len(order), [validity, pa.py_buffer(ends), joined.buffers()[2]])
        at, size = self._places.replaced, self._size
        ends = np.zeros(size + 1, np.int32)
        ends[at + 1] = np.diff(offsets[size:]) - (offsets[at + 1] - offsets[at])
        np.cumsum(ends, out=ends)
        ends += offsets[: size + 1]
        _, validity = _validity(column, new, at)
        return pa.Array.from_buffers(column.type, size, [validity, pa.py_buffer(ends), joined.buffers()[2]])


def _replaced(column: Any, new: Any, at: Array, *, own: bool) -> Any:
    """A column with some values replaced; None: rows of it have to move."""
    kind = column.type
    size, number = len(column), kind.id
    if not len(at):
        return column
    if number in _FIXED:
        before = _fixed(column)
        values = _writable(before, own=own)
        values[at] = _fixed(new)
        kept = values is before
        held = None if kept else [pa.py_buffer(values)]
    elif number in _TEXTS:
        found = _replaced_text(column, new, at, own=own)
        if found is None:
            return None
        kept, held = found
    elif number == _BOOL:
        kept, held = _replaced_bools(column, new, at, own=own)
    else:
        return None
    known, validity = _validity(column, new, at)
    if kept and known:
        return column
    return pa.Array.from_buffers(kind, size, [validity, *(held or column.buffers()[1:])])


def _writable(values: Array, *, own: bool) -> Array:
    """The values, to be written to: a copy, unless they are the caller's own and in memory of Arrow's."""
    return values if own and values.flags.writeable else values.copy()


def _fixed(array: Any) -> Array:
    """The values of a column of fixed width."""
    width = array.type.bit_width // 8
    dtype: np.dtype[Any] = _WORDS.get(width) or np.dtype(f"V{width}")
    raw = array.buffers()[1]
    if raw is None or not len(array):
        return np.zeros(len(array), dtype)
    return np.frombuffer(raw, dtype, len(array), array.offset * width)


def _replaced_text(column: Any, new: Any, at: Array, *, own: bool) -> tuple[bool, list[Any]] | None:
    """Offsets and bytes of texts of which some are replaced by others of the same length; None: a length differs.

    Also whether they were written where they are.
    """
    offsets, fresh = binary_offsets(column), binary_offsets(new)
    begins, lengths = offsets[at], fresh[1:] - fresh[:-1]
    if np.count_nonzero(offsets[at + 1] - begins != lengths):
        return None
    raw, written = column.buffers()[2], new.buffers()[2]
    first, last = fresh.item(0), fresh.item(-1)
    if raw is None or written is None or first == last:
        return own, [pa.py_buffer(offsets), raw]
    before = np.frombuffer(raw, np.uint8)
    data = _writable(before, own=own)
    # a byte of the fresh texts goes as far behind the begin of its row's text as it lies behind that of its own
    places = np.arange(first, last) + np.repeat(begins - fresh[:-1], lengths)
    data[places] = np.frombuffer(written, np.uint8)[first:last]
    return data is before, [pa.py_buffer(offsets), pa.py_buffer(data)]


def _replaced_bools(column: Any, new: Any, at: Array, *, own: bool) -> tuple[bool, list[Any]]:
    """The bits of booleans of which some are replaced, and whether they were written where they are."""
    held = column.buffers()[1]
    values = _bits(held, column)
    values[at] = _bits(new.buffers()[1], new)
    packed = np.packbits(values, bitorder="little")
    raw = np.frombuffer(held, np.uint8)
    if own and raw.flags.writeable and not column.offset:
        raw[: len(packed)] = packed
        return True, [held]
    return False, [pa.py_buffer(packed)]


def _validity(column: Any, new: Any, at: Array) -> tuple[bool, Any]:
    """The validity bitmap of a column with some values replaced, and whether that is the one it has."""
    if not column.null_count and not new.null_count:
        return True, None
    fresh = _bits(new.buffers()[0], new)
    held = column.buffers()[0]
    if held is not None and not column.offset:
        raw = np.frombuffer(held, np.uint8)
        if np.array_equal((raw[at >> 3] >> (at & 7).astype(np.uint8)) & 1, fresh):
            return True, held  # as many rows have NULL as before, and the same ones
    valid = _bits(held, column)
    valid[at] = fresh
    return False, pa.py_buffer(np.packbits(valid, bitorder="little"))


def _bits(buffer: Any, array: Any) -> Array:
    """A bitmap of an array as one byte for each element; no bitmap means all set."""
    if buffer is None:
        return np.ones(len(array), np.uint8)
    raw = np.frombuffer(buffer, np.uint8)
    return np.unpackbits(raw, count=array.offset + len(array), bitorder="little")[array.offset :]
