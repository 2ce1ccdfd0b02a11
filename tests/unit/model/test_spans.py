import pytest

from slackwater.errors import UsageError
from slackwater.model.spans import Span, SpanSet


def test_spans_are_half_open_and_never_empty():
    span = Span(b"b", b"d")
    assert b"b" in span
    assert b"c\xff" in span
    assert b"d" not in span
    for start, end in ((b"b", b"b"), (b"c", b"b")):
        with pytest.raises(UsageError):
            Span(start, end)


def test_neighbours_become_one():
    found = SpanSet([Span(b"c", b"d"), Span(b"a", b"b"), Span(b"b", b"c")])
    assert list(found) == [Span(b"a", b"d")]
    assert len(found) == 1
    assert repr(found) == "SpanSet{[b'a', b'd')}"


def test_sets_do_not_change():
    before = SpanSet([Span(b"a", b"b")])
    after = before.add(Span(b"x", b"y"))
    assert len(before) == 1
    assert len(after) == 2
    assert before | SpanSet() is before
    assert SpanSet() | before is before


def test_points():
    assert Span.point(b"a").is_point
    assert not Span(b"a", b"b").is_point
    assert not Span(b"a", b"a\x00\x00").is_point
    assert not Span(b"a", b"b\x00").is_point
