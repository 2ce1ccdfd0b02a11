"""How old an answer may be: the timestamps that followers can serve, for any number of spans.

    exact               the caller knows the timestamp
    follower_read       every follower has very likely closed it, by the policies of the spans: target + one tick + slack
                        ago, or the present where they lead; no message needed
    with_min_timestamp  the freshest timestamp that the nearest replicas of *all* spans can serve without waiting, not
    with_max_staleness  older than a bound; found by asking each span's replica how far it is resolved
    close               the present: leaseholders finish and publish, then followers serve a large read at `at`

All of them choose one timestamp for the whole query, over ranges and tables. What they promise is checked again where it
matters: a replica serves a read only if its own closed timestamp allows it, and a resolved timestamp is exact for the
replica that reported it, and for the others soon. A read that is sent elsewhere is slower, never wrong.

    I-16  a chosen timestamp is never below its bound, and never below what the session read at before
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.closedts.negotiate import bound_of_staleness, negotiate
from slackwater.closedts.policy import ClosingPolicy, PolicyBook, follower_read_timestamp, terms_of
from slackwater.errors import TooStale, UnavailableError, UsageError
from slackwater.hooks import probe
from slackwater.model.ids import RangeId
from slackwater.protocol.range.requests import ClosedResult, CloseNow, Header, QueryResolved, Request, ResolvedResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock import HybridClock
    from slackwater.routing.sender import RangeSender
    from slackwater.settings import Settings

CLOSE_ROUNDS_MAX = 8
"""Times a range is asked to close a timestamp that writes in the same flush held back."""
NO_RANGE = RangeId(0)


class Chosen(NamedTuple):
    """The timestamp to read at, and whether followers can serve it."""

    ts: Timestamp
    by_followers: bool


class Staleness:
    """Chooses timestamps for reads that may be a little old. One per session: its reads do not travel back."""

    def __init__(
        self, *, sender: RangeSender, clock: HybridClock, settings: Settings, policies: PolicyBook | None = None
    ) -> None:
        self._sender = sender
        self._clock = clock
        self._settings = settings
        self._policies = policies or PolicyBook()
        self.seen = MIN
        """The newest timestamp this session has chosen."""

    def follower_read_timestamp(self, spans: Sequence[tuple[bytes, bytes]] = ()) -> Timestamp:
        """A timestamp that the followers of these spans have very likely closed.

        Spans may have durations of their own, lead, or close nothing (`UsageError`): the oldest of their timestamps serves
        all of them. Without spans, by the cluster's `closed_timestamp.target_duration`.
        """
        terms = terms_of(self._settings)
        policies = [self._policies.spans.of(start, end, terms) for start, end in spans] or [ClosingPolicy()]
        slack_s = self._settings["closed_timestamp.propagation_slack"]
        return follower_read_timestamp(self._clock.physical(), terms, slack_s=slack_s, policies=policies)

    async def with_max_staleness(
        self,
        seconds: float,
        spans: Sequence[tuple[bytes, bytes]],
        *,
        nearest_only: bool = False,
        timeout: float | None = None,
    ) -> Chosen:
        """The freshest timestamp that needs no waiting, at most that old."""
        bound = bound_of_staleness(self._clock.now(), seconds)
        return await self.with_min_timestamp(bound, spans, nearest_only=nearest_only, timeout=timeout)

    async def with_min_timestamp(
        self,
        bound: Timestamp,
        spans: Sequence[tuple[bytes, bytes]],
        *,
        nearest_only: bool = False,
        timeout: float | None = None,
    ) -> Chosen:
        """The freshest timestamp that needs no waiting, at or above `bound`.

        If the nearest replicas are behind the bound, leaseholders serve it; with `nearest_only` that is an error.
        """
        now = self._clock.now()
        if bound > now:
            raise UsageError("the future cannot be read; give a timestamp at or before now", bound=bound, now=now)
        resolved = await self.resolved(spans, timeout=timeout)
        chosen = negotiate([r.ts for r in resolved], at_least=bound, now=now, seen=self.seen)
        if chosen is None and nearest_only:
            behind = min(resolved, key=lambda r: r.ts)
            least = Timestamp(max(bound, self.seen))
            raise TooStale(
                "the nearest replicas cannot serve a timestamp that fresh without waiting; accept an older one, "
                "try again a little later, or allow others",
                resolved=behind.ts,
                bound=least,
                behind_s=seconds_between(behind.ts, least),
            )
        if chosen is None:
            probe("staleness.leaseholder_needed")
        before = self.seen
        self.seen = Timestamp(max(bound, self.seen)) if chosen is None else chosen
        assert self.seen >= before, "the reads of a session do not travel back (I-16)"
        assert self.seen >= bound, "nothing older than the bound is chosen (I-16)"
        return Chosen(self.seen, by_followers=chosen is not None)

    async def resolved(
        self, spans: Sequence[tuple[bytes, bytes]], *, timeout: float | None = None
    ) -> list[ResolvedResult]:
        """How far the nearest replicas of each span can be read without meeting an intent."""
        requests: list[Request] = [QueryResolved(start, end) for start, end in spans]
        answer = await self._sender.send(requests, Header(NO_RANGE, follower_ok=True), timeout=timeout)
        found = [r for r in answer.results if isinstance(r, ResolvedResult)]
        assert len(found) == len(spans), "every span counts for what is chosen (I-16)"
        return found

    async def close(
        self, spans: Sequence[tuple[bytes, bytes]], *, at: Timestamp | None = None, timeout: float | None = None
    ) -> Timestamp:
        """Have `at` (default: now) closed and published in all spans; followers that wait a moment then serve it.

        Costs one small log entry per range that had not closed it, nothing for the others. Idempotent.
        """
        ts = self._clock.now() if at is None else at
        requests: list[Request] = [CloseNow(start, end, ts) for start, end in spans]
        budget = self._sender.budget(timeout=timeout, tries_max=CLOSE_ROUNDS_MAX)
        while True:
            answer = await self._sender.send(requests, Header(NO_RANGE), timeout=budget.remaining())
            closed = [r.closed for r in answer.results if isinstance(r, ClosedResult)]
            assert len(closed) == len(spans), "every span counts for what is closed"
            lowest = min(closed, default=MIN)
            if lowest >= ts:
                return ts
            probe("staleness.close_again")
            if not budget.spend() or budget.passed:
                break
            await budget.back_off()
        raise UnavailableError(
            "the ranges could not close the timestamp; it is in the future, or a merge is under way",
            at=ts,
            closed=lowest,
        )
