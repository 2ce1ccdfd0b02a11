"""Bulk reads take what point work leaves: several at a time without it, one at a time and with pauses beside it."""

import asyncio

import pytest

from slackwater.errors import Overloaded
from slackwater.replica.driver import bulk_gate
from slackwater.replica.driver.bulk_gate import (
    BULK_READS_MAX,
    COUNT_DUTY,
    DUTY,
    JOB_DUTY,
    LOAD_S,
    PAUSE_S_MAX,
    POINTS_MIN,
    RESOLVE_DUTY,
    RESOLVE_WAIT_S_MAX,
    SENT_BYTES_PER_S,
    WINDOW_S,
    BulkGate,
)


class Clock:
    """Time that passes when it is told to, or when a reader sleeps."""

    def __init__(self):
        self.ns = 10**12
        self.slept = []

    def monotonic_ns(self):
        return self.ns

    def wall_ns(self):
        return self.ns

    async def sleep(self, seconds):
        self.slept.append(seconds)
        self.ns += int(seconds * 1e9)
        await asyncio.sleep(0)

    def pass_s(self, seconds):
        self.ns += int(seconds * 1e9)


def busy_gate(clock):
    gate = BulkGate()
    gate.busy(clock.monotonic_ns())
    work(gate, clock)
    return gate


def work(gate, clock):
    """So much point work that a node is busy."""
    clock.pass_s(WINDOW_S)
    for _ in range(2 * POINTS_MIN):
        gate.point()


async def page(gate, clock, took_s, running, most, *, points=0, duty=DUTY):
    """Read a page, beside which some point work is done."""
    async with gate.admitted(clock, duty=duty):
        running.append(1)
        most.append(len(running))
        await asyncio.sleep(0)
        clock.pass_s(took_s)
        for _ in range(points):
            gate.point()
        running.pop()


def test_without_point_work_several_go_ahead_and_none_waits():
    async def play():
        clock, gate, running, most = Clock(), BulkGate(), [], []
        await asyncio.gather(*(page(gate, clock, 0.004, running, most) for _ in range(10)))
        assert max(most) == BULK_READS_MAX
        assert clock.slept == []

    asyncio.run(play())


def test_beside_point_work_one_goes_ahead_at_a_time_and_each_pauses_for_what_the_last_one_took():
    async def play():
        clock, running, most = Clock(), [], []
        gate = busy_gate(clock)
        await page(gate, clock, 0.004, running, most, points=100)
        for took_s in (0.004, 0.02, 0.001):
            before = len(clock.slept)
            await asyncio.gather(*(page(gate, clock, took_s, running, most, points=100) for _ in range(3)))
            assert clock.slept[before + 1 :] == [pytest.approx(DUTY * took_s)] * 2
        assert max(most) == 1

    asyncio.run(play())


def test_after_a_page_of_a_job_the_next_read_pauses_for_less():
    async def play():
        clock, running, most = Clock(), [], []
        gate = busy_gate(clock)
        for duty in (COUNT_DUTY, JOB_DUTY, DUTY):
            await page(gate, clock, 0.004, running, most, points=100, duty=duty)
            before = len(clock.slept)
            await page(gate, clock, 0.004, running, most, points=100)
            assert clock.slept[before:] == ([pytest.approx(duty * 0.004)] if duty else [])
            clock.pass_s(1)

    asyncio.run(play())


def test_bytes_cost_what_the_loop_needs_to_send_them():
    async def play():
        clock = Clock()
        gate = busy_gate(clock)
        async with gate.admitted(clock) as first:
            first.size = SENT_BYTES_PER_S // 100
        async with gate.admitted(clock):
            pass
        assert clock.slept == [pytest.approx(DUTY * 0.01)]

    asyncio.run(play())


def test_when_point_work_ends_so_do_the_pauses():
    async def play():
        clock, running, most = Clock(), [], []
        gate = busy_gate(clock)
        await page(gate, clock, 0.004, running, most)
        assert gate.busy(clock.monotonic_ns())
        clock.pass_s(WINDOW_S)
        assert not gate.busy(clock.monotonic_ns())
        slept = len(clock.slept)
        await asyncio.gather(*(page(gate, clock, 0.004, running, most) for _ in range(4)))
        assert len(clock.slept) == slept

    asyncio.run(play())


def test_a_reader_that_gives_up_leaves_its_turn_to_the_next():
    async def play():
        clock = Clock()
        gate = busy_gate(clock)
        async with gate.admitted(clock):
            given_up = asyncio.create_task(page(gate, clock, 0.001, [], []))
            last = asyncio.create_task(page(gate, clock, 0.001, [], []))
            await asyncio.sleep(0)
            given_up.cancel()
            await asyncio.sleep(0)
        await last
        assert given_up.cancelled()
        async with gate.admitted(clock):
            pass
        with pytest.raises(ValueError, match="damaged"):
            async with gate.admitted(clock):
                raise ValueError("damaged")
        await asyncio.wait_for(page(gate, clock, 0.001, [], []), 5)

    asyncio.run(play())


