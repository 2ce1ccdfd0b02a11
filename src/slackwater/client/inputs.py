"""Rows as applications have them, brought to the form they are sent in: sorted, unique keys and row values.

    list of dicts          RowCodec.encode, row by row            exact Python types, named in errors
    Arrow table or batch   RowCodec.encode_batch                  whole columns, no Python object per row
    pandas.DataFrame       through Arrow; its index is left out

Columns meet *by name*. One that the table does not have is refused; one that is left out takes its default or NULL, or is
refused if it is NOT NULL. Nothing is rounded, truncated or cast with loss. All rows are checked before any is sent, so
that bad input writes nothing. Two rows with one key in one call are refused: which of them should win?
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from operator import add, lt
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.codec.arrow import cast_array
from slackwater.codec.encode_arrow import check_columns
from slackwater.codec.keys_arrow import encode_keys
from slackwater.codec.rows import check_sizes, row_too_large
from slackwater.errors import UsageError
from slackwater.protocol.client.calls import WriteKind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.codec.rows import RowCodec

pa: Any = pyarrow
pc: Any = pac
Encoded = tuple[list[bytes], list[bytes]]
"""Keys and values."""
_PLAIN = (int, str, bytes)
"""Of a key that is one value, which most are."""
KINDS_OF_ROWS = "a list of dicts, a pyarrow.Table or RecordBatch, or a pandas.DataFrame"


class Input:
    """The rows of one call, checked, and encoded piece by piece."""

    def __init__(self, codec: RowCodec, rows: Any, kind: WriteKind) -> None:
        self._codec = codec
        self._kind = kind
        self._dicts: list[Any] = []
        self._batch: Any = None
        table = as_arrow(rows)
        if table is None:
            self._dicts = _as_dicts(rows, codec, kind)
            self.count = len(self._dicts)
        else:
            self._batch = self._checked(_one_batch(table))
            self.count = self._batch.num_rows

    def pieces(self, rows_max: int) -> Iterator[Encoded]:
        """Everything, in pieces of at most so many rows, each sorted by key."""
        for low in range(0, self.count, rows_max):
            yield self.piece(low, rows_max)

    def piece(self, low: int, rows_max: int) -> Encoded:
        """One piece, sorted by key."""
        if self._batch is None:
            return in_order(*self._encode_dicts(self._dicts[low : low + rows_max]))
        batch = self._batch.slice(low, rows_max)
        if self._kind is WriteKind.DELETE:
            return in_order(self._arrow_keys(batch), [])
        return in_order(*self._codec.encode_batch(batch))

    def check_rows(self, *, bytes_max: int) -> None:
        """Refuse two rows of one key, wherever they are, and rows over the bound. Whole columns at a time, so it is cheap."""
        if self._batch is None:
            keys, values = self.piece(0, self.count)
            check_sizes(self._codec.schema.name, keys, values, limit=bytes_max)
            if any(map(bytes.__eq__, keys, keys[1:])):
                raise duplicate_keys(self._codec)
            return
        self._check_sizes(bytes_max)
        names = self._codec.key_names
        if len(names) == 1 and _increasing(self._batch.column(names[0])):
            return
        keys = pa.Table.from_batches([self._batch.select(names)])
        if keys.group_by(names).aggregate([]).num_rows != self.count:
            raise duplicate_keys(self._codec)

    def _check_sizes(self, bytes_max: int) -> None:
        """Refuse rows whose texts and bytes alone are over the bound; the rest of a row is small, and gateways count it."""
        texts = [column for column in self._codec.schema.columns if column.type.variable]
        given = [c for c in texts if c.name in self._batch.schema.names]
        if not given or self._batch.nbytes <= bytes_max:
            return
        sizes = np.zeros(self.count, np.int64)
        for column in given:
            array = cast_array(self._batch.column(column.name), column.type, name=column.name)
            sizes += pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False)
        if int(sizes.max()) > bytes_max:
            raise row_too_large(self._codec.schema.name, int(sizes.max()), limit=bytes_max)

    def _checked(self, batch: Any) -> Any:
        if self._kind is not WriteKind.DELETE:
            check_columns(self._codec, batch)
            return batch
        schema = self._codec.schema
        for name in batch.schema.names:
            schema.column(name)
        for column, _ in schema.key_columns():
            if column.name not in batch.schema.names:
                raise UsageError(f"to delete rows of {schema.name}, give its key column {column.name}")
            if batch.column(column.name).null_count:
                raise UsageError(f"key column {column.name} is NOT NULL; give it a value")
        return batch

    def _arrow_keys(self, batch: Any) -> list[bytes]:
        codec = self._codec
        arrays = [
            cast_array(batch.column(column.name), column.type, name=column.name)
            for column, _ in codec.schema.key_columns()
        ]
        return encode_keys(codec.prefix, codec.key_types, arrays)

    def _encode_dicts(self, rows: Sequence[Any]) -> Encoded:
        if self._kind is WriteKind.DELETE:
            return [key_of(self._codec, row) for row in rows], []
        encoded = [self._codec.encode(row) for row in rows]
        return [key for key, _ in encoded], [value for _, value in encoded]


def one_row(codec: RowCodec, rows: Any, kind: WriteKind) -> Encoded | None:
    """The row of a call that writes a single dict, which is what most calls do; None for everything else: see `Input`."""
    if type(rows) is not list or len(rows) != 1 or type(rows[0]) is not dict or kind is WriteKind.DELETE:
        return None
    key, value = codec.encode(rows[0])
    return [key], [value]


def in_order(keys: list[bytes], values: list[bytes]) -> Encoded:
    """Rows sorted by key; those that are in order already are left as they are."""
    if all(map(lt, keys, keys[1:])):
        return keys, values
    order = sorted(range(len(keys)), key=keys.__getitem__)
    return [keys[i] for i in order], [values[i] for i in order] if values else []


def in_blocks(keys: list[bytes], values: list[bytes], *, bytes_max: int) -> Iterator[Encoded]:
    """Rows in blocks of about so many bytes, at least one row each: a block has to fit a message."""
    if keys and sum(map(len, keys)) + sum(map(len, values)) <= bytes_max:
        yield keys, values
        return
    ends = list(accumulate(map(add, map(len, keys), map(len, values)) if values else map(len, keys)))
    low = size = 0
    while low < len(keys):
        high = max(bisect_right(ends, size + bytes_max, low), low + 1)
        yield keys[low:high], values[low:high]
        low, size = high, ends[high - 1]


def key_of(codec: RowCodec, key: object) -> bytes:
    """The key of one row, from its only key value, its key values in order, or a dict with its key columns."""
    names = codec.key_names
    if len(names) == 1 and type(key) in _PLAIN:
        return _encoded_key(codec, [key])
    if isinstance(key, Mapping):
        for name in key:
            codec.schema.column(name)
        missing = [name for name in names if name not in key]
        if missing:
            raise UsageError(f"the key of {codec.schema.name} needs a value for {', '.join(missing)}")
        values: list[object] = [key[name] for name in names]
    elif isinstance(key, tuple | list):
        values = list(key)
    else:
        values = [key]
    if len(values) != len(names):
        raise UsageError(
            f"the key of {codec.schema.name} is ({', '.join(names)}): give {len(names)} values", given=len(values)
        )
    for name, value in zip(names, values, strict=True):
        if value is None:
            raise UsageError(f"key column {name} is NOT NULL; give it a value")
    return _encoded_key(codec, values)


def _encoded_key(codec: RowCodec, values: list[object]) -> bytes:
    try:
        return codec.key(values)
    except UsageError as error:
        raise UsageError(f"the key of {codec.schema.name} ({', '.join(codec.key_names)}): {error}") from None


def duplicate_keys(codec: RowCodec) -> UsageError:
    """The error for two rows of one key."""
    names = ", ".join(codec.key_names)
    return UsageError(f"two rows have the same primary key ({names}); keep one of them", table=codec.schema.name)


def as_arrow(rows: Any) -> Any:
    """An Arrow table, when rows come in columns; None when they come one by one."""
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    if type(rows).__module__.split(".")[0] == "pandas" and hasattr(rows, "columns"):
        try:
            return pa.Table.from_pandas(rows, preserve_index=False)
        except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError) as error:
            raise UsageError(f"the DataFrame does not convert to Arrow: {error}") from None
    if hasattr(rows, "__arrow_c_stream__"):
        return pa.table(rows)
    return None


def _as_dicts(rows: Any, codec: RowCodec, kind: WriteKind) -> list[Any]:
    if isinstance(rows, Mapping):
        rows = [rows]
    if isinstance(rows, str | bytes) or not isinstance(rows, Iterable):
        if kind is WriteKind.DELETE:
            return [rows]
        raise UsageError(f"rows are {KINDS_OF_ROWS}", got=type(rows).__name__)
    found = list(rows)
    if kind is WriteKind.DELETE:
        return found
    for row in found:
        if not isinstance(row, Mapping):
            raise UsageError(
                f"rows are {KINDS_OF_ROWS}; a row of {codec.schema.name} is a dict", got=type(row).__name__
            )
    return found


def _increasing(column: Any) -> bool:
    """Whether every value is above the one before it: rows that come in the order of their key, as most loads do."""
    size = len(column)
    if pa.types.is_floating(column.type) or pa.types.is_dictionary(column.type):
        return False  # zeros of two signs are one key
    return size < 2 or bool(pc.all(pc.less(column.slice(0, size - 1), column.slice(1))).as_py())


def _one_batch(table: Any) -> Any:
    """One record batch of a whole table. The columns of most are whole already, and then nothing is copied."""
    whole = table.combine_chunks()
    batches = whole.to_batches()
    if len(batches) == 1:
        return batches[0]
    arrays = [column.combine_chunks() if column.num_chunks else pa.array([], column.type) for column in whole.columns]
    if any(isinstance(array, pa.ChunkedArray) for array in arrays):
        raise UsageError("a text column has more than 2 GiB; write the table in parts")
    return pa.RecordBatch.from_arrays(arrays, schema=whole.schema)
