"""What the consumers of change feeds do in the simulator, and what stands beside them to make trouble.

    mirror      one feed from the beginning of history to the end of the run, whatever happens to the nodes that serve it
    restarter   an initial scan, then a feed, through a sink that often fails; at any checkpoint it flushes, saves its
                token and comes back from it, sometimes from an older one, as after a crash
    returner    the same, and it comes back from every single checkpoint that moves its feed on
    dawdler     transactions that write long after they have read: their writes are moved to just above what is closed,
                which is where feeds have just resolved: commits at resolved + 1 (pitfall 25)
    collector   deletes a key, collects the deletion, and asks for a feed from just before: it must be refused (M18)

Everything a consumer receives goes through `feeds.validate`, and at every resolved timestamp its mirror is compared with V,
what was committed, by `oracles.feeds`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.changefeed.sink import Sink
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import (
    AmbiguousResult,
    BelowGcThreshold,
    RetryableError,
    SlackwaterError,
    UnavailableError,
    UsageError,
)
from slackwater.feeds.client import Checkpoint, FeedClient
from slackwater.feeds.frontier import Frontier, decode_token, frontier_from
from slackwater.feeds.initial import InitialScan
from slackwater.feeds.links import RpcLinks
from slackwater.feeds.validate import Validators
from slackwater.hooks import probe
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.feeds.events import Changes, Resolved
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.sync import timeout
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_plan import KV_SPAN, all_keys

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.feeds.client import SpanFeed
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.scenarios.cluster_programs import Client
    from slackwater.sim.tape import TapeStream
    from slackwater.txn import Transaction

WHOLE = Span(*KV_SPAN)
CONSUMERS = ("mirror", "restarter", "returner")
TIMEOUT_S = 5.0
PAGE_KEYS = 4
FLUSH_ONE_IN = 8
RESTART_ONE_IN = 3
OLDER_ONE_IN = 4
SINK_FAILS_ONE_IN = 3
DAWDLE_MEAN_NS = 2 * NS
PADDING_MAX = 600
"""Some of what dawdlers write is large enough to fill a small buffer."""
PAUSE_ONE_IN, PAUSE_MEAN_NS, LONG_PAUSE_MEAN_NS = 16, 2 * NS, 12 * NS
PATIENCE_S = 5.0
DAWDLER = 999
"""The client number under which dawdlers write down what they do."""


class Seen:
    """What one consumer has received, for the oracles."""

    def __init__(self, name: str, *, after: Timestamp = MIN) -> None:
        self.name = name
        self.after = after
        """Everything after this has to be delivered version by version; at it, the table as a whole."""
        self.validators = Validators([WHOLE], after=MIN)
        self.arrived: Validators | None = None
        """Of one behind a sink: what the feed itself delivered, since the consumer came back last."""
        self.resolved = MIN
        self.claimed = MIN
        """What was resolved at the last checkpoint but one."""
        self.checked = MIN
        self.flushes = False
        """Whether what it has received went through a sink, and is claimed only when that was flushed."""

    def changes(self, changes: Changes) -> None:
        """A block arrived."""
        self.validators.event(changes, WHOLE)

    def came_back(self) -> None:
        """A consumer behind a sink begins, or begins again from a token."""
        self.flushes = True
        self.arrived = Validators([WHOLE], after=MIN)
        self.validators.restarted()

    def taken(self, event: Changes | Checkpoint) -> None:
        """A feed has handed this to a consumer that has a sink: what becomes of it there is another matter."""
        assert self.arrived is not None
        if isinstance(event, Changes):
            self.arrived.event(event, WHOLE)
            return
        for span, ts in event.progress:
            self.arrived.event(Resolved(ts), span)

    def checkpoint(self, checkpoint: Checkpoint) -> None:
        """Everything up to here arrived."""
        for span, ts in checkpoint.progress:
            self.validators.event(Resolved(ts), span)
        self.resolved = Timestamp(max(self.resolved, checkpoint.resolved))


class Consumer:
    """A machine that reads feeds."""

    def __init__(self, client: Client, cluster: Cluster, seen: Seen, draw: TapeStream) -> None:
        self._client = client
        self._cluster = cluster
        self._seen = seen
        self._draw = draw
        self._kv = client.kv
        self.feeds = FeedClient(
            sender=client.sender,
            links=RpcLinks(client.dialer, client.book.resolve),
            runtime=client.runtime,
            settings=client.runtime.settings,
            scope=client.scope.child("feeds"),
        )

    async def begin(self) -> None:
        """Wait until there is a cluster to follow."""
        self._cluster.busy[self._seen.name] = "waiting for the cluster"
        await self._client.meet(1)
        while not self._cluster.ready:
            await self._client.runtime.clock.sleep(0.1)

    @property
    def enough(self) -> bool:
        """Whether everything that was committed while there was traffic has arrived."""
        last = self._cluster.world.facts["feed history"].last
        return not self._cluster.traffic and self._settled() and self._seen.resolved >= last

    def _settled(self) -> bool:
        return not any(doing for name, doing in self._cluster.busy.items() if name not in CONSUMERS)

    def finish(self) -> None:
        """Nothing more to do."""
        self._cluster.busy[self._seen.name] = ""

    def look(self, *, last: bool = False) -> None:
        """Let the oracles look at what has arrived."""
        self._cluster.world.facts["feed history"].look(self._seen, last=last)

    async def _from_now_on(self, follow: Callable[[str], Awaitable[None]]) -> None:
        """The table, then its changes; from the beginning when history has been collected before it was read."""
        await self.begin()
        while True:
            try:
                await follow(await self._scan_all())
            except BelowGcThreshold:
                probe("feeds.began_again")
                self._seen = Seen(self._seen.name)
            else:
                break
        self.look(last=True)
        self.finish()

    async def _next(self, feed: SpanFeed) -> Changes | Checkpoint | None:
        with suppress(TimeoutError):
            async with timeout(PATIENCE_S):
                return await anext(feed)
        return None

    # --- mirror ------------------------------------------------------------------------------------------------------

    async def mirror(self) -> None:
        """Follow everything."""
        await self._from_now_on(partial(self._mirror, PAUSE_MEAN_NS))

    async def slow_mirror(self) -> None:
        """Follow everything, with pauses in which buffers fill."""
        await self._from_now_on(partial(self._mirror, LONG_PAUSE_MEAN_NS))

    async def _mirror(self, pause_ns: int, token: str) -> None:
        async with self.feeds.watch([WHOLE], after=token, name="mirror") as feed:
            while not self.enough:
                self._cluster.busy[self._seen.name] = f"mirroring: {feed.status()}"
                event = await self._next(feed)
                if isinstance(event, Changes):
                    self._seen.changes(event)
                elif event is not None:
                    self._seen.checkpoint(event)
                    self.look()
                    if self._cluster.traffic and self._draw.chance(
                        1, PAUSE_ONE_IN
                    ):  # it does something else for a while
                        await self._client.runtime.clock.sleep(self._draw.decay(pause_ns) / NS)

    # --- restarter ---------------------------------------------------------------------------------------------------

    async def restarter(self) -> None:
        """Follow everything, and come back from a token again and again."""
        await self._from_now_on(partial(self._restart, RESTART_ONE_IN))

    async def returner(self) -> None:
        """Follow everything, and come back from every checkpoint."""
        await self._from_now_on(partial(self._restart, 1))

    async def _restart(self, one_in: int, token: str) -> None:
        """Come back from one flushed checkpoint in so many; with 1, from each that moves the feed on."""
        saved = [token]
        # A consumer that begins again has another notebook; what the sink of before still brings belongs to the old one.
        emit = partial(self._emit, self._seen)
        sink: Sink[Changes] = Sink(
            emit, runtime=self._client.runtime, scope=self._client.scope.child("sink"), blocks_max=4
        )
        while not self.enough:
            self._seen.came_back()
            async with self.feeds.watch([WHOLE], after=token, name=self._seen.name) as feed:
                while not self.enough:
                    self._cluster.busy[self._seen.name] = f"restarting: {feed.status()}"
                    event = await self._next(feed)
                    if event is None:
                        continue
                    self._seen.taken(event)
                    if isinstance(event, Changes):
                        await sink.put(event)
                    elif event.moved if one_in == 1 else self._draw.chance(1, FLUSH_ONE_IN):
                        await sink.flush()
                        self._seen.checkpoint(Checkpoint(tuple(feed.frontier.entries()), feed.resolved, event.moved))
                        self.look()
                        saved = [saved[-1], feed.token()]
                        if self._draw.chance(1, one_in):
                            break
            await sink.flush()
            token = saved[0] if self._draw.chance(1, OLDER_ONE_IN) else saved[-1]
            probe("feeds.restarted")

    async def _emit(self, seen: Seen, changes: Changes) -> None:
        """The far end: slow, and often not there."""
        await self._client.runtime.clock.sleep(self._draw.decay(NS // 10) / NS)
        if self._draw.chance(1, SINK_FAILS_ONE_IN):
            raise UnavailableError("the sink is not there just now")
        seen.changes(changes)

    async def _scan_all(self) -> str:
        """The table as of now, page by page; resumed from a token after any page."""
        scan_ts = self._client.clock.now()
        frontier = Frontier([WHOLE])
        self._seen.after = scan_ts
        scan = InitialScan(self._kv, frontier, scan_ts=scan_ts, page_keys=PAGE_KEYS)
        while not scan.done:
            try:
                changes = await anext(scan)
            except BelowGcThreshold:
                raise
            except SlackwaterError:
                probe("feeds.scan_again")
                await self._client.runtime.clock.sleep(0.2)
                continue
            self._seen.changes(changes)
            if self._draw.chance(1, RESTART_ONE_IN):
                token = decode_token(scan.token())
                scan = InitialScan(
                    self._kv, frontier_from(token, [WHOLE]), scan_ts=token.scan_ts or scan_ts, page_keys=PAGE_KEYS
                )
        self._seen.checkpoint(Checkpoint(tuple(scan.frontier.entries()), scan.frontier.resolved, True))  # noqa: FBT003
        self._cluster.world.facts["feed history"].scanned(self._seen, scan_ts)
        return scan.token()

    # --- trouble -----------------------------------------------------------------------------------------------------

    async def dawdler(self) -> None:
        """Write long after reading."""
        await self.begin()
        while self._cluster.traffic:
            self._cluster.busy[self._seen.name] = "dawdling"
            with suppress(SlackwaterError):
                await self._dawdle()
            await self._client.runtime.clock.sleep(self._draw.decay(NS // 4) / NS)
        self.finish()

    async def _dawdle(self) -> None:
        """One transaction on keys of its own beside those of all others, so that no other workload's accounts are upset."""
        draw, facts = self._draw, self._cluster.world.facts
        facts["dawdles"] = number = facts.get("dawdles", 0) + 1
        near = draw.pick(all_keys())[1:-2]
        keys = [kv(near + b"~%s%d" % (self._seen.name.encode(), i)) for i in range(draw.between(1, 3))]
        text = b"%s.%d" % (self._seen.name.encode(), number) + b"." * draw.below(PADDING_MAX)
        values = [None if draw.chance(1, 6) else text for _ in keys]
        pen = self._cluster.recorder.txn(client=DAWDLER)
        told: list[int] = []

        async def attempt(txn: Transaction) -> None:
            pen.restart()
            pen.read(keys[0], await txn.get(keys[0]))
            await self._client.runtime.clock.sleep(draw.decay(DAWDLE_MEAN_NS) / NS)
            for key, value in zip(keys, values, strict=True):
                pen.write(key, value)
                await (txn.delete(key) if value is None else txn.put(key, value))
                if draw.chance(1, 3):
                    await self._client.runtime.clock.sleep(draw.decay(NS) / NS)
            told.append(await txn.commit())

        try:
            await self._kv.run(attempt, timeout=2 * TIMEOUT_S)
        except AmbiguousResult:
            pen.unknown()
            raise
        except SlackwaterError:
            pen.failed()
            raise
        pen.ok(commit_ts=told[-1])

    async def collector(self) -> None:
        """Delete, collect, and ask for what is gone."""
        await self.begin()
        await change_zone(self._kv, EDGE, COLLECTED_END, gc_ttl_s=1.0)
        while self._cluster.traffic:
            self._cluster.busy[self._seen.name] = "collecting"
            with suppress(SlackwaterError, TimeoutError):
                async with timeout(8 * TIMEOUT_S):
                    await self._collect_once()
            await self._client.runtime.clock.sleep(self._draw.decay(4 * NS) / NS)
        self.finish()

    async def _collect_once(self) -> None:
        """A key of its own, far from all others: the threshold of other programs' ranges must stay where it is."""
        key, sender = COLLECTED, self._client.sender
        put = await self._kv.put(key, b"%d" % self._draw.below(1 << 30), timeout=TIMEOUT_S)
        gone = await self._kv.delete(key, timeout=TIMEOUT_S)
        while True:  # until the time to live has passed
            try:
                await sender.send(
                    [requests.RaiseGcThreshold(gone)], requests.Header(NO_RANGE), at=key, timeout=TIMEOUT_S
                )
                break
            except (UsageError, RetryableError):
                await self._client.runtime.clock.sleep(0.2)
        request = requests.GcVersions(vanishing=((key, (gone, put)),))
        await sender.send([request], requests.Header(NO_RANGE), at=key, timeout=TIMEOUT_S)
        seen = Seen(self._seen.name, after=Timestamp(gone - 1))
        async with self.feeds.watch([Span.point(key)], after=seen.after, name="too old") as feed:
            try:
                while feed.resolved < gone:
                    event = await anext(feed)
                    if isinstance(event, Changes):
                        seen.changes(event)
            except BelowGcThreshold:
                probe("feeds.too_old_refused")
                return
        self._cluster.world.facts["feed history"].compare(seen, after=seen.after, upto=gone, span=Span.point(key))


COLLECTED = b"\x04zzz/collected\x00\x01"
"""`kv(b"zzz/collected")`: above all other keys."""
COLLECTED_END = kv(b"zzzz")
EDGE = kv(b"zzz")
"""Where the collector's range begins: its threshold is raised, and no other."""
