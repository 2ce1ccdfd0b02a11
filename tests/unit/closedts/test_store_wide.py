"""The store-wide scheme: the document's worked example, and what followers do about gaps and epochs."""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts.records import Records
from slackwater.closedts.store_wide.mpt import MinProposal
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.closedts.store_wide.sender import merged
from slackwater.model.descriptors import Epoch, Lease, LeaseAppliedIndex, LeaseSequence
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.heartbeat import Entry, Heartbeat

N1, R1 = NodeId(1), RangeId(1)
LEASE = Lease(N1, LeaseSequence(1), Timestamp(1), epoch=Epoch(3))


def beat(seq: int, closed: int, *entries: Entry, after: int | None = None, epoch: int = 3) -> Heartbeat:
    return Heartbeat(N1, Epoch(epoch), seq, seq - 1 if after is None else after, Timestamp(closed), list(entries))


def quiet(lai: int) -> Entry:
    return Entry(R1, LeaseAppliedIndex(lai), quiesced=True)


def follower(*beats: Heartbeat, live: int = 3) -> HeartbeatReceiver:
    records = Records()
    records.watch(R1)
    made = HeartbeatReceiver(records, live_epoch=lambda _: Epoch(live))
    for one in beats:
        made.take(one)
    return made


def closed(made: HeartbeatReceiver, applied: int) -> int:
    return made.closed_for(R1, LeaseAppliedIndex(applied), LEASE)


def test_the_worked_example_with_a_heartbeat_that_is_blocked() -> None:
    mpt = MinProposal()
    mpt.heartbeat(Timestamp(10))
    first, second, slow = mpt.enter(), mpt.enter(), mpt.enter()
    assert (mpt.last_count, mpt.cur_count) == (0, 3)
    assert mpt.heartbeat(Timestamp(20)) == 10
    assert (mpt.last_count, mpt.cur_count, mpt.cur) == (3, 0, 20)
    mpt.leave(first)
    mpt.leave(second)
    quick = [mpt.enter(), mpt.enter()]
    assert (mpt.last_count, mpt.cur_count) == (1, 2)
    for one in quick:
        mpt.leave(one)
    assert mpt.heartbeat(Timestamp(30)) == 10, "one command holds the store back: the same timestamp is sent again"
    assert (mpt.resent, mpt.cur) == (1, 20)
    mpt.leave(slow)
    mpt.enter()
    assert mpt.heartbeat(Timestamp(40)) == 20
    assert (mpt.last_count, mpt.cur_count, mpt.cur) == (1, 0, 40)


def test_a_quiesced_range_moves_with_its_store_and_a_told_index_is_waited_for() -> None:
    made = follower(beat(2, 100, quiet(5)), beat(3, 110))
    assert closed(made, 4) == 0
    assert closed(made, 5) == 110


def test_a_gap_stops_the_use_of_the_stores_timestamp_and_asks_for_the_range() -> None:
    made = follower(beat(2, 100, quiet(5)))
    assert closed(made, 5) == 100
    made.take(beat(9, 200))
    assert closed(made, 5) == 100, "it may have been written to unseen; what was confirmed stays"
    assert R1 in made.lacking


def test_another_epoch_or_a_lease_that_is_not_live_stops_it_too() -> None:
    made = follower(beat(2, 100, quiet(5)), beat(3, 120, epoch=4))
    assert closed(made, 5) == 100, "told with its index; 120 is of another epoch"
    assert closed(follower(beat(2, 100, quiet(5)), beat(3, 110), live=0), 5) == 100


def test_missed_heartbeats_are_merged_without_saying_more_than_each_of_them() -> None:
    busy = Entry(R1, LeaseAppliedIndex(7))
    woken = Heartbeat(N1, Epoch(3), 4, 3, Timestamp(130), [], [R1])
    made = follower(beat(2, 100, quiet(5)))
    made.take(merged([beat(3, 110, busy), woken], after=2))
    assert made.resets == 1, "only the first heartbeat was a beginning"
    assert closed(made, 7) == 110, "130 was not said of a range that had been woken"
