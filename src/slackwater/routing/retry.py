"""How long, how often: deadlines and pauses between tries.

A deadline is a moment on the monotonic clock; what remains of it travels with every message, so that nobody works for
a caller who has gone. A pause grows with each round up to a bound and keeps a random half of itself: clients that
failed together must not come back together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import invariant

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock, Rng

DOUBLINGS_MAX = 20
_GRAINS = 1024


class Deadline:
    """A moment on the monotonic clock by which an answer is wanted."""

    __slots__ = ("_at_ns", "_clock")

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns() + int(seconds * 1e9)

    def remaining(self) -> float:
        """Seconds left; 0 when it has passed."""
        return max(0.0, (self._at_ns - self._clock.monotonic_ns()) / 1e9)

    def remaining_ms(self) -> int:
        """Whole milliseconds left, at least 1 while any time is left (0 would mean: no deadline)."""
        return max(1, int(self.remaining() * 1000))

    @property
    def passed(self) -> bool:
        """Whether nobody waits any more."""
        return self._clock.monotonic_ns() >= self._at_ns


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
