"""The pure half of the catalog: records, definitions, and the cache over time."""

from __future__ import annotations

from typing import Any

import pytest

from slackwater.catalog import Tables, definition
from slackwater.catalog.records import (
    TableRecord,
    decode_record,
    descriptor_key,
    descriptors_span,
    encode_record,
    name_key,
    versions_span,
)
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.envelope import Enveloper, Timeline
from slackwater.errors import DecodeError, InvariantViolation, UsageError
from slackwater.model.kinds import INT, STRING
from slackwater.model.reserved import CHANGE_COLUMNS, FEED_COLUMNS, RESERVED_COLUMNS, is_reserved
from slackwater.model.tables import TableDescriptor, TableHistory
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from tests.table_helpers import without_column

COLUMNS = (ColumnSpec("id", INT), ColumnSpec("name", STRING, nullable=True))
KEY = (KeySpec("id"),)


def record(table_id: int = 100, name: str = "t") -> TableRecord:
    return definition.first_version(table_id, name, COLUMNS, KEY)


def described(made: TableRecord, at: int) -> TableDescriptor:
    return TableDescriptor(made.schema, Timestamp(at), made.next_column_id, made.dropped)


def test_a_record_comes_back_with_its_commit_timestamp() -> None:
    made = record()
    found = decode_record(descriptor_key(100, 1), encode_record(made), Timestamp(7))
    assert found == described(made, 7)


def test_a_record_under_another_key_is_refused() -> None:
    with pytest.raises(DecodeError, match="another table"):
        decode_record(descriptor_key(101, 1), encode_record(record()), Timestamp(7))
    with pytest.raises(DecodeError):
        decode_record(descriptor_key(100, 1), b"\xc1", Timestamp(7))


def test_versions_of_a_table_are_neighbours_and_names_lie_elsewhere() -> None:
    keys = [descriptor_key(t, v) for t in (1, 2, 255, 256) for v in (1, 2, 300)]
    assert keys == sorted(keys)
    assert all(key in descriptors_span() for key in keys)
    assert [key for key in keys if key in versions_span(255)] == keys[6:9]
    assert name_key("t") not in descriptors_span()


def test_key_columns_are_not_null_and_ids_count_from_one() -> None:
    schema = record().schema
    assert [(c.id, c.name, c.nullable) for c in schema.columns] == [(1, "id", False), (2, "name", True)]


@pytest.mark.parametrize("name", [*sorted(RESERVED_COLUMNS), "_OP", "_Before", "_from", "_to_x", "_commit_anything"])
def test_names_that_feeds_spark_and_the_archive_add_are_reserved(name: str) -> None:
    spec = ColumnSpec(name, INT)
    with pytest.raises(UsageError, match=f"the column name '{name}' is reserved: .* call it something else"):
        definition.first_version(1, "t", (*COLUMNS, spec), KEY)
    now = TableDescriptor(record().schema, Timestamp(1), 3)
    with pytest.raises(UsageError, match="is reserved"):
        definition.with_column(now, spec)


@pytest.mark.parametrize("name", ["_id", "op", "_opened", "_versions", "version", "_ended"])
def test_other_names_are_not(name: str) -> None:
    definition.first_version(1, "t", (*COLUMNS, ColumnSpec(name, INT)), KEY)


def test_every_column_that_is_added_to_rows_is_on_the_one_list() -> None:
    schema = record().schema
    enveloped = Enveloper(Timeline([(Timestamp(0), schema)]), befores=True).schema(schema).names
    spark_types: Any = pytest.importorskip("slackwater.spark.types")
    spark = [field.name for field in spark_types.CHANGE_FIELDS]
    own = {column.name for column in schema.columns}
    added = {*enveloped, *spark} - own
    assert added == {*FEED_COLUMNS, *CHANGE_COLUMNS}
    assert all(map(is_reserved, added))


@pytest.mark.parametrize("name", ["", "1t", "a b", "t;", "x" * 129, "é"])
def test_odd_table_names_are_refused(name: str) -> None:
    with pytest.raises(UsageError, match="name"):
        definition.first_version(1, name, COLUMNS, KEY)


def test_a_key_names_columns_that_are_there() -> None:
    with pytest.raises(UsageError, match="none of its columns"):
        definition.first_version(1, "t", COLUMNS, (KeySpec("nope"),))
    with pytest.raises(UsageError, match="primary key"):
        definition.first_version(1, "t", COLUMNS, ())


def test_columns_come_and_go_by_version_and_ids_are_never_used_again() -> None:
    first = described(record(), 1)
    second = described(definition.with_column(first, ColumnSpec("a", INT)), 2)
    third = described(without_column(second, "a"), 3)
    fourth = described(definition.with_column(third, ColumnSpec("b", INT, default=5)), 4)
    assert [c.id for c in second.columns] == [1, 2, 3]
    assert [c.id for c in third.columns] == [1, 2]
    assert [(c.id, c.default) for c in fourth.columns][-1] == (4, 5)
    assert [v.version for v in (first, second, third, fourth)] == [1, 2, 3, 4]


def test_what_the_next_version_may_not_do() -> None:
    now = described(record(), 1)
    with pytest.raises(UsageError, match="default"):
        definition.with_column(now, ColumnSpec("a", INT, nullable=False))
    with pytest.raises(UsageError, match="primary key"):
        without_column(now, "id")
    with pytest.raises(UsageError, match="no column"):
        without_column(now, "nope")


def test_a_table_is_found_by_the_name_it_had_then() -> None:
    first = described(record(100), 10)
    gone = described(definition.dropped(first), 20)
    again = described(record(101), 30)
    tables = Tables()
    tables.learn([again, gone, first])  # in any order
    assert tables.by_name("t").latest == again
    assert tables.by_name("t", at=Timestamp(9)) is None
    assert tables.by_name("t", at=Timestamp(10)) == TableHistory((first, gone))
    assert tables.by_name("t", at=Timestamp(19)).latest == gone
    assert tables.by_name("t", at=Timestamp(25)) is None
    assert [h.latest.table_id for h in tables.names()] == [101]
    assert [h.latest.table_id for h in tables.names(at=Timestamp(15))] == [100]


def test_learning_twice_changes_nothing_and_a_contradiction_stops() -> None:
    first = described(record(), 10)
    tables = Tables()
    tables.learn([first, first])
    assert tables.by_id(100) == TableHistory((first,))
    with pytest.raises(InvariantViolation):
        tables.learn([described(record(), 11)])


def test_what_is_gone_is_found_by_the_ids_of_tables() -> None:
    tables = Tables()
    for table_id in (100, 101, 107):
        first = described(record(table_id), 10)
        tables.learn([described(definition.dropped(first), 20), first])
    tables.learn([described(record(105), 10)])
    for first, last, found in (
        (0, 1 << 31, [100, 101, 107]),
        (101, 101, [101]),
        (102, 106, []),
        (1, 0, []),
        (101, 200, [101, 107]),
    ):
        assert [h.latest.table_id for h in tables.with_gone(first, last)] == found


def test_history_says_when_a_table_can_be_read() -> None:
    first = described(record(), 1 << 40)
    gone = described(definition.dropped(first), 2 << 40)
    history = TableHistory((first, gone))
    assert history.readable_at(Timestamp((1 << 40) + 5)) == first
    with pytest.raises(UsageError, match="did not exist yet"):
        history.readable_at(Timestamp(5))
    with pytest.raises(UsageError, match="was dropped"):
        history.readable_at(Timestamp(3 << 40))
