"""Tables as Spark sees them: types there and back, and batches in exactly the shape Spark demands.

    ours           Spark              Arrow on the way
    int2/4/int     smallint/int/bigint int16/32/64
    bool, float    boolean, double    bool, float64
    decimal(p,s)   decimal(p,s)       decimal128(p,s)
    string, json   string             string
    bytes, uuid    binary             binary            (a uuid is its 16 bytes: Spark has no such type)
    date           date               date32
    timestamp      timestamp_ntz      timestamp[us]
    timestamptz    timestamp          timestamp[us, UTC]

Spark compares the first batch of a task with the schema it expects, field by field, nullability included, and trusts the
others; a batch that drifts later fails obscurely inside the JVM. So every batch goes through `conform`, which is free
when it fits already (all types but uuid do).

A change feed has three more columns, with Spark's own names for them: `_change_type`, `_commit_version`,
`_commit_timestamp`. A snapshot with `includeMetadata` has the last two.
"""

from __future__ import annotations

import binascii
from decimal import Decimal
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from slackwater.errors import UsageError
from slackwater.model.kinds import INTEGERS, TEXTS, ColumnKind
from slackwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from slackwater.model.values import parse_default
from slackwater.spark.names import demand_exact, meant

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slackwater.model.kinds import ColumnType
    from slackwater.model.schema import TableSchema
    from slackwater.spark.options import Filter

_TYPES: dict[ColumnKind, st.DataType] = {
    ColumnKind.INT2: st.ShortType(),
    ColumnKind.INT4: st.IntegerType(),
    ColumnKind.INT: st.LongType(),
    ColumnKind.BOOL: st.BooleanType(),
    ColumnKind.FLOAT: st.DoubleType(),
    ColumnKind.STRING: st.StringType(),
    ColumnKind.JSON: st.StringType(),
    ColumnKind.BYTES: st.BinaryType(),
    ColumnKind.UUID: st.BinaryType(),
    ColumnKind.DATE: st.DateType(),
    ColumnKind.TIMESTAMP: st.TimestampNTZType(),
    ColumnKind.TIMESTAMPTZ: st.TimestampType(),
}
_INTEGER_KINDS = {"short": ColumnKind.INT2, "integer": ColumnKind.INT4, "long": ColumnKind.INT}
CHANGE_FIELDS = (
    st.StructField(CHANGE_TYPE, st.StringType(), nullable=False),
    st.StructField(COMMIT_VERSION, st.LongType(), nullable=False),
    st.StructField(COMMIT_TIMESTAMP, st.TimestampType(), nullable=False),
)
METADATA_FIELDS = CHANGE_FIELDS[1:]


def spark_type(ctype: ColumnType) -> st.DataType:
    """The Spark type of a column type."""
    if ctype.kind is ColumnKind.DECIMAL:
        return st.DecimalType(ctype.precision, ctype.scale)
    return _TYPES[ctype.kind]


def spark_schema(
    table: TableSchema, columns: Sequence[str] = (), *, changes: bool = False, metadata: bool = False
) -> st.StructType:
    """The columns of a table (or some, in the order given) as Spark has them, and those of a change or of metadata.

    In a change feed every column may be null: a delete carries only the key.
    """
    own = meant(columns, [c.name for c in table.columns], table=table.name).values()
    chosen = [table.column(name) for name in own] if columns else list(table.columns)
    keys = {column.name for column, _ in table.key_columns()}
    fields = [
        st.StructField(c.name, spark_type(c.type), nullable=c.nullable or (changes and c.name not in keys))
        for c in chosen
    ]
    return st.StructType([*fields, *(CHANGE_FIELDS if changes else METADATA_FIELDS if metadata else ())])


def floor_schema(ts: int) -> st.StructType:
    """The answer to the question for this application's floor: a column of that name (`floors.asked_of`)."""
    return st.StructType([st.StructField(str(int(ts)), st.LongType())])


class Asked:
    """The columns that a schema names, which may be the user's own; refuses types that are not the table's."""

    def __init__(
        self, schema: st.StructType, table: TableSchema, *, changes: bool = False, metadata: bool = False
    ) -> None:
        there = {field.name: field.dataType for field in spark_schema(table, changes=changes, metadata=metadata).fields}
        self.names = meant(schema.fieldNames(), there, table=table.name)
        """What each column is called by the schema, and by the table."""
        for field in schema.fields:
            own = there[self.names[field.name]]
            if field.dataType != own:
                raise UsageError(
                    f"column {field.name} of table {table.name} is {own.simpleString()}; "
                    f"the schema given says {field.dataType.simpleString()}: read it as it is and cast it in Spark"
                )
        columns = {column.name for column in table.columns}
        self.read = [name for name in self.names.values() if name in columns]
        """The table's own columns to read."""
        self._schema = schema
        self._table = table.name

    def shaper(self) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
        """In a task: a function that gives batches the shape Spark demands."""
        demand_exact(self.names, table=self._table)
        target = arrow_target(self._schema)
        return lambda batch: conform(batch, target, self.names)


