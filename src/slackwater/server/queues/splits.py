"""Splits: a range that is too large, too busy, or reaches across a bound of the span configuration.

    by size     at the key in the middle of its bytes, found by reading half of it on a snapshot, off the loop
    by load     at the middle of the keys that were asked for lately; not if most of them are one key
    by bound    at the bound

A split is always at a whole key: all versions of a key, and its intent, stay together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import split_version
from slackwater.config.zones import bound_inside
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.runtime.seam import Family
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from slackwater.runtime.seam import EngineSnapshot, Reader
    from slackwater.server.queues.context import Visit

READ_BLOCK = 1_000


def middle_key(reader: Reader, start: bytes, end: bytes, *, half_bytes: int) -> bytes | None:
    """The first key above `start`, other than the lowest, with at least `half_bytes` of versions before it."""
    cursor = reader.cursor(Family.DATA, start=start, end=end)
    seen, lowest = 0, None
    while True:
        keys, values = cursor.chunk(READ_BLOCK)
        if not keys:
            return None
        if lowest is None:
            lowest, _ = split_version(keys[0])
        size = sum(map(len, keys)) + sum(map(len, values))
        if seen + size <= half_bytes:  # the middle lies beyond this block: its keys are not looked at one by one
            seen += size
            continue
        for stored, value in zip(keys, values, strict=True):
            key, _ = split_version(stored)
            if seen >= half_bytes and key not in (lowest, start):
                return key
            seen += len(stored) + len(value)


class SplitQueue:
    """Splits large and busy ranges."""

    name = "split"

    async def process(self, visit: Visit) -> bool:
        """Split the range, if there is a reason and a place."""
        if not visit.leading or visit.descriptor.range_id == FIRST_RANGE:
            return False
        at = bound_inside(visit.view.configs, visit.descriptor) or await self._by_size(visit) or self._by_load(visit)
        if at is None:
            return False
        await visit.context.admin.split(at)
        return True

    async def _by_size(self, visit: Visit) -> bytes | None:
        stats, here, context = visit.replica.state.stats, visit.descriptor, visit.context
        size = Stats(*stats).total_bytes if stats else 0
        if size <= context.settings["range.max_bytes"]:
            return None
        probe("queues.split_by_size")
        frozen = visit.replica.context.engine.snapshot(once=True)
        return await context.runtime.offload(_middle, frozen, here.start, here.end, size // 2)

    def _by_load(self, visit: Visit) -> bytes | None:
        limit, here = visit.context.settings["range.max_requests"], visit.descriptor
        if not limit or visit.replica.load.rate(now_ns=visit.context.now_ns()) <= limit:
            return None
        at = visit.replica.load.split_key()
        if at is None or not here.start < at < here.end:
            return None
        probe("queues.split_by_load")
        return at


def _middle(frozen: EngineSnapshot, start: bytes, end: bytes, half_bytes: int) -> bytes | None:
    with frozen:
        return middle_key(frozen, start, end, half_bytes=half_bytes)
