"""A row is committed within the life of its table: none at or after the timestamp at which the table was dropped (I-30).

Read off the first apply of each entry, like V: the records of the catalog say when a table was dropped, and every version of a
row says when it was written. Whichever of the two is applied second is compared with the first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.catalog.records import decode_record, descriptors_span, is_version
from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import TABLE, prefix_end, split_table_key, split_version, table_span
from slackwater.hooks import probe
from slackwater.runtime.seam import Family
from slackwater.sim.oracles.replication import _Watcher

if TYPE_CHECKING:
    from slackwater.model.tables import TableDescriptor
    from slackwater.sim.oracles.witness import ApplyEvent

_RECORDS = descriptors_span()
_ID_BYTES = len(table_span(1).start) - len(TABLE)


class TableLives:
    """Since when rows and entries are out of reach, by the records of the catalog as they are first applied."""

    def __init__(self) -> None:
        self._records: dict[int, dict[Timestamp, TableDescriptor]] = {}

    def learn(self, event: ApplyEvent) -> None:
        """Keep the records that an entry brings."""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value and _RECORDS.start <= stored < _RECORDS.end and is_version(split_version(stored)[0]):
                key, ts = split_version(stored)
                record = decode_record(key, value, ts)
                self._records.setdefault(record.table_id, {})[ts] = record

    def gone(self, key: bytes) -> Timestamp:
        """Since when no read reaches a key: its table is dropped or was emptied, or its index is dropped; MAX: it is there."""
        since = MAX
        if TABLE <= key < prefix_end(TABLE):
            table_id, index_id, _ = split_table_key(key)
            for ts, record in sorted(self._records.get(table_id, {}).items()):
                named = index_id == record.schema.index_id or index_id in [index.id for index in record.indexes]
                since = MAX if named and not record.dropped else min(since, ts)
        return since


class WithinItsLife(_Watcher):
    """I-30, of drops."""

    name = "I-30"

    def __init__(self) -> None:
        self._dropped: dict[int, int] = {}
        self._written: dict[int, int] = {}

    def applied(self, event: ApplyEvent) -> None:
        """Compare rows with the ends of their tables."""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value is None:
                continue
            if TABLE <= stored < prefix_end(TABLE):
                key, ts = split_version(stored)
                table_id = int.from_bytes(key[len(TABLE) : len(TABLE) + _ID_BYTES], "big")
                self._written[table_id] = max(self._written.get(table_id, 0), ts)
                self._compare(table_id, event.node)
            elif value and _RECORDS.start <= stored < _RECORDS.end and is_version(split_version(stored)[0]):
                key, ts = split_version(stored)
                record = decode_record(key, value, Timestamp(ts))
                if record.dropped:
                    probe("gateways.dropped")
                    self._dropped[record.table_id] = ts
                    self._compare(record.table_id, event.node)

    def _compare(self, table_id: int, node: str) -> None:
        written, dropped = self._written.get(table_id, 0), self._dropped.get(table_id)
        if dropped is not None and written >= dropped:
            text = f"{node} applied a row of table {table_id} at {written}, and the table was dropped at {dropped}"
            self.violated("row-after-drop", text)
