"""Keys of whole columns at once: the vectorized twin of `keys.py`.

    all elements fixed, no NULLs     one byte matrix (rows × width), filled column by column; then cut into rows
    otherwise                        each element a binary array, joined row by row in Arrow's C++; then cut into rows

The cut into Python `bytes` is the only thing that happens once per row, and it happens inside one C loop. Decimals are
the exception: they are encoded value by value with `keys.py`.
"""

from __future__ import annotations

from itertools import repeat
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.codec.arrow import arrow_type
from slackwater.codec.keys import TAGS, TERMINATOR, WIDTHS, encode_element
from slackwater.errors import UsageError
from slackwater.model.kinds import ColumnKind, ColumnType

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.codec.keys import KeyType

pa: Any = pyarrow  # its stubs do not know numpy buffers
pc: Any = pac
_SIGN = np.uint64(1 << 63)


def encode_keys(prefix: bytes, types: Sequence[KeyType], columns: Sequence[Any]) -> list[bytes]:
    """The keys of rows whose key columns are Arrow arrays of the types of `arrow.py`, each with `prefix` before it.

    Numpy arrays and plain sequences do as well, except of decimals, whose precision they do not tell.
    """
    made = _keys(prefix, types, columns)
    return matrix_rows(made) if isinstance(made, np.ndarray) else binary_rows(made)


def encode_key_array(prefix: bytes, types: Sequence[KeyType], columns: Sequence[Any]) -> Any:
    """The same as a binary array, for callers that go on with columns."""
    made = _keys(prefix, types, columns)
    return matrix_array(made) if isinstance(made, np.ndarray) else made


def _keys(prefix: bytes, types: Sequence[KeyType], columns: Sequence[Any]) -> Any:
    """Keys as a byte matrix where all are of one width, else as a binary array."""
    if len(types) != len(columns) or not columns:
        raise UsageError("one array per key column is needed", arrays=len(columns), columns=len(types))
    columns = [c if isinstance(c, pa.Array) else _as_arrow(c, t) for c, t in zip(columns, types, strict=True)]
    size = len(columns[0])
    if all(t.kind in WIDTHS for t in types) and not any(c.null_count for c in columns):
        pieces = [element_matrix(c, t) for c, t in zip(columns, types, strict=True)]
        head = np.broadcast_to(np.frombuffer(prefix, np.uint8), (size, len(prefix)))
        return np.concatenate([head, *pieces], axis=1)
    elements = [_element_array(c, t) for c, t in zip(columns, types, strict=True)]
    return pc.binary_join_element_wise(pa.scalar(prefix, pa.binary()), *elements, b"")


def _as_arrow(column: Any, key_type: KeyType) -> Any:
    if isinstance(column, pa.ChunkedArray):
        return column.combine_chunks()
    try:
        return pa.array(column, arrow_type(ColumnType(key_type.kind)))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
        raise UsageError(f"cannot make {key_type.kind.value} keys of this array: {error}") from None


def matrix_rows(matrix: np.ndarray[Any, Any]) -> list[bytes]:
    """Each row of a byte matrix as `bytes`."""
    if not matrix.shape[0]:
        return []
    rows: list[bytes] = np.ascontiguousarray(matrix).view(f"V{matrix.shape[1]}").ravel().tolist()
    return rows


def binary_rows(array: Any) -> list[bytes]:
    """Each element of a binary array without NULLs as `bytes`."""
    rows: list[bytes] = array.to_numpy(zero_copy_only=False).tolist()  # Arrow makes the objects in C++
    return rows


def is_array_of(array: Any, rows: Sequence[bytes]) -> bool:
    """Whether a binary array without NULLs holds these `bytes`, in their order."""
    given = pa.array(rows, pa.binary())
    return isinstance(given, pa.Array) and bool(given.equals(array))


def binary_offsets(array: Any) -> np.ndarray[Any, Any]:
    """The n + 1 offsets of a string or binary array into its data buffer."""
    raw = np.frombuffer(array.buffers()[1] or bytes(4), np.int32)
    return raw[array.offset : array.offset + len(array) + 1]


