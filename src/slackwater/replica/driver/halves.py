"""Counts the right half of a split before its latches are taken, so that writes go on meanwhile (`replica.side_stats`).

Under the latches, which hold up all requests to the range, only what cannot be kept current is counted again.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.errors import Overloaded
from slackwater.replica.side_stats import SideStats
from slackwater.storage.stats import recompute

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.protocol.range.requests import Split
    from slackwater.replica.driver.replica import Replica
    from slackwater.runtime.seam import EngineSnapshot
    from slackwater.storage.stats import Stats


@asynccontextmanager
async def counted_half(replica: Replica, request: Split) -> AsyncIterator[None]:
    """Keep the numbers of what lies at or above the key of a split in `replica.counted`; one split at a time."""
    replica.check_alive()
    here = replica.state.descriptor
    if replica.counted is not None or not here.start < request.at < here.end:
        yield  # the former is counted under its latches, the latter refused there
        return
    context, half = replica.context, SideStats(replica.state, request.at)
    frozen = context.engine.snapshot(once=True)
    replica.counted = half  # in the step of the snapshot: what applies from here on is added
    try:
        try:
            half.counted = await context.runtime.offload(_count, frozen, half)
        except Overloaded:
            frozen.close()
            raise
        yield
    finally:
        assert replica.counted is half, "one split of a range is counted at a time"
        replica.counted = None


def _count(frozen: EngineSnapshot, half: SideStats) -> Stats:
    with frozen:
        return recompute(frozen, half.at, half.end, wanted=lambda: not half.lost)
