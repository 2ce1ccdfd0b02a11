"""What may not even be tried: batches that no well-behaved client sends, refused before they wait for anything.

    nothing asked, or too much          UsageError
    keys that are no data               UsageError       local state is changed by commands, never by requests
    timestamps of the far future        ClockError       see below

A timestamp in a request is a clock reading, of the sender or of a node it heard from; or it lies in the future, because a
transaction wrote where the future is closed already (`closedts/policy.py`, LEAD). Readings need not be followed: the stamp
on the message was above them. Futures *must* not be: a clock that follows one runs ahead of real time, and a node that
waits for a commit's time to come, or bounds by clocks what may have been committed before a read, relies on clocks that
only ever show what some wall clock has shown (I-01).

A far future is refused. A read there would be remembered by the timestamp cache, and every write to those keys would have
to lie above it. How far is far: as much as an honest clock and the longest lead together can explain.

Exempt are timestamps that are bounds of some kind: uncertainty limits, deadlines, and how far a push should reach.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp, seconds_between
from slackwater.codec.layout import META
from slackwater.errors import ClockError, RangeMismatch, UsageError
from slackwater.protocol.range import requests
from slackwater.replica import declare
from slackwater.replica.latches import LATCHES_PER_REQUEST_MAX

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.spans import Span
    from slackwater.protocol.range.requests import Batch

_ALONE = frozenset({*declare.WHOLE_RANGE, *declare.COLLECTING})
_UPTO = frozenset({requests.Export, requests.ExportArrow, requests.Refresh})
assert not _UPTO & _ALONE, "what changes a range reads no window of its past"
assert requests.BATCH_REQUESTS_MAX <= LATCHES_PER_REQUEST_MAX, "a full batch of single keys can be latched"


def check_size(batch: Batch) -> None:
    """Refuse a batch of nothing, one of too much, and one that mixes changes of the range with anything else."""
    count = len(batch.requests)
    if not 0 < count <= requests.BATCH_REQUESTS_MAX:
        raise UsageError(
            "a batch holds at least one request and at most the limit; divide it",
            count=count,
            limit=requests.BATCH_REQUESTS_MAX,
        )
    if count > 1 and not _ALONE.isdisjoint(map(type, batch.requests)):
        raise UsageError("a request that changes the range itself comes alone in its batch", count=count)


def check_span(span: Span) -> None:
    """Refuse keys below all data."""
    check_key(span.start)


def check_key(key: bytes) -> None:
    """Refuse a key below all data."""
    if key < META:
        raise UsageError("this key is local state of a node and cannot be addressed", key=key[:32])


def check_bounds(batch: Batch, descriptor: RangeDescriptor) -> None:
    """Refuse a batch that does not lie inside the range."""
    key = declare.lone_key(batch)
    if key is not None:
        check_key(key)
        if not descriptor.start <= key < descriptor.end:
            raise RangeMismatch("the batch reaches outside this range; look it up again", descriptors=[descriptor])
        return
    span = declare.bounds(batch)
    if span is None:
        # Requests to the range itself name no key: the descriptor they were sent by must be the one they mean.
        if batch.header.generation not in (0, descriptor.generation):
            raise RangeMismatch("the range has changed; look it up again", descriptors=[descriptor])
        return
    check_span(span)
    if not descriptor.covers(span.start, span.end):
        raise RangeMismatch("the batch reaches outside this range; look it up again", descriptors=[descriptor])


def check_future(latest: Timestamp, *, now: Timestamp, ahead_s: float) -> None:
    """Refuse a timestamp more than `ahead_s` ahead of `now`."""
    assert ahead_s >= 0, "a bound on the future is not negative"
    if (ahead := seconds_between(now, latest)) > ahead_s:
        raise ClockError(
            "a timestamp lies too far in the future; check the time synchronization of its sender",
            ahead_s=round(ahead, 3),
            limit_s=ahead_s,
        )


def latest_timestamp(batch: Batch) -> Timestamp:
    """The highest timestamp that a batch reads or writes at."""
    header = batch.header
    latest = header.ts
    if header.txn is not None:
        latest = Timestamp(max(latest, header.txn.read_ts, header.txn.write_ts))
    for request in batch.requests:
        if type(request) in _UPTO:
            latest = Timestamp(max(latest, request.upto))  # type: ignore[union-attr]  # by _UPTO
    return latest
