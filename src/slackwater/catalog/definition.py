"""What a table may look like when it is made, and what may change in the next version. Pure.

Names of columns that feeds, change reads, Spark or the archive add (`model.reserved`) are refused here, when a table is made or
gets a column, and not when it is read.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.records import TableRecord
from slackwater.errors import UsageError
from slackwater.model.reserved import RESERVED_COLUMNS, RESERVED_PREFIXES, is_reserved
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.system_tables import check_not_system

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.calls import ColumnSpec, KeySpec

NAME_CHARS_MAX = 128
_TABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


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
    table_id: int, name: str, columns: Sequence[ColumnSpec], primary_key: Sequence[KeySpec], *, owner: str = ""
) -> TableRecord:
    """The record of a new table. Key columns are NOT NULL whether or not that was said."""
    check_table_name(name)
    if not primary_key:
        raise UsageError(f"table {name} needs a primary key; name one or more of its columns")
    keys = {part.column for part in primary_key}
    made = tuple(_column(i, spec, key=spec.name in keys) for i, spec in enumerate(columns, 1))
    ids = {column.name: column.id for column in made}
    for part in primary_key:
        if part.column not in ids:
            raise UsageError(
                f"the primary key of table {name} names {part.column!r}, which is none of its columns"
                f" ({', '.join(ids)})"
            )
    parts = tuple(KeyColumn(ids[part.column], part.descending) for part in primary_key)
    return TableRecord(TableSchema(table_id, name, 1, made, parts), next_column_id=len(made) + 1, owner=owner)


def with_column(now: TableDescriptor, spec: ColumnSpec) -> TableRecord:
    """The next version, with one column more. Rows that are there get its default, or NULL."""
    if not spec.nullable and spec.default is None:
        raise UsageError(f"column {spec.name} is NOT NULL: rows that are there need a default for it")
    column = _column(now.next_column_id, spec, key=False)
    assert column.id == now.next_column_id, "ids of columns are never used again"
    return _next(now, (*now.schema.columns, column), next_column_id=now.next_column_id + 1)


def without_column(now: TableDescriptor, name: str) -> TableRecord:
    """The next version, with one column less."""
    gone = now.schema.column(name)
    if any(part.column_id == gone.id for part in now.schema.primary_key):
        raise UsageError(f"column {name} is part of the primary key of {now.name}; it cannot be dropped")
    assert gone in now.schema.columns, "only a column that is there is dropped"
    return _next(now, tuple(c for c in now.schema.columns if c.id != gone.id), next_column_id=now.next_column_id)


def dropped(now: TableDescriptor) -> TableRecord:
    """The last version: the table is no more."""
    return msgspec.structs.replace(_next(now, now.schema.columns, next_column_id=now.next_column_id), dropped=True)


def _next(now: TableDescriptor, columns: tuple[Column, ...], *, next_column_id: int) -> TableRecord:
    schema = msgspec.structs.replace(now.schema, version=now.version + 1, columns=columns)
    assert schema.version == now.version + 1, "versions grow by one (I-29)"
    assert all(column.id < next_column_id for column in columns), "ids of columns are never used again"
    return TableRecord(schema, next_column_id, owner=now.owner)


def _column(column_id: int, spec: ColumnSpec, *, key: bool) -> Column:
    if is_reserved(spec.name):
        raise UsageError(
            f"the column name {spec.name!r} is reserved: change feeds, Spark and the archive add columns of such names"
            f" ({', '.join(sorted(RESERVED_COLUMNS))}, and what begins with {', '.join(RESERVED_PREFIXES)}); call it"
            " something else",
            column=spec.name,
        )
    if len(spec.name) > NAME_CHARS_MAX:
        raise UsageError(f"a column's name has at most {NAME_CHARS_MAX} characters", column=spec.name[:NAME_CHARS_MAX])
    return Column(column_id, spec.name, spec.type, nullable=spec.nullable and not key, default=spec.default)
