"""Reads that wait for their timestamp to close."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp
from slackwater.closedts.waiting import Gate, WaitQueue, gate
from slackwater.model.ids import RangeId

if TYPE_CHECKING:
    import pytest

R1, R2 = RangeId(1), RangeId(2)


def ts(n: int) -> Timestamp:
    return Timestamp(n)


def test_the_gate() -> None:
    assert gate(required=ts(5), closed=ts(5), wait_ms=0) is Gate.SERVE
    assert gate(required=ts(6), closed=ts(5), wait_ms=0) is Gate.FORWARD
    assert gate(required=ts(6), closed=ts(5), wait_ms=1) is Gate.WAIT
    assert gate(required=ts(6), closed=ts(5), wait_ms=0, nearest_only=True) is Gate.FAIL
    assert gate(required=ts(5), closed=ts(5), wait_ms=9, nearest_only=True) is Gate.SERVE


def test_closing_wakes_exactly_those_whose_timestamp_is_reached_in_order() -> None:
    queue: WaitQueue[str] = WaitQueue()
    for name, required in (("c", 30), ("a", 10), ("b", 20), ("b2", 20)):
        queue.add(R1, required=ts(required), ticket=name)
    queue.add(R2, required=ts(1), ticket="other range")
    assert queue.lowest(R1) == 10
    assert queue.advance(R1, ts(9)) == []
    assert queue.advance(R1, ts(20)) == ["a", "b", "b2"]
    assert queue.advance(R1, ts(20)) == []
    assert queue.advance(R1, ts(99)) == ["c"]
    assert list(queue.awaited) == [R2]
    assert len(queue) == 1


def test_a_canceled_read_leaves_nothing_behind() -> None:
    queue: WaitQueue[str] = WaitQueue()
    first = queue.add(R1, required=ts(10), ticket="a")
    second = queue.add(R1, required=ts(5), ticket="b")
    assert first is not None
    assert second is not None
    queue.cancel(first)
    assert queue.lowest(R1) == 5
    queue.cancel(second)
    assert list(queue.awaited) == []
    assert queue.lowest(R1) is None
    queue.cancel(second)
    assert queue.advance(R1, ts(99)) == []


def test_the_number_of_waiting_reads_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("slackwater.closedts.waiting.WAITS_MAX", 1)
    queue: WaitQueue[str] = WaitQueue()
    assert queue.add(R1, required=ts(10), ticket="a") is not None
    assert queue.add(R1, required=ts(10), ticket="b") is None


def test_dropping_a_replica_wakes_all_who_wait_on_it() -> None:
    queue: WaitQueue[str] = WaitQueue()
    gone = queue.add(R1, required=ts(7), ticket="gone")
    assert gone is not None
    for name, required in (("b", 20), ("a", 10)):
        queue.add(R1, required=ts(required), ticket=name)
    queue.cancel(gone)
    assert queue.drop(R1) == ["a", "b"]
    assert queue.drop(R1) == []
    assert len(queue) == 0
