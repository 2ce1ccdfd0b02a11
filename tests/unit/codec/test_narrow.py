"""Spans from predicates: never too narrow, and as narrow as the key allows."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from slackwater.codec.layout import prefix_end, schema_span
from slackwater.codec.narrow import narrowed
from slackwater.codec.rows import RowCodec
from slackwater.model.kinds import FLOAT, INT, STRING
from slackwater.model.predicates import Op, Predicate, predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.spans import Span

SCHEMA = TableSchema(
    100,
    "t",
    1,
    (
        Column(1, "region", STRING, nullable=False),
        Column(2, "id", INT, nullable=False),
        Column(3, "x", FLOAT, nullable=False),
    ),
    (KeyColumn(1), KeyColumn(2, descending=True), KeyColumn(3)),
)
CODEC = RowCodec(SCHEMA)
WHOLE = schema_span(SCHEMA)


def test_nothing_known_is_the_whole_table() -> None:
    assert narrowed(SCHEMA, []) == WHOLE
    assert narrowed(SCHEMA, [predicate("id", "=", 3)]) == WHOLE  # not a prefix of the key
    assert narrowed(SCHEMA, [predicate("region", "!=", "eu")]) == WHOLE


def test_equality_on_leading_columns_is_a_prefix() -> None:
    eu = CODEC.key(["eu"])
    assert narrowed(SCHEMA, [predicate("region", "=", "eu")]) == Span(eu, prefix_end(eu))
    row = CODEC.key(["eu", 3, 1.5])
    conditions = [predicate("x", "=", 1.5), predicate("id", "=", 3), predicate("region", "=", "eu")]
    assert narrowed(SCHEMA, conditions) == Span(row, prefix_end(row))


def test_a_descending_column_is_bounded_the_other_way_round() -> None:
    found = narrowed(SCHEMA, [predicate("region", "=", "eu"), predicate("id", ">=", 3), predicate("id", "<", 9)])
    assert found == Span(prefix_end(CODEC.key(["eu", 9])), prefix_end(CODEC.key(["eu", 3])))


def test_a_contradiction_has_no_rows() -> None:
    assert narrowed(SCHEMA, [predicate("region", ">", "b"), predicate("region", "<", "a")]) is None


def test_literals_that_the_column_cannot_hold_narrow_nothing() -> None:
    eu = narrowed(SCHEMA, [predicate("region", "=", "eu")])
    assert narrowed(SCHEMA, [predicate("region", "=", "eu"), predicate("id", ">", 2.5)]) == eu
    assert narrowed(SCHEMA, [predicate("region", "=", None)]) == WHOLE


regions = st.sampled_from(["", "a", "ab", "b"])
ids = st.integers(-3, 3)
floats = st.sampled_from([-1.0, -0.0, 0.0, 2.5])
ROWS = st.lists(st.tuples(regions, ids, floats), max_size=12)
COMPARE = {
    Op.EQ: lambda a, b: a == b,
    Op.NE: lambda a, b: a != b,
    Op.LT: lambda a, b: a < b,
    Op.LE: lambda a, b: a <= b,
    Op.GT: lambda a, b: a > b,
    Op.GE: lambda a, b: a >= b,
}
CONDITIONS = st.lists(
    st.one_of(
        st.tuples(st.just("region"), st.sampled_from(list(COMPARE)), regions),
        st.tuples(st.just("id"), st.sampled_from(list(COMPARE)), ids),
        st.tuples(st.just("x"), st.sampled_from(list(COMPARE)), floats),
    ),
    max_size=4,
)


@given(ROWS, CONDITIONS)
def test_every_row_that_satisfies_the_predicates_is_inside(
    rows: list[tuple[str, int, float]], conditions: list[tuple[str, Op, object]]
) -> None:
    span = narrowed(SCHEMA, [Predicate(*c) for c in conditions])
    for row in rows:
        named = dict(zip(("region", "id", "x"), row, strict=True))
        if all(COMPARE[op](named[column], literal) for column, op, literal in conditions):
            assert span is not None
            assert CODEC.key(row) in span
