"""When an operation must have ended: one object, made once by the caller, used by everything done on its behalf.

    client      Deadline(timeout) ── every call, retry, pause, lookup, settling and undoing of one operation
      │ the RPC header carries what remains, less what the answer needs to come home (`for_callee`)
    gateway     what remains of that ── sender, its rounds, the pushes and refreshes of transactions
      │ `Header.deadline_ms`, and the RPC header again
    replica     waits for lease and latches no longer than that; what was not proposed by then never is

A timeout that starts anew with each call of a loop bounds nothing: loops nest (I-33). So nothing below the caller makes a
deadline of its own for work that a caller waits for.

Each callee gives up a little before its caller does. The caller then hears a reason, and whether the work was begun, where it
would otherwise only know that it waited in vain, and would have to call the outcome unknown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock

HOME_S_MAX = 0.05
HOME_SHARE = 1 / 16
"""What an answer needs to come home: at most so long, and of a short time only a part."""
SPARED_S_MAX = 2.0
SPARED_SHARE = 1 / 4
"""What is kept back for asking what became of a commit."""


class Deadline:
    """A moment on the monotonic clock by which an answer is wanted."""

    __slots__ = ("_at_ns", "_clock", "seconds")

    def __init__(self, clock: Clock, *, seconds: float) -> None:
        self._clock = clock
        self._at_ns = clock.monotonic_ns() + int(seconds * 1e9)
        self.seconds = seconds
        """How long it was when it was made, for messages."""

    def remaining(self) -> float:
        """Seconds left; 0 when it has passed."""
        return max(0.0, (self._at_ns - self._clock.monotonic_ns()) / 1e9)

    def remaining_ms(self) -> int:
        """Whole milliseconds left, at least 1 while any time is left (0 would mean: no deadline)."""
        return max(1, int(self.remaining() * 1000))

    def sparing(self) -> float:
        """Seconds for a step whose outcome, should its answer be lost, is to be found out within the same deadline."""
        left = max(0.0, (self._at_ns - self._clock.monotonic_ns()) / 1e9)
        return left - min(SPARED_S_MAX, left * SPARED_SHARE)

    def pause(self, seconds: float) -> float:
        """A pause of `seconds`, or of what is left."""
        return min(seconds, self.remaining())

    @property
    def passed(self) -> bool:
        """Whether the time is over."""
        return self._clock.monotonic_ns() >= self._at_ns


def for_callee(seconds: float) -> float:
    """What remains for a callee that is asked to answer within `seconds`."""
    return seconds - min(HOME_S_MAX, seconds * HOME_SHARE)
