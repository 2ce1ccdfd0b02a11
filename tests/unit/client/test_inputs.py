"""Rows as applications have them: all forms give the same bytes, and bad input is refused before anything is sent."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal

import pyarrow as pa
import pytest

from slackwater.client.inputs import Input, in_blocks, in_order, key_of
from slackwater.client.writes import unique
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.model.kinds import INT, STRING, TIMESTAMPTZ, decimal_type
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.protocol.client.calls import WriteKind

SCHEMA = TableSchema(
    100,
    "t",
    1,
    (
        Column(1, "region", STRING, nullable=False),
        Column(2, "id", INT, nullable=False),
        Column(3, "price", decimal_type(10, 2)),
        Column(4, "at", TIMESTAMPTZ),
        Column(5, "note", STRING, nullable=False, default="-"),
    ),
    (KeyColumn(1), KeyColumn(2)),
)
CODEC = RowCodec(SCHEMA)
ROWS = [
    {"id": 2, "region": "eu", "price": Decimal("1.50"), "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC), "note": "x"},
    {"region": "eu", "id": 1, "price": None, "at": None, "note": "y"},
    {"region": "ap", "id": 9, "price": Decimal(3), "at": None, "note": "z"},
]


def arrow() -> pa.Table:
    fields = [("note", pa.large_string()), ("id", pa.int32()), ("region", pa.string()), ("price", pa.decimal128(10, 2))]
    return pa.Table.from_pylist(ROWS, schema=pa.schema([*fields, ("at", pa.timestamp("us", tz="UTC"))]))


def encoded(rows: object, kind: WriteKind = WriteKind.UPSERT) -> tuple[list[bytes], list[bytes]]:
    given = Input(CODEC, rows, kind)
    keys, values = given.piece(0, given.count)
    return keys, values


def test_all_forms_give_the_same_sorted_rows() -> None:
    expected = encoded(ROWS)
    assert expected[0] == sorted(expected[0])
    assert [CODEC.decode(v)["note"] for v in expected[1]] == ["z", "y", "x"]
    table = arrow()
    assert encoded(table) == expected
    assert encoded(table.to_batches()[0]) == expected
    assert encoded(pa.concat_tables([table.slice(0, 1), table.slice(1)])) == expected
    assert encoded(iter(ROWS)) == expected


def test_pandas() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"region": ["a", "b"], "id": [1, 2], "note": ["x", "y"]}, index=[7, 8])
    keys, values = encoded(frame)
    assert [CODEC.decode(v) for v in values] == [
        {"region": "a", "id": 1, "price": None, "at": None, "note": "x"},
        {"region": "b", "id": 2, "price": None, "at": None, "note": "y"},
    ]
    assert len(keys) == 2


def test_pieces_are_sorted_each() -> None:
    given = Input(CODEC, arrow(), WriteKind.UPSERT)
    assert [len(keys) for keys, _ in given.pieces(2)] == [2, 1]
    assert all(keys == sorted(keys) for keys, _ in given.pieces(2))


def test_columns_left_out_take_their_default() -> None:
    _, (value,) = encoded([{"region": "a", "id": 1}])
    assert CODEC.decode(value)["note"] == "-"
    _, (value,) = encoded(pa.table({"region": ["a"], "id": [1]}))
    assert CODEC.decode(value)["note"] == "-"


def test_deletes_take_keys_in_any_form() -> None:
    expected = sorted(CODEC.key(k) for k in (("eu", 2), ("eu", 1), ("ap", 9)))
    delete = WriteKind.DELETE
    assert encoded(ROWS, delete)[0] == expected
    assert encoded([("eu", 2), ("eu", 1), ("ap", 9)], delete)[0] == expected
    assert encoded(arrow().select(["id", "region"]), delete)[0] == expected
    assert encoded(arrow(), delete)[0] == expected


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"region": "a", "id": 1, "nope": 1}], "no column 'nope'"),
        ([{"region": "a"}], "NOT NULL"),
        ([{"region": "a", "id": None}], "NOT NULL"),
        ([{"region": "a", "id": 1, "note": None}], "note"),
        ([{"region": "a", "id": "1"}], "column id"),
        ([{"region": "a", "id": 1, "price": Decimal("1.234")}], "column price"),
        ([{"region": "a", "id": 1, "at": dt.datetime(2026, 1, 1)}], "column at"),
        ([7], "is a dict"),
        ("rows", "list of dicts"),
        (7, "list of dicts"),
        (pa.table({"region": ["a"], "id": [1], "nope": [1]}), "no column 'nope'"),
        (pa.table({"region": ["a"]}), "NOT NULL"),
        (pa.table({"region": ["a"], "id": pa.array([None], pa.int64())}), "NOT NULL"),
        (pa.table({"region": ["a"], "id": ["x"]}), "column id"),
        (pa.table({"region": ["a"], "id": [1.5]}), "column id"),
        (pa.table([["a"], [1], [2]], names=["region", "id", "id"]), "two columns of one name"),
    ],
)
def test_one_clear_error(rows: object, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        encoded(rows)


@pytest.mark.parametrize("key", [7, ("a",), ("a", 1, 2), {"region": "a"}, ("a", None), ("a", "b"), {"x": 1}])
def test_a_key_that_is_none_is_refused(key: object) -> None:
    with pytest.raises(UsageError):
        key_of(CODEC, key)


def test_two_rows_of_one_key_are_refused_wherever_they_are() -> None:
    twice = [*ROWS, {**ROWS[0], "note": "again"}]
    with pytest.raises(UsageError, match="same primary key"):
        unique(CODEC, *encoded(twice), WriteKind.UPSERT)
    for rows in (twice, pa.concat_tables([arrow(), arrow().slice(0, 1)])):
        with pytest.raises(UsageError, match="same primary key"):
            Input(CODEC, rows, WriteKind.INSERT).check_rows(bytes_max=1 << 20)
    Input(CODEC, arrow(), WriteKind.INSERT).check_rows(bytes_max=1 << 20)
    keys, _ = unique(CODEC, *encoded([("a", 1), ("a", 1)], WriteKind.DELETE), WriteKind.DELETE)
    assert keys == [CODEC.key(("a", 1))]


def test_rows_in_order_are_left_alone() -> None:
    keys, values = [b"a", b"b"], [b"1", b"2"]
    assert in_order(keys, values)[0] is keys
    assert in_order([b"b", b"a"], [b"1", b"2"]) == ([b"a", b"b"], [b"2", b"1"])


def test_blocks_fit_their_bound_and_lose_nothing() -> None:
    keys = [b"%03d" % i for i in range(20)]
    values = [bytes(i * 7 % 50) for i in range(20)]
    for bound in (1, 10, 60, 10_000):
        blocks = list(in_blocks(keys, values, bytes_max=bound))
        assert [k for ks, _ in blocks for k in ks] == keys
        assert [v for _, vs in blocks for v in vs] == values
        sizes = [sum(map(len, ks)) + sum(map(len, vs)) for ks, vs in blocks]
        assert all(size <= bound or len(ks) == 1 for size, (ks, _) in zip(sizes, blocks, strict=True))
    assert list(in_blocks(keys, [], bytes_max=9)) == [(keys[i : i + 3], []) for i in range(0, 20, 3)]
