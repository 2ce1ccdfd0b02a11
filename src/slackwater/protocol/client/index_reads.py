"""Reads by secondary indexes: what a client asks a gateway, which looks the entries up and brings the rows.

    client                                    gateway
    GetByIndex(keys of entries) ────────────► entries ──► keys of rows ──► rows, at one timestamp
    RowsReply(rows as stored)  ◄────────────

The entries that an index scan reads are rows of `model.indexes:index_schema`, so an index that has every column that is wanted
is scanned by `db.scan`; one that has not is joined with its rows by `db.scan_index`.
"""

from __future__ import annotations

import msgspec

from slackwater.model.ids import Small, TableId
from slackwater.protocol.client.calls import ReadPolicy, RowsReply, ScanPage, Write
from slackwater.runtime.access import CLIENTS
from slackwater.runtime.rpc.method import Method, StreamMethod


class GetByIndex(msgspec.Struct, frozen=True):
    """The rows that the entries at some keys of a unique index name, in order; None where there is no entry.

    `version` is the newest version of the table that the client knows; it counts for reads of the present only.
    """

    table_id: TableId
    version: Small
    index_id: Small
    keys: list[bytes]
    policy: ReadPolicy = ReadPolicy()
    txn: bytes = b""
    before: tuple[Write, ...] = ()
    opens: bool = False


class ScanIndex(msgspec.Struct, frozen=True):
    """The rows that the entries of `[start, end)` name, at one timestamp, in the order of the entries.

    `entries` and `rows` are encoded `ScanPlan`s: the first reads the columns of the primary key, by conditions that entries can
    decide; the second reads what is wanted of the rows, by those that they cannot.
    """

    table_id: TableId
    version: Small
    entries: bytes
    rows: bytes
    start: bytes
    end: bytes
    policy: ReadPolicy = ReadPolicy()
    limit: Small = 0
    """Stop soon after this many rows; 0: all."""


GET_BY_INDEX: Method[GetByIndex, RowsReply] = Method("db.get_by_index", GetByIndex, RowsReply, callers=CLIENTS)
SCAN_INDEX: StreamMethod[ScanIndex, ScanPage] = StreamMethod("db.scan_index", ScanIndex, ScanPage, callers=CLIENTS)
