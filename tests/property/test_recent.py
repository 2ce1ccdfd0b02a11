"""What a range remembers of late is exactly what a scan would find, or it says that it does not know."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.feeds.recent import Recent
from slackwater.model.spans import Span
from slackwater.protocol.feeds.events import Changes

WHOLE = Span(b"\x01", b"\x09")
versions = st.lists(st.tuples(st.integers(1, 8), st.integers(1, 40)), min_size=1, max_size=4)
spans = st.tuples(st.integers(1, 8), st.integers(1, 8)).map(lambda p: Span(bytes([min(p)]), bytes([max(p) + 1])))
steps = st.lists(st.one_of(versions, st.tuples(spans, st.integers(0, 40))), max_size=20)


def block(rows) -> Changes:
    return Changes([bytes([k]) for k, _ in rows], [ts for _, ts in rows], [b"v%d" % ts for _, ts in rows])


@given(before=versions, story=steps, limit=st.integers(0, 400), asked=st.tuples(spans, st.integers(0, 45)))
def test_it_knows_everything_or_says_that_it_does_not(before, story, limit, asked) -> None:
    recent, applied = Recent(limit), list(before)
    for step in story:
        if isinstance(step, list):
            changes = block(step)
            recent.add(changes, changes.size())
            applied += step
        else:  # a scan of a span: every version above `after`, as a catch-up scan returns them
            span, after = step
            found = [ts for k, ts in applied if bytes([k]) in span and ts > after]
            recent.coverage.scanned(span, Timestamp(max([after, *found])))
    span, after = asked
    if recent.coverage.covers(span, Timestamp(after)):
        got = recent.since(span, Timestamp(after))
        wanted = [(bytes([k]), ts) for k, ts in applied if bytes([k]) in span and ts > after]
        assert list(zip(got.keys, got.timestamps, strict=True)) == wanted
    assert recent.bytes <= limit or not recent.bytes


@given(versions)
def test_nothing_is_known_before_a_scan(rows) -> None:
    recent = Recent(1 << 20)
    recent.add(block(rows), 100)
    assert not recent.coverage.covers(WHOLE, Timestamp(50))
    recent.coverage.scanned(WHOLE, Timestamp(10))
    assert recent.coverage.covers(WHOLE, Timestamp(10))
    assert not recent.coverage.covers(WHOLE, Timestamp(9))
