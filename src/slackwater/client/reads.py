"""Scans: plans, pages, and what to do when a gateway is lost in the middle.

    where, columns ──► ScanPlan ──► bytes            made once, used by every replica
    where          ──► span                          equality and ranges on the primary key read less
    pages          ──► record batches                over the received bytes, no copy

A scan at a timestamp that breaks goes on elsewhere, after the last page that came, at the same timestamp: no row is missing
and none comes twice. A scan of the present that breaks, or cannot move up, must begin again: `RetryableError`.

Whoever collects all rows gives a scan its one deadline. A scan that is handed out batch by batch goes on for as long as its
reader likes; there the session's timeout bounds each wait for the next page.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slackwater.client.arguments import names_of
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import change_schema, plan_schema, unpack
from slackwater.codec.filters_arrow import bind
from slackwater.codec.layout import schema_span
from slackwater.codec.narrow import narrowed
from slackwater.errors import DeadlineExceeded, DecodeError, RetryableError, UnavailableError, UsageError
from slackwater.model.predicates import Predicate, predicate
from slackwater.model.spans import Span
from slackwater.protocol.client import calls
from slackwater.protocol.range.bulk import ScanPlan
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
    if wait is not None and not 0 <= wait < float("inf"):
        raise UsageError("wait is a number of seconds, not negative", wait=wait)
    if read_from == "leader":
        if nearest_only:
            raise UsageError("nearest_only reads from the nearest replica; leave it out, or read_from='leader'")
        return calls.ReadPolicy(at)
    seconds = wait if wait is not None else DEFAULT_WAIT_S if read_from == "follower" else 0.0
    return calls.ReadPolicy(at, follower_ok=True, wait_ms=int(seconds * 1000), nearest_only=nearest_only)


async def scan(
    gateways: Gateways,
    asked: Query,
    policy: calls.ReadPolicy,
    *,
    near: Sequence[str] = (),
    deadline: RetryBudget | None = None,
) -> AsyncGenerator[tuple[calls.ScanPage, list[Any]], None]:
    """Pages with their record batches; never more rows than the limit. Without a deadline, each page has the timeout."""
    if asked.span is None:
        return
    table, plan = asked.history.latest, asked.plan.encode()
    wait_ms = policy.wait_ms

    def request(start: bytes, ts: Timestamp) -> calls.ScanTable:
        at = msgspec.structs.replace(policy, at=ts, wait_ms=wait_ms)
        assert asked.span is not None
        return calls.ScanTable(table.table_id, table.version, plan, start, asked.span.end, at, asked.limit)

    left = asked.limit
    stream = _pages(gateways, calls.SCAN, request, asked.span, policy.at, near=near, deadline=deadline)
    async for page in stream:
        if any(read.why == Why.WAITED.value for read in page.reads):
            wait_ms = 0  # should the scan go on at another gateway: it has waited
        batches = unpack(page.blocks, asked.schema)
        if asked.limit:
            batches = _first(batches, left)
            left -= sum(batch.num_rows for batch in batches)
        yield page, batches
        if asked.limit and left <= 0:
            await stream.aclose()
            return


async def changes(
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
    schema = change_schema(plan)
    asked = msgspec.structs.replace(request, plan=plan.encode())

    def at(start: bytes, _: Timestamp) -> calls.ReadChanges:
        return msgspec.structs.replace(asked, start=start)

    span = Span(request.start, request.end)
    async for page in _pages(gateways, calls.READ_CHANGES, at, span, request.upto, near=near):
        yield page, unpack(page.blocks, schema)


async def _pages(
    gateways: Gateways,
    method: StreamMethod[Any, calls.ScanPage],
    request: Callable[[bytes, Timestamp], Any],
    span: Span,
    at: Timestamp,
    *,
    near: Sequence[str],
    deadline: RetryBudget | None = None,
) -> AsyncGenerator[calls.ScanPage, None]:
    """Every page of a span, from one gateway after the other if need be."""
    start, breaks, places = span.start, 0, list(near)
    until = deadline or gateways.deadline()
    error: UnavailableError
    while True:
        place = places[breaks] if breaks < len(places) else None
        address = gateways.current if place is None else place
        try:
            async with timeout(until.remaining()):
                life = None if deadline is None else deadline.remaining()
                address, stream = await gateways.stream(method, request(start, at), at=place, timeout=life)
        except (UnavailableError, TimeoutError) as unopened:
            await _broken(gateways, address, unopened, until)
            breaks += 1
            continue
        try:
            async with stream:
                while (page := await _next(stream, until)) is not None:
                    yield page
                    if page.resume is None:
                        return
                    if at == MIN and page.ts == MIN:
                        raise DecodeError("a gateway did not say when it read")
                    start, breaks = page.resume, 0
                    until = deadline or gateways.deadline()
            error = UnavailableError("the stream ended before the last page")
        except UnavailableError as cut:
            error = cut
        if at == MIN and start != span.start and not until.passed:
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


async def _broken(gateways: Gateways, address: str, error: UnavailableError | TimeoutError, until: RetryBudget) -> None:
    """Prepare another try on another gateway; raises when there is none."""
    cause = error if isinstance(error, UnavailableError) else UnavailableError(f"{address} could not be reached")
    gateways.move_on(address)
    if not until.spend():
        raise cause
    await until.back_off()
    if until.passed:
        raise until.exceeded("a scan got no page", cause) from error


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
