"""What an application may pass, checked where it comes in: a wrong kind of value is one `UsageError` that says what to write.

Python would find out too, somewhere inside, with a message about our code and not about the caller's. Checks of what a value
*means* (is there such a table, has that time come) are elsewhere.
"""

from __future__ import annotations

import datetime as dt
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from slackwater.clock.timestamp import MAX, MIN, Timestamp, from_us, parse
from slackwater.errors import UsageError
from slackwater.protocol.client.calls import Partition

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.hlc import HybridClock

T = TypeVar("T")
PARTITIONS_MAX = 10_000
_EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)


def path_of(value: object, what: str) -> Path:
    """A path, however it was written."""
    if not isinstance(value, str | os.PathLike):
        raise UsageError(f"{what} is a path", got=type(value).__name__)
    return Path(value)


def text_of(value: object, what: str, example: str) -> str:
    """A text."""
    if not isinstance(value, str):
        raise UsageError(f"{what} is a text such as {example!r}", got=type(value).__name__)
    return value


def names_of(value: str | Sequence[str], what: str = "tables") -> tuple[str, ...]:
    """One name, or several."""
    if isinstance(value, str):
        return (value,)
    try:
        found = tuple(value)
    except TypeError:
        found = (None,)  # type: ignore[assignment]  # refused by the next line
    if not all(isinstance(name, str) for name in found):
        raise UsageError(f"{what} are names: a text or a list of texts", got=value)
    return found


def duration_of(value: object, what: str) -> float | None:
    """A number of seconds that is not negative, or None."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise UsageError(f"{what} is a number of seconds, not negative", **{what: value})
    return float(value)


def count_of(value: object, what: str) -> int:
    """How many partitions; 0 for as many as there are ranges."""
    if value is None:
        return 0
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= PARTITIONS_MAX:
        raise UsageError(f"a table is read in 1 to {PARTITIONS_MAX} partitions", **{what: value})
    return value


def partition_of(value: object) -> Partition:
    """A partition, as `partitions` gives them."""
    if not isinstance(value, Partition):
        raise UsageError("a partition comes from `partitions(table)`", got=type(value).__name__)
    return value


def function_of(value: T) -> T:
    """Something to call with a transaction."""
    if not callable(value):
        raise UsageError("run takes a function of one argument, the transaction", got=type(value).__name__)
    return value


def app_of(value: object) -> tuple[str, int] | None:
    """The name under which something is published at most once."""
    match value:
        case None:
            return None
        case (str() as name, int() as version) if name and not isinstance(version, bool) and 0 <= version < 1 << 63:
            return name, version
    raise UsageError('app is a name and a version, such as ("nightly", 7)', app=value)


def time_of(when: object, clock: HybridClock) -> Timestamp:
    """A point in time, however it was written: a timestamp, an aware datetime, ISO-8601, or an interval before now."""
    if type(when) is int and MIN < when <= MAX:
        return Timestamp(when)
    if isinstance(when, dt.datetime):
        if when.tzinfo is None:
            raise UsageError("a datetime needs a time zone, such as datetime.UTC", value=str(when))
        return from_us((when - _EPOCH) // dt.timedelta(microseconds=1))
    if isinstance(when, bool) or not isinstance(when, str | int):
        raise UsageError("a time is a timestamp, an aware datetime, ISO-8601 or '-5s'", got=type(when).__name__)
    found = parse(when, now=clock.now() if isinstance(when, str) else MIN)
    if found == MIN:
        raise UsageError("a time is after 1970", value=when)
    return found
