"""Predicates on whole columns answer what comparing value by value answers, for every pair of number types."""

import math
from decimal import Decimal
from fractions import Fraction

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from slackwater.codec.arrow import arrow_type
from slackwater.codec.filters_arrow import bind
from slackwater.errors import UsageError
from slackwater.model.kinds import FLOAT, INT, INT2, INT4, decimal_type
from slackwater.model.predicates import predicate
from slackwater.model.schema import Column
from slackwater.model.values import logical

TYPES = [INT2, INT4, INT, FLOAT, decimal_type(4, 2), decimal_type(12, 2), decimal_type(38, 0), decimal_type(38, 20)]
OPS = ["=", "!=", "<", "<=", ">", ">="]
BITS = {INT2: 16, INT4: 32, INT: 64}


def doubles(draw_from):
    """Floats at and beside numbers of interest."""
    near = draw_from.map(float)
    return st.one_of(
        near,
        near.map(lambda f: math.nextafter(f, math.inf)),
        near.map(lambda f: math.nextafter(f, -math.inf)),
        st.floats(),
    )


@st.composite
def cases(draw):
    """A column type, some of its values, and a literal that lies at, beside or far from one of them."""
    ctype = draw(st.sampled_from(TYPES))
    if ctype is FLOAT:
        values = draw(st.lists(st.floats() | st.sampled_from([0.1, -0.0, 2.0**53]), min_size=1, max_size=8))
        stored = values
        numbers = st.sampled_from([Fraction(v) if math.isfinite(v) else Fraction(7) for v in values])
    else:
        limit = 10**ctype.precision - 1 if ctype.precision else (1 << BITS[ctype] - 1) - 1
        some = st.integers(-limit, limit) | st.integers(-min(999, limit), min(999, limit))
        stored = draw(st.lists(some | st.sampled_from([limit, -limit]), min_size=1, max_size=8))
        stored += [min(limit, stored[0] + 1), max(-limit, stored[0] - 1)]
        values = [logical(ctype, n) for n in stored]
        numbers = st.sampled_from([Fraction(n, 10**ctype.scale) for n in stored])
    decimals = numbers.map(lambda n: Decimal(n.numerator) / Decimal(n.denominator))
    literal = draw(
        st.one_of(
            doubles(numbers),
            st.integers(-(10**40), 10**40) | numbers.map(math.floor),
            decimals | decimals.map(lambda d: d + Decimal("0.001")),
            st.sampled_from([Decimal("NaN"), Decimal("-Infinity"), 10**400, -(10**400)]),
        )
    )
    return ctype, values, literal


def as_double(number):
    """The nearest double; an integer beyond them all stays as it is, and is compared exactly."""
    try:
        return float(number)
    except OverflowError:
        return number


def expected(ctype, value, op, literal):
    """One comparison: doubles if one side is a float, exact values otherwise; NaN is above everything and equals itself."""
    special = isinstance(literal, Decimal) and not literal.is_finite()
    if ctype is FLOAT or isinstance(literal, float) or special:
        left, right = as_double(value), as_double(literal)
    else:
        left, right = Fraction(value), Fraction(literal)
    sides = [1 if isinstance(side, float) and math.isnan(side) else 0 for side in (left, right)]
    order = sides[0] - sides[1] if any(sides) else (left > right) - (left < right)
    return {"=": order == 0, "!=": order != 0, "<": order < 0, "<=": order <= 0, ">": order > 0, ">=": order >= 0}[op]


@settings(max_examples=300, deadline=None)
@given(cases())
@example((decimal_type(12, 2), [Decimal("0.05"), Decimal("0.06")], 0.05))
@example((FLOAT, [0.1, 0.2], Decimal("0.1")))
@example((INT, [2**53, 2**53 + 1, 2**53 + 2], float(2**53)))
@example((decimal_type(38, 20), [Decimal("0.1"), Decimal("0.10000000000000000001")], 0.1))
def test_every_operator_answers_as_comparing_one_by_one_does(case):
    ctype, values, literal = case
    column = Column(1, "x", ctype)
    array = pa.array([*values, None], arrow_type(ctype))
    for op in OPS:
        want = [expected(ctype, value, op, literal) for value in values]
        assert list(bind(predicate("x", op, literal), column)(array)) == [*want, False], op
    among = [None, literal, 3]
    want = [any(expected(ctype, value, "=", item) for item in among if item is not None) for value in values]
    assert list(bind(predicate("x", "in", among), column)(array)) == [*want, False]


@pytest.mark.parametrize("literal", [Decimal("1e1001"), Decimal(f"1e-{10**9}"), Decimal("9" * 2000)])
def test_numbers_that_would_cost_the_server_minutes_are_refused(literal):
    for ctype in (INT, FLOAT, decimal_type(10, 2)):
        with pytest.raises(UsageError, match="at most 1000 digits"):
            bind(predicate("x", "<", literal), Column(1, "x", ctype))
