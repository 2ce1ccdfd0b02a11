"""Pauses between tries; how long all of them may take is `runtime.deadline`.

A pause grows with each round up to a bound and keeps a random half of itself: clients that failed together must not come back
together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import invariant

if TYPE_CHECKING:
    from slackwater.runtime.seam import Rng

DOUBLINGS_MAX = 20
_GRAINS = 1024


class Backoff:
    """Pauses: `least`, `growth` times that, … up to `most`, each with a random half taken off."""

    __slots__ = ("_growth", "_least", "_most", "_rng", "rounds")

    def __init__(self, rng: Rng, *, least: float, most: float, growth: int = 2) -> None:
        invariant(least > 0, "A-backoff", least=least)
        self._rng = rng
        self._growth = growth
        self._least = least
        self._most = max(least, most)
        self.rounds = 0

    def next(self) -> float:
        """Seconds to pause before the next round."""
        whole: float = min(self._most, self._least * self._growth ** min(self.rounds, DOUBLINGS_MAX))
        self.rounds += 1
        return whole * (_GRAINS + self._rng.below(_GRAINS)) / (2 * _GRAINS)
