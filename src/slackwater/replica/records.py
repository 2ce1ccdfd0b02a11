"""Transaction records: the one place where it is decided what became of a transaction.

    (no record) ──heartbeat, push──► PENDING ──EndTxn──► COMMITTED
         │                             │  └──EndTxn(rollback), push──► ABORTED
         └──────────EndTxn─────────────┴──► COMMITTED | ABORTED

Wound-wait decides pushes. The older transaction wins: it aborts the younger one (or moves it above its read) at once. The
younger one waits until the older has ended or has stopped heartbeating. Waits go from young to old only, so there is no
cycle and no deadlock detector.

                          pushee finished     pushee expired     pusher older     pusher younger
    push to abort         as it ended         abort it           abort it         wait
    push above a read     as it ended         abort it           move it up       wait

A record that is missing and began at or before the range's `txn_floor` has been collected after all of its intents were
resolved: such a transaction can neither be created again nor own an intent (I-20).

Of transactions to which a client gave one name, and that anchor at one key, the first to get a record keeps its place:

                          record of another transaction of that name
    EndTxn, heartbeat     refused: `TransactionAborted`
    push                  aborted; the record is kept until the floor has passed the pushee too, so that this stays true
    readers (`fates`)     as if there were no record: it says nothing about this intent
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.errors import RetryableError, StorageError, TransactionAborted
from slackwater.hooks import probe
from slackwater.model.txns import Intent, Resolution, Txn, TxnRecord, TxnStatus, asks_for
from slackwater.replica.declare import txn_key
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from slackwater.protocol.range.requests import EndTxn, PushTxn
    from slackwater.runtime.seam import Reader
    from slackwater.storage.batch import WriteBatch

_decoder = msgspec.msgpack.Decoder(TxnRecord)
_encoder = msgspec.msgpack.Encoder()


def read_record(reader: Reader, *, anchor: bytes, txn_id: bytes) -> TxnRecord | None:
    """The record of a transaction, if there is one; another one's of the same name is none."""
    record = record_in_place(reader, anchor=anchor, txn_id=txn_id)
    return record if record is not None and asks_for(txn_id, record.txn_id) else None


def record_in_place(reader: Reader, *, anchor: bytes, txn_id: bytes) -> TxnRecord | None:
    """The record that has a transaction's place: its own, or another one's of the same name."""
    raw = reader.get(Family.LOCAL, txn_key(anchor, txn_id))
    return None if raw is None else decode_record(raw)


def check_place(record: TxnRecord | None, txn: Txn) -> None:
    """Raise if the place of a transaction's record is another one's: then it can never commit."""
    if record is not None and record.txn_id != txn.txn_id:
        probe("records.name_used_before")
        raise TransactionAborted(
            "the id of this transaction was used before, or its commit was given up and ruled out; run it again under"
            " another id"
        )


def decode_record(raw: bytes) -> TxnRecord:
    """Read a stored record."""
    try:
        return _decoder.decode(raw)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError("a transaction record cannot be read") from error


def write_record(effects: WriteBatch, record: TxnRecord) -> TxnRecord:
    """Store a record."""
    assert not record.resolved or not (record.lock_keys or record.lock_spans), "a resolved record names no locks"
    effects.put(Family.LOCAL, txn_key(record.anchor, record.txn_id), _encoder.encode(record))
    return record


def heartbeat(
    effects: WriteBatch, record: TxnRecord | None, txn: Txn, *, now: Timestamp, txn_floor: Timestamp
) -> TxnRecord:
    """The record after a heartbeat: a finished one is left as it is and tells the coordinator so."""
    check_place(record, txn)
    if record is None:
        if txn.start <= txn_floor:
            probe("records.heartbeat_below_floor")
            raise TransactionAborted("the transaction's record has been collected; it cannot go on", collected=True)
        return write_record(effects, pending(txn, now=now))
    if record.status is not TxnStatus.PENDING:
        return record
    replaced = msgspec.structs.replace(
        record, heartbeat=Timestamp(max(record.heartbeat, now)), epoch=max(record.epoch, txn.epoch)
    )
    assert replaced.heartbeat >= record.heartbeat, "heartbeats and epochs only move up"
    assert replaced.epoch >= record.epoch, "heartbeats and epochs only move up"
    return write_record(effects, replaced)


def pending(txn: Txn, *, now: Timestamp) -> TxnRecord:
    """A first record for a transaction that goes on."""
    return TxnRecord(txn.txn_id, txn.anchor, txn.start, txn.epoch, TxnStatus.PENDING, txn.write_ts, now)


