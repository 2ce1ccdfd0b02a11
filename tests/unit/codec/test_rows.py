import datetime as dt
import subprocess
import sys
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from slackwater.codec import encode_arrow, rows, rows_arrow
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.rows import RowCodec, RowLayout, version_of
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError, EntryTooLarge, UsageError
from slackwater.model import kinds
from slackwater.model.predicates import predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema

SCHEMA = TableSchema(
    table_id=5,
    name="everything",
    version=3,
    columns=(
        Column(1, "id", kinds.INT, nullable=False),
        Column(2, "small", kinds.INT2),
        Column(3, "medium", kinds.INT4),
        Column(4, "flag", kinds.BOOL),
        Column(5, "ratio", kinds.FLOAT),
        Column(6, "price", kinds.decimal_type(10, 2)),
        Column(7, "name", kinds.STRING),
        Column(8, "raw", kinds.BYTES),
        Column(9, "day", kinds.DATE),
        Column(10, "at", kinds.TIMESTAMP),
        Column(11, "seen", kinds.TIMESTAMPTZ),
        Column(12, "token", kinds.UUID),
        Column(13, "doc", kinds.JSON),
    ),
    primary_key=(KeyColumn(1),),
)
ROW = {
    "id": 7,
    "small": -2,
    "medium": 70_000,
    "flag": True,
    "ratio": 0.5,
    "price": Decimal("12.34"),
    "name": "Ada ü",
    "raw": b"\x00\xff",
    "day": dt.date(2026, 11, 15),
    "at": dt.datetime(2026, 11, 15, 12, 0, 0, 5),
    "seen": dt.datetime(2026, 11, 15, 12, tzinfo=dt.UTC),
    "token": bytes(range(16)),
    "doc": '{"a": 1}',
}
VALUE = RowCodec(SCHEMA).encode(ROW)[1]


def two_columns(version=1, **changes):
    columns = {"id": Column(1, "id", kinds.INT, nullable=False), "v": Column(2, "v", kinds.STRING)} | changes
    return TableSchema(6, "t", version, tuple(c for c in columns.values() if c), (KeyColumn(1),))


def test_the_bytes_of_a_row_are_as_documented():
    schema = two_columns(version=258)
    key, value = RowCodec(schema).encode({"id": 1, "v": "ab"})
    assert key.hex(" ") == "05 00 00 00 06 00 01 20 80 00 00 00 00 00 00 01"
    assert value.hex(" ") == "01 02 01 00 00 00 01 00 00 00 00 00 00 00 02 00 00 00 61 62"
    assert (
        RowCodec(schema).encode({"id": 1, "v": None})[1].hex(" ")
        == "01 02 01 00 00 02 01 00 00 00 00 00 00 00 00 00 00 00"
    )
    assert version_of(value) == 258


def test_a_row_of_every_type_and_of_nulls():
    codec = RowCodec(SCHEMA)
    assert codec.decode(VALUE) == ROW
    nothing = dict.fromkeys(ROW) | {"id": 8}
    value = codec.encode({"id": 8})[1]
    assert codec.decode(value) == nothing
    assert BlockDecoder(SCHEMA, {}).decode([VALUE, value]).to_pylist() == [ROW, nothing]


def test_arrow_types_are_those_that_spark_demands():
    assert [str(f.type) for f in arrow_schema(SCHEMA)] == [
        "int64", "int16", "int32", "bool", "double", "decimal128(10, 2)", "string", "binary", "date32[day]",
        "timestamp[us]", "timestamp[us, tz=UTC]", "fixed_size_binary[16]", "string",
    ]  # fmt: skip
    assert [f.nullable for f in arrow_schema(SCHEMA, ["id", "name"])] == [False, True]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"id": 1, "nope": 2}, "no column 'nope'"),
        ({"name": "x"}, "NOT NULL"),
        ({"id": True}, "takes int"),
        ({"id": 1 << 63}, "64 bits"),
        ({"id": 1, "small": 1 << 15}, "column small"),
        ({"id": 1, "flag": 1}, "bool"),
        ({"id": 1, "ratio": (1 << 53) + 1}, "2\\^53"),
        ({"id": 1, "price": Decimal("1.001")}, "round it"),
        ({"id": 1, "price": Decimal(123456789)}, "widen"),
        ({"id": 1, "price": Decimal("NaN")}, "widen"),
        ({"id": 1, "price": 1.5}, "decimal.Decimal"),
        ({"id": 1, "name": b"x"}, "string"),
        ({"id": 1, "name": "\ud800"}, "surrogate"),
        ({"id": 1, "raw": "x"}, "bytes"),
        ({"id": 1, "day": dt.datetime(2026, 1, 1)}, "date"),
        ({"id": 1, "at": dt.datetime(2026, 1, 1, tzinfo=dt.UTC)}, "without a time zone"),
        ({"id": 1, "seen": dt.datetime(2026, 1, 1)}, "with a time zone"),
        ({"id": 1, "seen": dt.datetime.max.replace(tzinfo=dt.timezone(-dt.timedelta(hours=1)))}, "years 1 to 9999"),
        ({"id": 1, "token": b"short"}, "16 bytes"),
    ],
)
def test_what_a_column_does_not_take_is_refused_with_a_reason(row, problem):
    with pytest.raises(UsageError, match=problem):
        RowCodec(SCHEMA).encode(row)


