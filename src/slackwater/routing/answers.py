"""Whether another node's answer is one that a sound node gives; the sender takes no other (decision 056).

    answer ──► as many results as requests ──► each of the kind that was asked for ──► inside what was asked for ──► believed
                                                                                       and not of the far future

All that lies behind the sender (merging, transactions, gateways) may therefore rely on the shape of every answer:
what this node's own replicas answer is right by construction, and what came over the network has passed here. An answer that is
not believed counts as none: a read asks the next replica, and a write may or may not have happened.

Truth cannot be checked: a node with a certificate can give wrong rows in the right order. Pure.
"""

from __future__ import annotations

from operator import le, lt
from typing import TYPE_CHECKING, Any, Final

from slackwater.clock.timestamp import MIN
from slackwater.model.txns import TxnStatus, asks_for
from slackwater.protocol.range import requests as to
from slackwater.protocol.range.bulk import Blocks, ExportArrow, ScanArrow

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import BatchResult, Request

KINDS: Final[dict[type, type]] = {
    to.Get: to.Value,
    to.Scan: to.Rows,
    to.ReverseScan: to.Rows,
    to.Export: to.Versions,
    to.Refresh: to.Done,
    ScanArrow: Blocks,
    ExportArrow: Blocks,
    to.Put: to.Done,
    to.ConditionalPut: to.Done,
    to.InitPut: to.Done,
    to.Increment: to.Number,
    to.Delete: to.Done,
    to.DeleteRange: to.Rows,
    to.PutRows: to.Done,
    to.FillRows: to.Rows,
    to.EndTxn: to.Committed,
    to.HeartbeatTxn: to.TxnResult,
    to.PushTxn: to.Pushed,
    to.QueryTxn: to.TxnResult,
    to.ResolveIntents: to.Number,
    to.ForgetLocks: to.Done,
    to.Split: to.SplitResult,
    to.Subsume: to.SubsumeResult,
    to.Thaw: to.Done,
    to.Merge: to.Done,
    to.AbortMerge: to.Number,
    to.ChangeReplicas: to.Done,
    to.Barrier: to.Passed,
    to.ComputeChecksum: to.Done,
    to.LeaseInfo: to.LeaseResult,
    to.RequestLease: to.Done,
    to.TransferLease: to.Done,
    to.QueryResolved: to.ResolvedResult,
    to.CloseNow: to.ClosedResult,
    to.RaiseGcThreshold: to.Done,
    to.GcVersions: to.Number,
    to.GcSpan: to.Number,
    to.GcTxnRecords: to.Number,
}
"""What each request is answered with."""


def why_not_believed(requests: Sequence[Request], answer: BatchResult, *, upto: Timestamp) -> str:
    """Why no sound node answers this at a time when nothing lies above `upto`; empty: it may be believed."""
    results = answer.results
    if len(results) != len(requests):
        return f"{len(results)} results for {len(requests)} requests"
    if max(answer.ts, answer.txn_write_ts) > upto:
        return "it was read or written too far in the future"
    # A one-phase commit that comes again is answered from its record: done, whatever its writes would have answered.
    again = type(requests[-1]) is to.EndTxn
    for request, result in zip(requests, results, strict=True):
        kind = type(result)
        if kind is not KINDS.get(type(request)):
            if again and kind is to.Done and type(request) in to.VERSION_WRITES:
                continue
            return f"{kind.__name__} for {type(request).__name__}"
        check = _CHECKS.get(kind)
        if check is not None and (found := check(request, result, upto)):
            return found
    return ""


def _value(request: to.Get, result: to.Value, upto: Timestamp) -> str:
    return "a value too far in the future" if result.ts > upto else ""


def _rows(request: Any, rows: to.Rows, upto: Timestamp) -> str:
    keys = rows.keys
    if type(request) is to.FillRows:
        return "" if set(keys) <= set(request.keys) else "keys that it was not given"
    if type(request) is to.ReverseScan:
        return _in_span(request, keys[::-1], rows.resume) or _paired(keys, rows.values)
    return _in_span(request, keys, rows.resume) or (
        "" if type(request) is to.DeleteRange else _paired(keys, rows.values)
    )


def _paired(keys: list[bytes], values: list[bytes]) -> str:
    return "" if len(keys) == len(values) else f"{len(values)} values for {len(keys)} keys"


def _in_span(request: Any, keys: list[bytes], resume: bytes | None, before: Callable[[Any, Any], Any] = lt) -> str:
    """Why keys and a place to go on are not an answer about a span; `before` is the order that neighbors must have."""
    if keys and not request.start <= keys[0] <= keys[-1] < request.end:
        return "keys outside of what was asked for"
    if not all(map(before, keys, keys[1:])):
        return "keys out of order"
    if resume is not None and not request.start <= resume <= request.end:
        return "it would go on outside of what was asked for"
    return ""


def _versions(request: to.Export, found: to.Versions, upto: Timestamp) -> str:
    if len(found.timestamps) != len(found.keys):
        return f"{len(found.timestamps)} timestamps for {len(found.keys)} keys"
    if found.timestamps and not request.after < min(found.timestamps) <= max(found.timestamps) <= request.upto:
        return "versions outside of what was asked for"
    return _in_span(request, found.keys, found.resume, le) or _paired(found.keys, found.values)


def _blocks(request: Any, blocks: Blocks, upto: Timestamp) -> str:
    if min(blocks.rows, blocks.rows_read, blocks.bytes_read) < 0:
        return "a negative count"
    if not all(0 <= patch.block < len(blocks.blocks) for patch in blocks.patches):
        return "a patch of no block"
    return _in_span(request, [], blocks.resume)


def _committed(request: to.EndTxn, ended: to.Committed, upto: Timestamp) -> str:
    if ended.status is TxnStatus.PENDING or (request.commit and ended.status is not TxnStatus.COMMITTED):
        return f"{ended.status.name.lower()} for an end of a transaction"
    if ended.status is TxnStatus.COMMITTED and not MIN < ended.commit_ts <= upto:
        return "a commit at a time that cannot be"
    return ""


def _pushed(request: to.PushTxn, pushed: to.Pushed, upto: Timestamp) -> str:
    outcome = pushed.resolution
    if not asks_for(request.pushee.txn_id, outcome.txn_id):
        return "what became of another transaction"
    if outcome.status is not TxnStatus.COMMITTED:
        return ""
    if pushed.ambiguous:
        return "a missing record that says committed"  # (M11)
    return "" if MIN < outcome.ts <= upto else "a commit at a time that cannot be"


def _record(request: Any, result: to.TxnResult, upto: Timestamp) -> str:
    record = result.record
    return "a record too far in the future" if record is not None and record.write_ts > upto else ""


def _resolved(request: Any, number: to.Number, upto: Timestamp) -> str:
    if type(request) is not to.ResolveIntents:
        return ""
    if number.number < 0:
        return "a negative count"
    resume = number.resume
    inside = resume is None or any(start <= resume <= end for start, end in request.spans)
    return "" if inside else "it would go on outside of what was asked for"


def _split(request: to.Split, halves: to.SplitResult, upto: Timestamp) -> str:
    met = halves.left.start < halves.left.end == request.at == halves.right.start < halves.right.end
    return "" if met else "halves that are not of this split"


_CHECKS: Final[dict[type, Callable[[Any, Any, Timestamp], str]]] = {
    to.Value: _value,
    to.Rows: _rows,
    to.Versions: _versions,
    Blocks: _blocks,
    to.Committed: _committed,
    to.Pushed: _pushed,
    to.TxnResult: _record,
    to.Number: _resolved,
    to.SplitResult: _split,
}
