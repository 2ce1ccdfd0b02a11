"""What transactions and plain operations share: sender, clocks, settings, and an owner for background work."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import seconds_between
from slackwater.errors import ProtocolError, SlackwaterError, UsageError
from slackwater.hooks import probe
from slackwater.model.txns import TXN_NAME_BYTES, Resolution, TxnStatus
from slackwater.protocol.range.requests import Header, Number, ResolveIntents
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.deadline import Deadline
from slackwater.runtime.retry import RetryBudget, RetryPolicy
from slackwater.settings import describe

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
assert 0 < describe("routing.backoff_min").default < describe("routing.backoff_max").default, "pauses grow"


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
        self._salt = int.from_bytes(runtime.rng.bytes(8), "big") | 1 << 63  # with a time, it is never nothing

    def life(self, name: bytes, now: Timestamp) -> bytes:
        """The id of a transaction that begins `now` here under a name that its client chose: one that no other has.

        Times of one clock never come twice, and what other gateways make of the same time differs by their salt.
        """
        return name[:TXN_NAME_BYTES] + (now ^ self._salt).to_bytes(8, "big")

    def remember(self, outcome: Resolution) -> Resolution:
        """Keep an answer of a record; returns the newest that is known. What was decided holds for ever.

        Answers overtake one another: one from before the decision, or from before another push, says less and is not kept.
        """
        known = self.fates.get(outcome.txn_id)
        if known is not None and known.status is not TxnStatus.PENDING:
            if outcome.status in (TxnStatus.PENDING, known.status):
                return known
            del self.fates[outcome.txn_id]  # one of two nodes is wrong, and the next answer may tell which
            raise ProtocolError(
                "two nodes tell different outcomes of one transaction, which is decided once (I-20); try again",
                txn=outcome.txn_id.hex(), told=outcome.status.name, before=known.status.name,
            )  # fmt: skip
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

    def tries(self, deadline: Deadline, tries_max: int) -> RetryBudget:
        """The tries of one step of an operation, which its `deadline` bounds as well."""
        policy = RetryPolicy(tries_max, self.settings["routing.backoff_min"], self.settings["routing.backoff_max"])
        return RetryBudget.within(deadline, self.runtime.clock, self.runtime.rng, policy)

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
        """The commit timestamp `ts`, once it may be told: the one way by which callers here learn that a commit happened.

        It does not matter how it was learned: from the answer to EndTxn, from the same EndTxn sent again, or from the
        record, asked by another gateway after this transaction's own was lost (I-19).
        """
        await self.wait_past(ts)
        assert self.passed(ts), "a commit is told once its time has come (I-19)"
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
