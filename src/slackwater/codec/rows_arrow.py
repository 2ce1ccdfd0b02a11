"""A block of row values as an Arrow record batch, with no Python object per row.

    values ──join──► one buffer + offsets
                        │  gather the fixed parts: one strided take of `width` bytes per row
                        ▼
            ┌ header ┬ nulls ┬ fixed columns ┬ ends ┐   (rows × width) matrix
            └────────┴───────┴───────────────┴──────┘
              all equal?  │        │             └──► boundaries of every text in the buffer, as one Arrow binary
              else group  │        │                  array whose elements are texts and gaps; `take` every k-th
                          ▼        ▼                  element copies one column in C++
                     validity   strided copy per column

Order of work: check structure (lengths, offsets, bitmap) for the whole block; decode the columns that predicates need;
keep the surviving rows' fixed parts and boundaries; decode the other columns for those only. Blocks are cut into
sub-blocks of `SUB_BLOCK_ROWS`, so that the matrix and what is made from it stay in the processor's cache.

Rows of several versions may be mixed: each version's rows are decoded with its own layout, brought to the reader's
columns, and put back in order.

Everything is checked before it is followed: no length, offset or count that comes from the bytes is used unchecked.
Broken input raises `DecodeError`, as in `rows.py`, which is the oracle of this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from slackwater.codec.arrow import arrow_fields, arrow_type, literal_array
from slackwater.codec.checks_arrow import check_range
from slackwater.codec.encode_arrow import DTYPES
from slackwater.codec.filters_arrow import bind
from slackwater.codec.keys_arrow import binary_offsets
from slackwater.codec.retype_arrow import widen_array
from slackwater.codec.rows import (
    FORMAT,
    HEADER_BYTES,
    VALUE_BYTES_MAX,
    RowLayout,
    missing_default,
    unknown_version,
    version_of,
)
from slackwater.errors import DecodeError, EntryTooLarge
from slackwater.model.kinds import TEXTS, ColumnKind
from slackwater.model.values import not_utf8

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.model.predicates import Predicate
    from slackwater.model.schema import Column, TableSchema

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow  # its stubs know neither numpy buffers nor concat_batches
SUB_BLOCK_ROWS = 65_536
"""Larger sub-blocks leave the cache; smaller ones spend their time between numpy calls."""
BLOCK_BYTES_MAX = 1 << 30
"""Bytes that one call decodes: Arrow's text offsets have 32 bits, and a scan hands over a few megabytes at a time."""
assert VALUE_BYTES_MAX <= BLOCK_BYTES_MAX, "every row can be decoded"


