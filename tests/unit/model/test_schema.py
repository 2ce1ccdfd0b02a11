import datetime as dt
from decimal import Decimal

import msgspec
import pytest

from slackwater.errors import UsageError
from slackwater.model import kinds
from slackwater.model.kinds import ColumnKind, ColumnType, decimal_type, parse_type
from slackwater.model.schema import Column, KeyColumn, TableSchema, can_retype

ID = Column(1, "id", kinds.INT, nullable=False)
KEY = (KeyColumn(1),)


@pytest.mark.parametrize(
    "text", [*(k.value for k in ColumnKind if k is not ColumnKind.DECIMAL), "decimal(10,2)", "decimal(38,0)"]
)
def test_types_print_what_they_parse(text):
    assert str(parse_type(text)) == text
    assert str(parse_type(f" {text.upper()} ")) == text


@pytest.mark.parametrize(
    "text", ["", "integer", "decimal", "decimal(0,0)", "decimal(39,1)", "decimal(5,6)", "int(4,2)", "decimal(5,-1)"]
)
def test_types_that_do_not_exist(text):
    with pytest.raises(UsageError):
        parse_type(text)


def test_width_and_place():
    assert [(t.width, t.variable) for t in (kinds.BOOL, kinds.UUID, kinds.STRING, decimal_type(5, 2))] == [
        (1, False),
        (16, False),
        (0, True),
        (16, False),
    ]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"columns": ()}, "columns"),
        ({"columns": (ID, Column(1, "x", kinds.INT))}, "ids must differ"),
        ({"columns": (ID, Column(2, "id", kinds.INT))}, "names must differ"),
        ({"primary_key": ()}, "needs a primary key"),
        ({"primary_key": (KeyColumn(9),)}, "not there"),
        ({"primary_key": (KeyColumn(1), KeyColumn(1))}, "twice"),
        ({"columns": (Column(1, "id", kinds.INT),)}, "NOT NULL"),
        ({"columns": (Column(1, "id", kinds.JSON, nullable=False),)}, "json"),
        ({"version": 0}, "version"),
        ({"table_id": 0}, "table id"),
        ({"table_id": 1 << 32}, "table id"),
        ({"index_id": 0}, "index id"),
        ({"columns": tuple(Column(i, f"c{i}", kinds.INT) for i in range(1, 1602))}, "1600"),
    ],
)
def test_tables_that_make_no_sense(changes, problem):
    fields = {"table_id": 5, "name": "t", "version": 1, "columns": (ID,), "primary_key": KEY} | changes
    with pytest.raises(UsageError, match=problem):
        TableSchema(**fields)


@pytest.mark.parametrize(
    "column",
    [(0, "x", kinds.INT), (1, "", kinds.INT), (1, "x", kinds.INT, True, "seven"), (1, "x", kinds.BOOL, True, 1)],
)
def test_columns_that_make_no_sense(column):
    with pytest.raises(UsageError):
        Column(*column)


DEFAULTS = [
    (kinds.INT, 7),
    (kinds.BOOL, False),
    (kinds.FLOAT, 0.5),
    (decimal_type(10, 2), Decimal("1.50")),
    (kinds.STRING, "x"),
    (kinds.JSON, "{}"),
    (kinds.BYTES, b"\x00\xff"),
    (kinds.DATE, dt.date(2026, 11, 15)),
    (kinds.TIMESTAMP, dt.datetime(2026, 11, 15, 12, 0, 0, 7)),
    (kinds.TIMESTAMPTZ, dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC)),
    (kinds.UUID, bytes(range(16))),
]


@pytest.mark.parametrize(("ctype", "default"), DEFAULTS, ids=lambda p: str(p)[:20])
@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json])
def test_schemas_travel_in_messages_with_their_defaults(ctype, default, codec):
    schema = TableSchema(5, "t", 1, (ID, Column(2, "x", ctype, default=default)), KEY)
    back = codec.decode(codec.encode(schema), type=TableSchema)
    assert back == schema
    assert type(back.columns[1].default) is type(default)


def test_defaults_are_kept_in_one_form():
    plus_three = dt.timezone(dt.timedelta(hours=3))
    assert Column(2, "x", decimal_type(10, 2), default=Decimal("1.5")).default.as_tuple().exponent == -2
    assert (
        Column(2, "x", kinds.TIMESTAMPTZ, default=dt.datetime(2026, 1, 1, 3, tzinfo=plus_three)).default.tzinfo
        is dt.UTC
    )
    assert Column(2, "x", kinds.UUID, default="00010203-0405-0607-0809-0a0b0c0d0e0f").default == bytes(range(16))
    assert Column(2, "x", kinds.DATE, default="2026-01-01").default == dt.date(2026, 1, 1)
    for ctype in (kinds.DATE, kinds.TIMESTAMP, decimal_type(3, 1), kinds.BYTES, kinds.UUID, kinds.BOOL):
        with pytest.raises(UsageError):
            Column(2, "x", ctype, default="not that!")


def test_finding_columns():
    schema = TableSchema(5, "t", 1, (ID, Column(2, "b", kinds.INT, nullable=False)), (KeyColumn(2, True), KeyColumn(1)))
    assert schema.by_id(2) is schema.column("b")
    assert schema.by_id(3) is None
    assert [(c.name, d) for c, d in schema.key_columns()] == [("b", True), ("id", False)]
    with pytest.raises(UsageError, match="id, b"):
        schema.column("c")


@pytest.mark.parametrize(
    ("old", "new", "allowed"),
    [
        ("int2", "int4", True),
        ("int", "int4", False),
        ("int", "float", True),
        ("int", "string", True),
        ("float", "int", False),
        ("string", "json", False),
        ("json", "string", True),
        ("date", "timestamp", True),
        ("date", "timestamptz", False),
        ("decimal(5,2)", "decimal(6,3)", True),
        ("decimal(5,2)", "decimal(5,3)", False),
        ("decimal(5,2)", "decimal(9,1)", False),
        ("bool", "bool", True),
    ],
)
def test_what_may_be_read_as_what(old, new, allowed):
    assert can_retype(parse_type(old), parse_type(new)) is allowed


def test_only_decimals_have_digits():
    with pytest.raises(UsageError):
        ColumnType(ColumnKind.INT, 5)
