"""After the decision: intents become values or vanish, then the record may go. In the background, many at a time.

    committed, aborted ──► waiting ──► round: resolve all their intents ──► next round: … and ForgetLocks of the last one
                              ▲                    │
                              └── what came meanwhile gathers for the next round

The decision stands in the record; no caller waits for this work, and a request that meets an intent earlier does it for
himself. So it is done for many transactions at once: a round is one message and one command per range, however many
transactions it is about, and nothing waits for a round that an idle finisher could start. That the intents of a transaction
are gone is told its record with the next round, or by a last one of its own.

Bounds: `ROUND_MAX` transactions and `ROUND_KEYS_MAX` intents in a round; a round that takes longer than `ROUND_S`, because a
range does not answer, does not hold up the next, up to `txn.resolve_concurrency` of them; and when `txn.resolve_queue_max`
transactions wait, the next one to commit does its own work before it goes on. When a round fails, its transactions are finished
one by one, as far as their ranges can be reached; for the others the locks stay in the record for a collector.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import SlackwaterError, UsageError
from slackwater.hooks import buggify, level, probe
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.protocol.range.requests import Committed, EndTxn, ForgetLocks, Header, ResolveIntents
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.deadline import Deadline
from slackwater.settings import describe
from slackwater.txn.context import BACKGROUND_TIMEOUT_S
from slackwater.txn.resolving import resolve_span

if TYPE_CHECKING:
    from collections.abc import Coroutine, Sequence

    from slackwater.protocol.range.requests import Request
    from slackwater.txn.context import TxnContext

KEYS_PER_REQUEST_MAX = 256
"""Intents resolved by one request: the command must fit a log entry."""
ROUND_MAX = 64
ROUND_KEYS_MAX = 1024
"""Transactions, and intents of theirs, that one round is about; a single transaction may have more."""
assert KEYS_PER_REQUEST_MAX <= ROUND_KEYS_MAX, "a round holds at least one request"
assert describe("txn.resolve_queue_max").default >= ROUND_MAX, "what waits fills a round"
ROUND_S = 0.1
assert ROUND_S < BACKGROUND_TIMEOUT_S, "a round that is late lets another begin before it gives up"
"""A round that takes longer does not hold up the next one."""
BUGGIFY_DELAY_S = 20.0


class Finished(msgspec.Struct, frozen=True):
    """A transaction that has been decided, and where its intents may be."""

    txn_id: bytes
    anchor: bytes
    epoch: int
    status: TxnStatus
    ts: Timestamp
    keys: tuple[bytes, ...]
    spans: tuple[tuple[bytes, bytes], ...]


class Finisher:
    """Resolves the intents of finished transactions."""

    def __init__(self, context: TxnContext) -> None:
        self._context = context
        self._waiting: deque[Finished] = deque()
        self._clean: list[Finished] = []  # resolved, but their records do not say so yet
        self._rounds = 0
        self._round_ns = 0  # when the last one began
        self._queued = 0  # waiting, in a round, or being rolled back

    async def enqueue(self, finished: Finished, *, deadline: Deadline | None = None) -> None:
        """Resolve soon; when too much waits already, resolve now, as far as the caller's deadline allows."""
        if not finished.keys and not finished.spans:
            return
        assert finished.status is not TxnStatus.PENDING, "only a decided transaction is resolved"
        if self._queued >= self._queue_max:
            probe("txn.resolve_inline")
            await self._finish_alone(finished, deadline or self._deadline())
            return
        self._waiting.append(finished)
        self._add(1)
        assert len(self._waiting) <= self._queued, "what waits is counted"
        if self._may_start():
            self._start()

    def abandon(self, txn: Txn, finished: Finished) -> None:
        """Roll back in the background: the caller has gone, and the transaction can never commit.

        With a full queue nothing is done: the record runs out of heartbeats, and the next request that meets an intent aborts it.
        """
        assert finished.status is TxnStatus.ABORTED, "what is rolled back was not committed (I-20)"
        if self._queued >= self._queue_max:
            probe("txn.abandoned_to_expire")
        elif self._spawn(self._roll_back_later(txn, finished), name="roll back"):
            self._add(1)

    async def roll_back(self, txn: Txn, finished: Finished, *, deadline: Deadline | None = None) -> None:
        """Mark the record aborted, then resolve. Never fails: what is left is pushed when its intents are met."""
        assert finished.status is TxnStatus.ABORTED, "what is rolled back was not committed (I-20)"
        end = EndTxn(commit=False, lock_keys=finished.keys, lock_spans=finished.spans)
        seconds = BACKGROUND_TIMEOUT_S if deadline is None else min(BACKGROUND_TIMEOUT_S, deadline.remaining())
        try:
            answer = await self._context.sender.send([end], Header(NO_RANGE, txn=txn), timeout=seconds)
        except SlackwaterError:
            # No commit was ever sent, so the intents are void whether or not the record says so.
            probe("txn.rollback_unanswered")
        else:
            ended = answer.results[0]
            if isinstance(ended, Committed) and ended.status is TxnStatus.COMMITTED:
                return  # then it is not void at all
        await self.enqueue(finished, deadline=deadline)

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"finisher queued={self._queued} rounds={self._rounds}"

    # --- inside

    @property
    def _queue_max(self) -> int:
        return int(self._context.settings["txn.resolve_queue_max"])

    def _deadline(self) -> Deadline:
        return Deadline(self._context.runtime.clock, seconds=BACKGROUND_TIMEOUT_S)

    def _add(self, count: int) -> None:
        assert count > 0, "something joins the queue"
        self._queued += count
        level("txn.resolving", self._queued, self._queue_max)

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> bool:
        try:
            self._context.scope.spawn(work, name=name)
        except UsageError:  # this process is shutting down: requests that meet the intents resolve them
            work.close()
            probe("txn.resolve_at_shutdown")
            return False
        return True

    async def _roll_back_later(self, txn: Txn, finished: Finished) -> None:
        try:
            await self.roll_back(txn, finished)
        finally:
            self._queued -= 1
            assert self._queued >= 0, "a place in the queue is given back once"

    # --- rounds

    def _may_start(self) -> bool:
        if self._rounds == 0:
            return True
        late = self._context.runtime.clock.monotonic_ns() - self._round_ns > ROUND_S * 1e9
        return late and self._rounds < int(self._context.settings["txn.resolve_concurrency"])

    def _start(self) -> None:
        """Begin a round with what has gathered; without anything, do nothing."""
        batch: list[Finished] = []
        keys = 0
        while self._waiting and len(batch) < ROUND_MAX and keys < ROUND_KEYS_MAX:
            batch.append(self._waiting.popleft())
            keys += len(batch[-1].keys) + len(batch[-1].spans)
        clean, self._clean = self._clean[:ROUND_MAX], self._clean[ROUND_MAX:]
        if not batch and not clean:
            return
        assert len(batch) <= ROUND_MAX, "a round is bounded"
        assert len(clean) <= ROUND_MAX, "a round is bounded"
        self._rounds += 1
        self._round_ns = self._context.runtime.clock.monotonic_ns()
        if not self._spawn(self._round(batch, clean), name="resolve"):
            self._rounds -= 1
            self._queued -= len(batch)
            assert self._queued >= len(self._waiting), "what waits is counted"

    async def _round(self, batch: list[Finished], clean: list[Finished]) -> None:
        try:
            if buggify("txn.delay_intent_resolution"):
                await self._context.runtime.clock.sleep(BUGGIFY_DELAY_S)
            await self._finish(batch, clean)
        finally:
            self._rounds -= 1
            self._queued -= len(batch)
            assert self._rounds >= 0, "rounds and places are given back once"
            assert self._queued >= 0, "rounds and places are given back once"
        if self._rounds == 0 or self._waiting:  # a round that was cancelled begins no other
            self._start()

    async def _finish(self, batch: Sequence[Finished], clean: Sequence[Finished]) -> None:
        """Resolve the intents of `batch`, and tell the records of `clean`."""
        assert batch or clean, "a round has something to do"
        deadline = self._deadline()
        requests = [request for finished in batch for request in requests_for(finished)]
        requests += [ForgetLocks(finished.txn_id, finished.anchor) for finished in clean]
        try:
            if requests:
                await self._context.ask(requests, deadline=deadline)
            for finished in batch:
                await self._resolve_spans(finished)
        except SlackwaterError:
            probe("txn.resolve_one_by_one")
            for finished in (*clean, *batch):
                await self._finish_alone(finished, self._deadline())
        else:
            self._clean += batch

    async def _finish_alone(self, finished: Finished, deadline: Deadline) -> None:
        assert finished.status is not TxnStatus.PENDING, "only a decided transaction is resolved"
        try:
            for request in requests_for(finished):
                await self._context.ask([request], deadline=deadline)
            await self._resolve_spans(finished)
            deadline = self._deadline()
            await self._context.ask([ForgetLocks(finished.txn_id, finished.anchor)], deadline=deadline)
        except SlackwaterError:
            probe("txn.resolve_unfinished")

    async def _resolve_spans(self, finished: Finished) -> None:
        for start, end in finished.spans:
            await resolve_span(self._context, outcome_of(finished), start, end, timeout=BACKGROUND_TIMEOUT_S)


def outcome_of(finished: Finished) -> Resolution:
    """What its intents are resolved to."""
    assert finished.status is not TxnStatus.COMMITTED or finished.ts > 0, "a commit has a timestamp"
    return Resolution(finished.txn_id, finished.epoch, finished.status, finished.ts)


def requests_for(finished: Finished) -> list[Request]:
    """What resolves the intents it names by key, in pieces that fit a log entry. Spans go their own way (`resolving`)."""
    resolution, keys = outcome_of(finished), finished.keys
    blocks = [keys[i : i + KEYS_PER_REQUEST_MAX] for i in range(0, len(keys), KEYS_PER_REQUEST_MAX)]
    assert sum(map(len, blocks)) == len(keys), "every intent is named once"
    assert all(len(block) <= KEYS_PER_REQUEST_MAX for block in blocks), "requests are bounded"
    return [ResolveIntents(resolution, keys=block) for block in blocks]
