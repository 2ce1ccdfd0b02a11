"""Which spans a request has read, for the refresh: what it really saw, not what it asked for.

    Get k                      [k]
    Scan [a, z), all           [a, z)
    Scan [a, z), stopped at m  [a, m)            what lies behind the limit was not seen
    ReverseScan, stopped at m  [m, z)
    DeleteRange                its span: that the other keys are absent was told too
    InitPut                    its key: where the value was already there, nothing was written

Blind writes read nothing. Conditional ones look at the newest version and put an intent above it in the same step; the
intent keeps all others off the key, so what they saw holds at the commit, wherever that is. One that *failed* left
no intent: the coordinator reads the key again, as any other read (`Transaction._confirm`). Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import UsageError
from slackwater.model.spans import Span
from slackwater.protocol.range.requests import (
    VERSION_WRITES,
    ConditionalPut,
    Delete,
    DeleteRange,
    FillRows,
    Get,
    Increment,
    InitPut,
    Put,
    PutRows,
    Request,
    ReverseScan,
    Scan,
)
from slackwater.routing.merge import resume_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Result
    from slackwater.txn.spanbook import SpanBook

_WRITES = frozenset(VERSION_WRITES)
LOCKED_SINGLY_MAX = 64
"""Rows of one block that are noted as locked one by one; more are noted as the span around them."""
assert {Put, Delete, PutRows, DeleteRange, ConditionalPut, InitPut, Increment} <= _WRITES, (
    "what leaves an intent is a write"
)
assert {Put, Delete, PutRows, DeleteRange, ConditionalPut, InitPut, Increment, FillRows} >= _WRITES, (
    "of every write it is known where it leaves an intent; to fill rows leaves none (I-21)"
)


def remember(reads: SpanBook, request: Request, result: Result) -> None:
    """Note what `request` has seen."""
    match request:
        case Get(key) | InitPut(key=key):
            reads.add_key(key)
        case Scan(start, end):
            upto = resume_of(result) or end
            assert start <= upto <= end, "what is refreshed is what was read (I-18)"
            reads.add_span(start, upto)
        case ReverseScan(start, end):
            low = resume_of(result) or start
            assert start <= low <= end, "what is refreshed is what was read (I-18)"
            reads.add_span(low, end)
        case DeleteRange(start, end):
            reads.add_span(start, end)


def lock(locks: SpanBook, request: Request) -> None:
    """Note where `request` may leave an intent."""
    match request:
        case Put(key=key) | ConditionalPut(key=key) | InitPut(key=key) | Increment(key=key) | Delete(key=key):
            locks.add_key(key)
        case PutRows(keys=keys) if len(keys) > LOCKED_SINGLY_MAX:
            assert keys[0] < keys[-1], "the span around rows holds all of them"
            locks.add_span(keys[0], keys[-1] + b"\x00")
        case PutRows(keys=keys):
            locks.add_keys(keys)
        case DeleteRange(start, end):
            locks.add_span(start, end)


def spans_of(request: Request) -> list[Span]:
    """What must be flushed from the buffer before this request is sent."""
    match request:
        case Scan(start, end) | ReverseScan(start, end) | DeleteRange(start, end):
            return [Span(start, end)]
        case PutRows(keys=keys):
            return [Span.point(key) for key in keys]
        case Get(key) | Put(key=key) | Delete(key):
            return [Span.point(key)]
        case ConditionalPut(key=key) | InitPut(key=key) | Increment(key=key):
            return [Span.point(key)]
    return []


def is_blind(request: Request) -> bool:
    """Whether a write's effect does not depend on what is there."""
    return isinstance(request, Put | Delete) or (isinstance(request, PutRows) and not request.must_be_new)


def same_twice(request: Request) -> bool:
    """Whether executing a request again in the same epoch, its first answer known, changes nothing."""
    return is_blind(request) or type(request) not in _WRITES


def first_key(requests: Sequence[Request]) -> bytes:
    """The first key that a batch writes: where the transaction's record will live."""
    for request in requests:
        match request:
            case Put(key=key) | ConditionalPut(key=key) | InitPut(key=key) | Increment(key=key) | Delete(key=key):
                return key
            case PutRows(keys=[key, *_]) | DeleteRange(start=key):
                return key
    raise UsageError("the batch writes nothing")
