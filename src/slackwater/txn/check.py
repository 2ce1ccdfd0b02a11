"""What a caller may pass: keys inside the key space, requests that a transaction can take part in."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec import layout
from slackwater.codec.row_checks import check_block
from slackwater.errors import UsageError
from slackwater.protocol.range.requests import (
    VERSION_WRITES,
    DeleteRange,
    FillRows,
    Get,
    PutRows,
    Request,
    ReverseScan,
    Scan,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

IN_TRANSACTION = frozenset({Get, Scan, ReverseScan, *VERSION_WRITES}) - {FillRows}
"""Requests that callers may put into a batch. All others belong to the machinery."""
assert frozenset({Get, Scan, ReverseScan, DeleteRange, PutRows}) <= IN_TRANSACTION, (
    "what is checked here may be in a batch"
)


def key_ok(key: bytes) -> bytes:
    """`key`, when a caller may use it. Keys of range-local state are not addressed like data."""
    if not layout.META <= key < layout.KEY_MAX:
        raise UsageError("the key is outside the key space; build it with slackwater.codec.layout", key=key[:32])
    return key


def span_ok(start: bytes, end: bytes) -> None:
    """Check the bounds of a span."""
    key_ok(start)
    if not start < end <= layout.KEY_MAX:
        raise UsageError("a span's start must be below its end, and its end inside the key space", start=start, end=end)


def requests_ok(requests: Sequence[Request]) -> None:
    """Check a caller's batch."""
    for request in requests:
        if type(request) not in IN_TRANSACTION:
            raise UsageError(f"{type(request).__name__} cannot be part of a caller's batch")
        match request:
            case Scan(start, end) | ReverseScan(start, end) | DeleteRange(start, end):
                span_ok(start, end)
            case PutRows(keys=keys, values=values):
                rows_ok(keys, values)
            case _:
                key_ok(request.key)  # type: ignore[union-attr]  # the rest have one


def rows_ok(keys: Sequence[bytes], values: Sequence[bytes]) -> None:
    """Check a block of rows: sorted, unique, one value each."""
    check_block(keys, values)
    key_ok(keys[0])
    key_ok(keys[-1])
