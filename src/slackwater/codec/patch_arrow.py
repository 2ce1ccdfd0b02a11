"""Merging changed rows into a record batch, whole columns at a time: both the node and its readers do it.

    batch      a b c d e        replaced [1]      b' takes the place of b         fixed width: one scatter
    fresh      b' x             inserted [3]      x goes in before d              texts: a scatter where lengths are the same,
    merged     a b' c x e       removed  [3]      d is gone                       else what lies between changes, piece by piece

Most changed rows are replaced ones: then no row moves. A reader that has just decompressed a batch writes into its buffers
(`own`); a copy of them costs more than all the rest, because its pages are new. Where rows come or go, a column of fixed width is
one take. Positions come from another process and are checked before anything is read by them.
"""

from __future__ import annotations

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
_TEXTS = (pa.string(), pa.binary())
_WORDS: dict[int, np.dtype[Any]] = {1: np.dtype("u1"), 2: np.dtype("<u2"), 4: np.dtype("<u4"), 8: np.dtype("<u8")}


class Places(NamedTuple):
    """Positions in a batch, ascending: see `Patch`."""

    removed: Array
    replaced: Array
    inserted: Array

    def check(self, rows: int, fresh: int) -> None:
        """Raise `DecodeError` unless these are positions in a batch of so many rows, for so many fresh ones."""
        if len(self.replaced) + len(self.inserted) != fresh:
            raise DecodeError("a patch has another number of rows than of places for them", rows=fresh)
        for places, limit, step in ((self.removed, rows, 1), (self.replaced, rows, 1), (self.inserted, rows + 1, 0)):
            if len(places) and (
                places[0] < 0 or places[-1] >= limit or (len(places) > 1 and int(np.diff(places).min()) < step)
            ):
                raise DecodeError("the places of a patch are outside its block, or out of order", rows=rows)

    @property
    def moves(self) -> bool:
        """Whether rows come or go, so that others move."""
        return bool(len(self.removed) or len(self.inserted))

    def order(self, rows: int) -> Array:
        """Which rows of batch ++ fresh there are, in order."""
        order = np.arange(rows, dtype=_POSITION)
        order[self.replaced] = np.arange(rows, rows + len(self.replaced), dtype=_POSITION)
        if not self.moves:
            return order
        first = rows + len(self.replaced)
        added = np.arange(first, first + len(self.inserted), dtype=_POSITION)
        if not len(self.removed):
            return np.insert(order, self.inserted, added)
        keep = np.ones(rows, bool)
        keep[self.removed] = False
        before = np.concatenate([np.zeros(1, np.int64), np.cumsum(keep)])  # rows kept before each place
        return np.insert(order[keep], before[self.inserted], added)


def places_of(patch: Patch) -> Places:
    """The positions of a patch."""
    if any(len(raw) % _POSITION.itemsize for raw in (patch.removed, patch.replaced, patch.inserted)):
        raise DecodeError("the places of a patch are cut short", block=patch.block)
    return Places(*(np.frombuffer(raw, _POSITION) for raw in (patch.removed, patch.replaced, patch.inserted)))


def patched(batch: Any, fresh: Any, places: Places) -> Any:
    """A record batch with changes merged in; `fresh` has its schema: first the rows that replace, then those inserted.

    The batch is used up: where its buffers can be written, they are.
    """
    if not batch.num_columns:  # only the number of rows counts
        rows = batch.num_rows - len(places.removed) + len(places.inserted)
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), rows, [None]))
    places.check(batch.num_rows, fresh.num_rows)
    return pa.RecordBatch.from_arrays(merged(batch.columns, fresh.columns, places, own=True), schema=batch.schema)


def merged(base: Sequence[Any], fresh: Sequence[Any], places: Places, *, own: bool = False) -> list[Any]:
    """Columns with changes merged in: of arrays of one length each, and checked places. `own`: `base` may be written to."""
    assert len(base) == len(fresh), "a fresh column for every column"
    ways = _Ways(places, len(base[0])) if base else None
    found = []
    for column, new in zip(base, fresh, strict=True):
        assert ways is not None, "there are columns"
        done = None
        if not places.moves:
            done = _replaced(column, new, places.replaced, own=own)
        if done is None and column.type in _TEXTS:
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
        """Of the rows of batch ++ fresh."""
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
        validity = _validity(column, new, at)
        return pa.Array.from_buffers(column.type, size, [validity, pa.py_buffer(ends), joined.buffers()[2]])


def _replaced(column: Any, new: Any, at: Array, *, own: bool) -> Any:
    """A column with some values replaced; None: rows of it have to move."""
    kind = column.type
    size = len(column)
    if not len(at):
        return column
    if pa.types.is_boolean(kind):
        values = _bits(column.buffers()[1], column)
        values[at] = _bits(new.buffers()[1], new)
        held = [pa.py_buffer(np.packbits(values, bitorder="little"))]
    elif kind in _TEXTS:
        found = _replaced_text(column, new, at, own=own)
        if found is None:
            return None
        held = found
    elif pa.types.is_primitive(kind) or pa.types.is_decimal(kind) or pa.types.is_fixed_size_binary(kind):
        values = _writable(_fixed(column), own=own)
        values[at] = _fixed(new)
        held = [pa.py_buffer(values)]
    else:
        return None
    return pa.Array.from_buffers(kind, size, [_validity(column, new, at), *held])


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


def _replaced_text(column: Any, new: Any, at: Array, *, own: bool) -> list[Any] | None:
    """Offsets and bytes of texts of which some are replaced by others of the same length; None: a length differs."""
    offsets, fresh = binary_offsets(column), binary_offsets(new)
    begins, lengths = offsets[at], np.diff(fresh)
    if (offsets[at + 1] - begins != lengths).any():
        return None
    raw, written = column.buffers()[2], new.buffers()[2]
    if raw is None or written is None or not int(lengths.sum()):
        return [pa.py_buffer(offsets), raw]
    data = _writable(np.frombuffer(raw, np.uint8), own=own)
    first = np.cumsum(lengths) - lengths
    places = np.arange(int(lengths.sum())) + np.repeat(begins - first, lengths)
    data[places] = np.frombuffer(written, np.uint8)[fresh[0] : fresh[-1]]
    return [pa.py_buffer(offsets), pa.py_buffer(data)]


def _validity(column: Any, new: Any, at: Array) -> Any:
    """The validity bitmap of a column with some values replaced."""
    if not column.null_count and not new.null_count:
        return None
    fresh = _bits(new.buffers()[0], new)
    held = column.buffers()[0]
    if held is not None and not column.offset:
        raw = np.frombuffer(held, np.uint8)
        if np.array_equal((raw[at >> 3] >> (at & 7).astype(np.uint8)) & 1, fresh):
            return held  # as many rows have NULL as before, and the same ones
    valid = _bits(held, column)
    valid[at] = fresh
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _bits(buffer: Any, array: Any) -> Array:
    """A bitmap of an array as one byte for each element; no bitmap means all set."""
    if buffer is None:
        return np.ones(len(array), np.uint8)
    raw = np.frombuffer(buffer, np.uint8)
    return np.unpackbits(raw, count=array.offset + len(array), bitorder="little")[array.offset :]
