"""What records keep of a span, and which reads that serves."""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp
from slackwater.model.protection import Kept, Metadata, Mode, Record, State, kept_in
from slackwater.model.retention import readable
from slackwater.model.spans import Span


def record(ts: int, mode: Mode, *spans: Span) -> Record:
    return Record(ts.to_bytes(16, "big"), Timestamp(ts), mode, "test", b"", spans)


AB, CF, AZ = Span(b"a", b"b"), Span(b"c", b"f"), Span(b"a", b"z")


def _readable(kept, span, ts):
    """Below a threshold that is above everything."""
    return readable(Timestamp(100), kept, span.start, span.end, ts=Timestamp(ts))


def test_only_what_overlaps_counts_and_only_the_part_inside() -> None:
    at, after, elsewhere = record(3, Mode.AT, AB, CF), record(5, Mode.AFTER, CF), record(4, Mode.AT, Span(b"x", b"y"))
    state = State(Metadata(3, 3, 4), (at, after, elsewhere), Timestamp(9))
    assert state.over(Span(b"a", b"m")) == [at, after]
    assert kept_in(state.records, Span(b"d", b"m")) == (
        Kept(b"d", b"f", Timestamp(3), after=False),
        Kept(b"d", b"f", Timestamp(5), after=True),
    )


def test_a_read_is_served_where_all_of_it_is_kept_at_that_instant() -> None:
    kept = kept_in([record(3, Mode.AT, AB), record(3, Mode.AFTER, Span(b"b", b"c")), record(7, Mode.AFTER, CF)], AZ)
    assert _readable(kept, AB, 3)
    assert not _readable(kept, AB, 4), "only that instant"
    assert _readable(kept, Span(b"a", b"c"), 3), "by two records together"
    assert not _readable(kept, Span(b"a", b"d"), 3)
    assert _readable(kept, Span(b"d", b"e"), 8)
    assert not _readable(kept, Span(b"d", b"e"), 6)
    assert not _readable(kept, Span(b"f", b"g"), 8)
    assert not _readable((), AB, 3)
