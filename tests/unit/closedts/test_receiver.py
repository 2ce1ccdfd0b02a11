"""The receiver: what a replica may believe, and which streams may speak."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.records import STEPS_MAX, Promise
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.update import Update
from slackwater.sim.mutants import applied

if TYPE_CHECKING:
    import pytest

R1 = RangeId(1)


def full(seq: int, ts: int, *members: tuple[int, int], node: int = 1, incarnation: int = 1) -> Update:
    return _update(node, incarnation, seq, ts, members, full=True)


def delta(
    seq: int,
    ts: int,
    *members: tuple[int, int],
    removed: tuple[int, ...] = (),
    node: int = 1,
    incarnation: int = 1,
) -> Update:
    return _update(node, incarnation, seq, ts, members, full=False, removed=removed)


def _update(
    node: int,
    incarnation: int,
    seq: int,
    ts: int,
    members: tuple[tuple[int, int], ...],
    *,
    full: bool,
    removed: tuple[int, ...] = (),
) -> Update:
    return Update(
        NodeId(node),
        incarnation,
        seq,
        full,
        [(1, Timestamp(ts))],
        [RangeId(r) for r in removed],
        [(RangeId(r), LeaseAppliedIndex(lai), 1) for r, lai in members],
    )


class Follower:
    """A receiver with one replica of r1 and a stream per node."""

    def __init__(self) -> None:
        self.receiver = Receiver()
        self.receiver.records.watch(R1)
        self.tokens: dict[int, int] = {}

    def take(self, *updates: Update) -> None:
        for update in updates:
            if update.sender not in self.tokens:
                self.tokens[update.sender] = self.receiver.attach(update.sender)
            assert self.receiver.receive(self.tokens[update.sender], update)

    def closed(self, applied: int) -> int:
        return self.receiver.closed_for(R1, LeaseAppliedIndex(applied))


def test_an_update_is_usable_once_its_index_is_applied() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    assert f.closed(4) == MIN
    assert f.closed(5) == 100


def test_a_member_that_is_not_mentioned_moves_with_its_group() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)), delta(3, 120), delta(4, 140))
    assert f.closed(5) == 140


def test_a_range_nobody_here_holds_is_not_closed() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5), (2, 5)))
    assert f.receiver.closed_for(RangeId(2), LeaseAppliedIndex(9)) == MIN
    f.receiver.records.watch(RangeId(2))
    assert f.receiver.closed_for(RangeId(2), LeaseAppliedIndex(9)) == 100, "the tables knew it all along"


def test_an_update_ahead_of_the_applied_index_hides_nothing() -> None:
    """Pitfall 9."""
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    f.take(delta(3, 120, (1, 6)))
    assert f.closed(5) == 100, "never asked before, and yet not forgotten"
    assert f.closed(6) == 120


def test_a_removed_range_keeps_what_it_had_and_gets_nothing_more() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)), delta(3, 120, removed=(1,)), delta(4, 140))
    assert f.closed(5) == 100


def test_indexes_may_regress_across_senders() -> None:
    """Pitfall 10: (lai 9, 100) of one sender, then (lai 8, 90) and (lai 8, 130) of another."""
    f = Follower()
    f.take(full(2, 100, (1, 9), node=1))
    assert f.closed(9) == 100
    f.take(full(2, 90, (1, 8), node=2))
    assert f.closed(9) == 100
    f.take(delta(3, 130, node=2))
    assert f.closed(9) == 130
    f.take(delta(3, 110, removed=(1,), node=1))
    assert f.closed(9) == 130


def test_planted_m04_regresses() -> None:
    with applied(["M04"]):
        f = Follower()
        f.take(full(2, 100, (1, 9), node=1))
        assert f.closed(9) == 100
        f.take(full(2, 90, (1, 8), node=2))
        assert f.closed(9) == 90, "the planted bug must break I-09, or no oracle can kill it"


def test_planted_m06_believes_too_early() -> None:
    with applied(["M06"]):
        f = Follower()
        f.take(full(2, 100, (1, 9)))
        assert f.closed(4) == 100, "the planted bug must break I-12"


def test_promises_survive_their_stream_and_their_sender() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    f.receiver.detach(NodeId(1), f.tokens.pop(1))
    assert f.closed(5) == 100
    f.take(full(2, 50, incarnation=2))
    assert f.closed(5) == 100, "the new life of the sender leads nothing, but what was promised is true"


def test_what_was_promised_before_a_restart_is_kept_even_if_nobody_asked_meanwhile() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    del f.tokens[1]
    f.take(full(7, 130, (1, 8)))
    assert f.closed(5) == 100
    assert f.closed(8) == 130


def test_a_gap_ends_the_stream_until_a_full_update_comes() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    token = f.tokens[1]
    assert not f.receiver.receive(token, delta(4, 140))
    assert f.closed(5) == 100
    assert not f.receiver.receive(token, delta(5, 160)), "the token is dead"
    fresh = f.receiver.attach(NodeId(1))
    assert not f.receiver.receive(fresh, delta(5, 160)), "a delta needs a full update before it"


def test_a_new_connection_begins_with_a_full_update_even_where_the_numbers_would_fit() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    fresh = f.receiver.attach(NodeId(1))
    assert not f.receiver.receive(fresh, delta(3, 120))


def test_another_incarnation_needs_a_full_update() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    assert not f.receiver.receive(f.tokens[1], delta(3, 140, incarnation=2))


def test_only_the_newest_connection_of_a_node_may_speak() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    zombie = f.tokens[1]
    f.tokens[1] = f.receiver.attach(NodeId(1))
    assert not f.receiver.receive(zombie, delta(3, 140))
    f.receiver.detach(NodeId(1), zombie)
    f.take(full(3, 140, (1, 5)))
    assert f.closed(5) == 140


def test_a_replica_that_comes_back_with_less_applied_starts_from_nothing() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)), delta(3, 120, (1, 7)))
    assert f.closed(7) == 120
    f.receiver.records.forget(R1)
    assert f.closed(7) == MIN
    f.receiver.records.watch(R1)
    assert f.closed(6) == MIN
    assert f.closed(7) == 120


def test_a_replica_that_is_replaced_hands_its_promises_to_the_next_one() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)), delta(3, 120, (1, 7)), delta(4, 130, (1, 9)))
    assert f.closed(7) == 120
    f.receiver.records.carry(R1, LeaseAppliedIndex(7))
    assert f.closed(6) == MIN, "the snapshot of another source may have applied less"
    assert f.closed(7) == 120
    assert f.closed(9) == 130


def test_a_promise_from_before_a_restart_holds_from_its_index_on() -> None:
    f = Follower()
    f.receiver.records.keep(R1, Promise(LeaseAppliedIndex(5), Timestamp(100)))
    assert f.closed(4) == MIN
    assert f.closed(5) == 100
    f.receiver.records.keep(RangeId(99), Promise(LeaseAppliedIndex(5), Timestamp(100)))
    assert f.receiver.closed_for(RangeId(99), LeaseAppliedIndex(5)) == MIN, "there is no replica here any more"


def test_a_follower_far_behind_keeps_the_first_and_the_newest_promise() -> None:
    f = Follower()
    f.take(full(2, 100, (1, 5)))
    for n in range(1, 10):
        f.take(delta(2 + n, 100 + n, (1, 5 + n)))
    assert f.receiver.dropped(R1) == 9 - STEPS_MAX
    assert f.closed(5) == 100
    assert f.closed(14) == 109


def test_the_number_of_streams_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.closedts.log_driven.receiver.STREAMS_MAX", 1)
    f = Follower()
    f.take(full(2, 100, (1, 5), node=1))
    f.receiver.detach(NodeId(1), f.tokens[1])
    f.take(full(2, 50, (2, 5), node=2))
    assert f.closed(5) == 100, "evicted, but not forgotten"


def test_what_a_replica_waits_for() -> None:
    f = Follower()
    f.take(full(2, 12, (1, 1)))
    assert f.receiver.status(R1, LeaseAppliedIndex(0)) == "r1 applied=0 closed=0 pending=(12 @lai 1)"
    assert f.receiver.status(R1, LeaseAppliedIndex(1)) == "r1 applied=1 closed=12"
