"""What a store has seen of the range to the left of each of its own: which generations it saw end. See `thaw`.

A frozen range may be thawed only when the merge that froze it cannot come any more. Its left neighbor's generation tells;
a store notes each step it applied, because the neighbor may be gone from this store by the time that is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import range_local
from slackwater.replica.evaluation import LeftSide
from slackwater.runtime.seam import Family
from slackwater.storage.overlay import Overlay

if TYPE_CHECKING:
    from collections.abc import Mapping

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.replica.driver.replica import Replica
    from slackwater.runtime.seam import Engine, Reader
    from slackwater.storage.batch import WriteBatch


class Neighbours:
    """The notes of one store about left neighbors."""

    def __init__(self, replicas: Mapping[RangeId, Replica], engine: Engine) -> None:
        self._replicas = replicas
        self._engine = engine

    def generation_changed(self, batch: WriteBatch, before: RangeDescriptor, after: RangeDescriptor) -> None:
        """Note, for the ranges to the right, that the one beside them went on from one generation to the next.

        In the batch that does it, so that after a crash either both are there or the entry is applied again. See `thaw`.
        """
        assert after.generation > before.generation, "every change raises the generation"
        assert after.range_id == before.range_id, "a range keeps its id"
        for replica in self._replicas.values():
            right = replica.state.descriptor
            if right.range_id == before.range_id or right.start not in (before.end, after.end):
                continue
            if after.contains(right.start):
                batch.delete(Family.LOCAL, seen_key(right.range_id))
                continue
            # After a merge the keys just left of this range belonged to what was absorbed, until now.
            old = before if right.start == before.end else self._ending_at(right.start)
            if old is not None:
                self._saw(batch, replica, old.generation, after.generation)

    def _saw(self, batch: WriteBatch, replica: Replica, low: int, high: int) -> None:
        assert low < high, "generations that were seen to end"
        range_id, frozen = replica.state.descriptor.range_id, replica.state.frozen
        known = self._seen(Overlay(self._engine, batch), range_id)
        if known[1] == low:
            low = known[0]
        elif frozen is not None and known[0] <= frozen.left_generation < known[1]:
            return  # there is a gap after what was seen, but what was seen is what matters
        assert low < high, "generations that were seen to end"
        batch.put(Family.LOCAL, seen_key(range_id), low.to_bytes(8, "big") + high.to_bytes(8, "big"))

    def _seen(self, reader: Reader, range_id: RangeId) -> tuple[int, int]:
        note = reader.get(Family.LOCAL, seen_key(range_id))
        assert note is None or len(note) == 16, "a note holds two generations"
        return (int.from_bytes(note[:8], "big"), int.from_bytes(note[8:], "big")) if note else (0, 0)

    def _ending_at(self, end: bytes) -> RangeDescriptor | None:
        return next((r.state.descriptor for r in self._replicas.values() if r.state.descriptor.end == end), None)

    def left_of(self, descriptor: RangeDescriptor) -> LeftSide:
        """What this store has applied of the range that ends where the given one begins."""
        return LeftSide(self._ending_at(descriptor.start), self._seen(self._engine, descriptor.range_id))


def seen_key(range_id: RangeId) -> bytes:
    """Where a store notes which generations of the left neighbour it saw end. Not replicated."""
    return range_local(range_id, b"left seen")
