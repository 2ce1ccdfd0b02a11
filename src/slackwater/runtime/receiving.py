"""How many bytes of unfinished frames a process holds for its peers.

A frame may be 16 MiB, and its bytes are held until the last of them is here. Sixty connections that stop just short of the
end would hold a gigabyte. So a frame above `LARGE_BYTES` is reserved for before it is received, and a connection whose
reservation does not fit stops reading until others have finished:

    of one peer (its address)     at most a quarter of the budget
    of all peers                  at most the budget

A connection that reserved and then falls silent is ended by its session's silence timer, which counts whole frames only, and
gives back what it held.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

LARGE_BYTES = 1 << 18
"""Frames up to this size need no reservation: a socket hands over as much in one read."""
PEER_SHARE = 4


class ReceiveBudget:
    """Bytes that unfinished large frames may take, over all connections of a process."""

    def __init__(self, bytes_max: int, *, frame_bytes_max: int) -> None:
        self._left = max(bytes_max, frame_bytes_max)
        self._peer_max = max(bytes_max // PEER_SHARE, frame_bytes_max)  # one whole frame always fits
        self._held: Counter[str] = Counter()
        self._waiting: dict[Callable[[], None], tuple[str, int]] = {}

    def take(self, peer: str, size: int, go_on: Callable[[], None]) -> bool:
        """Reserve, or be called back once it is worth trying again."""
        if self._fits(peer, size):
            self._held[peer] += size
            self._left -= size
            return True
        self._waiting[go_on] = (peer, size)
        return False

    def give(self, peer: str, size: int) -> None:
        """Give back what was reserved; those that wait and fit now go on, in order of arrival."""
        self._left += size
        self._held[peer] -= size
        if not self._held[peer]:
            del self._held[peer]
        for go_on, (waiting, wanted) in list(self._waiting.items()):
            if self._fits(waiting, wanted):
                del self._waiting[go_on]
                go_on()

    def forget(self, go_on: Callable[[], None]) -> None:
        """A connection that may be waiting is gone."""
        self._waiting.pop(go_on, None)

    @property
    def held(self) -> int:
        """Bytes reserved now."""
        return self._held.total()

    def _fits(self, peer: str, size: int) -> bool:
        return size <= self._left and self._held[peer] + size <= self._peer_max
