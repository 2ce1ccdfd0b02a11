from __future__ import annotations

import asyncio

import pytest

from slackwater import hooks
from slackwater.errors import LogError, LogTrimmed
from slackwater.log.contract import Entry
from slackwater.log.tails import TailHub
from slackwater.model.ids import Position, RangeId

R = RangeId(1)


class ListSource:
    """Entries in a list, read in batches of two."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.reads: list[int] = []
        self.during_read = lambda: None
        self.trimmed = 0

    def add(self, payload: bytes) -> list[Entry]:
        entry = Entry(Position(len(self.entries) + 1), payload)
        self.entries.append(entry)
        return [entry]

    async def read(self, range_id, *, after):
        self.reads.append(after)
        if after < self.trimmed:
            raise LogTrimmed("gone", after=after)
        rest = [e for e in self.entries if e.position > after]
        self.during_read()
        return rest[:2], len(rest) <= 2


def texts(entries):
    return b"".join(e.payload for e in entries)


def make(buffer_bytes_max=10):
    source = ListSource()
    return source, TailHub(source, buffer_bytes_max=buffer_bytes_max)


def test_catches_up_then_serves_what_is_dispatched_without_reading():
    async def go():
        source, hub = make()
        for payload in (b"a", b"b", b"c"):
            source.add(payload)
        tail = hub.tail(R, after=Position(0))
        assert texts(await anext(tail)) == b"ab"
        assert texts(await anext(tail)) == b"c"
        hub.dispatch(R, source.add(b"d"), 1)
        hub.dispatch(R, source.add(b"e"), 1)
        assert texts(await anext(tail)) == b"de"
        assert source.reads == [0, 2]

    asyncio.run(go())


def test_what_is_dispatched_during_a_catch_up_read_is_delivered_once():
    async def go():
        source, hub = make()
        source.add(b"a")
        tail = hub.tail(R, after=Position(0))
        source.during_read = lambda: hub.dispatch(R, source.entries[:1], 1)  # the reader was late to dispatch it
        assert texts(await anext(tail)) == b"a"
        source.during_read = lambda: None
        hub.dispatch(R, source.add(b"b"), 1)
        assert texts(await anext(tail)) == b"b"

    asyncio.run(go())


def test_a_slow_tail_drops_its_buffer_and_reads_again():
    async def go():
        seen = []
        hooks.install(probe=seen.append)
        try:
            source, hub = make(buffer_bytes_max=3)
            source.add(b"a")
            tail = hub.tail(R, after=Position(0))
            assert texts(await anext(tail)) == b"a"
            for payload in (b"b", b"c", b"d", b"e"):
                hub.dispatch(R, source.add(payload), 1)
            assert tail._buffer == []
            assert texts(await anext(tail)) == b"bc"
            assert texts(await anext(tail)) == b"de"
            hub.dispatch(R, source.add(b"f"), 1)
            assert texts(await anext(tail)) == b"f"
            assert source.reads == [0, 1, 3]
            assert seen == ["log.tail_fell_behind"]
        finally:
            hooks.install()

    asyncio.run(go())


def test_a_demoted_tail_finds_out_that_entries_are_gone():
    async def go():
        source, hub = make()
        source.add(b"a")
        tail = hub.tail(R, after=Position(0))
        await anext(tail)
        source.add(b"b")
        source.trimmed = 2
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        hub.demote()
        with pytest.raises(LogTrimmed):
            await waiting

    asyncio.run(go())


def test_a_cancelled_wait_leaves_the_tail_usable():
    async def go():
        source, hub = make()
        tail = hub.tail(R, after=Position(0))
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        hub.dispatch(R, source.add(b"a"), 1)
        assert texts(await anext(tail)) == b"a"

    asyncio.run(go())


def test_closing_and_failing():
    async def go():
        _, hub = make()
        tail, other = hub.tail(R, after=Position(0)), hub.tail(R, after=Position(0))
        waiting = asyncio.ensure_future(anext(tail))
        await asyncio.sleep(0)
        await tail.aclose()
        with pytest.raises(StopAsyncIteration):
            await waiting
        assert hub.wants(R)
        hub.close()
        with pytest.raises(LogError):
            await anext(other)
        with pytest.raises(LogError):
            await anext(hub.tail(R, after=Position(0)))

    asyncio.run(go())


def test_forgotten_tails_cost_nothing():
    async def go():
        _, hub = make()
        hub.tail(R, after=Position(0))
        assert not hub.wants(R)
        assert not hub.busy

    asyncio.run(go())
