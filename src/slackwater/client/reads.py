"""Scans: pages, and what to do when a gateway is lost in the middle.

    where, columns, order ──► Query (`queries`)      which index, which span, and plans that every replica uses
    pages                 ──► record batches         over the received bytes, no copy

A scan at a timestamp that breaks goes on elsewhere, after the last page that came, at the same timestamp: no row is missing
and none comes twice. A scan of the present that breaks, or cannot move up, must begin again: `RetryableError`.

A scan whose rows are collected has one deadline. A scan that is handed out batch by batch goes on for as long as its
reader likes; there the session's timeout bounds each wait for the next page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slackwater.client.arguments import duration_of
from slackwater.client.queries import Query, columns_of, query
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import unpack
from slackwater.codec.changes_arrow import change_schema
from slackwater.codec.layout import schema_span
from slackwater.errors import DeadlineExceeded, DecodeError, RetryableError, UnavailableError, UsageError
from slackwater.model.scan_plan import ScanPlan
from slackwater.model.spans import Span
from slackwater.protocol.client import calls
from slackwater.protocol.client.index_reads import SCAN_INDEX, ScanIndex
from slackwater.protocol.range.served import Why
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.rpc.method import StreamMethod
    from slackwater.runtime.rpc.stream import Stream

READ_FROM = ("leader", "any", "follower")
DEFAULT_WAIT_S = 10.0


def read_policy(at: Timestamp, *, read_from: str, wait: float | None, nearest_only: bool = False) -> calls.ReadPolicy:
    """Where to read at a timestamp. With `nearest_only`, `TooStale` instead of asking the leaseholder.

    leader     the leaseholder
    any        the nearest replica, if the timestamp is closed there; else the leaseholder
    follower   the nearest replica, which waits up to `wait` seconds for the timestamp to close; else the leaseholder
    """
    if read_from not in READ_FROM:
        raise UsageError(f"read_from is one of {', '.join(READ_FROM)}", read_from=read_from)
    wait = duration_of(wait, "wait")
    if read_from == "leader":
        if nearest_only:
            raise UsageError("nearest_only reads from the nearest replica; leave it out, or read_from='leader'")
        return calls.ReadPolicy(at)
    seconds = wait if wait is not None else DEFAULT_WAIT_S if read_from == "follower" else 0.0
    return calls.ReadPolicy(at, follower_ok=True, wait_ms=int(seconds * 1000), nearest_only=nearest_only)


async def partitions(
    gateways: Gateways,
    history: TableHistory,
    *,
    at: Timestamp,
    count: int,
    deadline: RetryBudget,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] = (),
) -> list[calls.Partition]:
    """A table in parts, each with all that it takes to read it at `at`, in this process or in another.

    With conditions, the parts of the index that is the best for them and for these columns.
    """
    request = calls.GetPartitions(history.latest.table_id, at, count)
    held = history.at(at)
    if where and held is not None and held.indexes:
        asked = query(history, at=at, columns=columns, where=where)
        if asked.span is not None and asked.path is not None and asked.path.secondary is not None:
            start, end = msgspec.structs.astuple(asked.span)
            request = msgspec.structs.replace(request, start=start, end=end)
    reply = await gateways.call(calls.PARTITIONS, request, deadline=deadline)
    known, upto = reply.table, reply.known_upto
    return [msgspec.structs.replace(part, history=known, known_upto=upto) for part in reply.partitions]


def scan(
    gateways: Gateways,
    asked: Query,
    policy: calls.ReadPolicy,
    *,
    near: Sequence[str] = (),
    deadline: RetryBudget | None = None,
) -> AsyncGenerator[tuple[calls.ScanPage, list[Any]], None]:
    """Pages with their record batches; never more rows than the limit. Without a deadline, each page has the timeout."""
    schema, span, plan = asked.history.latest.schema, asked.span, asked.plan.encode()
    end = b"" if span is None else span.end
    rows = None if asked.rows is None else asked.rows.encode()

    def request(start: bytes, ts: Timestamp, *, waited: bool) -> calls.ScanTable | ScanIndex:
        wait_ms = 0 if waited else policy.wait_ms
        at = msgspec.structs.replace(policy, at=ts, wait_ms=wait_ms)
        if rows is not None:
            return ScanIndex(schema.table_id, schema.version, plan, rows, start, end, at, asked.limit)
        return calls.ScanTable(schema.table_id, schema.version, plan, start, end, at, asked.limit, patches=True)

    method: StreamMethod[Any, calls.ScanPage] = calls.SCAN if rows is None else SCAN_INDEX
    what = _Asked(method, request, asked.schema, span, policy.at, asked.limit)
    return _pages(gateways, what, near=near, deadline=deadline)


def changes(
    gateways: Gateways,
    history: TableHistory,
    request: calls.ReadChanges,
    read: TableDescriptor,
    *,
    columns: Sequence[str] | None = None,
    near: Sequence[str] = (),
) -> AsyncGenerator[tuple[calls.ScanPage, list[Any]], None]:
    """Pages of changes with their record batches, by one version's columns, in key order, oldest first within a key."""
    names = columns_of(read.schema, columns) if columns is None or len(columns) else ()
    plan = ScanPlan(history.schemas(), read.version, names)
    schema = change_schema(read.schema, names, befores=request.diff)
    asked = msgspec.structs.replace(request, plan=plan.encode())

    def at(start: bytes, _: Timestamp, *, waited: bool) -> calls.ReadChanges:
        policy = msgspec.structs.replace(asked.policy, wait_ms=0) if waited else asked.policy
        return msgspec.structs.replace(asked, start=start, policy=policy)

    what = _Asked(calls.READ_CHANGES, at, schema, Span(request.start, request.end), request.upto)
    return _pages(gateways, what, near=near)


