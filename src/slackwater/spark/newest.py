"""One row a key out of changes: the newest version of each (`includeMetadata`), or its net change (`netChanges`).

Changes come in key order, oldest first within a key, in batches that end anywhere, even between two changes of one key:

    k1 insert │ k1 update_postimage │ k2 delete ║ k2 insert │ k3 insert │ k3 delete          ║ between two batches
    └──────── k1 ────────┘          └────── k2 ──────┘      └────── k3 ──────┘

Of each key only its first kind and its last row matter. The first kind says whether the row was there before the interval
(`insert`: it was not), the last whether it is there after it (`delete`: it is not):

    before  after    net change                      newest version
    no      yes      insert, as it is last           that row
    yes     yes      update_postimage, the same      that row
    yes     no       delete                          none
    no      no       none                            none

The last key of a batch may go on in the next one: its last row is held back until another key comes. Everything is done on
whole columns; no Python object is made of a row. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.model.reserved import CHANGE_TYPE
from slackwater.spark.change_rows import DELETE, INSERT, POSTIMAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    Array = np.ndarray[Any, Any]

pa: Any = pyarrow
pc: Any = pac


def newest_versions(changes: Iterable[Any], keys: Sequence[str]) -> Iterator[Any]:
    """The rows that are there after all these changes, each with the version that wrote it."""
    yield from _per_key(changes, keys, lambda rows, _: rows.filter(pc.not_equal(rows[CHANGE_TYPE], DELETE)))


def net_changes(changes: Iterable[Any], keys: Sequence[str]) -> Iterator[Any]:
    """At most one change a key: from what was there before all of them to what is there after."""
    yield from _per_key(changes, keys, _net)


def _net(rows: Any, firsts: Any) -> Any:
    came, went = pc.equal(firsts, INSERT), pc.equal(rows[CHANGE_TYPE], DELETE)
    kinds = pc.if_else(went, DELETE, pc.if_else(came, INSERT, POSTIMAGE))
    at = rows.schema.get_field_index(CHANGE_TYPE)
    field = rows.schema.field(at)
    return rows.set_column(at, field, kinds.cast(field.type)).filter(pc.invert(pc.and_(came, went)))


def _per_key(changes: Iterable[Any], keys: Sequence[str], of: Callable[[Any, Any], Any]) -> Iterator[Any]:
    """`of(last rows, first kinds)` for every key, in pieces."""
    held, held_first = None, None
    for batch in changes:
        if not batch.num_rows:
            continue
        rows = batch if held is None else pa.concat_batches([held, batch])
        starts = np.concatenate([np.zeros(1, np.int64), np.flatnonzero(_differs(rows, keys)) + 1])
        firsts = rows[CHANGE_TYPE].take(pa.array(starts))
        if held_first is not None:  # the first key began in an earlier batch
            firsts = pa.concat_arrays([held_first, firsts.slice(1)])
        done = len(starts) - 1
        if done:
            yield of(rows.take(pa.array(starts[1:] - 1)), firsts.slice(0, done))
        held, held_first = rows.slice(rows.num_rows - 1), firsts.slice(done)
    if held is not None:
        yield of(held, held_first)


def _differs(rows: Any, keys: Sequence[str]) -> Array:
    """Whether each row but the first is of another key than the one before it."""
    found = np.zeros(rows.num_rows - 1, bool)
    for name in keys:
        column = rows[name]
        if pa.types.is_floating(column.type):
            column = column.view(pa.int64())  # NaN equals itself as a key
        found |= pc.not_equal(column.slice(1), column.slice(0, len(column) - 1)).to_numpy(zero_copy_only=False)
    return found
