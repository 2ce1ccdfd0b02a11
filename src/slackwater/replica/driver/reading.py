"""Reads that need no lease, and reads that take long.

    follower   closed? ──► (one step: bounds, GC threshold, evaluate or snapshot) ──► answer, or where else to go
    bulk       evaluated in one step, then done on a snapshot of that step, off the loop

The order of the checks is what makes a follower's answer right: the closed timestamp first, then the state of the engine,
then bounds and GC threshold (pitfalls 16–18). All of it is one step here: nothing can be applied between.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN
from slackwater.errors import ConflictError, Overloaded
from slackwater.hooks import probe, tap
from slackwater.replica import declare
from slackwater.replica.evaluate import View, evaluate

if TYPE_CHECKING:
    from slackwater.model.requests import Batch, BatchResult, Result
    from slackwater.replica.driver.context import Context
    from slackwater.replica.driver.replica import Replica
    from slackwater.replica.evaluate_bulk import BulkReads
    from slackwater.runtime.seam import Snapshot


async def follower_read(replica: Replica, batch: Batch) -> BatchResult:
    """Serve at a closed timestamp. The caller has just seen that it is closed and inside the range."""
    context = replica.context
    now = context.clock.now()
    view = View(
        reader=context.engine,
        state=replica.state,
        now=now,
        read_at=declare.read_ts_of(batch, now),
        floor=MIN,
        lease_end=MAX,
        tscache=None,
        txn_expiration_s=context.settings["txn.expiration"],
    )
    try:
        evaluation = evaluate(batch, view)
        if evaluation.bulk is not None:
            evaluation.results = await read_bulk(context, evaluation.bulk, context.engine.snapshot())
    except ConflictError:
        # A follower resolves nothing: the leaseholder knows more (pitfall 21).
        probe("replica.follower_met_intent")
        tap("replica.follower_refused", replica, batch)
        raise replica.leasing.elsewhere(
            "an intent is in the way on this follower", replica.state.lease.holder
        ) from None
    answer = evaluation.result(view.state, context.node_id, now=now, by_follower=True)
    tap("replica.read_served", replica, batch, view.read_at, answer)
    return answer


async def read_bulk(context: Context, bulk: BulkReads, frozen: Snapshot) -> list[Result]:
    """Do bulk reads on a snapshot, which is closed by whoever used it last: the thread, not a caller that gave up."""
    try:
        return await context.runtime.offload(_run, bulk, frozen)
    except Overloaded:
        frozen.close()
        raise


def _run(bulk: BulkReads, frozen: Snapshot) -> list[Result]:
    with frozen:
        return bulk.run(frozen)
