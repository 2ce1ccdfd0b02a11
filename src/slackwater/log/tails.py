r"""Tails: many readers of many ranges behind one source of new entries.

A process reads new entries once, whatever the number of ranges and tails, and the hub hands them to the tails of their
range. A tail that starts behind, or falls behind, reads the log by itself until it has caught up:

                       new entries, once per process
                                  |
                              TailHub.dispatch
                         /        |         \
                    buffer     buffer      (full)         a bounded buffer per tail
                      |          |            :
                    Tail       Tail         Tail <------- Source.read(range, after)
                    live       live       catching up     bounded reads, checked for trims

Going live without a gap, and without an `await` between check and act:

    1. attach: from now on the buffer gets every dispatched entry of the range.
    2. read from the last delivered position, until the source says `complete`: the read covers all that had been
       dispatched before step 1.
    3. live: serve the buffer, dropping what step 2 already delivered (positions increase strictly: L-3).

If the buffer overflows meanwhile it is dropped and the tail begins again at step 1: a slow tail costs re-reads, never
memory. `demote` sends all live tails of a hub back to step 1; a source calls it when it cannot prove that it saw every
entry (something between two entries it read was trimmed), and step 2 then finds out which tails lost something (L-4).
"""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING, Protocol

from slackwater.errors import LogError, SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.sync import Future, get_running_loop

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.log.contract import Entry
    from slackwater.model.ids import Position, RangeId


