"""Which bulk reads go ahead, and when: they take what point work leaves.

    nothing else to do        BULK_READS_MAX at a time, one after the other
    point work in the last    one at a time, and after each a pause of `DUTY` times what it cost: a page of columns is some
    WINDOW_S                  milliseconds, a page of rows thirty, and for so long the loop had to ask for the interpreter

A scan is many pages, so it yields between any two of them. Readers wait in the order in which they came; a node that makes
WAITING_MAX wait refuses more, because each holds a snapshot of the store. What a page costs is the time that it took, which says
it for rows and columns, for few columns and many, on any machine; and for its bytes what the loop needs to send them. A job
that reads a table once, to fill an index, asks for small pages and pauses for a quarter of what each took. One that counts makes
nothing for the loop to send and has the interpreter for a millisecond at a time: the next one does not pause.

The resolution of a large commit is many commands, each of which takes the loop and the interpreter for some milliseconds, on
this node and once more on every follower, and no reader needs it: readers read through intents of decided transactions. So each
such command waits until no bulk read is under way (`after_reads`), for at most `RESOLVE_DUTY` times what the last one took and
`RESOLVE_WAIT_S_MAX`: beside reads without end, intents go about a sixteenth as fast as alone. Where a change feed waits for
them, because nothing is resolved above an intent, it is `DUTY` times and `PAUSE_S_MAX`: a quarter. A resolution is no
point work, and no bulk read pauses for it.

A block of a backfill is a command too, of about two thousand entries: what is upserted meanwhile comes after it in the log and
is applied after it. Beside point work one block goes at a time, and the next one waits until the loop has nothing to do for
`FILL_LOOK_S`, for at most as long as the last one took (`filling`). It does not wait for bulk reads: the rows of the
next run are read meanwhile.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.errors import Overloaded
from slackwater.hooks import level, probe
from slackwater.runtime.sync import Semaphore
from slackwater.settings import describe

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
LOAD_S = 1.0
"""A load is under way until no bulk batch was written for so long: its client may be slow."""
DUTY = 3
RESOLVE_DUTY = 15
"""As `DUTY`, of a resolution that nothing waits for."""
JOB_DUTY = 0.25
"""As `DUTY`, of a job that reads a table once: until it has ended, the next change of the table waits."""
COUNT_DUTY = 0.0
"""As `JOB_DUTY`, of one that only counts."""
SENT_BYTES_PER_S = 1 << 30
"""What the loop passes on in a second, about: it copies a page into a frame, and the kernel copies that."""
FILL_LOOK_S = 0.001
"""How long the loop must have been free before a block of a backfill."""
GAP_S = 0.25
"""A bulk read is under way until it has been over for so long: the next page of a scan is asked for soon, on a busy machine
not at once, and a reader that has scanned often scans again."""
LOOK_S = 0.005
PATIENCE_S = 0.05
"""How long the first command of a resolution waits for bulk reads."""
assert LOOK_S < GAP_S, "two pages of a scan count as one read, and that is looked at in between"
assert BULK_READS_MAX <= WAITING_MAX, "every bulk read that is done has waited"
assert describe("runtime.offload_threads").default > BULK_READS_MAX, "bulk reads leave a thread to other work"
PAUSE_S_MAX = 0.25
"""A page that took long, because the machine is busy, does not hold up the next one for longer than this."""
RESOLVE_WAIT_S_MAX = 0.5
"""Of one command of a resolution that nothing waits for: the thousand commands of the largest commit take minutes, not hours."""
assert PATIENCE_S <= PAUSE_S_MAX <= RESOLVE_WAIT_S_MAX, (
    "the first command of a resolution waits no longer than the others"
)
assert COUNT_DUTY <= JOB_DUTY <= DUTY, "what others wait for goes faster"
assert DUTY <= RESOLVE_DUTY, "a resolution that a feed waits for goes no slower than others"


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
        self._loaded_ns = 0
        """When the last bulk batch was written."""
        self._reading = 0
        self._read_ns = 0
        """When the last bulk read was over."""
        self._resolve_s = 0.0
        """What the last command of a resolution took."""
        self._fill_turn = Semaphore(1)
        self._filling = 0
        self._fill_s = 0.0
        """What the last block of a backfill took."""
        self.paused_s = 0.0
        """What bulk reads have waited for point work, all together."""

    def point(self) -> None:
        """A piece of point work was done."""
        self._points += 1

    def loaded(self, now_ns: int) -> None:
        """A bulk batch was written."""
        self._loaded_ns = now_ns

    def writing(self, now_ns: int) -> bool:
        """Whether there is point work, or rows are loaded: what is made of rows in the background has time."""
        return self.busy(now_ns) or (self._loaded_ns > 0 and now_ns - self._loaded_ns < LOAD_S * 1e9)

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
    async def after_reads(self, clock: Clock, *, awaited: bool) -> AsyncIterator[None]:
        """Let bulk reads go first, within bounds; for a command that resolves intents in bulk, which is run in the block.

        `awaited`: whether a feed waits for it.
        """
        until_ns = clock.monotonic_ns() + int(self._patience_s(awaited=awaited) * 1e9)
        while self.read(now_ns := clock.monotonic_ns()) and now_ns < until_ns:
            probe("replica.resolution_waits_for_reads")
            await clock.sleep(LOOK_S)
        began_ns = clock.monotonic_ns()
        try:
            yield
        finally:
            self._resolve_s = (clock.monotonic_ns() - began_ns) / 1e9

    def _patience_s(self, *, awaited: bool) -> float:
        """For how long a command of a resolution waits for bulk reads."""
        if not self._resolve_s:
            return PATIENCE_S
        if awaited:
            return min(DUTY * self._resolve_s, PAUSE_S_MAX)
        return min(RESOLVE_DUTY * self._resolve_s, RESOLVE_WAIT_S_MAX)

    @asynccontextmanager
    async def filling(self, clock: Clock) -> AsyncIterator[None]:
        """Let point work go first; for a block of a backfill, which is written in the block."""
        if self._filling >= WAITING_MAX:
            raise Overloaded("too many blocks of backfills wait on this node; back off", limit=WAITING_MAX)
        self._filling += 1
        level("replica.fill_waiting", self._filling, WAITING_MAX)
        try:
            async with self._fill_turn:
                if self.busy(clock.monotonic_ns()):
                    await self._until_free(clock)
                began_ns = clock.monotonic_ns()
                try:
                    yield
                finally:
                    self._fill_s = min((clock.monotonic_ns() - began_ns) / 1e9, PAUSE_S_MAX)
        finally:
            self._filling -= 1
            assert self._filling >= 0, "a place in the queue is given back once"

    async def _until_free(self, clock: Clock) -> None:
        """Wait until a short sleep is as short as it should be: then no point work waits for the loop."""
        began_ns = now_ns = clock.monotonic_ns()
        until_ns = began_ns + int(self._fill_s * 1e9)
        while now_ns < until_ns:
            probe("replica.fill_paused")
            before_ns = now_ns
            await clock.sleep(FILL_LOOK_S)
            now_ns = clock.monotonic_ns()
            if now_ns - before_ns < 2 * FILL_LOOK_S * 1e9:
                break
        self.paused_s += (now_ns - began_ns) / 1e9

    @asynccontextmanager
    async def admitted(self, clock: Clock, *, duty: float = DUTY) -> AsyncIterator[Page]:
        """Go ahead when it is this read's turn; beside point work it keeps the turn until it is done.

        The next one pauses for `duty` times what it cost.
        """
        self._reading += 1
        try:
            async with self._admitted(clock, duty) as page:
                yield page
        finally:
            self._reading -= 1
            assert self._reading >= 0, "a read is over once"
            self._read_ns = clock.monotonic_ns()

    @asynccontextmanager
    async def _admitted(self, clock: Clock, duty: float) -> AsyncIterator[Page]:
        if self._waiting >= WAITING_MAX:
            raise Overloaded("too many bulk reads wait on this node; back off, or ask another one", limit=WAITING_MAX)
        self._waiting += 1
        level("replica.bulk_waiting", self._waiting, WAITING_MAX)
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= 1
            assert self._waiting >= 0, "a place in the queue is given back once"
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
                    self._free_ns = now_ns + int(min(duty * cost_s, PAUSE_S_MAX) * 1e9)
        finally:
            if kept:
                self._turn.release()

    async def _pause(self, clock: Clock) -> None:
        wait_s = (self._free_ns - clock.monotonic_ns()) / 1e9
        if wait_s > 0:
            probe("replica.bulk_paused")
            assert wait_s <= PAUSE_S_MAX, "a pause is bounded"
            self.paused_s += wait_s
            await clock.sleep(wait_s)
