"""A cluster as an asynchronous application sees it: tables, rows, transactions, snapshots.

    async with slackwater.aconnect("slackwater://127.0.0.1:7400") as db:
        await db.create_table("orders", {"id": "int8", "price": "decimal(10,2)"}, primary_key=["id"])
        await db.upsert("orders", [{"id": 1, "price": Decimal("9.50")}])
        rows = await db.scan("orders", where=[("id", ">=", 1)])

`sync.Database`, for programs that do not await, is written from this class by `make sync-client`. Operations may run at the
same time; a Database is one *session* (`client.session`): a read of the present sees everything that this session wrote or
read before.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow

from slackwater.client import changes, protections, reads, staging
from slackwater.client.arguments import app_of, count_of, duration_of, function_of, names_of, partition_of, time_of
from slackwater.client.index_reads import get_by
from slackwater.client.inputs import key_of
from slackwater.client.jobs import AsyncJobs
from slackwater.client.queries import Query, explained, query
from slackwater.client.schema_changes import SchemaOperations
from slackwater.client.snapshot import AsyncSnapshot
from slackwater.client.staging import PUBLISH_TIMEOUT_S, AsyncPart, staged_kind
from slackwater.client.transaction import AsyncTransaction, Attempts
from slackwater.client.writes import Writer, WriteResult
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.damage import decode_row
from slackwater.errors import DecodeError, RetryableError, SchemaChanged, SlackwaterError, UsageError, VersionUnknown
from slackwater.model.spans import Span
from slackwater.protocol.client import calls
from slackwater.protocol.client.calls import WriteKind
from slackwater.runtime.sync import CancelledError

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence

    from slackwater.client.changes import ChangeBatch
    from slackwater.client.gateways import Gateways
    from slackwater.codec.access_paths import ScanExplanation
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client.changes import ChangesItem, OpenChanges
    from slackwater.protocol.client.protections import Protection
    from slackwater.protocol.client.staging import PartRef, Published, StagingJob
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.seam import TaskScope

T = TypeVar("T")
pa: Any = pyarrow
PROTECT_TTL_S = 3600.0
"""How long a protected snapshot is kept unless it is renewed."""
FOLLOWER_READ = "follower_read_timestamp()"


class AsyncDatabase(SchemaOperations):
    """A session with a cluster. Made by `slackwater.aconnect`."""

    url: str
    """How another process reaches the same cluster; empty when it cannot."""

    def __init__(self, gateways: Gateways, scope: TaskScope, *, url: str = "") -> None:
        self.url = url
        super().__init__(gateways)
        self._writer = Writer(gateways, self._tables, scope)
        self._seen = MIN

    # --- rows

    async def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key.

        Up to 10 000 rows (and 4 MiB) are one transaction; more are a bulk load, written block by block (`client.writes`).
        """
        return await self._writer.write(WriteKind.UPSERT, table, rows)

    async def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new; `ConditionFailed` if one is not, and then (up to 10 000 rows) none is."""
        return await self._writer.write(WriteKind.INSERT, table, rows)

    async def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key: dicts, key values or tuples, Arrow or pandas with the key columns. Missing rows are fine."""
        return await self._writer.write(WriteKind.DELETE, table, rows)

    async def get(
        self, table: str, key: object, *, by: str | None = None, nearest: bool = False
    ) -> dict[str, Any] | None:
        """A row by its primary key: a value, a tuple of values, or a dict. The newest; None when there is none.

        With `by`, the row that has these values in a unique index, which is named, or the only column of which is.
        With `nearest`, from the replica nearest to the gateway if the present is closed there: on every replica of a table
        whose policy is `lead`. Elsewhere the leaseholder answers, one message later. The answer is as fresh either way.
        """
        if by is not None:
            return await get_by(self._gateways, self._tables, table, by, key, nearest=nearest)
        gateways, tables = self._gateways, self._tables
        deadline = gateways.deadline()
        policy = calls.ReadPolicy(follower_ok=nearest, floor=gateways.floor.ts)
        while True:
            history = tables.known(table) or await tables.by_name(table, deadline=deadline)
            codec = tables.codec(history)
            wanted = key_of(codec, key)
            request = calls.GetRows(history.latest.table_id, [wanted], policy, version=history.latest.version)
            try:
                reply = await gateways.call(calls.GET_ROWS, request, deadline=deadline)
                break
            except SchemaChanged as error:
                tables.forget(table)
                await deadline.again(error, "nothing was read")
        gateways.floor.told(reply.ts)
        (value,) = reply.values
        if value is None:
            return None
        try:
            return codec.decode(value)
        except DecodeError:  # of a version that was published since
            fresh = await self._tables.by_id(history.latest.table_id, fresh=True, deadline=deadline)
            return decode_row(self._tables.codec(fresh), wanted, value)

    async def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        nearest: bool = False,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Any:
        """Rows as they are now, at one timestamp, as a `pyarrow.Table`.

        Args:
            table: by name.
            columns: those wanted; all, without it.
            where: a list of `(column, operator, value)`, joined by AND; conditions on an index's columns read less.
            limit: at most so many rows.
            nearest: see `get`.
            index: read by this index, or by "primary"; without it the best is chosen (`explain_scan` tells which).
            order: columns, each possibly followed by " desc". Without it rows come in the order of the index that is read,
                which is the primary key's for a table without others.

        All of it takes at most the session's timeout; `scan_batches` is for what takes longer.
        """
        deadline = self._gateways.deadline()
        undecoded = False
        while True:
            try:
                asked = await self._query(
                    table, deadline, columns=columns, where=where, limit=limit, index=index, order=order
                )
                found = [batch async for batch in self._batches(asked, nearest=nearest, deadline=deadline)]
                return asked.finish(pa.Table.from_batches(found, schema=asked.schema))
            except (RetryableError, DecodeError) as error:
                self._tables.forget(table)
                if isinstance(error, DecodeError):
                    if undecoded:  # not of a version that was published since: damaged
                        raise
                    undecoded = True
                await deadline.again(error, "nothing was read")

    async def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> AsyncGenerator[Any, None]:
        """The same, batch by batch, as they come; an `order` must be that of an index.

        If the scan must begin again, that is a `RetryableError`.
        """
        deadline = self._gateways.deadline()
        asked = await self._query(table, deadline, columns=columns, where=where, limit=limit, index=index, order=order)
        asked.check_streams()
        try:
            async for batch in self._batches(asked):
                yield batch
        except SchemaChanged as error:
            self._tables.forget(table)
            raise RetryableError(f"table {table} was changed; scan again: {error.message}") from error
        except VersionUnknown as error:
            known, again = asked.history.latest, self._gateways.deadline()
            if (await self._tables.by_id(known.table_id, fresh=True, deadline=again)).latest.version == known.version:
                raise
            self._tables.forget(table)
            raise RetryableError(f"table {table} was changed during a scan; scan again: {error.message}") from error

    async def explain_scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> ScanExplanation:
        """How `scan` would read: which index, which keys, whether it has all that is wanted, why not another. Reads nothing."""
        asked = {"columns": columns, "where": where, "limit": limit, "index": index, "order": order}
        deadline = self._gateways.deadline()
        return await self._tables.prepared(table, lambda history: explained(history, **asked), deadline=deadline)

    async def _query(self, table: str, deadline: RetryBudget, **asked: Any) -> Query:
        return await self._tables.prepared(table, lambda history: query(history, **asked), deadline=deadline)

    async def _batches(
        self, asked: Query, *, nearest: bool = False, deadline: RetryBudget | None = None
    ) -> AsyncGenerator[Any, None]:
        try:
            policy = calls.ReadPolicy(follower_ok=nearest, floor=self.session_floor)
            async for page, batches in reads.scan(self._gateways, asked, policy, deadline=deadline):
                self._gateways.floor.told(page.ts)
                for batch in batches:
                    yield batch
        except SchemaChanged:
            self._tables.forget(asked.history.latest.name)
            raise

    # --- transactions

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[AsyncTransaction]:
        """A transaction for the length of a block: committed at its end, rolled back if it raises."""
        tx = AsyncTransaction(self._gateways, self._tables)
        try:
            yield tx
        except BaseException:
            await tx.rollback()
            raise
        await self._commit(tx)

    async def run(self, function: Callable[[AsyncTransaction], Awaitable[T]]) -> T:
        """Run a function in a transaction and commit; again, after others were in the way, until it succeeds.

        The function must have no effects outside the transaction: it may run many times, all within one timeout.
        """
        function_of(function)
        attempts = self.attempts()
        while True:
            try:
                value = await function(attempts.tx)
                await attempts.tx.commit()
            except (Exception, CancelledError) as error:
                await attempts.failed(error)
            else:
                return value

    def attempts(self) -> Attempts:
        """A transaction that may be tried several times; for `run` and its twin."""
        return Attempts(AsyncTransaction(self._gateways, self._tables), self._gateways)

    async def _commit(self, tx: AsyncTransaction) -> None:
        try:
            await tx.commit()
        except SlackwaterError:
            await tx.rollback()
            raise

    # --- time

    async def snapshot(
        self,
        *,
        as_of: Timestamp | dt.datetime | str | int | None = None,
        max_staleness: float | None = None,
        min_timestamp: Timestamp | dt.datetime | str | int | None = None,
        nearest_only: bool = False,
        tables: Sequence[str] = (),
        read_from: str = "any",
        wait: float | None = None,
        protect: bool = False,
        protect_ttl: float = PROTECT_TTL_S,
    ) -> AsyncSnapshot:
        """The database at one timestamp, chosen in one of these ways.

        Args:
            as_of: exactly then: a timestamp, an aware datetime, ISO-8601, an interval such as "-5s", or
                "follower_read_timestamp()", which is that method for `tables`.
            max_staleness: the freshest that the nearest replicas serve without waiting, at most so many seconds old.
            min_timestamp: the same, at or after that time. Without any of the three: the same, at or after everything
                this session has written or read.
            nearest_only: fail (`TooStale`) rather than ask leaseholders: when a timestamp is negotiated, and at every read.
            tables: what the negotiation is about; all tables when none is named.
            read_from: "leader", "any" (the nearest replica if it can), "follower" (the nearest replica, waiting for it).
            wait: how many seconds a follower may wait for the timestamp to close before the leaseholder is asked.
            protect: keep what `tables` (all, when none is named) held then from being collected, until the snapshot's
                `release`; `TooLate` if that cannot be promised any more.
            protect_ttl: release it by itself after so many seconds, unless `renew` is called.
        """
        if sum(form is not None for form in (as_of, max_staleness, min_timestamp)) > 1:
            raise UsageError("give one of as_of, max_staleness and min_timestamp, not several")
        names = names_of(tables)
        duration_of(wait, "wait")
        reads.read_policy(MIN, read_from=read_from, wait=wait, nearest_only=nearest_only)
        if as_of == FOLLOWER_READ:
            as_of = await self.follower_read_timestamp(names)
        at = MIN if as_of is None else self._time(as_of)
        least = MIN if min_timestamp is None else self._time(min_timestamp)
        freely = as_of is None and max_staleness is None and min_timestamp is None
        floor = self.session_floor if freely else MIN
        stale = duration_of(max_staleness, "max_staleness")
        request = calls.ChooseSnapshot(names, at, stale, least, nearest_only, self._seen, floor)
        reply = await self._ask(calls.SNAPSHOT, request)
        for history in reply.tables:
            self._tables.remember(history, upto=reply.ts)
        if as_of is None:
            self._seen = Timestamp(max(self._seen, reply.ts))
            self._gateways.floor.told(reply.ts)
        pin = None
        if protect:
            held = names or tuple(history.latest.name for history in reply.tables)
            pin = await protections.protect(
                self._gateways, held, self._time, at=reply.ts, expires=protect_ttl, reason="a snapshot", kind="snapshot"
            )
        return AsyncSnapshot(
            self._gateways,
            self._tables,
            reply.ts,
            protection=pin,
            by_followers=reply.by_followers,
            read_from=read_from,
            wait=wait,
            nearest_only=nearest_only,
        )

    async def follower_read_timestamp(self, tables: str | Sequence[str] = ()) -> Timestamp:
        """The newest timestamp that all followers of these tables have very likely closed; no replica is asked.

        By the tables' own policies (`slackwater zone`): a little older than the target of the laziest of them, the
        present if all of them lead, `UsageError` if one is off. Without tables, by the cluster's
        `closed_timestamp.target_duration`.
        """
        return (await self._ask(calls.FOLLOWER_READ, calls.OfTables(names_of(tables)))).ts

    async def resolved(self, tables: str | Sequence[str]) -> Timestamp:
        """The timestamp up to which nothing in these tables changes any more, on the replicas nearest to the gateway."""
        return (await self._ask(calls.RESOLVED, calls.OfTables(names_of(tables)))).ts

    async def close_now(self, tables: str | Sequence[str]) -> Timestamp:
        """Have the present of these tables closed, so that followers serve it; returns that timestamp."""
        request = calls.OfTables(names_of(tables), floor=self.session_floor)
        closed = (await self._ask(calls.CLOSE, request)).ts
        self._gateways.floor.told(closed)
        return closed

    async def frontier(self, tables: str | Sequence[str] = ()) -> list[calls.FrontierRow]:
        """How far every replica of every range of these tables (all, when none is named) is closed, and why not further."""
        return (await self._ask(calls.FRONTIER, calls.OfTables(names_of(tables)))).rows

    # --- parallel reads

    async def partitions(
        self,
        table: str,
        num: int | None = None,
        *,
        at: Timestamp | None = None,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
    ) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: one a range, or about `num`.

        With `where` (and `columns`), of what `scan` would read: parts of the best index, if that is not the primary one.
        Give `read_partition` the same.
        """
        count, deadline = count_of(num, "num"), self._gateways.deadline()
        history = await self._tables.by_name(table, deadline=deadline)
        ts = self._gateways.clock.now() if at is None else self._time(at)
        return await reads.partitions(
            self._gateways, history, at=ts, count=count, deadline=deadline, columns=columns, where=where
        )

    async def read_partition(
        self,
        partition: calls.Partition,
        *,
        at: Timestamp,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        read_from: str = "follower",
        wait: float | None = None,
        on_read: Callable[[calls.RangeRead], None] | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Record batches of one partition as of `at`, from the nearest replica; never less than what was there then.

        A partition that was made for `at` or later brings the versions of its table: nothing but the replica is asked.
        """
        ts, partition = self._time(at), partition_of(partition)
        history = await self._history_of(partition, ts)
        within = Span(partition.start, partition.end)
        asked = query(history, at=ts, columns=columns, where=where, within=within)
        policy = reads.read_policy(ts, read_from=read_from, wait=wait)
        near = self._gateways.near(partition.replicas)
        async for page, batches in reads.scan(self._gateways, asked, policy, near=near):
            for read in page.reads if on_read is not None else ():
                on_read(read)  # type: ignore[misc]  # by the line above
            for batch in batches:
                yield batch

    async def read_changes(
        self,
        partition: calls.Partition,
        *,
        after: Timestamp,
        upto: Timestamp,
        diff: bool = False,
        columns: Sequence[str] | None = None,
        version: int | None = None,
        read_from: str = "follower",
        wait: float | None = None,
    ) -> AsyncGenerator[Any, None]:
        """Every change of a partition with after < commit <= upto, as record batches with the columns of a feed.

        Those are `_op` (insert, update, delete), `_commit_ts`, `_txn`, `_version` and, with `diff`, `_before`.

        The same call gives the same changes, in key order, oldest first within a key, for as long as history is kept.
        With `columns`, only those of the table's; with an empty list, none but the change columns. Rows have the columns of the
        version at `upto`, or of `version`.
        """
        first, last, partition = self._time(after), self._time(upto), partition_of(partition)
        history = await self._history_of(partition, last)
        policy = reads.read_policy(last, read_from=read_from, wait=wait)
        request = calls.ReadChanges(partition.table_id, b"", partition.start, partition.end, first, last, diff, policy)
        near = self._gateways.near(partition.replicas)
        read = history.readable_at(last) if version is None else history.numbered(version)
        async for _, batches in reads.changes(self._gateways, history, request, read, columns=columns, near=near):
            for batch in batches:
                yield batch

    async def _history_of(self, partition: calls.Partition, at: Timestamp) -> TableHistory:
        """Every version of a partition's table that holds at or below `at`."""
        if partition.history is not None and at <= partition.known_upto:
            return partition.history
        return await self._tables.by_id(partition.table_id, fresh=True, at=at, deadline=self._gateways.deadline())

    # --- change feeds

    def changes(
        self,
        tables: str | Sequence[str],
        *,
        after: Timestamp | dt.datetime | str | int | None = None,
        initial_scan: str | None = None,
        until: Timestamp | dt.datetime | str | int | None = None,
        diff: bool = False,
        resolved: float = 1.0,
        atomic: bool = False,
        on_schema_change: str = "continue",
        expires_after: float | None = None,
    ) -> AsyncGenerator[ChangeBatch, None]:
        """Follow tables: what is there (unless `after` says where to start), then every change as it commits.

        Args:
            tables: one or several; one resolved timestamp for all of them.
            after: a time, exclusive, or a token: where to go on.
            initial_scan: "yes" (what is there first; the default without `after`), "no", "only" (and then end).
            until: end when everything up to this time, inclusive, has been handed out.
            diff: rows with what they replaced (`_before`), and `_op` tells inserts from updates.
            resolved: how often, in seconds, a resolved timestamp comes.
            atomic: hold rows back until they are resolved: whole transactions, in order, each row once.
            on_schema_change: "continue", "backfill" (the table again under its new schema), "stop" (end behind it).
            expires_after: fail with `FeedExpired` rather than keep history for a feed that was not read for so many seconds.
        """
        request = changes.request_of(
            tables,
            time=self._time,
            after=after,
            initial_scan=initial_scan,
            until=until,
            diff=diff,
            resolved=resolved,
            atomic=atomic,
            on_schema_change=on_schema_change,
            expires_after=expires_after,
        )
        return changes.changes(self._gateways, request)

    def change_items(self, request: OpenChanges) -> AsyncGenerator[ChangesItem, None]:
        """The same before it is decoded: for `slackwater changefeed` and other tools."""
        return changes.items(self._gateways, request)

    # --- history that is kept

    async def protect(
        self,
        tables: str | Sequence[str],
        *,
        at: Timestamp | dt.datetime | str | int | None = None,
        after: Timestamp | dt.datetime | str | int | None = None,
        expires: float | None = None,
        reason: str = "",
        kind: str = "user",
    ) -> Protection:
        """Keep the history of tables from being collected until `release`: protected when this returns, or `TooLate`.

        Args:
            tables: one or several, as they were named then.
            at: keep what was live at this time, and nothing else.
            after: keep what was live at this time, and everything since. One of the two.
            expires: release it after so many seconds, unless it is renewed; without it, never.
            reason: for people, in `protections()` and `slackwater protections`.
            kind: what asks: "user", "snapshot" or "spark".
        """
        return await protections.protect(
            self._gateways, names_of(tables), self._time, at=at, after=after, expires=expires, reason=reason, kind=kind
        )

    async def renew_protection(self, protection: Protection | str, *, expires: float, after: Any = None) -> Protection:
        """Let a protection expire so many seconds from now instead.

        `after`: of a protection made with `after`, keep only what is live at this later time, and everything since.
        """
        moved = MIN if after is None else self._time(after)
        return await protections.renew(self._gateways, protection, duration_of(expires, "expires"), after=moved)

    async def release(self, protection: Protection | str) -> None:
        """Let what a protection keeps be collected. `NotFound` if it is gone; `AccessDenied` if it is another user's."""
        await protections.release(self._gateways, protection)

    async def protections(self) -> list[Protection]:
        """Every protection: what, since when, for whom, and how many bytes of history it pins."""
        return await protections.listed(self._gateways)

    # --- one commit from many processes

    async def staging(self, table: str, operation: str = "upsert", *, job: StagingJob | None = None) -> AsyncPart:
        """A part of a commit to be: rows that this process brings, invisible before `publish` (`client.staging`)."""
        history = await self.history(table)
        return AsyncPart(self._gateways, self._tables.codec(history), staged_kind(operation), job)

    async def publish(
        self,
        table: str,
        parts: Sequence[PartRef],
        operation: str = "upsert",
        *,
        app: tuple[str, int] | None = None,
        owner: str = "",
        keep: Sequence[str] = (),
        timeout: float = PUBLISH_TIMEOUT_S,
    ) -> Published:
        """Write the rows of all parts at one timestamp (`client.staging`).

        Under a name, `app`, at most once for each version of this operation on this table (one made anew is another); an
        upsert leaves the columns of `keep` as they are in rows that are there. It has a `timeout` of its own, for all rows.
        """
        until = self._gateways.deadline(duration_of(timeout, "timeout"))
        name, kind, schema = app_of(app), staged_kind(operation), await self.table(table)
        done = await staging.publish(self._gateways, schema, parts, kind, name, owner=owner, keep=keep, deadline=until)
        self._gateways.floor.told(done.ts)
        return done

    async def drop_staged(self, parts: Sequence[PartRef]) -> None:
        """Forget parts. What was published from them stays."""
        await staging.drop_staged(self._gateways, parts)

    # --- jobs

    @property
    def jobs(self) -> AsyncJobs:
        """The durable jobs of the cluster: look, pause, resume, cancel, wait (`client.jobs`)."""
        return AsyncJobs(self._gateways)

    # --- this session

    @property
    def cluster_id(self) -> str:
        """The id that the cluster was given when it was made."""
        return self._gateways.identity.cluster_id

    @property
    def session_floor(self) -> Timestamp:
        """The highest timestamp that this session was told: its reads of the present are never below (`client.session`)."""
        return self._gateways.floor.ts

    def raise_session_floor(self, ts: int) -> None:
        """Go on from where another session stands: reads of the present see everything up to its `session_floor`."""
        self._gateways.floor.raise_to(ts)

    def now(self) -> Timestamp:
        """A timestamp above everything this session has heard of."""
        return self._gateways.clock.now()

    async def nodes(self) -> list[calls.ReplicaPlace]:
        """The nodes of the cluster, as the gateway knows them."""
        reply = await self._ask(calls.CLUSTER, calls.AskCluster())
        self._gateways.learn(reply.nodes)
        return [calls.ReplicaPlace(n.node_id, n.address, n.locality) for n in reply.nodes]

    def _time(self, when: Timestamp | dt.datetime | str | int) -> Timestamp:
        """A point in time, however it was written."""
        return time_of(when, self._gateways.clock)
