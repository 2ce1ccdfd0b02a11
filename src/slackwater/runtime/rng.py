"""Chance from the operating system's entropy: identifiers must not repeat across processes, so nothing is seeded.

A system call per identifier would be a noticeable part of a small write, so entropy is fetched in blocks. Each byte is
handed out once. A process that forks gets a fresh block: parent and child must not hand out the same bytes.
"""

from __future__ import annotations

import os

from slackwater.errors import invariant

BLOCK_BYTES = 4096
BOUND_MAX = 1 << 40
"""Of a choice. With 64 bits each, one answer is no more likely than another by a part in 2^24."""


class RealRng:
    """`seam.Rng` on `os.urandom`."""

    def __init__(self) -> None:
        self._block = b""
        self._at = 0
        self._pid = 0

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        invariant(0 < bound <= BOUND_MAX, "A-rng-bound", bound=bound)
        return int.from_bytes(self.bytes(8), "big") * bound >> 64

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator/denominator."""
        return self.below(denominator) < numerator

    def bytes(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        begin = self._at
        self._at = begin + count
        if self._at > len(self._block) or self._pid != os.getpid():
            self._block, begin, self._at = os.urandom(max(BLOCK_BYTES, count)), 0, count
            self._pid = os.getpid()
        return self._block[begin : self._at]
