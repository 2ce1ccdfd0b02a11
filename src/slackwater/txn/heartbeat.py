"""The sign of life of a transaction that holds locks.

From its first intent on, a transaction tells its record every `txn.heartbeat_interval` that its coordinator lives;
without one for `txn.expiration` any other transaction may abort it. The answer carries news the other way: aborted by an
older one (the next operation fails early instead of at the commit), or moved up by a reader.

A heartbeat without an answer means nothing. Only the record's word counts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import seconds_between
from slackwater.errors import SlackwaterError, TransactionAborted
from slackwater.hooks import buggify, probe
from slackwater.model.txns import TxnStatus
from slackwater.protocol.range.requests import Header, HeartbeatTxn, TxnResult
from slackwater.routing.sender import NO_RANGE
from slackwater.settings import describe

if TYPE_CHECKING:
    from slackwater.runtime.seam import TaskHandle
    from slackwater.txn.context import TxnContext
    from slackwater.txn.state import TxnState

assert 2 * describe("txn.heartbeat_interval").default < describe("txn.expiration").default, (
    "a transaction outlives the loss of one heartbeat"
)


class HeartbeatLoop:
    """Heartbeats of one identity of a transaction."""

    def __init__(self, context: TxnContext, state: TxnState) -> None:
        self._context = context
        self._state = state
        self._task: TaskHandle[None] | None = None
        self._stopped = False
        self.verdict: TransactionAborted | None = None
        """Set once the record says that the transaction is aborted."""

    async def start(self, *, within_s: float) -> None:
        """Begin to beat, if it does not already: call this before the first intent is written.

        The first heartbeat, where there is one to wait for, takes at most `within_s` of its caller's time.

        Pushers take a transaction without a record for as fresh as its start. One that has waited or restarted for
        longer than half the expiration says first that it lives; otherwise its first intent would be fair game.
        """
        if self._task is not None or self._stopped:
            return
        assert self._state.anchor, "a transaction has a place for its record before it beats"
        self._task = self._context.scope.spawn(self._beat(), name="heartbeat")
        age_s = seconds_between(self._state.start, self._context.clock.now())
        expiration = self._context.settings["txn.expiration"]
        if age_s > expiration / 2:
            probe("txn.heartbeat_first")
            await self._try_once(timeout=min(within_s, expiration))

    def stop(self) -> None:
        """Beat no more, now or later."""
        self._stopped = True
        if self._task is not None:
            self._task.cancel()

    async def _beat(self) -> None:
        interval = self._context.settings["txn.heartbeat_interval"]
        while self.verdict is None:
            await self._context.runtime.clock.sleep(interval)
            if buggify("txn.lose_heartbeat"):
                continue
            await self._try_once(timeout=self._context.settings["txn.expiration"])

    async def _try_once(self, *, timeout: float) -> None:
        try:
            await self._once(timeout=timeout)
        except SlackwaterError:
            probe("txn.heartbeat_unanswered")

    async def _once(self, *, timeout: float) -> None:
        state = self._state
        txn_id = state.txn_id
        try:
            assert state.anchor, "a transaction has a record only once it has written"
            header = Header(NO_RANGE, txn=state.message())
            answer = await self._context.sender.send([HeartbeatTxn()], header, timeout=timeout)
        except TransactionAborted as error:
            self._died(error)
            return
        result = answer.results[0]
        record = result.record if isinstance(result, TxnResult) else None
        if record is None or self._stopped or txn_id != state.txn_id:
            return
        if record.status is TxnStatus.ABORTED:
            self._died(TransactionAborted("another transaction needed what this one had locked; run it again"))
        elif record.status is TxnStatus.PENDING:
            state.moved(record.write_ts)

    def _died(self, error: TransactionAborted) -> None:
        if not self._stopped:
            probe("txn.found_aborted")
            self.verdict = error
