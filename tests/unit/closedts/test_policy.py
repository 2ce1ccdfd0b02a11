"""Policies: the formulas with numbers, and which policy a range has."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import MIN, add_seconds, from_us, logical_of, seconds_between
from slackwater.closedts.policy import (
    LEASE_GAP_S,
    RTT_STEPS_MAX,
    ClosingPolicy,
    SpanPolicies,
    Terms,
    closable_upto,
    follower_read_timestamp,
    lead_s,
    longest_lead_s,
    rtt_step,
    target,
    terms_of,
)
from slackwater.config.zones import PolicyKind
from slackwater.errors import UsageError
from slackwater.settings import Settings

NOW = from_us(1_000_000_000, 7)
LAG = ClosingPolicy()
OFF = ClosingPolicy(PolicyKind.OFF)
LEAD = ClosingPolicy(PolicyKind.LEAD, rtt_step=7)


def test_a_lag_trails_now_by_the_clusters_duration_and_has_no_logical_part() -> None:
    assert target(LAG, NOW, Terms(target_duration_s=3.0)) == from_us(997_000_000)
    assert target(LAG, NOW, Terms(target_duration_s=0.2)) == from_us(999_800_000)


def test_a_span_may_have_its_own_lag() -> None:
    assert target(ClosingPolicy(duration_ms=500), NOW, Terms(target_duration_s=3.0)) == from_us(999_500_000)


def test_a_duration_of_zero_is_off_and_not_no_lag() -> None:
    """Pitfall 15: zero once meant that everything up to now was closed."""
    assert target(LAG, NOW, Terms(target_duration_s=0.0)) is None
    assert target(OFF, NOW, Terms()) is None


def test_the_lead_covers_skew_and_the_slower_way() -> None:
    # Step 7 stands for round trips around 150 ms: 500 + 25 + max(1.5 * 150 + 20, 0.5 * 150 + 200 + 10).
    assert lead_s(7, Terms()) == pytest.approx(0.810)
    assert lead_s(0, Terms()) == pytest.approx(0.740)
    assert lead_s(15, Terms()) == pytest.approx(0.500 + 0.025 + 1.5 * 0.310 + 0.020)
    chosen = target(LEAD, NOW, Terms())
    assert chosen is not None
    assert logical_of(chosen) == 0
    assert seconds_between(NOW, chosen) == pytest.approx(0.810, abs=1e-6)


def test_a_lead_can_be_overridden() -> None:
    assert target(LEAD, from_us(1_000_000), Terms(lead_override_s=2.0)) == from_us(3_000_000)


def test_round_trips_fall_into_steps_and_do_not_flap() -> None:
    assert [rtt_step(s) for s in (0.0, 0.0199, 0.021, 0.15, 9.0)] == [0, 0, 1, 7, 15]
    assert rtt_step(0.0215, before=0) == 0, "just over the edge: stay"
    assert rtt_step(0.025, before=0) == 1, "clearly over the edge: go"
    assert rtt_step(0.0185, before=1) == 1
    assert rtt_step(0.015, before=1) == 0
    assert rtt_step(0.2, before=0) == 10


def test_follower_read_timestamp_is_older_than_target_tick_and_slack() -> None:
    at = follower_read_timestamp(from_us(10_000_000), Terms(), slack_s=1.0)
    assert at == add_seconds(from_us(10_000_000), -4.2)
    with pytest.raises(UsageError):
        follower_read_timestamp(NOW, Terms(target_duration_s=0.0), slack_s=1.0)


def test_follower_read_timestamp_serves_spans_of_every_policy() -> None:
    now, terms = from_us(10_000_000), Terms()

    def at(*policies: ClosingPolicy, terms: Terms = terms) -> float:
        return seconds_between(follower_read_timestamp(now, terms, slack_s=1.0, policies=policies), now)

    assert at(ClosingPolicy(duration_ms=200)) == pytest.approx(1.4), "its own target, one tick, the slack"
    assert at(ClosingPolicy(duration_ms=200), terms=Terms(target_duration_s=0.0)) == pytest.approx(1.4)
    assert at(LEAD) == 0, "the present"
    assert at(LEAD, ClosingPolicy(duration_ms=200), LAG) == pytest.approx(4.2), "the laziest decides"
    assert at(LEAD, terms=Terms(lead_override_s=5.0)) == 0, "nobody reads the future"
    short = seconds_between(now, target(LEAD, now, terms) or now) - terms.max_offset_s - 0.1
    assert at(LEAD, terms=Terms(lead_override_s=0.1)) == pytest.approx(short, abs=1e-5), "a lead that is too short"
    with pytest.raises(UsageError, match="policy off"):
        at(LAG, OFF)
    with pytest.raises(UsageError, match="target_duration = 0"):
        at(LEAD, LAG, terms=Terms(target_duration_s=0.0))


def test_a_range_takes_the_policy_that_promises_least_of_those_it_touches() -> None:
    fast = ClosingPolicy(duration_ms=200)
    spans = SpanPolicies([(b"m", b"p", LEAD), (b"c", b"f", fast), (b"f", b"h", OFF)])
    terms = Terms(target_duration_s=3.0)
    assert spans.of(b"c", b"d", terms) == fast
    assert spans.of(b"m", b"p", terms) == LEAD
    assert spans.of(b"a", b"b", terms) == LAG
    assert spans.of(b"q", b"z", terms) == LAG
    assert spans.of(b"c", b"g", terms) == OFF, "a span that closes nothing holds back the range it is in"
    assert spans.of(b"b", b"d", terms) == LAG, "3 s promise less than 200 ms"
    assert spans.of(b"b", b"d", Terms(target_duration_s=0.1)) == fast
    assert spans.of(b"n", b"r", terms) == LAG
    assert spans.of(b"d", b"n", terms) == OFF


def test_overlapping_spans_are_refused() -> None:
    with pytest.raises(UsageError):
        SpanPolicies([(b"a", b"d", LEAD), (b"c", b"f", OFF)])


def test_a_gap_is_left_before_the_end_of_a_lease() -> None:
    end = from_us(10_000_000)
    assert closable_upto(end) < add_seconds(end, -LEASE_GAP_S)
    assert seconds_between(closable_upto(end), end) < LEASE_GAP_S + 0.001
    assert closable_upto(MIN) == MIN, "no lease, nothing to close"


def test_no_lead_is_longer_than_the_longest() -> None:
    for terms in (Terms(), Terms(lead_override_s=2.0)):
        assert all(lead_s(step, terms) <= longest_lead_s(terms) for step in range(RTT_STEPS_MAX))


def test_terms_are_the_settings() -> None:
    settings = Settings(
        {"closed_timestamp.target_duration": 7.0, "clock.max_offset": 0.1, "closed_timestamp.lead": 1.5}
    )
    terms = terms_of(settings)
    assert (terms.target_duration_s, terms.max_offset_s, terms.lead_override_s) == (7.0, 0.1, 1.5)
