"""Evaluating a batch: a pure function from (batch, view) to an `Evaluation`.

    read timestamp    the transaction's, the caller's, or the leaseholder's clock
    write timestamp   the highest of: where the caller wants it, above what was read here (timestamp cache), above what is
                      closed or may have been served elsewhere (floors), above the newest version of each key

A write that meets a newer version is evaluated again above it; a transaction learns from `txn_write_ts` that it moved and
must refresh its reads before it commits (I-18). Reads are entered in the timestamp cache before anything else can happen,
so no later write can change what they were told.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import (
    ConditionFailed,
    ConflictError,
    InvariantViolation,
    NotLeaseholder,
    RetryableError,
    UnavailableError,
    UsageError,
    WriteTooOld,
)
from slackwater.hooks import probe
from slackwater.model.retention import complete_after, readable, too_old
from slackwater.model.spans import Span, SpanSet
from slackwater.model.txns import TxnStatus
from slackwater.protocol.range import requests
from slackwater.replica import declare, evaluate_bulk, evaluate_data, evaluate_gc, evaluate_range, evaluate_txn
from slackwater.replica.evaluation import Evaluation, View, Work
from slackwater.replica.fates import highest_looked_at, through
from slackwater.replica.together import EndEach, are_combined
from slackwater.storage.overlay import Overlay

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slackwater.model.txns import TxnRecord
    from slackwater.protocol.range.requests import Batch
    from slackwater.runtime.seam import Reader

__all__ = ["Evaluation", "View", "evaluate"]

MOVES_MAX = 8
"""How often one batch may move its writes above newer versions before the caller is asked to retry."""
FLOOR_POINTS_MAX = 64
"""A block of more rows than this stays above all reads of the span around it."""
assert FLOOR_POINTS_MAX <= declare.LATCH_POINTS_MAX, "what is looked up one by one is latched one by one"

HANDLERS: dict[type, Callable[[Work, Any], Any]] = {
    requests.Get: evaluate_data.get,
    requests.Scan: evaluate_data.scan,
    requests.ReverseScan: evaluate_data.reverse_scan,
    requests.Export: evaluate_data.export,
    requests.Refresh: evaluate_data.refresh,
    requests.ScanArrow: evaluate_bulk.scan_arrow,
    requests.ExportArrow: evaluate_bulk.export_arrow,
    requests.Put: evaluate_data.put,
    requests.ConditionalPut: evaluate_data.conditional_put,
    requests.InitPut: evaluate_data.init_put,
    requests.Increment: evaluate_data.increment,
    requests.Delete: evaluate_data.delete,
    requests.DeleteRange: evaluate_data.delete_range,
    requests.PutRows: evaluate_data.put_rows,
    requests.FillRows: evaluate_data.fill_rows,
    requests.RaiseGcThreshold: evaluate_gc.raise_threshold,
    requests.GcVersions: evaluate_gc.gc_versions,
    requests.GcSpan: evaluate_gc.gc_span,
    requests.EndTxn: evaluate_txn.end_txn,
    EndEach: evaluate_txn.end_each,
    requests.HeartbeatTxn: evaluate_txn.heartbeat_txn,
    requests.PushTxn: evaluate_txn.push_txn,
    requests.QueryTxn: evaluate_txn.query_txn,
    requests.ResolveIntents: evaluate_txn.resolve_intents,
    requests.ForgetLocks: evaluate_txn.forget_locks,
    requests.GcTxnRecords: evaluate_txn.gc_txn_records,
    requests.Split: evaluate_range.split,
    requests.Subsume: evaluate_range.subsume,
    requests.Thaw: evaluate_range.thaw,
    requests.Merge: evaluate_range.merge,
    requests.AbortMerge: evaluate_range.abort_merge,
    requests.ChangeReplicas: evaluate_range.change_replicas,
    requests.TransferLease: evaluate_range.transfer_lease,
    requests.ComputeChecksum: evaluate_range.compute_checksum,
    requests.Barrier: evaluate_range.barrier,
    requests.CloseNow: evaluate_range.close_now,
}

VERSION_WRITES = frozenset(requests.VERSION_WRITES)
ALLOWED_FROZEN = (requests.Thaw, requests.LeaseInfo, requests.TransferLease)
assert HANDLERS.keys() >= VERSION_WRITES, "every write is evaluated"
assert frozenset(declare.WHOLE_RANGE) <= HANDLERS.keys(), "every change of a range is evaluated"
assert HANDLERS.keys() >= frozenset(requests.FOLLOWER_READS) - {requests.QueryResolved}, (
    "what followers serve is evaluated"
)
assert VERSION_WRITES.isdisjoint(ALLOWED_FROZEN), "a frozen range takes no writes (I-10)"


def evaluate(batch: Batch, view: View) -> Evaluation:
    """Decide everything about a batch against one state. Raises without any effect when it cannot be done."""
    if (
        view.state.frozen is not None
        and view.tscache is not None
        and not all(isinstance(r, ALLOWED_FROZEN) for r in batch.requests)
    ):
        raise UnavailableError("the range is frozen by a merge; try again in a moment", left=view.state.frozen.left_id)
    read_ts = view.read_at
    if read_ts <= view.state.gc_threshold:
        _check_kept(batch, view, read_ts)
    one_phase = _one_phase(batch)
    record = evaluate_txn.record_before(batch, view) if one_phase else None
    if record is not None and record.status is TxnStatus.COMMITTED:
        return evaluate_txn.already_committed(batch, record)
    write_ts = _write_floor(batch, view, read_ts)
    for _ in range(MOVES_MAX):
        _check_inside_lease(view, read_ts, write_ts)
        if batch.header.write_below != MIN:
            _check_deadline(batch, write_ts)
        try:
            return _attempt(batch, view, read_ts, write_ts, view.reader, record, one_phase=one_phase)
        except ConflictError:
            if not declare.is_read_only(batch):
                raise
            # Intents of transactions whose outcome is known here are not in the way; the others raise again.
            probe("evaluate.read_through")
            bound = highest_looked_at(batch, read_ts=read_ts, uncertain_upto=view.uncertain_upto)
            own = batch.header.txn.txn_id if batch.header.txn is not None else b""
            shown = through(view.reader, batch.header.decided, bound=bound, own=own)
            return _attempt(batch, view, read_ts, write_ts, shown, record, one_phase=one_phase)
        except ConditionFailed as error:
            _note_failed_condition(batch, view, error, Timestamp(max(read_ts, write_ts)))
            raise
        except WriteTooOld as error:
            probe("evaluate.write_too_old")
            existing = error.facts["existing"]
            if not isinstance(existing, int):
                raise
            write_ts = Timestamp(max(write_ts, existing) + 1)
    raise WriteTooOld("newer versions keep appearing above this write; retry", existing=write_ts)


def _attempt(
    batch: Batch,
    view: View,
    read_ts: Timestamp,
    write_ts: Timestamp,
    reader: Reader,
    record: TxnRecord | None,
    *,
    one_phase: bool,
) -> Evaluation:
    assert record is None or one_phase, "what commits in one phase alone has read its record before"
    assert record is None or record.status is not TxnStatus.COMMITTED, "a transaction commits once (I-20)"
    evaluation = Evaluation(batch)
    txn = batch.header.txn
    if txn is None and declare.writes_versions(batch):
        # A batch of its own reads and writes at one instant, so its reads move up with its writes.
        read_ts = write_ts
    if (
        len(batch.requests) > 1
        and not _write_and_commit(batch, one_phase=one_phase)
        and not are_combined(batch)
        and not declare.is_read_only(batch)
    ):
        reader = Overlay(reader, evaluation.effects)
    work = Work(
        batch,
        view,
        read_ts=read_ts,
        write_ts=write_ts,
        reader=reader,
        evaluation=evaluation,
        one_phase=one_phase,
        record=record,
    )
    for index, request in enumerate(batch.requests):
        work.sequence = txn.sequence + index if txn is not None else 0
        handler = HANDLERS.get(type(request))
        if handler is None:
            raise UsageError(f"{type(request).__name__} is not a request a range evaluates")
        result = handler(work, request)
        if result is not None:
            evaluation.results.append(result)
    if (
        read_ts <= view.state.gc_threshold
        and evaluation.results
        and isinstance(batch.requests[0], requests.FOLLOWER_READS)
    ):
        _assert_kept(batch, view, read_ts)
    assert evaluation.bulk is not None or len(evaluation.results) + len(evaluation.finishers) == len(batch.requests), (
        "a result for every request"
    )
    assert not evaluation.min_write_ts or evaluation.min_write_ts >= view.floor, (
        "nothing is written where it may be closed (I-10)"
    )
    evaluation.ts = write_ts if evaluation.min_write_ts else read_ts
    if txn is not None and evaluation.min_write_ts:
        evaluation.txn_write_ts = work.write_ts
    return evaluation


def _check_kept(batch: Batch, view: View, read_ts: Timestamp) -> None:
    """At or below the threshold, only what is kept is read (I-17)."""
    state = view.state
    for request in batch.requests:
        if isinstance(request, requests.FOLLOWER_READS) and (span := declare.span_of(request)) is not None:
            start, end = span
            if not readable(state.gc_threshold, state.kept, start, end or start + b"\x00", ts=read_ts):
                raise too_old(
                    read_ts, threshold=complete_after(state.gc_threshold, state.kept, start, end or start + b"\x00")
                )


def _assert_kept(batch: Batch, view: View, read_ts: Timestamp) -> None:
    """I-17, looked at in another way than by the rule that decided: what was read lies in spans that serve this instant."""
    serving = SpanSet(Span(k.start, k.end) for k in view.state.kept if k.serves(read_ts))
    for request in batch.requests:
        start, end = declare.span_of(request) or (b"", None)
        if isinstance(request, requests.FOLLOWER_READS) and not serving.covers(Span(start, end or start + b"\x00")):
            raise InvariantViolation("I-17", {"read": read_ts, "threshold": view.state.gc_threshold})


def _one_phase(batch: Batch) -> bool:
    last = batch.requests[-1] if batch.requests else None
    return isinstance(last, requests.EndTxn) and last.one_phase and last.commit


def _write_and_commit(batch: Batch, *, one_phase: bool) -> bool:
    """Whether a batch is one write and its commit: nothing in it reads what another part of it wrote."""
    last = batch.requests[-1]
    return one_phase and len(batch.requests) == 2 and not last.lock_keys and not last.lock_spans  # type: ignore[union-attr]


def _write_floor(batch: Batch, view: View, read_ts: Timestamp) -> Timestamp:
    """The lowest timestamp this batch may write at, before looking at existing versions."""
    header = batch.header
    wanted = header.txn.write_ts if header.txn is not None else read_ts
    if not declare.writes_versions(batch):
        return wanted
    state = view.state
    floor = max(wanted, view.floor, state.closed + 1, state.read_floor + 1, state.lease.start + 1)
    if view.tscache is not None:
        txn_id = header.txn.txn_id if header.txn is not None else None
        for request in batch.requests:
            if type(request) is requests.Put:  # spelled out: nearly every write
                floor = max(floor, view.tscache.first_writable(request.key, txn=txn_id))
            elif type(request) in VERSION_WRITES:
                for span in _written_spans(request):
                    floor = max(floor, view.tscache.first_writable(*span, txn=txn_id))
    assert floor > state.closed, "a write lies above what is closed and inside its lease"
    assert floor > state.lease.start, "a write lies above what is closed and inside its lease"
    return Timestamp(floor)


def _written_spans(request: requests.Request) -> Iterator[tuple[bytes, bytes | None]]:
    """What a write must stay above the reads of.

    A few rows are looked up one by one: what was read between them is not in their way, and on a busy range the span around
    them holds nearly all reads.
    """
    if isinstance(request, requests.PutRows | requests.FillRows) and len(request.keys) <= FLOOR_POINTS_MAX:
        yield from ((key, None) for key in request.keys)
    elif (span := declare.span_of(request)) is not None:
        yield span


def _check_inside_lease(view: View, read_ts: Timestamp, write_ts: Timestamp) -> None:
    """Refuse to serve at or above the end of the lease: the next holder starts there (I-07)."""
    if max(read_ts, write_ts) >= view.lease_end and view.lease_end != MAX:
        lease, range_id = view.state.lease, view.state.descriptor.range_id
        raise NotLeaseholder(
            "the timestamp is at or above the end of this lease", range_id=range_id, hint=lease.holder, reason="stasis"
        )


def _check_deadline(batch: Batch, write_ts: Timestamp) -> None:
    """What is written without a transaction stays below its deadline, as a commit does (`records.check_commit`)."""
    below = batch.header.write_below
    if write_ts >= below and declare.writes_versions(batch):
        raise RetryableError(
            "the write would lie past its deadline; look the table up again", deadline=below, ts=write_ts
        )


def _note_failed_condition(batch: Batch, view: View, error: ConditionFailed, ts: Timestamp) -> None:
    """A condition that did not hold has told its caller a value: remember that read like any other."""
    key = error.facts.get("key")
    error.facts["ts"] = ts  # the caller must not act on it before that time has come
    if view.tscache is not None and isinstance(key, bytes):
        txn = batch.header.txn
        view.tscache.add(key, ts=ts, txn=txn.txn_id if txn else None)
