"""The table as it is now, before its changes: an initial scan that can be stopped and resumed at any page.

    scan_ts = 40      [a ── f) scanned    [f ───────── z) not yet
    frontier               40                   0              token: resolved 0, ahead [a, f) 40, scan_ts 40

One timestamp for the whole scan, however many ranges and however long it takes: rows are read as of `scan_ts`, from any
replica where that is closed, page by page. Each page is handed out as changes at `scan_ts`, and behind it the frontier of
the page's span moves there. Spans at or above `scan_ts` have been scanned; a token carries which (pitfall 28), and a
resumed scan goes on with the others *at the same timestamp*. When nothing is left, a feed `after` the frontier follows.

    scan = InitialScan(kv, frontier, scan_ts=ts)
    async for changes in scan: …; save(scan.token())
    async with client.watch(spans, after=scan.token()) as feed: …

`Scanning` is all of this but the reading of a page, which is of rows here and of columns at gateways (`gateway.initial`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import UsageError
from slackwater.feeds.frontier import token_of
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes

if TYPE_CHECKING:
    from slackwater.feeds.frontier import Frontier
    from slackwater.txn.kv import KV

PAGE_KEYS = 2_000
WAIT_MS = 1_000
"""How long a follower may wait for the timestamp to close before the leaseholder is asked."""


Page = TypeVar("Page")


class Scanning(ABC, Generic[Page]):
    """Pages of the table as of one timestamp; moves the frontier as it goes."""

    def __init__(self, frontier: Frontier, *, scan_ts: Timestamp) -> None:
        if scan_ts <= MIN:
            raise UsageError("an initial scan reads at a timestamp", scan_ts=scan_ts)
        self.frontier = frontier
        self.scan_ts = scan_ts

    @property
    def done(self) -> bool:
        """Whether everything has been scanned and handed out."""
        return self.frontier.resolved >= self.scan_ts

    def token(self) -> str:
        """Where to go on after the pages handed out so far."""
        return token_of(self.frontier, scan_ts=MIN if self.done else self.scan_ts).encode()

    def __aiter__(self) -> Scanning[Page]:
        return self

    async def __anext__(self) -> Page:
        span = next((p.span for p in self.frontier.entries() if p.ts < self.scan_ts), None)
        if span is None:
            raise StopAsyncIteration
        page, upto = await self.read_page(span)
        self.frontier.forward(Span(span.start, upto), self.scan_ts)
        return page

    @abstractmethod
    async def read_page(self, span: Span) -> tuple[Page, bytes]:
        """The next rows of a span, and the key up to which they are all there is."""


class InitialScan(Scanning[Changes]):
    """Pages of rows."""

    def __init__(self, kv: KV, frontier: Frontier, *, scan_ts: Timestamp, page_keys: int = PAGE_KEYS) -> None:
        super().__init__(frontier, scan_ts=scan_ts)
        self._kv = kv
        self._page_keys = page_keys

    async def read_page(self, span: Span) -> tuple[Changes, bytes]:
        """The next rows of a span."""
        rows = await self._kv.scan(
            span.start, span.end, ts=self.scan_ts, max_keys=self._page_keys, follower_ok=True, wait_ms=WAIT_MS
        )
        return Changes(rows.keys, [self.scan_ts] * len(rows.keys), rows.values), rows.resume or span.end
