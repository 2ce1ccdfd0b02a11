"""The way into the log: what becomes of a proposal whose append nobody answers."""

from __future__ import annotations

import asyncio
import math
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.tracker import BucketTracker
from slackwater.errors import AppendUnknown, NotLeaseholder
from slackwater.model.descriptors import Generation, Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.log.commands import Command, decode_packet
from slackwater.replica.driver.pipeline import Pipeline, Waiter
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState

DESCRIPTOR = RangeDescriptor(RangeId(7), b"\x04a", b"\x04z", (NodeId(1),), Generation(1))
LEASE = Lease(NodeId(1), LeaseSequence(3), Timestamp(100), expiration=Timestamp(900))


class DeafLog:
    """A log that takes nothing and answers nothing; meanwhile somebody else's entry is applied."""

    def __init__(self, meanwhile: Any) -> None:
        self._meanwhile = meanwhile

    async def append(self, range_id: RangeId, payloads: list[bytes]) -> None:
        self._meanwhile()
        raise AppendUnknown("no answer")


async def _nap(seconds: float) -> None:
    await asyncio.sleep(0)


def test_a_proposal_whose_index_was_taken_is_refused_not_forgotten() -> None:
    """Found by seed 1031 of the cluster scenario: a late entry of the node's former life used up the same indexes.

    The pipeline stopped repeating the append, since nothing with that index could apply any more, but told nobody: the
    requests, their latches and everything behind them waited for ever.
    """
    replica = SimpleNamespace(state=RangeState(DESCRIPTOR, LEASE, LeaseAppliedIndex(4)))

    def taken() -> None:
        replica.state = RangeState(DESCRIPTOR, LEASE, LeaseAppliedIndex(9))

    async def go() -> None:
        context: Any = SimpleNamespace(
            log=DeafLog(taken), runtime=SimpleNamespace(clock=SimpleNamespace(sleep=_nap)), node_id=NodeId(1)
        )
        buffer: ProposalBuffer[Waiter] = ProposalBuffer(RangeId(7), BucketTracker(), entry_bytes_max=1 << 16)
        buffer.start_lease(sequence=LeaseSequence(3), lai=LeaseAppliedIndex(4), closed=MIN)
        pipeline = Pipeline(context, buffer, of=replica, targets=lambda: (MIN, MIN))
        waiter = Waiter()
        pipeline.submit(
            Proposal(
                command_id=b"x" * 12,
                lease_sequence=LeaseSequence(3),
                min_write_ts=MIN,
                effects=b"",
                stats=(),
                trigger=None,
                generation=0,
                waiter=waiter,
            )
        )
        running = asyncio.create_task(pipeline.run())
        with pytest.raises(NotLeaseholder):
            await asyncio.wait_for(waiter.wait(), 5)
        assert buffer.in_flight == 0
        running.cancel()

    asyncio.run(go())


class StuckLog:
    """A log that does not answer for entries of a proposal, and takes every other one."""

    def __init__(self, stuck: bytes, take: Any) -> None:
        self._stuck, self._take = stuck, take
        self.asked = 0

    async def append(self, range_id: RangeId, payloads: list[bytes]) -> None:
        for payload in payloads:
            commands = decode_packet(payload).commands
            if any(command.command_id == self._stuck for command in commands):
                self.asked += 1
                raise AppendUnknown("no answer")
            self._take(commands)


@pytest.mark.parametrize("patient", [False, True])
def test_an_entry_that_is_under_way_for_too_long_is_pushed_out_by_an_empty_command(patient: bool) -> None:
    """Seed 001: a delayed write must fail its index check. Where there is no such age, it is repeated for ever."""
    replica = SimpleNamespace(state=RangeState(DESCRIPTOR, LEASE, LeaseAppliedIndex(4)))
    taken: list[Command] = []

    def take(commands: list[Command]) -> None:
        taken.extend(commands)
        replica.state = RangeState(DESCRIPTOR, LEASE, commands[-1].lai)

    async def go() -> None:
        log = StuckLog(b"x" * 16, take)
        ticks = iter(range(0, 1 << 62, 100_000_000))
        clock = SimpleNamespace(sleep=_nap, monotonic_ns=lambda: next(ticks))
        rng = SimpleNamespace(bytes=lambda count: b"e" * count)
        context: Any = SimpleNamespace(log=log, runtime=SimpleNamespace(clock=clock, rng=rng), node_id=NodeId(1))
        buffer: ProposalBuffer[Waiter] = ProposalBuffer(RangeId(7), BucketTracker(), entry_bytes_max=1 << 16)
        buffer.start_lease(sequence=LeaseSequence(3), lai=LeaseAppliedIndex(4), closed=MIN)
        patience_s = math.inf if patient else 1.0
        pipeline = Pipeline(context, buffer, of=replica, targets=lambda: (MIN, MIN), patience_s=lambda: patience_s)
        waiter = Waiter()
        pipeline.submit(
            Proposal(
                command_id=b"x" * 16,
                lease_sequence=LeaseSequence(3),
                min_write_ts=Timestamp(700),
                effects=b"",
                stats=(),
                trigger=None,
                generation=0,
                waiter=waiter,
            )
        )
        running = asyncio.create_task(pipeline.run())
        if patient:
            while log.asked < 40:
                await asyncio.sleep(0)
            assert not waiter.done()
            assert taken == []
        else:
            with pytest.raises(NotLeaseholder):
                await asyncio.wait_for(waiter.wait(), 5)
            (empty,) = taken
            assert (empty.lai, empty.min_write_ts, empty.effects) == (6, MIN, b""), "the late entry has index 5"
            assert buffer.in_flight == 0
        running.cancel()

    asyncio.run(go())


def test_a_cancelled_caller_leaves_the_command_and_its_keepers_alone() -> None:
    async def go() -> None:
        waiter = Waiter()
        told: list[object] = []
        waiter.when_settled(told.append)
        caller = asyncio.create_task(waiter.wait())
        await asyncio.sleep(0)
        caller.cancel()
        await asyncio.sleep(0)
        assert caller.cancelled()
        assert not waiter.done()
        assert told == []
        state = RangeState(DESCRIPTOR, LEASE, LeaseAppliedIndex(9))
        waiter.settle(state)
        assert told == [None]
        assert await waiter.wait() is state  # asked late

    asyncio.run(go())


def test_a_command_that_fails_tells_its_keepers_before_its_caller() -> None:
    async def go() -> None:
        waiter = Waiter()
        order: list[object] = []
        waiter.when_settled(order.append)

        async def call() -> None:
            try:
                await waiter.wait()
            except NotLeaseholder as error:
                order.append(type(error))

        caller = asyncio.create_task(call())
        await asyncio.sleep(0)
        error = NotLeaseholder("gone", range_id=RangeId(7), hint=NodeId(0), reason="test")
        waiter.settle(None, error)
        await caller
        assert order == [error, NotLeaseholder]

    asyncio.run(go())
