"""The reference log: the contract of `log.contract.OrderedLog` with nothing clever in it.

    MemoryLog   the log itself: entries per range, one counter of positions. Outlives its handles, as a disk would.
    handle()    what a node holds: a `MemoryHandle`, an `OrderedLog`. Any number of them, opened and closed at will.

It is the twin the others are compared with (I-32), so it is written for reading: a tail scans a list, and every change
wakes every tail. It is not durable and lives in one process.

Faults, for tests of how a caller copes (L-2). They are armed by name for the next appends of one handle:

    lost_ack    the entries are appended, the caller is told AppendUnknown
    dropped     the entries are not appended, the caller is told AppendUnknown
    duplicate   the entries are appended twice, and the caller is told AppendUnknown
    late        AppendUnknown now; the entries appear when `MemoryLog.release()` is called

Read `tests/scripts/log` for worked examples.
"""

from __future__ import annotations

import bisect
import enum
from collections import deque
from typing import TYPE_CHECKING

from slackwater.errors import AppendUnknown, LogError, LogTrimmed
from slackwater.log.blocks import check_payloads
from slackwater.log.contract import Entry, LogIdentity
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.sync import Event
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.runtime.seam import Rng

TAIL_ENTRIES_MAX = 1024
"""Entries in one batch of a tail."""


class LogFault(enum.Enum):
    """What can go wrong with one append; see the module docstring."""

    LOST_ACK = "lost_ack"
    DROPPED = "dropped"
    DUPLICATE = "duplicate"
    LATE = "late"


