"""Initial scans of change feeds as columns: what replicas keep in columns is sent as it is stored.

    frontier below scan_ts ─► the first span ─► its range ─► ScanArrow ─► page ─► the frontier moves behind it

A page is of one range and of one table, by the version of the table that holds at the scan's timestamp. A table that is not there
then has no rows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import split_table_key, table_span
from slackwater.feeds.initial import WAIT_MS, Scanning
from slackwater.model.changes import InitialPage
from slackwater.model.scan_plan import ScanPlan
from slackwater.protocol.range.bulk import Blocks, ScanArrow
from slackwater.protocol.range.requests import Header
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.clock.timestamp import Timestamp
    from slackwater.feeds.frontier import Frontier
    from slackwater.gateway.node import GatewayNode
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableHistory


class ColumnScan(Scanning[InitialPage]):
    """Pages of columns."""

    def __init__(
        self, node: GatewayNode, frontier: Frontier, tables: Mapping[int, TableHistory], *, scan_ts: Timestamp
    ) -> None:
        """`tables` have every version that may have written a row at or below `scan_ts`."""
        super().__init__(frontier, scan_ts=scan_ts)
        self._node = node
        self._tables = tables
        self._plans: dict[int, bytes] = {}
        self._header = Header(
            NO_RANGE,
            ts=scan_ts,
            follower_ok=True,
            wait_ms=WAIT_MS,
            max_bytes=int(node.settings["gateway.page_bytes"]),
        )

    async def read_page(self, span: Span) -> tuple[InitialPage, bytes]:
        """The next rows of a span."""
        table_id, index_id, _ = split_table_key(span.start)
        history, end = self._tables[table_id], min(span.end, table_span(table_id, index_id).end)
        read = history.at(self.scan_ts)
        if read is None or read.dropped:
            return InitialPage(table_id, history.latest.version, self.scan_ts, 0, []), end
        plan = self._plans.get(table_id)
        if plan is None:
            plan = self._plans[table_id] = ScanPlan(history.schemas(), read.version).encode()
        descriptor = await self._node.sender.range_of(span.start)
        upto = min(end, descriptor.end)
        answer = await self._node.kv.read([ScanArrow(span.start, upto, plan, patches=True)], self._header)
        (found,) = answer.results
        assert isinstance(found, Blocks), found
        page = InitialPage(table_id, read.version, self.scan_ts, found.rows, found.blocks, found.patches)
        return page, found.resume or upto
