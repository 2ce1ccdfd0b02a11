"""Where batches of a stream end when its table changes, and what the stream says then."""

from __future__ import annotations

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.errors import UsageError
from slackwater.model.kinds import INT, STRING
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.tables import TableDescriptor, TableHistory
from slackwater.spark.evolution import end_before_changes
from slackwater.spark.offsets import batch_end
from slackwater.spark.options import Evolution

ID, A, B = Column(1, "id", INT, nullable=False), Column(2, "a", STRING), Column(3, "b", INT)


def at(seconds: float) -> Timestamp:
    return add_seconds(MIN, 1_000 + seconds)


def history(*versions: tuple[float, tuple[Column, ...], str, int]) -> TableHistory:
    return TableHistory(
        tuple(
            TableDescriptor(TableSchema(100, name, n, columns, (KeyColumn(1),), index_id), at(when), 9)
            for n, (when, columns, name, index_id) in enumerate(versions, 1)
        )
    )


def end(found: TableHistory, policy: Evolution, *, known: int = 1, after: float = 1, upto: float = 100) -> Timestamp:
    read = [column.name for column in found.versions[known - 1].columns]
    schema = found.versions[known - 1].schema
    return end_before_changes(found, schema, read, policy, after=at(after), upto=at(upto))


ADDED = history((0, (ID, A), "t", 1), (10, (ID, A, B), "t", 1))
CHANGES = {
    "dropped column": history((0, (ID, A), "t", 1), (10, (ID,), "t", 1)),
    "renamed column": history((0, (ID, A), "t", 1), (10, (ID, Column(2, "aa", STRING)), "t", 1)),
    "widened column": history((0, (ID, B), "t", 1), (10, (ID, Column(3, "b", STRING)), "t", 1)),
    "other name": history((0, (ID, A), "t", 1), (10, (ID, A), "u", 1)),
    "emptied": history((0, (ID, A), "t", 1), (10, (ID, A), "t", 2)),
}


def test_a_batch_ends_before_a_change_and_the_next_one_fails_until_the_query_is_started_again() -> None:
    before = batch_end(Timestamp(at(10) - 1))
    assert end(ADDED, Evolution.FAIL) == before
    assert before < at(10)
    with pytest.raises(UsageError, match="start the query again, with the same checkpoint"):
        end_before_changes(ADDED, ADDED.versions[0].schema, ["id", "a"], Evolution.FAIL, after=before, upto=at(100))
    assert end(ADDED, Evolution.FAIL, known=2, after=5) == at(100), "a query that knows the version goes on"
    assert end(ADDED, Evolution.FAIL, upto=9) == at(9), "what is not resolved yet does not matter yet"


def test_additive_passes_what_leaves_the_columns_of_the_query_alone() -> None:
    assert end(ADDED, Evolution.ADDITIVE) == at(100)
    others = history((0, (ID, A, B), "t", 1), (10, (ID, A), "t", 1))
    schema = others.versions[0].schema
    passed = end_before_changes(others, schema, ["id", "a"], Evolution.ADDITIVE, after=at(1), upto=at(100))
    assert passed == at(100), "a column that it does not read may go"


@pytest.mark.parametrize("what", CHANGES)
@pytest.mark.parametrize("policy", list(Evolution))
def test_neither_passes_what_the_query_would_not_see(what: str, policy: Evolution) -> None:
    found = CHANGES[what]
    before = batch_end(Timestamp(at(10) - 1))
    assert end(found, policy) == before
    read = [column.name for column in found.versions[0].columns]
    with pytest.raises(UsageError, match="everything before was delivered"):
        end_before_changes(found, found.versions[0].schema, read, policy, after=before, upto=at(100))


def test_a_batch_lies_on_one_side_of_the_moment_at_which_a_table_was_emptied() -> None:
    found = CHANGES["emptied"]
    before = batch_end(Timestamp(at(10) - 1))
    assert end(found, Evolution.FAIL, known=2) == before
    schema = found.versions[1].schema
    on = end_before_changes(found, schema, ["id", "a"], Evolution.FAIL, after=before, upto=at(100))
    assert on == at(100), "a query that knows of it goes on behind it"
