"""Whether an idle leaseholder may close: every reason not to, and what a promise does to the floor."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts import BucketTracker
from slackwater.closedts.closable import Closed
from slackwater.model.descriptors import Epoch, Generation, Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.log.commands import FreezeTrigger
from slackwater.replica.closing import try_close
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState

N1 = NodeId(1)
STATE = RangeState(
    RangeDescriptor(RangeId(7), b"a", b"z", (N1,), Generation(1)),
    Lease(N1, LeaseSequence(3), MIN, Epoch(5)),
    lai=LeaseAppliedIndex(4),
)


def buffer_of(state: RangeState = STATE) -> ProposalBuffer[None]:
    buffer: ProposalBuffer[None] = ProposalBuffer(RangeId(7), BucketTracker(), entry_bytes_max=1 << 16)
    buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
    return buffer


def ask(ts: int, *, buffer: ProposalBuffer[None] | None = None, **changes: Any) -> Closed | CannotClose:
    facts: dict[str, Any] = {
        "state": STATE,
        "hindered": None,
        "upto": Timestamp(1000),
    }
    return try_close(Timestamp(ts), buffer=buffer or buffer_of(), **(facts | changes))


def proposal(write: int) -> Proposal[None]:
    return Proposal(
        command_id=bytes(16),
        lease_sequence=STATE.lease.sequence,
        min_write_ts=Timestamp(write),
        effects=b"",
        stats=(),
        trigger=None,
        generation=0,
        waiter=None,
    )


def test_an_idle_leaseholder_closes_at_its_applied_index_and_writes_above() -> None:
    buffer = buffer_of()
    assert ask(100, buffer=buffer) == Closed(LeaseAppliedIndex(4), Epoch(5))
    assert buffer.floor == 101
    assert ask(90, buffer=buffer) == Closed(LeaseAppliedIndex(4), Epoch(5)), "less than is closed is closed"
    assert buffer.floor == 101


FROZEN = msgspec.structs.replace(STATE, frozen=FreezeTrigger(RangeId(6), 1))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"hindered": CannotClose.NO_VALID_LEASE}, CannotClose.NO_VALID_LEASE),
        ({"hindered": CannotClose.LEASE_MOVING}, CannotClose.LEASE_MOVING),
        ({"state": FROZEN}, CannotClose.MERGE_IN_PROGRESS),
        ({"upto": Timestamp(99)}, CannotClose.OVER_LEASE_END),
    ],
)
def test_reasons_not_to(changes: dict[str, Any], reason: CannotClose) -> None:
    buffer = buffer_of()
    assert ask(100, buffer=buffer, **changes) is reason
    assert buffer.floor == 1, "a refusal promises nothing"


def test_the_last_instant_of_the_lease_may_be_closed_and_no_more() -> None:
    assert isinstance(ask(1000), Closed)
    assert ask(1001) is CannotClose.OVER_LEASE_END


def test_nothing_is_closed_while_a_proposal_is_undecided() -> None:
    buffer = buffer_of()
    buffer.insert(proposal(50))
    assert ask(10, buffer=buffer) is CannotClose.PROPOSALS_IN_FLIGHT
    buffer.flush(close_target=MIN, close_limit=Timestamp(1000))
    assert ask(10, buffer=buffer) is CannotClose.PROPOSALS_IN_FLIGHT, "sequenced is not decided"
    buffer.take_decided(bytes(16))
    assert isinstance(ask(10, buffer=buffer), Closed)


def test_nothing_is_closed_at_or_above_a_write_that_is_evaluating() -> None:
    buffer = buffer_of()
    token = buffer.tracker.track(Timestamp(50))
    assert ask(50, buffer=buffer) is CannotClose.EVALUATING_BELOW
    assert isinstance(ask(49, buffer=buffer), Closed)
    buffer.tracker.untrack(token)
    assert isinstance(ask(50, buffer=buffer), Closed)
