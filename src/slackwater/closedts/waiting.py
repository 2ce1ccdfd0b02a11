"""Follower reads that wait for their timestamp to close.

    required <= closed ──► SERVE
    otherwise            budget left ──► WAIT, then SERVE when closed gets there, or what `then` says when time is up
                         no budget  ──► FORWARD to the leaseholder, or FAIL for a read that insists on this replica

A closed timestamp comes in by a command that was applied or by a message of the side transport. The second touches no
replica, so the driver asks after each message only for the ranges that a read waits on: `ranges()`.

Bounded: at most `WAITS_MAX` reads wait on a node; one more is forwarded, never queued. A ticket is whatever the caller
can wake; it leaves the queue exactly once, by `advance` or by `cancel`.
"""

from __future__ import annotations

import enum
import heapq
from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.hooks import level, probe

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import RangeId

WAITS_MAX = 10_000
"""Follower reads that wait on one node."""

T = TypeVar("T")


class Gate(enum.Enum):
    """What a follower does with a read."""

    SERVE = "serve"
    WAIT = "wait"
    FORWARD = "forward"
    FAIL = "fail"


def gate(*, required: Timestamp, closed: Timestamp, wait_ms: int, nearest_only: bool = False) -> Gate:
    """Decide on one read. `wait_ms` is what is left of its budget."""
    if required <= closed:
        return Gate.SERVE
    if wait_ms > 0:
        return Gate.WAIT
    return Gate.FAIL if nearest_only else Gate.FORWARD


class WaitQueue(Generic[T]):
    """Reads by the timestamp they need, per range."""

    def __init__(self) -> None:
        self._heaps: dict[RangeId, list[tuple[Timestamp, int]]] = {}
        self._tickets: dict[int, tuple[RangeId, T]] = {}
        self._last = 0
        self.awaited = self._heaps.keys()
        """Ranges that a read waits on, now and whenever it is looked at."""

    def __len__(self) -> int:
        return len(self._tickets)

    def add(self, range_id: RangeId, *, required: Timestamp, ticket: T) -> int | None:
        """Queue a read; None when too many wait already. The number is for `cancel`."""
        if len(self._tickets) >= WAITS_MAX:
            probe("closedts.too_many_waits")
            return None
        self._last += 1
        self._tickets[self._last] = (range_id, ticket)
        level("closedts.waits", len(self._tickets), WAITS_MAX)
        assert len(self._tickets) <= WAITS_MAX, "waits are bounded"
        heapq.heappush(self._heaps.setdefault(range_id, []), (required, self._last))
        assert self._heaps[range_id], "what waits is in the heap of its range"
        return self._last

    def cancel(self, number: int) -> None:
        """The read gave up, or was woken already."""
        found = self._tickets.pop(number, None)
        if found is not None:
            self._trim(found[0])
        assert len(self._heaps) <= len(self._tickets), "a range is awaited only while a read waits on it"

    def lowest(self, range_id: RangeId) -> Timestamp | None:
        """The lowest timestamp that a read waits for."""
        heap = self._heaps.get(range_id)
        return heap[0][0] if heap else None

    def advance(self, range_id: RangeId, closed: Timestamp) -> list[T]:
        """The tickets of reads that may go on now, those with the lowest timestamp first."""
        heap = self._heaps.get(range_id)
        if heap is None:
            return []
        ready: list[T] = []
        assert all(number <= self._last for _, number in heap[:1]), "tickets are numbered as they come"
        while heap and heap[0][0] <= closed:
            found = self._tickets.pop(heapq.heappop(heap)[1], None)
            if found is not None:
                ready.append(found[1])
        self._trim(range_id)
        assert (lowest := self.lowest(range_id)) is None or lowest > closed, "every read that can be served is served"
        return ready

    def drop(self, range_id: RangeId) -> list[T]:
        """The replica is gone: all reads that wait on it, which must go elsewhere."""
        heap = self._heaps.pop(range_id, [])
        assert range_id not in self._heaps, "nothing waits for a range that is gone"
        return [found[1] for _, number in sorted(heap) if (found := self._tickets.pop(number, None)) is not None]

    def _trim(self, range_id: RangeId) -> None:
        """Let canceled reads go from the top, so that a heap is empty exactly when no read waits."""
        heap = self._heaps.get(range_id)
        if heap is None:
            return
        while heap and heap[0][1] not in self._tickets:
            heapq.heappop(heap)
        if not heap:
            del self._heaps[range_id]
        assert self._heaps.get(range_id, [None]), "a heap is there exactly while a read waits"
