"""Changes in Spark's words: the rows of `codec.changes_arrow` as `_change_type`, `_commit_version` and `_commit_timestamp`.

    _op     _before    columns           _change_type        columns
    insert             a1                insert              a1
    update  a1         a2        ──►     update_preimage     a1          only with `_before`, which is asked for by computeUpdates
                                         update_postimage    a2
    delete  a2         key               delete              a2          without `_before`, the key alone

These are the names that readers of change data know from other table formats, so a query written for those runs here. They
are a view: made in the task, on whole columns, from what every other consumer of changes gets. No Python object is made of a
row. Pure.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.clock.timestamp import LOGICAL_BITS
from slackwater.model.reserved import BEFORE, CHANGE_TYPE, COMMIT_TIMESTAMP, COMMIT_TS, COMMIT_VERSION, FEED_COLUMNS, OP

pa: Any = pyarrow
pc: Any = pac

INSERT, PREIMAGE, POSTIMAGE, DELETE = "insert", "update_preimage", "update_postimage", "delete"
_KINDS = pa.array([INSERT, PREIMAGE, POSTIMAGE, DELETE])
_CODES = {"insert": 0, "update": 2, "delete": 3}
_FIELDS = (
    pa.field(CHANGE_TYPE, pa.string(), nullable=False),
    pa.field(COMMIT_VERSION, pa.int64(), nullable=False),
    pa.field(COMMIT_TIMESTAMP, pa.timestamp("us", tz="UTC"), nullable=False),
)


def change_rows(batch: Any) -> Any:
    """A batch of changes with Spark's change columns behind those of the table, in the same order."""
    names = [name for name in batch.schema.names if name not in FEED_COLUMNS]
    columns, fields = [batch[name] for name in names], [batch.schema.field(name) for name in names]
    kinds = _codes(batch[OP])
    commits = batch[COMMIT_TS].to_numpy()
    if BEFORE in batch.schema.names:
        rows, kinds, older = _with_preimages(kinds)
        commits = commits[rows]
        source = pa.array(rows + older * batch.num_rows)
        columns = [
            pa.concat_arrays([after, pc.struct_field(batch[BEFORE], name)]).take(source)
            for name, after in zip(names, columns, strict=True)
        ]
    return pa.RecordBatch.from_arrays(
        [*columns, _KINDS.take(pa.array(kinds)), *_commits(commits)], schema=pa.schema([*fields, *_FIELDS])
    )


def as_inserts(batch: Any, at: int) -> Any:
    """Rows of a snapshot as changes: inserts, made when the snapshot is."""
    size = batch.num_rows
    kinds, commits = np.zeros(size, np.int64), np.full(size, at, np.int64)
    arrays = [*batch.columns, _KINDS.take(pa.array(kinds)), *_commits(commits)]
    return pa.RecordBatch.from_arrays(arrays, schema=pa.schema([*batch.schema, *_FIELDS]))


def _codes(ops: Any) -> Any:
    """Which of `_KINDS` each operation is; an update is its row after."""
    found = ops.dictionary_encode()
    codes = np.array([_CODES[op] for op in found.dictionary.to_pylist()], np.int64)
    return codes[found.indices.to_numpy()] if len(codes) else np.zeros(0, np.int64)


def _with_preimages(kinds: Any) -> tuple[Any, Any, Any]:
    """(change, kind, whether the row before is shown): updates twice, deletions with the row that was there."""
    twice = np.where(kinds == _CODES["update"], 2, 1)
    rows, kinds = np.repeat(np.arange(len(kinds)), twice), np.repeat(kinds, twice)
    first = np.cumsum(twice) - twice
    kinds[first[twice == 2]] = 1
    return rows, kinds, (kinds == 1) | (kinds == _CODES["delete"])


def _commits(timestamps: Any) -> tuple[Any, Any]:
    """The commit of each row as a version and as an instant."""
    instants = pa.array(timestamps >> LOGICAL_BITS, pa.int64()).cast(pa.timestamp("us", tz="UTC"))
    return pa.array(timestamps, pa.int64()), instants
