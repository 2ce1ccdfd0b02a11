"""Pauses that background work owes a node that has other work: it takes a share of the time, however long a piece of it takes.

    worked       0.02 s at a share of 0.05 ► 0.38 s are owed
    pause_s      0.25, then 0.13, then 0: the next piece may begin
    forgive      the node has no other work: nothing is owed

Collecting and the making of columns are paced by this (decisions 076 and 030). What a piece took is the time that passed, not
the processor's: beside others it is charged for waiting too, and so takes less than its share.
"""

from __future__ import annotations

PAUSE_S_MAX = 0.25
"""A pause is slept in pieces of this, so that the end of other work is noticed."""


class Duty:
    """Pauses that work owes, so that it takes no more than its share of the time, however long a piece of it takes."""

    def __init__(self) -> None:
        self._owed_s = 0.0

    def worked(self, seconds: float, *, share: float) -> None:
        """A piece of work took so long."""
        assert 0 < share <= 1, "a share of the time"
        self._owed_s += max(0.0, seconds) * (1 / share - 1)

    def pause_s(self) -> float:
        """How long to pause now, at most PAUSE_S_MAX; 0 when nothing is owed."""
        pause_s = min(PAUSE_S_MAX, self._owed_s)
        self._owed_s -= pause_s
        return pause_s

    def forgive(self) -> None:
        """Forget what is owed: no other work waits."""
        self._owed_s = 0.0
