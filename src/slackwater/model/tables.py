"""A table over time: its descriptor's versions, and which of them holds at a timestamp.

    version      1          2                3 (dropped)
    ─────────────●──────────●────────────────●──────────────► time
              modified   modified         modified
                 [   v1     )[     v2        )   nothing

A descriptor is valid from its modification time, which is the commit timestamp of the transaction that published it, to
that of the next version. A value in the store names the version that wrote it, which may be older or newer than the one
a reader reads by; columns meet by id (`schema.py`), so a reader needs *all* versions to decode and *one* to read by.

`TableDescriptor` and `TableHistory` travel between gateways and clients as they are.
"""

from __future__ import annotations

from functools import cached_property
from itertools import pairwise
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import UsageError
from slackwater.model.indexes import FIRST_INDEX_ID, Check, Index, Mutation
from slackwater.model.schema import TableSchema

if TYPE_CHECKING:
    from slackwater.model.schema import Column


_schema_of = attrgetter("schema")
_looks = attrgetter("name", "dropped", "schema.columns", "schema.primary_key", "schema.index_id")


class TableDescriptor(msgspec.Struct, frozen=True, dict=True):
    """One version of a table."""

    schema: TableSchema
    modified: Timestamp
    """Since when it holds: the commit timestamp of the transaction that published it."""
    next_column_id: int
    """Column ids are never used again, not even after their column was dropped."""
    dropped: bool = False
    owner: str = ""
    """The client who made the table, by the name in its certificate; "" for one that belongs to the operators."""
    indexes: tuple[Index, ...] = ()
    """Secondary indexes in every state, in the order of their ids."""
    checks: tuple[Check, ...] = ()
    mutations: tuple[Mutation, ...] = ()
    """Schema changes that have not ended; the first is under way."""
    next_index_id: int = FIRST_INDEX_ID
    """Ids of indexes, primary ones made by a truncation included, are never used again; neither are those of checks."""
    read_only: bool = False
    """It takes no rows for the moment: it is about to be emptied."""
    dropping: bool = False
    """Whether the table takes no more rows because the next version says that it is dropped."""

    # Read several times for every request, so each is found out once (`dict=True` has room for that).

    @cached_property
    def name(self) -> str:
        """What the table is called."""
        return self.schema.name

    @cached_property
    def table_id(self) -> int:
        """What the table is."""
        return self.schema.table_id

    @cached_property
    def version(self) -> int:
        """Counts from 1, without gaps."""
        return self.schema.version

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of the table, in order."""
        return self.schema.columns


class TableHistory(msgspec.Struct, frozen=True, dict=True):
    """Every known version of one table, oldest first."""

    versions: tuple[TableDescriptor, ...]

    @cached_property
    def latest(self) -> TableDescriptor:
        """The newest version, which may say that the table was dropped."""
        return self.versions[-1]

    def at(self, ts: Timestamp) -> TableDescriptor | None:
        """The version that holds at `ts`; None before the table was made."""
        found = None
        for version in self.versions:
            if version.modified <= ts:
                found = version
        return found

    def readable_at(self, ts: Timestamp) -> TableDescriptor:
        """The version to read by at `ts`, or one line about why there is none."""
        found = self.at(ts)
        if found is None:
            first = self.versions[0]
            raise UsageError(
                f"table {first.name} did not exist yet at {show(ts)}; it was created at {show(first.modified)}"
            )
        if found.dropped:
            raise UsageError(f"table {found.name} was dropped at {show(found.modified)}; read before that")
        return found

    def numbered(self, version: int) -> TableDescriptor:
        """One version by its number."""
        for known in self.versions:
            if known.version == version:
                return known
        raise UsageError(f"table {self.latest.name} has no version {version}; the newest is {self.latest.version}")

    def visible_changes(self) -> list[TableDescriptor]:
        """Versions in which rows look different than in the one before, to a reader or a feed: not those of indexes under way."""
        return [new for old, new in pairwise(self.versions) if _looks(old) != _looks(new)]

    def emptied(self) -> list[TableDescriptor]:
        """Versions as of which all rows of the one before are gone: rows lie under another index id from then on."""
        return [new for old, new in pairwise(self.versions) if old.schema.index_id != new.schema.index_id]

    @cached_property
    def gone_indexes(self) -> dict[int, Timestamp]:
        """Ids of indexes, primary ones included, that an earlier version had and no later one will, and since when they are gone.

        Those of dropped indexes, of indexes whose building was given up, and of what a table had before it was emptied.
        """
        gone: dict[int, Timestamp] = {}
        for old, new in pairwise(self.versions):
            left = _index_ids(old) - _index_ids(new)
            gone |= dict.fromkeys(left, new.modified)
        return {index_id: since for index_id, since in gone.items() if index_id not in _index_ids(self.latest)}

    def schemas(self) -> tuple[TableSchema, ...]:
        """The schema of every version: what it takes to decode any row."""
        return tuple(map(_schema_of, self.versions))

    def by_version(self) -> dict[int, TableSchema]:
        """Schemas by version, as decoders want them."""
        return {v.version: v.schema for v in self.versions}


def _index_ids(table: TableDescriptor) -> set[int]:
    return {table.schema.index_id, *(index.id for index in table.indexes)}
