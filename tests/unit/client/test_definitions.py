"""Columns and keys as applications write them."""

from __future__ import annotations

import pyarrow as pa
import pytest

from slackwater.client.definitions import column_specs, key_specs, type_of_arrow, type_of_text
from slackwater.errors import UsageError
from slackwater.model.kinds import INT, INT2, INT4, STRING, UUID, ColumnKind, decimal_type
from slackwater.model.schema import Column
from slackwater.protocol.client.calls import ColumnSpec, KeySpec


def test_a_dict_of_types_under_any_of_their_names() -> None:
    specs = column_specs({"a": "int8", "b": " TEXT not null", "c": "numeric(10, 2)", "d": STRING})
    assert specs == (
        ColumnSpec("a", INT),
        ColumnSpec("b", STRING, nullable=False),
        ColumnSpec("c", decimal_type(10, 2)),
        ColumnSpec("d", STRING),
    )
    assert type_of_text("smallint") == INT2
    assert type_of_text("double  precision").kind is ColumnKind.FLOAT


def test_an_arrow_schema() -> None:
    fields = [
        pa.field("a", pa.int32(), nullable=False),
        pa.field("b", pa.dictionary(pa.int8(), pa.string())),
        pa.field("c", pa.timestamp("ns", tz="Europe/Berlin")),
        pa.field("d", pa.decimal128(5, 1)),
        pa.field("e", pa.binary(16)),
    ]
    specs = column_specs(pa.schema(fields))
    assert [s.type for s in specs][:2] == [INT4, STRING]
    assert [str(s.type) for s in specs][2:4] == ["timestamptz", "decimal(5,1)"]
    assert specs[4].type == UUID
    assert [s.nullable for s in specs] == [False, True, True, True, True]


def test_column_objects() -> None:
    assert column_specs([Column(9, "a", INT, default=3)]) == (ColumnSpec("a", INT, default=3),)


def test_keys() -> None:
    assert key_specs("id") == (KeySpec("id"),)
    assert key_specs(["region", "ts DESC", "id asc"]) == (
        KeySpec("region"),
        KeySpec("ts", descending=True),
        KeySpec("id"),
    )


@pytest.mark.parametrize("columns", [{}, [], 7, {"a": "blob9"}, {"a": 3}, {1: "int8"}, [("a", "int8")]])
def test_one_clear_error(columns: object) -> None:
    with pytest.raises(UsageError):
        column_specs(columns)


@pytest.mark.parametrize("arrow", [pa.list_(pa.int8()), pa.uint64(), pa.struct([("a", pa.int8())]), pa.time64("us")])
def test_arrow_types_without_a_column_type_are_named(arrow: pa.DataType) -> None:
    with pytest.raises(UsageError, match="column x"):
        type_of_arrow(arrow, "x")
