"""What transactions and plain operations share: sender, clocks, settings, and an owner for background work."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import seconds_between
from slackwater.errors import SlackwaterError, UsageError
from slackwater.hooks import probe
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protocol.range.requests import Header, Number, ResolveIntents
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.deadline import Deadline
from slackwater.runtime.retry import Backoff, RetryBudget, RetryPolicy

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.routing.sender import RangeSender
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings

UNBOUNDED_S = 7 * 86_400.0
"""Longer than any transaction is tried."""
BACKGROUND_TIMEOUT_S = 20.0
"""For work that no caller waits for: resolving, forgetting, rolling back."""
FATES_MAX = 1024
"""Outcomes of other transactions that a node remembers."""
RESOLVING_MAX = 16
"""Requests of readers to resolve what they met, under way at a time; those beyond are left to the coordinator."""
assert RESOLVING_MAX <= FATES_MAX, "what is resolved for readers is remembered"
assert BACKGROUND_TIMEOUT_S < UNBOUNDED_S, "work that no caller waits for ends"


class TxnContext:
    """Passed to everything in this folder that awaits."""

    def __init__(
        self, *, sender: RangeSender, clock: HybridClock, runtime: Runtime, settings: Settings, scope: TaskScope
    ) -> None:
        self.sender = sender
        self.clock = clock
        self.runtime = runtime
        self.settings = settings
        self.scope = scope
        self.fates: OrderedDict[bytes, Resolution] = OrderedDict()
        """What became of transactions that readers here have met: final, or for PENDING where it may not commit below."""
        self._resolving = 0

    def remember(self, outcome: Resolution) -> Resolution:
        """Keep an answer of a record; returns the newest that is known. What was decided holds for ever.

        Answers overtake one another: one from before the decision, or from before another push, says less and is not kept.
        """
        known = self.fates.get(outcome.txn_id)
        if known is not None and known.status is not TxnStatus.PENDING:
            assert outcome.status in (TxnStatus.PENDING, known.status), (
                "a decided transaction stays as it was decided (I-20)"
            )
            return known
        if (
            known is not None
            and outcome.status is TxnStatus.PENDING
            and (outcome.epoch, outcome.ts) < (known.epoch, known.ts)
        ):
            return known
        self.fates[outcome.txn_id] = outcome
        self.fates.move_to_end(outcome.txn_id)
        if len(self.fates) > FATES_MAX:
            self.fates.popitem(last=False)
        assert len(self.fates) <= FATES_MAX, "outcomes that are remembered are bounded"
        return outcome

    def resolve_soon(self, request: ResolveIntents) -> None:
        """Resolve a few intents of a decided transaction in the background; it may be left undone."""
        if request.resolution.status is TxnStatus.PENDING or self._resolving >= RESOLVING_MAX:
            return
        work = self._resolve(request)
        try:
            self.scope.spawn(work, name="resolve met")
        except UsageError:  # this process is shutting down
            work.close()
        else:
            self._resolving += 1
        assert self._resolving <= RESOLVING_MAX, "requests under way are bounded"

    async def _resolve(self, request: ResolveIntents) -> None:
        try:
            await self.ask([request], deadline=self.deadline(BACKGROUND_TIMEOUT_S))
        except SlackwaterError:
            probe("txn.resolve_met_failed")
        finally:
            self._resolving -= 1
            assert self._resolving >= 0, "a slot is given back once"

    def deadline(self, timeout: float | None) -> Deadline:
        """When an operation that starts now must have ended."""
        seconds = self.settings["routing.send_timeout"] if timeout is None else timeout
        return Deadline(self.runtime.clock, seconds=seconds)

    def budget(self, timeout: float | None) -> RetryBudget:
        """The time and the tries of a transaction that starts now; without `timeout`, its tries alone bound it."""
        policy = RetryPolicy(
            tries_max=int(self.settings["txn.max_retries"]) + 1,
            pause_s_min=self.settings["routing.backoff_min"],
            pause_s_max=self.settings["routing.backoff_max"],
        )
        seconds = UNBOUNDED_S if timeout is None else timeout
        return RetryBudget(self.runtime.clock, self.runtime.rng, policy, seconds=seconds)

    def backoff(self) -> Backoff:
        """Pauses between tries."""
        least, most = self.settings["routing.backoff_min"], self.settings["routing.backoff_max"]
        return Backoff(self.runtime.rng, least=least, most=most)

    async def ask(self, requests: Sequence[Request], *, deadline: Deadline, at: bytes = b"") -> BatchResult:
        """Send requests that belong to no transaction and no timestamp (pushes, resolutions).

        Resolutions that fill more than one log entry are asked for again until nothing is left.
        """
        assert requests, "there is something to ask"
        while True:
            answer = await self.sender.send(requests, Header(NO_RANGE), timeout=deadline.remaining(), at=at)
            if not any(isinstance(result, Number) and result.more for result in answer.results):
                return answer
            probe("txn.resolve_in_parts")

    async def acknowledged(self, ts: Timestamp) -> Timestamp:
        """The commit timestamp `ts`, once it may be told: the one way by which anybody here learns that a commit happened.

        It does not matter how it was learned: from the answer to EndTxn, from the same EndTxn sent again, or from the
        record, asked by another gateway after this transaction's own was lost (I-19).
        """
        await self.wait_past(ts)
        return ts

    def passed(self, ts: Timestamp) -> bool:
        """Whether this node's clock is above `ts` already, so that `wait_past` would not wait."""
        clock = self.clock
        return clock.latest >= ts or clock.peek() >= ts  # every later `now()` is above what `peek` shows

    async def wait_past(self, ts: Timestamp) -> None:
        """Commit-wait: return once this node's clock is above `ts`.

        The clock has usually heard of it already. A commit in the future (a table whose present is readable everywhere)
        must not be acknowledged before its time: a later transaction elsewhere would not see it. The same holds for
        what was read there: another reader, a moment later, might not see it yet. Clocks follow clocks, never such
        timestamps (I-01), so this really waits.
        """
        while not self.passed(ts):
            probe("txn.commit_wait")
            await self.runtime.clock.sleep(seconds_between(self.clock.peek(), ts) + 1e-6)
