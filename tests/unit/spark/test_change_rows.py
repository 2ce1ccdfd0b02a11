"""Spark's names for changes are a view of the one row schema of changes."""

from __future__ import annotations

import datetime as dt
from typing import Any

import numpy as np
import pyarrow
import pytest

from slackwater.codec.changes_arrow import ChangeDecoder, ChangeRows
from slackwater.codec.rows import RowCodec
from slackwater.model import kinds
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.spark.change_rows import as_inserts, change_rows

pa: Any = pyarrow
SCHEMA = TableSchema(
    7, "t", 3, (Column(1, "id", kinds.INT, nullable=False), Column(2, "v", kinds.STRING)), (KeyColumn(1),)
)
CODEC = RowCodec(SCHEMA)
T = 5_000_000 << 10


def value(row: tuple[int, str] | None) -> bytes:
    return b"" if row is None else CODEC.encode({"id": row[0], "v": row[1]})[1]


def changes(
    *rows: tuple[int, tuple[int, str] | None, tuple[int, str] | None], befores: bool, columns: Any = None
) -> Any:
    """A batch of (key, row before, row after)."""
    decoder = ChangeDecoder(SCHEMA, {3: SCHEMA}, columns=columns, befores=befores)
    return decoder.decode(
        ChangeRows(
            [value(after) for _, _, after in rows],
            np.arange(T, T + len(rows)),
            [CODEC.key([key]) for key, _, after in rows if after is None],
            np.array([before is not None for _, before, _ in rows], bool),
            [value(before) for _, before, _ in rows] if befores else None,
        )
    )


ROWS = ((1, None, (1, "a")), (1, (1, "a"), (1, "b")), (2, (2, "x"), None), (3, (3, "y"), (3, "z")))


def shown(batch: Any) -> list[tuple[Any, ...]]:
    return [(r["id"], r["v"], r["_change_type"], r["_commit_version"] - T) for r in batch.to_pylist()]


def test_without_before_images_each_change_is_one_row() -> None:
    assert shown(change_rows(changes(*ROWS, befores=False))) == [
        (1, "a", "insert", 0),
        (1, "b", "update_postimage", 1),
        (2, None, "delete", 2),
        (3, "z", "update_postimage", 3),
    ]


def test_with_before_images_an_update_is_two_rows_and_a_delete_shows_what_was_there() -> None:
    batch = change_rows(changes(*ROWS, befores=True))
    assert shown(batch) == [
        (1, "a", "insert", 0),
        (1, "a", "update_preimage", 1),
        (1, "b", "update_postimage", 1),
        (2, "x", "delete", 2),
        (3, "y", "update_preimage", 3),
        (3, "z", "update_postimage", 3),
    ]
    assert batch.schema.names == ["id", "v", "_change_type", "_commit_version", "_commit_timestamp"]
    assert batch["_commit_timestamp"][0].as_py() == dt.datetime(1970, 1, 1, 0, 0, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize("befores", [False, True])
def test_no_rows_and_no_columns(befores: bool) -> None:
    assert change_rows(changes(befores=befores)).num_rows == 0
    alone = change_rows(changes(*ROWS, befores=befores, columns=[]))
    assert alone.schema.names == ["_change_type", "_commit_version", "_commit_timestamp"]
    assert alone.num_rows == (6 if befores else 4)


def test_rows_of_a_snapshot_are_inserts() -> None:
    plain = pa.RecordBatch.from_pydict({"id": [1, 2], "v": ["a", None]})
    assert shown(as_inserts(plain, T)) == [(1, "a", "insert", 0), (2, None, "insert", 0)]
    assert change_rows(changes(*ROWS, befores=False)).schema.field("_commit_timestamp") == as_inserts(
        plain, T
    ).schema.field("_commit_timestamp")
