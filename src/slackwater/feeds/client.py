"""A feed over any spans, wherever their ranges are and wherever they go: one frontier, one stream of events.

    async with client.watch([span], after=ts) as feed:          # or after=token
        async for event in feed:
            match event:
                case Changes():     …                           # committed versions, per key in order
                case Checkpoint():  save(feed.token())          # what came before is whole up to event.resolved

    spans ─► place: look the range up, nearest replica first, register ─► n1  r5 r9 ─┐
                 ▲                                                        n2  r7    ─┴─► queue (bounded) ─► the reader
                 └── Ended, lost connection, silence: again, from where that registration stood

Each piece of a range has a registration of its own, with the timestamp up to which everything of it has been *received*; when
it ends, for whatever reason, the piece is placed again from exactly there. The frontier, and so the token, follows what
the reader has *taken*: it moves when a checkpoint is handed out, behind all changes that came before it.

The nearest replica serves, leader or follower. One that cannot be reached, does not have the range or has been silent
for `feed.stall_timeout` is passed over for a while. What a node refuses teaches the sender's range cache, as for any request.

Flow: a reader that is slow fills the queue up to `feed.client_bytes_max`; then nothing more is read from the nodes, their
windows close, and it is the nodes' budget that cuts the slowest off (SLOW_CONSUMER), to be placed again once there is room.

The feed ends by itself only where resuming cannot help: `BelowGcThreshold`. Everything else is a pause.
"""

from __future__ import annotations

from collections import deque
from contextlib import aclosing, suppress
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MIN, Timestamp, show
from slackwater.errors import ProtocolError, RangeMismatch, SlackwaterError, UnavailableError, UsageError
from slackwater.feeds.frontier import Frontier, Progress, Token, decode_token, frontier_from, token_of
from slackwater.hooks import probe
from slackwater.model.retention import too_old
from slackwater.model.spans import Span, SpanSet
from slackwater.protocol.feeds.events import Changes, Ended, Event, Next, Resolved
from slackwater.protocol.feeds.messages import SESSION_BYTES, DropFeed, OpenFeed, RegisterFeed
from slackwater.routing.facts import descriptors_of
from slackwater.runtime.retry import Backoff
from slackwater.runtime.sync import CancelledError, Future, Semaphore, get_running_loop, timeout
from slackwater.runtime.sync import Event as Signal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.feeds.links import Links
    from slackwater.feeds.protection import FeedProtection
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId
    from slackwater.protocol.feeds.messages import FeedItems
    from slackwater.routing.sender import RangeSender
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings

OPEN_TIMEOUT_S = 5.0
PLACING_MAX = 16
"""Pieces looked up and registered at the same time."""
WATCH_INTERVAL_S = 1.0
STALLS_DOUBLED_MAX = 4
"""A piece that stays silent wherever it is placed is given up to 2 ** this times the patience."""


class Checkpoint(NamedTuple):
    """Everything of these spans up to these timestamps has been handed out before."""

    progress: tuple[Progress, ...]
    resolved: Timestamp
    """Of the whole feed: the minimum over all its spans."""
    moved: bool
    """Whether that is further than at the checkpoint before."""


class _Registration:
    """A piece of one range on one node."""

    __slots__ = ("heard_ns", "link", "span", "stalls", "ts")

    def __init__(self, span: Span, ts: Timestamp, link: _Link, *, heard_ns: int, stalls: int) -> None:
        self.span = span
        self.ts = ts
        """Everything at or below has been received."""
        self.link = link
        self.heard_ns = heard_ns
        self.stalls = stalls


class _Link:
    """The stream from one node."""

    def __init__(self, node_id: NodeId, session: bytes) -> None:
        self.node_id = node_id
        self.session = session
        self.ended = False
        self.open: Future[None] = get_running_loop().create_future()


