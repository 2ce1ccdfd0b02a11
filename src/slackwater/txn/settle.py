"""Determines a commit's outcome after its reply was lost; aborts the transaction if it is still undecided.

A forced push to abort is the question: a record that is committed answers so and stays as it is, any other becomes aborted, and
the commit, should it still arrive, finds that. Asked by the coordinator itself, and by any gateway for a client that has lost
the coordinator. *Committed* is told when the commit timestamp has passed, like any other acknowledgement: the coordinator may
have ended in the middle of its commit-wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import AmbiguousResult, SlackwaterError, TransactionAborted
from slackwater.hooks import probe
from slackwater.model.txns import TxnStatus, asks_for
from slackwater.protocol.range.requests import Committed, Pushed, PushTxn

if TYPE_CHECKING:
    from slackwater.model.txns import Intent
    from slackwater.runtime.deadline import Deadline
    from slackwater.txn.context import TxnContext

SETTLE_ATTEMPTS_MAX = 16


async def settle(context: TxnContext, txn: Intent, *, deadline: Deadline) -> Pushed | None:
    """The last word on the transaction of an intent: committed, once that may be told, or aborted; None when there is none.

    With `ambiguous` the record has been collected, and it may have been either.
    """
    probe("txn.settle")
    push = PushTxn(txn, txn.start, txn.txn_id, txn.ts, abort=True, force=True)
    tries = context.tries(deadline, SETTLE_ATTEMPTS_MAX)
    while True:
        (pushed,) = (await context.ask([push], deadline=deadline)).results
        if not isinstance(pushed, Pushed):
            return None
        if pushed.ambiguous or pushed.resolution.status is not TxnStatus.PENDING:
            break
        if not tries.spend() or tries.passed:
            return None
        await tries.back_off()
    assert asks_for(txn.txn_id, pushed.resolution.txn_id), "the answer is about the transaction that was asked for"
    if pushed.resolution.status is TxnStatus.COMMITTED:
        await context.acknowledged(pushed.resolution.ts)
    return pushed


async def settled_commit(context: TxnContext, txn: Intent, error: AmbiguousResult, *, deadline: Deadline) -> Committed:
    """The commit whose answer was `error`, for its coordinator; raises what it is told if it did not happen, or may have."""
    try:
        pushed = await settle(context, txn, deadline=deadline)
    except SlackwaterError:
        pushed = None  # whatever went wrong with the question, it is no answer
    outcome = None if pushed is None or pushed.ambiguous else pushed.resolution
    if outcome is not None and outcome.status is TxnStatus.COMMITTED:
        probe("txn.settled_committed")
        return Committed(TxnStatus.COMMITTED, outcome.ts)
    if outcome is not None and outcome.status is TxnStatus.ABORTED:
        probe("txn.settled_aborted")
        raise TransactionAborted("the commit was lost on the way and is now ruled out; run it again") from error
    raise AmbiguousResult("the commit may or may not have happened; its record cannot be reached") from error
