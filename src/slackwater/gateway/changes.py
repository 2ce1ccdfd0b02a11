"""Change feeds of tables for clients: one frontier over all of them, schemas before the rows that need them.

    FeedClient ─► [Changes Changes Checkpoint …] ─► gather what is there ─► catalog complete up to it ─► item ─► client
                                                                               │
                                              new versions of the tables ◄─────┘ go first

Rules
    1  Before a row committed at T is sent, the catalog here is complete up to T, and every version of its table that holds at
       or before T has been sent: the client decodes it with the schema as of T. One read of the catalog, of what is new,
       per gathered block; it also keeps any later schema change from committing below.
    2  The same before a resolved timestamp is sent: no schema change at or below it is news afterwards.
    3  A token goes on from `resolved`: whatever was sent above it comes again, because a consumer may have kept only what is
       resolved. A position stands behind everything that was sent before it; it is for the client, which has all of that in
       its hands and goes on with another gateway. The consumer's progress is what it has *taken*: the stream
       has a window, and a consumer that stops taking stops this feed, its buffers and its protection, in that order.

`until` and `stop`: nothing above is sent; the feed ends once all of it up to there is (`stop`: up to and including the
schema change's own timestamp, so that resuming goes on behind it). `backfill`: when the feed reaches the change at T, the
resolved timestamp waits at T - 1 while the table as of T is sent under its new schema; broken off, that starts again.

A table whose closing is off is never resolved: its feed is refused, or ends, with an error that says why (`closing`).

What the feed may still need is protected from collection (`feeds.protection`), also for a while after its consumer went away, and
its lag is a metric of this node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds, show
from slackwater.codec.changes_arrow import check_followable
from slackwater.codec.layout import schema_span
from slackwater.errors import Overloaded, UsageError
from slackwater.feeds.client import Checkpoint, SpanFeed
from slackwater.feeds.frontier import Frontier, Token, decode_token, frontier_from, token_of
from slackwater.feeds.initial import InitialScan
from slackwater.feeds.protection import FeedProtection, ProtectionPolicy
from slackwater.gateway.closing import check_closing
from slackwater.gateway.initial import ColumnScan
from slackwater.gateway.tables import owner_of
from slackwater.hooks import probe
from slackwater.model.changes import Changes, joined
from slackwater.model.spans import SpanSet
from slackwater.model.system_tables import check_not_view
from slackwater.protocol.client.changes import CHANGES, INITIAL_SCANS, SCHEMA_POLICIES, ChangesItem, OpenChanges
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator

    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.runtime.rpc.server import RpcServer

GATHER_BYTES = 256 << 10
"""About how much goes into one message; a consumer that stops taking has `rpc.stream_window` of them before it."""
CHECK_INTERVAL_S = 5.0
"""How often a feed looks at its protection, and at the policies of its tables."""
CATALOG_INTERVAL_S = 0.05
"""One feed has the catalog read this often at most. A read costs about what a small write does."""
TABLES_MAX = 1_000
"""Tables of one feed."""
AHEAD_MAX_S = 10.0
"""How far in the future a feed may begin: commits of leading tables, and of nodes whose clocks are ahead, are a little there."""
FEEDS_MAX = 1_000
"""Feeds that one gateway runs; a client that is refused asks another one."""


class ChangeFeeds:
    """Serves `db.changes`."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._made = 0

    def serve(self, server: RpcServer) -> None:
        """Offer the method."""
        server.handle_stream(CHANGES, self.changes)

    async def changes(self, request: OpenChanges, context: CallContext) -> AsyncGenerator[ChangesItem, None]:
        """Follow tables until the client goes away or everything asked for is there."""
        _check(request)
        known = self._gateway.node.feed_client.protections
        if len(known) >= FEEDS_MAX:
            raise Overloaded("this node runs as many change feeds as it may; ask another one", limit=FEEDS_MAX)
        self._made += 1
        histories = await self._histories(request)
        if request.initial_scan != "only" and not request.until:  # with an end it may be resolved that far already
            await check_closing(self._gateway.node, histories)
        feed = TableFeed(self._gateway, request, histories, name=f"changes {self._made}")
        protection = known[feed.name] = self._protection(request, feed, context)
        feed.protection = protection
        finished = False
        try:
            await protection.begin(feed.since, former=feed.former)
            async for item in feed.items():
                yield item
                finished = item.done
        finally:
            known.pop(feed.name, None)
            await protection.end(finished=finished)

    async def _histories(self, request: OpenChanges) -> list[TableHistory]:
        catalog, start = self._gateway.catalog, _start(request)
        found = [await catalog.find_id(table_id) for table_id in request.table_ids]
        for name in request.tables if not found else ():
            try:
                found.append(await catalog.find(name))
            except UsageError:
                if start == MIN:
                    raise
                found.append(await catalog.find(name, at=start))  # dropped since: its changes until then are there
        for history in found:
            check_not_view(history.latest.table_id, history.latest.name, what="followed")
            check_followable(history.latest.schema)
        return found

    def _protection(self, request: OpenChanges, feed: TableFeed, context: CallContext) -> FeedProtection:
        policy = ProtectionPolicy.FAIL if request.expires_after_s else ProtectionPolicy.KEEP
        return FeedProtection(
            self._gateway.node.feed_protector,
            list(feed.spans),
            owner=f"{feed.name} of {context.peer or 'a client'}",
            clock=self._gateway.node.clock,
            user=owner_of(context) or "",
            policy=policy,
            expires_after_s=request.expires_after_s,
        )


