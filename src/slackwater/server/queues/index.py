"""The index of ranges says what the range says: the leaseholder looks when its descriptor changed, and now and then."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.model.ids import RangeId
    from slackwater.server.queues.context import Visit

LOOK_AGAIN_S = 60.0


class IndexQueue:
    """Publishes descriptors that were never published."""

    name = "index"

    def __init__(self) -> None:
        self._seen: dict[RangeId, tuple[int, int]] = {}
        """The generation last compared, and when."""

    async def process(self, visit: Visit) -> bool:
        """Compare, and publish where the index is behind."""
        if not visit.leading:
            return False
        here, now_ns = visit.descriptor, visit.context.now_ns()
        generation, at_ns = self._seen.get(here.range_id, (-1, 0))
        if generation == here.generation and now_ns - at_ns < LOOK_AGAIN_S * 1e9:
            return False
        await visit.context.admin.meta.publish(here)
        self._seen[here.range_id] = here.generation, now_ns
        return False
