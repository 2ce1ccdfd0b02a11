"""Protections as rows of the three system tables, and back. Pure but for the reads and writes it hands on.

    system.protected_ts_meta          true · version · rows · spans               one row, written by every change
    system.protected_ts_timestamps    id · ts · mode · meta_type · meta · …       one per record
    system.protected_ts_spans         id · key · end_key                          one per span

All three lie side by side, in one range as long as it is not split between them: a change commits in one step there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.protection import Metadata, Mode, Record, State
from slackwater.model.spans import Span
from slackwater.model.system_tables import PROTECTED_TS_META, PROTECTED_TS_SPANS, PROTECTED_TS_TIMESTAMPS
from slackwater.model.values import uuid_bytes
from slackwater.txn.system_rows import SystemRows

if TYPE_CHECKING:
    from slackwater.txn.coordinator import Transaction
    from slackwater.txn.system_rows import RowReader

_meta = SystemRows(PROTECTED_TS_META)
_timestamps = SystemRows(PROTECTED_TS_TIMESTAMPS)
_spans = SystemRows(PROTECTED_TS_SPANS)


async def read_metadata(reader: RowReader) -> Metadata:
    """The meta row; a cluster that never protected anything has none, which is version 0."""
    row = await _meta.get(reader, True)
    return Metadata() if row is None else Metadata(row["version"], row["rows"], row["spans"])


async def read_record(reader: RowReader, record_id: bytes) -> Record | None:
    """One record with its spans."""
    row = await _timestamps.get(reader, record_id)
    if row is None:
        return None
    return _record(row, [_span(s) for s in await _spans.scan(reader, record_id)])


async def read_state(reader: RowReader, *, read_at: Timestamp) -> State:
    """Everything, as the reader sees it: a transaction, or one instant."""
    metadata = await read_metadata(reader)
    spans: dict[bytes, list[Span]] = {}
    for row in await _spans.scan(reader):
        spans.setdefault(uuid_bytes(row["id"]), []).append(_span(row))
    rows = await _timestamps.scan(reader)
    return State(metadata, tuple(_record(row, spans.get(uuid_bytes(row["id"]), [])) for row in rows), read_at)


async def write_metadata(txn: Transaction, metadata: Metadata) -> None:
    """The meta row after a change."""
    row = {"_exists": True, "version": metadata.version, "rows": metadata.records, "spans": metadata.spans}
    await _meta.put(txn, row)


async def write_record(txn: Transaction, record: Record) -> None:
    """A record without its spans: new, or changed."""
    row = {
        "id": record.id,
        "ts": record.ts,
        "mode": record.mode.value,
        "meta_type": record.meta_type,
        "meta": record.meta,
        "expires": record.expires or None,
        "created": record.created,
        "user": record.user,
    }
    await _timestamps.put(txn, row)


async def write_spans(txn: Transaction, record: Record) -> None:
    """The spans of a new record."""
    for span in record.spans:
        await _spans.put(txn, {"id": record.id, "key": span.start, "end_key": span.end})


async def delete_record(txn: Transaction, record: Record) -> None:
    """A record and its spans."""
    await _timestamps.delete(txn, record.id)
    for span in record.spans:
        await _spans.delete(txn, record.id, span.start, span.end)


def _span(row: dict[str, Any]) -> Span:
    return Span(row["key"], row["end_key"])


def _record(row: dict[str, Any], spans: list[Span]) -> Record:
    return Record(
        uuid_bytes(row["id"]),
        Timestamp(row["ts"]),
        Mode(row["mode"]),
        row["meta_type"],
        row["meta"] or b"",
        tuple(spans),
        Timestamp(row["expires"] or MIN),
        Timestamp(row["created"]),
        row["user"],
    )
