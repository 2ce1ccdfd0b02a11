"""Couples a hybrid clock to every message: what is sent carries a stamp, what is received moves the clock on."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.clock.hlc import HybridClock
    from slackwater.runtime.rpc.method import Measurement


class FollowClock:
    """Implements `runtime.rpc.method.ClockHook` for a client: stamps what is sent and follows what is received."""

    stamp: Callable[[], int]
    update: Callable[[int], None]

    def __init__(self, clock: HybridClock) -> None:
        # The clock's own methods, not methods around them: these are called for every message.
        self.stamp = clock.now
        self.update = clock.update  # type: ignore[assignment]  # a timestamp is an integer, whichever message brought it

    def measured(self, peer: str, measurement: Measurement) -> None:
        """Does nothing: a client judges no clock."""
