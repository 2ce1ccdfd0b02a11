"""Scans of an index whose entries lack what is wanted: pages of entries, each joined with its rows at the same timestamp.

    entries of a span ──► keys of rows ──► rows, by one message for each range ──► conditions that entries could not decide

The plans of the request say how entries and rows are decoded, so a scan at a timestamp asks no catalog, and any replica that
has the timestamp closed serves both. A scan of the present that meets a value which may have been written before it began moves
up, if nothing has been sent yet; otherwise the client scans again: the rows that were sent are not known any more.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import structs

from slackwater.clock.timestamp import MIN
from slackwater.codec.damage import decode_row
from slackwater.codec.layout import show_key
from slackwater.codec.rows import RowCodec
from slackwater.errors import DecodeError, IndexCorrupted, RetryableError, UsageError
from slackwater.gateway.scans import Pages, range_reads, read_header
from slackwater.hooks import probe
from slackwater.model.scan_plan import decode_plan
from slackwater.protocol.range.bulk import ScanArrow
from slackwater.protocol.range.requests import Get, Header, Value

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.scan_plan import ScanPlan
    from slackwater.protocol.client import calls
    from slackwater.protocol.client.index_reads import ScanIndex
    from slackwater.protocol.range.requests import Request

JOINED_ROWS = 2_000
"""Entries of one page: their rows are asked for together."""
JOINED_ROWS_MIN = 16


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


def index_corrupted(entry: str, row: bytes) -> IndexCorrupted:
    """The error for an entry whose row is not there."""
    return IndexCorrupted(
        f"an entry of {entry} names row {show_key(row)}, which is not there; drop the index and create it again",
        row=row,
    )