def check_commit(
    record: TxnRecord | None, txn: Txn, request: EndTxn, *, commit_ts: Timestamp, txn_floor: Timestamp
) -> None:
    """Raise unless the transaction may commit at `commit_ts`."""
    if record is None:
        if txn.start <= txn_floor:
            probe("records.commit_below_floor")
            raise TransactionAborted(
                "the transaction's record has been collected; it cannot commit any more", collected=True
            )
    elif record.status is TxnStatus.ABORTED or record.epoch > txn.epoch:
        raise TransactionAborted("the transaction was aborted by another one, or for lack of heartbeats")
    elif record.write_ts > commit_ts:
        raise RetryableError("the transaction was pushed; refresh its reads and commit above", push_to=record.write_ts)
    if txn.read_ts < commit_ts and not request.can_forward:
        raise RetryableError("the transaction's reads must be refreshed up to its commit timestamp", push_to=commit_ts)
    if request.deadline is not None and commit_ts >= request.deadline:
        raise RetryableError(
            "the commit timestamp is past the transaction's deadline", deadline=request.deadline, commit_ts=commit_ts
        )


def push(
    effects: WriteBatch,
    record: TxnRecord | None,
    request: PushTxn,
    *,
    now: Timestamp,
    txn_floor: Timestamp,
    expiration_s: float,
) -> Resolution | None:
    """What became of the pushee; None when the pusher has to wait."""
    pushee = request.pushee
    if record is not None and not asks_for(pushee.txn_id, record.txn_id):
        probe("records.push_displaced")
        if record.heartbeat < pushee.start:
            write_record(effects, msgspec.structs.replace(record, heartbeat=pushee.start))
        return Resolution(pushee.txn_id, pushee.epoch, TxnStatus.ABORTED)
    if record is None:
        if pushee.start <= txn_floor:
            if request.force:
                # Its own coordinator asks what became of its commit. There was a record, or not; it can no longer be told.
                probe("records.settled_too_late")
                return Resolution(pushee.txn_id, pushee.epoch, TxnStatus.PENDING, pushee.ts)
            return Resolution(pushee.txn_id, pushee.epoch, TxnStatus.ABORTED)
        record = _assumed(pushee)
    if record.status is not TxnStatus.PENDING:
        return resolution(record)
    # A push above something the transaction is already above has nothing left to do.
    if not request.abort and record.write_ts > request.above:
        return resolution(record)
    # An intent shows that its transaction lived when it wrote it, however long ago that one began.
    alive_at = Timestamp(max(record.heartbeat, pushee.start, pushee.ts))
    expired = seconds_between(alive_at, now) > expiration_s
    older = (request.pusher_start, request.pusher_id) < (record.start, record.txn_id)
    if request.force or expired or (older and request.abort):
        probe("records.push_abort")
        assert record.status is TxnStatus.PENDING, "only what is undecided is aborted"
        return resolution(write_record(effects, msgspec.structs.replace(record, status=TxnStatus.ABORTED)))
    if older:
        probe("records.push_up")
        moved = msgspec.structs.replace(record, write_ts=Timestamp(max(record.write_ts, request.above + 1)))
        assert moved.write_ts > request.above, "a pushed transaction commits above its pusher"
        return resolution(write_record(effects, moved))
    assert record.status is TxnStatus.PENDING, "a decided transaction is not waited for"
    return None


def resolution(record: TxnRecord) -> Resolution:
    """What a record means for the transaction's intents."""
    assert record.status is not TxnStatus.COMMITTED or record.write_ts > 0, "a commit has a timestamp"
    return Resolution(
        record.txn_id, record.epoch, record.status, record.write_ts if record.status is not TxnStatus.ABORTED else MIN
    )


def _assumed(pushee: Intent) -> TxnRecord:
    """A transaction without a record is pending, as its intent shows it."""
    return TxnRecord(pushee.txn_id, pushee.anchor, pushee.start, pushee.epoch, TxnStatus.PENDING, pushee.ts, MIN)


def unsettled(request: PushTxn, record: TxnRecord | None) -> Resolution:
    """The answer to a push that had to wait and ran out of time: still pending where it was."""
    known = record or _assumed(request.pushee)
    assert known.status is TxnStatus.PENDING, "only the undecided is told as such"
    return Resolution(known.txn_id, known.epoch, TxnStatus.PENDING, known.write_ts)
