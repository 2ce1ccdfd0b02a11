import pytest

from slackwater.clock import MAX, MIN, add_seconds, floor, from_us, logical_of, parse, seconds_between, show, us_of
from slackwater.clock.timestamp import LOGICAL_MAX, parse_seconds
from slackwater.errors import UsageError

NOON = parse("2026-11-15T12:00:00Z")


def test_parts_are_packed_as_drawn():
    ts = from_us(5, 3)
    assert ts == 5 << 10 | 3
    assert (us_of(ts), logical_of(ts), floor(ts)) == (5, 3, 5 << 10)
    assert from_us(5, LOGICAL_MAX) + 1 == from_us(6)


def test_show_prints_the_logical_part_only_when_there_is_one():
    assert show(NOON) == "2026-11-15T12:00:00.000000Z"
    assert show(NOON + 7) == "2026-11-15T12:00:00.000000Z+7"
    assert show(MIN) == "1970-01-01T00:00:00.000000Z"
    assert show(MAX) == "max"


@pytest.mark.parametrize(
    "text",
    [
        "2026-11-15T15:00:00+03:00",
        "2026-11-15T15:00:00+0300",
        "2026-11-15T15:00:00+03",
        "2026-11-15T07:30:00-04:30",
        "2026-11-15T12:00:00",
        "2026-11-15 12:00",
        "  2026-11-15T12:00:00.000000Z  ",
        str(NOON),
    ],
)
def test_one_instant_written_in_many_ways(text):
    assert parse(text) == NOON


def test_a_plus_after_z_is_the_logical_part_and_otherwise_an_offset():
    assert parse("2026-11-15T12:00:00Z+3") == NOON + 3
    assert parse("2026-11-15T12:00:00+03") == add_seconds(NOON, -3 * 3600)


def test_intervals_are_relative_to_now():
    assert parse("-5s", now=NOON) == add_seconds(NOON, -5)
    assert parse("-1h30m", now=NOON) == parse("2026-11-15T10:30:00Z")
    assert parse("-200ms", now=NOON) == NOON - (200_000 << 10)
    with pytest.raises(UsageError, match="no now"):
        parse("-5s")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-",
        "-5",
        "-5x",
        "yesterday",
        "1969-12-31T23:59:59Z",
        "2256-01-01",
        "2026-11-15T12:00:00Z+1024",
        "9" * 30,
        "9" * 5000,
    ],
)
def test_what_cannot_be_read_says_so(text):
    with pytest.raises(UsageError):
        parse(text, now=NOON)


@pytest.mark.parametrize("value", [-1, 1 << 63])
def test_integers_outside_are_refused(value):
    with pytest.raises(UsageError):
        parse(value)


def test_bounds():
    assert parse(0) == MIN
    assert parse("max") == parse((1 << 63) - 1) == MAX
    assert add_seconds(MAX, 1) == MAX
    assert add_seconds(MIN, -1) == MIN
    with pytest.raises(UsageError):
        from_us(-1)
    with pytest.raises(UsageError):
        from_us(0, LOGICAL_MAX + 1)
    with pytest.raises(UsageError):
        from_us((MAX >> 10) + 1)


def test_durations():
    assert parse_seconds("1h30m") == 5400
    assert parse_seconds("1.5h") == 5400
    assert parse_seconds("-200ms") == -0.2
    assert seconds_between(NOON, add_seconds(NOON, 2.5)) == 2.5
    assert seconds_between(add_seconds(NOON, 2.5), NOON) == -2.5
    for text in ("", "5", "s", "5s!", "1h -2m", "1h+2m", "9" * 400 + "d"):
        with pytest.raises(UsageError):
            parse_seconds(text)
