"""Catch-up scans are heavy, so a node runs a few at a time, and no consumer may have them all.

    request(ticket, consumer)      waits in its consumer's line
    release(ticket)                done, ended or given up, wherever it stood
    grant()                        which tickets may start now

    slots 4, share 3/4      consumer A: ●●● ○○○○○○○      three run, however long its line
                            consumer B: ● ○             the fourth is kept free for other consumers (pitfall 33)

The next slot goes to the consumer that has the fewest running, and among equals to the one that was served the longest
ago; inside a line it is first come, first served. So a consumer with a thousand ranges and one with a single range make
progress side by side.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

from slackwater.errors import Overloaded, invariant
from slackwater.hooks import level

T = TypeVar("T")

TICKETS_MAX = 1 << 16
"""Registrations of one node that may wait or run."""


class CatchUpSlots(Generic[T]):
    """Decides which registration scans next. Tickets are any hashable names of registrations."""

    def __init__(self, slots: int, *, share: float = 0.75) -> None:
        invariant(slots >= 1 and 0 < share <= 1, "A-feed-slots", slots=slots, share=share)
        self.slots = slots
        self.per_consumer_max = max(1, int(slots * share))
        self._lines: OrderedDict[str, OrderedDict[T, None]] = OrderedDict()
        self._running: dict[T, str] = {}
        self._counts: dict[str, int] = {}
        self._consumer_of: dict[T, str] = {}

    def request(self, ticket: T, consumer: str) -> None:
        """Join the consumer's line; a ticket that waits or runs already stays where it is."""
        if ticket in self._running or ticket in self._consumer_of:
            return
        if len(self._running) + len(self._consumer_of) >= TICKETS_MAX:
            raise Overloaded("too many feeds wait for their catch-up scan on this node", limit=TICKETS_MAX)
        self._lines.setdefault(consumer, OrderedDict())[ticket] = None
        self._consumer_of[ticket] = consumer
        level("feeds.catch_ups_waiting", len(self._running) + len(self._consumer_of), TICKETS_MAX)

    def release(self, ticket: T) -> None:
        """The ticket needs its slot, or its place in the line, no more. Unknown tickets are fine."""
        consumer = self._running.pop(ticket, None)
        if consumer is not None:
            self._counts[consumer] -= 1
            if not self._counts[consumer]:
                del self._counts[consumer]
            return
        consumer = self._consumer_of.pop(ticket, None)
        if consumer is not None:
            del self._lines[consumer][ticket]
            if not self._lines[consumer]:
                del self._lines[consumer]

    def grant(self) -> list[T]:
        """Tickets that may start now; each of them runs until it is released."""
        granted: list[T] = []
        while len(self._running) < self.slots:
            consumer = self._next()
            if consumer is None:
                break
            line = self._lines[consumer]
            ticket, _ = line.popitem(last=False)
            del self._consumer_of[ticket]
            if line:
                self._lines.move_to_end(consumer)  # served last
            else:
                del self._lines[consumer]
            self._running[ticket] = consumer
            self._counts[consumer] = self._counts.get(consumer, 0) + 1
            granted.append(ticket)
            level("feeds.catch_ups", len(self._running), self.slots)
        return granted

    def _next(self) -> str | None:
        open_to = [c for c in self._lines if self._counts.get(c, 0) < self.per_consumer_max]
        return min(
            open_to, key=lambda c: self._counts.get(c, 0), default=None
        )  # the first of equals: `_lines` is in turn

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        return (
            f"running={len(self._running)}/{self.slots} waiting={len(self._consumer_of)} consumers={len(self._lines)}"
        )
