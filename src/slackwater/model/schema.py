"""Tables as the codecs see them: columns with ids that are never reused, and a version.

    TableSchema t version=3                     a value in the store says "version 3"
      1  id     int      not null   ┐           and its bytes are laid out by the columns
      2  name   string              ├ columns   of version 3, in this order
      4  price  decimal(10,2)       ┘
      primary key: (id asc)

A reader has a schema of its own, older or newer. Columns meet *by id*, never by name or place: an id present in the
value and absent from the reader was dropped (or is not yet public) and vanishes; one absent from the value was added
later and takes its default; one present in both with two types is widened when that loses nothing (`can_retype`).
That is what makes "the schema as of T" work on every read path without rewriting a single row.

Schemas are frozen msgspec structs: they travel in messages and descriptors as they are. Validation happens on
construction, also when decoded from a message.
"""

from __future__ import annotations

from binascii import b2a_base64
from decimal import Decimal

import msgspec

from slackwater.errors import UsageError
from slackwater.model.kinds import INTEGERS, ColumnKind, ColumnType
from slackwater.model.values import logical, parse_default, physical

COLUMNS_MAX = 1600
VERSION_MAX = (1 << 32) - 1
TABLE_ID_MAX = (1 << 32) - 1

_RETYPES = {
    (ColumnKind.DATE, ColumnKind.TIMESTAMP),
    (ColumnKind.JSON, ColumnKind.STRING),
    *((i, k) for i in INTEGERS for k in (ColumnKind.FLOAT, ColumnKind.DECIMAL, ColumnKind.STRING)),
}


DEFAULT_FUNCTIONS = {
    "now()": frozenset({ColumnKind.TIMESTAMPTZ, ColumnKind.TIMESTAMP, ColumnKind.DATE}),
    "gen_random_uuid()": frozenset({ColumnKind.UUID}),
}
"""What a default may be beside a constant, and for columns of which kinds."""


class Column(msgspec.Struct, frozen=True):
    """One column. `default` is a Python value of the type, or None.

    Rows that were written before the column was added have it, and so do new rows that leave the column out, unless there is a
    `function`.
    """

    id: int
    name: str
    type: ColumnType
    nullable: bool = True
    default: object = None
    function: str = ""
    """One of `DEFAULT_FUNCTIONS`: evaluated by the client for new rows that leave the column out (`client.generated`)."""

    def __post_init__(self) -> None:
        if self.id < 1:
            raise UsageError("a column id is 1 or more", column=self.name, id=self.id)
        if not self.name:
            raise UsageError("a column needs a name", id=self.id)
        if self.default is not None:
            # one form however it was given (text, other zone, other scale), so that every reader sees the same value
            default = logical(self.type, physical(self.type, parse_default(self.type, self.default)))
            if default != default:  # NaN: with it no version of the table would be what was written
                raise UsageError(f"column {self.name} cannot default to NaN, which equals nothing", column=self.name)
            msgspec.structs.force_setattr(self, "default", default)
        if self.function:
            check_function(self.name, self.type, self.function)

    @property
    def has_default(self) -> bool:
        """Whether a row may leave it out though it is NOT NULL."""
        return self.default is not None or bool(self.function)

    @property
    def shown_default(self) -> str:
        """The default as people write it; empty without one."""
        return self.function or ("" if self.default is None else shown_constant(self.type, self.default))


def shown_constant(ctype: ColumnType, value: object) -> str:
    """A constant as people write it in a default of this type."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float | Decimal):
        return str(value)
    if isinstance(value, bytes):
        value = value.hex() if ctype.kind is ColumnKind.UUID else b2a_base64(value, newline=False).decode()
    return "'" + str(value).replace("'", "''") + "'"


def check_function(column: str, ctype: ColumnType, function: str) -> None:
    """Refuse a default function that there is not, or that makes no value of the column's type."""
    kinds = DEFAULT_FUNCTIONS.get(function)
    if kinds is None:
        known = ", ".join(DEFAULT_FUNCTIONS)
        raise UsageError(f"column {column}: there is no default {function[:80]!r}; a default is a constant or {known}")
    if ctype.kind not in kinds:
        names = " or ".join(sorted(kind.value for kind in kinds))
        raise UsageError(f"column {column} is {ctype} and cannot default to {function}, which is a {names}")