def fixed_values(array: Any, dtype: str) -> np.ndarray[Any, Any]:
    """The values of a fixed-width array as numpy, zero where NULL."""
    width = np.dtype(dtype).itemsize
    raw = array.buffers()[1]
    if raw is None or not len(array):
        return np.zeros(len(array), dtype)
    values = np.frombuffer(raw, np.uint8, count=len(array) * width, offset=array.offset * width).view(dtype)
    if array.null_count:
        values = values.copy()
        values[np.asarray(array.is_null())] = np.zeros((), dtype)
    return values


def bool_values(array: Any) -> np.ndarray[Any, Any]:
    """The values of a boolean array as bytes 0 and 1, 0 where NULL."""
    filled = array.fill_null(False) if array.null_count else array  # noqa: FBT003 - Arrow's signature
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.uint8)


def sortable_floats(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Unsigned integers that order like the floats: one NaN above all, one zero."""
    canonical = np.where(np.isnan(values), np.nan, values + 0.0)
    bits = canonical.view(np.uint64)
    return np.where(bits & _SIGN, ~bits, bits ^ _SIGN)


def element_matrix(array: Any, key_type: KeyType) -> np.ndarray[Any, Any]:
    """Tag and payload of a column of fixed-width elements; NULLs come out as zeros."""
    kind, size = key_type.kind, len(array)
    if kind is ColumnKind.BOOL:
        payload = bool_values(array).reshape(size, 1)
    elif kind is ColumnKind.UUID:
        payload = fixed_values(array, "V16").view(np.uint8).reshape(size, 16)
    elif kind is ColumnKind.FLOAT:
        payload = _big_endian(sortable_floats(fixed_values(array, "<f8")))
    elif kind is ColumnKind.DATE:
        payload = _big_endian(fixed_values(array, "<i4").view(np.uint32) ^ np.uint32(1 << 31))
    else:
        dtype = {ColumnKind.INT2: "<i2", ColumnKind.INT4: "<i4"}.get(kind, "<i8")
        payload = _big_endian(fixed_values(array, dtype).astype(np.int64).view(np.uint64) ^ _SIGN)
    matrix = np.empty((size, 1 + payload.shape[1]), np.uint8)
    matrix[:, 0] = TAGS[kind]
    matrix[:, 1:] = payload
    return ~matrix if key_type.descending else matrix


def _big_endian(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    width = values.dtype.itemsize
    return values.astype(values.dtype.newbyteorder(">")).view(np.uint8).reshape(len(values), width)


def matrix_array(matrix: np.ndarray[Any, Any]) -> Any:
    """A byte matrix as a binary array."""
    size, width = matrix.shape
    offsets = np.arange(size + 1, dtype=np.int32) * np.int32(width)
    return pa.Array.from_buffers(
        pa.binary(), size, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(matrix))]
    )


def _element_array(array: Any, key_type: KeyType) -> Any:
    if key_type.kind is ColumnKind.DECIMAL:
        return pa.array(list(map(encode_element, array.to_pylist(), repeat(key_type))), pa.binary())
    null = bytes([key_type.null ^ 0xFF if key_type.descending else key_type.null])
    elements = (
        matrix_array(element_matrix(array, key_type)) if key_type.kind in WIDTHS else _text_elements(array, key_type)
    )
    if not array.null_count:
        return elements
    return pc.if_else(array.is_null(), pa.scalar(null, pa.binary()), elements)


def _text_elements(array: Any, key_type: KeyType) -> Any:
    """Tag, escaped text and terminator of each value."""
    ends = binary_offsets(array).astype(np.int64)
    data = np.frombuffer(array.buffers()[2] or b"", np.uint8)[ends[0] : ends[-1]]
    ends = ends - ends[0]
    zeros = np.flatnonzero(data == 0)
    if len(zeros):  # 00 becomes 00 ff; each end moves by the zeros before it
        data = np.insert(data, zeros + 1, 0xFF)
        ends = ends + np.searchsorted(zeros, ends)
    tag, stop = bytes([TAGS[key_type.kind]]), TERMINATOR
    if key_type.descending:
        data, tag, stop = ~data, bytes([tag[0] ^ 0xFF]), bytes(b ^ 0xFF for b in stop)
    body = pa.Array.from_buffers(
        pa.binary(), len(array), [None, pa.py_buffer(ends.astype(np.int32)), pa.py_buffer(np.ascontiguousarray(data))]
    )
    return pc.binary_join_element_wise(pa.scalar(tag, pa.binary()), body, pa.scalar(stop, pa.binary()), b"")
