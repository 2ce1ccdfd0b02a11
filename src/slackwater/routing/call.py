"""One caller's batch while it is being sent: how long, how often, what went wrong last, and what it was told.

What a refusing replica says about its neighbours is kept with the call, not only in the sender's cache: the cache may be
small, or busy with other ranges, and the index of ranges may lag behind. A call that is told where to go gets there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import NotLeaseholder, SlackwaterError, UnavailableError
from slackwater.hooks import probe
from slackwater.routing.range_cache import RangeCache
from slackwater.runtime.retry import RetryBudget, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.protocol.range.served import Why
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.seam import Clock, Rng
    from slackwater.settings import Settings


ROUNDS_WITHOUT_ANSWER = 2
ROUNDS_WITHOUT_LEASE = 4
"""Failed rounds after which a range is looked up again."""
PAUSE_GROWTH = 4
"""A lease that moves is there in milliseconds, one whose holder died in seconds; there is nothing to be found in between."""
TOLD_MAX = 256
"""Ranges kept with one call."""


class AllReplicasTried(Exception):
    """Every replica was tried once."""


class Call:
    """Bounds and bookkeeping of one batch, or of one share of it."""

    __slots__ = (
        "_clock", "_rng", "_settings", "_tries", "deadline", "home", "last", "repeatable", "told", "why",
    )  # fmt: skip

    def __init__(
        self, clock: Clock, rng: Rng, settings: Settings, *, deadline: Deadline, home: bytes, repeatable: bool
    ) -> None:
        self._clock = clock
        self._rng = rng
        self._settings = settings
        self._tries: RetryBudget | None = None  # most calls need one round
        self.deadline = deadline
        self.home = home
        self.repeatable = repeatable
        """The caller vouches that executing the batch twice does no harm."""
        self.last: SlackwaterError | None = None
        self.why: Why | None = None
        """Why a follower did not serve this read: the first reason there was."""
        self.told: RangeCache | None = None
        """Ranges that replicas have told this call about; shared with its forks."""

    def fork(self, *, home: bytes | None = None, repeatable: bool | None = None) -> Call:
        """The same deadline with rounds of its own, for a share or a lookup."""
        made = Call(
            self._clock,
            self._rng,
            self._settings,
            deadline=self.deadline,
            home=self.home if home is None else home,
            repeatable=self.repeatable if repeatable is None else repeatable,
        )
        made.told = self.told = self.told or RangeCache(entries_max=TOLD_MAX)
        return made

    def tell(self, wrong: RangeDescriptor, known: Sequence[RangeDescriptor]) -> None:
        """A replica refused `wrong` and knows these instead."""
        self.told = self.told or RangeCache(entries_max=TOLD_MAX)
        if wrong not in known:
            self.told.evict(wrong)
        for descriptor in known:
            self.told.insert(descriptor)

    @property
    def rounds(self) -> int:
        """Rounds that failed so far."""
        return 0 if self._tries is None else self._tries.tries

    def check(self) -> None:
        """Give up when the deadline has passed. Nothing is in doubt at this point."""
        if self.deadline.passed:
            raise UnavailableError(f"no replica answered before the deadline: {self.last}", rounds=self.rounds)

    @property
    def looks_again(self) -> bool:
        """Whether, after this failed round, the range is looked up again.

        After one, the lease is more likely to be on its way than the range. Replicas that answer, and only do not hold the
        lease, know the range: it has hardly moved, and looking it up at every try would burden others for nothing.
        """
        answered = isinstance(self.last, NotLeaseholder)
        return self.rounds % (ROUNDS_WITHOUT_LEASE if answered else ROUNDS_WITHOUT_ANSWER) == 0

    async def next_round(self, *, pause: bool) -> None:
        """Count a round that failed and, with `pause`, wait before the next. Gives up when no further one is left."""
        if self._tries is None:
            settings = self._settings
            policy = RetryPolicy(
                tries_max=int(settings["routing.retries_max"]) + 1,
                pause_s_min=settings["routing.backoff_min"],
                pause_s_max=settings["routing.backoff_max"],
                growth=PAUSE_GROWTH,
            )
            self._tries = RetryBudget.within(self.deadline, self._clock, self._rng, policy)
        left = self._tries.spend()
        self.check()
        if not left:
            probe("routing.gave_up")
            raise UnavailableError(f"no replica could answer: {self.last}", rounds=self.rounds)
        if pause:
            await self._tries.back_off()
