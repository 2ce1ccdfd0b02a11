"""The Arrow side of the type system: exactly the types Spark demands, so nothing is cast on the way there.

`string` is `pa.string()` (not large, not a dictionary, not a view), `timestamptz` is `timestamp[us, tz=UTC]`, and
nullability is part of a field. See the table in `kinds.py`. Importing this module imports pyarrow; the rest of
`slackwater.model` does not.
"""

from __future__ import annotations

import sys
import warnings
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from slackwater.errors import UsageError
from slackwater.model.kinds import ColumnKind

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.model.kinds import ColumnType
    from slackwater.model.schema import Column, TableSchema


def leave_pandas_out() -> None:
    """Let pyarrow decide about pandas now, and against it: for processes that are nodes and nothing else.

    Where pandas is installed, pyarrow imports it at its first conversion of anything, just to be able to recognize a
    Series: a second or more (14 s were seen on a busy machine) in which a node keeps no leases, and a race when two
    threads convert at once. A pandas too old to be used is what it is shown instead, for this one look. It never looks
    again: a process that might convert a DataFrame calls `settle_pandas`.
    """
    if "pandas" in sys.modules:
        pa.array([0])
        return
    old: Any = ModuleType("pandas")
    old.__version__ = "0.0.0"
    sys.modules["pandas"] = old
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pa.array([0])
    finally:
        del sys.modules["pandas"]


def settle_pandas() -> None:
    """Let pyarrow import pandas now, if it is installed: before there are loops to hold up and threads to race."""
    pa.array([0])


_TYPES: dict[ColumnKind, Any] = {
    ColumnKind.INT2: pa.int16(),
    ColumnKind.INT4: pa.int32(),
    ColumnKind.INT: pa.int64(),
    ColumnKind.BOOL: pa.bool_(),
    ColumnKind.FLOAT: pa.float64(),
    ColumnKind.STRING: pa.string(),
    ColumnKind.JSON: pa.string(),
    ColumnKind.BYTES: pa.binary(),
    ColumnKind.DATE: pa.date32(),
    ColumnKind.TIMESTAMP: pa.timestamp("us"),
    ColumnKind.TIMESTAMPTZ: pa.timestamp("us", tz="UTC"),
    ColumnKind.UUID: pa.binary(16),
}


def arrow_type(ctype: ColumnType) -> Any:
    """The Arrow type of a column type."""
    if ctype.kind is ColumnKind.DECIMAL:
        return pa.decimal128(ctype.precision, ctype.scale)
    return _TYPES[ctype.kind]


def arrow_fields(columns: Iterable[Column]) -> Any:
    """The Arrow schema of some columns."""
    return pa.schema([pa.field(c.name, arrow_type(c.type), nullable=c.nullable) for c in columns])


def arrow_schema(schema: TableSchema, columns: Iterable[str] | None = None) -> Any:
    """The Arrow schema of a table, or of some of its columns in the order given."""
    return arrow_fields(schema.columns if columns is None else [schema.column(name) for name in columns])


def cast_array(array: Any, ctype: ColumnType, *, name: str) -> Any:
    """`array` as the column's Arrow type, refusing any loss."""
    target = arrow_type(ctype)
    if isinstance(array, pa.ChunkedArray):
        array = array.combine_chunks()
    if array.type == target:
        return array
    try:
        return array.cast(target)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, pa.ArrowTypeError) as error:
        raise UsageError(f"column {name}: cannot store {array.type} as {ctype}: {error}") from None


def literal_array(value: object, ctype: ColumnType, *, size: int) -> Any:
    """`size` times one Python value, or NULL."""
    target = arrow_type(ctype)
    if value is None:
        return pa.nulls(size, target)
    raw = getattr(value, "bytes", value) if ctype.kind is ColumnKind.UUID else value
    return pa.repeat(pa.scalar(raw, target), size)
