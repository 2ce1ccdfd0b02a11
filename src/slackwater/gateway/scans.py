"""Scans and changes as streams of pages, each of one range and at one timestamp for all.

    start ──► range of start ──► ScanArrow ──► page ──► resume ──► …          one page is made while another is sent

A scan of the present picks the gateway's now, with an uncertainty interval. Should a later page meet a value that may have
been written before the scan began, the scan moves up to it, provided that nothing it has already sent has changed since: a
refresh over what was read, as in a transaction. Where that fails the client is told to scan again.

A scan at a timestamp reads there and nowhere else. With `follower_ok` the nearest replica answers if the timestamp is closed
there, or closes within `wait_ms`; otherwise the leaseholder does, and the page says so; or the scan fails (`nearest_only`).
`wait_ms` is what the whole scan may wait: a follower that is stuck costs it once, not once for every page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, show
from slackwater.codec.layout import schema_span
from slackwater.errors import ReadWithinUncertainty, RetryableError, SlackwaterError, UsageError
from slackwater.gateway import system_views
from slackwater.hooks import probe
from slackwater.model.system_tables import VIEWS, check_not_view
from slackwater.protocol.client import calls
from slackwater.protocol.range.bulk import Blocks, ExportArrow, ScanArrow
from slackwater.protocol.range.requests import Header, Refresh
from slackwater.protocol.range.served import Why
from slackwater.routing.facts import timestamp_of
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from slackwater.gateway.context import CallContext
    from slackwater.gateway.node import GatewayNode
    from slackwater.gateway.service import Gateway
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.runtime.seam import TaskHandle

MOVES_MAX = 100
"""Times one scan of the present may move up."""


class Scans:
    """Pages for clients."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    def scan(self, request: calls.ScanTable, context: CallContext) -> AsyncGenerator[calls.ScanPage, None]:
        """Rows of a span. At a timestamp, the plan says all there is to know of the table: no catalog is asked."""
        self._gateway.check_inside(request.table_id, request.start, request.end)
        policy = request.policy
        if policy.at == MIN:
            return self._scan_now(request, context)
        self.check_past(policy.at)
        if request.table_id in VIEWS:
            return self._view(request, read_header(policy, policy.at), context)
        return self._rows(request, read_header(policy, policy.at)).run(context)

    async def _scan_now(self, request: calls.ScanTable, context: CallContext) -> AsyncGenerator[calls.ScanPage, None]:
        node, policy = self._gateway.node, request.policy
        await self._gateway.reach(policy.floor)
        history = await self._gateway.current(request.table_id, request.version)
        if request.start not in schema_span(history.latest.schema):
            async for page in self._scan_index_now(request, context):
                yield page
            return
        header = present_header(node, policy)
        if request.table_id in VIEWS:
            async for page in self._view(request, header, context):
                yield page
            return
        async for page in self._rows(request, header).run(context):
            yield page

    async def _scan_index_now(
        self, request: calls.ScanTable, context: CallContext
    ) -> AsyncGenerator[calls.ScanPage, None]:
        """Entries of a secondary index as they are now; its version holds wherever the scan moves up to."""
        by = (request.table_id, request.version, request.policy)

        async def again() -> None:
            await self._gateway.present_header(*by)

        async for page in self._rows(request, await self._gateway.present_header(*by), moved=again).run(context):
            yield page

    async def _view(
        self, request: calls.ScanTable, header: Header, context: CallContext
    ) -> AsyncGenerator[calls.ScanPage, None]:
        rows, ts = await system_views.rows_at(
            self._gateway.node.kv, request.table_id, header, timeout=context.remaining()
        )
        yield system_views.page_of(request, rows, ts)

    def _rows(
        self, request: calls.ScanTable, header: Header, *, moved: Callable[[], Awaitable[None]] | None = None
    ) -> Pages:
        def piece(start: bytes, end: bytes) -> Request:
            return ScanArrow(start, end, request.plan, request.patches)

        pages = Pages(self._gateway, header, piece, start=request.start, end=request.end, limit=request.limit)
        pages.moved = moved
        return pages

    def changes(self, request: calls.ReadChanges, context: CallContext) -> AsyncGenerator[calls.ScanPage, None]:
        """Changes in a span."""
        self._gateway.check_inside(request.table_id, request.start, request.end)
        if (known := self._gateway.catalog.tables.by_id(request.table_id)) is not None:
            check_not_view(request.table_id, known.latest.name, what="read as changes")
        if request.after > request.upto:
            raise UsageError("changes are read from an earlier timestamp to a later one")
        self.check_past(request.upto)
        header = read_header(request.policy, request.upto)

        def piece(start: bytes, end: bytes) -> Request:
            return ExportArrow(start, end, request.after, request.upto, request.plan, request.diff)

        return Pages(self._gateway, header, piece, start=request.start, end=request.end, limit=0).run(context)

    def check_past(self, ts: Timestamp) -> None:
        """Refuse a timestamp in the future: what is there may still change."""
        now = self._gateway.node.clock.now()
        if ts > now:
            raise UsageError(f"the future cannot be read: {show(ts)} is after now, {show(now)}", timestamp=ts)