class FeedClient:
    """Makes feeds. One per node or client process; background work is owned by `scope`."""

    def __init__(
        self, *, sender: RangeSender, links: Links, runtime: Runtime, settings: Settings, scope: TaskScope
    ) -> None:
        self.sender = sender
        self.links = links
        self.runtime = runtime
        self.settings = settings
        self.protections: dict[str, FeedProtection] = {}
        """Of the feeds made here that keep history, by name: for metrics."""
        self._scope = scope
        self._made = 0

    def watch(
        self,
        spans: SpanSet | Iterable[Span],
        *,
        after: Timestamp | Token | str = MIN,
        befores: bool = False,
        quiet: bool = False,
        name: str = "",
    ) -> SpanFeed:
        """A feed of every version of `spans` with ts > after, or after where a token left off. Enter it to start.

        `befores` asks for what each version replaced; a `quiet` feed gets its checkpoints seldom.
        """
        watched = spans if isinstance(spans, SpanSet) else SpanSet(spans)
        token = decode_token(after) if isinstance(after, str) else after
        frontier = frontier_from(token, watched) if isinstance(token, Token) else Frontier(watched, after=token)
        self._made += 1
        name = name or f"feed {self._made}"
        return SpanFeed(self, frontier, befores=befores, quiet=quiet, name=name, scope=self._scope)


