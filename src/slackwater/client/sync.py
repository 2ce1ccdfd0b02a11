"""The same database for programs that do not await: every method waits for its asynchronous twin.

Written by `make sync-client` (`scripts/sync_client.py`) from the asynchronous classes; do not edit it by hand.

One thread per `Database` runs the loop (`runtime.loop_thread`), so several threads of an application may share one. Streams
of record batches are ordinary iterators; one that is not read to its end is closed when it is dropped.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.client.blocking import Blocking, Session
from slackwater.client.database import PROTECT_TTL_S
from slackwater.client.jobs import AsyncJobClaim, AsyncJobs
from slackwater.client.snapshot import AsyncSnapshot
from slackwater.client.staging import PUBLISH_TIMEOUT_S, AsyncPart
from slackwater.client.transaction import AsyncTransaction

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from slackwater.client.changes import ChangeBatch
    from slackwater.client.definitions import Index
    from slackwater.client.schema_changes import TableChange
    from slackwater.client.writes import WriteResult
    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.access_paths import ScanExplanation
    from slackwater.model.jobs import Job
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client import calls
    from slackwater.protocol.client.protections import Protection
    from slackwater.protocol.client.schema import LeasesReply
    from slackwater.protocol.client.staging import PartRef, Published, StagingJob

T = TypeVar("T")


class Transaction(Blocking[AsyncTransaction]):
    """`AsyncTransaction`, waited for. Made by `Database.transaction` and `run`."""

    def create_table(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[Any] | Any,
        *,
        primary_key: str | Sequence[str],
        indexes: Sequence[Index] = (),
    ) -> TableSchema:
        """Make a table: it is here at once, and there for others when this transaction commits; see `Database.create_table`."""
        return self._loop.run(self._twin.create_table(name, columns, primary_key=primary_key, indexes=indexes))

    def drop_table(self, name: str) -> None:
        """Drop a table when this transaction commits; the job that does it is in `jobs` then. It cannot be used here any more."""
        self._loop.run(self._twin.drop_table(name))

    def alter_table(
        self,
        table: str,
        *,
        add_column: Mapping[str, Any] | Sequence[Any] | None = None,
        rename_column: Mapping[str, str] | None = None,
        set_type: Mapping[str, Any] | None = None,
        set_not_null: str | Sequence[str] = (),
        drop_not_null: str | Sequence[str] = (),
        add_check: Mapping[str, str] | None = None,
        drop_check: str | Sequence[str] = (),
        drop_column: str | Sequence[str] = (),
        rename_to: str | None = None,
    ) -> TableSchema:
        """Change a table when this transaction commits, as `Database.alter_table` does; returns what it looks like here now."""
        return self._loop.run(
            self._twin.alter_table(
                table,
                add_column=add_column,
                rename_column=rename_column,
                set_type=set_type,
                set_not_null=set_not_null,
                drop_not_null=drop_not_null,
                add_check=add_check,
                drop_check=drop_check,
                drop_column=drop_column,
                rename_to=rename_to,
            )
        )

    def create_index(
        self,
        table: str,
        name: str,
        columns: str | Sequence[str],
        *,
        unique: bool = False,
        storing: str | Sequence[str] = (),
    ) -> None:
        """Begin to build an index when this transaction commits; its job is in `jobs` then."""
        self._loop.run(self._twin.create_index(table, name, columns, unique=unique, storing=storing))

    def drop_index(self, table: str, name: str) -> None:
        """Begin to remove an index when this transaction commits; its job is in `jobs` then."""
        self._loop.run(self._twin.drop_index(table, name))

    @property
    def commit_timestamp(self) -> Timestamp:
        """When it happened; known after the commit."""
        return self._twin.commit_timestamp

    @property
    def jobs(self) -> list[Job]:
        """Of schema changes that began with the commit; known after it."""
        return self._twin.jobs

    def get(self, table: str, key: object, *, by: str | None = None) -> dict[str, Any] | None:
        """A row by its primary key, or by a unique index (`by`); None when there is none."""
        return self._loop.run(self._twin.get(table, key, by=by))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Any:
        """Rows as a `pyarrow.Table`, the transaction's own writes included; the rest is as in `Database.scan`."""
        return self._loop.run(
            self._twin.scan(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key."""
        return self._loop.run(self._twin.upsert(table, rows))

    def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new; `ConditionFailed` if one is not, and then none is written."""
        return self._loop.run(self._twin.insert(table, rows))

    def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key: dicts, key values or tuples, Arrow or pandas with the key columns."""
        return self._loop.run(self._twin.delete(table, rows))


class Snapshot(Blocking[AsyncSnapshot]):
    """`AsyncSnapshot`, waited for. Made by `Database.snapshot`."""

    @property
    def timestamp(self) -> Timestamp:
        """The one timestamp that everything is read at."""
        return self._twin.timestamp

    @property
    def protection(self) -> Protection | None:
        """What keeps its history from being collected, if that was asked for."""
        return self._twin.protection

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
        return self._loop.run(self._twin.table(name))

    def get(self, table: str, key: object, *, by: str | None = None) -> dict[str, Any] | None:
        """A row by its primary key as it was, or by a unique index that there was then; None when there was none."""
        return self._loop.run(self._twin.get(table, key, by=by))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Any:
        """Rows as they were, as a `pyarrow.Table`, by the indexes that there were then; the rest is as in `Database.scan`."""
        return self._loop.run(
            self._twin.scan(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come; an `order` must be that of an index."""
        return self._loop.iterate(
            self._twin.scan_batches(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    def explain_scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> ScanExplanation:
        """How `scan` would read: see `Database.explain_scan`."""
        return self._loop.run(
            self._twin.explain_scan(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    def partitions(
        self, table: str, num: int | None = None, *, columns: Sequence[str] | None = None, where: Sequence[Any] = ()
    ) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: see `Database.partitions`."""
        return self._loop.run(self._twin.partitions(table, num, columns=columns, where=where))

    def renew(self, seconds: float) -> None:
        """Keep a protected snapshot for so many seconds from now."""
        self._loop.run(self._twin.renew(seconds))

    def release(self) -> None:
        """Let the history of a protected snapshot be collected; reading it may fail from now on."""
        self._loop.run(self._twin.release())


class Part(Blocking[AsyncPart]):
    """`AsyncPart`, waited for. Made by `Database.staging`."""

    def add(self, rows: Any) -> None:
        """Stage rows: an Arrow batch or table, a DataFrame, dicts."""
        self._loop.run(self._twin.add(rows))

    def finish(self) -> PartRef:
        """Everything is in the cluster; what to publish."""
        return self._loop.run(self._twin.finish())


class JobClaim(Blocking[AsyncJobClaim]):
    """`AsyncJobClaim`, waited for. Made by `db.jobs.start` and `claim`."""

    @property
    def job(self) -> Job:
        """The job as of the last message."""
        return self._twin.job

    @property
    def number(self) -> int:
        """The number of this claim; the row of the job has another one once the claim has ended."""
        return self._twin.number

    @property
    def payload(self) -> Any:
        """What to do."""
        return self._twin.payload

    @property
    def checkpoint(self) -> Any:
        """How far the job is."""
        return self._twin.checkpoint

    def work(self, *, checkpoint: Any = None, fraction: float | None = None, progress: str | None = None) -> Job:
        """Renew the claim, and write how far the job is. `ClaimLost` when it is to be stopped, or is another's."""
        return self._loop.run(self._twin.work(checkpoint=checkpoint, fraction=fraction, progress=progress))

    def succeed(self) -> Job:
        """End the job: it is done."""
        return self._loop.run(self._twin.succeed())

    def fail(self, error: str) -> Job:
        """End the job: it cannot be done."""
        return self._loop.run(self._twin.fail(error))

    def give_up(self) -> Job:
        """Let another application go on with the job at once."""
        return self._loop.run(self._twin.give_up())


class Jobs(Blocking[AsyncJobs]):
    """`AsyncJobs`, waited for. Made by `Database.jobs`."""

    def list(self, *, status: str | Sequence[str] = (), kind: str = "") -> list[Job]:
        """Every job that is kept, by id; those of some status or kind."""
        return self._loop.run(self._twin.list(status=status, kind=kind))

    def get(self, job_id: int) -> Job:
        """One job."""
        return self._loop.run(self._twin.get(job_id))

    def pause(self, job_id: int) -> Job:
        """Have a job stopped until it is resumed."""
        return self._loop.run(self._twin.pause(job_id))

    def resume(self, job_id: int) -> Job:
        """Have a paused job gone on with."""
        return self._loop.run(self._twin.resume(job_id))

    def cancel(self, job_id: int) -> Job:
        """Have a job stopped for good, and what it did undone."""
        return self._loop.run(self._twin.cancel(job_id))

    def wait(self, job_id: int, *, timeout: float | None = None) -> Job:
        """Return when a job has ended, however it ended; `DeadlineExceeded` after `timeout` seconds."""
        return self._loop.run(self._twin.wait(job_id, timeout=timeout))

    def verify(self, table: str, *, at: Timestamp | dt.datetime | str | int | None = None, name: str = "") -> Job:
        """Start a job that reads and decodes every row of a table as of a time, or as of now.

        With a `name`, at most once: the second call returns the job of the first.
        """
        return self._loop.run(self._twin.verify(table, at=at, name=name))

    def start(self, description: str, *, application: str, payload: Any = None, name: str = "") -> JobClaim:
        """Make a job whose work is done by an application, and claim it. With a `name`, at most once: see `claim`."""
        return JobClaim(
            self._loop,
            self._loop.run(self._twin.start(description, application=application, payload=payload, name=name)),
        )

    def claim(self, job_id: int, *, application: str) -> JobClaim:
        """Go on with a job that waits for an application, or whose application has fallen silent."""
        return JobClaim(self._loop, self._loop.run(self._twin.claim(job_id, application=application)))


class Database(Session):
    """`AsyncDatabase`, waited for. Made by `slackwater.connect` and `slackwater.open`; close it, or use it in a `with`."""

    def create_table(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[Any] | Any,
        *,
        primary_key: str | Sequence[str],
        indexes: Sequence[Index] = (),
    ) -> TableSchema:
        """Make a table; see `client.definitions` for how columns, keys and indexes (`Index`) are written."""
        return self._loop.run(self._twin.create_table(name, columns, primary_key=primary_key, indexes=indexes))

    def tables(self) -> list[TableSchema]:
        """Every table, by name."""
        return self._loop.run(self._twin.tables())

    def table(self, name: str) -> TableSchema:
        """What a table looks like now."""
        return self._loop.run(self._twin.table(name))

    def history(self, name: str | int) -> TableHistory:
        """Every version of a table, by name or id, with the time since when each holds. Asks: the answer is of now.

        By its id, a table is found also after it was renamed or dropped.
        """
        return self._loop.run(self._twin.history(name))

    def create_index(
        self,
        table: str,
        name: str,
        columns: str | Sequence[str],
        *,
        unique: bool = False,
        storing: str | Sequence[str] = (),
        wait: bool = True,
        timeout: float | None = None,
        dry_run: bool = False,
    ) -> TableChange:
        """Build a secondary index on columns, each possibly followed by ` desc`, beside all reads and writes.

        Args:
            table: the table.
            name: what the index is called.
            columns: its columns, in order.
            unique: no two rows have the same values in them (NULLs differ). If two have, the job fails and names them.
            storing: columns whose values the index carries too, so that a read of them needs no row.
            wait: return when the index can be used; otherwise at once, with the job.
            timeout: how many seconds to wait; the job goes on.
            dry_run: change nothing, say what would be done.
        """
        return self._loop.run(
            self._twin.create_index(
                table, name, columns, unique=unique, storing=storing, wait=wait, timeout=timeout, dry_run=dry_run
            )
        )

    def drop_index(
        self, table: str, name: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Remove a secondary index; reads as of before still use it."""
        return self._loop.run(self._twin.drop_index(table, name, wait=wait, timeout=timeout, dry_run=dry_run))

    def alter_table(
        self,
        table: str,
        *,
        add_column: Mapping[str, Any] | Sequence[Any] | None = None,
        rename_column: Mapping[str, str] | None = None,
        set_type: Mapping[str, Any] | None = None,
        set_not_null: str | Sequence[str] = (),
        drop_not_null: str | Sequence[str] = (),
        add_check: Mapping[str, str] | None = None,
        drop_check: str | Sequence[str] = (),
        drop_column: str | Sequence[str] = (),
        rename_to: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        dry_run: bool = False,
    ) -> TableChange:
        """Change columns, checks or the name of a table. Several changes are made in the order of the arguments here.

        Args:
            table: the table.
            add_column: as in `create_table`: names and types such as "int8 not null default 0". No row is rewritten.
            rename_column: old names and new ones.
            set_type: columns and their wider types.
            set_not_null: columns in which NULL is forbidden from now on; a row that has one is named, and nothing changes.
            drop_not_null: columns in which NULL is allowed.
            add_check: names and conditions such as "price >= 0 and state in ('new', 'paid')".
            drop_check: names of checks.
            drop_column: columns to remove; what was in them can be read as of before.
            rename_to: the table's new name.
            wait: return when all of it is done; otherwise at once, with the jobs.
            timeout: how many seconds to wait; the jobs go on.
            dry_run: change nothing, say what would be done.
        """
        return self._loop.run(
            self._twin.alter_table(
                table,
                add_column=add_column,
                rename_column=rename_column,
                set_type=set_type,
                set_not_null=set_not_null,
                drop_not_null=drop_not_null,
                add_check=add_check,
                drop_check=drop_check,
                drop_column=drop_column,
                rename_to=rename_to,
                wait=wait,
                timeout=timeout,
                dry_run=dry_run,
            )
        )

    def rename_table(
        self, table: str, to_name: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Call a table something else; its old name is free when this returns."""
        return self._loop.run(self._twin.rename_table(table, to_name, wait=wait, timeout=timeout, dry_run=dry_run))

    def truncate_table(
        self, table: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Remove all rows of a table at one time; they can still be read as of before. Writes wait for a moment."""
        return self._loop.run(self._twin.truncate_table(table, wait=wait, timeout=timeout, dry_run=dry_run))

    def drop_table(self, name: str, *, wait: bool = True, dry_run: bool = False) -> TableChange:
        """Drop a table. Its rows can still be read as of a time before. What else was under way for it ends."""
        return self._loop.run(self._twin.drop_table(name, wait=wait, dry_run=dry_run))

    def leases(self, table: str | None = None) -> LeasesReply:
        """Which nodes write by which versions of a table, or of all, and what schema changes that have not ended wait for.

        A node holds a lease on each version that it writes by. A change publishes its next version when no node holds an
        older one than the newest: `leases` tells since when each is held and why, `waiting` what each change waits for.
        """
        return self._loop.run(self._twin.leases(table))

    @property
    def url(self) -> str:
        """How another process reaches the same cluster; empty when it cannot."""
        return self._twin.url

    def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key.

        Up to 10 000 rows (and 4 MiB) are one transaction; more are a bulk load, written block by block (`client.writes`).
        """
        return self._loop.run(self._twin.upsert(table, rows))

    def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new; `ConditionFailed` if one is not, and then (up to 10 000 rows) none is."""
        return self._loop.run(self._twin.insert(table, rows))

    def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key: dicts, key values or tuples, Arrow or pandas with the key columns. Missing rows are fine."""
        return self._loop.run(self._twin.delete(table, rows))

    def get(self, table: str, key: object, *, by: str | None = None, nearest: bool = False) -> dict[str, Any] | None:
        """A row by its primary key: a value, a tuple of values, or a dict. The newest; None when there is none.

        With `by`, the row that has these values in a unique index, which is named, or the only column of which is.
        With `nearest`, from the replica nearest to the gateway if the present is closed there: on every replica of a table
        whose policy is `lead`. Elsewhere the leaseholder answers, one message later. The answer is as fresh either way.
        """
        return self._loop.run(self._twin.get(table, key, by=by, nearest=nearest))

    def scan(
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
        return self._loop.run(
            self._twin.scan(table, columns=columns, where=where, limit=limit, nearest=nearest, index=index, order=order)
        )

    def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come; an `order` must be that of an index.

        If the scan must begin again, that is a `RetryableError`.
        """
        return self._loop.iterate(
            self._twin.scan_batches(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    def explain_scan(
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
        return self._loop.run(
            self._twin.explain_scan(table, columns=columns, where=where, limit=limit, index=index, order=order)
        )

    @contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """A transaction for the length of a block: committed at its end, rolled back if it raises."""
        with self._block(self._twin.transaction()) as twin:
            yield Transaction(self._loop, twin)

    def run(self, function: Callable[[Transaction], T]) -> T:
        """Run a function in a transaction and commit; again, after others were in the way, until it succeeds.

        The function must have no effects outside the transaction: it may run many times, all within one timeout.
        """
        attempts = self._twin.attempts()
        return self._retry(attempts, Transaction(self._loop, attempts.tx), function)

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
        protect: bool = False,
        protect_ttl: float = PROTECT_TTL_S,
    ) -> Snapshot:
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
        return Snapshot(
            self._loop,
            self._loop.run(
                self._twin.snapshot(
                    as_of=as_of,
                    max_staleness=max_staleness,
                    min_timestamp=min_timestamp,
                    nearest_only=nearest_only,
                    tables=tables,
                    read_from=read_from,
                    wait=wait,
                    protect=protect,
                    protect_ttl=protect_ttl,
                )
            ),
        )

    def follower_read_timestamp(self, tables: str | Sequence[str] = ()) -> Timestamp:
        """The newest timestamp that all followers of these tables have very likely closed; no replica is asked.

        By the tables' own policies (`slackwater zone`): a little older than the target of the laziest of them, the
        present if all of them lead, `UsageError` if one is off. Without tables, by the cluster's
        `closed_timestamp.target_duration`.
        """
        return self._loop.run(self._twin.follower_read_timestamp(tables))

    def resolved(self, tables: str | Sequence[str]) -> Timestamp:
        """The timestamp up to which nothing in these tables changes any more, on the replicas nearest to the gateway."""
        return self._loop.run(self._twin.resolved(tables))

    def close_now(self, tables: str | Sequence[str]) -> Timestamp:
        """Have the present of these tables closed, so that followers serve it; returns that timestamp."""
        return self._loop.run(self._twin.close_now(tables))

    def frontier(self, tables: str | Sequence[str] = ()) -> list[calls.FrontierRow]:
        """How far every replica of every range of these tables (all, when none is named) is closed, and why not further."""
        return self._loop.run(self._twin.frontier(tables))

    def partitions(
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
        return self._loop.run(self._twin.partitions(table, num, at=at, columns=columns, where=where))

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
        """Record batches of one partition as of `at`, from the nearest replica; never less than what was there then.

        A partition that was made for `at` or later brings the versions of its table: nothing but the replica is asked.
        """
        return self._loop.iterate(
            self._twin.read_partition(
                partition, at=at, columns=columns, where=where, read_from=read_from, wait=wait, on_read=on_read
            )
        )

    def read_changes(
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
    ) -> Iterator[Any]:
        """Every change of a partition with after < commit <= upto, as record batches with the columns of a feed.

        Those are `_op` (insert, update, delete), `_commit_ts`, `_txn`, `_version` and, with `diff`, `_before`.

        The same call gives the same changes, in key order, oldest first within a key, for as long as history is kept.
        With `columns`, only those of the table's; with an empty list, none but the change columns. Rows have the columns of the
        version at `upto`, or of `version`.
        """
        return self._loop.iterate(
            self._twin.read_changes(
                partition,
                after=after,
                upto=upto,
                diff=diff,
                columns=columns,
                version=version,
                read_from=read_from,
                wait=wait,
            )
        )

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
        return self._loop.iterate(
            self._twin.changes(
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
        )

    def protect(
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
        return self._loop.run(self._twin.protect(tables, at=at, after=after, expires=expires, reason=reason, kind=kind))

    def renew_protection(self, protection: Protection | str, *, expires: float, after: Any = None) -> Protection:
        """Let a protection expire so many seconds from now instead.

        `after`: of a protection made with `after`, keep only what is live at this later time, and everything since.
        """
        return self._loop.run(self._twin.renew_protection(protection, expires=expires, after=after))

    def release(self, protection: Protection | str) -> None:
        """Let what a protection keeps be collected. `NotFound` if it is gone; `AccessDenied` if it is another user's."""
        self._loop.run(self._twin.release(protection))

    def protections(self) -> list[Protection]:
        """Every protection: what, since when, for whom, and how many bytes of history it pins."""
        return self._loop.run(self._twin.protections())

    def staging(self, table: str, operation: str = "upsert", *, job: StagingJob | None = None) -> Part:
        """A part of a commit to be: rows that this process brings, invisible before `publish` (`client.staging`)."""
        return Part(self._loop, self._loop.run(self._twin.staging(table, operation, job=job)))

    def publish(
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
        return self._loop.run(
            self._twin.publish(table, parts, operation, app=app, owner=owner, keep=keep, timeout=timeout)
        )

    def drop_staged(self, parts: Sequence[PartRef]) -> None:
        """Forget parts. What was published from them stays."""
        self._loop.run(self._twin.drop_staged(parts))

    @property
    def jobs(self) -> Jobs:
        """The durable jobs of the cluster: look, pause, resume, cancel, wait (`client.jobs`)."""
        return Jobs(self._loop, self._twin.jobs)

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
        return self._loop.run(self._twin.nodes())
