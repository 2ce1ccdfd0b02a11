"""After the decision: intents become values or vanish, then the record may go. In the background, bounded.

    committed, aborted ──► queue ──► resolve intents, range by range ──► ForgetLocks

The decision stands in the record; nobody waits for this work, and anybody who meets an intent earlier does it for
himself. It is bounded all the same: `txn.resolve_concurrency` transactions at a time, and when
`txn.resolve_queue_max` wait, whoever commits next does its own work before it goes on. If a range cannot be reached,
the locks stay in the record for a collector.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import SlackwaterError, UsageError
from slackwater.hooks import buggify, level, planted, probe
from slackwater.model.requests import EndTxn, ForgetLocks, Header, ResolveIntents
from slackwater.model.txns import Resolution, Txn, TxnStatus
from slackwater.routing.retry import Deadline
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.sync import Semaphore
from slackwater.txn.kernel import BACKGROUND_TIMEOUT_S

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from slackwater.model.requests import Request
    from slackwater.txn.kernel import Kernel

KEYS_PER_REQUEST_MAX = 256
"""Intents resolved by one request: the command must fit a log entry."""
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

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._gate = Semaphore(int(kernel.settings["txn.resolve_concurrency"]))
        self._queued = 0

    async def enqueue(self, finished: Finished) -> None:
        """Resolve soon; when too much waits already, resolve now."""
        if not finished.keys and not finished.spans:
            return
        if self._queued >= self._queue_max and not planted("X-UNBOUNDED"):
            probe("txn.resolve_inline")
            await self._finish(finished)
            return
        self._spawn(self._later(finished), name="resolve")

    def abandon(self, txn: Txn, finished: Finished) -> None:
        """Roll back in the background: the caller has gone, and the transaction can never commit.

        With a full queue nothing is done: the record runs out of heartbeats, and whoever meets an intent then aborts it.
        """
        if self._queued >= self._queue_max:
            probe("txn.abandoned_to_expire")
            return
        self._spawn(self._roll_back_later(txn, finished), name="roll back")

    async def roll_back(self, txn: Txn, finished: Finished) -> None:
        """Mark the record aborted, then resolve. Never fails: whoever meets an intent pushes it in the end."""
        end = EndTxn(commit=False, lock_keys=finished.keys, lock_spans=finished.spans)
        try:
            await self._kernel.sender.send([end], Header(NO_RANGE, txn=txn), timeout=BACKGROUND_TIMEOUT_S)
        except SlackwaterError:
            # No commit was ever sent, so the intents are void whether or not the record says so.
            probe("txn.rollback_unanswered")
        await self.enqueue(finished)

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"finisher queued={self._queued}"

    # --- inside

    @property
    def _queue_max(self) -> int:
        return int(self._kernel.settings["txn.resolve_queue_max"])

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> None:
        try:
            self._kernel.scope.spawn(work, name=name)
        except UsageError:  # this process is shutting down: whoever meets the intents resolves them
            probe("txn.resolve_at_shutdown")
        else:
            self._queued += 1
            level("txn.resolving", self._queued, self._queue_max)

    async def _later(self, finished: Finished) -> None:
        try:
            async with self._gate:
                if buggify("txn.delay_intent_resolution"):
                    await self._kernel.runtime.clock.sleep(BUGGIFY_DELAY_S)
                await self._finish(finished)
        finally:
            self._queued -= 1

    async def _roll_back_later(self, txn: Txn, finished: Finished) -> None:
        try:
            await self.roll_back(txn, finished)
        finally:
            self._queued -= 1

    async def _finish(self, finished: Finished) -> None:
        deadline = Deadline(self._kernel.runtime.clock, seconds=BACKGROUND_TIMEOUT_S)
        try:
            for request in requests_for(finished):
                await self._kernel.ask([request], deadline=deadline)
            forget = ForgetLocks(finished.txn_id, finished.anchor)
            await self._kernel.ask([forget], deadline=deadline)
        except SlackwaterError:
            probe("txn.resolve_unfinished")


def requests_for(finished: Finished) -> list[Request]:
    """What resolves all its intents, in pieces that fit a log entry. Spans go alone: they are of unknown size."""
    resolution = Resolution(finished.txn_id, finished.epoch, finished.status, finished.ts)
    keys = finished.keys
    blocks = [keys[i : i + KEYS_PER_REQUEST_MAX] for i in range(0, len(keys), KEYS_PER_REQUEST_MAX)]
    out: list[Request] = [ResolveIntents(resolution, keys=block) for block in blocks]
    out.extend(ResolveIntents(resolution, spans=(span,)) for span in finished.spans)
    return out
