"""Evaluating reads and writes of data: the thin layer between requests and multi-version storage.

Each read is entered in the timestamp cache as it is answered. Each write notes the timestamp of its version or intent, so
that the command can say how low it writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import KV
from slackwater.errors import BelowGcThreshold, RetryableError, UsageError
from slackwater.hooks import probe
from slackwater.model.retention import complete_after, too_old
from slackwater.protocol.range import requests
from slackwater.storage import reads, writes
from slackwater.storage.intents import conflict, conflicts_in

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluation import Work
    from slackwater.storage.reads import ScannedRows
    from slackwater.storage.writes import WrittenVersion

ALLOCATED_AT_ONCE_MAX = 1_000_000
"""Ids that one request may take."""
NO_COUNT = writes.counter(0)


def get(work: Work, request: requests.Get) -> Result:
    """The value of one key."""
    found = reads.get(
        work.reader,
        request.key,
        ts=work.read_ts,
        txn=work.txn,
        sequence=work.sequence,
        uncertain_upto=uncertain_upto(work),
    )
    note_read(work, request.key, None, work.read_ts)
    assert found.ts <= work.read_ts or work.txn is not None, "a read sees nothing of its future"
    return requests.Value(found.value, found.ts)


def scan(work: Work, request: requests.Scan) -> Result:
    """Rows in order."""
    rows = _scan(work, request.start, request.end, reverse=False)
    assert not rows.keys or request.start <= rows.keys[0] <= rows.keys[-1] < request.end, (
        "rows of the span that was asked for"
    )
    # Only what was looked at counts as read: beyond the resume key nothing was promised.
    note_read(work, request.start, rows.resume or request.end, work.read_ts)
    return requests.Rows(rows.keys, rows.values, rows.resume)


def reverse_scan(work: Work, request: requests.ReverseScan) -> Result:
    """Rows from the end."""
    rows = _scan(work, request.start, request.end, reverse=True)
    assert not rows.keys or request.start <= rows.keys[-1] <= rows.keys[0] < request.end, (
        "rows of the span that was asked for"
    )
    note_read(work, rows.resume or request.start, request.end, work.read_ts)
    return requests.Rows(rows.keys, rows.values, rows.resume)


def _scan(work: Work, start: bytes, end: bytes, *, reverse: bool) -> ScannedRows:
    if work.header.max_keys and work.keys_left <= 0:
        return reads.ScannedRows([], [], [], end if reverse else start)
    rows = reads.scan(
        work.reader,
        start,
        end,
        ts=work.read_ts,
        txn=work.txn,
        sequence=work.sequence,
        uncertain_upto=uncertain_upto(work),
        reverse=reverse,
        max_rows=work.keys_left,
        max_bytes=work.header.max_bytes,
    )
    work.keys_left -= len(rows.keys)
    assert not work.header.max_keys or work.keys_left >= 0, "a scan gives no more rows than were asked for"
    assert rows.resume is None or start <= rows.resume <= end, "what is left lies in the span"
    assert len(rows.keys) == len(rows.values), "a value for every key"
    return rows


def export(work: Work, request: requests.Export) -> Result:
    """Every version of a window of time."""
    check_window(work, request.start, request.end, after=request.after)
    header = work.header
    found = reads.scan_versions(
        work.reader,
        request.start,
        request.end,
        after=request.after,
        upto=request.upto,
        max_versions=header.max_keys,
        max_bytes=header.max_bytes,
    )
    note_read(work, request.start, found.resume or request.end, request.upto)
    assert not found.timestamps or request.after < min(found.timestamps), "only what is new since was asked for"
    assert not found.timestamps or max(found.timestamps) <= request.upto, "nothing above the window is shown (I-16)"
    assert len(found.keys) == len(found.timestamps) == len(found.values), "a version has a key, a time and a value"
    assert found.resume is None or request.start <= found.resume <= request.end, "what is left lies in the span"
    return requests.Versions(found.keys, list(found.timestamps), found.values, found.resume)


def refresh(work: Work, request: requests.Refresh) -> Result:
    """Whether an earlier read still holds at a later timestamp; if so, it counts as read there.

    An intent at or below `upto` is no change yet: the refreshing transaction may push it above `upto`, or wait for its end.
    """
    start, end, after, upto = request.start, request.end, request.after, request.upto
    try:
        check_window(work, start, end, after=after)
    except BelowGcThreshold as error:
        # A deletion in the window may have been collected: that nothing is found there says nothing.
        raise RetryableError(
            "the transaction is older than what is kept of the past; restart it", **error.facts
        ) from None
    change = reads.refresh(work.reader, start, end, after=after, upto=upto, txn=work.txn)
    if change is not None and change.intent is not None:
        probe("evaluate.refresh_met_intent")
        raise conflict(conflicts_in(work.reader, start, end, upto=upto, txn=work.txn))
    if change is not None:
        raise RetryableError(
            "something was written where the transaction had read; restart it", key=change.key, existing=change.ts
        )
    note_read(work, start, end, upto)
    return requests.Done()


def put(work: Work, request: requests.Put) -> Result:
    """Set a key."""
    _check_record(work, request)
    return _wrote(
        work,
        writes.put(
            work.reader,
            work.effects,
            request.key,
            request.value,
            ts=work.write_ts,
            txn=work.writer,
            sequence=work.sequence,
        ),
    )


def conditional_put(work: Work, request: requests.ConditionalPut) -> Result:
    """Set a key if it has the expected value."""
    _check_record(work, request)
    written = writes.conditional_put(
        work.reader,
        work.effects,
        request.key,
        request.value,
        expected=request.expected,
        ts=work.write_ts,
        txn=work.writer,
        sequence=work.sequence,
    )
    return _wrote(work, written)


def init_put(work: Work, request: requests.InitPut) -> Result:
    """Set a key unless it has another value."""
    _check_record(work, request)
    written = writes.init_put(
        work.reader, work.effects, request.key, request.value, ts=work.write_ts, txn=work.writer, sequence=work.sequence
    )
    return _wrote(work, written)


def increment(work: Work, request: requests.Increment) -> Result:
    """Add to a counter."""
    if request.key < KV:
        work.view.neighbors.check_record(request.key, NO_COUNT)
        if not 0 < request.by <= ALLOCATED_AT_ONCE_MAX:
            raise UsageError(f"a counter of the system moves up by 1 to {ALLOCATED_AT_ONCE_MAX}", by=request.by)
    number, written = writes.increment(
        work.reader, work.effects, request.key, request.by, ts=work.write_ts, txn=work.writer, sequence=work.sequence
    )
    _wrote(work, written)
    assert work.evaluation.min_write_ts > 0, "a counter that moved was written"
    return requests.Number(number)


def delete(work: Work, request: requests.Delete) -> Result:
    """Remove a key."""
    return _wrote(
        work,
        writes.delete(
            work.reader, work.effects, request.key, ts=work.write_ts, txn=work.writer, sequence=work.sequence
        ),
    )


def delete_range(work: Work, request: requests.DeleteRange) -> Result:
    """Remove every key of a span; answers with the keys that had a value."""
    keys, stats, resume = writes.delete_range(
        work.reader,
        work.effects,
        request.start,
        request.end,
        ts=work.write_ts,
        txn=work.writer,
        sequence=work.sequence,
        max_keys=work.header.max_keys,
    )
    if keys:
        work.evaluation.write_at(work.write_ts)
        work.evaluation.add_stats(stats)
    # That the other keys of the span are absent was told too.
    assert resume is None or request.start <= resume <= request.end, "what is left lies in the span"
    note_read(work, request.start, resume or request.end, work.write_ts)
    return requests.Rows(keys, [], resume)


def put_rows(work: Work, request: requests.PutRows) -> Result:
    """Set many keys."""
    if request.keys and request.keys[0] < KV:  # sorted: the others lie above
        for key, value in zip(request.keys, request.values, strict=True):
            if key < KV:
                work.view.neighbors.check_record(key, value)
    written = writes.put_rows(
        work.reader,
        work.effects,
        request.keys,
        request.values,
        ts=work.write_ts,
        txn=work.writer,
        sequence=work.sequence,
        must_be_new=request.must_be_new,
    )
    return _wrote(work, written)


def fill_rows(work: Work, request: requests.FillRows) -> Result:
    """Set those of many keys that were not written after a timestamp; answers with those that were left out.

    Below what was collected, that a key has no version says nothing: a deletion may have been there.
    """
    start, end = request.keys[0], request.keys[-1] + b"\x00"
    if work.txn is not None or start < KV:
        raise UsageError("entries are filled in for tables, outside transactions")
    if request.above >= work.write_ts:
        raise UsageError("entries are filled in as of the past; give a timestamp before now", above=request.above)
    check_window(work, start, end, after=request.above)
    left, written = writes.fill_rows(
        work.reader,
        work.effects,
        request.keys,
        request.values,
        ts=work.write_ts,
        above=request.above,
        alone=request.alone,
    )
    if written is not None:
        _wrote(work, written)
    return requests.Rows(left, [])


def _check_record(work: Work, request: requests.Put | requests.ConditionalPut | requests.InitPut) -> None:
    """Refuse what the nodes that read the cluster's own records could not read."""
    if request.key < KV:
        work.view.neighbors.check_record(request.key, request.value)


