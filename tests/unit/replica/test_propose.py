"""The proposal buffer: indices, closed timestamps, and what may be closed when."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.closedts.tracker import BucketTracker
from slackwater.errors import EntryTooLarge, InvariantViolation
from slackwater.protocol.log.commands import decode_packet
from slackwater.replica.propose import Proposal, ProposalBuffer
from tests.twins.heap_tracker import HeapTracker


def proposal(name: str, ts: int, *, size: int = 1) -> Proposal[str]:
    return Proposal(
        command_id=name.encode().ljust(12, b"."),
        lease_sequence=1,
        min_write_ts=Timestamp(ts),
        effects=b"x" * size,
        stats=(),
        trigger=None,
        generation=0,
        waiter=name,
    )


def make(tracker=None, *, entry_bytes_max: int = 1 << 16) -> ProposalBuffer[str]:
    buffer: ProposalBuffer[str] = ProposalBuffer(7, tracker or BucketTracker(), entry_bytes_max=entry_bytes_max)
    buffer.start_lease(sequence=1, lai=10, closed=Timestamp(100))
    return buffer


def test_a_flush_assigns_indices_in_order_and_closes_with_its_last_command() -> None:
    buffer = make()
    for name, ts in (("a", 110), ("b", 120)):
        buffer.insert(proposal(name, ts))
    flight = buffer.flush(close_target=Timestamp(130), close_limit=MAX)
    assert flight is not None
    commands = decode_packet(flight.payload).commands
    assert [c.lai for c in commands] == [11, 12]
    assert [c.closed for c in commands] == [100, 130], "earlier commands carry what was closed before"
    assert buffer.tracker.count == 0
    assert buffer.floor == 131


def test_what_is_still_buffered_holds_closing_back() -> None:
    buffer = make(entry_bytes_max=1200)
    buffer.insert(proposal("a", 110, size=600))
    buffer.insert(proposal("b", 115, size=600))
    flight = buffer.flush(close_target=Timestamp(130), close_limit=MAX)
    assert flight is not None
    assert flight.closed == 114
    assert buffer.buffered == 1


def test_closing_stops_at_the_end_of_the_lease_and_never_regresses() -> None:
    buffer = make()
    assert buffer.close(target=Timestamp(500), limit=Timestamp(300)) == 300
    assert buffer.close(target=Timestamp(200), limit=MAX) == 300
    assert buffer.close(target=MIN, limit=MIN) == 300


def test_a_write_at_or_below_closed_is_refused_at_the_door() -> None:
    buffer = make()
    with pytest.raises(InvariantViolation, match="I-10"):
        buffer.insert(proposal("a", 100))


def test_a_command_larger_than_an_entry_is_refused() -> None:
    with pytest.raises(EntryTooLarge):
        make(entry_bytes_max=1000).insert(proposal("a", 110, size=2000))


def test_a_new_lease_kills_what_was_waiting_and_empties_the_tracker() -> None:
    buffer = make()
    buffer.insert(proposal("a", 110))
    buffer.insert(proposal("b", 120))
    buffer.flush(close_target=MIN, close_limit=MIN)
    buffer.insert(proposal("c", 130))
    dead = buffer.start_lease(sequence=2, lai=40, closed=Timestamp(90))
    assert [p.waiter for p in dead] == ["a", "b", "c"]
    assert (buffer.tracker.count, buffer.in_flight, buffer.buffered) == (0, 0, 0)
    assert buffer.assigned_closed == 100, "closed survives lease churn"
    assert buffer.assigned_lai == 40


def test_settling_tells_each_waiter_once() -> None:
    buffer = make()
    buffer.insert(proposal("a", 110))
    flight = buffer.flush(close_target=MIN, close_limit=MIN)
    assert flight is not None
    command_id = flight.proposals[0].command_id
    settled = buffer.take_decided(command_id)
    assert settled is not None
    assert settled.waiter == "a"
    assert buffer.take_decided(command_id) is None


@pytest.mark.parametrize("tracker", [BucketTracker, HeapTracker])
@given(
    steps=st.lists(
        st.one_of(st.tuples(st.just("insert"), st.integers(1, 40)), st.tuples(st.just("flush"), st.integers(0, 80))),
        max_size=30,
    )
)
def test_no_sequenced_write_is_at_or_below_what_an_earlier_command_closed(tracker, steps) -> None:
    buffer = make(tracker())
    closed, count, now = 100, 0, 100
    for step, amount in steps:
        if step == "insert":
            count += 1
            buffer.insert(proposal(f"p{count}", int(buffer.floor) + amount))
            continue
        now += amount
        flight = buffer.flush(close_target=Timestamp(now), close_limit=MAX)
        for command in decode_packet(flight.payload).commands if flight else []:
            assert command.min_write_ts > closed
            assert command.closed >= closed
            closed = command.closed
    if not buffer.buffered:
        assert buffer.tracker.count == 0
