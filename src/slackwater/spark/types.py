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

from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import types as st

from slackwater.errors import UsageError
from slackwater.model.kinds import INTEGERS, TEXTS, Kind
from slackwater.model.reserved import CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_VERSION
from slackwater.model.values import parse_default

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.kinds import ColumnType
    from slackwater.model.schema import TableSchema
    from slackwater.spark.options import Filter

_TYPES: dict[Kind, st.DataType] = {
    Kind.INT2: st.ShortType(),
    Kind.INT4: st.IntegerType(),
    Kind.INT: st.LongType(),
    Kind.BOOL: st.BooleanType(),
    Kind.FLOAT: st.DoubleType(),
    Kind.STRING: st.StringType(),
    Kind.JSON: st.StringType(),
    Kind.BYTES: st.BinaryType(),
    Kind.UUID: st.BinaryType(),
    Kind.DATE: st.DateType(),
    Kind.TIMESTAMP: st.TimestampNTZType(),
    Kind.TIMESTAMPTZ: st.TimestampType(),
}
_INTEGER_KINDS = {"short": Kind.INT2, "integer": Kind.INT4, "long": Kind.INT}
CHANGE_FIELDS = (
    st.StructField(CHANGE_TYPE, st.StringType(), nullable=False),
    st.StructField(COMMIT_VERSION, st.LongType(), nullable=False),
    st.StructField(COMMIT_TIMESTAMP, st.TimestampType(), nullable=False),
)
METADATA_FIELDS = CHANGE_FIELDS[1:]


def spark_type(ctype: ColumnType) -> st.DataType:
    """The Spark type of a column type."""
    if ctype.kind is Kind.DECIMAL:
        return st.DecimalType(ctype.precision, ctype.scale)
    return _TYPES[ctype.kind]


def spark_schema(
    table: TableSchema, columns: Sequence[str] = (), *, changes: bool = False, metadata: bool = False
) -> st.StructType:
    """The columns of a table (or some, in the order given) as Spark has them, and those of a change or of metadata.

    In a change feed every column may be null: a delete carries only the key.
    """
    chosen = [table.column(name) for name in columns] if columns else list(table.columns)
    keys = {column.name for column, _ in table.key_columns()}
    fields = [
        st.StructField(c.name, spark_type(c.type), nullable=c.nullable or (changes and c.name not in keys))
        for c in chosen
    ]
    return st.StructType([*fields, *(CHANGE_FIELDS if changes else METADATA_FIELDS if metadata else ())])


def check_schema(asked: st.StructType, table: TableSchema, *, changes: bool, metadata: bool = False) -> list[str]:
    """The table's columns that a schema names, which may be the user's own; refuses types that are not the table's."""
    there = {field.name: field.dataType for field in spark_schema(table, changes=changes, metadata=metadata).fields}
    for field in asked.fields:
        if field.name not in there:
            known = ", ".join(there)
            raise UsageError(f"table {table.name} has no column {field.name!r}; its columns are {known}")
        if field.dataType != there[field.name]:
            raise UsageError(
                f"column {field.name} of table {table.name} is {there[field.name].simpleString()}; "
                f"the schema given says {field.dataType.simpleString()}: read it as it is and cast it in Spark"
            )
    own = {column.name for column in table.columns}
    return [field.name for field in asked.fields if field.name in own]


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
        return INTEGERS.get(_INTEGER_KINDS.get(given.typeName(), Kind.STRING), 65) <= INTEGERS[ctype.kind]
    if ctype.kind is Kind.FLOAT:
        return isinstance(given, st.FloatType | st.DoubleType)
    if ctype.kind is Kind.DECIMAL and isinstance(given, st.DecimalType):
        return given.scale <= ctype.scale and given.precision - given.scale <= ctype.precision - ctype.scale
    return given == spark_type(ctype) or (isinstance(given, st.StringType) and ctype.kind in TEXTS)


def arrow_target(schema: st.StructType) -> Any:
    """The Arrow schema Spark will compare batches with."""
    from pyspark.sql.pandas.types import to_arrow_schema

    return to_arrow_schema(schema, timezone="UTC")


def conform(batch: pa.RecordBatch, target: Any) -> pa.RecordBatch:
    """`batch` with exactly the columns, order, types and nullability of `target`."""
    if batch.schema.equals(target):
        return batch
    arrays = []
    for field in target:
        index = batch.schema.get_field_index(field.name)
        if index < 0:
            raise UsageError(f"the cluster sent no column {field.name!r}", columns=batch.schema.names)
        array: Any = batch.column(index)
        arrays.append(array if array.type == field.type else array.cast(field.type))
        if not field.nullable and array.null_count:
            raise UsageError(f"column {field.name!r} holds NULL, and the schema given says it does not")
    return pa.RecordBatch.from_arrays(arrays, schema=target)


def where_of(table: TableSchema, filters: Sequence[Filter]) -> list[tuple[str, str, object]]:
    """Filters with their literals as values of the columns' types, ready for the client."""
    return [(f.column, f.op, _literal(table.column(f.column).type, f)) for f in filters]


def _literal(ctype: ColumnType, found: Filter) -> object:
    if found.value is None:
        return None
    if isinstance(found.value, list):
        return [None if item is None else _value(ctype, item, found) for item in found.value]
    return _value(ctype, found.value, found)


def _value(ctype: ColumnType, value: object, found: Filter) -> object:
    """JSON has fewer types than tables: dates, times, decimals, bytes come as text. Numbers compare by exact value."""
    if isinstance(value, str) and ctype.kind not in (Kind.STRING, Kind.JSON):
        try:
            return parse_default(ctype, value)
        except UsageError:
            raise UsageError(f"option filters: cannot read {value!r} as {ctype} for column {found.column}") from None
    return value
