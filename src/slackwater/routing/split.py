"""Dividing requests by range boundaries.

    requests          Scan[b, t)            Put g            ResolveIntents{c, p}
    ranges        r1 [a, f)          r2 [f, m)           r3 [m, z)
    shares        r1: Scan[b, f), ResolveIntents{c}
                  r2: Scan[f, m), Put g
                  r3: Scan[m, t), ResolveIntents{p}

`divide` is a conversation, not a loop over a table: it asks for the range of one key at a time and is sent the
descriptor, from a cache or from a lookup that takes a while. So it needs no I/O and no complete map, and what one
answer covers is not asked for again. Each request is cut from its lowest key upwards; `Division.places` remembers
where its pieces went, in key order, for `merge.py` to put the results together again.

A row limit needs the ranges one after the other: `take` cuts the next piece off a request in the direction of its scan.

Requests without a key (lease and descriptor commands, EndTxn, HeartbeatTxn) live at `home`: the transaction's anchor,
or a key of the range that is meant. Pure.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, Any

from msgspec import structs

from slackwater.errors import UsageError, invariant
from slackwater.protocol.range.requests import (
    CloseNow,
    ConditionalPut,
    Delete,
    DeleteRange,
    Export,
    ExportArrow,
    FillRows,
    ForgetLocks,
    Get,
    Increment,
    InitPut,
    PushTxn,
    Put,
    PutRows,
    QueryResolved,
    QueryTxn,
    Refresh,
    Request,
    ResolveIntents,
    ReverseScan,
    Scan,
    ScanArrow,
    Split,
)

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import RangeId

POINTS = frozenset({Get, Put, ConditionalPut, InitPut, Increment, Delete})
"""Requests with one `key`."""
SPANS = frozenset({Scan, ReverseScan, Export, Refresh, DeleteRange, QueryResolved, CloseNow, ScanArrow, ExportArrow})
"""Requests with `start` and `end`."""
PIECES_MAX = 100_000
"""Pieces one batch may be cut into."""


class Share:
    """What one range is asked."""

    __slots__ = ("descriptor", "first_index", "requests")

    def __init__(self, descriptor: RangeDescriptor, first_index: int) -> None:
        self.descriptor = descriptor
        self.first_index = first_index
        self.requests: list[Request] = []


class Division:
    """Shares, and where the pieces of each request went: `places[i]` are (share, position) in key order."""

    __slots__ = ("places", "shares")

    def __init__(self, shares: list[Share], places: list[list[tuple[int, int]]]) -> None:
        self.shares = shares
        self.places = places


def divide(requests: Sequence[Request], *, home: bytes) -> Generator[bytes, RangeDescriptor, Division]:
    """Divide a batch; yields keys, is sent the descriptor of the range that holds each, returns the division."""
    # By generation too: an old and a new descriptor of one range are two guesses, and the wrong one is to be refused.
    shares: dict[tuple[RangeId, int], int] = {}
    made: list[Share] = []
    places: list[list[tuple[int, int]]] = []
    descriptor: RangeDescriptor | None = None
    pieces = 0
    for index, request in enumerate(requests):
        where: list[tuple[int, int]] = []
        rest: Request | None = request
        while rest is not None:
            key = lowest(rest, home=home)
            if descriptor is None or not descriptor.contains(key):
                descriptor = yield key
                invariant(descriptor.contains(key), "A-locate", key=key, descriptor=descriptor.status())
            inside, rest = cut(rest, descriptor.end, home=home)
            number = shares.setdefault((descriptor.range_id, descriptor.generation), len(made))
            if number == len(made):
                made.append(Share(descriptor, index))
            where.append((number, len(made[number].requests)))
            made[number].requests.append(inside)
            pieces += 1
            if pieces > PIECES_MAX:
                raise UsageError("the batch touches too many ranges; divide it", limit=PIECES_MAX)
        places.append(where)
    return Division(made, places)


def lowest(request: Request, *, home: bytes) -> bytes:
    """The lowest key a request touches: where it begins."""
    kind: Any = type(request)
    if kind in POINTS:
        return request.key  # type: ignore[union-attr]  # by POINTS
    if kind in SPANS:
        return request.start  # type: ignore[union-attr]  # by SPANS
    return _other_extent(request, home=home)[0]


def extent(request: Request, *, home: bytes) -> tuple[bytes, bytes]:
    """The lowest key and the first byte string above the highest key a request touches."""
    kind: Any = type(request)
    if kind in POINTS:
        key: bytes = request.key  # type: ignore[union-attr]  # by POINTS
        return key, key + b"\x00"
    if kind in SPANS:
        return request.start, request.end  # type: ignore[union-attr]  # by SPANS
    return _other_extent(request, home=home)


def fits(requests: Sequence[Request], descriptor: RangeDescriptor, *, home: bytes) -> bool:
    """Whether one range holds everything the batch touches."""
    for request in requests:
        start, end = extent(request, home=home)
        if start < descriptor.start or end > descriptor.end:
            return False
    return True


def cut(request: Request, end: bytes, *, home: bytes) -> tuple[Request, Request | None]:
    """(what lies below `end`, the rest); the request must begin below `end`."""
    start, upper = extent(request, home=home)
    invariant(start < end, "A-cut", start=start, end=end)
    if upper <= end:
        return request, None
    if isinstance(request, PutRows | FillRows):
        i = bisect_left(request.keys, end)
        below = structs.replace(request, keys=request.keys[:i], values=request.values[:i])
        return below, structs.replace(request, keys=request.keys[i:], values=request.values[i:])
    if isinstance(request, ResolveIntents):
        return _cut_resolve(request, end)
    invariant(type(request) in SPANS, "A-cut-kind", kind=type(request).__name__)
    return structs.replace(request, end=end), structs.replace(request, start=end)


def take(request: Request, descriptor: RangeDescriptor, *, home: bytes) -> tuple[Request, Request | None]:
    """(the first piece in the direction of the scan, the rest)."""
    if not isinstance(request, ReverseScan):
        return cut(request, descriptor.end, home=home)
    if descriptor.start <= request.start:
        return request, None
    return structs.replace(request, start=descriptor.start), structs.replace(request, end=descriptor.start)


def _cut_resolve(request: ResolveIntents, end: bytes) -> tuple[Request, Request | None]:
    below = structs.replace(
        request,
        keys=tuple(k for k in request.keys if k < end),
        spans=tuple((s, min(e, end)) for s, e in request.spans if s < end),
    )
    rest = structs.replace(
        request,
        keys=tuple(k for k in request.keys if k >= end),
        spans=tuple((max(s, end), e) for s, e in request.spans if e > end),
    )
    return below, rest if rest.keys or rest.spans else None


def _other_extent(request: Request, *, home: bytes) -> tuple[bytes, bytes]:
    """The extent of requests that have neither a key nor a span of their own."""
    match request:
        case PutRows(keys=keys) | FillRows(keys=keys):
            if not keys:
                raise UsageError(f"{type(request).__name__} needs at least one row")
            return keys[0], keys[-1] + b"\x00"
        case ResolveIntents(keys=keys, spans=spans):
            if not keys and not spans:
                raise UsageError("ResolveIntents needs at least one key or span")
            starts = [*keys, *(s for s, _ in spans)]
            ends = [*(k + b"\x00" for k in keys), *(e for _, e in spans)]
            return min(starts), max(ends)
        case PushTxn(pushee=pushee):
            home = pushee.anchor
        case QueryTxn(anchor=anchor) | ForgetLocks(anchor=anchor):
            home = anchor
        case Split(at=at):
            home = at
        case _:
            if not home:
                raise UsageError(f"{type(request).__name__} names no key; say which range is meant")
    return home, home + b"\x00"
