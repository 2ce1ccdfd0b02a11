"""Types on the way to Spark and back, without a session."""

from __future__ import annotations

import datetime as dt
import math
from decimal import Decimal

import pyarrow as pa
import pytest

from slackwater.codec.arrow import arrow_schema
from slackwater.errors import UsageError
from slackwater.model import kinds
from slackwater.model.schema import Column, KeyColumn, TableSchema

pytest.importorskip("pyspark")

from pyspark.sql import types as st

from slackwater.spark.names import meant
from slackwater.spark.options import Filter
from slackwater.spark.types import Asked, arrow_target, can_store, conform, spark_schema, where_of

TYPES = {
    "k": kinds.INT,
    "i2": kinds.INT2,
    "i4": kinds.INT4,
    "flag": kinds.BOOL,
    "f": kinds.FLOAT,
    "price": kinds.decimal_type(10, 2),
    "s": kinds.STRING,
    "j": kinds.JSON,
    "b": kinds.BYTES,
    "d": kinds.DATE,
    "t": kinds.TIMESTAMP,
    "z": kinds.TIMESTAMPTZ,
    "u": kinds.UUID,
}
TABLE = TableSchema(
    104,
    "everything",
    1,
    tuple(Column(i, name, ctype, nullable=name != "k") for i, (name, ctype) in enumerate(TYPES.items(), 1)),
    (KeyColumn(1),),
)
DDL = (
    "k bigint not null, i2 smallint, i4 int, flag boolean, f double, price decimal(10,2), s string, j string, b binary, "
    "d date, t timestamp_ntz, z timestamp, u binary"
)


def test_every_type_has_its_spark_type() -> None:
    said = [(f.name, f.dataType.simpleString(), f.nullable) for f in spark_schema(TABLE).fields]
    expected = [(p.split()[0], p.split()[1], not p.endswith("not null")) for p in DDL.split(", ")]
    assert said == expected
    assert spark_schema(TABLE, ["s", "k"]).fieldNames() == ["s", "k"]


def test_a_scanned_batch_fits_spark_with_only_the_uuid_cast() -> None:
    ours, theirs = arrow_schema(TABLE), arrow_target(spark_schema(TABLE))
    different = [a.name for a, b in zip(ours, theirs, strict=True) if a != b]
    assert different == ["u"]
    batch = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in ours], schema=ours)
    assert conform(batch, theirs).schema == theirs
    without = TABLE.columns[:-1]
    plain = TableSchema(104, "t", 1, without, (KeyColumn(1),))
    fits = pa.RecordBatch.from_arrays([pa.nulls(0, f.type) for f in arrow_schema(plain)], schema=arrow_schema(plain))
    assert conform(fits, arrow_target(spark_schema(plain))) is fits


def test_conform_picks_orders_and_refuses() -> None:
    batch = pa.record_batch({"a": [1, 2], "b": ["x", None]})
    target = pa.schema([pa.field("b", pa.string()), pa.field("a", pa.int64(), nullable=False)])
    assert conform(batch, target).to_pylist() == [{"b": "x", "a": 1}, {"b": None, "a": 2}]
    with pytest.raises(UsageError, match="'b' holds NULL"):
        conform(batch, pa.schema([pa.field("b", pa.string(), nullable=False)]))
    with pytest.raises(UsageError, match="sent no column 'c'"):
        conform(batch, pa.schema([pa.field("c", pa.string())]))


def test_in_a_feed_only_the_key_is_never_null() -> None:
    table = TableSchema(
        1,
        "t",
        1,
        (Column(1, "k", kinds.INT, nullable=False), Column(2, "v", kinds.INT, nullable=False)),
        (KeyColumn(1),),
    )
    fields = {f.name: f.nullable for f in spark_schema(table, changes=True).fields}
    assert fields == {
        "k": False,
        "v": True,
        "_change_type": False,
        "_commit_version": False,
        "_commit_timestamp": False,
    }


def test_a_schema_of_the_users_picks_columns_and_must_agree() -> None:
    asked = st.StructType([st.StructField("s", st.StringType()), st.StructField("k", st.LongType())])
    assert Asked(asked, TABLE).read == ["s", "k"]
    feed = st.StructType([st.StructField("k", st.LongType()), st.StructField("_change_type", st.StringType())])
    assert Asked(feed, TABLE, changes=True).read == ["k"]
    with pytest.raises(UsageError, match="has no column 'nope'"):
        Asked(st.StructType([st.StructField("nope", st.LongType())]), TABLE)
    with pytest.raises(UsageError, match="column k of table everything is bigint; the schema given says int"):
        Asked(st.StructType([st.StructField("k", st.IntegerType())]), TABLE)


