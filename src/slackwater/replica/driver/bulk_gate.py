"""Which bulk reads go ahead, and when: they take what point work leaves.

    nothing else to do        BULK_READS_MAX at a time, one after the other
    point work in the last    one at a time, and after each a pause of `DUTY` times what it cost: a page of columns is some
    WINDOW_S                  milliseconds, a page of rows thirty, and for so long the loop had to ask for the interpreter

A scan is many pages, so it yields between any two of them. Readers wait in the order in which they came; a node that makes
WAITING_MAX wait refuses more, because each holds a snapshot of the store. What a page costs is the time that it took, which says
it for rows and columns, for few columns and many, on any machine; and for its bytes what the loop needs to send them.

The resolution of a large commit is many commands, each of which takes the loop and the interpreter for some milliseconds, and no
reader needs it: readers read through intents of decided transactions. So each such command waits until no bulk read is
under way (`after_reads`), for at most `DUTY` times what the last one took: beside reads without end, intents go four
times slower than alone. It is no point work, and no bulk read pauses for it.
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
POINT_WRITES_MAX = 256
"""A batch of more writes is a bulk one: rows that are loaded, intents of a large commit that are resolved."""
DUTY = 3
SENT_BYTES_PER_S = 1 << 30
"""What the loop passes on in a second, about: it copies a page into a frame, and the kernel copies that."""
GAP_S = 0.02
"""Between two pages of a scan there is about as much time: a bulk read is under way until it has been over for so long."""
LOOK_S = 0.005
PATIENCE_S = 0.05
"""How long the first command of a resolution waits for bulk reads."""
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
        self._reading = 0
        self._read_ns = 0
        """When the last bulk read was over."""
        self._patience_s = PATIENCE_S
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

    def read(self, now_ns: int) -> bool:
        """Whether a bulk read is under way, or its next page is about to be asked for."""
        return self._reading > 0 or (self._read_ns > 0 and now_ns - self._read_ns < GAP_S * 1e9)

    @asynccontextmanager
    async def after_reads(self, clock: Clock) -> AsyncIterator[None]:
        """Let bulk reads go first, within bounds; for a command that resolves intents in bulk, which is run in the block."""
        until_ns = clock.monotonic_ns() + int(self._patience_s * 1e9)
        while self.read(now_ns := clock.monotonic_ns()) and now_ns < until_ns:
            probe("replica.resolution_waits_for_reads")
            await clock.sleep(LOOK_S)
        began_ns = clock.monotonic_ns()
        try:
            yield
        finally:
            self._patience_s = min(DUTY * (clock.monotonic_ns() - began_ns) / 1e9, PAUSE_S_MAX)

    @asynccontextmanager
    async def admitted(self, clock: Clock) -> AsyncIterator[Page]:
        """Go ahead when it is this read's turn; beside point work it keeps the turn until it is done."""
        self._reading += 1
        try:
            async with self._admitted(clock) as page:
                yield page
        finally:
            self._reading -= 1
            self._read_ns = clock.monotonic_ns()

    @asynccontextmanager
    async def _admitted(self, clock: Clock) -> AsyncIterator[Page]:
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
