"""The vectorized row codec against the per-row one, over all types, NULLs and schema versions."""

import math

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.codec import rows_arrow
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError, UsageError
from slackwater.model.kinds import ColumnKind
from slackwater.model.predicates import Op, Predicate
from tests.property.model_strategies import exact, next_version, rows, schemas, values


@st.composite
def tables(draw):
    schema = draw(schemas())
    return schema, draw(rows(schema))


@st.composite
def histories(draw):
    """A table of two or three versions, rows of each mixed in one block, and the version that reads them."""
    versions = [draw(schemas(columns_max=6))]
    for _ in range(draw(st.integers(1, 2))):
        versions.append(draw(next_version(versions[-1])))
    written = [(s, r) for s in versions for r in draw(rows(s, max_size=4))]
    mixed = draw(st.permutations(written))
    return versions, [RowCodec(s).encode(r)[1] for s, r in mixed], draw(st.sampled_from(versions))


@settings(max_examples=80)
@given(tables())
def test_one_row_at_a_time(table):
    schema, given_rows = table
    codec = RowCodec(schema)
    names = [c.name for c, _ in schema.key_columns()]
    for row in given_rows:
        key, value = codec.encode(row)
        assert exact(codec.decode(value)) == exact(row)
        decoded = codec.decode_key(key)
        assert codec.encode({**row, **decoded})[0] == key
        assert codec.key([row[n] for n in names]) == key


@settings(max_examples=120)
@given(tables())
def test_blocks_equal_rows_in_both_directions(table):
    schema, given_rows = table
    codec = RowCodec(schema)
    pairs = [codec.encode(r) for r in given_rows]
    batch = BlockDecoder(schema, {}).decode([v for _, v in pairs])
    batch.validate(full=True)
    assert batch.schema.equals(arrow_schema(schema))
    assert exact_rows(batch) == [exact(codec.decode(v)) for _, v in pairs]
    keys, encoded = codec.encode_batch(batch)
    assert list(zip(keys, encoded, strict=True)) == pairs
    middle = batch.slice(len(pairs) // 3)
    assert codec.encode_batch(middle)[1] == [v for _, v in pairs[len(pairs) // 3 :]]


def exact_rows(batch):
    return [exact(r) for r in batch.to_pylist()]


def per_row(codec, encoded):
    """The rows, or the one error."""
    try:
        return [exact(codec.decode(v)) for v in encoded]
    except DecodeError:
        return DecodeError


def in_blocks(decoder, encoded):
    try:
        batch = decoder.decode(encoded)
    except DecodeError:
        return DecodeError
    batch.validate(full=True)
    return exact_rows(batch)


@settings(max_examples=150)
@given(histories(), st.sampled_from([1, 2, 5, 65_536]))
def test_mixed_versions_read_under_any_of_them(history, sub_block):
    versions, encoded, reader = history
    known = {s.version: s for s in versions}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rows_arrow, "SUB_BLOCK_ROWS", sub_block)
        found = in_blocks(BlockDecoder(reader, known), encoded)
    assert found == per_row(RowCodec(reader, known), encoded)


@st.composite
def filtered(draw):
    schema = draw(schemas(columns_max=5))
    given_rows = draw(rows(schema))
    predicates = []
    for _ in range(draw(st.integers(1, 2))):
        column = draw(st.sampled_from(schema.columns))
        op = draw(st.sampled_from(list(Op)))
        present = [r[column.name] for r in given_rows if r[column.name] is not None]
        literal = values(column.type) | st.sampled_from(present) if present else values(column.type)
        if column.type.kind in (ColumnKind.INT, ColumnKind.INT2, ColumnKind.INT4, ColumnKind.DECIMAL, ColumnKind.FLOAT):
            literal |= st.integers() | st.floats() | st.decimals(allow_nan=False, allow_infinity=False)
        literal = st.none() | literal
        predicates.append(Predicate(column.name, op, draw(st.lists(literal, max_size=3) if op is Op.IN else literal)))
    columns = draw(st.lists(st.sampled_from([c.name for c in schema.columns]), unique=True))
    return schema, given_rows, predicates, columns


def order_of(value):
    """SQL's order as Python compares it: NaN is one value, above all."""
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, float):
        return (math.isnan(value), 0.0 if math.isnan(value) else value)
    if isinstance(value, bool | bytes) or (not isinstance(value, int) and not hasattr(value, "as_tuple")):
        return value
    return (False, value)


def satisfies(value, predicate):
    """The oracle of predicates."""
    if predicate.op is Op.IS_NULL:
        return value is None
    if value is None or predicate.literal is None:
        return predicate.op is Op.IS_NOT_NULL and value is not None
    if predicate.op is Op.IS_NOT_NULL:
        return True
    x = order_of(value)
    if predicate.op is Op.IN:
        return any(x == order_of(v) for v in predicate.literal if v is not None)
    y = order_of(predicate.literal)
    return {"=": x == y, "!=": x != y, "<": x < y, "<=": x <= y, ">": x > y, ">=": x >= y}[predicate.op.value]


@settings(max_examples=200)
@given(filtered())
def test_predicates_keep_exactly_the_rows_that_satisfy_them(case):
    schema, given_rows, predicates, columns = case
    codec = RowCodec(schema)
    batch = BlockDecoder(schema, {}, columns, predicates).decode([codec.encode(r)[1] for r in given_rows])
    kept = [r for r in given_rows if all(satisfies(r[p.column], p) for p in predicates)]
    assert batch.num_rows == len(kept)
    assert batch.schema.names == columns
    if columns:
        assert exact_rows(batch) == [exact({n: r[n] for n in columns}) for r in kept]


@settings(max_examples=60)
@given(tables(), st.data())
def test_values_with_gaps_between_them(table, data):
    schema, given_rows = table
    codec = RowCodec(schema)
    encoded = [codec.encode(r)[1] for r in given_rows]
    buffer, starts, ends = b"", [], []
    for value in encoded:
        buffer += data.draw(st.binary(max_size=3))
        starts.append(len(buffer))
        buffer += value
        ends.append(len(buffer))
    batch = BlockDecoder(schema, {}).decode_spans(buffer, starts, ends)
    assert exact_rows(batch) == exact_rows(BlockDecoder(schema, {}).decode(encoded))


@settings(max_examples=60)
@given(tables(), st.data())
def test_columns_left_out_take_their_default_in_batches_too(table, data):
    schema, given_rows = table
    codec = RowCodec(schema)
    names = [c.name for c in schema.columns]
    present = data.draw(st.lists(st.sampled_from(names), unique=True, min_size=1))
    partial = [{n: r[n] for n in present} for r in given_rows]
    batch = pa.RecordBatch.from_pylist(partial, schema=arrow_schema(schema, present))
    try:
        expected = [codec.encode(r) for r in partial]
    except UsageError:
        with pytest.raises(UsageError):
            codec.encode_batch(batch)
        return
    if partial:
        keys, encoded = codec.encode_batch(batch)
        assert list(zip(keys, encoded, strict=True)) == expected
