"""The max-write-age scheme: how old a write may be, and when an empty command is due."""

from __future__ import annotations

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts.max_write_age.ages import WriteAges
from slackwater.model.ids import RangeId

R1, R2 = RangeId(1), RangeId(2)


def at(seconds: float) -> Timestamp:
    return from_us(round(seconds * 1_000_000))


def bound(ages: WriteAges, *, now: float, start: float = 1, age_s: float = 10) -> Timestamp:
    return ages.bound(R1, lease_start=at(start), now=at(now), age_s=age_s)


def test_a_write_may_be_as_old_as_the_age_before_the_highest_proposed_one() -> None:
    ages = WriteAges()
    ages.proposed(R1, at(50))
    assert bound(ages, now=60) == at(40), "by the highest write, not by the clock"
    assert bound(ages, now=60, age_s=30) == at(20)


def test_an_older_write_does_not_bring_the_bound_back() -> None:
    ages = WriteAges()
    ages.proposed(R1, at(50))
    ages.proposed(R1, at(45))
    assert bound(ages, now=60) == at(40)


def test_a_new_leaseholder_begins_at_the_start_of_its_lease() -> None:
    ages = WriteAges()
    assert bound(ages, now=60, start=30) == at(20)
    ages.proposed(R1, at(25))
    assert bound(ages, now=60, start=30) == at(20), "a write of before, under a lease it held then"


def test_a_write_ahead_of_the_clock_counts_as_one_of_now() -> None:
    ages = WriteAges()
    ages.proposed(R1, at(500))
    assert bound(ages, now=60) == at(50)


def test_nothing_is_closed_without_an_age_or_before_time_began() -> None:
    ages = WriteAges()
    ages.proposed(R1, at(5))
    assert bound(ages, now=60, age_s=0) == MIN
    assert bound(ages, now=60, age_s=10) == MIN


def test_an_empty_command_is_due_when_nothing_was_written_for_the_interval() -> None:
    ages = WriteAges()
    assert ages.due(R1, at(60), 1.0), "nothing was ever written"
    ages.proposed(R1, at(60))
    assert not ages.due(R1, at(60.8), 1.0)
    assert ages.due(R1, at(60.99), 1.0), "a timer may be early by a little"
    assert ages.due(R1, at(61), 1.0)


def test_ranges_do_not_share_what_they_wrote_and_a_replica_that_is_gone_is_forgotten() -> None:
    ages = WriteAges()
    ages.proposed(R2, at(50))
    assert bound(ages, now=60, start=20) == at(10)
    ages.forget(R2)
    assert ages.highest(R2, at(7)) == at(7)
