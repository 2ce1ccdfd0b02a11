"""Reads by secondary indexes: entries, then the rows that they name, both at one timestamp.

Rows by keys of a unique index (`IndexReads`):

    now, all here      both reads in the step in which the request arrives: nothing can come between them
    now                at this gateway's clock; a value that may have been written before the read began moves both up
    at a timestamp     there and nowhere else, by any replica that can
    transaction        as the transaction sees it, its own writes included

Scans of an index whose entries lack what is wanted (`IndexScans`), in pages of entries:

    entries of a span ──► keys of rows ──► rows, by one message for each range ──► conditions that entries could not decide

The plans of a scan say how entries and rows are decoded, so a scan at a timestamp asks no catalog, and any replica that
has the timestamp closed serves both. A scan of the present that meets a value which may have been written before it began moves
up, if nothing has been sent yet; otherwise the client scans again: the rows that were sent are not known any more.

An entry whose row is not there is no answer but an error: the index does not fit its table (I-30).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.damage import decode_row
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import show_key
from slackwater.codec.rows import RowCodec
from slackwater.errors import DecodeError, IndexCorrupted, ReadWithinUncertainty, RetryableError, UsageError
from slackwater.gateway.planned_writes import read_keys
from slackwater.gateway.rows import KEYS_PER_GET_MAX
from slackwater.gateway.scans import MOVES_MAX, Pages, range_reads, read_header
from slackwater.hooks import probe
from slackwater.model.scan_plan import decode_plan
from slackwater.protocol.client import calls
from slackwater.protocol.client.index_reads import GET_BY_INDEX, SCAN_INDEX
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.protocol.range.requests import Get, Header, Value
from slackwater.routing.facts import timestamp_of

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.scan_plan import ScanPlan
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client.index_reads import GetByIndex, ScanIndex
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.runtime.rpc.server import RpcServer

CODECS_KEPT_MAX = 1024
JOINED_ROWS = 2_000
"""Entries of one page: their rows are asked for together."""
JOINED_ROWS_MIN = 16


class IndexReads:
    """Looks rows up by unique indexes."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.scans = IndexScans(gateway)
        self._codecs: dict[tuple[int, int, int], IndexCodec] = {}

    def serve(self, server: RpcServer) -> None:
        """Answer clients."""
        server.handle(GET_BY_INDEX, self.get, at_once=self.get_at_once)
        server.handle_stream(SCAN_INDEX, self.scans.scan)

    def get_at_once(self, request: GetByIndex, context: CallContext) -> calls.RowsReply | None:
        """Read entries and rows in this very step, where ranges led here have them."""
        gateway, policy = self._gateway, request.policy
        if request.txn or policy.at != MIN or policy.follower_ok or not 0 < len(request.keys) <= KEYS_PER_GET_MAX:
            return None
        history, lease = gateway.known(request.table_id), gateway.catalog.leases.find(request.table_id, request.version)
        if history is None or history.latest.version != request.version or lease is None:
            return None
        self._check(request)
        if policy.floor > gateway.node.clock.latest:
            return None
        entries = gateway.node.kv.get_at_once(request.keys)
        if entries is None:
            return None
        places, keys = named_rows(self._codec(history, request.index_id), _values(entries))
        if not keys and entries.ts < lease.deadline:
            return calls.RowsReply([None] * len(request.keys), entries.ts, range_reads(entries))
        rows = gateway.node.kv.get_at_once(keys)
        if rows is None or rows.ts >= lease.deadline:
            return None
        found = self._joined(request, places, keys, _values(rows))
        return calls.RowsReply(found, rows.ts, [*range_reads(entries), *range_reads(rows)])

    async def get(self, request: GetByIndex, context: CallContext) -> calls.RowsReply:
        """Rows by the keys of their entries."""
        gateway, policy = self._gateway, request.policy
        if not 0 < len(request.keys) <= KEYS_PER_GET_MAX:
            raise UsageError(f"ask for 1 to {KEYS_PER_GET_MAX} rows at a time", keys=len(request.keys))
        self._check(request)
        await gateway.reach(policy.floor)
        named = (request.table_id, request.version)
        if request.txn and (own := gateway.txns.own_table(request.txn, context, *named)) is not None:
            return await self._get_in_txn(request, codec_of(own.history, request.index_id), context)
        if policy.at == MIN:
            history = await gateway.current(request.table_id, request.version)
        else:
            history = await gateway.catalog.find_id(request.table_id, version=request.version)
        codec = self._codec(history, request.index_id)
        if request.txn:
            return await self._get_in_txn(request, codec, context)
        if policy.at == MIN:
            header = await gateway.present_header(request.table_id, request.version, policy)
        else:
            gateway.scans.check_past(policy.at)
            header = read_header(policy, policy.at)
        for _ in range(MOVES_MAX):
            try:
                return await self._get_at(request, codec, header, context)
            except ReadWithinUncertainty as error:
                probe("gateway.index_read_moved")
                await gateway.present_header(request.table_id, request.version, policy)
                header = structs.replace(header, ts=Timestamp(timestamp_of(error, "existing") + 1))
        raise RetryableError("the read met new rows again and again; read again, or at a timestamp")

    async def _get_at(
        self, request: GetByIndex, codec: IndexCodec, header: Header, context: CallContext
    ) -> calls.RowsReply:
        """Entries and rows at one timestamp."""
        kv = self._gateway.node.kv
        entries = await kv.read([Get(key) for key in request.keys], header, timeout=context.remaining())
        places, keys = named_rows(codec, _values(entries))
        if not keys:
            return calls.RowsReply([None] * len(request.keys), header.ts, range_reads(entries))
        rows = await kv.read([Get(key) for key in keys], header, timeout=context.remaining())
        found = self._joined(request, places, keys, _values(rows))
        return calls.RowsReply(found, header.ts, [*range_reads(entries), *range_reads(rows)])

    async def _get_in_txn(self, request: GetByIndex, codec: IndexCodec, context: CallContext) -> calls.RowsReply:
        async with self._gateway.txns.using(request, context) as open_txn:
            await open_txn.reads_by(self._gateway, request.table_id, request.version)
            entries = await read_keys(open_txn.txn, request.keys)
            places, keys = named_rows(codec, [entries[key] for key in request.keys])
            rows = await read_keys(open_txn.txn, keys)
            found = self._joined(request, places, keys, [rows[key] for key in keys])
            return calls.RowsReply(found, open_txn.txn.state.read_ts, mark=open_txn.mark())

    def _joined(
        self, request: GetByIndex, places: Sequence[int], keys: Sequence[bytes], rows: Sequence[bytes | None]
    ) -> list[bytes | None]:
        """The rows in the places of their entries."""
        found: list[bytes | None] = [None] * len(request.keys)
        for place, key, row in zip(places, keys, rows, strict=True):
            if row is None:
                raise index_corrupted(show_key(request.keys[place]), key)
            found[place] = row
        return found

    def _check(self, request: GetByIndex) -> None:
        self._gateway.check_inside(request.table_id, min(request.keys), max(request.keys) + b"\x00")

    def _codec(self, history: TableHistory, index_id: int) -> IndexCodec:
        """How the entries of an index are decoded, whichever version wrote them."""
        name = (history.latest.table_id, index_id, history.latest.version)
        codec = self._codecs.get(name)
        if codec is None:
            if len(self._codecs) >= CODECS_KEPT_MAX:
                self._codecs.clear()
            codec = self._codecs[name] = codec_of(history, index_id)
        return codec


