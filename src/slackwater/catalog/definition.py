"""What a table may look like when it is made, and what may be changed in it. Pure.

Every refusal is here, one function for each kind of change, so that a change is refused before anything of it is written: names
that exist, columns that do not, types that cannot be widened, elements that others need. Names of columns that feeds, change
reads, Spark or the archive add (`model.reserved`) are refused when a table is made or gets a column, and not when it is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.catalog.records import TableRecord
from slackwater.errors import UsageError
from slackwater.model.conditions import bind_condition, parse_condition
from slackwater.model.indexes import FIRST_INDEX_ID, INDEXES_MAX, PRIMARY, ElementState, Index
from slackwater.model.kinds import INTEGERS, ColumnKind
from slackwater.model.reserved import RESERVED_COLUMNS, RESERVED_PREFIXES, is_reserved
from slackwater.model.schema import COLUMNS_MAX, Column, KeyColumn, TableSchema, can_retype
from slackwater.model.system_tables import check_not_system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.indexes import Check, Mutation
    from slackwater.model.kinds import ColumnType
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.calls import ColumnSpec, IndexSpec, KeySpec

NAME_CHARS_MAX = 128
CHECKS_MAX = 64
DEFAULT_CHARS_MAX = 2_000
INDEX_ID_MAX = 0xFFFF
assert INDEXES_MAX < INDEX_ID_MAX, "a table has more ids of indexes than indexes"
assert INDEXES_MAX + CHECKS_MAX < INDEX_ID_MAX, "a table has an id for each index and each check, which share them"
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")
_ELEMENT_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DIGITS = {ColumnKind.INT2: 5, ColumnKind.INT4: 10, ColumnKind.INT: 19}
assert set(_DIGITS) == set(INTEGERS), "it is known of every integer how many digits it has"


def check_table_name(name: str) -> str:
    """`name`, when a table may be called that."""
    if not _TABLE_NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise UsageError(
            f"a table's name has 1 to {NAME_CHARS_MAX} letters, digits, '_', '.' or '-', and begins with a letter or '_'",
            name=name[: 2 * NAME_CHARS_MAX],
        )
    check_not_system(name, what="create")
    return name


def first_version(
    table_id: int,
    name: str,
    columns: Sequence[ColumnSpec],
    primary_key: Sequence[KeySpec],
    *,
    indexes: Sequence[IndexSpec] = (),
    owner: str = "",
) -> TableRecord:
    """The record of a new table. Key columns are NOT NULL whether or not that was said; indexes are public at once."""
    check_table_name(name)
    if not primary_key:
        raise UsageError(f"table {name} needs a primary key; name one or more of its columns")
    keys = {part.column for part in primary_key}
    made = tuple(new_column(i, spec, key=spec.name in keys) for i, spec in enumerate(columns, 1))
    ids = {column.name: column.id for column in made}
    for part in primary_key:
        if part.column not in ids:
            raise UsageError(
                f"the primary key of table {name} names {part.column!r}, which is none of its columns"
                f" ({', '.join(ids)})"
            )
    parts = tuple(KeyColumn(ids[part.column], part.descending) for part in primary_key)
    schema = TableSchema(table_id, name, 1, made, parts)
    made_indexes: list[Index] = []
    for spec in indexes:
        made_indexes.append(new_index(schema, made_indexes, FIRST_INDEX_ID + len(made_indexes), spec))
    assert len({index.id for index in made_indexes}) == len(made_indexes), "an index has an id of its own"
    return TableRecord(
        schema,
        next_column_id=len(made) + 1,
        owner=owner,
        indexes=tuple(made_indexes),
        next_index_id=FIRST_INDEX_ID + len(indexes),
    )


def new_index(
    schema: TableSchema,
    others: Sequence[Index],
    index_id: int,
    spec: IndexSpec,
    *,
    state: ElementState = ElementState.PUBLIC,
) -> Index:
    """An index that a table may have beside its `others`, by the names of its columns; the error says what is wrong with it."""
    table, name = schema.name, spec.name
    if not _TABLE_NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX or name == PRIMARY:
        raise UsageError(
            f"an index's name has 1 to {NAME_CHARS_MAX} letters, digits, '_', '.' or '-', begins with a letter or '_', and is"
            f" not {PRIMARY!r}",
            name=name[: 2 * NAME_CHARS_MAX],
        )
    if any(index.name == name for index in others):
        raise UsageError(f"table {table} has an index {name!r} already; drop it first or pick another name", index=name)
    if len(others) >= INDEXES_MAX:
        raise UsageError(f"a table has at most {INDEXES_MAX} indexes; table {table} has as many", table=table)
    check_index_ids(table, index_id, 1)
    assert all(index.id < index_id for index in others), "ids of indexes are never used again"
    if not spec.columns:
        raise UsageError(f"index {name} needs at least one column", index=name)
    for part in spec.columns:
        if schema.column(part.column).type.kind is ColumnKind.JSON:
            raise UsageError(
                f"column {part.column} is json, which has no order; it can be stored in an index, not indexed"
            )
    parts = tuple(KeyColumn(schema.column(part.column).id, part.descending) for part in spec.columns)
    keys = {part.column_id for part in schema.primary_key}
    stored = tuple(schema.column(column).id for column in spec.storing)
    for column, column_id in zip(spec.storing, stored, strict=True):
        if column_id in keys:
            raise UsageError(f"index {name} has column {column} anyway: it is part of the primary key", index=name)
    return Index(index_id, name, parts, unique=spec.unique, storing=stored, state=state)


def with_column(now: TableDescriptor, spec: ColumnSpec) -> TableRecord:
    """The next version, with one column more. Rows that are there get its default, or NULL."""
    check_new_column(now, spec)
    column = new_column(now.next_column_id, spec, key=False)
    assert column.id == now.next_column_id, "ids of columns are never used again"
    return next_version(now, columns=(*now.schema.columns, column), next_column_id=now.next_column_id + 1)


def dropping(now: TableDescriptor, mutations: tuple[Mutation, ...] = ()) -> TableRecord:
    """The last version but one: the table can be read and takes no more rows. Of its changes only its drop is left."""
    return next_version(now, dropping=True, mutations=mutations)


def dropped(now: TableDescriptor) -> TableRecord:
    """The last version: the table is no more."""
    return next_version(now, dropped=True, mutations=())


def next_version(
    now: TableDescriptor,
    *,
    columns: tuple[Column, ...] | None = None,
    name: str | None = None,
    index_id: int | None = None,
    **changed: Any,
) -> TableRecord:
    """The record of the next version: as the present one, but for what is named."""
    schema = msgspec.structs.replace(
        now.schema,
        version=now.version + 1,
        columns=now.schema.columns if columns is None else columns,
        name=now.schema.name if name is None else name,
        index_id=now.schema.index_id if index_id is None else index_id,
    )
    record = msgspec.structs.replace(renumbered(now, schema.version), schema=schema, **changed)
    assert schema.version == now.version + 1, "versions grow by one (I-29)"
    assert len({column.id for column in schema.columns}) == len(schema.columns), "a column has an id of its own"
    assert record.next_index_id >= now.next_index_id, "ids of indexes are never used again"
    assert record.next_column_id >= now.next_column_id, "ids of columns are never used again"
    assert schema.table_id == now.table_id, "a table keeps its id"
    assert all(column.id < record.next_column_id for column in schema.columns), "ids of columns are never used again"
    assert all(index.id < record.next_index_id for index in record.indexes), "ids of indexes are never used again"
    return record


def renumbered(table: TableDescriptor, version: int) -> TableRecord:
    """The record of a table that looks like this, as another version."""
    kept = {field: getattr(table, field) for field in TableRecord.__struct_fields__ if field != "schema"}
    return TableRecord(msgspec.structs.replace(table.schema, version=version), **kept)


def new_column(column_id: int, spec: ColumnSpec, *, key: bool) -> Column:
    """A column from what was asked for."""
    assert column_id > 0, "ids of columns begin at 1"
    check_column_name(spec.name)
    if len(repr(spec.default)) > DEFAULT_CHARS_MAX:
        raise UsageError(
            f"the default of column {spec.name} is too long: every node keeps it with every version of the table, so it has at"
            f" most {DEFAULT_CHARS_MAX} characters; write longer values into the rows",
            column=spec.name,
        )
    return Column(
        column_id,
        spec.name,
        spec.type,
        nullable=spec.nullable and not key,
        default=spec.default,
        function=spec.function,
    )


# --- refusals --------------------------------------------------------------------------------------------------------


def check_column_name(name: str) -> None:
    """Refuse the names that feeds, Spark and the archive give to columns of their own, and those that are too long."""
    if is_reserved(name):
        raise UsageError(
            f"the column name {name!r} is reserved: change feeds, Spark and the archive add columns of such names"
            f" ({', '.join(sorted(RESERVED_COLUMNS))}, and what begins with {', '.join(RESERVED_PREFIXES)}); call it"
            " something else",
            column=name,
        )
    if not 0 < len(name) <= NAME_CHARS_MAX or not name.isprintable():
        raise UsageError(
            f"a column's name has 1 to {NAME_CHARS_MAX} printable characters", column=name[:NAME_CHARS_MAX]
        )


def check_new_column(now: TableDescriptor, spec: ColumnSpec) -> None:
    """Refuse a column that cannot be added."""
    check_column_name(spec.name)
    _check_free_column(now, spec.name)
    if len(now.schema.columns) >= COLUMNS_MAX:
        raise UsageError(f"a table has at most {COLUMNS_MAX} columns", table=now.name)
    if spec.function and spec.default is None:
        raise UsageError(
            f"column {spec.name} cannot be added with the default {spec.function}: every row that is there would need a value of"
            " its own; add it without a default and write the rows, or make a new table"
        )
    if not spec.nullable and spec.default is None:
        raise UsageError(f"column {spec.name} is NOT NULL: rows that are there need a default for it")
    new_column(now.next_column_id, spec, key=False)  # a default that is none of its type is refused


def check_droppable_column(now: TableDescriptor, name: str) -> Column:
    """The column, unless something needs it."""
    gone = now.schema.column(name)
    if any(part.column_id == gone.id for part in now.schema.primary_key):
        raise UsageError(f"column {name} is part of the primary key of {now.name}; it cannot be dropped")
    _check_unused(now, gone, what="dropped")
    if len(now.schema.columns) == 1:
        raise UsageError(f"column {name} is the only one of table {now.name}")
    return gone


def _check_unused(now: TableDescriptor, column: Column, *, what: str, checks: bool = True) -> None:
    for index in now.indexes:
        if column.id in index.column_ids():
            raise UsageError(
                f"column {column.name} is used by index {index.name} of table {now.name}; it cannot be {what} while the"
                f" index exists: drop the index first",
                column=column.name,
                index=index.name,
            )
    for check in now.checks if checks else ():
        if column.id in check.column_ids and not is_not_null(check.name):
            raise UsageError(
                f"column {column.name} is used by check {check.name} of table {now.name} ({check.text}); it cannot be"
                f" {what} while the check exists: drop the check first",
                column=column.name,
                check=check.name,
            )


def check_renamed_column(now: TableDescriptor, name: str, to: str) -> Column:
    """The column, when it may be called `to`."""
    found = now.schema.column(name)
    check_column_name(to)
    _check_free_column(now, to)
    return found


def _check_free_column(now: TableDescriptor, name: str) -> None:
    if any(column.name == name for column in now.schema.columns):
        raise UsageError(f"table {now.name} has a column {name!r} already; pick another name", column=name)


def check_index_ids(table: str, first: int, count: int) -> None:
    """Refuse a change that needs more index ids than are left: none is used twice."""
    if first + count > INDEX_ID_MAX + 1:
        raise UsageError(f"table {table} has used its {INDEX_ID_MAX} index ids; copy it to a new table")


def _check_check_name(name: str) -> None:
    """Refuse what cannot be the name of a check."""
    if not _ELEMENT_NAME.fullmatch(name) or len(name) > NAME_CHARS_MAX:
        raise UsageError(
            f"the name of a check has 1 to {NAME_CHARS_MAX} letters, digits or '_', and begins with a letter or '_'",
            name=name[: 2 * NAME_CHARS_MAX],
        )


def check_new_check(now: TableDescriptor, name: str, condition: str) -> tuple[int, ...]:
    """The columns that a check that may be made is about."""
    _check_check_name(name)
    if any(check.name == name for check in now.checks):
        raise UsageError(f"table {now.name} has a check {name!r} already; drop it first or pick another name")
    if len(now.checks) >= CHECKS_MAX:
        raise UsageError(f"a table has at most {CHECKS_MAX} checks; table {now.name} has as many", table=now.name)
    bind_condition(now.schema, condition)
    names = dict.fromkeys(found.column for found in parse_condition(condition))
    return tuple(now.schema.column(column).id for column in names)


def find_check(now: TableDescriptor, name: str) -> Check:
    """The check of this name; the error lists the names there are."""
    named = {check.name: check for check in now.checks if not is_not_null(check.name)}
    if name not in named:
        known = ", ".join(named) or "none"
        raise UsageError(f"table {now.name} has no check {name!r}; its checks: {known}", table=now.name, check=name)
    return named[name]


def check_renamed_table(now: TableDescriptor, new: str) -> None:
    """Refuse a name that the table cannot get; whether another table has it is found where it is written."""
    check_table_name(new)
    if new == now.name:
        raise UsageError(f"table {new} is called that already", table=new)


def check_nullable(now: TableDescriptor, name: str) -> None:
    """Refuse to forbid NULL where it is forbidden."""
    if not now.schema.column(name).nullable:
        raise UsageError(f"column {name} of table {now.name} is NOT NULL already", column=name)


def check_not_nullable(now: TableDescriptor, name: str) -> None:
    """Refuse to allow NULL where it is allowed, and in a primary key."""
    column = now.schema.column(name)
    if any(part.column_id == column.id for part in now.schema.primary_key):
        raise UsageError(f"column {name} is part of the primary key of {now.name} and cannot be NULL")
    if column.nullable:
        raise UsageError(f"column {name} of table {now.name} may be NULL already", column=name)


def check_wider(now: TableDescriptor, name: str, new: ColumnType) -> Column:
    """The column, if every value of its type is one of `new`."""
    column = now.schema.column(name)
    old = column.type
    if old == new:
        raise UsageError(f"column {name} of table {now.name} is {old} already", column=name)
    if not _holds_all(old, new):
        raise UsageError(
            f"column {name} cannot become {new}: not every {old} is one; types can only be widened (int2 to int4 to int, more"
            " digits of a decimal, date to timestamp, json or integers to string)",
            column=name,
        )
    if old.kind in INTEGERS and new.kind in INTEGERS:
        return column  # keys and comparisons of all integer widths are the same
    if any(part.column_id == column.id for part in now.schema.primary_key):
        raise UsageError(f"column {name} is part of the primary key of {now.name}; its keys would change with its type")
    _check_unused(now, column, what=f"made {new}", checks=old.kind is not ColumnKind.DECIMAL)
    if column.default is not None:
        raise UsageError(f"column {name} has a default, which is {old}; add a new column instead", column=name)
    return column


def _holds_all(old: ColumnType, new: ColumnType) -> bool:
    if not can_retype(old, new):
        return False
    if old.kind in INTEGERS and new.kind is ColumnKind.DECIMAL:
        return new.precision - new.scale >= _DIGITS[old.kind]
    return not (old.kind is ColumnKind.INT and new.kind is ColumnKind.FLOAT)


NOT_NULL = "not null "
assert not _ELEMENT_NAME.fullmatch(f"{NOT_NULL}1"), "no check of a user has the name of one that stands for NOT NULL"


def not_null_name(column: Column) -> str:
    """The name of the check that stands for NOT NULL while that is added or removed; no user's check can have it."""
    return f"{NOT_NULL}{column.id}"


def is_not_null(name: str) -> bool:
    """Whether a check stands for NOT NULL."""
    return name.startswith(NOT_NULL)
