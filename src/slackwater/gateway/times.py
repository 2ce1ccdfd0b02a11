"""Which timestamp to read at, how far tables are finished, and what holds them back.

    snapshot    one timestamp for several tables, in one of the forms of `txn.staleness`
    follower    what followers have very likely closed, by the policies of these tables; no node is asked
    resolved    the timestamp up to which nothing in these tables will ever change
    close       have the present closed, so that followers can serve it
    frontier    every replica of every range of these tables: how far, and why not further

A timestamp that is negotiated is never before a table was made: a bound before that is raised to it.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import schema_span
from slackwater.errors import SlackwaterError, UsageError
from slackwater.gateway.closing import check_closing
from slackwater.protocol.client import calls
from slackwater.protocol.closedts.frontier import FRONTIER, ReplicaFrontiersRequest
from slackwater.routing.parallel import in_parallel
from slackwater.txn.staleness import Staleness

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.closedts.frontier import ReplicaFrontier

ASK_TIMEOUT_S = 3.0
ASKED_AT_ONCE_MAX = 16
STALENESS_S_MAX = 1e10
"""Longer than timestamps reach back."""


class Times:
    """Answers questions about time."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def snapshot(self, request: calls.ChooseSnapshot, context: CallContext) -> calls.SnapshotReply:
        """Choose a timestamp."""
        node = self._gateway.node
        forms = (request.at != MIN, request.max_staleness is not None, request.min_timestamp != MIN)
        if sum(forms) > 1:
            raise UsageError("give one of as_of, max_staleness and min_timestamp, not several")
        if request.at != MIN:
            self._gateway.scans.check_past(request.at)
            tables = await self._tables(request.tables, at=request.at)
            return calls.SnapshotReply(request.at, by_followers=False, now=node.clock.now(), tables=tables)
        await self._gateway.reach(Timestamp(max(request.seen, request.floor)))
        tables = await self._tables(request.tables, at=None)
        staleness = self._staleness(request.seen)
        bound = max((h.versions[0].modified for h in tables), default=MIN)
        if request.max_staleness is not None:
            if not 0 <= request.max_staleness <= STALENESS_S_MAX:
                raise UsageError(
                    f"a staleness is a number of seconds from 0 to {STALENESS_S_MAX:.0f}", seconds=request.max_staleness
                )
            bound = max(bound, add_seconds(node.clock.now(), -request.max_staleness))
        bound = Timestamp(max(bound, request.min_timestamp, request.floor))
        if not tables:
            return calls.SnapshotReply(
                staleness.follower_read_timestamp(), by_followers=True, now=node.clock.now(), tables=[]
            )
        spans = [_bounds(schema_span(h.latest.schema)) for h in tables]
        chosen = await staleness.with_min_timestamp(
            bound, spans, nearest_only=request.nearest_only, timeout=context.remaining()
        )
        # Tables may have been changed since they were found, and rows be written by their new versions, at or below this time.
        await self._gateway.catalog.complete_upto(chosen.ts)
        tables = [await self._gateway.catalog.find_id(history.latest.table_id) for history in tables]
        return calls.SnapshotReply(chosen.ts, chosen.by_followers, node.clock.now(), tables)

    async def follower_read_timestamp(self, request: calls.OfTables, context: CallContext) -> calls.TimestampReply:
        """What followers of these tables have very likely closed; without tables, by the cluster's setting."""
        tables = await self._tables(request.tables, at=None) if request.tables else []
        spans = [_bounds(schema_span(h.latest.schema)) for h in tables]
        made = max((h.versions[0].modified for h in tables), default=MIN)
        return calls.TimestampReply(Timestamp(max(made, self._staleness(MIN).follower_read_timestamp(spans))))

    async def resolved(self, request: calls.OfTables, context: CallContext) -> calls.TimestampReply:
        """The lowest resolved timestamp of the nearest replicas of all ranges; tables that close nothing have none."""
        await check_closing(self._gateway.node, await self._tables(request.tables, at=None))
        spans = [_bounds(span) for span in await self._gateway.spans_of(request.tables)]
        if not spans:
            raise UsageError("name at least one table; there is none")
        found = await self._staleness(MIN).resolved(spans, timeout=context.remaining())
        return calls.TimestampReply(Timestamp(min(r.ts for r in found)))

    async def close(self, request: calls.OfTables, context: CallContext) -> calls.TimestampReply:
        """Have a timestamp closed everywhere in these tables."""
        spans = [_bounds(span) for span in await self._gateway.spans_of(request.tables)]
        if not spans:
            raise UsageError("name at least one table; there is none")
        await self._gateway.reach(request.floor)
        if request.at != MIN:
            self._gateway.scans.check_past(request.at)
        at = None if request.at == MIN else request.at
        return calls.TimestampReply(await self._staleness(MIN).close(spans, at=at, timeout=context.remaining()))

    async def frontier(self, request: calls.OfTables, context: CallContext) -> calls.FrontierReply:
        """Ask every node that holds a replica."""
        node = self._gateway.node
        placed: list[tuple[str, RangeDescriptor]] = []
        for history in await self._tables(request.tables, at=None):
            span = schema_span(history.latest.schema)
            found = await node.sender.ranges_of(span.start, span.end, timeout=context.remaining())
            placed += [(history.latest.name, descriptor) for descriptor in found]
        wanted: dict[NodeId, list[RangeId]] = {}
        for _, descriptor in placed:
            for holder in descriptor.replicas:
                wanted.setdefault(holder, []).append(descriptor.range_id)
        works = [partial(self._ask, holder, ranges) for holder, ranges in sorted(wanted.items())]
        answers = await in_parallel(node.scope, works, limit=ASKED_AT_ONCE_MAX, name="frontier")
        known: dict[tuple[int, int], ReplicaFrontier] = {}
        unreachable = []
        for holder, answer in zip(sorted(wanted), answers, strict=True):
            if isinstance(answer, SlackwaterError):
                unreachable.append(int(holder))
            else:
                known.update({(r.range_id, r.node_id): r for r in answer})
        now = node.clock.now()
        rows = [
            _row(table, descriptor, known[descriptor.range_id, holder], now)
            for table, descriptor in placed
            for holder in descriptor.replicas
            if (descriptor.range_id, holder) in known
        ]
        return calls.FrontierReply(rows, unreachable, now)

    async def _ask(self, holder: NodeId, ranges: list[RangeId]) -> list[ReplicaFrontier]:
        node = self._gateway.node
        address = node.book.resolve(holder)
        if address is None:
            raise UsageError(f"the address of n{holder} is not known")
        request = ReplicaFrontiersRequest(ranges)
        reply = await node.dialer.call(address, FRONTIER, request, timeout=ASK_TIMEOUT_S, node_id=holder)
        return reply.replicas

    async def _tables(self, names: Sequence[str], *, at: Timestamp | None) -> list[TableHistory]:
        catalog = self._gateway.catalog
        if not names:
            return await catalog.names(at=at)
        return [await catalog.find(name, at=at) for name in names]

    def _staleness(self, seen: Timestamp) -> Staleness:
        node = self._gateway.node
        staleness = Staleness(sender=node.sender, clock=node.clock, settings=node.settings, policies=node.policies)
        staleness.seen = seen
        return staleness


def _bounds(span: Span) -> tuple[bytes, bytes]:
    return span.start, span.end


def _row(table: str, descriptor: RangeDescriptor, replica: ReplicaFrontier, now: Timestamp) -> calls.FrontierRow:
    return calls.FrontierRow(
        table=table,
        range_id=descriptor.range_id,
        start=descriptor.start,
        end=descriptor.end,
        node=replica.node_id,
        leads=replica.leaseholder == replica.node_id,
        closed=replica.closed,
        resolved=replica.resolved,
        closed_lag_s=seconds_between(replica.closed, now),
        resolved_lag_s=seconds_between(replica.resolved, now),
        reason=replica.reason(now),
    )
