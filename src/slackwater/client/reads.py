"""Scans: plans, pages, and what to do when a gateway is lost in the middle.

    where, columns ──► ScanPlan ──► bytes            made once, used by every replica
    where          ──► span                          equality and ranges on the primary key read less
    pages          ──► record batches                over the received bytes, no copy

A scan at a timestamp that breaks goes on elsewhere, after the last page that came, at the same timestamp: no row is missing
and none comes twice. A scan of the present that breaks, or cannot move up, must begin again: `RetryableError`.

A scan whose rows are collected has one deadline. A scan that is handed out batch by batch goes on for as long as its
reader likes; there the session's timeout bounds each wait for the next page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slackwater.client.arguments import duration_of, names_of
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.changes_arrow import change_schema
from slackwater.codec.filters_arrow import bind
from slackwater.codec.layout import schema_span
from slackwater.codec.narrow import narrowed
from slackwater.errors import DeadlineExceeded, DecodeError, RetryableError, UnavailableError, UsageError
from slackwater.model.predicates import Predicate, predicate
from slackwater.model.scan_plan import ScanPlan
from slackwater.model.spans import Span
from slackwater.protocol.client import calls
from slackwater.protocol.range.served import Why
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.rpc.method import StreamMethod
    from slackwater.runtime.rpc.stream import Stream

READ_FROM = ("leader", "any", "follower")
DEFAULT_WAIT_S = 10.0


class Query(NamedTuple):
    """A scan that has been thought through: what to read, how, and what comes out."""

    history: TableHistory
    plan: ScanPlan
    span: Span | None
    """None: no row can satisfy the predicates."""
    schema: Any
    limit: int = 0


def query(
    history: TableHistory,
    *,
    at: Timestamp = MIN,
    columns: Sequence[str] | None = None,
    where: Sequence[Any] = (),
    limit: int | None = None,
    within: Span | None = None,
) -> Query:
    """Check and prepare a scan; everything wrong with it is said here, before anything is sent."""
    read = history.latest if at == MIN else history.readable_at(at)
    _check_limit(limit)
    predicates = predicates_of(read.schema, where)
    plan = ScanPlan(history.schemas(), read.version, columns_of(read.schema, columns), predicates)
    span = narrowed(read.schema, predicates)
    if span is not None and within is not None:
        span = span.intersect(within)
    if limit == 0:
        span = None
    return Query(history, plan, span, plan_schema(plan), limit or 0)


def _check_limit(limit: object) -> None:
    if limit is None or (isinstance(limit, int) and not isinstance(limit, bool) and limit >= 0):
        return
    raise UsageError("a limit is a number of rows, not negative", limit=limit)


def columns_of(schema: TableSchema, columns: Sequence[str] | None) -> tuple[str, ...] | None:
    """Checked names of columns, in the order asked for."""
    if columns is None:
        return None
    if isinstance(columns, str):
        raise UsageError("columns are a list of names", columns=columns)
    names = names_of(columns, "columns")
    for name in names:
        schema.column(name)
    if len(set(names)) != len(names):
        raise UsageError("a column is asked for twice", columns=names)
    if not names:
        raise UsageError("ask for at least one column, or leave `columns` out for all")
    return names


def predicates_of(schema: TableSchema, where: Sequence[Any]) -> tuple[Predicate, ...]:
    """`[("id", ">=", 10), …]` as predicates that their columns can be compared with."""
    if isinstance(where, tuple) and len(where) in (2, 3) and isinstance(where[0], str):
        where = [where]
    if not isinstance(where, list | tuple):
        raise UsageError("where is a list of conditions, such as [('id', '>=', 10)]", got=where)
    found = []
    for condition in where:
        if isinstance(condition, Predicate):
            made = condition
        else:
            if not isinstance(condition, tuple | list) or not 2 <= len(condition) <= 3:
                raise UsageError("a condition is (column, operator, value), such as ('id', '>=', 10)", got=condition)
            made = predicate(*condition)
        bind(made, schema.column(made.column))
        found.append(made)
    return tuple(found)


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
    gateways: Gateways, history: TableHistory, *, at: Timestamp, count: int, deadline: RetryBudget
) -> list[calls.Partition]:
    """A table in parts, each with all that it takes to read it at `at`, in this process or in another."""
    request = calls.GetPartitions(history.latest.table_id, at, count)
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

    def request(start: bytes, ts: Timestamp, *, waited: bool) -> calls.ScanTable:
        wait_ms = 0 if waited else policy.wait_ms
        at = msgspec.structs.replace(policy, at=ts, wait_ms=wait_ms)
        return calls.ScanTable(schema.table_id, schema.version, plan, start, end, at, asked.limit)

    what = _Asked(calls.SCAN, request, asked.schema, span, policy.at, asked.limit)
    return _pages(gateways, what, near=near, deadline=deadline)


def changes(
    gateways: Gateways,
    history: TableHistory,
    request: calls.ReadChanges,
    *,
    columns: Sequence[str] | None = None,
    near: Sequence[str] = (),
) -> AsyncGenerator[tuple[calls.ScanPage, list[Any]], None]:
    """Pages of changes with their record batches, in key order, oldest first within a key."""
    read = history.readable_at(request.upto)
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
    """A stream of pages: how to ask for it from a key on, and what comes."""

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
                    batches = unpack(page.blocks, asked.schema)
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
