"""Reads that need no lease, and reads that take long.

    follower   closed? ──► (one step: bounds, GC threshold, evaluate or snapshot) ──► answer, or where else to go
    bulk       evaluated in one step, then done on a snapshot of that step, off the loop

The order of the checks is what makes a follower's answer right: the closed timestamp first, then the state of the engine,
then bounds and GC threshold (pitfalls 16–18). All of it is one step here: nothing can be applied between.

On an intent, a point read is sent to the leaseholder. A bulk read is told which intents are in the way; its client pushes
them and comes back (`txn.contention`).
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN
from slackwater.errors import ConflictError, Overloaded, SlackwaterError, StorageError, TooStale
from slackwater.hooks import probe, tap
from slackwater.protocol.range.bulk import BULK, Blocks
from slackwater.protocol.range.requests import BatchResult, LeaseResult
from slackwater.protocol.range.served import Served, Why
from slackwater.replica import declare
from slackwater.replica.driver.bulk_gate import COUNT_DUTY, DUTY, JOB_DUTY
from slackwater.replica.evaluate import View, evaluate
from slackwater.runtime.sync import CancelledError
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import Batch, Result
    from slackwater.replica.driver.context import ReplicaContext
    from slackwater.replica.driver.replica import Replica
    from slackwater.replica.evaluate_bulk import BulkReads
    from slackwater.runtime.seam import EngineSnapshot


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
        frozen, state = None if evaluation.bulk is None else bulk_snapshot(replica), replica.state
        if evaluation.bulk is not None and frozen is not None:
            evaluation.results = await read_bulk(context, evaluation.bulk, frozen)
    except ConflictError as error:
        raise _in_the_way(replica, batch, error) from None
    served = served_here(replica, evaluation.ts)
    assert evaluation.ts <= served[0].closed, "a follower answers at or below what is closed (I-16)"
    answer = evaluation.result(view.state, context.node_id, now=now, by_follower=True, served=served)
    tap("replica.read_served", replica, batch, view.read_at, answer, state)
    return answer


def _in_the_way(replica: Replica, batch: Batch, error: ConflictError) -> SlackwaterError:
    """A follower resolves nothing: the leaseholder knows more (pitfall 21). Bulk readers push by themselves, and stay.

    At the leaseholder there is no other replica to be sent to: the reader pushes.
    """
    if replica.state.lease.holder == replica.context.node_id:
        return error
    probe("replica.follower_met_intent")
    tap("replica.follower_refused", replica, batch)
    if isinstance(batch.requests[0], BULK):
        error.facts["by_follower"] = True
        return error
    if batch.header.nearest_only:
        return TooStale(
            "an intent is in the way on the nearest replica; read at a resolved timestamp, or allow others",
            why=Why.INTENT.value,
        )
    holder = replica.state.lease.holder
    return replica.leasing.elsewhere("an intent is in the way on this follower", holder, intent=True)


def lease_info(replica: Replica) -> BatchResult:
    """What this replica knows of its range's lease. Any replica answers: its answer is no sign of the lease (pitfall 22)."""
    state, node_id = replica.state, replica.context.node_id
    info = LeaseResult(state.lease, state.descriptor, state.lai, state.closed)
    return BatchResult([info], served_by=node_id, by_follower=state.lease.holder != node_id)


def served_here(replica: Replica, ts: Timestamp) -> tuple[Served, ...]:
    """How this replica served a read at `ts`."""
    state, context = replica.state, replica.context
    led = state.lease.holder == context.node_id
    closed, now = replica.closing.closed(), context.clock.peek()
    return (Served(state.descriptor.range_id, context.node_id, ts, closed, now, by_follower=not led),)


def bulk_snapshot(replica: Replica) -> EngineSnapshot:
    """The state that a bulk read is done on. Rows of a range that will get columns are walked once, or few times."""
    rows = Stats(*replica.state.stats).live_keys if replica.state.stats else 0
    return replica.context.engine.snapshot(once=rows >= replica.context.settings["columns.rows_min"])


async def read_bulk(context: ReplicaContext, bulk: BulkReads, frozen: EngineSnapshot) -> list[Result]:
    """Do bulk reads on a snapshot, which the thread that reads it closes, not a caller that gave up.

    To be awaited in the step in which the snapshot was taken: up to the first wait, the state is still the snapshot's.
    Point work goes first (`bulk_gate`).
    """
    started = False
    assert bulk.reads, "there is something to read"
    assert not bulk.parts, "what there is in columns is looked up once, for this snapshot"
    bulk.look_up(context.columns)
    try:
        duty = COUNT_DUTY if bulk.counting else JOB_DUTY if bulk.once else DUTY
        async with context.bulk_gate.admitted(context.runtime.clock, duty=duty) as page:
            started = True
            results = await context.runtime.offload(_run, bulk, frozen)
            assert len(results) == len(bulk.reads), "an answer for every read"
            page.size = sum(len(block) for result in results if isinstance(result, Blocks) for block in result.blocks)
            return results
    except Overloaded:
        frozen.close()
        raise
    except CancelledError:
        if not started:
            frozen.close()
        raise
    finally:
        bulk.hand_in(context.columns)
        with suppress(StorageError):  # a store that takes no writes keeps the record; the next reader finds out anew
            context.drop_columns(bulk.broken())


def _run(bulk: BulkReads, frozen: EngineSnapshot) -> list[Result]:
    with frozen:
        return bulk.run(frozen)