def test_no_more_wait_than_can_be_kept(monkeypatch):
    monkeypatch.setattr(bulk_gate, "WAITING_MAX", 1)

    async def play():
        clock = Clock()
        gate = busy_gate(clock)
        async with gate.admitted(clock):
            waits = asyncio.create_task(page(gate, clock, 0.001, [], []))
            await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await page(gate, clock, 0.001, [], [])
        await waits

    asyncio.run(play())


@pytest.mark.parametrize(
    ("awaited", "duty", "longest_s"), [(False, RESOLVE_DUTY, RESOLVE_WAIT_S_MAX), (True, DUTY, PAUSE_S_MAX)]
)
def test_a_resolution_waits_for_reads_and_not_for_ever(awaited, duty, longest_s):
    async def play():
        clock, gate = Clock(), BulkGate()
        order = []

        async def resolve(took_s):
            async with gate.after_reads(clock, awaited=awaited):
                clock.pass_s(took_s)
                order.append("resolved")

        await resolve(0.01)
        assert clock.slept == [], "without reads it goes ahead"
        async with gate.admitted(clock):
            began = clock.monotonic_ns()
            await resolve(0.01)  # the read never ends: it waits for as long as what the last one cost is worth
            assert duty * 0.01 <= (clock.monotonic_ns() - began) / 1e9 - 0.01 <= duty * 0.01 + bulk_gate.LOOK_S
            waiting = asyncio.create_task(resolve(0.01))
            await asyncio.sleep(0)
            order.append("read")
        await waiting
        assert order == ["resolved", "resolved", "read", "resolved"]
        clock.pass_s(bulk_gate.GAP_S)
        slept = len(clock.slept)
        await resolve(5.0)
        assert len(clock.slept) == slept, "the last read is over"
        async with gate.admitted(clock):
            before = clock.monotonic_ns()
            await resolve(0.0)
            assert longest_s <= (clock.monotonic_ns() - before) / 1e9 <= longest_s + bulk_gate.LOOK_S

    asyncio.run(play())


def test_the_first_command_of_a_resolution_waits_for_a_moment():
    async def play():
        clock, gate = Clock(), BulkGate()
        async with gate.admitted(clock):
            before = clock.monotonic_ns()
            async with gate.after_reads(clock, awaited=False):
                pass
            assert 0 < (clock.monotonic_ns() - before) / 1e9 <= bulk_gate.PATIENCE_S + bulk_gate.LOOK_S

    asyncio.run(play())


def test_a_block_of_a_backfill_waits_until_the_loop_is_free_and_not_for_ever():
    class Late(Clock):
        """The loop comes back so much later than it should, beside a short sleep."""

        late_s = 0.0

        async def sleep(self, seconds):
            await super().sleep(seconds)
            self.pass_s(self.late_s)

    async def play():
        clock = Late()
        gate = busy_gate(clock)
        running, most = [], []

        async def block(took_s):
            async with gate.filling(clock):
                running.append(1)
                most.append(len(running))
                await asyncio.sleep(0)
                clock.pass_s(took_s)
                running.pop()

        await block(0.02)
        assert clock.slept == [], "the first one has nothing to make up for"
        work(gate, clock)
        await block(0.02)
        assert clock.slept == [bulk_gate.FILL_LOOK_S], "the loop was free"
        clock.late_s = 0.004
        work(gate, clock)
        before, slept = clock.monotonic_ns(), len(clock.slept)
        await block(0.0)
        assert len(clock.slept) - slept == 4, "the loop was never free, and the last block had taken four such turns"
        assert (clock.monotonic_ns() - before) / 1e9 <= 0.02 + 0.005
        await asyncio.gather(*(block(0.001) for _ in range(5)))
        assert max(most) == 1, "one at a time"
        assert gate.paused_s > 0

    asyncio.run(play())


def test_no_endless_queue_of_blocks_of_backfills(monkeypatch):
    monkeypatch.setattr(bulk_gate, "WAITING_MAX", 1)

    async def play():
        clock, gate = Clock(), BulkGate()
        async with gate.filling(clock):
            with pytest.raises(Overloaded):
                async with gate.filling(clock):
                    pass
        async with gate.filling(clock):
            pass

    asyncio.run(play())


def test_a_load_is_writing_and_no_point_work_and_ends_with_its_last_batch():
    clock = Clock()
    gate = BulkGate()
    assert not gate.writing(clock.monotonic_ns())
    gate.loaded(clock.monotonic_ns())
    clock.pass_s(LOAD_S / 2)
    assert gate.writing(clock.monotonic_ns()), "between two batches of a slow client it goes on"
    assert not gate.busy(clock.monotonic_ns()), "bulk reads do not wait for it"
    clock.pass_s(LOAD_S)
    assert not gate.writing(clock.monotonic_ns())
    work(gate, clock)
    assert gate.writing(clock.monotonic_ns()), "point work writes, or has to be let through"