def _wrote(work: Work, written: WrittenVersion) -> Result:
    assert written.ts >= work.write_ts or work.writer is not None, "a version is written where the batch writes"
    work.evaluation.write_at(work.write_ts)
    work.evaluation.add_stats(written.stats)
    if written.ts > work.write_ts:
        work.write_ts = written.ts
    return requests.Done()


def check_window(work: Work, start: bytes, end: bytes, *, after: Timestamp) -> None:
    """Refuse a window of changes that begins below what is complete here (I-17, pitfall 40)."""
    state = work.view.state
    if after < state.gc_threshold:
        floor = complete_after(state.gc_threshold, state.kept, start, end)
        if after < floor:
            raise too_old(after, threshold=floor, what="part of this window")


def uncertain_upto(work: Work) -> Timestamp:
    """Up to where a version may have been written before the read began, as far as its reader's clock can tell.

    A follower has closed that far (`declare.required_frontier`), so it can tell as well as the leaseholder.
    """
    txn = work.txn
    if txn is not None:
        return txn.uncertainty_limit
    return max(work.header.uncertainty_limit, work.view.uncertain_upto)


def note_read(work: Work, start: bytes, end: bytes | None, ts: Timestamp) -> None:
    """Enter a read in the timestamp cache, if this is the leaseholder."""
    cache = work.view.tscache
    if cache is not None and (end is None or start < end):
        cache.add(start, end, ts=ts, txn=work.txn.txn_id if work.txn is not None else None)
