"""Primary-key columns out of keys: all that is left of a row that was deleted.

Rows carry their key columns in the value, so nothing else ever decodes keys in bulk. A deletion has no value. Where the
before-image is not asked for, its key is what a consumer has to find the row by.

    keys of one width, all columns of fixed width      one byte matrix, read column by column with numpy
    otherwise (text, bytes, decimals, floats)          key by key, with `codec.keys`

Floats take the slow way because a key's float has one canonical form, which the slow way checks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow

from slackwater.codec.arrow import arrow_type
from slackwater.codec.keys import TAGS, WIDTHS
from slackwater.codec.rows import RowCodec, key_types
from slackwater.errors import DecodeError
from slackwater.model.kinds import INTEGERS, ColumnKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.codec.keys import KeyType
    from slackwater.model.schema import Column, TableSchema

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow  # its stubs do not know numpy buffers
_FAST = frozenset(WIDTHS) - {ColumnKind.FLOAT}
_DTYPES = {ColumnKind.INT2: np.int16, ColumnKind.INT4: np.int32}


def key_columns(keys: Sequence[bytes], schema: TableSchema) -> dict[str, Any]:
    """The primary-key columns of these keys, by name, as Arrow arrays; anything but keys of the table fails to decode."""
    codec = RowCodec(schema)
    columns, types = schema.key_columns(), key_types(schema)
    if keys and all(t.kind in _FAST for t in types):
        width = len(codec.prefix) + sum(1 + WIDTHS[t.kind] for t in types)
        joined = b"".join(keys)
        if set(map(len, keys)) == {width}:
            matrix = np.frombuffer(joined, np.uint8).reshape(len(keys), width)
            return _from_matrix(matrix, codec.prefix, columns, types)
    rows = [codec.decode_key(key) for key in keys]
    return {c.name: pa.array([row[c.name] for row in rows], arrow_type(c.type)) for c, _ in columns}


def _from_matrix(
    matrix: Array, prefix: bytes, columns: list[tuple[Column, bool]], types: list[KeyType]
) -> dict[str, Any]:
    if (matrix[:, : len(prefix)] != np.frombuffer(prefix, np.uint8)).any():
        raise DecodeError("a key belongs to another index", want=prefix)
    at = len(prefix)
    arrays: dict[str, Any] = {}
    for (column, _), key_type in zip(columns, types, strict=True):
        end = at + 1 + WIDTHS[key_type.kind]
        element = ~matrix[:, at:end] if key_type.descending else matrix[:, at:end]
        if (element[:, 0] != TAGS[key_type.kind]).any():
            raise DecodeError(f"a key has no {key_type.kind.value} where {column.name} belongs")
        arrays[column.name] = _payload(np.ascontiguousarray(element[:, 1:]), column)
        at = end
    return arrays


def _payload(payload: Array, column: Column) -> Any:
    kind, target = column.type.kind, arrow_type(column.type)
    if kind is ColumnKind.UUID:
        return pa.Array.from_buffers(target, len(payload), [None, pa.py_buffer(payload)])
    if kind is ColumnKind.BOOL:
        if payload.size and payload.max() > 1:
            raise DecodeError("a boolean is 0 or 1")
        return pa.array(payload[:, 0].astype(bool))
    if kind is ColumnKind.DATE:
        days = (payload.view(">u4").ravel() ^ np.uint32(1 << 31)).astype(np.uint32).view(np.int32)
        return pa.Array.from_buffers(target, len(payload), [None, pa.py_buffer(days)])
    numbers = (payload.view(">u8").ravel() ^ np.uint64(1 << 63)).astype(np.uint64).view(np.int64)
    if kind in INTEGERS and kind in _DTYPES:
        narrow = numbers.astype(_DTYPES[kind])
        if (narrow != numbers).any():
            raise DecodeError(f"a key's {column.name} does not fit a {kind.value}")
        numbers = narrow
    return pa.Array.from_buffers(target, len(payload), [None, pa.py_buffer(numbers)])
