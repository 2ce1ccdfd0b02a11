"""Which bulk reads go ahead, and when: they take what point work leaves.

    nothing else to do        BULK_READS_MAX at a time, one after the other
    point work in the last    one at a time, and after each a pause of `DUTY` times what it cost: a page of columns is some
    WINDOW_S                  milliseconds, a page of rows thirty, and for so long the loop had to ask for the interpreter

A scan is many pages, so it yields between any two of them. Readers wait in the order in which they came; a node that makes
WAITING_MAX wait refuses more, because each holds a snapshot of the store. What a page costs is the time that it took, which says
it for rows and columns, for few columns and many, on any machine; and for its bytes what the loop needs to send them.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.errors import Overloaded
from slackwater.hooks import level, probe
from slackwater.runtime.sync import Semaphore

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.runtime.seam import Clock

BULK_READS_MAX = 2
"""Bulk reads that a node does at a time: each is a thread that wants the interpreter, as the loop does."""
WAITING_MAX = 1024
WINDOW_S = 0.1
POINTS_MIN = 4
"""Pieces of point work in a window that make a node busy; what a node does for itself is fewer."""
DUTY = 3
SENT_BYTES_PER_S = 1 << 30
"""What the loop passes on in a second, about: it copies a page into a frame, and the kernel copies that."""
PAUSE_S_MAX = 0.25
"""A page that took long, because the machine is busy, does not hold up the next one for longer than this."""


class Page:
    """A bulk read that was let in."""

    __slots__ = ("size",)

    def __init__(self) -> None:
        self.size = 0
        """Bytes that it answers with; told by the reader."""


class BulkGate:
    """Lets bulk reads in, for one node."""

    def __init__(self) -> None:
        self._turn = Semaphore(1)
        self._slots = Semaphore(BULK_READS_MAX)
        self._waiting = 0
        self._points = 0
        self._window_ns = 0
        self._busy = False
        self._free_ns = 0
        """When the next one may begin, where there is point work."""
        self.paused_s = 0.0
        """What bulk reads have waited for point work, all together."""

    def point(self) -> None:
        """A piece of point work was done."""
        self._points += 1

    def busy(self, now_ns: int) -> bool:
        """Whether there is point work."""
        if now_ns - self._window_ns >= WINDOW_S * 1e9:
            windows = (now_ns - self._window_ns) / (WINDOW_S * 1e9)
            self._busy = self._points >= POINTS_MIN * min(windows, 10.0)
            self._points, self._window_ns = 0, now_ns
        return self._busy

    @asynccontextmanager
    async def admitted(self, clock: Clock) -> AsyncIterator[Page]:
        """Go ahead when it is this read's turn; beside point work it keeps the turn until it is done."""
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many bulk reads wait on this node; back off, or ask another one", limit=WAITING_MAX)
        self._waiting += 1
        level("replica.bulk_waiting", self._waiting, WAITING_MAX)
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
        kept = True
        try:
            beside = self.busy(clock.monotonic_ns())
            if beside:
                await self._pause(clock)
            async with self._slots:
                if not beside:
                    kept = False
                    self._turn.release()
                page, began_ns = Page(), clock.monotonic_ns()
                try:
                    yield page
                finally:
                    now_ns = clock.monotonic_ns()
                    cost_s = (now_ns - began_ns) / 1e9 + page.size / SENT_BYTES_PER_S
                    self._free_ns = now_ns + int(min(DUTY * cost_s, PAUSE_S_MAX) * 1e9)
        finally:
            if kept:
                self._turn.release()

    async def _pause(self, clock: Clock) -> None:
        wait_s = (self._free_ns - clock.monotonic_ns()) / 1e9
        if wait_s > 0:
            probe("replica.bulk_paused")
            self.paused_s += wait_s
            await clock.sleep(wait_s)