class BlockDecoder:
    """Decodes values of any of `versions` to the columns that `read_schema` gives, in the order asked for."""

    def __init__(
        self,
        read_schema: TableSchema,
        versions: Mapping[int, TableSchema],
        columns: Sequence[str] | None = None,
        predicates: Sequence[Predicate] = (),
    ) -> None:
        self._name = read_schema.name
        self._columns = list(read_schema.columns) if columns is None else [read_schema.column(c) for c in columns]
        self._filters = [(read_schema.column(p.column), bind(p, read_schema.column(p.column))) for p in predicates]
        self._versions = dict(versions) | {read_schema.version: read_schema}
        self._layouts: dict[int, RowLayout] = {}
        self.schema = arrow_fields(self._columns)
        """The Arrow schema of every batch."""

    def decode(self, values: Sequence[bytes]) -> Any:
        """The batch of these values, in their order, without those that a predicate refuses."""
        joined = pa.array(values, pa.binary())  # one pass in C++ for the bytes and the offsets
        if isinstance(joined, pa.ChunkedArray):  # more bytes than 32-bit offsets reach
            raise _too_large(joined.nbytes)
        if joined.null_count:
            raise DecodeError("a value is missing; drop deleted rows before decoding")
        return self.decode_buffer(joined.buffers()[2] or b"", binary_offsets(joined))

    def decode_buffer(self, buffer: Any, offsets: Array) -> Any:
        """Like `decode`, for values that lie one after the other: value i is `buffer[offsets[i]:offsets[i + 1]]`."""
        offsets = np.asarray(offsets, dtype=np.int64)
        if offsets.ndim != 1 or not len(offsets):
            raise DecodeError("offsets must be one array of one more than there are values")
        return self.decode_spans(buffer, offsets[:-1], offsets[1:])

    def decode_spans(self, buffer: Any, starts: Array, ends: Array) -> Any:
        """Like `decode`, for values that lie in order with gaps: value i is `buffer[starts[i]:ends[i]]`."""
        data = np.frombuffer(buffer, np.uint8) if len(buffer) else np.zeros(0, np.uint8)
        starts, ends = np.asarray(starts, dtype=np.int64), np.asarray(ends, dtype=np.int64)
        if not _in_order(starts, ends, len(data)):
            raise DecodeError("values overlap, are out of order, or lie outside the buffer", size=len(data))
        if len(starts) and ends[-1] - starts[0] > BLOCK_BYTES_MAX:
            raise _too_large(int(ends[-1] - starts[0]))
        batches = []
        for low in range(0, len(starts), SUB_BLOCK_ROWS):
            cut = slice(low, low + SUB_BLOCK_ROWS)
            base, last = starts[cut][0], ends[cut][-1]
            batches.append(self._block(data[base:last], starts[cut] - base, ends[cut] - base))
        if len(batches) == 1:
            return batches[0]
        if not batches:
            return self._batch([pa.nulls(0, f.type) for f in self.schema], 0)
        if not self._columns:
            return self._batch([], sum(b.num_rows for b in batches))
        return pa.concat_batches(batches)

    def _block(self, data: Array, starts: Array, ends: Array) -> Any:
        """One sub-block: usually of one version, and then no header is looked at twice."""
        lengths = ends - starts
        if int(lengths.min()) < HEADER_BYTES:
            raise DecodeError("a row is shorter than its header")
        if int(lengths.max()) > VALUE_BYTES_MAX:
            raise DecodeError("a row is larger than any that is written", limit=VALUE_BYTES_MAX)
        first = version_of(data[:HEADER_BYTES].tobytes())
        layout = self._layout(first)
        if int(lengths.min()) >= layout.width:
            fixed = _gather(data, starts, layout.width)
            formats, versions = _headers(fixed)
            if (versions == first).all():
                _check_formats(formats)
                arrays, kept = self._group(_Rows(layout, data, starts, lengths, fixed))
                return self._batch(arrays, len(starts) if kept is None else len(kept))
        return self._mixed(data, starts, lengths)

    def _mixed(self, data: Array, starts: Array, lengths: Array) -> Any:
        """Rows of several versions, each version's decoded together and then put back in order."""
        formats, found = _headers(_gather(data, starts, HEADER_BYTES))
        _check_formats(formats)
        versions = found.copy()
        parts: list[list[Any]] = []
        places: list[Array] = []
        for version in np.unique(versions):
            rows = np.flatnonzero(versions == version)
            arrays, kept = self._group(_Rows(self._layout(int(version)), data, starts[rows], lengths[rows]))
            parts.append(arrays)
            places.append(rows if kept is None else rows[kept])
        order = pa.array(np.argsort(np.concatenate(places), kind="stable"))
        joined = [pa.concat_arrays(column).take(order) for column in zip(*parts, strict=True)]
        return self._batch(joined, len(order))

    def _group(self, rows: _Rows) -> tuple[list[Any], Array | None]:
        """(columns, rows that survived or None for all) of rows of one version."""
        decoded: dict[int, Any] = {}
        mask: Array | None = None
        for column, keep in self._filters:
            if column.id not in decoded:
                decoded[column.id] = self._column(rows, column)
            found = keep(decoded[column.id])
            mask = found if mask is None else mask & found
        kept = None
        if mask is not None and not mask.all():
            kept = np.flatnonzero(mask)
            rows.keep(kept)
            chosen = pa.array(kept)
            decoded = {i: a.take(chosen) for i, a in decoded.items()}
        arrays = [decoded[c.id] if c.id in decoded else self._column(rows, c) for c in self._columns]
        return arrays, kept

    def _column(self, rows: _Rows, column: Column) -> Any:
        if not rows.size:  # a predicate refused every row
            return pa.nulls(0, arrow_type(column.type))
        found = rows.find(column.id)
        if found is None:
            if column.default is None and not column.nullable:
                raise missing_default(column)
            return literal_array(column.default, column.type, size=rows.size)
        index, written = found
        array = rows.column(index)
        if array.null_count and not column.nullable:
            raise DecodeError(f"a row has NULL in the NOT NULL column {column.name}")
        return array if written.type == column.type else widen_array(array, old=written.type, new=column.type)

    def _layout(self, version: int) -> RowLayout:
        layout = self._layouts.get(version)
        if layout is None:
            schema = self._versions.get(version)
            if schema is None:
                raise unknown_version(version, self._name)
            layout = self._layouts[version] = RowLayout(schema)
        return layout

    def _batch(self, arrays: list[Any], size: int) -> Any:
        if arrays:
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        # A batch of no columns still counts its rows: from_arrays would forget them.
        return pa.RecordBatch.from_struct_array(pa.Array.from_buffers(pa.struct([]), size, [None]))