class SpanFeed:
    """One consumer's feed. `async with` it, then iterate."""

    def __init__(
        self, client: FeedClient, frontier: Frontier, *, befores: bool, quiet: bool, name: str, scope: TaskScope
    ) -> None:
        self.frontier = frontier
        """How far everything handed out reaches, span by span."""
        self.name = name
        self._client = client
        self._sender = client.sender
        self._runtime = client.runtime
        self._settings = client.settings
        self._befores = befores
        self._quiet = quiet
        self._parent = scope
        self._scope: TaskScope | None = None
        self._numbers = 0
        self._links: dict[NodeId, _Link] = {}
        self._registrations: dict[int, _Registration] = {}
        self._turns = Semaphore(PLACING_MAX)
        self._queue: deque[tuple[Changes | list[Progress], int]] = deque()
        self._bytes = 0
        self._filled = Signal()
        self._room = Signal()
        self._room.set()
        self._failure: SlackwaterError | None = None

    # --- for the reader ----------------------------------------------------------------------------------------------

    async def __aenter__(self) -> SpanFeed:
        if self._scope is not None:
            raise UsageError("a feed is entered once; make another from its token")
        self._scope = self._parent.child(self.name)
        for progress in self.frontier.resume_points():
            self._place_soon(progress.span, progress.ts)
        self._scope.spawn(self._keep_watching(), name=f"{self.name} watch")
        return self

    async def __aexit__(self, *exc: object) -> None:
        if self._scope is not None:
            await self._scope.close()

    def __aiter__(self) -> SpanFeed:
        return self

    async def __anext__(self) -> Changes | Checkpoint:
        while not self._queue:
            if self._failure is not None:
                raise self._failure
            self._filled.clear()
            await self._filled.wait()
        return self._take()

    @property
    def ready(self) -> bool:
        """Whether the next event is here already."""
        return bool(self._queue)

    @property
    def resolved(self) -> Timestamp:
        """Everything at or below, in all spans, has been handed out."""
        return self.frontier.resolved

    def token(self) -> str:
        """Where to go on after what has been handed out so far."""
        return token_of(self.frontier).encode()

    def serving(self) -> dict[NodeId, int]:
        """How many pieces each node serves."""
        counts: dict[NodeId, int] = {}
        for registration in self._registrations.values():
            node_id = registration.link.node_id
            counts[node_id] = counts.get(node_id, 0) + 1
        return counts

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        served = " ".join(f"n{n}:{count}" for n, count in sorted(self.serving().items()))
        return f"{self.name} {self.frontier.status()} queued={self._bytes} {served or 'not served'}"

    def _take(self) -> Changes | Checkpoint:
        event, size = self._queue.popleft()
        self._bytes -= size
        if 2 * self._bytes <= self._settings["feed.client_bytes_max"]:
            self._room.set()
        if isinstance(event, Changes):
            return event
        moved = False
        for span, ts in event:
            moved = self.frontier.forward(span, ts) or moved
        return Checkpoint(tuple(event), self.frontier.resolved, moved)

    # --- placing -------------------------------------------------------------------------------------------------------

    def _place_soon(
        self, span: Span, after: Timestamp, *, avoid: NodeId | None = None, stalls: int = 0, pause: bool = False
    ) -> None:
        assert self._scope is not None
        with suppress(UsageError):  # the feed is being closed
            self._scope.spawn(self._place(span, after, avoid, stalls, pause=pause), name=f"{self.name} place")

    async def _place(self, span: Span, after: Timestamp, avoid: NodeId | None, stalls: int, *, pause: bool) -> None:
        """Register a span with the nearest replicas of its ranges, however long that takes; after a `pause`, if asked."""
        least, most = self._settings["routing.backoff_min"], self._settings["routing.backoff_max"]
        backoff = Backoff(self._runtime.rng, least=least, most=most)
        rest: Span | None = span
        if pause:
            await self._runtime.clock.sleep(backoff.next())
        while rest is not None:
            await self._room.wait()
            async with self._turns:
                placed = await self._place_first(rest, after, avoid, stalls)
            if placed is None:
                await self._runtime.clock.sleep(backoff.next())
            else:
                rest = Span(placed, rest.end) if placed < rest.end else None

    async def _place_first(self, span: Span, after: Timestamp, avoid: NodeId | None, stalls: int) -> bytes | None:
        """Register the part of a span that lies in its first range; returns its end, or None when no replica took it."""
        try:
            descriptor = await self._sender.range_of(span.start)
        except SlackwaterError:
            probe("feeds.client_lookup_failed")
            return None
        end = min(span.end, descriptor.end)
        nodes = self._sender.nearest(descriptor)
        if avoid in nodes and len(nodes) > 1:
            nodes.sort(key=lambda n: n == avoid)
        for node_id in nodes:
            try:
                await self._register(node_id, descriptor, Span(span.start, end), after, stalls)
            except RangeMismatch as error:
                probe("feeds.client_mismatch")
                self._sender.directory.learn(descriptor, descriptors_of(error))
                return None
            except SlackwaterError:
                probe("feeds.client_refused")
                self._sender.nodes.failed(node_id, now_ns=self._runtime.clock.monotonic_ns())
            else:
                return end
        self._sender.directory.learn(descriptor, [])  # no replica has it: look it up again
        return None

    async def _register(
        self, node_id: NodeId, descriptor: RangeDescriptor, span: Span, after: Timestamp, stalls: int
    ) -> None:
        link = await self._link(node_id)
        self._numbers += 1
        number = self._numbers
        request = RegisterFeed(
            link.session, number, descriptor.range_id, span.start, span.end, after, self._befores, self._quiet
        )
        # Known before it is asked for: the first events may overtake the answer.
        now_ns = self._runtime.clock.monotonic_ns()
        self._registrations[number] = _Registration(span, after, link, heard_ns=now_ns, stalls=stalls)
        try:
            await self._client.links.register(node_id, request)
        except (SlackwaterError, CancelledError) as error:
            if self._registrations.pop(number, None) is not None:
                self._drop_soon(link, number)
            elif not isinstance(error, CancelledError):  # a feed that is being closed waits for this task to end
                return  # its stream has ended meanwhile, and the task that saw it has placed the span again
            raise

    async def _link(self, node_id: NodeId) -> _Link:
        """The open stream from a node."""
        link = self._links.get(node_id)
        if link is None or link.ended:
            assert self._scope is not None
            link = self._links[node_id] = _Link(node_id, self._runtime.rng.bytes(SESSION_BYTES))
            self._scope.spawn(self._read(link), name=f"{self.name} from n{node_id}")
        if not link.open.done():
            try:
                async with timeout(OPEN_TIMEOUT_S):
                    await _opened(link.open)
            except TimeoutError:
                raise UnavailableError(f"n{node_id} did not open a feed in time") from None
        if link.ended:
            raise UnavailableError(f"the feed of n{node_id} has ended")
        return link

    # --- receiving -----------------------------------------------------------------------------------------------------

    async def _read(self, link: _Link) -> None:
        """Take everything a node says until it ends; then what it served is placed elsewhere."""
        request = OpenFeed(link.session, self.name)
        refused: NodeId | None = None
        try:
            async with aclosing(self._client.links.stream(link.node_id, request)) as stream:
                async for items in stream:
                    if not link.open.done():
                        link.open.set_result(None)
                    self._receive(link, items)
                    await self._room.wait()
        except SlackwaterError as error:
            probe("feeds.client_link_lost")
            self._sender.nodes.failed(link.node_id, now_ns=self._runtime.clock.monotonic_ns())
            # It may say the same at once, over and over; a lost connection takes its time by itself.
            refused = link.node_id if isinstance(error, ProtocolError) else None
        link.ended = True
        if not link.open.done():
            link.open.set_result(None)
        for number in [n for n, r in self._registrations.items() if r.link is link]:
            lost = self._registrations.pop(number)
            self._place_soon(lost.span, lost.ts, avoid=refused, stalls=lost.stalls, pause=refused is not None)

    def _receive(self, link: _Link, items: FeedItems) -> None:
        now_ns = self._runtime.clock.monotonic_ns()
        for number, event in items.events if self._failure is None else ():
            registration = self._registrations.get(number)
            if registration is None or registration.link is not link:
                if not isinstance(event, Ended):
                    self._drop_soon(link, number)
                continue
            registration.heard_ns = now_ns
            self._event(number, registration, event)
        self._filled.set()

    def _event(self, number: int, registration: _Registration, event: Event) -> None:
        self._check(registration, event)
        if isinstance(event, Changes):
            self._put(event, event.size())
        elif isinstance(event, Resolved):
            if event.ts > registration.ts:
                registration.ts, registration.stalls = event.ts, 0
                self._progress(Progress(registration.span, event.ts))
        else:
            del self._registrations[number]
            self._ended(registration, event)

    def _check(self, registration: _Registration, event: Event) -> None:
        """Refuse what no sound node says: its link ends, and what it served is placed again."""
        span, latest = registration.span, MIN
        if isinstance(event, Changes):
            if event.within(span) is not event:
                raise ProtocolError(f"n{registration.link.node_id} tells of keys that it was not asked for")
            latest = Timestamp(max(event.timestamps, default=MIN))
        elif isinstance(event, Resolved):
            latest = event.ts
        if latest > self._sender.furthest():
            raise ProtocolError(f"n{registration.link.node_id} tells of a time too far in the future", ts=latest)

    def _ended(self, registration: _Registration, event: Ended) -> None:
        probe(f"feeds.client_ended_{event.reason.name.lower()}")
        span, what = registration.span, event.reason.next
        if what is Next.STOP:
            needed = f"history after {show(registration.ts)}, where this feed stands,"
            self._failure = too_old(registration.ts, threshold=event.floor, what=needed)
            return
        if what is Next.LOOK_UP:
            known = self._sender.cache.lookup(span.start)
            if known is not None:
                self._sender.directory.learn(known, [])
        self._place_soon(span, registration.ts, stalls=registration.stalls)

    def _put(self, event: Changes | list[Progress], size: int) -> None:
        self._queue.append((event, size))
        self._bytes += size
        if self._bytes > self._settings["feed.client_bytes_max"]:
            self._room.clear()

    def _progress(self, progress: Progress) -> None:
        """Neighboring checkpoints in the queue are one."""
        if self._queue and isinstance(last := self._queue[-1][0], list):
            last.append(progress)
        else:
            self._put([progress], 0)

    def _drop_soon(self, link: _Link, number: int) -> None:
        assert self._scope is not None
        if not link.ended:
            with suppress(UsageError):
                self._scope.spawn(self._drop(link, number), name=f"{self.name} drop")

    async def _drop(self, link: _Link, number: int) -> None:
        with suppress(SlackwaterError):
            await self._client.links.drop(link.node_id, DropFeed(link.session, [number]))

    # --- silence -------------------------------------------------------------------------------------------------------

    async def _keep_watching(self) -> None:
        """Pieces of which nothing is heard are asked for elsewhere."""
        while True:
            await self._runtime.clock.sleep(WATCH_INTERVAL_S)
            now_ns = self._runtime.clock.monotonic_ns()
            for number, registration in list(self._registrations.items()):
                patience_s = self._settings["feed.stall_timeout"] * 2 ** min(registration.stalls, STALLS_DOUBLED_MAX)
                if not self._room.is_set():
                    registration.heard_ns = now_ns  # it was not listened to
                elif now_ns - registration.heard_ns > patience_s * 1e9:
                    probe("feeds.client_stalled")
                    del self._registrations[number]
                    link = registration.link
                    self._drop_soon(link, number)
                    self._place_soon(
                        registration.span, registration.ts, avoid=link.node_id, stalls=registration.stalls + 1
                    )


async def _opened(future: Future[None]) -> None:
    """Wait for a future that others wait for too: one that gives up leaves it to them."""
    waiter: Future[None] = get_running_loop().create_future()

    def tell(_: Future[None]) -> None:
        if not waiter.done():
            waiter.set_result(None)

    future.add_done_callback(tell)
    await waiter