def test_uuids_come_in_three_forms():
    import uuid

    codec = RowCodec(SCHEMA)
    forms = [bytes(range(16)), uuid.UUID(bytes=bytes(range(16))), "00010203-0405-0607-0809-0a0b0c0d0e0f"]
    assert len({codec.encode({"id": 1, "token": f})[1] for f in forms}) == 1


def test_added_dropped_renamed_and_widened_columns():
    old = two_columns(n=Column(3, "n", kinds.INT2), gone=Column(4, "gone", kinds.BYTES))
    new = two_columns(
        version=2,
        v=Column(2, "renamed", kinds.STRING),
        n=Column(3, "n", kinds.decimal_type(10, 2)),
        extra=Column(5, "extra", kinds.DATE, default=dt.date(2026, 1, 1)),
    )
    values = [RowCodec(old).encode({"id": 1, "v": "x", "n": 5, "gone": b"!"})[1], RowCodec(new).encode({"id": 2})[1]]
    expected = [
        {"id": 1, "renamed": "x", "n": Decimal("5.00"), "extra": dt.date(2026, 1, 1)},
        {"id": 2, "renamed": None, "n": None, "extra": dt.date(2026, 1, 1)},
    ]
    assert [RowCodec(new, {1: old}).decode(v) for v in values] == expected
    assert BlockDecoder(new, {1: old}).decode(values).to_pylist() == expected


@pytest.mark.parametrize(
    ("ctype", "value", "target"),
    [
        (kinds.INT, (1 << 53) + 1, kinds.FLOAT),
        (kinds.INT, -(1 << 63), kinds.FLOAT),
        (kinds.INT, 10**9, kinds.decimal_type(10, 2)),
        (kinds.INT, 10**9, kinds.decimal_type(38, 30)),
        (kinds.STRING, "5", kinds.INT),
        (kinds.INT, 5, kinds.INT4),
        (kinds.decimal_type(10, 2), Decimal("1.25"), kinds.decimal_type(10, 1)),
    ],
)
def test_what_cannot_be_widened_without_loss_is_an_error(ctype, value, target):
    old, new = two_columns(v=Column(2, "v", ctype)), two_columns(version=2, v=Column(2, "v", target))
    stored = RowCodec(old).encode({"id": 1, "v": value})[1]
    with pytest.raises(DecodeError):
        RowCodec(new, {1: old}).decode(stored)
    with pytest.raises(DecodeError):
        BlockDecoder(new, {1: old}).decode([stored])


def test_a_not_null_column_without_default_cannot_be_read_from_older_rows():
    old, new = two_columns(), two_columns(version=2, n=Column(3, "n", kinds.INT, nullable=False))
    stored = RowCodec(old).encode({"id": 1})[1]
    for read in (RowCodec(new, {1: old}).decode, lambda v: BlockDecoder(new, {1: old}).decode([v])):
        with pytest.raises(DecodeError, match="backfill"):
            read(stored)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (b"", "shorter"),
        (b"\x02" + VALUE[1:], "format"),
        (VALUE[:1] + b"\x09" + VALUE[2:], "version"),
        (VALUE[:20], "shorter"),
        (VALUE + b"x", "end"),
        (VALUE[:5] + b"\x01" + VALUE[6:], "NOT NULL"),
        (VALUE[:6] + b"\x80" + VALUE[7:], "beyond"),
        (VALUE[:5] + b"\x40" + VALUE[6:], "tail"),
        (VALUE.replace("ü".encode(), b"\xff\xff"), "UTF-8"),
    ],
)
def test_broken_values_are_named(value, problem):
    with pytest.raises(DecodeError, match=problem):
        RowCodec(SCHEMA).decode(value)
    with pytest.raises(DecodeError, match=problem):
        BlockDecoder(SCHEMA, {}).decode([VALUE, value])