class _Rows:
    """The rows of one version in one sub-block, checked, with columns decoded on demand."""

    def __init__(
        self, layout: RowLayout, data: Array, starts: Array, lengths: Array, fixed: Array | None = None
    ) -> None:
        self._layout = layout
        self._index = {c.id: (i, c) for i, c in enumerate(layout.schema.columns)}
        self._data = data
        self.size = len(starts)
        if int(lengths.min()) < layout.width:
            raise DecodeError("a row is shorter than its fixed section", need=layout.width)
        if not layout.variable and int(lengths.max()) > layout.width:
            raise DecodeError("a row does not end where its last column does")
        self._fixed = _gather(data, starts, layout.width) if fixed is None else fixed
        self._nulls = self._checked_nulls()
        self._bounds = self._checked_bounds(starts, lengths) if layout.variable else None
        self._texts: Any = None

    def find(self, column_id: int) -> tuple[int, Column] | None:
        """(place, column) of a column id in the version that wrote these rows."""
        return self._index.get(column_id)

    def keep(self, rows: Array) -> None:
        """Go on with these rows only."""
        width = self._layout.width
        self._fixed = (
            np.ascontiguousarray(self._fixed).view(f"V{width}").ravel()[rows].view(np.uint8).reshape(len(rows), width)
        )
        self._nulls = self._nulls and bool(self._bitmap().any())
        self._bounds = None if self._bounds is None else self._bounds[rows]
        self._texts = None
        self.size = len(rows)

    def column(self, index: int) -> Any:
        """One column as the Arrow type it was written with."""
        ctype = self._layout.schema.columns[index].type
        nulls = self._null_mask(index)
        validity = None if nulls is None else pa.py_buffer(np.packbits(~nulls, bitorder="little"))
        if ctype.variable:
            return self._text(index, validity, nulls)
        raw = self._raw(index)
        if nulls is not None:
            raw[nulls] = np.zeros((), raw.dtype)
        if ctype.kind is ColumnKind.BOOL:
            if raw.size and raw.max() > 1:
                raise DecodeError("a boolean is 0 or 1")
            raw = np.packbits(raw, bitorder="little")
        else:
            check_range(raw, ctype)
        return pa.Array.from_buffers(arrow_type(ctype), self.size, [validity, pa.py_buffer(raw)])

    def _raw(self, index: int) -> Array:
        """A contiguous copy of one fixed-width column."""
        ctype, at = self._layout.schema.columns[index].type, self._layout.offsets[index]
        dtype = np.dtype(DTYPES.get(ctype.kind, "u1"))
        view: Array = self._fixed[:, at : at + dtype.itemsize]
        if dtype.itemsize == 1:
            return view[:, 0].copy()
        strided = np.ndarray((self.size,), dtype, buffer=self._fixed, offset=at, strides=(self._layout.width,))
        return strided.copy()

    def _bitmap(self) -> Array:
        return self._fixed[:, HEADER_BYTES : HEADER_BYTES + self._layout.bitmap_bytes]

    def _null_mask(self, index: int) -> Array | None:
        if not self._nulls:
            return None
        mask: Array = (self._fixed[:, HEADER_BYTES + index // 8] & np.uint8(1 << index % 8)) != 0
        return mask if mask.any() else None

    def _checked_nulls(self) -> bool:
        """Whether there is any NULL; refuses one in a NOT NULL column, and bits beyond the columns."""
        bitmap = self._bitmap()
        if not bitmap.any():
            return False
        size = self._layout.bitmap_bytes
        forbidden = self._layout.not_null | ((1 << 8 * size) - (1 << len(self._layout.schema.columns)))
        if (bitmap & np.frombuffer(forbidden.to_bytes(size, "little"), np.uint8)).any():
            raise DecodeError("a row has NULL in a NOT NULL column, or null bits beyond its columns")
        return True

    def _checked_bounds(self, starts: Array, lengths: Array) -> Array:
        """(rows × k+1): where the tail begins and where each of its texts ends, in the buffer."""
        layout = self._layout
        count = len(layout.variable)
        ends = np.ascontiguousarray(self._fixed[:, layout.ends_at :]).view("<u4").reshape(self.size, count)
        if (ends[:, -1] != lengths - layout.width).any() or any(
            (ends[:, i] > ends[:, i + 1]).any() for i in range(count - 1)
        ):
            raise DecodeError("a row's tail offsets are out of order, or do not end with the row")
        # From here every end is at most a block's size, so that 32 bits and a sign are enough.
        bounds = np.empty((self.size, count + 1), np.int32)
        bounds[:, 0] = starts + layout.width
        for i in range(count):
            np.add(bounds[:, 0], ends[:, i].view(np.int32), out=bounds[:, i + 1])
        return bounds

    def _text(self, index: int, validity: Any, nulls: Array | None) -> Any:
        assert self._bounds is not None
        ctype = self._layout.schema.columns[index].type
        count, place = self._bounds.shape[1], self._layout.variable.index(index)
        if nulls is not None and (self._bounds[nulls, place] != self._bounds[nulls, place + 1]).any():
            raise DecodeError("a NULL has bytes in the tail")
        if self._texts is None:
            # Elements are the texts and the gaps between rows; offsets are in order because the rows are.
            offsets = pa.py_buffer(self._bounds)
            elements = self.size * count - 1
            self._texts = pa.Array.from_buffers(
                pa.binary(), max(elements, 0), [None, offsets, pa.py_buffer(self._data)]
            )
        texts = self._texts.take(pa.array(np.arange(place, self.size * count, count, dtype=np.int64)))
        if ctype.kind in TEXTS:
            try:
                texts = texts.cast(pa.string())
            except pa.ArrowInvalid:
                raise not_utf8() from None
        if validity is None:
            return texts
        return pa.Array.from_buffers(texts.type, self.size, [validity, *texts.buffers()[1:]])


def _too_large(size: int) -> EntryTooLarge:
    return EntryTooLarge("too many bytes for one batch; decode fewer rows at a time", size=size, limit=BLOCK_BYTES_MAX)


def _in_order(starts: Array, ends: Array, size: int) -> bool:
    if starts.shape != ends.shape or starts.ndim != 1:
        return False
    if not len(starts):
        return True
    return bool(starts[0] >= 0 and ends[-1] <= size and (starts <= ends).all() and (ends[:-1] <= starts[1:]).all())


def _headers(fixed: Array) -> tuple[Array, Array]:
    """(formats, versions) of rows, as views of their fixed parts."""
    size, width = fixed.shape
    return fixed[:, 0], np.ndarray((size,), "<u4", buffer=fixed, offset=1, strides=(width,))


def _check_formats(formats: Array) -> None:
    if (formats != FORMAT).any():
        raise DecodeError("unknown row format; a newer release may have written it")


def _gather(data: Array, starts: Array, width: int) -> Array:
    """(rows × width) bytes from `data` at `starts`; the caller has checked that they are inside."""
    if len(data) == width * len(starts):  # rows of the least possible size, with no gaps: they are the matrix
        return data.reshape(len(starts), width)
    items = np.ndarray((len(data) - width + 1,), f"V{width}", buffer=data, strides=(1,))
    return items[starts].view(np.uint8).reshape(len(starts), width)
