"""Merges: two small, quiet neighbours become one range.

The left one's leaseholder proposes. Both together must be well below the size and load at which a range is split, or the
two queues would undo each other's work; and a range that changed lately is left alone for a while: an operator who split it on
purpose is about to fill it. Ranges of different kinds of keys (system, plain, tables) stay apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.codec.layout import KEY_MAX
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId
    from slackwater.server.queues.context import Visit


class Side(NamedTuple):
    """One of two neighbours."""

    descriptor: RangeDescriptor
    size: int
    rate: float


def should_merge(left: Side, right: Side, *, min_bytes: float, max_bytes: float, max_requests: float) -> bool:
    """Whether two neighbours are better off as one."""
    if left.descriptor.range_id == FIRST_RANGE or left.descriptor.end != right.descriptor.start:
        return False
    if left.descriptor.start[:1] != right.descriptor.start[:1]:
        return False
    if min(left.size, right.size) >= min_bytes or left.size + right.size > max_bytes / 2:
        return False
    return not max_requests or left.rate + right.rate <= max_requests / 2


class MergeQueue:
    """Merges small ranges with their right neighbours."""

    name = "merge"

    def __init__(self) -> None:
        self._since: dict[RangeId, tuple[int, int]] = {}
        """Since when a range has had its generation."""

    async def process(self, visit: Visit) -> bool:
        """Merge with the right neighbour, if both are small."""
        context, here = visit.context, visit.descriptor
        min_bytes = context.settings["range.min_bytes"]
        if not visit.leading or not min_bytes or here.end >= KEY_MAX or not self._quiet(visit):
            return False
        right = (await context.admin.describe(here.end)).descriptor
        both = self._own(visit), await self._neighbour(visit, right)
        limits = {"min_bytes": min_bytes, "max_bytes": context.settings["range.max_bytes"]}
        if both[1] is None or not should_merge(
            both[0], both[1], **limits, max_requests=context.settings["range.max_requests"]
        ):
            return False
        if not visit.view.alike(here, right):
            return False
        if set(right.replicas) != set(here.replicas):
            probe("queues.merge_aligns")
            await context.admin.relocate(right.start, here.replicas)
            return True
        probe("queues.merge")
        await context.admin.merge(here.start)
        return True

    def _quiet(self, visit: Visit) -> bool:
        here, now_ns = visit.descriptor, visit.context.now_ns()
        generation, since_ns = self._since.get(here.range_id, (-1, now_ns))
        if generation != here.generation:
            self._since[here.range_id] = here.generation, now_ns
            return False
        return now_ns - since_ns >= visit.context.settings["range.quiet_period"] * 1e9

    def _own(self, visit: Visit) -> Side:
        stats = visit.replica.state.stats
        size = Stats(*stats).total_bytes if stats else 0
        return Side(visit.descriptor, size, visit.replica.load.rate(now_ns=visit.context.now_ns()))

    async def _neighbour(self, visit: Visit, right: RangeDescriptor) -> Side | None:
        holder = (await visit.context.admin.describe(right.start)).lease.holder
        found = await visit.context.peers.replica(holder, right.range_id)
        if found is None or found.frozen or found.descriptor != right:
            return None
        size = Stats(*found.stats).total_bytes if found.stats else 0
        return Side(found.descriptor, size, found.load)
