"""Any writes, by writers of any two neighbouring versions of a table: its indexes equal its rows where their states say so."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.catalog import planning
from slackwater.catalog.planning import WritePlanner
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConditionFailed, UniqueViolation
from slackwater.model.indexes import ElementState, Index
from slackwater.model.kinds import INT, STRING
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor
from slackwater.protocol.client.calls import WriteKind
from tests.table_helpers import entries_of

SCHEMA = TableSchema(
    7,
    "t",
    1,
    (Column(1, "id", INT, nullable=False), Column(2, "a", INT), Column(3, "b", STRING)),
    (KeyColumn(1, descending=True),),
)
CODEC = RowCodec(SCHEMA)
LADDER = list(ElementState)
rows = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(0, 6), "a": st.none() | st.integers(0, 4), "b": st.none() | st.sampled_from(["x", "y"])}
    ),
    min_size=1,
    max_size=4,
    unique_by=lambda row: row["id"],
)
writes = st.lists(st.tuples(st.sampled_from(list(WriteKind)), rows, st.integers(0, 1)), max_size=12)


def indexes(state: ElementState, *, unique: bool) -> tuple[Index, ...]:
    return (
        Index(2, "plain", (KeyColumn(2, descending=True),), storing=(3,), state=state),
        Index(3, "both", (KeyColumn(3), KeyColumn(2)), unique=unique, state=state),
    )


def apply(data, planner, kind, given_rows):
    pairs = sorted(CODEC.encode(row) for row in given_rows)
    keys = [key for key, _ in pairs]
    begun = planner.begin(kind, keys, [] if kind is WriteKind.DELETE else [value for _, value in pairs])
    found = {key: data.get(key) for key in begun.reads()}
    found |= {key: data.get(key) for key in begun.further_reads(found)}
    try:
        planned = begun.plan(found)
    except ConditionFailed as error:
        return type(error)
    data.update(planned.puts)
    for key in planned.deletes:
        data.pop(key, None)
    return planned


def entries(data, index):
    prefix = IndexCodec(SCHEMA, index).codec.prefix
    return {key: value for key, value in data.items() if key.startswith(prefix)}


def wanted(data, table, index):
    there = {key: value for key, value in data.items() if key.startswith(CODEC.prefix)}
    return dict(zip(*entries_of(table, index, list(there), list(there.values())), strict=True))


@settings(max_examples=300)
@given(writes, st.lists(writes, min_size=len(LADDER), max_size=len(LADDER)), st.booleans())
def test_indexes_equal_rows_through_the_whole_ladder(before, steps, unique):
    """Two writers at a time, one a version behind the other; the backfill goes row by row between other writes."""
    data: dict[bytes, bytes] = {}
    older = WritePlanner(TableDescriptor(SCHEMA, Timestamp(1), 4))
    for kind, given_rows, _ in before:
        apply(data, older, kind, given_rows)
    for state, step in zip(LADDER, steps, strict=True):
        table = TableDescriptor(SCHEMA, Timestamp(1), 4, indexes=indexes(state, unique=unique))
        newer = WritePlanner(table)
        for kind, given_rows, which in step:
            apply(data, (older, newer)[which], kind, given_rows)
            for index in table.indexes:  # no entry without its row, from the first step on
                for key, value in entries(data, index).items():
                    row = data.get(IndexCodec(SCHEMA, index).row_key(value))
                    assert row is not None
                    assert IndexCodec(SCHEMA, index).entry(CODEC.decode(row)) == (key, value)
        if state is ElementState.BACKFILLING:
            for index in table.indexes:
                for key, value in wanted(data, table, index).items():
                    if index.unique and len(wanted(data, table, index)) != sum(
                        k.startswith(CODEC.prefix) for k in data
                    ):
                        return  # two rows of one value: the backfill fails, and the index is taken back
                    data.setdefault(key, value)
        older = newer
        if state in (ElementState.VALIDATED, ElementState.PUBLIC):
            for index in table.indexes:
                assert entries(data, index) == wanted(data, table, index)


@settings(max_examples=150)
@given(writes, st.sampled_from(LADDER), st.booleans())
def test_blocks_are_planned_as_single_rows_are(steps, state, unique):
    table = TableDescriptor(SCHEMA, Timestamp(1), 4, indexes=indexes(state, unique=unique))
    few, many = WritePlanner(table), WritePlanner(table)
    data: dict[bytes, bytes] = {}
    for kind, given_rows, _ in steps:
        twin = dict(data)
        one_by_one = apply(data, few, kind, given_rows)
        kept, planning.ONE_BY_ONE_MAX = planning.ONE_BY_ONE_MAX, -1
        try:
            as_block = apply(twin, many, kind, given_rows)
        finally:
            planning.ONE_BY_ONE_MAX = kept
        if isinstance(one_by_one, type):
            assert one_by_one is as_block
        else:
            assert (one_by_one.puts, sorted(one_by_one.deletes)) == (as_block.puts, sorted(as_block.deletes))
        assert twin == data


@settings(max_examples=100)
@given(writes)
def test_no_two_rows_have_one_value_in_a_unique_index(steps):
    table = TableDescriptor(SCHEMA, Timestamp(1), 4, indexes=indexes(ElementState.PUBLIC, unique=True))
    planner, data = WritePlanner(table), {}
    refused = 0
    for kind, given_rows, _ in steps:
        refused += apply(data, planner, kind, given_rows) is UniqueViolation
        found = [CODEC.decode(value) for key, value in data.items() if key.startswith(CODEC.prefix)]
        shared = [(row["b"], row["a"]) for row in found if row["a"] is not None and row["b"] is not None]
        assert len(set(shared)) == len(shared)
        assert entries(data, table.indexes[1]) == wanted(data, table, table.indexes[1])
