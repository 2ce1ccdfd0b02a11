"""The same database for programs that do not await: every method waits for its asynchronous twin.

One thread per `Database` runs the loop (`runtime.loop_thread`), so several threads of an application may share one. Streams
of record batches are ordinary iterators; one that is not read to its end is closed when it is dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.client.arguments import function_of
from slackwater.client.staging import PUBLISH_TIMEOUT_S

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator, Mapping, Sequence
    from contextlib import AbstractAsyncContextManager

    from slackwater.client.changes import ChangeBatch
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.snapshot import AsyncSnapshot
    from slackwater.client.staging import AsyncPart
    from slackwater.client.transaction import AsyncTransaction
    from slackwater.client.writes import WriteResult
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client import calls
    from slackwater.protocol.client.staging import Job, PartRef, Published
    from slackwater.runtime.loop_thread import LoopThread

T = TypeVar("T")


class _Waits:
    """What the twins share: a loop on another thread."""

    def __init__(self, loop: LoopThread) -> None:
        self._loop = loop

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._loop.run(work)

    def _each(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        return self._loop.iterate(items)


class Transaction(_Waits):
    """`AsyncTransaction`, waited for. Made by `Database.transaction` and `run`."""

    def __init__(self, loop: LoopThread, twin: AsyncTransaction) -> None:
        super().__init__(loop)
        self._twin = twin

    @property
    def commit_timestamp(self) -> Timestamp:
        """When it happened; known after the commit."""
        return self._twin.commit_timestamp

    def get(self, table: str, key: object) -> dict[str, Any] | None:
        """A row by its primary key, or None."""
        return self._wait(self._twin.get(table, key))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
    ) -> Any:
        """Rows as a `pyarrow.Table`, the transaction's own writes included."""
        return self._wait(self._twin.scan(table, columns=columns, where=where, limit=limit))

    def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key."""
        return self._wait(self._twin.upsert(table, rows))

    def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new."""
        return self._wait(self._twin.insert(table, rows))

    def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key."""
        return self._wait(self._twin.delete(table, rows))


class Snapshot(_Waits):
    """`AsyncSnapshot`, waited for. Made by `Database.snapshot`."""

    def __init__(self, loop: LoopThread, twin: AsyncSnapshot) -> None:
        super().__init__(loop)
        self._twin = twin

    @property
    def timestamp(self) -> Timestamp:
        """The one timestamp that everything is read at."""
        return self._twin.timestamp

    @property
    def by_followers(self) -> bool:
        """Whether the nearest replicas said that they can serve it without waiting."""
        return self._twin.by_followers

    @property
    def reads(self) -> list[calls.RangeRead]:
        """Per range, the last read of it: timestamp, node, lag, and why the leaseholder had to answer."""
        return self._twin.reads

    def table(self, name: str) -> TableSchema:
        """What a table looked like then."""
        return self._wait(self._twin.table(name))

    def get(self, table: str, key: object) -> dict[str, Any] | None:
        """A row by its primary key as it was, or None."""
        return self._wait(self._twin.get(table, key))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
    ) -> Any:
        """Rows as they were, as a `pyarrow.Table`."""
        return self._wait(self._twin.scan(table, columns=columns, where=where, limit=limit))

    def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come."""
        return self._each(self._twin.scan_batches(table, columns=columns, where=where, limit=limit))

    def partitions(self, table: str, num: int | None = None) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: one a range, or about `num`."""
        return self._wait(self._twin.partitions(table, num))

    def __repr__(self) -> str:
        return repr(self._twin)


class Part(_Waits):
    """`AsyncPart`, waited for. Made by `Database.staging`."""

    def __init__(self, loop: LoopThread, twin: AsyncPart) -> None:
        super().__init__(loop)
        self._twin = twin

    def add(self, rows: Any) -> None:
        """Stage rows: an Arrow batch or table, a DataFrame, dicts."""
        self._wait(self._twin.add(rows))

    def finish(self) -> PartRef:
        """Everything is in the cluster; what to publish."""
        return self._wait(self._twin.finish())


class Database(_Waits):
    """`AsyncDatabase`, waited for. Made by `slackwater.connect` and `slackwater.open`; close it, or use it in a `with`."""

    def __init__(
        self,
        loop: LoopThread,
        twin: AsyncDatabase,
        opened: AbstractAsyncContextManager[Any],
    ) -> None:
        super().__init__(loop)
        self._twin = twin
        self._opened = opened
        self._closed = False

    @property
    def url(self) -> str:
        """How another process reaches the same cluster; empty when it cannot."""
        return self._twin.url

    def __enter__(self) -> Database:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def close(self) -> None:
        """End the session (and, of `slackwater.open`, the node). Does nothing the second time."""
        if self._closed:
            return
        self._closed = True
        try:
            self._wait(_leave(self._opened))
        finally:
            self._loop.close()

    # --- tables

    def create_table(
        self, name: str, columns: Mapping[str, Any] | Sequence[Any] | Any, *, primary_key: str | Sequence[str]
    ) -> TableSchema:
        """Make a table; see `client.definitions` for how columns and keys are written."""
        return self._wait(self._twin.create_table(name, columns, primary_key=primary_key))

    def drop_table(self, name: str) -> None:
        """Drop a table. Its rows can still be read as of a time before."""
        self._wait(self._twin.drop_table(name))

    def tables(self) -> list[TableSchema]:
        """Every table, by name."""
        return self._wait(self._twin.tables())

    def table(self, name: str) -> TableSchema:
        """What a table looks like now."""
        return self._wait(self._twin.table(name))

    def history(self, name: str) -> TableHistory:
        """Every version of a table, with the time since when each holds."""
        return self._wait(self._twin.history(name))

    # --- rows

    def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key. Up to 10 000 rows are one transaction; more are a bulk load."""
        return self._wait(self._twin.upsert(table, rows))

    def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new; `ConditionFailed` if one is not, and then (up to 10 000 rows) none is."""
        return self._wait(self._twin.insert(table, rows))

    def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key: dicts, key values or tuples, Arrow or pandas with the key columns."""
        return self._wait(self._twin.delete(table, rows))

    def get(self, table: str, key: object, *, nearest: bool = False) -> dict[str, Any] | None:
        """A row by its primary key: a value, a tuple of values, or a dict. The newest; None when there is none.

        `nearest`: by the nearest replica, where the present is closed (policy `lead`).
        """
        return self._wait(self._twin.get(table, key, nearest=nearest))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        nearest: bool = False,
    ) -> Any:
        """Rows as they are now, at one timestamp, in key order, as a `pyarrow.Table`. `nearest`: see `get`."""
        return self._wait(self._twin.scan(table, columns=columns, where=where, limit=limit, nearest=nearest))

    def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come."""
        return self._each(self._twin.scan_batches(table, columns=columns, where=where, limit=limit))

    # --- transactions

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction for the length of a block: committed at its end, rolled back if it raises."""
        opened = self._twin.transaction()
        tx = Transaction(self._loop, self._wait(_enter(opened)))
        try:
            yield tx
        except BaseException as error:
            self._wait(_leave(opened, error))
            raise
        self._wait(_leave(opened))

    def run(self, function: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction and commit; again, after others were in the way, until it succeeds.

        The function must have no effects outside the transaction: it may run many times, and only the last one counts.
        """
        function_of(function)
        attempts = self._twin.attempts()
        tx = Transaction(self._loop, attempts.tx)
        while True:
            try:
                value = function(tx)
                self._wait(attempts.tx.commit())
            except BaseException as error:
                self._wait(attempts.failed(error))
            else:
                return value

    # --- time

    def snapshot(
        self,
        *,
        as_of: Timestamp | dt.datetime | str | int | None = None,
        max_staleness: float | None = None,
        min_timestamp: Timestamp | dt.datetime | str | int | None = None,
        nearest_only: bool = False,
        tables: Sequence[str] = (),
        read_from: str = "any",
        wait: float | None = None,
    ) -> Snapshot:
        """The database at one timestamp; see `AsyncDatabase.snapshot` for the ways to choose it."""
        work = self._twin.snapshot(
            as_of=as_of,
            max_staleness=max_staleness,
            min_timestamp=min_timestamp,
            nearest_only=nearest_only,
            tables=tables,
            read_from=read_from,
            wait=wait,
        )
        return Snapshot(self._loop, self._wait(work))

    def follower_read_timestamp(self, tables: str | Sequence[str] = ()) -> Timestamp:
        """The newest timestamp that all followers of these tables have very likely closed; see `AsyncDatabase`."""
        return self._wait(self._twin.follower_read_timestamp(tables))

    def resolved(self, tables: str | Sequence[str]) -> Timestamp:
        """The timestamp up to which nothing in these tables will ever change, on the replicas nearest to the gateway."""
        return self._wait(self._twin.resolved(tables))

    def close_now(self, tables: str | Sequence[str]) -> Timestamp:
        """Have the present of these tables closed, so that followers serve it; returns that timestamp."""
        return self._wait(self._twin.close_now(tables))

    def frontier(self, tables: str | Sequence[str] = ()) -> list[calls.FrontierRow]:
        """How far every replica of every range of these tables is closed, and why not further."""
        return self._wait(self._twin.frontier(tables))

    # --- parallel reads

    def partitions(self, table: str, num: int | None = None, *, at: Timestamp | None = None) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: one a range, or about `num`."""
        return self._wait(self._twin.partitions(table, num, at=at))

    def read_partition(
        self,
        partition: calls.Partition,
        *,
        at: Timestamp,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        read_from: str = "follower",
        wait: float | None = None,
        on_read: Callable[[calls.RangeRead], None] | None = None,
    ) -> Iterator[Any]:
        """Record batches of one partition as of `at`, from the nearest replica; never less than what was there then."""
        work = self._twin.read_partition(
            partition, at=at, columns=columns, where=where, read_from=read_from, wait=wait, on_read=on_read
        )
        return self._each(work)

    def read_changes(
        self,
        partition: calls.Partition,
        *,
        after: Timestamp,
        upto: Timestamp,
        diff: bool = False,
        columns: Sequence[str] | None = None,
        read_from: str = "follower",
        wait: float | None = None,
    ) -> Iterator[Any]:
        """Every change of a partition with after < commit <= upto, as record batches with the change columns."""
        work = self._twin.read_changes(
            partition, after=after, upto=upto, diff=diff, columns=columns, read_from=read_from, wait=wait
        )
        return self._each(work)

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
    ) -> Iterator[ChangeBatch]:
        """Follow tables; see `AsyncDatabase.changes`. The iteration waits for the next batch; leave it to end the feed."""
        work = self._twin.changes(
            tables,
            after=after,
            initial_scan=initial_scan,
            until=until,
            diff=diff,
            resolved=resolved,
            atomic=atomic,
            on_schema_change=on_schema_change,
            expires_after=expires_after,
        )
        return self._each(work)

    # --- one commit from many processes

    def staging(self, table: str, operation: str = "upsert", *, job: Job | None = None) -> Part:
        """A part of a commit to be: rows that this process brings, seen by nobody before `publish` (`client.staging`)."""
        return Part(self._loop, self._wait(self._twin.staging(table, operation, job=job)))

    def publish(
        self,
        table: str,
        parts: Sequence[PartRef],
        operation: str = "upsert",
        *,
        app: tuple[str, int] | None = None,
        owner: str = "",
        keep: Sequence[str] = (),
        job: bytes = b"",
        timeout: float = PUBLISH_TIMEOUT_S,
    ) -> Published:
        """Write the rows of all parts at one timestamp; under a name, `app`, at most once (see `AsyncDatabase.publish`)."""
        work = self._twin.publish(table, parts, operation, app=app, owner=owner, keep=keep, job=job, timeout=timeout)
        return self._wait(work)

    def drop_staged(self, parts: Sequence[PartRef]) -> None:
        """Forget parts. What was published from them stays."""
        self._wait(self._twin.drop_staged(parts))

    # --- this session

    @property
    def cluster_id(self) -> str:
        """The id that the cluster was given when it was made."""
        return self._twin.cluster_id

    @property
    def session_floor(self) -> Timestamp:
        """The highest timestamp that this session was told: its reads of the present are never below (`client.session`)."""
        return self._twin.session_floor

    def raise_session_floor(self, ts: int) -> None:
        """Go on from where another session stands: reads of the present see everything up to its `session_floor`."""
        self._twin.raise_session_floor(ts)

    def now(self) -> Timestamp:
        """A timestamp above everything this session has heard of."""
        return self._twin.now()

    def nodes(self) -> list[calls.ReplicaPlace]:
        """The nodes of the cluster, as the gateway knows them."""
        return self._wait(self._twin.nodes())


async def _enter(opened: AbstractAsyncContextManager[T]) -> T:
    return await opened.__aenter__()


async def _leave(opened: AbstractAsyncContextManager[Any], error: BaseException | None = None) -> None:
    """Leave a block, normally or by an error; the caller raises that error again himself."""
    if error is None:
        await opened.__aexit__(None, None, None)
        return
    try:
        await opened.__aexit__(type(error), error, error.__traceback__)
    except BaseException as again:
        if again is not error:
            raise
