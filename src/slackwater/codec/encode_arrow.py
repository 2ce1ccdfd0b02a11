"""A record batch as keys and row values: the vectorized twin of `RowCodec.encode`.

    fixed part    one byte matrix (rows × width) filled column by column
    tail          Arrow joins the matrix's rows and the text columns row by row in C++
    cut           one C loop makes the Python `bytes`

The caller's columns meet the schema by name, are cast to its Arrow types without loss, and are checked as the per-row
encoder checks them; what one refuses, so does the other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pac

from slackwater.codec.arrow import cast_array, literal_array
from slackwater.codec.checks_arrow import check_range
from slackwater.codec.keys_arrow import (
    binary_offsets,
    binary_rows,
    bool_values,
    encode_key_array,
    encode_keys,
    fixed_values,
    matrix_array,
    matrix_rows,
)
from slackwater.codec.rows import HEADER_BYTES, VALUE_BYTES_MAX
from slackwater.errors import DecodeError, EntryTooLarge, UsageError
from slackwater.model.kinds import TEXTS, ColumnKind

if TYPE_CHECKING:
    from slackwater.codec.rows import RowCodec, RowLayout
    from slackwater.model.schema import Column

pc: Any = pac
BLOCK_BYTES_MAX = 1 << 30
"""Bytes of values that one join may produce: Arrow's binary offsets are 32-bit."""

DTYPES = {
    ColumnKind.INT2: "<i2",
    ColumnKind.INT4: "<i4",
    ColumnKind.INT: "<i8",
    ColumnKind.FLOAT: "<f8",
    ColumnKind.DECIMAL: "V16",
    ColumnKind.DATE: "<i4",
    ColumnKind.TIMESTAMP: "<i8",
    ColumnKind.TIMESTAMPTZ: "<i8",
    ColumnKind.UUID: "V16",
}
"""How the fixed-width kinds other than bool are seen by numpy."""


def encode_batch(codec: RowCodec, batch: Any) -> tuple[list[bytes], list[bytes]]:
    """(keys, values) of every row of a batch."""
    columns = _columns(codec, batch)
    if batch.num_rows > 1 and batch.nbytes + batch.num_rows * codec.layout.width > BLOCK_BYTES_MAX:
        half = batch.num_rows // 2
        low, high = encode_batch(codec, batch.slice(0, half)), encode_batch(codec, batch.slice(half))
        return low[0] + high[0], low[1] + high[1]
    by_name = {c.name: a for c, a in zip(codec.schema.columns, columns, strict=True)}
    key_columns = [by_name[c.name] for c, _ in codec.schema.key_columns()]
    keys = encode_keys(codec.prefix, codec.key_types, key_columns)
    made = _values(codec.layout, columns, batch.num_rows)
    return keys, matrix_rows(made) if isinstance(made, np.ndarray) else binary_rows(made)


def encode_arrays(codec: RowCodec, batch: Any) -> tuple[Any, Any]:
    """(keys, values) of every row of a batch of at most `BLOCK_BYTES_MAX` as binary arrays, for callers that keep columns."""
    columns = _columns(codec, batch)
    by_name = {c.name: a for c, a in zip(codec.schema.columns, columns, strict=True)}
    key_columns = [by_name[c.name] for c, _ in codec.schema.key_columns()]
    made = _values(codec.layout, columns, batch.num_rows)
    values = matrix_array(made) if isinstance(made, np.ndarray) else made
    return encode_key_array(codec.prefix, codec.key_types, key_columns), values


def check_columns(codec: RowCodec, batch: Any) -> None:
    """Refuse what `encode_batch` would refuse, without encoding: for callers who send a batch in parts."""
    _columns(codec, batch)


def _columns(codec: RowCodec, batch: Any) -> list[Any]:
    """The batch's columns in schema order, cast and checked."""
    names = set(batch.schema.names)
    if len(names) != len(batch.schema.names):
        raise UsageError("the batch has two columns of one name", names=batch.schema.names)
    for name in names:
        codec.schema.column(name)  # an unknown name is refused, with the names there are
    return [_column(c, batch, present=c.name in names) for c in codec.schema.columns]


def _column(column: Column, batch: Any, *, present: bool) -> Any:
    if present:
        array = cast_array(batch.column(column.name), column.type, name=column.name)
    else:
        array = literal_array(None if column.function else column.default, column.type, size=batch.num_rows)
    if array.null_count and not column.nullable:
        raise UsageError(f"column {column.name} is NOT NULL; give it a value", nulls=array.null_count)
    try:
        if column.type.kind in TEXTS:
            array.validate(full=True)
        elif column.type.kind in DTYPES:
            check_range(fixed_values(array, DTYPES[column.type.kind]), column.type)
    except (DecodeError, pa.ArrowInvalid) as error:
        raise UsageError(f"column {column.name}: {error}") from None
    return array


def _values(layout: RowLayout, columns: list[Any], size: int) -> Any:
    """Values as a byte matrix where all are of one width, else as a binary array."""
    matrix = np.zeros((size, layout.width), np.uint8)
    matrix[:, :HEADER_BYTES] = np.frombuffer(layout.header, np.uint8)
    for i, array in enumerate(columns):
        if array.null_count:
            matrix[:, HEADER_BYTES + i // 8] |= np.asarray(array.is_null()).astype(np.uint8) << np.uint8(i % 8)
    for i in layout.fixed:
        _fill(matrix, columns[i], layout.offsets[i], layout.schema.columns[i])
    if not layout.variable:
        return matrix
    tails = [_tail(columns[i]) for i in layout.variable]
    lengths = np.stack([np.diff(binary_offsets(t)) for t in tails], axis=1).astype(np.int64)
    ends = np.cumsum(lengths, axis=1)
    if size and int(ends[:, -1].max()) + layout.width > VALUE_BYTES_MAX:
        raise EntryTooLarge("a row is too large; keep large objects in pieces", limit=VALUE_BYTES_MAX)
    matrix[:, layout.ends_at :] = np.ascontiguousarray(ends.astype("<u4")).view(np.uint8).reshape(size, 4 * len(tails))
    return pc.binary_join_element_wise(matrix_array(matrix), *tails, b"")


def _tail(array: Any) -> Any:
    raw = array.cast(pa.binary())
    return raw.fill_null(b"") if raw.null_count else raw


def _fill(matrix: np.ndarray[Any, Any], array: Any, at: int, column: Column) -> None:
    if column.type.kind is ColumnKind.BOOL:
        matrix[:, at] = bool_values(array)
        return
    values = fixed_values(array, DTYPES[column.type.kind])
    width = values.dtype.itemsize
    matrix[:, at : at + width] = np.ascontiguousarray(values).view(np.uint8).reshape(len(values), width)