def with_keys(table: TableSchema, columns: Sequence[str]) -> tuple[list[str], list[str]]:
    """These columns and those of the primary key that are not among them, for reads that must tell keys apart; the keys."""
    keys = [column.name for column, _ in table.key_columns()]
    return [*columns, *(key for key in keys if key not in columns)], keys


def can_store(given: st.DataType, ctype: ColumnType) -> bool:
    """Whether every value of a Spark type fits a column as it is; anything else is cast by the user, in sight."""
    if isinstance(given, st.NullType):
        return True
    if isinstance(given, st.ByteType):
        return ctype.kind in INTEGERS
    if ctype.kind in INTEGERS:
        return INTEGERS.get(_INTEGER_KINDS.get(given.typeName(), ColumnKind.STRING), 65) <= INTEGERS[ctype.kind]
    if ctype.kind is ColumnKind.FLOAT:
        return isinstance(given, st.FloatType | st.DoubleType)
    if ctype.kind is ColumnKind.DECIMAL and isinstance(given, st.DecimalType):
        return given.scale <= ctype.scale and given.precision - given.scale <= ctype.precision - ctype.scale
    return given == spark_type(ctype) or (isinstance(given, st.StringType) and ctype.kind in TEXTS)


def arrow_target(schema: st.StructType) -> Any:
    """The Arrow schema Spark will compare batches with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, target: Any, names: Mapping[str, str] | None = None) -> pa.RecordBatch:
    """`batch` with exactly the columns, order, types and nullability of `target`; `names` are the batch's for the target's."""
    if batch.schema.equals(target):
        return batch
    arrays = []
    for field in target:
        index = batch.schema.get_field_index((names or {}).get(field.name, field.name))
        if index < 0:
            raise UsageError(f"the cluster sent no column {field.name!r}", columns=batch.schema.names)
        array: Any = batch.column(index)
        arrays.append(array if array.type == field.type else array.cast(field.type))
        if not field.nullable and array.null_count:
            raise UsageError(f"column {field.name!r} holds NULL, and the schema given says it does not")
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def where_of(table: TableSchema, filters: Sequence[Filter]) -> list[tuple[str, str, object]]:
    """Filters with their literals as values of the columns' types, ready for the client."""
    names = filter_names(table, filters)
    return [(names[f.column], f.op, _literal(table.column(names[f.column]).type, f)) for f in filters]


def filter_names(table: TableSchema, filters: Sequence[Filter]) -> dict[str, str]:
    """What each filter's column is called by the filter, and by the table; one column may have several filters."""
    there = [c.name for c in table.columns]
    return {f.column: own for f in filters for own in meant([f.column], there, table=table.name).values()}


def _literal(ctype: ColumnType, found: Filter) -> object:
    if found.value is None:
        return None
    if isinstance(found.value, list):
        return [None if item is None else _value(ctype, item, found) for item in found.value]
    return _value(ctype, found.value, found)


def _value(ctype: ColumnType, value: object, found: Filter) -> object:
    """JSON has fewer types than tables: dates and times come as text, numbers may, bytes say how they are written."""
    try:
        if ctype.kind is ColumnKind.BYTES:
            return _bytes_of(value)
        if isinstance(value, str) and ctype.kind not in TEXTS:
            return _from_text(ctype, value.strip())
    except (UsageError, ValueError, ArithmeticError):
        hint = '; write {"hex": "0aff"} or {"base64": "Cv8="}' if ctype.kind is ColumnKind.BYTES else ""
        raise UsageError(f"option filters: cannot read {value!r} as {ctype} for column {found.column}{hint}") from None
    return value


def _from_text(ctype: ColumnType, text: str) -> object:
    if ctype.kind is ColumnKind.FLOAT:
        return float(text)
    if ctype.kind in INTEGERS:
        return Decimal(text)
    return parse_default(ctype, text)


def _bytes_of(value: object) -> bytes:
    """Text could be the bytes themselves, hexadecimal or base64, and a wrong guess finds nothing: so it must say which."""
    match value:
        case {"hex": str(text), **rest} if not rest:
            return bytes.fromhex(text)
        case {"base64": str(text), **rest} if not rest:
            return binascii.a2b_base64(text, strict_mode=True)
    raise UsageError("not a value of a bytes column")
