"""Bulk reads give what the row-at-a-time paths give: any depth, window, bounds, limits and mix of schema versions."""

import datetime as dt
import random
import uuid
from decimal import Decimal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, stream, unpack
from slackwater.codec.changes_arrow import change_schema
from slackwater.codec.envelope import Enveloper, Timeline
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConflictError, DecodeError, ReadWithinUncertainty, UsageError
from slackwater.model.changes import Changes
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.predicates import Op, Predicate, predicate
from slackwater.model.scan_plan import ScanPlan, decode_plan
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.txns import Txn
from slackwater.protocol.range.bulk import ExportArrow, ScanArrow
from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
from slackwater.runtime.seam import Family
from slackwater.storage import reads, writes
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.versions import suffix

ID = Column(1, "id", ColumnType(ColumnKind.INT), nullable=False)
NAME = Column(2, "name", ColumnType(ColumnKind.STRING), nullable=False)
SCORE = Column(3, "score", ColumnType(ColumnKind.FLOAT))
ADDED = Column(4, "added", ColumnType(ColumnKind.STRING), default="new")


def versions_of(*, by_name):
    """Three versions of one table: v2 adds a column, v3 drops one and renames another."""
    key = (KeyColumn(2), KeyColumn(1)) if by_name else (KeyColumn(1),)
    renamed = Column(2, "title", NAME.type, nullable=False)
    columns = [(ID, NAME, SCORE), (ID, NAME, SCORE, ADDED), (ID, renamed, ADDED)]
    return [TableSchema(7, "t", version, found, key) for version, found in enumerate(columns, start=1)]


def fill(schemas, seed, *, keys, depth, deletions):
    draw = random.Random(seed)
    codecs = [RowCodec(schema, {s.version: s for s in schemas}) for schema in schemas]
    engine = MemoryEngine()
    batch = engine.batch()
    for n in range(keys):
        name = "x" * draw.randrange(4)
        for ts in draw.sample(range(1, 400), draw.choice([1, depth])):
            codec = draw.choice(codecs)
            everything = {"id": n, "name": name, "title": name, "score": draw.choice([None, float(ts)]), "added": "a"}
            row = {column.name: everything[column.name] for column in codec.schema.columns}
            key, value = codec.encode(row)
            batch.put(Family.DATA, key + suffix(Timestamp(ts)), b"" if draw.random() < deletions else value)
    engine.write(batch)
    return engine


