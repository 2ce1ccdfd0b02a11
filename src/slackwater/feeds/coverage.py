"""Up to where a memory of recent changes reaches back, span by span.

    applied   ░░░░░░░░░░░░│▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓▓        ▓ remembered
                        floor
    Every version ever applied here is remembered, or lies at or below the floor of its span, or was let go.

Where a floor comes from. When a memory begins nothing is known of what was applied before. The first catch-up scan of a span
tells: it returns every version above its `after` from a snapshot taken when the memory had already begun, so everything of
that span older than the memory lies at or below the highest it returned. When something is let go, all floors rise to its
highest version.

What is recent is remembered twice: as blocks in memory (`recent.py`), and by key on disk (`index.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp

if TYPE_CHECKING:
    from slackwater.model.spans import Span

SPANS_MAX = 64
"""Spans of which the floor is remembered: the tables that consumers of one range ask for."""


class Coverage:
    """What a memory can answer for."""

    def __init__(self) -> None:
        self.floors: dict[Span, Timestamp] = {}
        """Versions of a span above this are all remembered, but for those let go."""
        self.gone = MIN
        """The highest version of all that was let go."""

    def scanned(self, span: Span, highest: Timestamp) -> None:
        """A scan of the span has found nothing above this that was applied before the memory began."""
        known = self.floors.get(span)
        if known is not None:
            self.floors[span] = Timestamp(min(known, highest))
        elif len(self.floors) < SPANS_MAX:
            self.floors[span] = highest

    def let_go(self, highest: int) -> None:
        """Something is no longer remembered, with this as its highest version."""
        self.gone = Timestamp(max(self.gone, highest))

    def covers(self, span: Span, after: Timestamp) -> bool:
        """Whether everything of `span` after `after` is remembered."""
        if after < self.gone:
            return False
        return any(after >= floor and known.covers(span) for known, floor in self.floors.items())
