"""How an application says what a table looks like: names and types in a dict, an Arrow schema, or `Column` objects.

    create_table("orders", {"id": "int8", "note": "text", "price": "decimal(10,2) not null"}, primary_key=["id"])
    create_table("orders", arrow_table.schema, primary_key=["id"])
    create_table("orders", columns, primary_key=["region", "id desc"])

    create_table("users", columns, primary_key=["id"], indexes=[
        Index("by_email", ["email"], unique=True),
        Index("by_city", ["city", "joined desc"], storing=["name"]),
    ])

Types are those of `model.kinds` under their names there or under their SQL names; ` not null` and ` default 5` may follow, in
this order. A default is a constant, `now()` or `gen_random_uuid()`. Key columns are NOT NULL whether or not that is said. Arrow
types map to the type that holds all their values; those that have none (nested types, unsigned 64-bit integers) are refused by
name.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

from slackwater.client.arguments import names_of
from slackwater.errors import UsageError
from slackwater.model import kinds
from slackwater.model.conditions import parse_literal
from slackwater.model.kinds import ColumnType, decimal_type, parse_type
from slackwater.model.schema import Column, check_function
from slackwater.protocol.client.calls import ColumnSpec, IndexSpec, KeySpec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

pa: Any = pyarrow
_COLUMN = re.compile(
    r"\s*(?P<type>.*?)(?P<null>\s+not\s+null)?(?:\s+default\s+(?P<default>.+?))?\s*", re.IGNORECASE | re.DOTALL
)
_CALL = re.compile(r"[a-z_]\w*\(\)")
DESCENDING = " desc"
ALIASES = {
    "smallint": "int2",
    "int16": "int2",
    "integer": "int4",
    "int32": "int4",
    "int8": "int",
    "bigint": "int",
    "int64": "int",
    "long": "int",
    "boolean": "bool",
    "float8": "float",
    "float64": "float",
    "double": "float",
    "double precision": "float",
    "text": "string",
    "varchar": "string",
    "str": "string",
    "bytea": "bytes",
    "binary": "bytes",
    "jsonb": "json",
    "datetime": "timestamp",
}
_ARROW = {
    pa.int8(): kinds.INT2,
    pa.int16(): kinds.INT2,
    pa.uint8(): kinds.INT2,
    pa.int32(): kinds.INT4,
    pa.uint16(): kinds.INT4,
    pa.int64(): kinds.INT,
    pa.uint32(): kinds.INT,
    pa.bool_(): kinds.BOOL,
    pa.float16(): kinds.FLOAT,
    pa.float32(): kinds.FLOAT,
    pa.float64(): kinds.FLOAT,
    pa.string(): kinds.STRING,
    pa.large_string(): kinds.STRING,
    pa.string_view(): kinds.STRING,
    pa.binary(): kinds.BYTES,
    pa.large_binary(): kinds.BYTES,
    pa.date32(): kinds.DATE,
    pa.date64(): kinds.DATE,
}


def column_specs(
    columns: Mapping[str, str | ColumnType] | Sequence[Column | ColumnSpec] | Any,
) -> tuple[ColumnSpec, ...]:
    """The columns of a new table, whichever way they were given."""
    if isinstance(columns, pa.Schema):
        specs = [ColumnSpec(f.name, type_of_arrow(f.type, f.name), nullable=f.nullable) for f in columns]
    elif hasattr(columns, "items"):
        specs = [_spec(name, given) for name, given in columns.items()]
    elif isinstance(columns, list | tuple):
        specs = [_of_column(column) for column in columns]
    else:
        raise UsageError(
            "columns are a dict of names and types, a pyarrow.Schema or a list of Column", got=type(columns).__name__
        )
    if not specs:
        raise UsageError("a table needs at least one column")
    return tuple(specs)


def key_specs(primary_key: str | Sequence[str]) -> tuple[KeySpec, ...]:
    """The primary key: names of columns, each possibly followed by ` desc`."""
    found = []
    for name in names_of(primary_key, "the columns of a primary key"):
        if name.lower().endswith(DESCENDING):
            found.append(KeySpec(name[: -len(DESCENDING)].rstrip(), descending=True))
        else:
            found.append(KeySpec(name.removesuffix(" asc")))
    return tuple(found)


class Index(NamedTuple):
    """A secondary index, as an application writes it: a name and columns, each possibly followed by ` desc`."""

    name: str
    columns: str | Sequence[str]
    unique: bool = False
    storing: Sequence[str] = ()
    """Columns that the index carries beside its own: a read of these needs no row."""


def index_specs(indexes: Sequence[Index]) -> tuple[IndexSpec, ...]:
    """The indexes of a new table."""
    if not isinstance(indexes, list | tuple) or isinstance(indexes, Index):
        raise UsageError("indexes are a list of slackwater.client.Index objects", got=type(indexes).__name__)
    return tuple(index_spec(index) for index in indexes)


def index_spec(index: Index) -> IndexSpec:
    """One index, checked as far as it can be without its table."""
    given: Any = index
    if not isinstance(given, Index) or not isinstance(given.name, str):
        raise UsageError(
            "an index is slackwater.client.Index(name, columns, unique=False, storing=())", got=repr(index)[:80]
        )
    storing = names_of(index.storing, "the stored columns of an index")
    return IndexSpec(index.name, key_specs(index.columns), bool(index.unique), storing)


def type_of_text(text: str) -> ColumnType:
    """A type from its name here or in SQL."""
    plain = " ".join(text.strip().lower().split())
    if plain.startswith("numeric"):
        plain = "decimal" + plain.removeprefix("numeric")
    return parse_type(ALIASES.get(plain, plain))


def type_of_arrow(arrow: Any, name: str) -> ColumnType:
    """The type that holds every value of an Arrow type."""
    found = _ARROW.get(arrow)
    if found is not None:
        return found
    if pa.types.is_decimal(arrow):
        return decimal_type(arrow.precision, arrow.scale)
    if pa.types.is_timestamp(arrow):
        return kinds.TIMESTAMPTZ if arrow.tz else kinds.TIMESTAMP
    if pa.types.is_dictionary(arrow):
        return type_of_arrow(arrow.value_type, name)
    if pa.types.is_fixed_size_binary(arrow):
        return kinds.UUID if arrow.byte_width == 16 else kinds.BYTES
    raise UsageError(f"column {name}: there is no column type for Arrow's {arrow}; cast it first")


def _spec(name: str, given: str | ColumnType) -> ColumnSpec:
    if not isinstance(name, str):
        raise UsageError("a column's name is a text", got=type(name).__name__)
    if isinstance(given, ColumnType):
        return ColumnSpec(name, given)
    if not isinstance(given, str):
        raise UsageError(f"column {name}: a type is a text such as 'int8' or 'decimal(10,2) not null'", got=repr(given))
    found = _COLUMN.fullmatch(given)
    assert found is not None, "the first part takes everything"
    ctype, default = type_of_text(found["type"]), found["default"]
    nullable = found["null"] is None
    if default is not None and (function := _function(default)):
        check_function(name, ctype, function)
        return ColumnSpec(name, ctype, nullable=nullable, function=function)
    value = None if default is None else _default(name, default.strip())
    return ColumnSpec(name, ctype, nullable=nullable, default=value)


def _function(text: str) -> str:
    """The default function that a text means; empty for a constant."""
    plain = "".join(text.lower().split())
    return "now()" if plain in ("now()", "current_timestamp") else plain if _CALL.fullmatch(plain) else ""


def _default(name: str, text: str) -> object:
    try:
        return parse_literal(text)
    except UsageError:
        raise UsageError(
            f"column {name}: cannot read the default {text[:80]!r}; it is a constant such as 5, 'text' or true, or now() or"
            " gen_random_uuid()"
        ) from None


def _of_column(column: Column | ColumnSpec) -> ColumnSpec:
    if not isinstance(column, Column | ColumnSpec):
        raise UsageError("a list of columns holds slackwater.model.schema.Column objects", got=type(column).__name__)
    return ColumnSpec(
        column.name, column.type, nullable=column.nullable, default=column.default, function=column.function
    )