def bounds_of(engine, span, *, narrow):
    if not narrow:
        return span.start, span.end
    some = reads.scan(engine, span.start, span.end, ts=Timestamp(10_000)).keys
    if len(some) <= 2:
        return span.start, span.end
    # bounds that extend keys: versions of the first must not show, those of the last must
    return some[len(some) // 4] + b"\x00", some[-1 - len(some) // 4] + b"\x00"


def chunks(engine, request, *, ts, schema, limit=0, size=0):
    """All rows of a bulk read, chunk by chunk."""
    rows, end = [], request.end
    for _ in range(10_000):
        bulk = BulkReads(max_rows=limit, max_bytes=size)
        bulk.reads.append(BulkRead(request, Timestamp(ts), MIN))
        (found,) = bulk.run(engine)
        got = [row for batch in unpack(found.blocks, schema) for row in batch.to_pylist()]
        assert len(got) == found.rows
        rows += got
        if found.resume is None or found.resume >= end:
            return rows
        assert found.resume > request.start
        request = type(request)(found.resume, *[getattr(request, f) for f in request.__struct_fields__[1:]])
    raise AssertionError("the read does not end")


def expected_changes(engine, codec, start, end, *, after, upto, before):
    found = reads.scan_versions(engine, start, end, after=Timestamp(after), upto=Timestamp(upto), before_images=True)
    out = []
    empty = dict.fromkeys(c.name for c in codec.schema.columns)

    for key, ts, value, old in zip(found.keys, found.timestamps, found.values, found.befores, strict=True):
        if not value and not old:
            continue
        op = ("update" if old else "insert") if value else "delete"
        facts = {"_op": op, "_commit_ts": ts, "_txn": None, "_version": codec.schema.version}
        if before:
            facts["_before"] = codec.decode(old) if old else None
        out.append({**facts, **(codec.decode(value) if value else {**empty, **codec.decode_key(key)})})
    return out


CASES = {
    "by_name": st.booleans(), "seed": st.integers(0, 1 << 30), "keys": st.sampled_from([0, 1, 40, 300]),
    "depth": st.sampled_from([1, 3, 60]), "deletions": st.sampled_from([0.0, 0.4]), "read": st.integers(1, 3),
    "limit": st.sampled_from([0, 1, 50]), "size": st.sampled_from([0, 300]), "narrow": st.booleans(),
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(**CASES, after=st.integers(0, 420), length=st.integers(0, 420), before=st.booleans())
def test_changes_are_those_of_the_version_scan(
    by_name, seed, keys, depth, deletions, read, limit, size, narrow, after, length, before
):
    schemas = versions_of(by_name=by_name)
    engine = fill(schemas, seed, keys=keys, depth=depth, deletions=deletions)
    start, end = bounds_of(engine, schema_span(schemas[0]), narrow=narrow)
    if start >= end:
        return
    plan = ScanPlan(tuple(schemas), read)
    codec = RowCodec(schemas[read - 1], {s.version: s for s in schemas})
    request = ExportArrow(start, end, Timestamp(after), Timestamp(after + length), plan.encode(), before)
    got = chunks(
        engine, request, ts=after + length, schema=change_schema(plan.schema(), befores=before), limit=limit, size=size
    )
    assert got == expected_changes(engine, codec, start, end, after=after, upto=after + length, before=before)


@pytest.mark.parametrize("window", [(0, 420), (0, 60), (100, 300), (200, 250), (350, 420), (250, 250)])
@pytest.mark.parametrize("before", [False, True])
def test_long_histories_are_skipped_past_and_nothing_with_them(window, before):
    """Keys of many versions, cut by blocks: what lies beside the window is left out, what a change replaced is not."""
    schemas = versions_of(by_name=False)
    engine = fill(schemas, sum(window), keys=40, depth=60, deletions=0.4)
    span, plan = schema_span(schemas[0]), ScanPlan(tuple(schemas), 1)
    codec = RowCodec(schemas[0], {s.version: s for s in schemas})
    after, upto = window
    request = ExportArrow(span.start, span.end, Timestamp(after), Timestamp(upto), plan.encode(), before)
    got = chunks(engine, request, ts=upto, schema=change_schema(plan.schema(), befores=before))
    assert got == expected_changes(engine, codec, span.start, span.end, after=after, upto=upto, before=before)


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 1 << 30), deletions=st.sampled_from([0.0, 0.4]), before=st.booleans())
def test_a_feed_and_a_read_of_an_interval_show_the_same_changes(seed, deletions, before):
    schemas = versions_of(by_name=False)
    engine = fill(schemas, seed, keys=40, depth=3, deletions=deletions)
    span, plan, upto = schema_span(schemas[0]), ScanPlan(tuple(schemas), 3), Timestamp(420)
    request = ExportArrow(span.start, span.end, MIN, upto, plan.encode(), before)
    schema = change_schema(schemas[2], befores=before)
    read = list(chunks(engine, request, ts=upto, schema=schema))
    found = reads.scan_versions(engine, span.start, span.end, after=MIN, upto=upto, before_images=True)
    pushed = Changes(found.keys, list(found.timestamps), found.values, found.befores)
    pushed = pushed.pick([at for at in range(len(pushed)) if pushed.values[at] or found.befores[at]])
    timeline = Timeline([(MIN, schemas[2])], older=schemas[:2])
    fed = Enveloper(timeline, befores=True).batches(pushed)
    assert all(made.batch.schema.remove(4) == change_schema(schemas[2]) for made in fed)
    rows = [row for made in fed for row in made.batch.to_pylist()]
    assert read == [row if before else {k: v for k, v in row.items() if k != "_before"} for row in rows]


@settings(max_examples=30, deadline=None)
@given(**CASES, ts=st.integers(1, 420))
def test_rows_are_those_of_the_pair_scan(by_name, seed, keys, depth, deletions, read, limit, size, narrow, ts):
    schemas = versions_of(by_name=by_name)
    engine = fill(schemas, seed, keys=keys, depth=depth, deletions=deletions)
    start, end = bounds_of(engine, schema_span(schemas[0]), narrow=narrow)
    if start >= end:
        return
    plan = ScanPlan(tuple(schemas), read, predicates=(predicate("id", "<", 200),))
    codec = RowCodec(schemas[read - 1], {s.version: s for s in schemas})
    rows = map(codec.decode, reads.scan(engine, start, end, ts=Timestamp(ts)).values)
    got = chunks(engine, ScanArrow(start, end, plan.encode()), ts=ts, schema=plan_schema(plan), limit=limit, size=size)
    assert got == [row for row in rows if row["id"] < 200]


LITERALS = st.one_of(
    st.none(), st.booleans(), st.integers(-(1 << 80), 1 << 80), st.floats(allow_nan=False), st.text(max_size=8),
    st.binary(max_size=8), st.decimals(allow_nan=False, allow_infinity=False), st.dates(), st.datetimes(),
    st.datetimes(timezones=st.just(dt.UTC)),
)  # fmt: skip


@settings(max_examples=100, deadline=None)
@given(literals=st.lists(LITERALS, max_size=5))
def test_a_plan_survives_its_bytes(literals):
    schema = versions_of(by_name=False)[1]
    one = tuple(Predicate("id", Op.EQ, literal) for literal in literals)
    plan = ScanPlan((schema,), 2, ("added", "id"), (*one, Predicate("id", Op.IN, list(literals))))
    assert decode_plan(plan.encode()) == plan


