"""Which of the ready handles runs next: the schedule policies.

    UNIFORM   any of them, all alike (the default: finds most)
    FIFO      the oldest, as asyncio itself does (the control)
    PCT       each task has a random priority and the highest runs; at depth-1 random steps the running task falls to
              the bottom. A bug that needs d ordered events is found with probability >= 1/(n * k^(d-1)), however
              unlikely a uniform schedule makes it (Burckhardt et al., ASPLOS 2010).
    STARVE    one task runs only when nothing else can; the victim changes from time to time

A policy sees the ready list when it holds at least two handles, removes one and returns it. Handles of one task share a
`lane`; callbacks that belong to no task share the lane of their node. Time stands still until the ready list is empty,
so no policy can starve a task for longer than an instant: unfairness changes order, never liveness.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, Protocol

from slackwater.sim.handles import SimTask

if TYPE_CHECKING:
    from slackwater.sim.handles import SimHandle
    from slackwater.sim.tape import TapeStream


class SchedulePolicy(enum.Enum):
    """The names a scenario draws from."""

    UNIFORM = "uniform"
    FIFO = "fifo"
    PCT2 = "pct2"
    PCT3 = "pct3"
    PCT4 = "pct4"
    STARVE = "starve"


class Scheduler(Protocol):
    """Chooses from a ready list of two or more."""

    def take(self, ready: list[SimHandle]) -> SimHandle:
        """Remove one handle and return it."""
        ...


class Uniform:
    """All alike."""

    __slots__ = ("_below",)

    def __init__(self, stream: TapeStream) -> None:
        self._below = stream.below

    def take(self, ready: list[SimHandle]) -> SimHandle:
        """Swap the chosen one to the end: O(1), and the order of the rest does not matter."""
        at = self._below(len(ready))
        chosen = ready[at]
        last = ready.pop()
        if chosen is not last:
            ready[at] = last
        return chosen


class Fifo:
    """The oldest first."""

    __slots__ = ()

    def take(self, ready: list[SimHandle]) -> SimHandle:
        """The oldest; lists are short, so `pop(0)` is cheaper than a deque with random access."""
        return ready.pop(0)


PCT_STEPS_EXPECTED = 50_000
PCT_LANES_MAX = 4096
"""Lanes whose priority is remembered; the oldest are forgotten (a dead task never asks again)."""


class Pct:
    """Priorities with `depth - 1` change points."""

    def __init__(self, stream: TapeStream, *, depth: int) -> None:
        self._stream = stream
        self._priority: dict[int, int] = {}
        self._changes = sorted(stream.below(PCT_STEPS_EXPECTED) for _ in range(depth - 1))
        self._choices = 0
        self._floor = 0

    def take(self, ready: list[SimHandle]) -> SimHandle:
        """The highest priority; among the handles of one lane, the oldest."""
        known, best, highest = self._priority.get, 0, None
        for at, handle in enumerate(ready):
            owner = getattr(handle.callback, "__self__", None)  # `handle.lane`, inlined: this is the hot loop
            lane = owner.birth if type(owner) is SimTask else -1 - handle.domain.number
            rank = known(lane)
            if rank is None:
                rank = self._meet(lane)
            if highest is None or rank > highest:
                best, highest = at, rank
        chosen = ready.pop(best)
        self._choices += 1
        if self._changes and self._choices >= self._changes[0]:
            self._changes.pop(0)
            self._floor -= 1
            self._priority[chosen.lane] = self._floor
        return chosen

    def _meet(self, lane: int) -> int:
        """Give a lane seen for the first time its priority."""
        if len(self._priority) >= PCT_LANES_MAX:
            del self._priority[next(iter(self._priority))]
        rank = self._priority[lane] = self._stream.below(1 << 30)
        return rank


STARVE_CHOICES = 2_000


class Starve:
    """One lane goes last."""

    def __init__(self, stream: TapeStream) -> None:
        self._below = stream.below
        self._victim = -1
        self._left = 0

    def take(self, ready: list[SimHandle]) -> SimHandle:
        """Uniform among those that are not the victim's."""
        if self._left == 0:
            self._left = 1 + self._below(STARVE_CHOICES)
            self._victim = ready[self._below(len(ready))].lane
        self._left -= 1
        others = [i for i, handle in enumerate(ready) if handle.lane != self._victim]
        return ready.pop(others[self._below(len(others))] if others else 0)


def scheduler_for(policy: SchedulePolicy, stream: TapeStream) -> Scheduler:
    """The scheduler of a policy, drawing from `stream`."""
    if policy is SchedulePolicy.UNIFORM:
        return Uniform(stream)
    if policy is SchedulePolicy.FIFO:
        return Fifo()
    if policy is SchedulePolicy.STARVE:
        return Starve(stream)
    return Pct(stream, depth=int(policy.value[-1]))
