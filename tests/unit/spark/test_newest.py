"""One row a key out of changes, however they are cut into batches: checked against a dictionary."""

from __future__ import annotations

import itertools

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as some

from slackwater.spark.newest import net_changes, newest_versions

SCHEMA = pa.schema(
    [
        pa.field("a", pa.float64()),
        pa.field("b", pa.string()),
        pa.field("v", pa.int64()),
        pa.field("_change_type", pa.string(), nullable=False),
        pa.field("_commit_version", pa.int64(), nullable=False),
    ]
)
KEYS = ["a", "b"]
Row = dict[str, object]


@some.composite
def histories(draw) -> tuple[list[Row], list[int]]:
    """Changes in key order, oldest first within a key, and where to cut them."""
    rows: list[Row] = []
    keys = draw(
        some.sets(some.tuples(some.sampled_from([1.0, 2.0, float("inf")]), some.sampled_from("xyz")), max_size=6)
    )
    for a, b in sorted(keys):
        there = draw(some.booleans())
        for version in range(1, draw(some.integers(1, 4)) + 1):
            kind = draw(some.sampled_from(["update_postimage", "delete"] if there else ["insert"]))
            there = kind != "delete"
            value = draw(some.integers(0, 9)) if there else None
            rows.append({"a": a, "b": b, "v": value, "_change_type": kind, "_commit_version": version})
    return rows, sorted(draw(some.lists(some.integers(0, len(rows)), max_size=4)))


def in_batches(rows: list[Row], cuts: list[int]) -> list[pa.RecordBatch]:
    bounds = [0, *cuts, len(rows)]
    return [pa.RecordBatch.from_pylist(rows[i:j], SCHEMA) for i, j in itertools.pairwise(bounds)]


def by_key(rows: list[Row]) -> dict[tuple[object, ...], list[Row]]:
    found: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        found.setdefault((row["a"], row["b"]), []).append(row)
    return found


def listed(batches) -> list[Row]:
    return [row for batch in batches for row in batch.to_pylist()]


@settings(deadline=None)
@given(histories())
def test_the_newest_version_of_every_key_that_is_there(history) -> None:
    rows, cuts = history
    expected = [versions[-1] for versions in by_key(rows).values() if versions[-1]["_change_type"] != "delete"]
    assert listed(newest_versions(in_batches(rows, cuts), KEYS)) == expected


@settings(deadline=None)
@given(histories())
def test_the_net_change_of_every_key(history) -> None:
    rows, cuts = history
    expected = []
    for versions in by_key(rows).values():
        before, after = versions[0]["_change_type"] != "insert", versions[-1]["_change_type"] != "delete"
        kind = ("update_postimage" if before else "insert") if after else "delete"
        if before or after:
            expected.append(versions[-1] | {"_change_type": kind})
    found = list(net_changes(in_batches(rows, cuts), KEYS))
    assert listed(found) == expected
    assert all(batch.schema == SCHEMA for batch in found)


def test_not_a_number_is_one_key() -> None:
    rows = [
        {"a": float("nan"), "b": "x", "v": n, "_change_type": kind, "_commit_version": n}
        for n, kind in enumerate(["insert", "update_postimage", "update_postimage"], 1)
    ]
    (found,) = newest_versions(in_batches(rows, [1]), KEYS)
    assert found["_commit_version"].to_pylist() == [3]