def test_a_uuid_travels_as_its_bytes_and_nonsense_does_not_travel():
    schema = versions_of(by_name=False)[0]
    plan = ScanPlan((schema,), 1, None, (Predicate("id", Op.EQ, uuid.UUID(int=5)),))
    assert decode_plan(plan.encode()).predicates[0].literal == uuid.UUID(int=5).bytes
    with pytest.raises(UsageError):
        ScanPlan((schema,), 1, None, (Predicate("id", Op.EQ, object()),)).encode()
    with pytest.raises(UsageError):
        ScanPlan((schema,), 9).schema()
    for nonsense in (b"", b"\xc1", b"\x93\x01\x02\x03", plan.encode()[:-1], bytes(2 << 20)):
        with pytest.raises(DecodeError):
            decode_plan(nonsense)


def test_blocks_between_schema_and_end_mark_are_an_ipc_stream():
    import pyarrow as pa

    schemas = versions_of(by_name=False)
    engine = fill(schemas, 3, keys=300, depth=1, deletions=0)
    span = schema_span(schemas[0])
    plan = ScanPlan(tuple(schemas), 1, ("score", "id"))
    bulk = BulkReads(max_rows=0, max_bytes=0)
    bulk.reads.append(BulkRead(ScanArrow(span.start, span.end, plan.encode()), Timestamp(500), MIN))
    (found,) = bulk.run(engine)
    whole = b"".join(stream([*found.blocks, *found.blocks], plan_schema(plan)))
    table = pa.ipc.open_stream(whole).read_all()
    assert table.num_rows == 600
    assert table.column_names == ["score", "id"]


def test_no_columns_still_count_rows():
    schemas = versions_of(by_name=False)
    engine = fill(schemas, 3, keys=300, depth=1, deletions=0)
    span = schema_span(schemas[0])
    plan = ScanPlan(tuple(schemas), 1, ())
    bulk = BulkReads(max_rows=0, max_bytes=0)
    bulk.reads.append(BulkRead(ScanArrow(span.start, span.end, plan.encode()), Timestamp(500), MIN))
    (found,) = bulk.run(engine)
    assert found.rows == 300
    assert sum(batch.num_rows for batch in unpack(found.blocks, plan_schema(plan))) == 300


@pytest.mark.parametrize("by_name", [False, True])
@pytest.mark.parametrize("depth", [1, 60])
def test_a_version_within_uncertainty_stops_the_scan(by_name, depth):
    schemas = versions_of(by_name=by_name)
    engine = fill(schemas, 11, keys=40, depth=depth, deletions=0)
    span = schema_span(schemas[0])
    request = ScanArrow(span.start, span.end, ScanPlan(tuple(schemas), 1).encode())
    newest = max(reads.scan_versions(engine, span.start, span.end, after=MIN, upto=Timestamp(1000)).timestamps)
    for ts, limit, fails in [(newest - 1, newest, True), (newest - 1, newest - 1, False), (newest, newest + 50, False)]:
        bulk = BulkReads(max_rows=0, max_bytes=0)
        bulk.reads.append(BulkRead(request, Timestamp(ts), Timestamp(limit)))
        if fails:
            with pytest.raises(ReadWithinUncertainty) as error:
                bulk.run(engine)
            assert error.value.facts["existing"] == newest
        else:
            bulk.run(engine)


def test_an_intent_in_the_window_is_a_conflict_and_decimals_and_dates_are_keys_too():
    columns = (
        Column(1, "d", ColumnType(ColumnKind.DATE), nullable=False),
        Column(2, "p", ColumnType(ColumnKind.DECIMAL, precision=10, scale=2), nullable=False),
        Column(3, "v", ColumnType(ColumnKind.INT4)),
    )
    schema = TableSchema(9, "u", 1, columns, (KeyColumn(1, descending=True), KeyColumn(2)))
    codec, engine, span = RowCodec(schema), MemoryEngine(), schema_span(schema)
    row = {"d": dt.date(2026, 1, 2), "p": Decimal("3.50"), "v": 7}
    key, value = codec.encode(row)
    batch = engine.batch()
    batch.put(Family.DATA, key + suffix(Timestamp(10)), value)
    batch.put(Family.DATA, key + suffix(Timestamp(20)), b"")
    engine.write(batch)
    plan = ScanPlan((schema,), 1)
    request = ExportArrow(span.start, span.end, Timestamp(10), Timestamp(30), plan.encode())
    (gone,) = chunks(engine, request, ts=30, schema=change_schema(plan.schema()))
    assert (gone["d"], gone["p"], gone["v"], gone["_op"]) == (row["d"], row["p"], None, "delete")
    batch, at = engine.batch(), Timestamp(30)
    writes.put(engine, batch, key, value, ts=at, txn=Txn(b"t" * 16, key, at, 0, at, at, MIN, 1))
    engine.write(batch)
    with pytest.raises(ConflictError):
        chunks(engine, request, ts=30, schema=change_schema(plan.schema()))
