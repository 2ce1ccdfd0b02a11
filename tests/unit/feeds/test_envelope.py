"""Envelopes: operations, deletions, before-images, and the schema as of each event."""

import datetime as dt

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.envelope import Enveloper, Timeline, by_table
from slackwater.codec.key_columns import key_columns
from slackwater.codec.layout import kv
from slackwater.codec.rows import RowCodec
from slackwater.errors import DecodeError, UsageError
from slackwater.model import kinds
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.protocol.feeds.events import Changes

ID = Column(1, "id", kinds.INT, nullable=False)
NAME = Column(2, "name", kinds.STRING)
V1 = TableSchema(5, "people", 1, (ID, NAME), (KeyColumn(1),))
V2 = TableSchema(5, "people", 2, (ID, NAME, Column(3, "age", kinds.INT4, default=7)), (KeyColumn(1),))
V3 = TableSchema(5, "people", 3, (ID, Column(3, "age", kinds.INT, nullable=False, default=7)), (KeyColumn(1),))


def row(schema, **values):
    return RowCodec(schema).encode(values)


def block(*events, befores=None, txn_ids=None):
    return Changes([k for k, _, _ in events], [t for _, t, _ in events], [v for _, _, v in events], befores, txn_ids)


def rows_of(envelopes):
    return [row for e in envelopes for row in e.batch.to_pylist()]


def test_without_before_images_a_row_is_an_upsert_or_a_delete():
    key, value = row(V1, id=1, name="Ada")
    changes = block((key, 10, value), (key, 11, b""), txn_ids=[b"t" * 16, b""])
    (found,) = Enveloper(Timeline([(Timestamp(0), V1)])).batches(changes)
    assert found.batch.to_pylist() == [
        {"_op": "upsert", "_commit_ts": 10, "_txn": b"t" * 16, "_version": 1, "id": 1, "name": "Ada"},
        {"_op": "delete", "_commit_ts": 11, "_txn": None, "_version": 1, "id": 1, "name": None},
    ]
    assert not found.batch.schema.field("id").nullable
    assert found.batch.schema.field("name").nullable


def test_with_before_images_operations_are_told_apart():
    key, ada = row(V1, id=1, name="Ada")
    _, bob = row(V1, id=1, name="Bob")
    changes = block((key, 10, ada), (key, 11, bob), (key, 12, b""), (key, 13, b""), befores=[b"", ada, bob, b""])
    found = rows_of(Enveloper(Timeline([(Timestamp(0), V1)]), befores=True, txn_ids=False).batches(changes))
    assert [(r["_op"], r["_before"] and r["_before"]["name"], r["name"]) for r in found] == [
        ("insert", None, "Ada"),
        ("update", "Ada", "Bob"),
        ("delete", "Bob", None),
        ("delete", None, None),
    ]
    assert all(r["id"] == 1 for r in found)
    with pytest.raises(UsageError):
        Enveloper(Timeline([(Timestamp(0), V1)]), befores=True).batches(block((key, 10, ada)))


def test_each_event_is_seen_with_the_schema_in_force_at_its_commit():
    timeline = Timeline([(Timestamp(0), V1), (Timestamp(30), V2), (Timestamp(60), V3)])
    a, old = row(V1, id=1, name="Ada")
    b, new = row(V2, id=2, name="Bob", age=50)
    changes = block((a, 10, old), (b, 40, new), (a, 50, old), (b, 59, b""), (a, 60, new), (b, 29, old))
    found = Enveloper(timeline, txn_ids=False).batches(changes)
    assert [(e.schema.version, e.batch.column("_commit_ts").to_pylist()) for e in found] == [
        (1, [10, 29]),
        (2, [40, 50, 59]),
        (3, [60]),
    ]
    rows = {r["_commit_ts"]: r for r in rows_of(found)}
    assert rows[10] == {"_op": "upsert", "_commit_ts": 10, "_version": 1, "id": 1, "name": "Ada"}
    assert rows[50]["age"] == 7, "written before the column was there: its default"
    assert rows[60] == {"_op": "upsert", "_commit_ts": 60, "_version": 3, "id": 2, "age": 50}
    assert rows[59]["id"] == 2


