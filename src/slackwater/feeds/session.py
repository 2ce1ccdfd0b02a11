"""One consumer at a serving node: which of its registrations have something to say, and the stream that says it.

    Attached r5 ── wake(31) ─┐
    Attached r9 ── wake(32) ─┴► ready: 31 32 ─► items(): take from each in turn, up to `feed.message_bytes` a message

Once all has been said the session waits `feed.linger`: what a busy range commits meanwhile leaves as one message, so that a
consumer costs the node a bounded number of messages a second, not one per entry. The first event after a pause goes at once,
and so does everything that waits behind a full message.

All registrations of the session draw on one `Account`: the budget is the consumer's, not the range's.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slackwater.feeds.registration import Account
from slackwater.protocol.feeds.events import Changes
from slackwater.protocol.feeds.messages import FeedItems
from slackwater.runtime.sync import Event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from slackwater.protocol.feeds.events import Event as FeedEvent
    from slackwater.runtime.seam import Clock
    from slackwater.settings import Settings

FRAME_SHARE = 4
"""A message's rows stay below this part of the largest frame."""


class EventSource(Protocol):
    """Where a registration's events are taken from."""

    def take(self, registration: int, *, bytes_max: int) -> tuple[list[FeedEvent], bool]:
        """The next events, and whether there are more."""
        ...


class FeedSession:
    """One consumer. Registrations are known by the node's own numbers here, and by the consumer's in what is sent."""

    def __init__(self, name: bytes, *, clock: Clock, settings: Settings) -> None:
        self.name = name
        self.account = Account(int(settings["feed.consumer_bytes_max"]))
        self.registrations: dict[int, tuple[int, EventSource]] = {}
        """By the node's number: the consumer's number, and where to take from."""
        self.numbers: dict[int, int] = {}
        """By the consumer's number."""
        self._ready: dict[int, None] = {}
        self._event = Event()
        self._clock = clock
        self._settings = settings

    def add(self, number: int, *, named: int, source: EventSource) -> None:
        """A registration begins."""
        self.registrations[number] = (named, source)
        self.numbers[named] = number

    def forget(self, number: int) -> None:
        """A registration is over."""
        found = self.registrations.pop(number, None)
        if found is not None:
            self.numbers.pop(found[0], None)
        self._ready.pop(number, None)

    def wake(self, number: int) -> None:
        """A registration has something to say."""
        if number not in self._ready:
            self._ready[number] = None
            self._event.set()

    async def items(self) -> AsyncGenerator[FeedItems, None]:
        """Everything, for as long as the consumer listens; first an empty message: the session is open."""
        yield FeedItems([])
        while True:
            if not self._ready:
                self._event.clear()
                await self._event.wait()
            for message in self._gather():
                yield message
            if not self._ready:
                await self._clock.sleep(self._settings["feed.linger"])

    def _gather(self) -> list[FeedItems]:
        """What is ready now, each registration in its turn: one message, or more where a single block is larger."""
        settings = self._settings
        left = limit = int(min(settings["feed.message_bytes"], settings["rpc.frame_bytes_max"] // FRAME_SHARE))
        messages: list[FeedItems] = []
        events: list[tuple[int, FeedEvent]] = []
        for number in list(self._ready):
            named, source = self.registrations[number]
            taken, more = source.take(number, bytes_max=max(1, left))
            self._ready.pop(number, None)  # also what taking itself has stirred up
            for event in taken:
                if not isinstance(event, Changes):
                    events.append((named, event))
                    continue
                for block in event.slices(limit):
                    if left <= 0:
                        messages.append(FeedItems(events))
                        events, left = [], limit
                    events.append((named, block))
                    left -= block.size()
            if more:
                self._ready[number] = None  # behind the others
            if left <= 0:
                break
        if events:
            messages.append(FeedItems(events))
        return messages

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        return f"session {self.name.hex()[:8]} registrations={len(self.registrations)} buffered={self.account.bytes}"