class TableFeed:
    """One client's feed."""

    def __init__(self, gateway: Gateway, request: OpenChanges, histories: list[TableHistory], *, name: str) -> None:
        self.name = name
        self.protection: FeedProtection | None = None
        self._node = gateway.node
        self._catalog = gateway.catalog
        self._request = request
        self._known = {history.latest.table_id: history for history in histories}
        now = self._node.clock.now()
        token = decode_token(request.token) if request.token else None
        start = (request.after or now) if token is None else token.scan_ts or token.resolved
        self.since = start
        """Schema changes after this are news to the client."""
        self.spans = SpanSet(schema_span((h.at(start) or h.versions[0]).schema) for h in histories)
        """Where rows lie as of the start; a table that is emptied has its rows elsewhere from then on (`_emptied`)."""
        self.former = b"" if token is None else token.protection
        """The protection of the feed that this one goes on with."""
        self._scan_ts = MIN if token is None else token.scan_ts
        if token is None and request.initial_scan != "no":
            self._scan_ts = start
        if start > add_seconds(now, AHEAD_MAX_S):
            raise UsageError(f"a feed begins in the past: {show(start)} is long after now, {show(now)}", after=start)
        if self._scan_ts > now:
            raise UsageError("an initial scan reads the past; give `after` a time that has come, or leave it out")
        fresh = Frontier(self.spans, after=MIN if self._scan_ts else start)
        self._frontier = fresh if token is None else frontier_from(token, self.spans)
        self._until = request.until or MAX
        self._emptied = MAX
        """When a table was emptied: the feed ends there without being done, and its client comes again with the token."""
        self._sent = MIN if self._scan_ts else start
        self._sent_ns = self._node.runtime.clock.monotonic_ns()
        self._looked_ns = self._sent_ns
        self._read_ns = 0
        self._backfills: list[TableDescriptor] = []

    async def items(self) -> AsyncIterator[ChangesItem]:
        """Everything the client gets."""
        position = self._position(self._frontier, scan_ts=self._scan_ts)
        yield ChangesItem(
            tables=tuple(self._known.values()),
            since=self.since,
            resolved=self._frontier.resolved,
            token=self._token(self._frontier.resolved, scan_ts=self._scan_ts),
            position=position,
        )
        if self._scan_ts:
            async for news in self._news(self._scan_ts):
                yield news
            async for item in self._scanned(self._frontier, self._scan_ts):
                resolved = self._frontier.resolved
                scan_ts = MIN if resolved >= self._scan_ts else self._scan_ts
                token, position = (
                    self._token(resolved, scan_ts=scan_ts),
                    self._position(self._frontier, scan_ts=scan_ts),
                )
                yield msgspec.structs.replace(item, token=token, position=position, resolved=resolved)
        if self._request.initial_scan == "only" or self._frontier.resolved >= self._until:
            yield self._checkpoint(self._frontier.resolved, done=True)
            return
        for history in list(self._known.values()):  # what has changed since a token was made
            self._note(history)
        after = token_of(self._frontier)
        async with self._node.feed_client.watch(
            self.spans, after=after, befores=self._request.befores, name=self.name
        ) as feed:
            async for item in self._follow(feed):
                yield item

    async def _follow(self, feed: SpanFeed) -> AsyncIterator[ChangesItem]:
        while True:
            rows = await self._gather(feed)
            await self._look_after()
            due = self._due(feed)
            if len(rows):
                async for item in self._news(Timestamp(max(rows.timestamps))):
                    yield item
                rows = self._below(rows)
            if len(rows):
                yield ChangesItem(rows=rows)
            if not due:
                continue
            resolved = feed.resolved
            async for item in self._news(resolved):
                yield item
            async for item in self._backfilled(resolved):
                yield item
            over = resolved >= self._end
            done = over and self._end == self._until
            yield self._checkpoint(self._end if over else resolved, feed=None if over else feed, done=done)
            if self.protection is not None:
                await self.protection.advance(self._sent)
                await self.protection.check()
            if over:
                return

    async def _gather(self, feed: SpanFeed) -> Changes:
        """What is there, as one block; waits for something. Checkpoints are in the feed's frontier."""
        blocks: list[Changes] = []
        size = 0
        while size < GATHER_BYTES and (feed.ready or not blocks):
            try:
                async with timeout(CHECK_INTERVAL_S):
                    event = await anext(feed)
            except TimeoutError:
                await self._look_after()
                continue
            if isinstance(event, Checkpoint):
                if self._due(feed):
                    break
            else:
                blocks.append(event)
                size += event.size()
        return joined(blocks)

    async def _look_after(self) -> None:
        """Every few seconds: end the feed if it lagged for too long, or can resolve nothing any more."""
        now_ns = self._node.runtime.clock.monotonic_ns()
        if now_ns - self._looked_ns < CHECK_INTERVAL_S * 1e9:
            return
        self._looked_ns = now_ns
        if self.protection is not None:
            await self.protection.check()
        await check_closing(self._node, self._known.values())

    def _due(self, feed: SpanFeed) -> bool:
        """Whether a resolved timestamp is to be sent now."""
        if feed.resolved <= self._sent:
            return False
        waited_s = (self._node.runtime.clock.monotonic_ns() - self._sent_ns) / 1e9
        return waited_s >= self._request.interval_s or feed.resolved >= self._end

    @property
    def _end(self) -> Timestamp:
        """Up to here the feed goes, inclusive."""
        return Timestamp(min(self._until, self._emptied))

    def _checkpoint(self, resolved: Timestamp, *, feed: SpanFeed | None = None, done: bool = False) -> ChangesItem:
        self._sent = resolved
        self._sent_ns = self._node.runtime.clock.monotonic_ns()
        position = "" if feed is None or self._request.whole else self._position(feed.frontier)
        return ChangesItem(resolved=resolved, token=self._token(resolved), position=position, done=done)

    def _token(self, resolved: Timestamp, *, scan_ts: Timestamp = MIN) -> str:
        """The token of a feed that has resolved so far: it goes on from there, or begins its initial scan again."""
        return Token(resolved, scan_ts=scan_ts, protection=self._kept).encode()

    def _position(self, frontier: Frontier, *, scan_ts: Timestamp = MIN) -> str:
        """Behind everything that was sent."""
        return msgspec.structs.replace(token_of(frontier, scan_ts=scan_ts), protection=self._kept).encode()

    @property
    def _kept(self) -> bytes:
        return b"" if self.protection is None else self.protection.name

    def _below(self, rows: Changes) -> Changes:
        if max(rows.timestamps) <= self._end:
            return rows
        return rows.pick([at for at, ts in enumerate(rows.timestamps) if ts <= self._end])

    # --- schemas

    async def _news(self, upto: Timestamp) -> AsyncIterator[ChangesItem]:
        """Versions of the tables that hold at or below `upto` and have not been sent."""
        await self._complete_upto(upto)
        news = []
        for table_id, known in self._known.items():
            history = await self._catalog.find_id(table_id)
            if history.latest.version > known.latest.version:
                news.append(history)
        for history in news:
            probe("gateway.changes_schema")
            self._known[history.latest.table_id] = history
            self._note(history)
        if news:
            yield ChangesItem(tables=tuple(news))

    async def _complete_upto(self, ts: Timestamp) -> None:
        """Have the catalog complete; it is read so often and no oftener, and what is committed meanwhile gathers."""
        if self._catalog.tables.upto >= ts:
            return
        clock = self._node.runtime.clock
        wait_s = CATALOG_INTERVAL_S - (clock.monotonic_ns() - self._read_ns) / 1e9
        if wait_s > 0:
            await clock.sleep(wait_s)
        self._read_ns = clock.monotonic_ns()
        await self._catalog.complete_upto(ts)

    def _note(self, history: TableHistory) -> None:
        """What a new version means for this feed."""
        fresh = [v for v in history.visible_changes() if v.modified > self.since]
        if not fresh:
            return
        for emptied in history.emptied():
            if emptied.modified > self.since:
                probe("gateway.changes_emptied")
                self._emptied = Timestamp(min(self._emptied, emptied.modified))
        if self._request.on_schema_change == "stop":
            self._until = Timestamp(min(self._until, fresh[0].modified))
        elif self._request.on_schema_change == "backfill":
            noted = {(v.table_id, v.version) for v in self._backfills}
            add = [v for v in fresh if not v.dropped and v.modified > self._sent]
            self._backfills += [v for v in add if (v.table_id, v.version) not in noted]
            self._backfills.sort(key=lambda v: v.modified)

    async def _backfilled(self, resolved: Timestamp) -> AsyncIterator[ChangesItem]:
        """The tables that have changed at or below `resolved`, as of then."""
        while self._backfills and self._backfills[0].modified <= min(resolved, self._end):
            version = self._backfills.pop(0)
            before = Timestamp(version.modified - 1)
            if before > self._sent:
                yield self._checkpoint(before)
            frontier = Frontier([schema_span(version.schema)], after=before)
            async for item in self._scanned(frontier, version.modified):
                yield item

    async def _scanned(self, frontier: Frontier, scan_ts: Timestamp) -> AsyncIterator[ChangesItem]:
        """The tables of a frontier as of one timestamp, page by page."""
        if self._request.columns:
            async for page in ColumnScan(self._node, frontier, self._known, scan_ts=scan_ts):
                yield ChangesItem(page=page, initial=True)
        else:
            async for rows in InitialScan(self._node.kv, frontier, scan_ts=scan_ts):
                yield ChangesItem(rows=rows, initial=True)


def _start(request: OpenChanges) -> Timestamp:
    return decode_token(request.token).resolved if request.token else request.after


def _check(request: OpenChanges) -> None:
    if request.initial_scan not in INITIAL_SCANS:
        raise UsageError(f"initial_scan is one of {', '.join(INITIAL_SCANS)}", initial_scan=request.initial_scan)
    if request.on_schema_change not in SCHEMA_POLICIES:
        raise UsageError(f"on_schema_change is one of {', '.join(SCHEMA_POLICIES)}", got=request.on_schema_change)
    count = len(request.table_ids) or len(request.tables)
    if not 1 <= count <= TABLES_MAX:
        raise UsageError(f"a feed follows from 1 to {TABLES_MAX} tables", tables=count)
