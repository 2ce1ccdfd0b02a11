"""Chance from the operating system's entropy: identifiers must not repeat across processes, so nothing is seeded."""

from __future__ import annotations

import os
import random

from slackwater.errors import invariant


class RealRng:
    """`seam.Rng` on `os.urandom`."""

    def __init__(self) -> None:
        self._random = random.SystemRandom()

    def below(self, bound: int) -> int:
        """An integer in [0, bound)."""
        invariant(bound > 0, "A-rng-bound", bound=bound)
        return self._random.randrange(bound)

    def chance(self, numerator: int, denominator: int) -> bool:
        """True with probability numerator/denominator."""
        return self.below(denominator) < numerator

    def bytes(self, count: int) -> bytes:
        """`count` unpredictable bytes."""
        return os.urandom(count)