def test_names_are_found_as_spark_finds_them() -> None:
    asked = st.StructType([st.StructField("S", st.StringType()), st.StructField("K", st.LongType())])
    found = Asked(asked, TABLE)
    assert found.read == ["s", "k"]
    rows = pa.RecordBatch.from_arrays([pa.array(["x"]), pa.array([1])], names=["s", "k"])
    assert found.shaper()(rows).to_pylist() == [{"S": "x", "K": 1}]
    assert spark_schema(TABLE, ["K"]).fieldNames() == ["k"]
    assert where_of(TABLE, [Filter("K", "=", 1), Filter("k", "<", 3)]) == [("k", "=", 1), ("k", "<", 3)]
    both = ["id", "ID", "v"]
    assert meant(["ID", "V"], both, table="t") == {"ID": "ID", "V": "v"}
    for names, said in [(["Id"], "'Id' may be id or ID"), (["v", "V"], "named twice"), (["x"], "no column 'x'")]:
        with pytest.raises(UsageError, match=said):
            meant(names, both, table="t")


def test_literals_of_filters_become_values_of_their_columns() -> None:
    filters = [
        Filter("k", ">", 3),
        Filter("price", "=", "1.50"),
        Filter("d", "in", ["2026-11-15", None]),
        Filter("z", "<", "2026-11-15T00:00:00+00:00"),
        Filter("s", "!=", "x"),
        Filter("s", "is null"),
    ]
    assert where_of(TABLE, filters) == [
        ("k", ">", 3),
        ("price", "=", Decimal("1.50")),
        ("d", "in", [dt.date(2026, 11, 15), None]),
        ("z", "<", dt.datetime(2026, 11, 15, tzinfo=dt.UTC)),
        ("s", "!=", "x"),
        ("s", "is null", None),
    ]
    texts = [("k", "7", Decimal(7)), ("f", "NaN", math.nan), ("f", "1e3", 1000.0), ("price", "0.05", Decimal("0.05"))]
    for column, text, value in texts:
        ((_, _, found),) = where_of(TABLE, [Filter(column, "=", text)])
        assert repr(found) == repr(value)
    for written in ({"hex": "0aff"}, {"base64": "Cv8="}):
        assert where_of(TABLE, [Filter("b", "in", [written, None])]) == [("b", "in", [b"\x0a\xff", None])]
    for guess in ("Cv8=", "0aff", 5, {"hex": "xyz"}, {"base64": "?"}, {"hex": "0a", "base64": "Cg=="}):
        with pytest.raises(UsageError, match=r'for column b; write \{"hex": "0aff"\}'):
            where_of(TABLE, [Filter("b", "=", guess)])
    with pytest.raises(UsageError, match="cannot read 'soon' as date for column d"):
        where_of(TABLE, [Filter("d", "=", "soon")])
    with pytest.raises(UsageError, match="has no column 'nope'"):
        where_of(TABLE, [Filter("nope", "=", 1)])


def test_what_a_column_takes_is_what_always_fits() -> None:
    for column in TABLE.columns:
        assert can_store(spark_schema(TABLE, [column.name]).fields[0].dataType, column.type)
        assert can_store(st.NullType(), column.type)
    takes = {
        "k": [st.ByteType(), st.ShortType(), st.IntegerType()],
        "i2": [st.ByteType()],
        "f": [st.FloatType()],
        "price": [st.DecimalType(5, 2), st.DecimalType(8, 0)],
        "j": [st.StringType()],
    }
    refuses = {
        "k": [st.StringType(), st.DoubleType(), st.DecimalType(5, 0), st.BooleanType()],
        "i2": [st.IntegerType(), st.LongType()],
        "f": [st.LongType(), st.StringType()],
        "price": [st.DecimalType(11, 2), st.DecimalType(10, 3), st.DoubleType(), st.IntegerType()],
        "s": [st.BinaryType(), st.LongType()],
        "d": [st.TimestampType(), st.StringType()],
        "t": [st.TimestampType()],
        "z": [st.TimestampNTZType()],
        "flag": [st.IntegerType()],
    }
    for name, types in takes.items():
        assert all(can_store(t, TYPES[name]) for t in types), name
    for name, types in refuses.items():
        assert not any(can_store(t, TYPES[name]) for t in types), name
