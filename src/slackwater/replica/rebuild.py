"""A store without its damage: every replica that is whole, copied to a new engine; the others are fetched again (I-34).

A damaged file stays in the way as long as the engine has it: a compaction that reads it stops all writing, and fetching a
replica anew only covers the damage. So a store that met damage is copied at its next start:

    old engine   r1 whole   r3 cannot be read   r7 holds less than its statistics say      the store's own records
                    │               │                        │                                      │
    new engine   r1 copied      left out                 left out                                copied

What is left out is filled by its range's leaseholder, like any replica that is named and not there. The old engine is kept:
should no other node have such a range, an operator still has its bytes. A store with a damaged range that has no other
replica is not rebuilt: it serves what can be read.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.codec.layout import anchored_span
from slackwater.errors import DamageError, StorageError
from slackwater.hooks import probe
from slackwater.model.spans import Span
from slackwater.replica.snapshot import check_whole, contents
from slackwater.replica.state import decode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.ids import RangeId
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Engine, Reader

CHUNK = 1_000
END = b"\xff"
"""Above every key that an engine holds."""


class Rebuilt(NamedTuple):
    """What became of a store's replicas."""

    kept: list[RangeId]
    left_out: dict[RangeId, str]


def copy_whole(old: Reader, new: Engine) -> Rebuilt:
    """Copy a store's own records and every whole replica to an empty engine. Long work: nothing else may use either."""
    try:
        local = [*_pairs(old, Family.LOCAL)]
    except StorageError as error:
        raise DamageError(
            "the store's own records are damaged, so it cannot be rebuilt; start a node with an empty store and --join, "
            "then decommission this one",
            cause=str(error),
        ) from error
    states = [decode_state(value) for key, value in local if key == state_key(int.from_bytes(key[2:10], "big"))]
    done = Rebuilt([], {})
    for state in states:
        _copy(old, new, state, done)
    assert len(done.kept) + len(done.left_out) == len(states), "every range is copied or left out"
    assert done.left_out.keys().isdisjoint(done.kept), "a range is copied or left out"
    gone = [state for state in states if state.descriptor.range_id in done.left_out]
    without = [anchored_span(Span(s.descriptor.start, s.descriptor.end)) for s in gone]
    states_gone = {state_key(s.descriptor.range_id) for s in gone}
    batch = WriteBatch()
    for key, value in local:
        if key not in states_gone and not any(span.start <= key < span.end for span in without):
            batch.put(Family.LOCAL, key, value)
    new.write(batch)
    return done


def _copy(old: Reader, new: Engine, state: RangeState, done: Rebuilt) -> None:
    range_id = state.descriptor.range_id
    try:
        check_whole(old, state)
        for block in contents(old, state.descriptor):
            batch = WriteBatch()
            batch.put_many(Family(block.family), block.keys, block.values)
            new.write(batch)
    except StorageError as error:
        if len(state.descriptor.replicas) == 1:
            raise
        probe("rebuild.left_out")
        done.left_out[range_id] = str(error)
    else:
        done.kept.append(range_id)


def _pairs(old: Reader, family: Family) -> Iterator[tuple[bytes, bytes]]:
    cursor = old.cursor(family, start=b"", end=END)
    while True:
        keys, values = cursor.chunk(CHUNK)
        yield from zip(keys, values, strict=True)
        if len(keys) < CHUNK:
            return
