import contextlib
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock import MAX, MIN, HybridClock, Timestamp, add_seconds, from_us, parse, seconds_between, show, us_of
from slackwater.errors import ClockError, UsageError

timestamps = st.integers(MIN, MAX).map(Timestamp)
offsets = st.integers(-14 * 60, 14 * 60).map(lambda minutes: dt.timezone(dt.timedelta(minutes=minutes)))


@given(timestamps)
def test_show_and_parse_round_trip(ts):
    assert parse(show(ts)) == ts
    assert parse(str(ts)) == parse(int(ts)) == ts


@given(timestamps, timestamps)
def test_printed_order_is_time_order_at_logical_zero(a, b):
    a, b = from_us(us_of(a)), from_us(us_of(b))
    assert (a < b) == (show(a) < show(b))


@given(timestamps, offsets)
def test_any_offset_names_the_same_instant(ts, zone):
    ts = from_us(us_of(ts))
    when = dt.datetime(1970, 1, 1, tzinfo=dt.UTC) + dt.timedelta(microseconds=us_of(ts))
    assert parse(when.astimezone(zone).isoformat()) == ts


@given(st.text() | st.from_regex(r"-?[0-9a-zTZ:.+ -]{0,40}", fullmatch=True))
def test_parse_returns_or_raises_one_error(text):
    with contextlib.suppress(UsageError):
        assert MIN <= parse(text, now=from_us(10**15)) <= MAX


@given(timestamps, st.floats(-1e9, 1e9))
def test_add_seconds_stays_inside_and_keeps_order(ts, seconds):
    moved = add_seconds(ts, seconds)
    assert MIN <= moved <= MAX
    assert moved in (MIN, MAX) or abs(seconds_between(ts, moved) - seconds) < 1e-3


steps = st.lists(
    st.one_of(
        st.tuples(st.just("jump"), st.integers(-(10**7), 10**7)),
        st.tuples(st.just("now"), st.just(0)),
        st.tuples(st.just("hear"), st.integers(-(10**6), 10**6)),
    ),
    max_size=50,
)


@given(steps, st.integers(0, 2**40))
def test_the_clock_never_goes_back_and_stays_above_what_it_heard(ops, floor):
    wall = [10**9]
    clock = HybridClock(lambda: wall[0] * 1_000, max_offset_s=0.5, floor=Timestamp(floor))
    highest = floor
    for op, by in ops:
        if op == "jump":
            wall[0] = max(0, wall[0] + by)
        elif op == "now":
            given_now = clock.now()
            assert given_now > highest
            assert given_now >= clock.physical()
            highest = given_now
        else:
            heard = from_us(max(0, wall[0] + by))
            if heard > highest and by > 500_000:
                with pytest.raises(ClockError):
                    clock.update(heard)
            else:
                clock.update(heard)
                highest = max(highest, heard)
        assert clock.peek() >= highest
