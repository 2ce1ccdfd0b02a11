"""What a batch will touch, before it is evaluated: spans for latches, bounds for routing checks, and its kind.

    keys in the data      point and span latches at the batch's timestamp
    transaction records   non-MVCC latches on the record's key
    the range itself      a non-MVCC latch on the descriptor: split, merge, lease transfer and the like exclude writers

Every write also takes a *read* latch on the descriptor, so that a request that changes the range waits for it, and
it for that request.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import KV, LOCAL, anchored, prefix_span, range_local
from slackwater.errors import UsageError
from slackwater.model.spans import Span
from slackwater.model.txns import TXN_NAME_BYTES
from slackwater.protocol.range.requests import (
    READS,
    VERSION_WRITES,
    AbortMerge,
    Barrier,
    ChangeReplicas,
    CloseNow,
    ComputeChecksum,
    ConditionalPut,
    Delete,
    DeleteRange,
    EndTxn,
    Export,
    ExportArrow,
    FillRows,
    ForgetLocks,
    GcSpan,
    GcTxnRecords,
    GcVersions,
    Get,
    HeartbeatTxn,
    Increment,
    InitPut,
    LeaseInfo,
    Merge,
    PushTxn,
    Put,
    PutRows,
    QueryResolved,
    QueryTxn,
    RaiseGcThreshold,
    Refresh,
    RequestLease,
    ResolveIntents,
    ReverseScan,
    Scan,
    ScanArrow,
    Split,
    Subsume,
    Thaw,
    TransferLease,
)
from slackwater.replica.latches import LATCHES_PER_REQUEST_MAX, LatchSpan, read_latch, write_latch
from slackwater.replica.together import EndEach

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.ids import RangeId
    from slackwater.protocol.range.requests import Batch, Request

TXN_KEYS_MAX = 256
"""Keys of transaction records kept ready: a commit needs its own three times."""
RANGE_KEYS_MAX = 4096
"""Keys of ranges kept ready: every write takes a latch on one."""
LATCH_POINTS_MAX = 512
"""A bulk write of more keys than this latches the span around them instead."""

WHOLE_RANGE = (
    Split, Subsume, Thaw, Merge, AbortMerge, ChangeReplicas, TransferLease, ComputeChecksum,
)  # fmt: skip
"""Requests that change the range itself: they exclude every other write."""
COLLECTING = (RaiseGcThreshold, GcVersions, GcSpan)
"""Requests that collect: one at a time in a range, and none while it is divided, merged or moved."""
ALL_RECORDS = prefix_span(LOCAL + b"k")
assert LATCH_POINTS_MAX <= LATCHES_PER_REQUEST_MAX, "points that are latched one by one fit one request"
UNLATCHED = (LeaseInfo, RequestLease)
POINTS = (Get, Put, ConditionalPut, InitPut, Increment, Delete)
"""Requests with one `key`: nearly all there are."""

# Requests are of exactly these classes, so a batch is classified by one set operation over its types.
_POINTS, _READS, _VERSION_WRITES = frozenset(POINTS), frozenset(READS), frozenset(VERSION_WRITES)
_WHOLE_RANGE, _UNLATCHED = frozenset(WHOLE_RANGE), frozenset(UNLATCHED)
assert _WHOLE_RANGE.isdisjoint(_READS), "what changes the range is no read"
_RECORDS = frozenset({EndTxn, EndEach, HeartbeatTxn, PushTxn, QueryTxn, ForgetLocks})
assert _POINTS <= _READS | _VERSION_WRITES, "a request for one key reads or writes versions"
assert _RECORDS.isdisjoint(_VERSION_WRITES), "a record is not a version"
assert _UNLATCHED.isdisjoint(_WHOLE_RANGE), "what changes the range is latched"
assert _UNLATCHED.isdisjoint(_VERSION_WRITES), "what writes versions is latched"
assert frozenset(COLLECTING).isdisjoint(_WHOLE_RANGE), "collecting takes its own latch, and not the range's"
assert frozenset(COLLECTING).isdisjoint(_VERSION_WRITES | _READS), "collecting neither reads nor writes the present"


@lru_cache(maxsize=TXN_KEYS_MAX)
def txn_key(anchor: bytes, txn_id: bytes) -> bytes:
    """Where the record of a transaction lives in the LOCAL family: with its anchor key, so that it moves with it."""
    return anchored(anchor, txn_id[:TXN_NAME_BYTES])


assert ALL_RECORDS.start < txn_key(KV, bytes(16)) < ALL_RECORDS.end, (
    "a latch on all records is one on the record of every transaction"
)


@lru_cache(maxsize=RANGE_KEYS_MAX)
def range_key(range_id: RangeId) -> bytes:
    """What latches on the range itself are taken on."""
    return range_local(range_id, b"descriptor")


def gc_key(range_id: RangeId) -> bytes:
    """What latches on a range's garbage collection are taken on."""
    return range_local(range_id, b"gc")


