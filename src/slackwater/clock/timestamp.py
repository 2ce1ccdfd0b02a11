"""One 64-bit integer is every timestamp in the system.

    63                                     10 9          0
    +----------------------------------------+------------+
    |  microseconds since the Unix epoch      |  logical   |
    +----------------------------------------+------------+

`ts - 1` is the previous instant and `ts + 1` the next. The same integer is the storage suffix, the Arrow, Parquet and
Spark `bigint`, the feed cursor, the backup bound and the SQL value: there is no second timestamp type anywhere.

Printed as `2026-11-15T19:15:00.123456Z`, with `+n` when the logical part is n > 0. Parsed from that, from an integer,
from ISO-8601 with any offset, or from a negative interval such as `-5s` relative to a given now.
"""

from __future__ import annotations

import datetime as dt
import re
from typing import Annotated, NewType

import msgspec

from slackwater.errors import UsageError

Timestamp = NewType("Timestamp", Annotated[int, msgspec.Meta(ge=0, le=(1 << 63) - 1)])
"""A message with any other number in the place of a timestamp does not decode."""

LOGICAL_BITS = 10
LOGICAL_MAX = (1 << LOGICAL_BITS) - 1
MIN = Timestamp(0)
"""Before everything: no version has it."""
MAX = Timestamp((1 << 63) - 1)
"""After everything."""

_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "m": 60_000_000, "h": 3_600_000_000, "d": 86_400_000_000}
_INTERVAL = re.compile(r"([+-]?)(\d+(?:\.\d+)?)(us|ms|s|m|h|d)")
_DIGITS_MAX = 20
_DURATION_S_MAX = 1e12
_LOGICAL = re.compile(r"^(.*)\+(\d{1,4})$")


def from_us(us: int, logical: int = 0) -> Timestamp:
    """The timestamp of a whole number of microseconds since the epoch."""
    if not 0 <= us <= MAX >> LOGICAL_BITS:
        raise UsageError("time is outside what a timestamp can hold (1970 to 2255)", microseconds=us)
    if not 0 <= logical <= LOGICAL_MAX:
        raise UsageError(f"the logical part must be between 0 and {LOGICAL_MAX}", logical=logical)
    return Timestamp(us << LOGICAL_BITS | logical)


def us_of(ts: Timestamp) -> int:
    """Whole microseconds since the epoch."""
    return ts >> LOGICAL_BITS


def logical_of(ts: Timestamp) -> int:
    """The logical part."""
    return ts & LOGICAL_MAX


def floor(ts: Timestamp) -> Timestamp:
    """The same microsecond with logical part zero."""
    return Timestamp(ts & ~LOGICAL_MAX)


def add_seconds(ts: Timestamp, seconds: float) -> Timestamp:
    """`ts` moved by a duration, kept inside [MIN, MAX]."""
    return Timestamp(max(MIN, min(MAX, ts + (round(seconds * 1_000_000) << LOGICAL_BITS))))


def seconds_between(earlier: Timestamp, later: Timestamp) -> float:
    """`later - earlier` in seconds (negative when they are the other way round)."""
    return (later - earlier) / (1_000_000 << LOGICAL_BITS)


def show(ts: Timestamp) -> str:
    """`2026-11-15T19:15:00.123456Z`, with `+n` when the logical part is not zero."""
    if ts == MAX:
        return "max"
    when = _EPOCH + dt.timedelta(microseconds=us_of(ts))
    logical = logical_of(ts)
    return when.strftime("%Y-%m-%dT%H:%M:%S.%f") + "Z" + (f"+{logical}" if logical else "")


def parse(text: str | int, *, now: Timestamp | None = None) -> Timestamp:
    """Read what `show` prints, an integer, ISO-8601 (UTC unless it says otherwise), or `-5s` relative to `now`."""
    if isinstance(text, int):
        return _checked(text)
    text = text.strip()
    if text == "max":
        return MAX
    if re.fullmatch(r"\d+", text):
        # more digits than 2^63 has (and than int() would read) are simply too large
        return _checked(int(text) if len(text) <= _DIGITS_MAX else MAX + 1)
    if text[:1] == "-":
        return _relative(text, now)
    return _iso(text)


def parse_seconds(text: str) -> float:
    """A duration such as `200ms`, `1.5h` or `1h30m`, in seconds; a leading minus is allowed."""
    body, sign = (text[1:], -1) if text.startswith("-") else (text, 1)
    matches = list(_INTERVAL.finditer(body))
    if not matches or "".join(m.group(0) for m in matches) != body or any(m.group(1) for m in matches):
        raise UsageError(f"cannot read {text!r} as a duration; write it like 200ms, 5s, 1.5h or 1h30m")
    seconds = sum(float(m.group(2)) * _UNITS_US[m.group(3)] for m in matches) / 1_000_000
    if seconds > _DURATION_S_MAX:
        raise UsageError("a duration must be shorter than all of history", limit_seconds=_DURATION_S_MAX)
    return sign * seconds


def _checked(value: int) -> Timestamp:
    if not MIN <= value <= MAX:
        raise UsageError("a timestamp is an integer between 0 and 2^63-1", value=value)
    return Timestamp(value)


def _relative(text: str, now: Timestamp | None) -> Timestamp:
    seconds = parse_seconds(text)
    if now is None:
        raise UsageError(f"{text!r} is relative to now, and this place has no now; give an absolute time")
    return add_seconds(now, seconds)


def _iso(text: str) -> Timestamp:
    logical = 0
    match = _LOGICAL.match(text)
    # `…Z+3` has a logical part; `…+0300` or `…+03` after a time is an offset and has no Z before the plus.
    if match and match.group(1).endswith("Z"):
        text, logical = match.group(1), int(match.group(2))
    try:
        when = dt.datetime.fromisoformat(text)
    except ValueError:
        raise UsageError(
            f"cannot read {text!r} as a timestamp; write 2026-11-15T19:15:00.123456Z, an integer or -5s"
        ) from None
    if when.tzinfo is None:
        when = when.replace(tzinfo=dt.UTC)
    return from_us((when - _EPOCH) // dt.timedelta(microseconds=1), logical)
