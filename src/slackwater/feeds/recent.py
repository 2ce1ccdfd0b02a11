"""What a range has committed lately, kept while its feed is attached: most consumers that come back need nothing older.

A catch-up scan walks over all of a range's history to find what is new. Measured on 300 000 versions: finding one per cent of
them costs an eleventh of reading everything, because every key has to be passed. But a consumer that resumes mostly was here a
moment ago. So the feed of a range keeps references to the blocks it delivered last:

    applied   ░░░░░░░░░░░░│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        ▓ blocks kept, up to `limit` bytes
                        floor
    Every version ever applied here is in the blocks, or lies at or below the floor of its span.

A consumer whose `after` is at or above the floor gets its history from the blocks, in one step, without a slot, a snapshot
or a scan. The order is that in which things were applied, which keeps each key's. `coverage.py` says where floors come from;
`index.py` remembers further back, and beyond a restart, at the price of reading values again.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from slackwater.feeds.coverage import Coverage
from slackwater.hooks import level
from slackwater.protocol.feeds.events import Changes, joined

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.spans import Span

RECENT_BYTES_DEFAULT = 4 << 20


class Recent:
    """The last blocks of one range."""

    def __init__(self, limit: int = RECENT_BYTES_DEFAULT) -> None:
        self.coverage = Coverage()
        self.bytes = 0
        self._limit = limit
        self._blocks: deque[tuple[Changes, int]] = deque()

    def add(self, changes: Changes, size: int) -> None:
        """A block was applied."""
        self._blocks.append((changes, size))
        self.bytes += size
        while self.bytes > self._limit:
            gone, size = self._blocks.popleft()
            self.bytes -= size
            self.coverage.let_go(max(gone.timestamps))
        level("feeds.recent_bytes", self.bytes, self._limit)

    def since(self, span: Span, after: Timestamp) -> Changes:
        """Every version of `span` with ts > after, in the order of the log; of a span and a time that are covered."""
        found = []
        for block, _ in self._blocks:
            part = block.within(span)
            if part.timestamps and min(part.timestamps) <= after:
                part = part.pick([i for i, ts in enumerate(part.timestamps) if ts > after])
            if part.timestamps:
                found.append(part)
        return joined(found) if found else Changes([], [], [])