class TailSource(Protocol):
    """The stored entries that a tail catches up from."""

    async def read(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """A bounded batch of entries > after, and whether it covers all that was dispatched before the call.

        Raises `LogTrimmed` if entries > after are gone.
        """
        ...


class TailHub:
    """Hands new entries to the tails of one log handle. Belongs to one loop."""

    def __init__(self, source: TailSource, *, buffer_bytes_max: int) -> None:
        assert buffer_bytes_max > 0, "a tail has room for something"
        self._source = source
        self._buffer_bytes_max = buffer_bytes_max
        self._tails: dict[RangeId, weakref.WeakSet[Tail]] = {}
        self._failure: SlackwaterError | None = None

    def tail(self, range_id: RangeId, *, after: Position) -> Tail:
        """A new tail; it reads nothing before its first `__anext__`."""
        tail = Tail(self, range_id, after=after, buffer_bytes_max=self._buffer_bytes_max)
        if self._failure is not None:
            tail.fail(self._failure)
        self._tails.setdefault(range_id, weakref.WeakSet()).add(tail)
        return tail

    def wants(self, range_id: RangeId) -> bool:
        """Whether any tail would see a new entry of this range."""
        return bool(self._tails.get(range_id))

    @property
    def busy(self) -> bool:
        """Whether there is any tail at all."""
        return any(self._tails.values())

    def dispatch(self, range_id: RangeId, entries: list[Entry], size: int) -> None:
        """Hand new entries, in order, to every tail of the range."""
        assert entries, "there is something to hand on"
        assert entries[0].position <= entries[-1].position, "entries are handed on in their order (L-3)"
        for tail in tuple(self._tails.get(range_id, ())):
            tail.push(entries, size)

    def demote(self) -> None:
        """Send every tail back to catch up: new entries may have been missed."""
        self._each(Tail.demote)

    def fail(self, error: SlackwaterError) -> None:
        """Make every tail, present and future, raise."""
        self._failure = error
        self._each(lambda tail: tail.fail(error))

    def close(self) -> None:
        """The handle was closed: tails say so."""
        self.fail(LogError("the log handle was closed; open the log again"))

    def forget(self, tail: Tail) -> None:
        """Drop a closed tail."""
        tails = self._tails.get(tail.range_id)
        if tails is not None:
            tails.discard(tail)
            assert tail not in tails, "a closed tail gets nothing"
            if not tails:
                del self._tails[tail.range_id]

    async def read(self, range_id: RangeId, *, after: Position) -> tuple[list[Entry], bool]:
        """Catch up from the source."""
        return await self._source.read(range_id, after=after)

    def _each(self, act: Callable[[Tail], None]) -> None:
        for tails in tuple(self._tails.values()):
            for tail in tuple(tails):
                act(tail)


class Tail:
    """One reader of one range. An async iterator that survives the cancellation of a wait."""

    def __init__(self, hub: TailHub, range_id: RangeId, *, after: Position, buffer_bytes_max: int) -> None:
        self.range_id = range_id
        self._hub = hub
        self._after = after
        self._buffer: list[Entry] = []
        self._buffered_bytes = 0
        self._buffer_bytes_max = buffer_bytes_max
        self._attached = False  # the buffer gets what is dispatched
        self._live = False  # and nothing before it is missing
        self._failure: SlackwaterError | None = None
        self._closed = False
        self._waiter: Future[None] | None = None

    def __aiter__(self) -> Tail:
        return self

    async def __anext__(self) -> list[Entry]:
        while True:
            if self._closed:
                raise StopAsyncIteration
            if self._failure is not None:
                raise self._failure
            if not self._live:
                entries = await self._catch_up()
            elif self._buffer:
                entries = self._take()
            else:
                await self._wait()
                continue
            if entries:
                assert entries[-1].position > self._after, "a tail only moves on (L-2)"
                self._after = entries[-1].position
                return entries

    async def aclose(self) -> None:
        """Stop: a pending `__anext__` ends the iteration."""
        self._closed = True
        self._drop_buffer()
        assert not self._buffered_bytes, "what is read again is not kept as well"
        self._hub.forget(self)
        assert not self._buffer, "a closed tail keeps nothing"
        self._wake()

    def push(self, entries: list[Entry], size: int) -> None:
        """New entries of the range. Called by the hub."""
        assert self._attached or not self._live, "a tail that is live gets what is new (L-4)"
        if not self._attached:
            return
        self._buffered_bytes += size
        assert size >= 0, "sizes are not negative"
        if self._buffered_bytes > self._buffer_bytes_max:
            probe("log.tail_fell_behind")  # tests/unit/log/test_tails.py
            self.demote()
            return
        assert not self._buffer or self._buffer[-1].position < entries[0].position, "entries come in their order (L-3)"
        self._buffer.extend(entries)
        assert self._buffered_bytes <= self._buffer_bytes_max, "what waits is bounded"
        self._wake()

    def demote(self) -> None:
        """Forget the buffer and read the log again from the last delivered position."""
        self._attached = self._live = False
        self._drop_buffer()
        self._wake()

    def fail(self, error: SlackwaterError) -> None:
        """Raise from now on. What is buffered is dropped: a re-opened tail will read it again."""
        self._failure = error
        self._wake()

    async def _catch_up(self) -> list[Entry]:
        self._attached = True
        entries, complete = await self._hub.read(self.range_id, after=self._after)
        if complete and self._attached:  # an overflow or a demotion during the read detached it again
            self._live = True
        assert self._attached or not self._live, "a tail that is live gets what is new (L-4)"
        assert not entries or entries[0].position > self._after, "no entry is given twice"
        return entries

    def _take(self) -> list[Entry]:
        assert self._buffer, "there is something to take"
        assert self._live, "what was handed on is given out once nothing before it is missing (L-4)"
        entries, self._buffer, self._buffered_bytes = self._buffer, [], 0
        if entries[0].position <= self._after:  # dispatched while the catch-up read was under way
            entries = [entry for entry in entries if entry.position > self._after]
        assert not entries or entries[0].position > self._after, "no entry is given twice"
        return entries

    def _drop_buffer(self) -> None:
        self._buffer = []
        self._buffered_bytes = 0

    async def _wait(self) -> None:
        assert self._waiter is None, "a tail has one reader"
        self._waiter = get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