class KeyColumn(msgspec.Struct, frozen=True, array_like=True):
    """One column of a primary key."""

    column_id: int
    descending: bool = False


class TableSchema(msgspec.Struct, frozen=True):
    """One version of a table's columns and primary key."""

    table_id: int
    name: str
    version: int
    columns: tuple[Column, ...]
    primary_key: tuple[KeyColumn, ...]
    index_id: int = 1
    secondary: bool = False
    """The entries of a secondary index (`model.indexes`): NULL may stand in its key."""

    def __post_init__(self) -> None:
        _check_numbers(self)
        ids = [c.id for c in self.columns]
        names = [c.name for c in self.columns]
        if len(set(ids)) != len(ids):
            raise UsageError("column ids must differ", table=self.name, ids=ids)
        if len(set(names)) != len(names):
            raise UsageError("column names must differ", table=self.name, names=names)
        _check_primary_key(self)

    def column(self, name: str) -> Column:
        """The column of this name; the error lists the names there are."""
        for column in self.columns:
            if column.name == name:
                return column
        known = ", ".join(c.name for c in self.columns)
        raise UsageError(f"table {self.name} has no column {name!r}; its columns are {known}")

    def by_id(self, column_id: int) -> Column | None:
        """The column of this id, or None."""
        return next((c for c in self.columns if c.id == column_id), None)

    def key_columns(self) -> list[tuple[Column, bool]]:
        """The primary key's columns in order, each with whether it is descending."""
        by_id = {c.id: c for c in self.columns}
        return [(by_id[k.column_id], k.descending) for k in self.primary_key]


def can_retype(old: ColumnType, new: ColumnType) -> bool:
    """Whether values of `old` may be read as `new` (single values that do not fit still fail, when read)."""
    if old == new or (old.kind, new.kind) in _RETYPES:
        return True
    if old.kind in INTEGERS and new.kind in INTEGERS:
        return INTEGERS[new.kind] >= INTEGERS[old.kind]
    if old.kind is new.kind is ColumnKind.DECIMAL:
        return new.scale >= old.scale and new.precision - new.scale >= old.precision - old.scale
    return False


def _check_numbers(schema: TableSchema) -> None:
    if not 1 <= schema.table_id <= TABLE_ID_MAX:
        raise UsageError("a table id is from 1 to 2^32-1", table_id=schema.table_id)
    if not 1 <= schema.version <= VERSION_MAX:
        raise UsageError("a schema version is from 1 to 2^32-1", version=schema.version)
    if not 1 <= schema.index_id <= 0xFFFF:
        raise UsageError("an index id is from 1 to 65535", index_id=schema.index_id)
    if not 1 <= len(schema.columns) <= COLUMNS_MAX:
        raise UsageError(f"a table has from 1 to {COLUMNS_MAX} columns", table=schema.name, columns=len(schema.columns))


def _check_primary_key(schema: TableSchema) -> None:
    if not schema.primary_key:
        raise UsageError("a table needs a primary key", table=schema.name)
    seen: set[int] = set()
    for part in schema.primary_key:
        column = schema.by_id(part.column_id)
        if column is None:
            raise UsageError(
                "the primary key names a column id that is not there", table=schema.name, id=part.column_id
            )
        if column.nullable and not schema.secondary:
            raise UsageError("a primary-key column must be NOT NULL", table=schema.name, column=column.name)
        if column.type.kind is ColumnKind.JSON:
            raise UsageError("json has no order and cannot be in a primary key", table=schema.name, column=column.name)
        if part.column_id in seen:
            raise UsageError("a column is in the primary key twice", table=schema.name, column=column.name)
        seen.add(part.column_id)
