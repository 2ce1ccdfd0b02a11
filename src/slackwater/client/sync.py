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
    from slackwater.client.writes import WriteResult
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.jobs import Job
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client import calls
    from slackwater.protocol.client.protections import Protection
    from slackwater.protocol.client.staging import PartRef, Published, StagingJob

T = TypeVar("T")


class Transaction(Blocking[AsyncTransaction]):
    """`AsyncTransaction`, waited for. Made by `Database.transaction` and `run`."""

    @property
    def commit_timestamp(self) -> Timestamp:
        """When it happened; known after the commit."""
        return self._twin.commit_timestamp

    def get(self, table: str, key: object) -> dict[str, Any] | None:
        """A row by its primary key, or None."""
        return self._loop.run(self._twin.get(table, key))

    def scan(
        self, table: str, *, columns: Sequence[str] | None = None, where: Sequence[Any] = (), limit: int | None = None
    ) -> Any:
        """Rows as a `pyarrow.Table`, the transaction's own writes included."""
        return self._loop.run(self._twin.scan(table, columns=columns, where=where, limit=limit))

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

    def get(self, table: str, key: object) -> dict[str, Any] | None:
        """A row by its primary key as it was, or None."""
        return self._loop.run(self._twin.get(table, key))

    def scan(
        self, table: str, *, columns: Sequence[str] | None = None, where: Sequence[Any] = (), limit: int | None = None
    ) -> Any:
        """Rows as they were, as a `pyarrow.Table`."""
        return self._loop.run(self._twin.scan(table, columns=columns, where=where, limit=limit))

    def scan_batches(
        self, table: str, *, columns: Sequence[str] | None = None, where: Sequence[Any] = (), limit: int | None = None
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come."""
        return self._loop.iterate(self._twin.scan_batches(table, columns=columns, where=where, limit=limit))

    def partitions(self, table: str, num: int | None = None) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: one a range, or about `num`."""
        return self._loop.run(self._twin.partitions(table, num))

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
        self, name: str, columns: Mapping[str, Any] | Sequence[Any] | Any, *, primary_key: str | Sequence[str]
    ) -> TableSchema:
        """Make a table; see `client.definitions` for how columns and keys are written."""
        return self._loop.run(self._twin.create_table(name, columns, primary_key=primary_key))

    def drop_table(self, name: str) -> None:
        """Drop a table. Its rows can still be read as of a time before."""
        self._loop.run(self._twin.drop_table(name))

    def tables(self) -> list[TableSchema]:
        """Every table, by name."""
        return self._loop.run(self._twin.tables())

    def table(self, name: str) -> TableSchema:
        """What a table looks like now."""
        return self._loop.run(self._twin.table(name))

    def history(self, name: str) -> TableHistory:
        """Every version of a table, with the time since when each holds. Asks: the answer is of now."""
        return self._loop.run(self._twin.history(name))

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

    def get(self, table: str, key: object, *, nearest: bool = False) -> dict[str, Any] | None:
        """A row by its primary key: a value, a tuple of values, or a dict. The newest; None when there is none.

        With `nearest`, from the replica nearest to the gateway if the present is closed there: on every replica of a table
        whose policy is `lead`. Elsewhere the leaseholder answers, one message later. The answer is as fresh either way.
        """
        return self._loop.run(self._twin.get(table, key, nearest=nearest))

    def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        nearest: bool = False,
    ) -> Any:
        """Rows as they are now, at one timestamp, in key order, as a `pyarrow.Table`.

        `where` is a list of `(column, operator, value)`, joined by AND; conditions on the primary key read less.
        `nearest`: see `get`. All of it takes at most the session's timeout; `scan_batches` is for what takes longer.
        """
        return self._loop.run(self._twin.scan(table, columns=columns, where=where, limit=limit, nearest=nearest))

    def scan_batches(
        self, table: str, *, columns: Sequence[str] | None = None, where: Sequence[Any] = (), limit: int | None = None
    ) -> Iterator[Any]:
        """The same, batch by batch, as they come. If the scan must begin again, that is a `RetryableError`."""
        return self._loop.iterate(self._twin.scan_batches(table, columns=columns, where=where, limit=limit))

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

    def partitions(self, table: str, num: int | None = None, *, at: Timestamp | None = None) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: one a range, or about `num`."""
        return self._loop.run(self._twin.partitions(table, num, at=at))

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
        read_from: str = "follower",
        wait: float | None = None,
    ) -> Iterator[Any]:
        """Every change of a partition with after < commit <= upto, as record batches with the columns of a feed.

        Those are `_op` (insert, update, delete), `_commit_ts`, `_txn`, `_version` and, with `diff`, `_before`.

        The same call gives the same changes, in key order, oldest first within a key, for as long as history is kept.
        With `columns`, only those of the table's; with an empty list, none but the change columns.
        """
        return self._loop.iterate(
            self._twin.read_changes(
                partition, after=after, upto=upto, diff=diff, columns=columns, read_from=read_from, wait=wait
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

    def renew_protection(self, protection: Protection | str, *, expires: float) -> Protection:
        """Let a protection expire so many seconds from now instead."""
        return self._loop.run(self._twin.renew_protection(protection, expires=expires))

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