def is_read_only(batch: Batch) -> bool:
    """Whether no request of the batch can write."""
    return _READS.issuperset(map(type, batch.requests))


def writes_versions(batch: Batch) -> bool:
    """Whether the batch makes new versions or intents, and so must stay above what was read and closed."""
    return not _VERSION_WRITES.isdisjoint(map(type, batch.requests))


def span_of(request: Request) -> tuple[bytes, bytes | None] | None:
    """The key or span of the data that a request addresses; None for requests to the range as a whole."""
    if type(request) in _POINTS:
        return request.key, None  # type: ignore[union-attr]  # by POINTS
    match request:
        case Scan(start, end) | ReverseScan(start, end) | DeleteRange(start, end):
            return start, end
        case Export(start, end) | Refresh(start, end) | QueryResolved(start, end) | CloseNow(start, end):
            return start, end
        case ScanArrow(start, end) | ExportArrow(start, end) | GcSpan(start, end):
            return start, end
        case PutRows(keys=keys) | FillRows(keys=keys):
            if not keys:
                raise UsageError(f"{type(request).__name__} needs at least one row")
            return keys[0], keys[-1] + b"\x00"
        case Split(at):
            return at, None
        case QueryTxn(anchor=anchor) | ForgetLocks(anchor=anchor):
            return anchor, None
        case PushTxn(pushee):
            return pushee.anchor, None
    return None


def lone_key(batch: Batch) -> bytes | None:
    """The key of a batch that is one request with one key, as most are, or one such request and the commit at its key."""
    requests = batch.requests
    request = requests[0]
    if type(request) not in _POINTS:
        return None
    key: bytes = request.key  # type: ignore[union-attr]  # by POINTS
    if len(requests) == 1:
        return key
    txn = batch.header.txn
    alone = len(requests) == 2 and type(requests[1]) is EndTxn and txn is not None and txn.anchor == key
    return key if alone else None


def bounds(batch: Batch) -> Span | None:
    """The smallest span around everything the batch addresses in the data."""
    start: bytes | None = None
    end = b""
    for request in batch.requests:
        if type(request) in _POINTS:
            key: bytes = request.key  # type: ignore[union-attr]  # by POINTS
            start = key if start is None or key < start else start
            end = max(end, key + b"\x00")
            continue
        for low, high in _addressed(batch, request):
            if start is None or low < start:
                start = low
            end = max(end, high if high is not None else low + b"\x00")
    return None if start is None else Span(start, end)


def _addressed(batch: Batch, request: Request) -> Iterator[tuple[bytes, bytes | None]]:
    if isinstance(request, ResolveIntents):
        yield from ((key, None) for key in request.keys)
        yield from request.spans
    elif isinstance(request, GcVersions):
        # Chosen before a split, keys may belong to another range by now (pitfall 36).
        yield from ((key, None) for key, _ in (*request.keys, *request.vanishing))
    elif isinstance(request, EndTxn | HeartbeatTxn):
        if batch.header.txn is not None:
            yield batch.header.txn.anchor, None
    elif (span := span_of(request)) is not None:
        yield span


def latches(batch: Batch, *, read_at: Timestamp, write_at: Timestamp) -> list[LatchSpan]:
    """Everything the batch will touch. A read at `read_at` does not disturb writes above it."""
    out: list[LatchSpan] = []
    exclusive = False
    writing = False
    for request in batch.requests:
        kind = type(request)
        if kind in _POINTS:
            point: bytes = request.key  # type: ignore[union-attr]  # by POINTS
            if kind is Get:
                out.append(read_latch(point, at=read_at))
            else:
                writing = True
                out.append(write_latch(point, at=write_at))
            continue
        if kind in _RECORDS:
            writing |= kind is not QueryTxn
            out += _record_latches(batch, request)
            continue
        if kind in _UNLATCHED:
            continue
        if kind in _WHOLE_RANGE:
            exclusive = True
            continue
        writing |= kind not in _READS
        out.extend(_latches_of(batch, request, read_at=read_at, write_at=write_at))
    if exclusive:
        out.append(write_latch(range_key(batch.header.range_id)))
    elif writing:
        out.append(read_latch(range_key(batch.header.range_id)))
    return out


