"""Point reads by a unique index: which index is meant, and the key of its entry."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.codec.damage import decode_row
from slackwater.errors import RetryableError, UsageError
from slackwater.protocol.client.calls import ReadPolicy
from slackwater.protocol.client.index_reads import GET_BY_INDEX, GetByIndex

if TYPE_CHECKING:
    from slackwater.client.gateways import Gateways
    from slackwater.client.tables import KnownTables
    from slackwater.model.indexes import Index
    from slackwater.model.tables import TableDescriptor


class Lookup(NamedTuple):
    """A row to be found by a unique index."""

    table: TableDescriptor
    by: Index
    key: bytes | None
    """None: NULL is among the values, which no row is found by."""

    def request(self, policy: ReadPolicy, *, version: int) -> GetByIndex:
        """What to ask the gateway."""
        assert self.key is not None
        return GetByIndex(self.table.table_id, version, self.by.id, [self.key], policy)


def lookup(tables: KnownTables, table: TableDescriptor, by: str, key: object) -> Lookup:
    """Where to look for the row of a table that has these values in a unique index, named itself or by its only column."""
    index = unique_index(table, by)
    codec = tables.index_codec(table, index)
    names = [table.schema.by_id(part.column_id) for part in index.columns]
    values = _values_of(table, index, [column.name for column in names if column is not None], key)
    if None in values:
        return Lookup(table, index, None)
    try:
        return Lookup(table, index, codec.key(values))
    except UsageError as error:
        raise UsageError(f"index {index.name} of {table.name}: {error}") from None


async def get_by(
    gateways: Gateways, tables: KnownTables, table: str, by: str, key: object, *, nearest: bool
) -> dict[str, Any] | None:
    """The newest row that has these values in a unique index; None when there is none."""
    deadline = gateways.deadline()
    while True:
        wanted = await tables.prepared(table, lambda known: lookup(tables, known.latest, by, key), deadline=deadline)
        if wanted.key is None:
            return None
        try:
            policy = ReadPolicy(follower_ok=nearest, floor=gateways.floor.ts)
            request = wanted.request(policy, version=wanted.table.version)
            reply = await gateways.call(GET_BY_INDEX, request, deadline=deadline)
        except RetryableError as error:
            tables.forget(table)
            await deadline.again(error, "nothing was read")
            continue
        gateways.floor.told(reply.ts)
        (value,) = reply.values
        if value is None:
            return None
        history = await tables.by_id(wanted.table.table_id, deadline=deadline)
        return decode_row(tables.codec(history), wanted.key, value)


def unique_index(table: TableDescriptor, by: str) -> Index:
    """The public unique index of this name, or over the column of this name alone."""
    public = [index for index in table.indexes if index.state.public]
    named = [index for index in public if index.name == by]
    column = next((c.id for c in table.schema.columns if c.name == by), None)
    over = [index for index in public if [part.column_id for part in index.columns] == [column]]
    for index in (*named, *over):
        if index.unique:
            return index
    if named or over:
        raise UsageError(
            f"index {(named or over)[0].name} of table {table.name} is not unique: several rows may have one value;"
            f" use scan({table.name!r}, where=[…])",
            by=by,
        )
    for index in table.indexes:
        if index.name == by:
            raise UsageError(f"index {by} of table {table.name} is {index.state.value}: it cannot be read yet")
    known = ", ".join(index.name for index in public if index.unique) or "none"
    raise UsageError(
        f"table {table.name} has no unique index {by!r}, nor one on a column of that name; unique: {known}"
    )


def _values_of(table: TableDescriptor, index: Index, names: list[str], key: object) -> list[object]:
    """The values of an index's columns, from the only one, all in order, or a dict."""
    if isinstance(key, Mapping):
        for name in key:
            table.schema.column(name)
        missing = [name for name in names if name not in key]
        if missing:
            raise UsageError(f"index {index.name} of {table.name} needs a value for {', '.join(missing)}")
        return [key[name] for name in names]
    values = list(key) if isinstance(key, tuple | list) else [key]
    if len(values) != len(names):
        raise UsageError(
            f"index {index.name} of {table.name} is on ({', '.join(names)}): give {len(names)} values",
            given=len(values),
        )
    return values
