"""What a range has committed lately, kept while its feed is attached: most who come back need nothing older.

A catch-up scan walks over all of a range's history to find what is new. Measured on 300 000 versions: finding one per cent of
them costs a quarter of reading everything, because every key has to be passed. But whoever resumes a feed mostly was here a
moment ago. So the feed of a range keeps references to the blocks it delivered last:

    applied   ░░░░░░░░░░░░│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        ▓ blocks kept, up to `limit` bytes
                        floor
    Every version ever applied here is in the blocks, or lies at or below the floor of its span.

A consumer whose `after` is at or above the floor gets its history from the blocks, in one step, without a slot, a snapshot
or a scan. The order is that in which things were applied, which keeps each key's.

Where a floor comes from. When a feed is attached nothing is known of what was applied before. The first catch-up scan of a
span tells: it returns every version above its `after` from a snapshot taken when the blocks were already being kept, so
everything of that span older than the blocks lies at or below the highest it returned. When a block is let go, all floors
rise to its highest version.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.feeds.events import Changes, joined

if TYPE_CHECKING:
    from slackwater.model.spans import Span

RECENT_BYTES_DEFAULT = 4 << 20
SPANS_MAX = 64
"""Spans of which the floor is remembered: the tables that consumers of one range ask for."""


class Recent:
    """The last blocks of one range."""

    def __init__(self, limit: int = RECENT_BYTES_DEFAULT) -> None:
        self.floors: dict[Span, Timestamp] = {}
        """Versions of a span above this are all here, but for those let go."""
        self.bytes = 0
        self._limit = limit
        self._gone = MIN
        """The highest version of all blocks let go."""
        self._blocks: deque[tuple[Changes, int]] = deque()

    def add(self, changes: Changes, size: int) -> None:
        """A block was applied."""
        self._blocks.append((changes, size))
        self.bytes += size
        while self.bytes > self._limit:
            gone, size = self._blocks.popleft()
            self.bytes -= size
            self._gone = Timestamp(max(self._gone, max(gone.timestamps)))

    def scanned(self, span: Span, highest: Timestamp) -> None:
        """A scan of the span has found nothing above this that was applied before the first block."""
        known = self.floors.get(span)
        if known is not None:
            self.floors[span] = Timestamp(min(known, highest))
        elif len(self.floors) < SPANS_MAX:
            self.floors[span] = highest

    def covers(self, span: Span, after: Timestamp) -> bool:
        """Whether everything of `span` after `after` is here."""
        if after < self._gone:
            return False
        return any(after >= floor and known.covers(span) for known, floor in self.floors.items())

    def since(self, span: Span, after: Timestamp) -> Changes:
        """Every version of `span` with ts > after, in the order of the log."""
        found = []
        for block, _ in self._blocks:
            part = block.within(span)
            if part.timestamps and min(part.timestamps) <= after:
                part = part.pick([i for i, ts in enumerate(part.timestamps) if ts > after])
            if part.timestamps:
                found.append(part)
        return joined(found) if found else Changes([], [], [])
