"""Many deadlines, one timer.

A timer per call costs more than the call. All deadlines of a connection share one heap and one armed timer: adding one
is a heap push, a finished call simply leaves its entry behind, and entries whose call is gone are skipped when they
come up, or swept out when they outnumber the living.

Deadlines are kept on the node's monotonic clock. The timer is armed a grain late rather than early, so that it never
fires just before the deadline it was set for.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Container

    from slackwater.runtime.seam import Clock

GRAIN_S = 0.0005
TIMEOUT_S_MAX = 7 * 86_400.0  # longer is as good as for ever, and some loops refuse it
DEAD_ENTRIES_MIN = 256  # below this many entries a sweep is not worth it


class Deadlines:
    """Calls `expired(call_id)` for every call that is still in `living` at its deadline."""

    def __init__(
        self, clock: Clock, loop: asyncio.AbstractEventLoop, *, living: Container[int], expired: Callable[[int], None]
    ) -> None:
        self._clock = clock
        self._loop = loop
        self._living = living
        self._expired = expired
        self._heap: list[tuple[int, int]] = []
        self._sweep_above = DEAD_ENTRIES_MIN
        self._timer: asyncio.TimerHandle | None = None
        self._armed_ns = 0

    def after(self, timeout_s: float) -> int:
        """The deadline that is so far away, in monotonic nanoseconds."""
        return self._clock.monotonic_ns() + int(min(timeout_s, TIMEOUT_S_MAX) * 1e9)

    def add(self, call_id: int, deadline: int) -> None:
        """Watch a call that is about to enter `living`."""
        heapq.heappush(self._heap, (deadline, call_id))
        if len(self._heap) > self._sweep_above:
            self._sweep(keep=call_id)
        if self._timer is None or deadline < self._armed_ns:
            self._arm(self._clock.monotonic_ns())

    def close(self) -> None:
        """Watch nothing any more."""
        self._heap.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __len__(self) -> int:
        return len(self._heap)

    def _sweep(self, *, keep: int) -> None:
        living = self._living
        self._heap = [entry for entry in self._heap if entry[1] in living or entry[1] == keep]
        heapq.heapify(self._heap)
        self._sweep_above = max(DEAD_ENTRIES_MIN, 4 * len(self._heap))

    def _arm(self, now: int) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed_ns = self._heap[0][0]
        self._timer = self._loop.call_later(max(0, self._armed_ns - now) / 1e9 + GRAIN_S, self._fire)

    def _fire(self) -> None:
        self._timer = None
        now = self._clock.monotonic_ns()
        heap = self._heap
        while heap and (heap[0][0] <= now or heap[0][1] not in self._living):
            _, call_id = heapq.heappop(heap)
            if call_id in self._living:
                self._expired(call_id)
            heap = self._heap  # `expired` may have closed us
        if heap and self._timer is None:
            self._arm(now)
