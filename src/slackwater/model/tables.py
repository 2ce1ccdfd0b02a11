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
from operator import attrgetter
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import UsageError
from slackwater.model.schema import TableSchema

if TYPE_CHECKING:
    from slackwater.model.schema import Column


_schema_of = attrgetter("schema")


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
        """Its columns, in order."""
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

    def schemas(self) -> tuple[TableSchema, ...]:
        """The schema of every version: what it takes to decode any row."""
        return tuple(map(_schema_of, self.versions))

    def by_version(self) -> dict[int, TableSchema]:
        """Schemas by version, as decoders want them."""
        return {v.version: v.schema for v in self.versions}
