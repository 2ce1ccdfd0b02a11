"""How often, how soon and until when one operation is tried again: one policy, one budget, one deadline.

    client     RetryBudget ── conflicts, changed schemas, lost gateways, broken scans: everything of one user operation
      │ the RPC header carries the deadline
    gateway    RetryBudget ── rounds over replicas, pushes, restarts: everything of one request

Loops nest: a write that meets a conflict is written again, each time over several gateways, each of which asks several
replicas. A loop with a count of its own multiplies by those around it, and eleven of them bound nothing. So no loop counts
for itself: it spends from the budget of the operation that it works for, which is passed down beside the deadline, as one object.

    spend      a server answered and refused the work: takes one try
    back_off   waits before the next try, longer each time, with a random half taken off, never past the deadline
    again      both, and raises the reason when there is no further try

A round in which no server answered costs no server anything. It is not counted, only waited for: the deadline bounds it.

Steps below a gateway have budgets of their own tries and of the operation's one deadline (`RetryBudget.within`): the rounds over
the replicas of one range, the pushes of one operation, the questions after one lost commit. Their pauses are made here, nowhere
else; `tests/unit/runtime/test_retry.py` finds every sleep of `client`, `routing` and `txn` that is not one of them.

`Backoff` is the pause alone, for work without an end, such as a feed that reconnects.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import DeadlineExceeded, RetryableError, SlackwaterError, invariant
from slackwater.runtime.deadline import Deadline

if TYPE_CHECKING:
    from slackwater.runtime.seam import Clock, Rng

DOUBLINGS_MAX = 20
_GRAINS = 1024


class Backoff:
    """Pauses: `least`, `growth` times that, … up to `most`, each with a random half taken off.

    Clients that failed together must not come back together.
    """

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


class RetryPolicy(NamedTuple):
    """How one kind of operation is tried again."""

    tries_max: int
    """Tries that a server may refuse before the operation fails."""
    pause_s_min: float
    pause_s_max: float
    growth: int = 2


class RetryBudget(Deadline):
    """The deadline of one operation, with the tries that are left to it. Shared by every loop that works for it."""

    __slots__ = ("_backoff", "_policy", "_rng", "tries")

    def __init__(self, clock: Clock, rng: Rng, policy: RetryPolicy, *, seconds: float) -> None:
        # As `Deadline.__init__`, without a call: an operation makes one of these before anything else.
        self._clock = clock
        self._at_ns = clock.monotonic_ns() + int(seconds * 1e9)
        self.seconds = seconds
        self._rng = rng
        self._policy = policy
        self._backoff: Backoff | None = None  # most operations never pause
        self.tries = 0
        """Tries that were refused so far."""

    @classmethod
    def within(cls, deadline: Deadline, clock: Clock, rng: Rng, policy: RetryPolicy) -> RetryBudget:
        """The tries of one step of an operation, by the operation's own deadline."""
        made = cls(clock, rng, policy, seconds=0.0)
        made._at_ns, made.seconds = deadline._at_ns, deadline.seconds
        return made

    def spend(self) -> bool:
        """Count a try that was refused; False when the policy allows no other."""
        self.tries += 1
        return self.tries < self._policy.tries_max

    async def back_off(self) -> None:
        """Wait before the next try, no longer than the deadline."""
        if self._backoff is None:
            policy = self._policy
            self._backoff = Backoff(self._rng, least=policy.pause_s_min, most=policy.pause_s_max, growth=policy.growth)
        await self._clock.sleep(self.pause(self._backoff.next()))

    async def again(self, error: SlackwaterError, nothing: str) -> None:
        """Return when the operation may be tried once more after `error`.

        Raises `DeadlineExceeded` when its time is over and `RetryableError` when its tries are; both say what did not happen
        (`nothing`, such as "nothing was written") and the last reason.
        """
        if not self.spend():
            raise RetryableError(
                f"{nothing} in {self.tries} tries: {error.message}; retry later or reduce contention on these keys"
            ) from error
        await self.back_off()
        if self.passed:
            raise self.exceeded(nothing, error) from error

    def exceeded(self, nothing: str, last: SlackwaterError | None, *, sent: bool = False) -> DeadlineExceeded:
        """The error of an operation whose time is over; `sent`: it may have been executed all the same."""
        why = "" if last is None else f": {last.message}"
        return DeadlineExceeded(f"{nothing} within {self.seconds:g} s{why}", sent=sent)