def _latches_of(batch: Batch, request: Request, *, read_at: Timestamp, write_at: Timestamp) -> Iterator[LatchSpan]:
    match request:
        case Scan() | ReverseScan() | ScanArrow():
            start, end = _span(request)
            yield read_latch(start, end, at=read_at)
        case Refresh(start, end, _, upto) | Export(start, end, _, upto) | ExportArrow(start, end, _, upto):
            yield read_latch(start, end, at=upto)
        case PutRows(keys=keys) | FillRows(keys=keys) if len(keys) <= LATCH_POINTS_MAX:
            for key in keys:
                yield write_latch(key, at=write_at)
        case ResolveIntents(_, keys, spans):
            # Resolution excludes writers, and reads that move up with their batch's writes. Other reads need not wait: until
            # it applies they meet the intent, after that what became of it, which is the same to those that may see it.
            yield from (write_latch(key, at=MAX) for key in keys)
            yield from (write_latch(start, end, at=MAX) for start, end in spans)
        case RaiseGcThreshold() | GcVersions() | GcSpan():
            yield from _collecting_latches(batch, request)
        case GcTxnRecords(records=named):
            # No transaction may be finished while it is decided that its record can go.
            yield from (write_latch(txn_key(anchor, txn_id)) for anchor, txn_id in named)
            if not named:
                yield write_latch(ALL_RECORDS.start, ALL_RECORDS.end)
        case Barrier() | CloseNow():
            yield read_latch(range_key(batch.header.range_id))
        case _:
            start, end = _span(request)
            yield write_latch(start, end, at=write_at)


def _collecting_latches(batch: Batch, request: Request) -> Iterator[LatchSpan]:
    """Latches of a request that collects: on all collecting, and on keys whose newest version goes.

    A read is told the same before and after. A writer counts what it supersedes, the newest version, so it waits for those
    requests that take a key's newest version away.
    """
    yield write_latch(gc_key(batch.header.range_id))
    if isinstance(request, GcVersions):
        yield from (write_latch(key, at=MAX) for key, _ in request.vanishing)
    elif isinstance(request, GcSpan):
        yield write_latch(request.start, request.end, at=MAX)


def _record_latches(batch: Batch, request: Request) -> list[LatchSpan]:
    """Latches on a transaction's record and, for EndTxn, on the intents it resolves."""
    match request:
        case PushTxn(pushee):
            return [write_latch(txn_key(pushee.anchor, pushee.txn_id))]
        case QueryTxn(txn_id, anchor):
            return [read_latch(txn_key(anchor, txn_id))]
        case ForgetLocks(txn_id, anchor):
            return [write_latch(txn_key(anchor, txn_id))]
        case EndEach(ends):
            return [write_latch(txn_key(txn.anchor, txn.txn_id)) for txn, _ in ends]
    txn = batch.header.txn
    if txn is None:
        raise UsageError(f"{type(request).__name__} needs a transaction in the header")
    out = [write_latch(txn_key(txn.anchor, txn.txn_id))]
    if isinstance(request, EndTxn) and (request.lock_keys or request.lock_spans):
        out += [write_latch(key) for key in request.lock_keys]
        out += [write_latch(start, end) for start, end in request.lock_spans]
    return out


def _span(request: Request) -> tuple[bytes, bytes | None]:
    span = span_of(request)
    if span is None:
        raise UsageError(f"{type(request).__name__} addresses no keys")
    return span


def read_ts_of(batch: Batch, now: Timestamp) -> Timestamp:
    """The timestamp the batch reads at; `now` when it leaves that to the leaseholder."""
    header = batch.header
    if header.txn is not None:
        return header.txn.read_ts
    return header.ts or now


def required_frontier(batch: Batch) -> Timestamp:
    """What must be closed for a follower to answer: read, write and uncertainty (pitfall 19)."""
    header = batch.header
    if header.txn is not None:
        return Timestamp(max(header.txn.read_ts, header.txn.write_ts, header.txn.uncertainty_limit))
    exports = [r.upto for r in batch.requests if isinstance(r, Export | ExportArrow)]
    return (
        Timestamp(max(header.ts or MAX, header.uncertainty_limit, *exports))
        if exports
        else Timestamp(max(header.ts or MAX, header.uncertainty_limit))
    )


def push_wait_s(batch: Batch) -> float:
    """How long the batch's pushes may wait for a transaction to finish."""
    return max((r.wait_ms / 1000 for r in batch.requests if isinstance(r, PushTxn)), default=0.0)
