"""Lets connections that have much to deliver take turns, one in each turn of the loop.

    a peer with few frames     they are delivered as they arrive
    peers with many            one slice of one of them in each turn of the loop, in the order in which they came

So a peer that asks for little waits for one slice of its neighbors' frames, whatever their number.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


class Turns:
    """A queue of connections; each is in it at most once, and joins again when it has more."""

    def __init__(self) -> None:
        self._waiting: deque[Callable[[], None]] = deque()

    def join(self, go_on: Callable[[], None]) -> None:
        """Call `go_on` in a later turn of the loop, after those that joined before."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        self._waiting.append(go_on)

    def _next(self) -> None:
        go_on = self._waiting.popleft()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
        go_on()
