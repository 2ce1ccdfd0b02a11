"""Which records need history in a span."""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp
from slackwater.model.protection import Metadata, Mode, Record, State
from slackwater.model.retention import readable
from slackwater.model.spans import Span


def record(ts: int, mode: Mode, *spans: Span) -> Record:
    return Record(ts.to_bytes(16, "big"), Timestamp(ts), mode, "test", b"", spans)


AB, CF = Span(b"a", b"b"), Span(b"c", b"f")


def _readable(kept, span, ts):
    """Below a threshold that is above everything."""
    return readable(Timestamp(100), kept, span.start, span.end, ts=Timestamp(ts))


def test_only_what_overlaps_counts() -> None:
    at, after, elsewhere = record(3, Mode.AT, AB, CF), record(5, Mode.AFTER, CF), record(4, Mode.AT, Span(b"x", b"y"))
    state = State(Metadata(3, 3, 4), (at, after, elsewhere), Timestamp(9))
    assert state.over(Span(b"a", b"m")) == [at, after]
    assert state.over(Span(b"f", b"x")) == [], "ends are exclusive"
