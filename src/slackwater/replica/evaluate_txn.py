"""Evaluating requests about transactions: their records, and the intents that records decide on."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.codec.layout import anchored_span
from slackwater.errors import RetryableError, UsageError
from slackwater.hooks import probe
from slackwater.model.spans import Span
from slackwater.model.txns import Resolution, Txn, TxnRecord, TxnStatus, asks_for
from slackwater.protocol.log.commands import GcTrigger
from slackwater.protocol.range import requests
from slackwater.replica import records
from slackwater.replica.declare import txn_key
from slackwater.replica.evaluation import Evaluation
from slackwater.replica.latches import LATCHES_PER_REQUEST_MAX
from slackwater.runtime.seam import Family
from slackwater.settings import describe
from slackwater.storage.intents import resolve, resolve_span
from slackwater.storage.stats import ZERO

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.protocol.range.requests import Batch, Result
    from slackwater.replica.evaluation import View, Work
    from slackwater.replica.together import EndEach

RECORDS_COLLECTED_MAX = 1_000
"""Transaction records removed by one command."""
LOCKS_INLINE_MAX = 1_000
"""Intents that EndTxn resolves in its own command; the rest is left to the coordinator."""
assert LOCKS_INLINE_MAX <= LATCHES_PER_REQUEST_MAX, "locks that are resolved here can be latched"
assert describe("txn.record_retention").default > describe("txn.expiration").default, (
    "the record of a transaction that has ended outlasts its coordinator's patience"
)


def end_txn(work: Work, request: requests.EndTxn) -> Result:
    """Commit or roll back, and resolve the intents that lie in this range."""
    txn = _txn(work)
    record = (
        work.record if work.one_phase else records.record_in_place(work.reader, anchor=txn.anchor, txn_id=txn.txn_id)
    )
    work.evaluation.records = (txn.txn_id,)
    if record is not None and not request.commit and record.txn_id != txn.txn_id:
        return requests.Committed(TxnStatus.ABORTED, MIN)  # the place is another one's: it never had a record
    if record is not None:
        records.check_place(record, txn)
    if record is not None and record.status is TxnStatus.COMMITTED:
        # A repeated EndTxn whose first answer was lost: the matter is decided.
        return _committed(record)
    if not request.commit:
        return _roll_back(work, request, record, txn)
    records.check_commit(record, txn, request, commit_ts=work.write_ts, txn_floor=work.view.state.txn_floor)
    assert work.write_ts >= txn.write_ts, "a transaction commits at or above where it wrote (I-18)"
    return _committed(_finished(work, request, record, txn, TxnStatus.COMMITTED, work.write_ts))


def end_each(work: Work, request: EndEach) -> Result:
    """Commit transactions that are one write of this batch each. One that has a record already is for that one alone to meet."""
    floor, ts = work.view.state.txn_floor, work.write_ts
    for txn, end in request.ends:
        if records.record_in_place(work.reader, anchor=txn.anchor, txn_id=txn.txn_id) is not None:
            raise RetryableError("one of these transactions has a record already", txn_id=txn.txn_id)
        records.check_commit(None, txn, end, commit_ts=ts, txn_floor=floor)
        assert ts >= txn.write_ts, "a transaction commits at or above where it wrote (I-18)"
        _finished(work, end, None, txn, TxnStatus.COMMITTED, ts)
    work.evaluation.records = tuple(txn.txn_id for txn, _ in request.ends)
    return requests.Done()


def _committed(record: TxnRecord) -> requests.Committed:
    assert record.status is TxnStatus.COMMITTED, "only a commit is told as one"
    assert record.write_ts > 0, "only a commit is told as one"
    return requests.Committed(
        TxnStatus.COMMITTED, record.write_ts, record.resolved, record.lock_keys, record.lock_spans
    )


def record_before(batch: Batch, view: View) -> TxnRecord | None:
    """The record of the transaction that a one-phase batch commits, before it does."""
    txn = batch.header.txn
    if txn is None:
        return None
    record = records.record_in_place(view.reader, anchor=txn.anchor, txn_id=txn.txn_id)
    if record is not None:
        records.check_place(record, txn)
    return record


def already_committed(batch: Batch, record: TxnRecord) -> Evaluation:
    """A one-phase batch that comes again after it had committed: answered from the record, with nothing written twice."""
    probe("evaluate.one_phase_again")
    evaluation = Evaluation(batch)
    evaluation.results = [*(requests.Done() for _ in batch.requests[:-1]), _committed(record)]
    evaluation.ts = evaluation.txn_write_ts = record.write_ts
    assert len(evaluation.results) == len(batch.requests), "a result for every request"
    return evaluation


def _roll_back(work: Work, request: requests.EndTxn, record: TxnRecord | None, txn: Txn) -> Result:
    if record is None and txn.start <= work.view.state.txn_floor:
        return requests.Committed(TxnStatus.ABORTED, MIN)
    _finished(work, request, record, txn, TxnStatus.ABORTED, txn.write_ts)
    return requests.Committed(TxnStatus.ABORTED, MIN)


def _finished(
    work: Work, request: requests.EndTxn, before: TxnRecord | None, txn: Txn, status: TxnStatus, ts: Timestamp
) -> TxnRecord:
    """Write the final record and resolve the local intents in the same command."""
    assert status is not TxnStatus.PENDING, "a record that is final says how it ended"
    here, keys, spans = work.view.state.descriptor, request.lock_keys, request.lock_spans
    left_keys: tuple[bytes, ...] = ()
    left_spans: tuple[tuple[bytes, bytes], ...] = ()
    if keys or spans:
        local_keys = [k for k in keys if here.contains(k)][:LOCKS_INLINE_MAX]
        outcome = Resolution(txn.txn_id, txn.epoch, status, ts)
        done = _resolve(work, outcome, local_keys, [s for s in spans if here.covers(*s)])
        resolved_keys = set(local_keys[: done.keys])
        left_keys = tuple(k for k in keys if k not in resolved_keys)
        left_spans = tuple(s for s in spans if s not in done.spans)
    assert set(left_keys) <= set(keys), "only locks that were named are left"
    assert len(left_spans) <= len(spans), "only locks that were named are left"
    record = TxnRecord(
        txn_id=txn.txn_id,
        anchor=txn.anchor,
        start=txn.start,
        epoch=txn.epoch,
        status=status,
        write_ts=ts,
        heartbeat=work.view.now if before is None else Timestamp(max(before.heartbeat, work.view.now)),
        lock_keys=left_keys,
        lock_spans=left_spans,
        resolved=not left_keys and not left_spans,
    )
    return records.write_record(work.effects, record)


def heartbeat_txn(work: Work, request: requests.HeartbeatTxn) -> Result:
    """Keep a transaction alive; tells the coordinator if it no longer is."""
    txn = _txn(work)
    record = records.record_in_place(work.reader, anchor=txn.anchor, txn_id=txn.txn_id)
    work.evaluation.records = (txn.txn_id,)
    return requests.TxnResult(
        records.heartbeat(work.effects, record, txn, now=work.view.now, txn_floor=work.view.state.txn_floor)
    )


def push_txn(work: Work, request: requests.PushTxn) -> Result:
    """Decide what became of a transaction, or say that the pusher has to wait for it."""
    pushee = request.pushee
    collected = pushee.start <= work.view.state.txn_floor
    # What had a record that was collected may have committed, whatever has the place since (M11).
    read = records.read_record if collected else records.record_in_place
    record = read(work.reader, anchor=pushee.anchor, txn_id=pushee.txn_id)
    outcome = records.push(
        work.effects,
        record,
        request,
        now=work.view.now,
        txn_floor=work.view.state.txn_floor,
        expiration_s=work.view.txn_expiration_s,
    )
    if outcome is None:
        probe("evaluate.push_waits")
        assert record is None or record.status is TxnStatus.PENDING, "only an undecided transaction is waited for"
        work.evaluation.parked = pushee.txn_id
        return requests.Pushed(records.unsettled(request, record))
    assert asks_for(pushee.txn_id, outcome.txn_id), "the answer is about the transaction that was pushed"
    work.evaluation.records = (outcome.txn_id,)
    return requests.Pushed(outcome, ambiguous=record is None and collected)


def query_txn(work: Work, request: requests.QueryTxn) -> Result:
    """Read a record."""
    return requests.TxnResult(records.read_record(work.reader, anchor=request.anchor, txn_id=request.txn_id))


def resolve_intents(work: Work, request: requests.ResolveIntents) -> Result:
    """Apply what became of a transaction to its intents here, as many as fit a log entry."""
    done = _resolve(work, request.resolution, list(request.keys), list(request.spans))
    more = done.keys < len(request.keys) or len(done.spans) < len(request.spans)
    alone = len(request.spans) == 1 and not request.keys
    assert done.resume is None or more, "what goes on is not done"
    return requests.Number(done.found, more=more, resume=done.resume if alone else None)


def forget_locks(work: Work, request: requests.ForgetLocks) -> Result:
    """Note that every intent of a finished transaction is gone."""
    record = records.read_record(work.reader, anchor=request.anchor, txn_id=request.txn_id)
    if record is not None and record.status is not TxnStatus.PENDING and not record.resolved:
        assert asks_for(request.txn_id, record.txn_id), "the record that was asked for"
        records.write_record(work.effects, msgspec.structs.replace(record, lock_keys=(), lock_spans=(), resolved=True))
    return requests.Done()


def gc_txn_records(work: Work, request: requests.GcTxnRecords) -> Result:
    """Remove finished, resolved records that began before a timestamp, and never let them be created again."""
    if request.before > work.view.now:
        raise UsageError("records of the present and the future cannot be collected", before=request.before)
    removed = 0
    for key, record in _named_records(work, request) if request.records else _all_records(work):
        # The end counts too: a long transaction that has just ended may still be asked how.
        if max(record.start, record.heartbeat) < request.before and _collectable(work, record):
            work.effects.delete(Family.LOCAL, key)
            removed += 1
        if removed >= RECORDS_COLLECTED_MAX:
            break
    if removed:
        work.evaluation.trigger = GcTrigger(txn_floor=request.before)
    assert removed <= RECORDS_COLLECTED_MAX, "one command is bounded"
    return requests.Number(removed)


def _named_records(work: Work, request: requests.GcTxnRecords) -> Iterator[tuple[bytes, TxnRecord]]:
    here = work.view.state.descriptor
    keys = [txn_key(anchor, txn_id) for anchor, txn_id in request.records if here.contains(anchor)]
    for key, raw in zip(keys, work.reader.multi_get(Family.LOCAL, keys), strict=True):
        if raw is not None:
            yield key, records.decode_record(raw)


def _all_records(work: Work) -> Iterator[tuple[bytes, TxnRecord]]:
    here = work.view.state.descriptor
    span = anchored_span(Span(here.start, here.end))
    cursor = work.reader.cursor(Family.LOCAL, start=span.start, end=span.end)
    while True:
        keys, values = cursor.chunk(RECORDS_COLLECTED_MAX)
        if not keys:
            return
        for key, raw in zip(keys, values, strict=True):
            yield key, records.decode_record(raw)


def _collectable(work: Work, record: TxnRecord) -> bool:
    """Whether a record is no longer needed.

    A pending one whose coordinator has gone silent goes too: below the raised floor a missing record means aborted, for
    readers that meet an intent of it and for the coordinator itself, should it come back.
    """
    if record.status is not TxnStatus.PENDING:
        return record.resolved
    seen = Timestamp(max(record.heartbeat, record.start))
    return seconds_between(seen, work.view.now) > work.view.txn_expiration_s


class _Done(NamedTuple):
    """How far resolving got: intents found, keys looked at, spans done with."""

    found: int
    keys: int
    spans: list[tuple[bytes, bytes]]
    resume: bytes | None
    """Where the last span that was begun goes on, if it does."""


def _resolve(work: Work, outcome: Resolution, keys: list[bytes], spans: list[tuple[bytes, bytes]]) -> _Done:
    """Resolve intents until they fill a command. Resolving makes no new promise, so it is exempt from closing (I-10)."""
    budget = work.resolve_left
    # Keys may be named twice, and spans may cover them or each other: each intent counts once (I-34).
    once: set[bytes] | None = set() if keys or len(spans) > 1 else None
    changed, found, looked_at, size = ZERO, 0, 0, 0
    for key in keys:
        if size >= budget:
            break
        looked_at += 1
        if once is not None and key not in once:
            once.add(key)
            one = resolve(work.reader, work.effects, key, outcome)
            changed, found, size = changed.plus(one.stats), found + one.found, size + one.size
    finished = []
    resume: bytes | None = None
    for start, end in spans:
        if size >= budget:
            break
        some = resolve_span(work.reader, work.effects, start, end, outcome, max_bytes=budget - size, done_before=once)
        changed, found, size = changed.plus(some.stats), found + some.found, size + some.size
        resume = some.resume
        if resume is None:
            finished.append((start, end))
    assert looked_at <= len(keys), "no more is done than was asked for"
    assert len(finished) <= len(spans), "no more is done than was asked for"
    work.resolve_left -= size
    if changed != ZERO:
        work.evaluation.add_stats(changed)
    return _Done(found, looked_at, finished, resume)


def _txn(work: Work) -> Txn:
    if work.txn is None:
        raise UsageError("this request needs a transaction in the batch's header")
    return work.txn