class IndexScans:
    """Pages of rows that are found by the entries of an index."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def scan(self, request: ScanIndex, context: CallContext) -> AsyncGenerator[calls.ScanPage, None]:
        """Rows in the order of their entries."""
        gateway, policy = self._gateway, request.policy
        gateway.check_inside(request.table_id, request.start, request.end)
        entries, rows = decode_plan(request.entries), decode_plan(request.rows)
        if {entries.schema().table_id, rows.schema().table_id} != {request.table_id}:
            raise UsageError("the plans of an index scan are of another table", table_id=request.table_id)
        if policy.at == MIN:
            await gateway.reach(policy.floor)
            header = await gateway.present_header(request.table_id, request.version, policy)
        else:
            gateway.scans.check_past(policy.at)
            header = read_header(policy, policy.at)
        async for page in JoinedPages(gateway, header, request, entries, rows).run(context):
            yield page


class JoinedPages(Pages):
    """One scan of an index, joined with its table, on its way."""

    def __init__(self, gateway: Gateway, header: Header, request: ScanIndex, entries: ScanPlan, rows: ScanPlan) -> None:
        def piece(start: bytes, end: bytes) -> Request:
            return ScanArrow(start, end, request.entries)

        super().__init__(gateway, header, piece, start=request.start, end=request.end, limit=request.limit)
        wanted = min(max(request.limit, JOINED_ROWS_MIN), JOINED_ROWS) if request.limit else JOINED_ROWS
        self._header = structs.replace(self._header, max_keys=wanted)
        self._by = (request.table_id, request.version, request.policy)
        self._entries = entries
        self._rows = rows
        self._codec = RowCodec(rows.schema(), {schema.version: schema for schema in rows.schemas})

    async def _completed(self, page: calls.ScanPage, context: CallContext) -> calls.ScanPage:
        """The rows that the entries of a page name, in their order."""
        keys = self._keys(page)
        if not keys:
            return structs.replace(page, blocks=[], rows=0)
        kv, header = self._gateway.node.kv, structs.replace(self._header, max_keys=0, max_bytes=0)
        answer = await kv.read([Get(key) for key in keys], header, timeout=context.remaining())
        values = [found.value if isinstance(found, Value) else None for found in answer.results]
        if None in values:
            raise index_corrupted(self._entries.schema().name, keys[values.index(None)])
        made = await self._gateway.node.runtime.offload(self._decoded, keys, values)
        blocks, count = made
        return structs.replace(page, blocks=blocks, rows=count, reads=[*page.reads, *range_reads(answer)])

    def _keys(self, page: calls.ScanPage) -> list[bytes]:
        from slackwater.codec.bulk_arrow import plan_schema, unpack  # pyarrow only when it is used
        from slackwater.codec.keys_arrow import encode_keys

        keys: list[bytes] = []
        for batch in unpack(page.blocks, plan_schema(self._entries)):
            if batch.num_rows:
                columns = [batch.column(name) for name in self._codec.key_names]
                keys += encode_keys(self._codec.prefix, self._codec.key_types, columns)
        return keys

    def _decoded(self, keys: Sequence[bytes], values: Sequence[Any]) -> tuple[list[memoryview], int]:
        """The rows as blocks, and how many satisfy the conditions that are left. Long work: off the loop."""
        from slackwater.codec.bulk_arrow import pack
        from slackwater.codec.rows_arrow import BlockDecoder

        plan = self._rows
        versions = {schema.version: schema for schema in plan.schemas}
        try:
            batch = BlockDecoder(plan.schema(), versions, plan.columns, plan.predicates).decode(values)
        except DecodeError:
            for key, value in zip(keys, values, strict=True):
                decode_row(self._codec, key, value)  # says which one
            raise
        return [pack(batch)] if batch.num_rows else [], batch.num_rows

    async def _move(self, upto: Timestamp, start: bytes, context: CallContext) -> None:
        """Go on at `upto`, if nothing has been sent."""
        if start > self._start:
            probe("gateway.index_scan_again")
            raise RetryableError("an index scan met a row that may be older than it is; scan again, or at a timestamp")
        probe("gateway.index_scan_moved")
        await self._gateway.present_header(*self._by)
        self._header = structs.replace(self._header, ts=upto)


def codec_of(history: TableHistory, index_id: int) -> IndexCodec:
    """The codec of an index by the newest version of its table that has it."""
    for version in reversed(history.versions):
        for index in version.indexes:
            if index.id == index_id:
                return IndexCodec(version.schema, index, history.schemas())
    raise UsageError(f"table {history.latest.name} has no index of this id", index_id=index_id)


def named_rows(codec: IndexCodec, entries: Sequence[bytes | None]) -> tuple[list[int], list[bytes]]:
    """The places at which there is an entry, and the key of the row that each names."""
    places = [place for place, entry in enumerate(entries) if entry is not None]
    return places, [codec.row_key(entry) for entry in entries if entry is not None]


def _values(answer: BatchResult) -> list[bytes | None]:
    return [found.value if isinstance(found, Value) else None for found in answer.results]


def index_corrupted(entry: str, row: bytes) -> IndexCorrupted:
    """The error for an entry whose row is not there."""
    return IndexCorrupted(
        f"an entry of {entry} names row {show_key(row)}, which is not there; drop the index and create it again",
        row=row,
    )
