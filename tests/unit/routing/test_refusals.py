"""Refusals of followers are remembered for a moment, and no more of them than fit."""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp
from slackwater.model.ids import RangeId
from slackwater.routing.refusals import REFUSALS_MAX, FollowerRefusals

R1, R2 = RangeId(1), RangeId(2)


def test_reads_at_or_above_a_refused_timestamp_are_expected_to_be_refused_until_the_next_tick() -> None:
    known = FollowerRefusals()
    known.refused(R1, Timestamp(100), until_ns=50)
    assert known.expected(R1, Timestamp(100), 49)
    assert known.expected(R1, Timestamp(101), 49)
    assert not known.expected(R1, Timestamp(99), 49)
    assert not known.expected(R2, Timestamp(100), 49)
    assert not known.expected(R1, Timestamp(100), 50)
    assert not known.expected(R1, Timestamp(100), 49), "forgotten"


def test_the_oldest_refusals_give_way() -> None:
    known = FollowerRefusals()
    for number in range(REFUSALS_MAX + 1):
        known.refused(RangeId(number + 1), Timestamp(100), until_ns=50)
    assert not known.expected(R1, Timestamp(100), 1)
    assert known.expected(R2, Timestamp(100), 1)
