"""Leaseholders are told what followers here need of their ranges, once a second: to close them, or to name them again.

Two reasons, one message (`WakeRanges`): a read or a feed wants a range closed that may be at rest (`closedts.activation`), and a
replica lacks what the store-wide scheme would need to serve (`closedts.store_wide`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.activation import TOLD_PER_REST
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.protocol.closedts.heartbeat import WAKE_RANGES_MAX
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Mapping

    from slackwater.closedts.publisher import NodeParts
    from slackwater.model.ids import NodeId, RangeId

WAKE_INTERVAL_S = 1.0
"""How often leaseholders are told."""
assert describe("closed_timestamp.rest_after").default >= TOLD_PER_REST * WAKE_INTERVAL_S, (
    "a range that is still wanted is told of before it rests"
)


async def keep_waking(
    parts: NodeParts,
    *,
    due: Callable[[], Mapping[NodeId, list[RangeId]]],
    here: Callable[[RangeId], object],
    wake: Callable[[NodeId, list[RangeId]], Awaitable[None]],
    failed: Callable[[list[RangeId]], None],
) -> None:
    """Tell leaseholders, for ever: `here` of ranges that are led here, `failed` of those whose leaseholder was not reached."""
    while True:
        await parts.runtime.clock.sleep(WAKE_INTERVAL_S)
        for holder, range_ids in sorted(due().items()):
            assert range_ids, "a leaseholder is told of some range"
            if holder == parts.node_id:
                for range_id in range_ids:
                    here(range_id)
                continue
            probe("closedts.leaseholder_woken")
            for first in range(0, len(range_ids), WAKE_RANGES_MAX):
                try:
                    await wake(holder, range_ids[first : first + WAKE_RANGES_MAX])
                except SlackwaterError:
                    probe("closedts.wake_failed")
                    failed(range_ids[first:])
                    break
