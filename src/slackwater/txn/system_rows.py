"""Typed rows of the system's own tables, read and written inside a transaction.

    jobs = SystemRows(JOBS)
    row = await jobs.get(txn, 17)                       a dict, or None
    await jobs.put(txn, row | {"status": "paused"})     blind; committed with the rest of the transaction
    rows = await jobs.scan(kv)                          outside of transactions too

Nodes know the schemas of these tables by heart (`model.system_tables`), so this needs no catalog and works below it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from slackwater.codec.layout import prefix_span
from slackwater.codec.rows import RowCodec
from slackwater.model.system_tables import SYSTEM_TABLES

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.model.schema import TableSchema
    from slackwater.model.spans import Span
    from slackwater.protocol.range.requests import Rows
    from slackwater.txn.coordinator import Transaction


class RowReader(Protocol):
    """What rows are read from: a `Transaction`, or a `KV` for one consistent read outside of transactions."""

    async def get(self, key: bytes, /) -> bytes | None:
        """The value of a key, or None."""
        ...

    async def scan(self, start: bytes, end: bytes, /, *, max_keys: int = 0) -> Rows:
        """Keys and values of `[start, end)` in order."""
        ...


class SystemRows:
    """Rows of one system table."""

    def __init__(self, schema: TableSchema) -> None:
        versions = {known.version: known for known in SYSTEM_TABLES if known.table_id == schema.table_id}
        assert versions[schema.version] == schema, "rows are written by a version that every node knows"
        self.codec = RowCodec(schema, versions)
        self._primary_key = schema.primary_key

    def key(self, *values: object) -> bytes:
        """The key of a row."""
        assert len(values) == len(self._primary_key), "all of a primary key names a row, a part of it names many"
        return self.codec.key(values)

    def span(self, *prefix: object) -> Span:
        """Every row whose primary key begins with these values; the whole table without any."""
        span = prefix_span(self.codec.key(prefix))
        assert span.start < span.end, "a prefix is of a span"
        return span

    async def get(self, reader: RowReader, *values: object) -> dict[str, Any] | None:
        """The row with this primary key, or None."""
        found = await reader.get(self.key(*values))
        return None if found is None else self.codec.decode(found)

    async def scan(self, reader: RowReader, *prefix: object, max_rows: int = 0) -> list[dict[str, Any]]:
        """Rows whose primary key begins with these values, in key order; at most `max_rows` of them, if that is given."""
        span = self.span(*prefix)
        rows = await reader.scan(span.start, span.end, max_keys=max_rows)
        return [self.codec.decode(value) for value in rows.values]

    async def put(self, txn: Transaction, row: Mapping[str, object]) -> None:
        """Write a row, whether or not there is one of this key."""
        await txn.put(*self.codec.encode(row))

    async def delete(self, txn: Transaction, *values: object) -> None:
        """Remove the row with this primary key, if it is there."""
        await txn.delete(self.key(*values))
