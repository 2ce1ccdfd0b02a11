"""Clearing other transactions' intents out of the way: push, resolve, and the caller tries again.

One round of a write: every transaction whose intents were met is pushed, all at the same time, and the intents of those that
have ended or moved are resolved. One round of a read: the same pushes; their answers go with the next try, which reads
through the intents wherever they are. What became of transactions is remembered for a while on the node (`TxnContext.fates`),
so that the next page of the same scan need not ask.

The caller then simply repeats its batch, whatever the round brought: the intent may
be gone for a different reason, and if it is not, the next round finds out. A push that has to wait is parked at the
pushee's range, which answers as soon as the pushee ends, so waiting costs one message per second and no polling.

A point read that meets an intent on a follower is sent to the leaseholder. A bulk read stays: it would be a pity to move a
large read for one intent. It pushes from here, waits until the follower has applied the resolution, and tries again
there, a bounded number of times.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import SlackwaterError, TooStale, UnavailableError
from slackwater.hooks import probe
from slackwater.model.txns import TxnStatus
from slackwater.protocol.range.requests import Pushed
from slackwater.protocol.range.served import Why, explained
from slackwater.routing.facts import intents_of
from slackwater.routing.outcome import read_only
from slackwater.routing.parallel import in_parallel
from slackwater.txn.context import FATES_MAX
from slackwater.txn.pushing import AfterPush, TxnPusher, after, insistent, plan, resolve, settles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.errors import ConflictError
    from slackwater.model.txns import Intent, Resolution
    from slackwater.protocol.range.requests import BatchResult, Header, Request
    from slackwater.routing.call import Call
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.retry import RetryBudget
    from slackwater.txn.context import TxnContext
    from slackwater.txn.pushing import Push

PUSHES_AT_ONCE_MAX = 16
TOLD_MAX = 64
"""Outcomes that go with one read."""
NAMED_MAX = 3
"""Transactions that an error names."""
FOLLOWER_CONFLICTS_MAX = 8
"""Times a bulk read meets intents on followers before it goes to the leaseholder (pitfall 21)."""
assert NAMED_MAX <= PUSHES_AT_ONCE_MAX <= TOLD_MAX, "what is pushed in one round can be told to the read that follows"
assert TOLD_MAX <= FATES_MAX, "what one read is told is still known on the node when its next page comes"


class ContentionWait:
    """One operation's patience with others: how often it may still meet intents, and until when."""

    def __init__(self, context: TxnContext, *, deadline: Deadline, alive: Callable[[], None] = lambda: None) -> None:
        self._context = context
        self._alive = alive
        self._tries: RetryBudget | None = None  # made when an intent is met, which is seldom
        self._known: dict[bytes, None] = {}  # transactions that have been given time to end
        self._met_on_followers = 0
        self._rounds = 0
        self._decided: dict[bytes, Resolution] = {}
        self.deadline = deadline

    @property
    def decided(self) -> tuple[Resolution, ...]:
        """What became of the transactions that were met: for the header of the next try."""
        return tuple(self._decided.values())

    async def clear(self, error: ConflictError, requests: Sequence[Request], pusher: TxnPusher) -> None:
        """One round; raises when patience has run out: the conflict itself to a write, `UnavailableError` to a read.

        Also raises what `alive` raises.
        """
        reading = bool(requests) and read_only(requests)
        if self._tries is None:
            self._tries = self._context.tries(self.deadline, int(self._context.settings["txn.push_attempts_max"]) + 1)
        if not self._tries.spend() or self.deadline.passed:
            raise self._gave_up(error, reading=reading)
        intents = intents_of(error)
        if reading and self._rounds and not pusher.holds_locks:
            pusher = insistent(pusher)
            if seconds_between(self._context.clock.peek(), pusher.read_ts) > self.deadline.remaining():
                raise self._gave_up(error, reading=True)
            await self._context.wait_past(pusher.read_ts)
        self._rounds += 1
        if reading and self._knew(intents, pusher):
            probe("txn.fate_known")
            return
        pushes = plan(intents, requests, pusher, known=self._known)
        assert len(pushes) <= len(intents), "a push is for an intent that was met"
        self._known.update(dict.fromkeys(intent.txn_id for intent in intents))
        works = [partial(self._push, push, reading=reading) for push in pushes]
        outcomes = await in_parallel(self._context.scope, works, limit=PUSHES_AT_ONCE_MAX, name="push")
        assert len(outcomes) == len(works), "an outcome for every push"
        self._alive()
        for outcome in outcomes:
            # A transaction whose record cannot be reached blocks us, not breaks us: the deadline decides.
            if isinstance(outcome, SlackwaterError) and not isinstance(outcome, UnavailableError):
                raise outcome
        if AfterPush.RESOLVE not in outcomes:
            probe("txn.wait")
            await self._tries.back_off()
        if self.deadline.passed:
            raise self._gave_up(error, reading=reading)

    def _gave_up(self, error: ConflictError, *, reading: bool) -> SlackwaterError:
        probe("txn.gave_up_waiting")
        if not reading:
            return error
        ids = sorted({intent.txn_id.hex() for intent in intents_of(error)})
        return UnavailableError(
            "the outcome of transactions whose intents are in the way of this read could not be learned in time, because "
            "their records cannot be reached; try again, or read at an earlier timestamp",
            transactions=ids[:NAMED_MAX],
        )

    def _knew(self, intents: Sequence[Intent], pusher: TxnPusher) -> bool:
        """Take over what this node knows already; whether that is all, and news to this operation."""
        fates, above = self._context.fates, max(pusher.read_ts, pusher.limit)
        news = False
        for txn_id in {intent.txn_id: None for intent in intents}:
            known = fates.get(txn_id)
            if known is None or not settles(known, above=above):
                return False
            news |= self._decided.get(txn_id) != known
            self._tell(known)
        return news

    def _tell(self, outcome: Resolution) -> None:
        assert outcome.txn_id, "an outcome is of a transaction"
        self._decided[outcome.txn_id] = outcome
        if len(self._decided) > TOLD_MAX:
            del self._decided[next(iter(self._decided))]
        assert len(self._decided) <= TOLD_MAX, "outcomes that are told are bounded"

    async def until_heard(self, error: ConflictError, header: Header) -> Header:
        """What to try again with, after a round. A follower that met the intent must first hear that it was resolved."""
        if not error.facts.get("by_follower"):
            return header
        if all(intent.txn_id in self._decided for intent in intents_of(error)):
            return header  # it reads through them, wherever it is
        self._met_on_followers += 1
        assert self._tries is not None, "a conflict is cleared before the read is sent again"
        if self._met_on_followers > FOLLOWER_CONFLICTS_MAX:
            if header.nearest_only:
                raise TooStale(
                    "intents are in the way on the nearest replica; read at a resolved timestamp, or allow others",
                    why=Why.INTENT.value,
                ) from error
            probe("txn.bulk_left_follower")
            return structs.replace(header, follower_ok=False, leader_only=True)
        await self._tries.back_off()
        return header

    def explain(self, answer: BatchResult) -> BatchResult:
        """The answer that came in the end; with the reason, if it was the leaseholder's because of intents."""
        if self._met_on_followers <= FOLLOWER_CONFLICTS_MAX:
            return answer
        return structs.replace(answer, served=tuple(explained(served, Why.INTENT) for served in answer.served))

    async def _push(self, push: Push, *, reading: bool) -> AfterPush:
        answer = await self._context.ask([push.request], deadline=self.deadline)
        pushed = answer.results[0]
        if not isinstance(pushed, Pushed):
            raise UnavailableError("a push was answered with something else", kind=type(pushed).__name__)
        assert not (pushed.ambiguous and pushed.resolution.status is TxnStatus.COMMITTED), (
            "a missing record never says committed (M11)"
        )
        step = after(push.request, pushed.resolution)
        if step is AfterPush.RESOLVE:
            probe("txn.pushed_" + pushed.resolution.status.name.lower())
            # An abort that a missing record tells may be an old commit that a follower has not heard of (M11).
            if reading and not pushed.ambiguous:
                self._tell(self._context.remember(pushed.resolution))
                self._context.resolve_soon(resolve(push, pushed.resolution))
            else:
                await self._context.ask([resolve(push, pushed.resolution)], deadline=self.deadline)
        return step


def plain_reader(now: Timestamp) -> TxnPusher:
    """The pusher for a read of the present outside any transaction."""
    assert now > MIN, "a read of the present has a time"
    return TxnPusher(now, b"", now, uncertain=True, holds_locks=False)


def clear_index_conflicts(context: TxnContext) -> None:
    """Let lookups of ranges clear intents that they meet in the index, as any other reader would."""

    async def clear(error: ConflictError, call: Call) -> None:
        await ContentionWait(context, deadline=call.deadline).clear(error, [], plain_reader(context.clock.now()))

    context.sender.directory.on_conflict = clear
