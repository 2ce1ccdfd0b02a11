"""Merges whose coordinator died: a range that has been frozen for long is thawed, unless its merge succeeded.

Patience only saves work: undoing a merge that is still under way makes it fail, and nothing worse (`server/merging.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe

if TYPE_CHECKING:
    from slackwater.runtime.seam import RangeId
    from slackwater.server.queues.desk import Visit


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
        now_ns = visit.desk.now_ns()
        since_ns, generation = self._since.get(range_id, (now_ns, frozen.left_generation))
        if generation != frozen.left_generation:
            since_ns = now_ns
        self._since[range_id] = since_ns, frozen.left_generation
        if not visit.leading or now_ns - since_ns < visit.desk.settings["range.frozen_patience"] * 1e9:
            return False
        probe("queues.thaw")
        await visit.desk.admin.undo_merge(visit.descriptor, left_generation=frozen.left_generation)
        return True
