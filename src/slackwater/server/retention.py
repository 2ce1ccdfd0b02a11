"""What a node knows of time to live, protections and dropped tables: the rules by which its leaseholders collect."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.replica.evaluation import Permit

if TYPE_CHECKING:
    from slackwater.clock import HybridClock
    from slackwater.replica.state import RangeState


class NodeRetention:
    """Allows everything up to the present: zones and protections are not known here yet."""

    def __init__(self, clock: HybridClock) -> None:
        self._clock = clock

    def permit(self, state: RangeState) -> Permit:
        """Up to the present."""
        return Permit(self._clock.peek())

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        """No table is known to be dropped."""
        return MIN
