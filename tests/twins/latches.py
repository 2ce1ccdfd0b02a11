"""The latch manager's twin: a list in order of arrival and one rule, at quadratic cost.

    granted(r)  <=>  no request before r in the list conflicts with r

Everything the real one does with queues, segments, dependencies and sequence numbers must come out the same as this.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import invariant
from slackwater.replica.spanmap import after

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.replica.latches import LatchSpan, RequestId


def conflict(a: LatchSpan, b: LatchSpan) -> bool:
    """Whether two latches of different requests exclude each other."""
    if not (a.start < (b.end or after(b.start)) and b.start < (a.end or after(a.start))):
        return False
    if a.write and b.write:
        return True
    if not a.write and not b.write:
        return False
    write, read = (a, b) if a.write else (b, a)
    return write.ts <= read.ts


class NaiveLatches:
    """Same answers as `LatchManager`, by looking at everybody."""

    def __init__(self) -> None:
        self._requests: list[tuple[RequestId, Sequence[LatchSpan]]] = []
        self._granted: set[RequestId] = set()

    def __len__(self) -> int:
        return len(self._requests)

    def acquire(self, request: RequestId, spans: Sequence[LatchSpan]) -> bool:
        """Queue a request; whether it may go ahead at once."""
        invariant(all(r != request for r, _ in self._requests), "A-latch-acquire-once", request=request)
        self._requests.append((request, spans))
        return request in self._grant()

    def release(self, request: RequestId) -> list[RequestId]:
        """Take a request out, granted or waiting; those now granted, in order of arrival."""
        position = next(i for i, (r, _) in enumerate(self._requests) if r == request)
        del self._requests[position]
        self._granted.discard(request)
        return self._grant()

    def is_granted(self, request: RequestId) -> bool:
        """Whether a request inside may evaluate."""
        return request in self._granted

    def _grant(self) -> list[RequestId]:
        new = []
        for position, (request, spans) in enumerate(self._requests):
            if request not in self._granted and not self._blocked(position, spans):
                self._granted.add(request)
                new.append(request)
        return new

    def _blocked(self, position: int, spans: Sequence[LatchSpan]) -> bool:
        return any(
            conflict(mine, other) for _, others in self._requests[:position] for mine in spans for other in others
        )