class _Asked(NamedTuple):
    """A stream of pages: how to ask for it from a key on, and what its pages hold."""

    method: StreamMethod[Any, calls.ScanPage]
    request: Callable[..., Any]
    """(start, timestamp, whether a follower was waited for already)"""
    schema: Any
    span: Span | None
    """None: there is nothing to read."""
    at: Timestamp
    limit: int = 0


async def _pages(
    gateways: Gateways, asked: _Asked, *, near: Sequence[str], deadline: RetryBudget | None = None
) -> AsyncGenerator[tuple[calls.ScanPage, list[Any]], None]:
    """Every page of a span with its record batches, from one gateway after the other if need be."""
    if asked.span is None:
        return
    start, at, breaks, waited, left_rows = asked.span.start, asked.at, 0, False, asked.limit
    until = deadline or gateways.deadline()
    error: UnavailableError
    while True:
        place = near[breaks] if breaks < len(near) else None
        address = gateways.current if place is None else place
        left = until.remaining()
        life = None if deadline is None else left
        try:
            address, stream = await gateways.stream(
                asked.method, asked.request(start, at, waited=waited), at=place, timeout=life, dial_timeout=left
            )
        except UnavailableError as unopened:
            await _broken(gateways, address, unopened, until)
            breaks += 1
            continue
        try:
            async with stream:
                while (page := await _next(stream, until)) is not None:
                    for read in page.reads:  # a follower was waited for in vain: once is enough, on whichever gateway
                        waited = waited or read.why == Why.WAITED.value
                    batches = unpack(page.blocks, asked.schema, page.patches)
                    if asked.limit:
                        batches = _first(batches, left_rows)
                        left_rows -= sum(batch.num_rows for batch in batches)
                    yield page, batches
                    if page.resume is None or (asked.limit and left_rows <= 0):
                        return
                    if at == MIN and page.ts == MIN:
                        raise DecodeError("a gateway did not say when it read")
                    start, breaks = page.resume, 0
                    until = deadline or gateways.deadline()
            error = UnavailableError("the stream ended before the last page")
        except UnavailableError as cut:
            error = cut
        if at == MIN and start != asked.span.start and not until.passed:
            raise RetryableError(f"a scan of the present was cut off; scan again: {error.message}") from error
        await _broken(gateways, address, error, until)
        breaks += 1


async def _next(stream: Stream[calls.ScanPage], until: RetryBudget) -> calls.ScanPage | None:
    """The next page, or None after the last; an error when it does not come in time."""
    try:
        async with timeout(until.remaining()):
            return await anext(stream, None)
    except TimeoutError:
        raise DeadlineExceeded("the next page of a scan did not come") from None


async def _broken(gateways: Gateways, address: str, error: UnavailableError, until: RetryBudget) -> None:
    """Prepare another try on another gateway; raises when there is none."""
    gateways.move_on(address)
    if not until.spend():
        raise error
    await until.back_off()
    if until.passed:
        raise until.exceeded("a scan got no page", error) from error


def _first(batches: list[Any], rows: int) -> list[Any]:
    kept = []
    for batch in batches:
        if rows <= 0:
            break
        kept.append(batch.slice(0, rows))
        rows -= batch.num_rows
    return kept


def whole(history: TableHistory) -> Span:
    """All rows of a table."""
    return schema_span(history.latest.schema)
