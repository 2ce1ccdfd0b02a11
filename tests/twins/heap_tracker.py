"""The exact twin of the bucket tracker: a heap of what is inside.

    heap     [(10, #1), (15, #3), (15, #2) …]     lowest timestamp on top
    inside   {#1: 10, #3: 15}                     the truth; the heap may still hold those who left

Removal from the middle of a heap is not possible, so a request that leaves is dropped from `inside` only, and the top
of the heap is thrown away for as long as it names somebody who left. Simple enough to be right by reading it, which is
the point: the tests hold `BucketTracker` against it, and the benchmark shows what exactness would cost.

    I-11  lower_bound() is the lowest tracked timestamp, exactly.
"""

from __future__ import annotations

import heapq
from typing import TYPE_CHECKING

from slackwater.closedts.tracker import TRACKED_MAX, Token
from slackwater.errors import Overloaded, invariant

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.clock.timestamp import Timestamp


class HeapTracker:
    """Exact lower bound in logarithmic time. Satisfies `Tracker`."""

    def __init__(self) -> None:
        self._heap: list[tuple[Timestamp, Token]] = []
        self._inside: dict[Token, Timestamp] = {}
        self._last_token = 0

    @property
    def count(self) -> int:
        """Requests inside."""
        return len(self._inside)

    def track(self, ts: Timestamp) -> Token:
        """Enter a request that may write at `ts` or above."""
        if len(self._inside) >= TRACKED_MAX:
            raise Overloaded("too many requests are evaluating in this range; retry later", limit=TRACKED_MAX)
        self._last_token += 1
        token = Token(self._last_token)
        self._inside[token] = ts
        heapq.heappush(self._heap, (ts, token))
        return token

    def untrack(self, token: Token) -> None:
        """Leave; a second time with the same token is an invariant violation."""
        invariant(token in self._inside, "A-tracker-untrack-once", token=token, inside=self.count)
        del self._inside[token]
        while self._heap and self._heap[0][1] not in self._inside:
            heapq.heappop(self._heap)

    def leave(self, tokens: Iterable[Token]) -> Timestamp | None:
        """`untrack` of each, then `lower_bound`."""
        for token in tokens:
            self.untrack(token)
        return self.lower_bound()

    def lower_bound(self) -> Timestamp | None:
        """The lowest tracked timestamp; None when nothing is tracked."""
        return self._heap[0][0] if self._heap else None

    def status(self) -> str:
        """One line: everything inside, lowest first."""
        return "inside=[" + ", ".join(str(ts) for ts in sorted(self._inside.values())) + "]"
