"""What several tests do with tables: the entries of an index as one call, a version without a column."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog import ladder
from slackwater.catalog.ladder import Rung
from slackwater.catalog.planning import WritePlanner
from slackwater.codec.index_entries import IndexCodec
from slackwater.protocol.client.schema import DropColumn

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.catalog.records import TableRecord
    from slackwater.model.indexes import Index
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableDescriptor


def entries_of(
    table: TableDescriptor,
    index: Index,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    schemas: Iterable[TableSchema] = (),
) -> tuple[list[bytes], list[bytes]]:
    """(keys, values) of the entries that an index has for rows, in the order of the rows.

    Two versions of a table encode one entry with different headers: compare what `IndexCodec.codec.decode` gives, not bytes.
    """
    entry_keys, entries = IndexCodec(table.schema, index).entries(WritePlanner(table, schemas).rows_of(keys, values))
    assert len(entry_keys) == len(keys), "every row has one entry"
    return entry_keys, entries


def without_column(now: TableDescriptor, name: str) -> TableRecord:
    """The next version, with one column less."""
    return ladder.next_record(DropColumn(name), Rung.GONE, now)
