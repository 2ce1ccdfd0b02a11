import itertools

from hypothesis import given
from hypothesis import strategies as st

from slackwater.model.spans import Span, SpanSet

SIZE = 24


def key(i: int) -> bytes:
    return bytes([i])


@st.composite
def spans(draw):
    start = draw(st.integers(0, SIZE - 1))
    return Span(key(start), key(draw(st.integers(start + 1, SIZE))))


span_lists = st.lists(spans(), max_size=8)


def model(items) -> set[int]:
    """The oracle: the integers in the spans."""
    return {i for s in items for i in range(s.start[0], s.end[0])}


def check(found: SpanSet, expected: set[int]) -> None:
    assert model(found) == expected
    pairs = [(s.start, s.end) for s in found]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(pairs)), "sorted, disjoint, with gaps between"
    assert found == SpanSet(found)


@given(span_lists, span_lists)
def test_algebra(a, b):
    x, y = SpanSet(a), SpanSet(b)
    check(x, model(a))
    check(x | y, model(a) | model(b))
    check(x & y, model(a) & model(b))
    check(x - y, model(a) - model(b))
    assert (x - y) & y == SpanSet()
    assert bool(x) == bool(a)
    assert hash(x | y) == hash(y | x)


@given(span_lists, spans())
def test_questions_about_a_span(a, span):
    found, inside, asked = SpanSet(a), model(a), model([span])
    assert found.covers(span) == (asked <= inside)
    assert found.overlaps(span) == bool(asked & inside)
    assert list(found.overlapping(span)) == [s for s in found if s.overlaps(span)]
    check(found.add(span), inside | asked)


@given(span_lists, st.integers(0, SIZE))
def test_membership(a, i):
    assert (key(i) in SpanSet(a)) == (i in model(a))


@given(spans(), spans())
def test_two_spans(a, b):
    both = a.intersect(b)
    assert (model([both]) if both else set()) == model([a]) & model([b])
    assert a.overlaps(b) == (both is not None)
    assert a.covers(b) == (model([b]) <= model([a]))


@given(st.binary(max_size=5), st.binary(max_size=5))
def test_points_hold_one_key(a, b):
    assert (b in Span.point(a)) == (a == b)
    assert Span.point(a).is_point
    assert list(SpanSet([Span.point(a)])) == [Span.point(a)]