class Pages:
    """One scan on its way."""

    def __init__(
        self,
        gateway: Gateway,
        header: Header,
        piece: Callable[[bytes, bytes], Request],
        *,
        start: bytes,
        end: bytes,
        limit: int,
    ) -> None:
        self._gateway = gateway
        self._header = structs.replace(header, max_bytes=int(gateway.node.settings["gateway.page_bytes"]))
        self._piece = piece
        self._start = start
        self._end = end
        self._limit = limit
        self.moved: Callable[[], Awaitable[None]] | None = None
        """Checks, when the scan moves up, that the version it reads by still holds."""

    async def run(self, context: CallContext) -> AsyncGenerator[calls.ScanPage, None]:
        """Every page, in key order; the next one is made while one is being sent."""
        work: TaskHandle[calls.ScanPage | SlackwaterError] | None = None
        page = await self._page(self._start, context)
        rows = 0
        try:
            while True:
                rows += page.rows
                if page.resume is None or (self._limit and rows >= self._limit):
                    yield structs.replace(page, resume=None)
                    return
                work = self._gateway.node.scope.spawn(self._page_or_error(page.resume, context), name="scan page")
                yield page
                made = await work
                work = None
                if isinstance(made, SlackwaterError):
                    raise made
                page = made
        finally:
            if work is not None:
                work.cancel()

    async def _page_or_error(self, start: bytes, context: CallContext) -> calls.ScanPage | SlackwaterError:
        """A failed page fails the scan, not the node that owns the task."""
        try:
            return await self._page(start, context)
        except SlackwaterError as error:
            return error

    async def _page(self, start: bytes, context: CallContext) -> calls.ScanPage:
        node = self._gateway.node
        for _ in range(MOVES_MAX):
            descriptor = await self._gateway.node.sender.range_of(start, timeout=context.remaining())
            end = min(self._end, descriptor.end)
            asked_ns = node.runtime.clock.monotonic_ns()
            try:
                answer = await node.kv.read([self._piece(start, end)], self._header, timeout=context.remaining())
                page = await self._completed(self._made(answer, end), context)
            except ReadWithinUncertainty as error:
                await self._move(Timestamp(timestamp_of(error, "existing") + 1), start, context)
                continue
            if any(served.why is Why.WAITED for served in answer.served):
                self._waited_ms((node.runtime.clock.monotonic_ns() - asked_ns) // 1_000_000)
            return page
        raise RetryableError("the scan met new rows again and again; scan again, or at a timestamp")

    async def _completed(self, page: calls.ScanPage, context: CallContext) -> calls.ScanPage:
        """A page with all that belongs to it, at the same timestamp; what was scanned is all, here."""
        return page

    def _waited_ms(self, ms: int) -> None:
        """A follower was waited for in vain: the rest of the scan waits that much less."""
        probe("gateway.scan_waited_in_vain")
        self._header = structs.replace(self._header, wait_ms=max(0, self._header.wait_ms - ms))

    async def _move(self, upto: Timestamp, start: bytes, context: CallContext) -> None:
        """Go on at `upto`, if what has been sent is still the same there."""
        probe("gateway.scan_moved")
        if self.moved is not None:
            await self.moved()
        if start > self._start:
            refresh = Refresh(self._start, start, self._header.ts, upto)
            await self._gateway.node.kv.read([refresh], Header(NO_RANGE, ts=upto), timeout=context.remaining())
        self._header = structs.replace(self._header, ts=upto)

    def _made(self, answer: BatchResult, end: bytes) -> calls.ScanPage:
        (found,) = answer.results
        assert isinstance(found, Blocks), found
        resume = found.resume or (end if end < self._end else None)
        return calls.ScanPage(found.blocks, found.rows, self._header.ts, resume, range_reads(answer), found.patches)


def present_header(node: GatewayNode, policy: calls.ReadPolicy) -> Header:
    """The header of a read of the present: at this node's clock, uncertain as far as another clock may be ahead of it."""
    now = node.clock.now()
    limit = add_seconds(now, node.clock.max_offset_us / 1e6)
    return Header(NO_RANGE, ts=now, uncertainty_limit=limit, follower_ok=policy.follower_ok)


def read_header(policy: calls.ReadPolicy, ts: Timestamp) -> Header:
    """The header of reads at a timestamp, by what a client said about where."""
    return Header(
        NO_RANGE,
        ts=ts,
        follower_ok=policy.follower_ok,
        wait_ms=policy.wait_ms,
        nearest_only=policy.nearest_only,
        leader_only=not policy.follower_ok,
    )


def range_reads(answer: BatchResult) -> list[calls.RangeRead]:
    """Which nodes answered, in the client's words."""
    return [
        calls.RangeRead(s.range_id, s.ts, s.node_id, s.by_follower, s.age_s, s.why.value, s.lag_s)
        for s in answer.served
    ]
