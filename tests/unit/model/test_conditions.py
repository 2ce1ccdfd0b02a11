"""Conditions of checks: text to predicates, and SQL's rule that unknown passes."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slackwater.errors import UsageError
from slackwater.model.conditions import (
    bind_condition,
    condition_holds,
    parse_condition,
    renamed_condition,
    show_condition,
)
from slackwater.model.kinds import FLOAT, INT, JSON, STRING, decimal_type
from slackwater.model.predicates import Op, Predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema

SCHEMA = TableSchema(
    7,
    "t",
    1,
    (
        Column(1, "id", INT, nullable=False),
        Column(2, "price", decimal_type(10, 2)),
        Column(3, "state", STRING),
        Column(4, "ratio", FLOAT),
        Column(5, "doc", JSON),
    ),
    (KeyColumn(1),),
)


def holds(text: str, **row: object) -> bool:
    return condition_holds(bind_condition(SCHEMA, text), {"price": None, "state": None, "ratio": None, **row})


def test_a_condition_is_false_only_where_a_predicate_is() -> None:
    assert holds("price >= 0 and state in ('new', 'it''s paid')", price=Decimal("0.00"), state="it's paid")
    assert not holds("price >= 0", price=Decimal("-0.01"))
    assert not holds("state in ('new')", state="old")
    assert holds("price >= 0 and state = 'new'")  # NULL is unknown, and unknown passes
    assert not holds("state is not null and price >= 0", price=Decimal(1))
    assert holds("state IS NULL", state=None)
    assert not holds("price >= 0 and state = 'new'", state="old")
    assert holds("ratio > 0.5", ratio=float("nan"))  # NaN is above everything, as in keys
    assert holds("state < 'ÿ'", state="é")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "1 to"),
        ("price >=", "ends where a value"),
        ("price 5", "no operator"),
        ("price >= 0 or id = 1", "'and' should stand"),
        ("price >= 0; drop", "cannot be read from"),
        ("nope = 1", "no column 'nope'"),
        ("price = 'x'", "column price is decimal"),
        ("state = 5", "column state is string"),
        ("doc = '{}'", "has no order"),
        ("price in (1", "')' should stand"),
        ("id = 1.5", "column id is int"),
        ("null = 1", "name of a column"),
    ],
)
def test_what_is_no_condition_is_refused_with_what_is_wrong(text: str, why: str) -> None:
    with pytest.raises(UsageError, match=why.replace("(", r"\(").replace(")", r"\)")):
        bind_condition(SCHEMA, text)


def test_renaming_a_column_renames_it_in_conditions() -> None:
    assert renamed_condition("price >= 0 and state is not null", "price", "the price") == (
        '"the price" >= 0 and state is not null'
    )
    assert renamed_condition("price >= 0", "state", "s") == "price >= 0"


_LITERALS = st.one_of(
    st.integers(-(10**12), 10**12),
    st.text(max_size=8),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False),
)


@given(
    st.lists(
        st.one_of(
            st.builds(Predicate, st.text(min_size=1, max_size=8), st.sampled_from([Op.EQ, Op.LT, Op.GE]), _LITERALS),
            st.builds(lambda c: Predicate(c, Op.IS_NOT_NULL), st.text(min_size=1, max_size=8)),
            st.builds(
                lambda c, v: Predicate(c, Op.IN, tuple(v)),
                st.text(min_size=1, max_size=8),
                st.lists(_LITERALS, min_size=1, max_size=3),
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_what_is_shown_is_read_again(predicates: list[Predicate]) -> None:
    text = show_condition(predicates)
    if len(text) <= 2_000:
        assert parse_condition(text) == tuple(predicates)