def test_timelines_are_in_order_and_keep_clear_of_the_feeds_columns():
    with pytest.raises(UsageError):
        Timeline([])
    with pytest.raises(UsageError):
        Timeline([(Timestamp(5), V2), (Timestamp(6), V1)])
    with pytest.raises(UsageError):
        Timeline([(Timestamp(5), V1), (Timestamp(5), V2)])
    taken = TableSchema(5, "t", 1, (ID, Column(2, "_op", kinds.INT)), (KeyColumn(1),))
    with pytest.raises(UsageError, match=r"no change feed can follow table t: it has _op, .* copy the rows there"):
        Enveloper(Timeline([(Timestamp(0), taken)])).schema(taken)
    with pytest.raises(DecodeError, match="older than the first schema"):
        Timeline([(Timestamp(5), V1)]).at(Timestamp(4))
    assert Timeline([(Timestamp(5), V1)]).at(Timestamp(5)) == V1


def test_bytes_of_versions_that_are_no_longer_in_force():
    key, value = row(V1, id=1, name="Ada")
    enveloper = Enveloper(Timeline([(Timestamp(30), V2)], older=[V1]), txn_ids=False)
    assert rows_of(enveloper.batches(block((key, 40, value))))[0]["age"] == 7
    with pytest.raises(DecodeError):
        Enveloper(Timeline([(Timestamp(30), V2)])).batches(block((key, 40, value)))


def test_a_schema_that_arrives_later_is_used():
    timeline = Timeline([(Timestamp(0), V1)])
    enveloper = Enveloper(timeline, txn_ids=False)
    key, value = row(V1, id=1, name="Ada")
    enveloper.batches(block((key, 10, value)))
    timeline.add(Timestamp(30), V2)
    key, value = row(V2, id=1, name="Ada", age=3)
    assert rows_of(enveloper.batches(block((key, 31, value))))[0]["age"] == 3


def test_blocks_are_divided_by_table():
    other = TableSchema(6, "other", 1, (ID,), (KeyColumn(1),))
    one, value = row(V1, id=1, name="Ada")
    two, _ = row(other, id=2)
    mixed = block((two, 1, b"x"), (one, 2, value), (kv(b"k"), 3, b"x"), (two, 4, b""))
    assert {t: c.timestamps for t, c in by_table(mixed).items()} == {(5, 1): [2], (6, 1): [1, 4]}
    assert by_table(block((one, 2, value)))[5, 1].keys == [one]
    assert by_table(block((kv(b"k"), 3, b"x"))) == by_table(block()) == {}


KEYS = {
    "fixed": (
        (kinds.INT2, st.integers(-(1 << 15), (1 << 15) - 1)),
        (kinds.INT4, st.integers(-(1 << 31), (1 << 31) - 1)),
        (kinds.INT, st.integers(-(1 << 63), (1 << 63) - 1)),
        (kinds.BOOL, st.booleans()),
        (kinds.DATE, st.dates()),
        (kinds.TIMESTAMP, st.datetimes(min_value=dt.datetime(1, 1, 1))),
        (kinds.UUID, st.binary(min_size=16, max_size=16)),
    ),
    "varying": (
        (kinds.STRING, st.text(max_size=5)),
        (kinds.BYTES, st.binary(max_size=5)),
        (kinds.FLOAT, st.floats(allow_nan=False)),
        (kinds.decimal_type(10, 2), st.decimals(-1000, 1000, places=2)),
        (kinds.INT, st.integers(-5, 5)),
    ),
}


@pytest.mark.parametrize("shape", KEYS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_key_columns_are_what_the_codec_decodes(shape, data):
    kinds_of = data.draw(st.lists(st.sampled_from(KEYS[shape]), min_size=1, max_size=3))
    columns = tuple(Column(i + 1, f"c{i}", t, nullable=False) for i, (t, _) in enumerate(kinds_of))
    key = tuple(KeyColumn(c.id, data.draw(st.booleans())) for c in columns)
    schema = TableSchema(5, "t", 1, columns, key)
    rows = data.draw(
        st.lists(st.fixed_dictionaries({c.name: s for c, (_, s) in zip(columns, kinds_of, strict=True)}), max_size=5)
    )
    codec = RowCodec(schema)
    keys = [codec.encode(r)[0] for r in rows]
    found = key_columns(keys, schema)
    expected = [codec.decode_key(k) for k in keys]
    assert [{n: a[i].as_py() for n, a in found.items()} for i in range(len(keys))] == expected


def test_keys_of_others_are_refused():
    key, _ = row(V1, id=1, name="x")
    for wrong in (b"\x05\x00\x00\x00\x06" + key[5:], key[:7] + b"\x28" + key[8:], key[:-1]):
        with pytest.raises(DecodeError):
            key_columns([wrong], V1)
    small = TableSchema(5, "t", 1, (Column(1, "id", kinds.INT2, nullable=False),), (KeyColumn(1),))
    with pytest.raises(DecodeError):
        key_columns([RowCodec(V1).key([1 << 20])], small)
    assert key_columns([], V1)["id"].type == pa.int64()
