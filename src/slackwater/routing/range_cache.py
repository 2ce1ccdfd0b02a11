"""What a sender believes about ranges: descriptors by key, and who may hold each lease.

    starts   a ────────── f ───── m ─────────────── t ────►      sorted, disjoint; a binary search finds a key's range
    entries  r1 gen 4     r7 gen 5  (gap: unknown)  r3 gen 2

    leases   r1 -> n2, r3 -> n1                                  hints, kept apart: they change without the descriptor

Of two descriptors that overlap, the higher generation is newer (`model/descriptors.py`): inserting one evicts
everything older that it overlaps and is refused if anything newer is there. A descriptor that replaces another
inherits its lease hint when that node still has a replica: after a split the right side's lease is where the left
side's was.

Bounded by number of entries; the one not used for longest goes first. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from typing import TYPE_CHECKING

from slackwater.errors import invariant
from slackwater.hooks import level
from slackwater.model.ids import NodeId, RangeId

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor

NO_NODE = NodeId(0)


class RangeCache:
    """Descriptors and lease hints of the ranges used lately."""

    def __init__(self, *, entries_max: int) -> None:
        invariant(entries_max > 0, "A-cache-bound", entries_max=entries_max)
        self._entries_max = entries_max
        self._starts: list[bytes] = []
        self._by_start: dict[bytes, RangeDescriptor] = {}  # in order of use, oldest first
        self._leases: dict[RangeId, NodeId] = {}

    def __len__(self) -> int:
        return len(self._starts)

    def lookup(self, key: bytes) -> RangeDescriptor | None:
        """The range believed to hold `key`."""
        return self._use(bisect_right(self._starts, key) - 1, upto=key + b"\x00")

    def lookup_below(self, end: bytes) -> RangeDescriptor | None:
        """The range believed to hold the keys just below `end`."""
        return self._use(bisect_left(self._starts, end) - 1, upto=end)

    def insert(self, descriptor: RangeDescriptor) -> bool:
        """Remember a descriptor unless something newer overlaps it; whether it is now what the cache believes."""
        overlapping = self._overlapping(descriptor.start, descriptor.end)
        if any(d.generation > descriptor.generation for d in overlapping):
            return False
        hint = self._leases.get(descriptor.range_id, NO_NODE)
        hint = hint or self._sibling_lease(descriptor)
        for old in overlapping:
            hint = hint or self._leases.get(old.range_id, NO_NODE)
            self._drop(old, keep_lease=old.range_id == descriptor.range_id)
        self._make_room()
        insort(self._starts, descriptor.start)
        self._by_start[descriptor.start] = descriptor
        level("routing.ranges", len(self._starts), self._entries_max)
        if hint in descriptor.replicas:
            self._leases[descriptor.range_id] = hint
        else:
            self._leases.pop(descriptor.range_id, None)
        return True

    def evict(self, descriptor: RangeDescriptor) -> None:
        """Forget a descriptor that proved wrong; a newer one in its place stays."""
        held = self._by_start.get(descriptor.start)
        if held is not None and held.range_id == descriptor.range_id and held.generation <= descriptor.generation:
            self._drop(held)

    def clear(self) -> None:
        """Forget everything."""
        self._starts.clear()
        self._by_start.clear()
        self._leases.clear()

    # --- leases

    def leaseholder(self, range_id: RangeId) -> NodeId:
        """The node that is believed to hold the lease; 0: not known."""
        return self._leases.get(range_id, NO_NODE)

    def learn_leaseholder(self, descriptor: RangeDescriptor, node_id: NodeId) -> None:
        """A replica said so itself: by serving under its lease, or in a refusal. Only for ranges in the cache."""
        if self._by_start.get(descriptor.start) is not None and node_id != NO_NODE:
            self._leases[descriptor.range_id] = node_id

    def forget_leaseholder(self, range_id: RangeId, node_id: NodeId) -> None:
        """`node_id` does not hold the lease after all; another guess stays."""
        if self._leases.get(range_id) == node_id:
            del self._leases[range_id]

    def status(self) -> str:
        """One line per range, for logs and scripts."""
        lines = []
        for start in self._starts:
            descriptor = self._by_start[start]
            holder = self.leaseholder(descriptor.range_id)
            lines.append(f"{descriptor.status()} lease={f'n{holder}' if holder else '?'}")
        return "\n".join(lines) or "empty"

    # --- inside

    def _use(self, i: int, *, upto: bytes) -> RangeDescriptor | None:
        """The range at a place in the order of starts, if it reaches as far as `upto`; it is now the youngest."""
        if i < 0 or upto > self._by_start[start := self._starts[i]].end:
            return None
        found = self._by_start[start] = self._by_start.pop(start)
        return found

    def _overlapping(self, start: bytes, end: bytes) -> list[RangeDescriptor]:
        low = bisect_right(self._starts, start) - 1
        if low < 0 or self._by_start[self._starts[low]].end <= start:
            low += 1
        high = bisect_left(self._starts, end)
        return [self._by_start[s] for s in self._starts[low:high]]

    def _sibling_lease(self, descriptor: RangeDescriptor) -> NodeId:
        """The lease of the left neighbour, if both look like the halves of one split."""
        i = bisect_left(self._starts, descriptor.start) - 1
        left = self._by_start[self._starts[i]] if i >= 0 else None
        if left is None or left.end != descriptor.start or left.generation != descriptor.generation:
            return NO_NODE
        return self._leases.get(left.range_id, NO_NODE)

    def _drop(self, descriptor: RangeDescriptor, *, keep_lease: bool = False) -> None:
        del self._by_start[descriptor.start]
        del self._starts[bisect_left(self._starts, descriptor.start)]
        if not keep_lease:
            self._leases.pop(descriptor.range_id, None)

    def _make_room(self) -> None:
        while len(self._starts) >= self._entries_max:
            self._drop(next(iter(self._by_start.values())))
