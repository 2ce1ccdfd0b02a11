"""Stores that are not one of a kind, and logs that end too early: refused, and by whom."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace

import pytest

from slackwater.clock import HybridClock
from slackwater.clock.timestamp import MIN, add_seconds
from slackwater.errors import ConnectionLost, LogBehindStore, NodeFenced, UnavailableError
from slackwater.model.descriptors import Generation, Lease, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.replica.driver import NodeLiveness
from slackwater.replica.driver.liveness import RENEWALS_SEEN_MAX
from slackwater.replica.state import RangeState, encode_state, state_key
from slackwater.runtime import RealRuntime
from slackwater.runtime.seam import Family
from slackwater.server.identity import LIVES_KEPT_MAX, StoreLives, check_heads
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from tests.unit.replica.test_liveness import Records, Wall

N1 = NodeId(1)


async def process(engine: MemoryEngine, records: Records, wall: Wall, *, first_lease=lambda: None) -> NodeLiveness:
    """A process that starts on a store."""
    runtime = RealRuntime(disk=None)
    lives = StoreLives(engine, runtime.rng)
    await lives.claim()
    clock = HybridClock(wall, max_offset_s=0.5)
    settings = Settings({"liveness.heartbeat_interval": 0.05, "lease.duration": 4.0})
    return NodeLiveness(
        N1, runtime, clock, settings, records, trusted=lambda: None, lives=lives, first_lease=first_lease
    )


def copied(engine: MemoryEngine) -> MemoryEngine:
    disk = MemoryDisk()
    disk.add("store", engine)
    return disk.copied().open("store")


def test_a_copy_of_a_store_that_has_lived_on_since_is_refused():
    async def main():
        store, records, wall = MemoryEngine(), Records(), Wall()
        await (await process(store, records, wall))._begin()
        copy = copied(store)
        wall.ns += 10**10
        again = await process(store, records, wall)
        await again._begin()
        with pytest.raises(NodeFenced, match="since this one was made"):
            await (await process(copy, records, wall))._begin()
        await again._heartbeat()
        assert again.own() is not None, "the one that was there first goes on"

    asyncio.run(main())


def test_a_copy_of_a_store_that_runs_is_refused_once_the_record_was_renewed_under_its_eyes():
    async def main():
        store, records, wall = MemoryEngine(), Records(), Wall()
        running = await process(store, records, wall)
        await running._begin()
        copy = await process(copied(store), records, wall)
        for _ in range(RENEWALS_SEEN_MAX):
            with pytest.raises(UnavailableError, match="not expired yet"):
                await copy._begin()
            wall.ns += 10**9
            await running._heartbeat()
        with pytest.raises(NodeFenced, match="runs in another process"):
            await copy._begin()
        assert not copy.registered.is_set()

    asyncio.run(main())


def test_a_peer_tells_an_old_copy_that_can_read_neither_record_nor_log():
    async def main():
        store, records, wall = MemoryEngine(), Records(), Wall()
        former = await process(store, records, wall)
        copy = await process(copied(store), Records(), wall)
        running = await process(store, records, wall)
        copy.hear_of_life(former._lives.life)
        copy._check_lease()  # a former life of the copied store: nothing wrong with that
        copy.hear_of_life(running._lives.life)
        with pytest.raises(NodeFenced, match="from another copy of this store"):
            copy._check_lease()
        running.hear_of_life(0)
        running._check_lease()

    asyncio.run(main())


def test_a_process_that_was_cut_off_stops_when_it_finds_a_copy_in_its_place():
    async def main():
        store, records, wall = MemoryEngine(), Records(), Wall()
        cut_off = await process(store, records, wall)
        await cut_off._begin()
        copy = await process(copied(store), records, wall)
        wall.ns += 10**10
        await copy._begin()
        assert copy.own() is not None
        with pytest.raises(NodeFenced, match="while this one was cut off"):
            await cut_off._attempt(cut_off._heartbeat)
        assert cut_off.own() is None

    asyncio.run(main())


@pytest.mark.parametrize(
    ("life", "start_s", "until_s", "refused"),
    [
        ("unknown", -100, -1, False),  # a process of which this store knows nothing has led range 1
        ("unknown", -100, 20, True),  # … and still does
        ("unknown", 2, 8, False),  # it has taken the lease, and may be the one that is to read that it is a copy
        ("former", -100, -1, False),  # our former life extended it, up to its end
        ("former", -100, 20, True),  # … and still does
        ("former", 2, 8, False),  # another node has handed it to our former life, whose record was still live
        ("own", -100, 20, False),
    ],
)
def test_the_lease_of_range_one_tells_of_another_process(life: str, start_s: float, until_s: float, refused: bool):
    """Where the other process leads range 1, requests for the record come to this one: the log is all there is."""

    async def main():
        store, records, wall, found = MemoryEngine(), Records(), Wall(), []
        former = await process(store, records, wall)
        one = await process(store, records, wall, first_lease=lambda: found[0])
        numbers = {"unknown": 77, "former": former._lives.life, "own": one._lives.life}
        now = one._clock.now()
        start, until = add_seconds(now, start_s), add_seconds(now, until_s)
        found.append(Lease(N1, 3, start, expiration=until, life=numbers[life]))
        if refused:
            with pytest.raises(NodeFenced, match="leads range 1"):
                await one._attempt(one._begin)
        else:
            assert await one._attempt(one._begin)

    asyncio.run(main())


def test_a_store_remembers_its_last_lives_and_no_more():
    async def main():
        store, rng, lives = MemoryEngine(), RealRuntime(disk=None).rng, []
        for _ in range(LIVES_KEPT_MAX + 5):
            one = StoreLives(store, rng)
            await one.claim()
            lives.append(one.life)
        last = StoreLives(store, rng)
        assert all(last.knows(life) for life in lives[-LIVES_KEPT_MAX:])
        assert not any(last.knows(life) for life in lives[:5])
        assert last.knows(0), "records of a time before lives were counted"

    asyncio.run(main())


class Heads:
    """A log of which only the ends are known."""

    def __init__(self, heads: dict[int, int], *, silent: int = 0) -> None:
        self.heads = heads
        self.silent = silent
        self.asked = 0

    async def head(self, range_id: RangeId) -> Position:
        self.asked += 1
        if self.asked <= self.silent:
            raise ConnectionLost("the log does not answer; retry")
        return Position(self.heads[range_id])


def store_at(**positions: int) -> MemoryEngine:
    engine, batch = MemoryEngine(), WriteBatch()
    for name, position in positions.items():
        range_id = RangeId(int(name[1:]))
        descriptor = RangeDescriptor(range_id, b"a", b"b", (N1,), Generation(1))
        state = RangeState(descriptor, position=Position(position), closed=MIN)
        batch.put(Family.LOCAL, state_key(range_id), encode_state(state))
    engine.write(batch)
    return engine


@pytest.mark.parametrize(
    ("heads", "silent", "refused"),
    [({1: 10, 2: 7}, 0, False), ({1: 99, 2: 99}, 2, False), ({1: 10, 2: 6}, 0, True), ({1: 0, 2: 0}, 1, True)],
)
def test_a_log_that_ends_before_what_a_store_has_applied_is_refused(heads, silent, refused):
    async def main():
        slept = []
        runtime = RealRuntime(disk=None)
        clock = SimpleNamespace(sleep=lambda s: slept.append(s) or asyncio.sleep(0))
        log = Heads(heads, silent=silent)
        work = check_heads(store_at(r1=10, r2=7), log, SimpleNamespace(clock=clock), runtime.scope("test"))
        if not refused:
            await work
            assert bool(slept) == bool(silent), "a log that does not answer is asked again"
            return
        with pytest.raises(LogBehindStore, match="ends before what this store has applied") as caught:
            await work
        assert caught.value.facts["applied"] > caught.value.facts["head"]
        assert len(slept) >= 3, "it may only have been asked where it lags behind"

    asyncio.run(main())
