"""Arrow scans give what pair scans and the row codec give: any depth, any key shape, any bounds and limits."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import ConflictError
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.predicates import predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.txns import Txn
from slackwater.runtime.seam import Family
from slackwater.storage import reads, writes
from slackwater.storage.arrow import count_rows, scan_arrow
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import suffix

COLUMNS = (
    Column(1, "id", ColumnType(ColumnKind.INT), nullable=False),
    Column(2, "name", ColumnType(ColumnKind.STRING), nullable=False),
    Column(3, "score", ColumnType(ColumnKind.FLOAT)),
)
BY_INT = TableSchema(7, "t", 1, COLUMNS, (KeyColumn(1),))
BY_NAME = TableSchema(8, "u", 1, COLUMNS, (KeyColumn(2), KeyColumn(1)))


def fill(schema, seed, *, keys, depth, deletions):
    draw = random.Random(seed)
    codec = RowCodec(schema, {1: schema})
    engine = MemoryEngine()
    batch = engine.batch()
    for n in range(keys):
        name = "x" * draw.randrange(4)
        deep = draw.choice([1, depth])
        for ts in draw.sample(range(1, 400), deep):
            key, value = codec.encode({"id": n, "name": name, "score": float(ts) if draw.random() < 0.8 else None})
            batch.put(Family.DATA, key + suffix(Timestamp(ts)), b"" if draw.random() < deletions else value)
    engine.write(batch)
    return engine, codec


@settings(max_examples=40, deadline=None)
@given(
    by_name=st.booleans(), seed=st.integers(0, 1 << 30), keys=st.sampled_from([0, 1, 40, 300]),
    depth=st.sampled_from([1, 3, 40]), deletions=st.sampled_from([0.0, 0.3]), ts=st.integers(1, 420),
    limit=st.sampled_from([0, 1, 50]), size=st.sampled_from([0, 300]), bounds=st.booleans(),
)  # fmt: skip
def test_arrow_scan_equals_pair_scan(by_name, seed, keys, depth, deletions, ts, limit, size, bounds):
    schema = BY_NAME if by_name else BY_INT
    engine, codec = fill(schema, seed, keys=keys, depth=depth, deletions=deletions)
    span = schema_span(schema)
    start, end = span.start, span.end
    if bounds:
        some = reads.scan(engine, start, end, ts=Timestamp(10_000)).keys
        if len(some) > 2:  # bounds that extend keys: versions of the first must not show, those of the last must
            start, end = some[len(some) // 4] + b"\x00", some[-1 - len(some) // 4] + b"\x00"
    if start >= end:
        return
    rows = reads.scan(engine, start, end, ts=Timestamp(ts))
    decoder = BlockDecoder(schema, {1: schema})
    got = []
    while True:
        resume = None
        for block in scan_arrow(engine, start, end, ts=Timestamp(ts), decoder=decoder, max_rows=limit, max_bytes=size):
            got += block.batch.to_pylist()
            resume = block.resume
        if resume is None:
            break
        start = resume
        if start >= end:
            break
    assert got == [codec.decode(value) for value in rows.values]


@settings(max_examples=40, deadline=None)
@given(
    by_name=st.booleans(), seed=st.integers(0, 1 << 30), keys=st.sampled_from([0, 1, 40, 300, 5000]),
    depth=st.sampled_from([1, 3, 40]), deletions=st.sampled_from([0.0, 0.3]), ts=st.integers(1, 420),
    limit=st.sampled_from([0, 1, 50]), size=st.sampled_from([0, 300]), bounds=st.booleans(),
)  # fmt: skip
def test_a_count_equals_pair_scan(by_name, seed, keys, depth, deletions, ts, limit, size, bounds):
    schema = BY_NAME if by_name else BY_INT
    engine, _ = fill(schema, seed, keys=keys, depth=depth if keys < 5000 else 2, deletions=deletions)
    span = schema_span(schema)
    start, end = span.start, span.end
    if bounds:
        some = reads.scan(engine, start, end, ts=Timestamp(10_000)).keys
        if len(some) > 2:
            start, end = some[len(some) // 4] + b"\x00", some[-1 - len(some) // 4] + b"\x00"
    if start >= end:
        return
    rows = reads.scan(engine, start, end, ts=Timestamp(ts))
    counted = size_read = 0
    resume = start
    while resume is not None and resume < end:
        found = count_rows(engine, resume, end, ts=Timestamp(ts), max_rows=limit, max_bytes=size)
        counted, size_read, resume = counted + found.rows, size_read + found.size, found.resume
    assert (counted, size_read) == (len(rows.keys), sum(map(len, rows.values)))


def test_columns_and_predicates_are_pushed_into_the_decode():
    engine, codec = fill(BY_INT, 5, keys=200, depth=3, deletions=0.1)
    span = schema_span(BY_INT)
    decoder = BlockDecoder(BY_INT, {1: BY_INT}, ["name"], [predicate("id", "<", 50)])
    got = [
        row
        for b in scan_arrow(engine, span.start, span.end, ts=Timestamp(300), decoder=decoder)
        for row in b.batch.to_pylist()
    ]
    rows = map(codec.decode, reads.scan(engine, span.start, span.end, ts=Timestamp(300)).values)
    assert got == [{"name": r["name"]} for r in rows if r["id"] < 50]
    assert got


def test_an_intent_at_or_below_the_timestamp_is_a_conflict():
    engine, codec = fill(BY_INT, 5, keys=20, depth=1, deletions=0)
    span = schema_span(BY_INT)
    decoder = BlockDecoder(BY_INT, {1: BY_INT})
    key, value = codec.encode({"id": 1000, "name": "new", "score": None})
    batch = engine.batch()
    at = Timestamp(500)
    writes.put(engine, batch, key, value, ts=at, txn=Txn(b"t" * 16, key, at, 0, at, at, MIN, 1))
    engine.write(batch)
    assert sum(b.rows_read for b in scan_arrow(engine, span.start, span.end, ts=Timestamp(499), decoder=decoder)) == 20
    assert count_rows(engine, span.start, span.end, ts=Timestamp(499)).rows == 20
    with pytest.raises(ConflictError):
        count_rows(engine, span.start, span.end, ts=Timestamp(500))
    with pytest.raises(ConflictError) as error:
        list(scan_arrow(engine, span.start, span.end, ts=Timestamp(500), decoder=decoder))
    assert [i.key for i in error.value.facts["intents"]] == [key]
