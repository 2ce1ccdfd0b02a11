"""Secondary indexes, checks and changes under way, as a table's descriptor says them. Pure.

An element of a table (an index, a check) climbs a ladder, one descriptor version a step, so that any two versions that nodes use
at the same time (I-29) are safe together:

    state          deletes keep it right   inserts and updates too   reads use it
    delete-only    yes                     no                        no
    write-only     yes                     yes                       no
    backfilling    yes                     yes                       no     every writer is write-only by now: old rows are added
    validated      yes                     yes                       no     unique and complete, as of the validation
    public         yes                     yes                       yes

and the same way down when it is dropped. A step is published only when no node uses the version before the present one.

**An index is a table of the same id with another index id.** `index_schema` gives the schema of its entries: the index's columns,
then those of the primary key that are not among them, then the stored ones; its key is the first two together. So
every codec, scan, filter, segment and feed that works on a table's rows works on an index's entries. A unique index has only its
own columns in the key, so that two rows of one value meet there; an entry with a NULL among them has the primary key too, because
NULLs are not equal.

    table  t (id int, email string, name string)   primary key id      /t/1/<id>            {id, email, name}
    index  by_email on (email), unique                                 /t/2/<email>         {email, id}
    index  by_name on (name desc) storing (email)                      /t/3/<~name>/<id>    {name, id, email}
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UsageError
from slackwater.model.kinds import ColumnKind
from slackwater.model.schema import Column, KeyColumn, TableSchema

if TYPE_CHECKING:
    from collections.abc import Iterable

INDEXES_MAX = 64
"""Indexes of one table, those under way included."""
PRIMARY = "primary"
"""What the primary index is called where an index is named."""
FIRST_INDEX_ID = 2
"""Ids of secondary indexes begin here; the first primary index has 1."""


class ElementState(enum.Enum):
    """How far an index or a check is on its ladder."""

    DELETE_ONLY = "delete-only"
    WRITE_ONLY = "write-only"
    BACKFILLING = "backfilling"
    VALIDATED = "validated"
    PUBLIC = "public"

    @property
    def written(self) -> bool:
        """Whether inserts and updates add entries, and rows have to satisfy the check."""
        return self is not ElementState.DELETE_ONLY

    @property
    def public(self) -> bool:
        """Whether reads may rely on it."""
        return self is ElementState.PUBLIC


class Index(msgspec.Struct, frozen=True):
    """A secondary index."""

    id: int
    """Unique within the table over all time: the id of a dropped index is never used again."""
    name: str
    columns: tuple[KeyColumn, ...]
    unique: bool = False
    storing: tuple[int, ...] = ()
    """Ids of columns whose values entries carry beside the key, so that a read of them needs no row."""
    state: ElementState = ElementState.PUBLIC

    def __post_init__(self) -> None:
        if not FIRST_INDEX_ID <= self.id <= 0xFFFF:
            raise UsageError(f"an index id is from {FIRST_INDEX_ID} to 65535", index_id=self.id)
        if not self.columns:
            raise UsageError("an index needs at least one column", index=self.name)
        ids = [part.column_id for part in self.columns] + list(self.storing)
        if len(set(ids)) != len(ids):
            raise UsageError(f"index {self.name} names a column twice", index=self.name)

    def column_ids(self) -> set[int]:
        """The columns it is made of, those of the primary key that it does not name excepted."""
        return {part.column_id for part in self.columns} | set(self.storing)


class Check(msgspec.Struct, frozen=True):
    """A condition that every row satisfies: predicates joined by AND, or that a column is not NULL."""

    id: int
    name: str
    column_ids: tuple[int, ...]
    text: str
    """The condition as its author wrote it, such as `price >= 0`; columns by their present names."""
    state: ElementState = ElementState.PUBLIC


class Mutation(msgspec.Struct, frozen=True):
    """A schema change that was begun and has not ended: the first of a table's list is under way, the others wait for it."""

    job: int
    """The durable job that carries it out; its claim is the lease on the table's schema changes."""
    description: str
    """What it does, for people: `create index by_email on users (email)`."""
    reverting: bool = False


def index_schema(schema: TableSchema, index: Index) -> TableSchema:
    """The schema of an index's entries, under one version of its table.

    Columns that this version lacks are left out: `KeyError` never comes of it, but an index whose key lacks one is not readable
    under that version, which `ElementState` rules out.
    """
    parts = [*index.columns, *_missing_key(schema, index)]
    ids = [part.column_id for part in parts] + [c for c in index.storing if c not in {p.column_id for p in parts}]
    by_id = {column.id: column for column in schema.columns}
    columns = tuple(by_id[column_id] for column_id in ids if column_id in by_id)
    return TableSchema(
        schema.table_id,
        f"{schema.name}@{index.name}",
        schema.version,
        columns,
        tuple(part for part in parts if part.column_id in by_id),
        index.id,
        secondary=True,
    )


def index_schemas(schemas: Iterable[TableSchema], index: Index) -> tuple[TableSchema, ...]:
    """The schemas of an index's entries, under those versions of its table that have all its columns: no other wrote one."""
    found = []
    for schema in schemas:
        columns = {column.id: column for column in schema.columns}
        sortable = all(
            part.column_id in columns and columns[part.column_id].type.kind is not ColumnKind.JSON
            for part in index.columns
        )
        if sortable and columns.keys() >= index.column_ids():
            found.append(index_schema(schema, index))
    return tuple(found)


def _missing_key(schema: TableSchema, index: Index) -> list[KeyColumn]:
    named = {part.column_id for part in index.columns}
    return [part for part in schema.primary_key if part.column_id not in named]


def find_index(indexes: Iterable[Index], name: str, *, table: str) -> Index:
    """The index of this name; the error lists the names there are."""
    known = list(indexes)
    for index in known:
        if index.name == name:
            return index
    names = ", ".join(index.name for index in known) or "none"
    raise UsageError(f"table {table} has no index {name!r}; its indexes: {names}", table=table, index=name)


def columns_of(schema: TableSchema, index: Index) -> list[tuple[Column, bool]]:
    """The index's own columns in order, each with whether it is descending."""
    by_id = {column.id: column for column in schema.columns}
    return [(by_id[part.column_id], part.descending) for part in index.columns]
