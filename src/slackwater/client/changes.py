"""Changes of tables as an application gets them: record batches, schema changes, resolved timestamps, tokens.

    async for batch in db.changes(["accounts", "transfers"], after=token):
        match batch.kind:
            case "rows":      apply(batch.table, batch.data)
            case "schema":    migrate(batch.table, batch.schema)
            case "resolved":  save(batch.token)                  everything up to batch.resolved has been handed out

A token goes on from its `resolved`: rows above that come again, also those handed out already, equal, under the same key and
`_commit_ts`. So an application may keep all rows as they come, or only those at or below `resolved`; with the token beside them
it misses nothing either way. During an initial scan nothing is resolved: from its token the scan begins again, at the same
timestamp.

    gateway 1 ─ items ─╳                    a gateway dies: the same feed from another one, from the last position
    gateway 2     └──── items ─► decode with the schema as of the commit ─► batches

Rows come at least once: after a gateway was lost, what came behind the last position comes again, equal, under the same key and
`_commit_ts`. Per key they come in order; nothing at or below a resolved timestamp comes anew after it. (`codec.envelope` says
what the columns are.)

With `atomic=True` rows are held back until they are resolved: the rows between two `resolved` batches are whole
transactions, by commit timestamp, each row exactly once, with schema changes in their place. That costs the lag of the resolved
timestamp, and memory for what waits (`model.settle.SETTLING_BYTES_MAX`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.client.arguments import duration_of, names_of
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.envelope import Enveloper, Timeline, by_table
from slackwater.errors import Overloaded, Retry, SlackwaterError, UnavailableError, UsageError, VersionUnknown
from slackwater.model.schema import TableSchema
from slackwater.model.settle import Settling
from slackwater.protocol.client import calls
from slackwater.protocol.client.changes import (
    CHANGES,
    INITIAL_SCANS,
    SCHEMA_POLICIES,
    TOKEN_PREFIX,
    ChangesItem,
    OpenChanges,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Iterator, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.codec.envelope import Envelopes
    from slackwater.model.changes import Changes, InitialPage
    from slackwater.model.tables import TableDescriptor, TableHistory

GIVE_UP_S = 300.0
"""A feed that no gateway serves for this long ends with what the last one said."""
_LASTING = (Retry.NEVER, Retry.TRANSACTION)


class ChangeBatch(msgspec.Struct, frozen=True, kw_only=True):
    """What a feed hands out: rows of one table, a change of its schema, or a resolved timestamp."""

    kind: str
    """"rows", "schema" or "resolved"."""
    table: str = ""
    data: Any = None
    """A `pyarrow.RecordBatch`, of rows."""
    initial: bool = False
    """Rows of a table as of one timestamp (initial scan or backfill), not changes."""
    schema: TableSchema | None = None
    """Of rows: what they were decoded with; of a schema change: the new one."""
    timestamp: Timestamp = MIN
    """Of a schema change: since when it holds."""
    dropped: bool = False
    """Of a schema change: the table is gone."""
    emptied: bool = False
    """Of a schema change: the table was truncated; all its rows are gone as of `timestamp`, and none comes as a delete."""
    resolved: Timestamp = MIN
    """Everything at or below has been handed out. (During an initial scan: nothing has.)"""
    token: str = ""
    """Goes on from `resolved`: everything above comes, also what has been handed out since."""


def request_of(
    tables: str | Sequence[str],
    *,
    time: Callable[[Any], Timestamp],
    after: Any = None,
    initial_scan: str | None = None,
    until: Any = None,
    diff: bool = False,
    resolved: float = 1.0,
    atomic: bool = False,
    on_schema_change: str = "continue",
    expires_after: float | None = None,
) -> OpenChanges:
    """Check what an application asks for. Without `after` and `initial_scan` there is an initial scan; with `after`, none."""
    names = names_of(tables)
    if not names or not all(name for name in names) or len(set(names)) != len(names):
        raise UsageError("a feed follows tables by name, each once", tables=names)
    scan = initial_scan or ("yes" if after is None else "no")
    if scan not in INITIAL_SCANS:
        raise UsageError(f"initial_scan is one of {', '.join(INITIAL_SCANS)}", initial_scan=scan)
    if on_schema_change not in SCHEMA_POLICIES:
        raise UsageError(f"on_schema_change is one of {', '.join(SCHEMA_POLICIES)}", got=on_schema_change)
    if not 0 <= (duration_of(resolved, "resolved") or 0.0) <= 86_400:
        raise UsageError("resolved is an interval in seconds, from 0 to a day", resolved=resolved)
    token = after if isinstance(after, str) and after.startswith(TOKEN_PREFIX) else ""
    first = MIN if token or after is None else time(after)
    last = MIN if until is None else time(until)
    return OpenChanges(
        tables=names,
        after=first,
        token=token,
        initial_scan=scan,
        until=last,
        befores=diff,
        interval_s=resolved,
        whole=atomic,
        on_schema_change=on_schema_change,
        expires_after_s=duration_of(expires_after, "expires_after") or 0.0,
        columns=True,
    )


async def items(gateways: Gateways, request: OpenChanges) -> AsyncGenerator[ChangesItem, None]:
    """What gateways send: from one after the other, each going on from the last position."""
    silence = gateways.deadline(GIVE_UP_S)
    while True:
        address, error = gateways.current, UnavailableError("the feed ended without a reason")
        try:
            address, stream = await gateways.stream(CHANGES, request)
            async with stream:
                async for item in stream:
                    silence = gateways.deadline(GIVE_UP_S)
                    request = _resumed(request, item)
                    yield item
                    if item.done:
                        return
        except SlackwaterError as cut:
            if cut.retry in _LASTING:
                raise
            error = cut if isinstance(cut, UnavailableError) else UnavailableError(cut.message)
        if silence.passed:
            raise error
        gateways.move_on(address)
        await silence.back_off()


def _resumed(request: OpenChanges, item: ChangesItem) -> OpenChanges:
    """How to ask another gateway after this item."""
    behind = item.position or item.token
    if not behind:
        return request
    ids = tuple(h.latest.table_id for h in item.tables) if item.since else request.table_ids
    return msgspec.structs.replace(request, token=behind, table_ids=ids)


async def changes(gateways: Gateways, request: OpenChanges) -> AsyncGenerator[ChangeBatch, None]:
    """The batches of a feed.

    A gateway sends every version of a table before rows of it. Should it not have heard of one that rows name, the feed asks for
    the table and goes on from where it was; a version that is still unknown then is that of a damaged row.
    """
    reader = (_Settled if request.whole else _Reader)(request)
    while True:
        stream = items(gateways, request)
        try:
            async for item in stream:
                for batch in reader.take(item):
                    yield batch
                request = _resumed(request, item)
        except VersionUnknown:
            if not await _learned(gateways, reader):
                raise
        else:
            return
        finally:
            await stream.aclose()


async def _learned(gateways: Gateways, reader: _Reader) -> bool:
    """Whether a table of the feed has versions that its reader did not know; it knows them then."""
    news = False
    for table_id, known in reader.versions().items():
        deadline = gateways.deadline()
        request = calls.FindTable(table_id=table_id, floor=gateways.floor.ts)
        found = (await gateways.call(calls.FIND_TABLE, request, deadline=deadline)).table
        news = news or found.latest.version > known
        reader.learn(found)
    return news


class _Reader:
    """Turns items into batches, as they come."""

    def __init__(self, request: OpenChanges) -> None:
        self._befores = request.befores
        self._timelines: dict[int, Timeline] = {}
        self._envelopers: dict[int, Enveloper] = {}
        self._announced: dict[int, int] = {}
        self._emptied: set[tuple[int, int]] = set()
        self._since = MIN
        self._resolved, self._token = MIN, ""

    def take(self, item: ChangesItem) -> Iterator[ChangeBatch]:
        """What one item amounts to."""
        if item.since and not self._since:  # the first word: where it stands, which is no news
            self._since = item.since
            self._resolved = item.resolved
        for history in item.tables:
            self.learn(history)
            yield from self._schemas(history)
        if item.rows is not None:
            yield from self._rows(item.rows, initial=item.initial)
        if item.page is not None:
            yield from self._page(item.page)
        if item.token:
            self._token = item.token
        if item.resolved > self._resolved or item.done:
            yield from self._checkpoint(item)

    def _checkpoint(self, item: ChangesItem) -> Iterator[ChangeBatch]:
        self._resolved = item.resolved
        yield ChangeBatch(kind="resolved", resolved=self._resolved, token=self._token)

    def _schemas(self, history: TableHistory) -> Iterator[ChangeBatch]:
        for version in self._news(history):
            yield self._changed(version)

    def _rows(self, rows: Changes, *, initial: bool) -> Iterator[ChangeBatch]:
        if initial and self._befores and rows.befores is None:
            rows = msgspec.structs.replace(rows, befores=[b""] * len(rows))
        for (table_id, _), block in by_table(rows).items():
            for envelopes in self._envelopers[table_id].batches(block):
                yield self._batch(envelopes, initial=initial)

    def _page(self, page: InitialPage) -> Iterator[ChangeBatch]:
        for envelopes in self._envelopers[page.table_id].initial(page):
            yield self._batch(envelopes, initial=True)

    def _batch(self, envelopes: Envelopes, *, initial: bool) -> ChangeBatch:
        return ChangeBatch(
            kind="rows",
            table=envelopes.schema.name,
            data=envelopes.batch,
            initial=initial,
            schema=envelopes.schema,
            resolved=self._resolved,
            token=self._token,
        )

    def _changed(self, version: TableDescriptor) -> ChangeBatch:
        return ChangeBatch(
            kind="schema",
            table=version.name,
            schema=version.schema,
            timestamp=version.modified,
            dropped=version.dropped,
            emptied=(version.table_id, version.version) in self._emptied,
            resolved=self._resolved,
            token=self._token,
        )

    def versions(self) -> dict[int, int]:
        """The newest version that is known of each table."""
        return {table_id: timeline.schemas[-1].version for table_id, timeline in self._timelines.items()}

    def learn(self, history: TableHistory) -> None:
        """Know every version before a row needs it."""
        table_id = history.latest.table_id
        self._emptied |= {(table_id, version.version) for version in history.emptied()}
        timeline = self._timelines.get(table_id)
        if timeline is None:
            timeline = self._timelines[table_id] = timeline_of(history)
            self._envelopers[table_id] = Enveloper(timeline, befores=self._befores)
            return
        extend(timeline, history)

    def _news(self, history: TableHistory) -> list[TableDescriptor]:
        """Visible changes after the feed's start that have not been handed out; a table's first version is none."""
        table_id = history.latest.table_id
        last = self._announced.get(table_id, 1)
        self._announced[table_id] = max(last, history.latest.version)
        return [v for v in history.visible_changes() if v.version > last and v.modified > self._since]


class _Settled(_Reader):
    """Turns items into batches once they are resolved: whole transactions, in order."""

    def __init__(self, request: OpenChanges) -> None:
        super().__init__(request)
        self._settling = Settling()
        self._due: list[Changes] = []
        self._waiting: list[TableDescriptor] = []

    def _schemas(self, history: TableHistory) -> Iterator[ChangeBatch]:
        self._waiting += self._news(history)
        self._waiting.sort(key=lambda v: v.modified)
        yield from ()

    def _rows(self, rows: Changes, *, initial: bool) -> Iterator[ChangeBatch]:
        if initial:
            if len(rows):
                yield from self._changed_upto(Timestamp(rows.timestamps[0]))
            yield from super()._rows(rows, initial=True)
            return
        self._settling.add(rows)
        if self._settling.full:
            raise Overloaded(
                "too much waits to be resolved; look at `slackwater frontier`, or follow without atomic=True",
                bytes=self._settling.bytes,
            )

    def _page(self, page: InitialPage) -> Iterator[ChangeBatch]:
        if page.rows:
            yield from self._changed_upto(page.ts)
        yield from super()._page(page)

    def _checkpoint(self, item: ChangesItem) -> Iterator[ChangeBatch]:
        while self._waiting and self._waiting[0].modified <= item.resolved:
            version = self._waiting.pop(0)
            yield from self._released(Timestamp(version.modified - 1))
            yield self._changed(version)
        yield from self._released(item.resolved)
        yield from super()._checkpoint(item)

    def _changed_upto(self, ts: Timestamp) -> Iterator[ChangeBatch]:
        while self._waiting and self._waiting[0].modified <= ts:
            yield self._changed(self._waiting.pop(0))

    def _released(self, upto: Timestamp) -> Iterator[ChangeBatch]:
        if upto > self._settling.released:
            self._due.append(self._settling.release(upto))
        while self._due:
            batches = list(super()._rows(self._due[0], initial=False)) if len(self._due[0]) else []
            del self._due[0]  # rows of a version that is not known yet stay
            yield from batches


def timeline_of(history: TableHistory) -> Timeline:
    """Which version of a table holds when."""
    return Timeline([(v.modified, v.schema) for v in history.versions])


def extend(timeline: Timeline, history: TableHistory) -> None:
    """Add the versions that a timeline does not have yet."""
    for version in history.versions:
        if version.version > timeline.schemas[-1].version:
            timeline.add(version.modified, version.schema)