def test_empty_blocks_and_batches_of_no_columns():
    decoder = BlockDecoder(SCHEMA, {}, columns=["name", "id"])
    assert decoder.decode([]).num_rows == 0
    assert decoder.decode([]).schema.equals(decoder.schema)
    assert BlockDecoder(SCHEMA, {}, columns=[]).decode([VALUE] * 5).num_rows == 5
    assert BlockDecoder(SCHEMA, {}, columns=[], predicates=[predicate("id", "<", 7)]).decode([VALUE] * 5).num_rows == 0


def test_decoded_batches_do_not_depend_on_the_buffer():
    buffer = bytearray(VALUE)
    batch = BlockDecoder(SCHEMA, {}).decode_buffer(buffer, np.array([0, len(buffer)]))
    buffer[:] = bytes(len(buffer))
    assert batch.to_pylist() == [ROW]


@pytest.mark.parametrize("offsets", [[], [0, len(VALUE) + 1], [5, 0], [-1, len(VALUE)], [0, 10, 5, len(VALUE)]])
def test_offsets_outside_the_buffer_are_refused(offsets):
    with pytest.raises(DecodeError):
        BlockDecoder(SCHEMA, {}).decode_buffer(VALUE, np.array(offsets, dtype=np.int64))


def test_missing_values_are_refused():
    with pytest.raises(DecodeError, match="deleted"):
        BlockDecoder(SCHEMA, {}).decode([VALUE, None])


def test_batches_are_cast_without_loss_or_refused():
    codec = RowCodec(two_columns())
    wide = pa.RecordBatch.from_arrays(
        [pa.array([1, 2], pa.int8()), pa.array(["a", "b"], pa.large_string())], names=["id", "v"]
    )
    assert codec.encode_batch(wide)[1] == [codec.encode(r)[1] for r in wide.to_pylist()]
    for bad in ({"id": ["x"]}, {"id": [1.5]}, {"id": [None]}, {"v": ["x"]}, {"id": [1], "nope": [1]}):
        with pytest.raises(UsageError):
            codec.encode_batch(pa.RecordBatch.from_pydict(bad))


def test_batches_with_values_outside_a_type_are_refused():
    codec = RowCodec(SCHEMA)
    ids = pa.array([1])
    for name, array in {
        "day": pa.array([10**7], pa.int32()).cast(pa.date32()),
        "at": pa.array([1 << 62], pa.int64()).cast(pa.timestamp("us")),
        "price": pa.array([Decimal("123456789012.00")], pa.decimal128(14, 2)),
        "name": pa.Array.from_buffers(
            pa.string(), 1, [None, pa.py_buffer(np.array([0, 1], np.int32)), pa.py_buffer(b"\xff")]
        ),
    }.items():
        with pytest.raises(UsageError, match=name):
            codec.encode_batch(pa.RecordBatch.from_arrays([ids, array], names=["id", name]))


def test_rows_larger_than_the_bound_are_neither_written_nor_read(monkeypatch):
    codec = RowCodec(two_columns())
    large = {"id": 1, "v": "x" * 100}
    value = codec.encode(large)[1]
    for module in (rows, rows_arrow, encode_arrow):
        monkeypatch.setattr(module, "VALUE_BYTES_MAX", 99)
    with pytest.raises(EntryTooLarge):
        codec.encode(large)
    with pytest.raises(EntryTooLarge):
        codec.encode_batch(pa.RecordBatch.from_pylist([large]))
    with pytest.raises(DecodeError, match="larger"):
        codec.decode(value)
    with pytest.raises(DecodeError, match="larger"):
        BlockDecoder(two_columns(), {}).decode([value])


def test_blocks_of_many_rows_or_bytes_are_cut_or_refused(monkeypatch):
    codec = RowCodec(two_columns())
    given = [{"id": i, "v": "x" * i} for i in range(50)]
    batch = pa.RecordBatch.from_pylist(given)
    whole = codec.encode_batch(batch)
    monkeypatch.setattr(rows_arrow, "SUB_BLOCK_ROWS", 7)
    monkeypatch.setattr(encode_arrow, "BLOCK_BYTES_MAX", 100)
    assert codec.encode_batch(batch) == whole
    assert BlockDecoder(two_columns(), {}).decode(whole[1]).to_pylist() == given
    assert BlockDecoder(two_columns(), {}, columns=[]).decode(whole[1]).num_rows == 50
    monkeypatch.setattr(rows_arrow, "BLOCK_BYTES_MAX", 100)
    with pytest.raises(EntryTooLarge, match="fewer rows"):
        BlockDecoder(two_columns(), {}).decode(whole[1])


def test_the_layout_names_every_place():
    layout = RowLayout(two_columns())
    assert (layout.offsets, layout.ends_at, layout.width) == ({0: 6}, 14, 18)


def test_importing_the_model_does_not_import_pyarrow():
    code = "import sys, slackwater.model, slackwater.codec.layout; assert not {'pyarrow', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
