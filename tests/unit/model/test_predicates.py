import datetime as dt
import math
from decimal import Decimal

import pytest

from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import UsageError
from slackwater.model import kinds
from slackwater.model.predicates import IN_LIST_MAX, Op, Predicate, predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema

SCHEMA = TableSchema(
    5,
    "t",
    1,
    (
        Column(1, "id", kinds.INT, nullable=False),
        Column(2, "price", kinds.decimal_type(10, 2)),
        Column(3, "ratio", kinds.FLOAT),
        Column(4, "name", kinds.STRING),
        Column(5, "day", kinds.DATE),
    ),
    (KeyColumn(1),),
)
ROWS = [
    {"id": 1, "price": Decimal("1.00"), "ratio": math.nan, "name": "a", "day": dt.date(2026, 1, 1)},
    {"id": 2, "price": Decimal("1.01"), "ratio": -0.0, "name": "é", "day": None},
    {"id": 3, "price": None, "ratio": None, "name": None, "day": dt.date(2026, 1, 3)},
    {"id": 4, "price": Decimal("-9.99"), "ratio": math.inf, "name": "", "day": dt.date(2026, 1, 4)},
]
VALUES = [RowCodec(SCHEMA).encode(r)[1] for r in ROWS]


@pytest.mark.parametrize(
    ("column", "op", "literal", "ids"),
    [
        ("id", "=", 2, [2]),
        ("id", "!=", 2, [1, 3, 4]),
        ("id", "<", 2.5, [1, 2]),
        ("id", ">=", Decimal("2.5"), [3, 4]),
        ("id", "=", 2.5, []),
        ("id", "!=", 2.5, [1, 2, 3, 4]),
        ("id", "<", 10**30, [1, 2, 3, 4]),
        ("id", ">", -math.inf, [1, 2, 3, 4]),
        ("id", "<", math.nan, [1, 2, 3, 4]),
        ("id", "=", math.nan, []),
        ("id", ">=", math.inf, []),
        ("id", "=", None, []),
        ("id", "in", [4, 1, None, 2.5], [1, 4]),
        ("id", "in", [], []),
        ("price", "<", Decimal("1.005"), [1, 4]),
        ("price", ">", Decimal("1.005"), [2]),
        ("price", "=", 1, [1]),
        ("price", "is null", None, [3]),
        ("price", "is not null", None, [1, 2, 4]),
        ("ratio", "=", math.nan, [1]),
        ("ratio", ">", math.inf, [1]),
        ("ratio", "=", 0, [2]),
        ("ratio", "<", 10**400, [2]),
        ("ratio", ">", -(10**400), [1, 2, 4]),
        ("name", ">", "a", [2]),
        ("name", "<=", "a", [1, 4]),
        ("day", ">=", dt.date(2026, 1, 3), [3, 4]),
    ],
)
def test_rows_that_survive(column, op, literal, ids):
    decoder = BlockDecoder(SCHEMA, {}, ["id"], [predicate(column, op, literal)])
    assert decoder.decode(VALUES).column("id").to_pylist() == ids


def test_a_conjunction():
    decoder = BlockDecoder(
        SCHEMA, {}, ["name"], [predicate("id", ">", 1), predicate("price", "IS NOT NULL"), predicate("id", "<", 4)]
    )
    assert decoder.decode(VALUES).to_pylist() == [{"name": "é"}]


@pytest.mark.parametrize(
    ("column", "literal"), [("id", "2"), ("id", True), ("name", 2), ("day", "2026-01-01"), ("nope", 1)]
)
def test_literals_that_cannot_be_compared(column, literal):
    with pytest.raises(UsageError):
        BlockDecoder(SCHEMA, {}, None, [predicate(column, "=", literal)])


def test_operators_and_lists_are_checked():
    with pytest.raises(UsageError, match="is not null"):
        predicate("id", "like", "x")
    with pytest.raises(UsageError):
        Predicate("id", Op.IN, 5)
    with pytest.raises(UsageError, match=str(IN_LIST_MAX)):
        Predicate("id", Op.IN, list(range(IN_LIST_MAX + 1)))
