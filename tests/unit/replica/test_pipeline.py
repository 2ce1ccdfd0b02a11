"""The way into the log: what becomes of a proposal whose append nobody answers."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.tracker import BucketTracker
from slackwater.errors import AppendUnknown, NotLeaseholder
from slackwater.model.descriptors import Generation, Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
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