class _Range:
    """One range's entries, oldest first."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.head = Position(0)
        self.trimmed = Position(0)  # the position of the newest entry that was removed


class MemoryLog:
    """Entries of all ranges. Shared by its handles."""

    def __init__(self, name: str, *, rng: Rng) -> None:
        self.identity = LogIdentity("memory", name, rng.bytes(16).hex())
        self._last = 0
        self._ranges: dict[RangeId, _Range] = {}
        self._late: deque[tuple[RangeId, list[bytes]]] = deque()
        self._changed = Event()

    def handle(self, *, settings: Settings | None = None) -> MemoryHandle:
        """A new handle, as one node would open."""
        return MemoryHandle(self, settings or Settings())

    def release(self) -> int:
        """Let the late appends appear now; how many there were."""
        released = len(self._late)
        while self._late:
            range_id, payloads = self._late.popleft()
            self.write(range_id, payloads)
        assert not self._late, "what was held back has appeared"
        return released

    def write(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """Append, at once and for good."""
        assert payloads, "an append has something in it"
        home = self._ranges.setdefault(range_id, _Range())
        for payload in payloads:
            self._last += 1
            home.entries.append(Entry(Position(self._last), bytes(payload)))
        home.head = Position(self._last)
        self.wake()
        assert home.head == home.entries[-1].position > home.trimmed, "positions only grow"
        return home.head

    def delay(self, range_id: RangeId, payloads: Sequence[bytes]) -> None:
        """Keep an append back until `release`."""
        assert payloads, "an append has something in it"
        self._late.append((range_id, list(payloads)))

    def read(self, range_id: RangeId, *, after: Position) -> list[Entry]:
        """Entries > after that are there now, or `LogTrimmed`."""
        home = self._ranges.get(range_id)
        if home is None:
            return []
        if after < home.trimmed:
            assert not home.entries or home.entries[0].position > home.trimmed, "what was trimmed is gone"
            first = home.entries[0].position if home.entries else None
            raise LogTrimmed("the entries asked for were trimmed; restore from a snapshot", after=after, first=first)
        at = bisect.bisect_right(home.entries, after, key=lambda entry: entry.position)
        assert at == len(home.entries) or home.entries[at].position > after, "only what was asked for"
        return home.entries[at : at + TAIL_ENTRIES_MAX]

    def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """Remove entries <= upto of one range."""
        home = self._ranges.setdefault(range_id, _Range())
        keep = bisect.bisect_right(home.entries, upto, key=lambda entry: entry.position)
        if keep:
            assert home.entries[keep - 1].position > home.trimmed, "what is trimmed only grows (L-5)"
            home.trimmed = home.entries[keep - 1].position
            assert home.trimmed <= home.head, "only what was written is trimmed"
            del home.entries[:keep]
            assert not home.entries or home.entries[0].position > upto, "what was asked for is trimmed (L-5)"
            self.wake()

    def head(self, range_id: RangeId) -> Position:
        """The newest position ever given to this range."""
        home = self._ranges.get(range_id)
        assert home is None or home.trimmed <= home.head, "only what was written is trimmed"
        return home.head if home else Position(0)

    async def changed(self) -> None:
        """Wait until something happened."""
        await self._changed.wait()

    def wake(self) -> None:
        """Something happened: every waiter looks again."""
        self._changed.set()
        self._changed = Event()


class MemoryHandle:
    """`log.contract.OrderedLog` over a `MemoryLog`."""

    def __init__(self, log: MemoryLog, settings: Settings) -> None:
        self._log = log
        self._settings = settings
        self._faults: deque[LogFault] = deque()
        self._closed = False

    def arm(self, *faults: LogFault) -> None:
        """Let the next appends of this handle fail, one fault each, in order."""
        self._faults.extend(faults)

    @property
    def closed(self) -> bool:
        """Whether `close` was called."""
        return self._closed

    async def append(self, range_id: RangeId, payloads: Sequence[bytes]) -> Position:
        """See `log.contract.OrderedLog`."""
        self._check_open()
        check_payloads(payloads, limit=int(self._settings["log.entry_bytes_max"]))
        if not self._faults:
            return self._log.write(range_id, payloads)
        fault = self._faults.popleft()
        if fault is LogFault.LATE:
            self._log.delay(range_id, payloads)
        elif fault is not LogFault.DROPPED:
            for _ in range(2 if fault is LogFault.DUPLICATE else 1):
                self._log.write(range_id, payloads)
        raise AppendUnknown("the log did not acknowledge the append; read the log to find out", range_id=range_id)

    def tail(self, range_id: RangeId, *, after: Position) -> MemoryTail:
        """See `log.contract.OrderedLog`."""
        return MemoryTail(self, self._log, range_id, after=after)

    async def trim(self, range_id: RangeId, *, upto: Position) -> None:
        """See `log.contract.OrderedLog`."""
        self._check_open()
        self._log.trim(range_id, upto=upto)

    async def head(self, range_id: RangeId) -> Position:
        """See `log.contract.OrderedLog`."""
        self._check_open()
        return self._log.head(range_id)

    def identity(self) -> LogIdentity:
        """See `log.contract.OrderedLog`."""
        return self._log.identity

    async def close(self) -> None:
        """Refuse further use; tails of this handle raise."""
        self._closed = True
        self._log.wake()

    def status(self) -> str:
        """One line about this handle."""
        state = "closed" if self._closed else "ok"
        return f"memory {self._log.identity.name} faults={len(self._faults)} {state}"

    def _check_open(self) -> None:
        if self._closed:
            raise LogError("the log handle was closed; open the log again")


class MemoryTail:
    """Reads one range from a `MemoryLog`."""

    def __init__(self, handle: MemoryHandle, log: MemoryLog, range_id: RangeId, *, after: Position) -> None:
        self._handle = handle
        self._log = log
        self._range_id = range_id
        self._after = after
        self._closed = False

    def __aiter__(self) -> MemoryTail:
        return self

    async def __anext__(self) -> list[Entry]:
        while not self._closed:
            if self._handle.closed:
                raise LogError("the log handle was closed; open the log again")
            entries = self._log.read(self._range_id, after=self._after)
            if entries:
                assert entries[0].position > self._after, "no entry is given twice (L-4)"
                assert entries[-1].position - entries[0].position >= len(entries) - 1, "positions of a range rise (L-3)"
                self._after = entries[-1].position
                return entries
            await self._log.changed()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """Stop: a pending `__anext__` ends the iteration."""
        self._closed = True
        self._log.wake()
