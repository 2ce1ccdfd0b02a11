"""Entries of secondary indexes: their order is that of the values, they lead back to their rows, and blocks equal single rows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.keys import KeyType, encode_element
from slackwater.codec.rows import RowCodec
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import DecodeError
from slackwater.model.indexes import Index
from slackwater.model.kinds import ColumnKind
from slackwater.model.schema import KeyColumn
from tests.property.model_strategies import exact, next_version, rows, schemas, values


@st.composite
def indexed(draw, *, versions: int = 1):
    """A table of one or more versions, an index that all of them can have, and rows of each."""
    found = [draw(schemas(columns_max=5))]
    for _ in range(versions - 1):
        found.append(draw(next_version(found[-1])))
    kept = [c.id for c in found[0].columns if all(s.by_id(c.id) is not None for s in found)]
    same = [c for c in kept if len({s.by_id(c).type for s in found}) == 1]
    sortable = [c for c in same if found[0].by_id(c).type.kind is not ColumnKind.JSON]
    own = draw(st.lists(st.sampled_from(sortable), min_size=1, max_size=3, unique=True))
    stored = draw(
        st.lists(st.sampled_from(kept), max_size=2, unique=True).map(lambda s: [c for c in s if c not in own])
    )
    parts = tuple(KeyColumn(c, draw(st.booleans())) for c in own)
    index = Index(2, "i", parts, unique=draw(st.booleans()), storing=tuple(stored))
    written = [(schema, row) for schema in found for row in draw(rows(schema, max_size=6))]
    return found, index, written


def sorts_as(schema, index, row):
    """What orders two rows in an index: the elements of its columns, each by the order that `codec.keys` is tested for."""
    parts = [
        *index.columns,
        *(p for p in schema.primary_key if p.column_id not in {k.column_id for k in index.columns}),
    ]
    columns = [(schema.by_id(p.column_id), p.descending) for p in parts]
    return [encode_element(row[c.name], KeyType(c.type.kind, descending)) for c, descending in columns]


@settings(max_examples=150)
@given(indexed())
def test_entries_sort_as_their_values_do_and_lead_back_to_their_rows(table):
    (schema,), index, written = table
    codec, table_codec = IndexCodec(schema, index, [schema]), RowCodec(schema)
    found = []
    for _, row in written:
        key, value = codec.entry(row)
        assert codec.row_key(value) == table_codec.encode(row)[0]
        names = [c.name for c in codec.schema.columns]
        assert exact(codec.codec.decode(value)) == exact({n: row[n] for n in names})
        found.append((sorts_as(schema, index, row), key, codec.is_shared(row), table_codec.encode(row)[0]))
    own = len(index.columns)
    for a, key_a, shared_a, row_a in found:
        for b, key_b, shared_b, row_b in found:
            assert key_a == key_b or not key_b.startswith(key_a)  # prefix-free
            if a[:own] == b[:own]:
                assert shared_a == shared_b
                assert (key_a == key_b) == (shared_a or row_a == row_b)
            else:
                assert (key_a < key_b) == (a[:own] < b[:own])
            if not shared_a and not shared_b:
                assert (key_a < key_b) == (a < b)


@settings(max_examples=150)
@given(indexed(versions=2))
def test_blocks_of_any_versions_equal_rows_one_by_one(table):
    versions, index, written = table
    read = versions[-1]
    by_version = {s.version: s for s in versions}
    values_ = [RowCodec(s).encode(row)[1] for s, row in written]
    codec, table_codec = IndexCodec(read, index, versions), RowCodec(read, by_version)
    try:
        decoded = [table_codec.decode(value) for value in values_]
    except DecodeError:
        return  # a value of the first version that the second cannot hold: rows' tests cover it
    batch = BlockDecoder(read, by_version).decode(values_)
    assert codec.entries(batch) == codec.entries(decoded)
    keys, entries = codec.entries(decoded)
    entry_batch = BlockDecoder(codec.schema, {}).decode(entries)
    assert codec.row_keys(entry_batch) == [codec.row_key(entry) for entry in entries]
    assert len(keys) == len(written)


@settings(max_examples=100)
@given(indexed(versions=2))
def test_an_entry_of_an_older_version_is_read_as_the_row_is(table):
    versions, index, written = table
    old, new = versions
    reader = IndexCodec(new, index, versions)
    for schema, row in written:
        if schema is not old:
            continue
        key, value = IndexCodec(old, index, versions).entry(row)
        try:
            seen = RowCodec(new, {s.version: s for s in versions}).decode(RowCodec(old).encode(row)[1])
        except DecodeError:
            continue
        assert exact(reader.codec.decode(value)) == exact({c.name: seen[c.name] for c in reader.schema.columns})
        assert reader.entry(seen)[0] == key


@given(st.data())
def test_a_unique_value_has_one_key_whichever_row_has_it(data):
    (schema,), index, written = data.draw(indexed())
    index = Index(2, "i", index.columns, unique=True)
    codec = IndexCodec(schema, index)
    for _, row in written:
        keys = {c.name for c, _ in schema.key_columns()} - {schema.by_id(p.column_id).name for p in index.columns}
        other = row | {name: data.draw(values(schema.column(name).type)) for name in keys}
        if codec.is_shared(row):
            assert codec.entry(other)[0] == codec.entry(row)[0]
