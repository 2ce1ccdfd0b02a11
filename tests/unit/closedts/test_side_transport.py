"""The sender of the side transport: who is asked, who moves, what is said."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import MIN
from slackwater.closedts.log_driven import sender as side_transport
from slackwater.closedts.log_driven.sender import UPDATES_KEPT, Sender
from slackwater.closedts.policy import ClosingPolicy, Terms
from slackwater.config.zones import PolicyKind
from slackwater.errors import UsageError
from slackwater.model.ids import RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from tests.unit.closedts.transport_world import FakeRange, at, lease, new_sender, tick


def test_an_idle_range_is_asked_once_and_then_moves_with_its_group() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1)
    first = tick(sender, 10)
    assert first.members == [(1, 1, 1)]
    assert first.groups == [(1, at(7))]
    for n in range(11, 30):
        update = tick(sender, n)
        assert not update.members
        assert not update.removed
        assert update.groups == [(1, at(n - 3))]
    assert r.asked == 1
    assert sender.promised(r.id) == at(26)


def test_the_size_of_an_idle_update_does_not_depend_on_the_number_of_ranges() -> None:
    few, many = new_sender(), new_sender()
    FakeRange(few, 1)
    for n in range(1000):
        FakeRange(many, n)
    for sender in (few, many):
        tick(sender, 10)
    assert tick(few, 11).status() == tick(many, 11).status()


def test_a_write_stands_above_what_its_group_closed_and_leaves_the_group_until_asked() -> None:
    sender = new_sender()
    r, other = FakeRange(sender, 1), FakeRange(sender, 2)
    tick(sender, 10)
    tick(sender, 20)
    assert r.closed == at(7), "nobody told the range; it asks when it is touched"
    assert r.write() == at(17) + 1
    r.refuses = CannotClose.PROPOSALS_IN_FLIGHT
    update = tick(sender, 30)
    assert update.removed == [1]
    assert sender.promised(r.id) == MIN
    assert r.closed == at(17), "a range that left must not move with its group"
    r.refuses = None
    update = tick(sender, 40)
    assert update.members == [(1, 2, 1)]
    assert (r.asked, other.asked) == (3, 1)


def test_a_touch_without_a_write_changes_nothing_that_streams_see() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1)
    tick(sender, 10)
    sender.touch(r.id)
    update = tick(sender, 11)
    assert not update.members
    assert not update.removed
    assert r.asked == 2


def test_a_lease_with_its_own_expiration_is_asked_every_time() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1, epoch=0)
    for n in range(10, 15):
        tick(sender, n)
    assert r.asked == 5
    r.refuses = CannotClose.OVER_LEASE_END
    assert tick(sender, 20).removed == [1]


def test_no_group_moves_past_the_end_of_the_nodes_epoch() -> None:
    sender = new_sender()
    FakeRange(sender, 1)
    tick(sender, 10, upto=8)
    assert tick(sender, 20, upto=8).groups == [(1, at(8))]


def test_without_a_node_lease_nothing_moves_and_nothing_is_forgotten() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1)
    tick(sender, 10)
    update = sender.tick(at(20), Terms(), None)
    assert update.groups == [(1, at(7))]
    assert not update.removed
    assert sender.refusals[CannotClose.NO_VALID_LEASE] == 1
    assert tick(sender, 21).groups == [(1, at(18))]
    assert r.asked == 1


def test_a_new_epoch_makes_every_member_prove_its_lease_again() -> None:
    sender = new_sender()
    r, renewed = FakeRange(sender, 1), FakeRange(sender, 2)
    tick(sender, 10)
    r.refuses = CannotClose.NO_VALID_LEASE
    renewed.epoch = renewed.epoch.__class__(6)
    update = tick(sender, 20, epoch=6)
    assert update.removed == [1]
    assert r.closed == at(7)
    assert sender.promised(renewed.id) == at(17)


def test_a_range_that_closed_under_another_epoch_is_not_taken() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1, epoch=4)
    assert not tick(sender, 10).members
    assert sender.refusal(r.id) is not None


def test_parked_ranges_are_not_asked_until_touched_and_others_every_tick() -> None:
    sender = new_sender()
    parked, busy = FakeRange(sender, 1), FakeRange(sender, 2)
    parked.refuses, busy.refuses = CannotClose.NO_VALID_LEASE, CannotClose.PROPOSALS_IN_FLIGHT
    for n in range(10, 20):
        tick(sender, n)
    assert (parked.asked, busy.asked) == (1, 10)
    sender.touch(parked.id)
    tick(sender, 20)
    assert parked.asked == 2
    assert sender.refusals == {CannotClose.NO_VALID_LEASE: 2, CannotClose.PROPOSALS_IN_FLIGHT: 11}
    refusal = sender.refusal(busy.id)
    assert refusal is not None
    assert refusal.since == at(10), "since when, not when last"


def test_asking_is_bounded_and_fair(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_transport, "ASKED_PER_TICK_MAX", 2)
    sender = new_sender()
    ranges = [FakeRange(sender, n) for n in range(1, 6)]
    for r in ranges[:2]:
        r.refuses = CannotClose.PROPOSALS_IN_FLIGHT
    for n in range(10, 14):
        tick(sender, n)
    assert all(sender.promised(r.id) for r in ranges[2:]), "busy ranges must not crowd out idle ones"


def test_a_member_that_is_touched_but_not_reached_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = new_sender()
    ranges = [FakeRange(sender, n) for n in range(1, 4)]
    tick(sender, 10)
    monkeypatch.setattr(side_transport, "ASKED_PER_TICK_MAX", 1)
    tick(sender, 20)
    for r in ranges:
        r.write()
    update = tick(sender, 30)
    assert update.removed == [2, 3]
    assert update.members == [(1, 2, 1)]
    assert ranges[1].closed == at(17)


def test_policies_form_groups_and_a_change_of_policy_never_moves_a_range_back() -> None:
    sender = new_sender()
    lead = ClosingPolicy(PolicyKind.LEAD, rtt_step=7)
    r, other = FakeRange(sender, 1, policy=lead), FakeRange(sender, 2)
    update = tick(sender, 10)
    assert update.groups == [(1, at(10.81)), (2, at(7))]
    tick(sender, 11)
    assert r.closed == at(10.81), "standing members are not told"
    r.own_policy = ClosingPolicy()
    sender.touch_all()
    update = tick(sender, 12)
    assert update.members == [(1, 1, 2)]
    assert update.groups == [(2, at(9))], "the group of nobody is gone"
    assert r.closed == at(11.81), "what was promised in the old group holds"
    assert other.closed == at(9)


def test_policy_off_and_back_on() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1)
    off = Terms(target_duration_s=0.0)
    assert not sender.tick(at(10), off, lease()).members
    assert sender.refusals[CannotClose.POLICY_OFF] == 1
    assert tick(sender, 11).members == [(1, 1, 1)], "a change of the setting asks everybody again"
    update = sender.tick(at(20), off, lease())
    assert update.removed == [1]
    assert r.closed == at(8)


def test_too_many_policies_close_nothing_for_the_surplus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_transport, "GROUPS_MAX", 1)
    sender = new_sender()
    FakeRange(sender, 1)
    FakeRange(sender, 2, policy=ClosingPolicy(duration_ms=10))
    tick(sender, 10)
    assert sender.refusals == {CannotClose.TOO_MANY_POLICIES: 1}


def test_a_longer_target_duration_does_not_move_a_group_back() -> None:
    sender = new_sender()
    FakeRange(sender, 1)
    tick(sender, 10)
    assert sender.tick(at(11), Terms(target_duration_s=9.0), lease()).groups == [(1, at(7))]
    assert sender.tick(at(20), Terms(target_duration_s=9.0), lease()).groups == [(1, at(11))]


def test_a_removed_replica_is_said_to_be_removed() -> None:
    sender = new_sender()
    r = FakeRange(sender, 1)
    tick(sender, 10)
    sender.remove(r.id)
    assert tick(sender, 11).removed == [1]
    assert not tick(sender, 12).removed
    assert sender.refusal(r.id) is None


def test_the_number_of_ranges_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_transport, "RANGES_MAX", 1)
    sender = new_sender()
    FakeRange(sender, 1)
    with pytest.raises(UsageError):
        FakeRange(sender, 2)


# --- streams -------------------------------------------------------------------------------------------------------


def _sender_with_history(ticks: int) -> Sender:
    sender = new_sender()
    FakeRange(sender, 1)
    for n in range(ticks):
        tick(sender, 10 + n)
    return sender


def test_a_new_stream_gets_everything_and_then_the_differences() -> None:
    sender = _sender_with_history(3)
    (first,) = sender.after(None)
    assert first.full
    assert first.members == [(1, 1, 1)]
    assert sender.after(first.seq) == []
    tick(sender, 20)
    tick(sender, 21)
    assert [u.seq for u in sender.after(first.seq)] == [first.seq + 1, first.seq + 2]
    assert not any(u.full for u in sender.after(first.seq))


def test_a_stream_before_the_first_tick_gets_an_empty_full_update() -> None:
    sender = new_sender()
    (first,) = sender.after(None)
    assert first.full
    assert first.seq > 0
    tick(sender, 10)
    assert [u.full for u in sender.after(first.seq)] == [False]


def test_a_stream_that_fell_behind_the_ring_starts_again() -> None:
    sender = _sender_with_history(1)
    seq = sender.seq
    for n in range(UPDATES_KEPT):
        tick(sender, 20 + n)
    assert [u.seq for u in sender.after(seq)] == list(range(seq + 1, seq + 1 + UPDATES_KEPT))
    tick(sender, 200)
    (again,) = sender.after(seq)
    assert again.full
    assert again.seq == sender.seq


def test_a_stream_from_the_future_of_this_sender_starts_again() -> None:
    sender = _sender_with_history(2)
    assert [u.full for u in sender.after(RangeId(99))] == [True]


def test_status_says_what_stands_where() -> None:
    sender = _sender_with_history(2)
    assert sender.status() == f"n1 #3 g1(lag)={at(8)}/1 dirty=0"
