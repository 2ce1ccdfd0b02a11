"""What garbage collection asks about protections, and what it may rely on.

    records, read_at = tracker.protected(span)      a copy: no message
    await tracker.refresh(after=ts)                 a copy that was read above `ts`; raises if it cannot be read

`read_at` is MIN while nothing has been read: unknown means no garbage collection. A copy is the list of everything that was
committed at or below `read_at`, and of nothing else.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.protection import Record, State
    from slackwater.model.spans import Span


class ProtectionTracker(Protocol):
    """A node's copy of the protections."""

    @property
    def state(self) -> State:
        """All of it."""
        ...

    def protected(self, span: Span) -> tuple[list[Record], Timestamp]:
        """The records that need history in `span`, and the MVCC timestamp as of which that is the whole list."""
        ...

    async def refresh(self, *, after: Timestamp) -> None:
        """Make sure that the copy was read above `after`."""
        ...
