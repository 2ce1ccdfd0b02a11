"""Small records that the node must hear of soon: announced by a feed, repaired by reading.

    system records ── feed (any replica) ──► heard at once, as soon as they are committed
                  └── read every `feed.poll_interval` ──► what an announcement missed (pitfall 44)

A `Topic` is a span of records and a function to be told of them. All topics of a node share one feed: one stream to each node
that serves a part of it. Records are heard when they are committed, not when they are resolved: a listener takes the newest
version of a record, whatever order versions of *different* records come in.

    announced    (key, ts, value)     taken if ts is above what is known of the key
    read at t    the records as of t  those that are known from t or before become what was read; what was not read is gone

A topic may be read rarely or not at all by this watch, where its owner reads by himself anyway; the feed only makes him
quicker (`poll=False`).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import BelowGcThreshold, SlackwaterError
from slackwater.hooks import buggify, probe
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes
from slackwater.runtime.sync import Event

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.feeds.client import FeedClient
    from slackwater.txn.kv import KV

RECORDS_MAX = 100_000
"""Records one topic remembers; of those beyond, the newest announcement counts, whatever it says."""
READ_TIMEOUT_S = 4.0


class Topic(msgspec.Struct, frozen=True):
    """Records, and the function to be told of them: `heard(key, value)`, with an empty value for one that is gone."""

    name: str
    span: Span
    heard: Callable[[bytes, bytes], None]
    poll: bool = True


class CatalogBell:
    """Rings when something may have changed; for a consumer that reads by itself (`catalog.Watch`)."""

    def __init__(self) -> None:
        self._event = Event()

    def ring(self, key: bytes = b"", value: bytes = b"") -> None:
        """Something may have changed."""
        self._event.set()

    async def changed(self) -> None:
        """Return when something may have changed since the last call."""
        await self._event.wait()
        self._event.clear()


class TopicFollower:
    """Follows some topics for as long as it runs."""

    def __init__(self, topics: Sequence[Topic], *, client: FeedClient, kv: KV) -> None:
        self.topics = tuple(topics)
        self.announced = 0
        self.repaired = 0
        """Records that reading brought before, or instead of, their announcement."""
        self._client = client
        self._kv = kv
        self._clock = kv.context.clock
        self._runtime = client.runtime
        self._settings = client.settings
        self._known: list[dict[bytes, tuple[Timestamp, bytes]]] = [{} for _ in self.topics]

    async def follow(self) -> None:
        """Hear of everything, for ever."""
        while True:
            after = self._clock.now()
            with suppress(BelowGcThreshold):  # it has been deaf for that long: begin again from now
                async with self._client.watch(
                    [topic.span for topic in self.topics], after=after, quiet=True, name="announcements"
                ) as feed:
                    async for event in feed:
                        if isinstance(event, Changes) and not buggify("watch.lose_announcement"):
                            self._announced(event)

    async def poll(self) -> None:
        """Read everything that is to be read, again and again."""
        while True:
            for at, topic in enumerate(self.topics):
                if topic.poll:
                    with suppress(SlackwaterError):
                        await self._read(at, topic)
            await self._runtime.clock.sleep(self._settings["feed.poll_interval"])

    def _announced(self, changes: Changes) -> None:
        for key, ts, value in zip(changes.keys, changes.timestamps, changes.values, strict=True):
            for at, topic in enumerate(self.topics):
                if key in topic.span and self._learn(at, topic, key, Timestamp(ts), value):
                    self.announced += 1

    async def _read(self, at: int, topic: Topic) -> None:
        now = self._clock.now()
        rows = await self._kv.scan(topic.span.start, topic.span.end, ts=now, timeout=READ_TIMEOUT_S)
        found = dict(zip(rows.keys, rows.values, strict=True))
        gone = [key for key, (ts, value) in self._known[at].items() if value and ts <= now and key not in found]
        for key, value in [*found.items(), *((key, b"") for key in gone)]:
            if self._learn(at, topic, key, now, value):
                probe("feeds.watch_repaired")
                self.repaired += 1

    def _learn(self, at: int, topic: Topic, key: bytes, ts: Timestamp, value: bytes) -> bool:
        """Take a version of a record if it is newer; whether it says something new."""
        known = self._known[at]
        before = known.get(key)
        if before is not None and before[0] >= ts:
            return False
        if before is not None or len(known) < RECORDS_MAX:
            known[key] = (ts, value)
        if before is not None and before[1] == value:
            return False
        topic.heard(key, value)
        return True

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        topics = " ".join(f"{t.name}:{len(known)}" for t, known in zip(self.topics, self._known, strict=True))
        return f"watch announced={self.announced} repaired={self.repaired} {topics}"
