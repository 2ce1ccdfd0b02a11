"""Merges whose coordinator died: a range that has been frozen for long is thawed, unless its merge succeeded.

Patience only saves work: undoing a merge that is still under way makes it fail, and nothing worse (`server/merging.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import UnavailableError
from slackwater.hooks import probe
from slackwater.replica.allocator import NodeState

if TYPE_CHECKING:
    from slackwater.model.ids import RangeId
    from slackwater.server.queues.context import Visit


class FrozenQueue:
    """Thaws what was left frozen."""

    name = "frozen"

    def __init__(self) -> None:
        self._since: dict[RangeId, tuple[int, int]] = {}
        """When a range was first seen frozen, and under which generation of its left neighbour."""

    async def process(self, visit: Visit) -> bool:
        """Undo the merge if it has taken too long."""
        range_id, frozen = visit.descriptor.range_id, visit.replica.state.frozen
        if frozen is None:
            self._since.pop(range_id, None)
            return False
        now_ns = visit.context.now_ns()
        since_ns, generation = self._since.get(range_id, (now_ns, frozen.left_generation))
        if generation != frozen.left_generation:
            since_ns = now_ns
        self._since[range_id] = since_ns, frozen.left_generation
        if now_ns - since_ns < visit.context.settings["range.frozen_patience"] * 1e9:
            return False
        if await self._left_behind(visit):
            return True
        if not visit.leading:
            return False
        probe("queues.thaw")
        try:
            await visit.context.admin.undo_merge(visit.descriptor, left_generation=frozen.left_generation)
        except UnavailableError:
            await self._pass_on(visit)
            raise
        return True

    async def _left_behind(self, visit: Visit) -> bool:
        """The merge succeeded long ago and this node is not among the replicas of what came of it: remove the remains."""
        here, context = visit.descriptor, visit.context
        now = (await context.admin.describe(here.start)).descriptor
        if now.range_id == here.range_id or now.generation <= here.generation or context.node_id in now.replicas:
            return False
        probe("queues.remains_removed")
        context.store.remove(here.range_id)
        return True

    async def _pass_on(self, visit: Visit) -> None:
        """Thawing needs a store that saw the left side go on; if this one did not, another one may have."""
        here, own = visit.descriptor, visit.context.node_id
        others = [n for n in here.replicas if n != own and visit.view.state(n) is NodeState.LIVE]
        if others and visit.replica.state.frozen is not None and visit.leading:
            probe("queues.thaw_elsewhere")
            await visit.context.admin.transfer_lease(here.start, others[visit.context.runtime.rng.below(len(others))])
