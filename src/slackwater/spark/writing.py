"""Writes from Spark: every task stages its rows in the cluster, the driver publishes all of them in one commit.

    task      write(rows)  ──► part in the cluster (invisible) ──► message: which part
    driver    commit(messages) ──► publish: one transaction, one timestamp, and the mark (table, operation, txnAppId, txnVersion)
              abort(messages)  ──► drop the parts; what was published stays

Why it is safe
    - Spark runs tasks twice, and only one attempt's message reaches `commit`: the other's part is never published, and goes with
      the job (`slackwater jobs` shows every write that is on its way) that all attempts stage for.
    - Spark runs `commit` twice, or `abort` after a commit that succeeded: the mark makes the second publish a no-op, and
      dropping parts drops no rows.
    - A stream's batch has a name of its own, query id and batch id, so that a replay after a lost commit file is a no-op.
      The id of a query lives in its checkpoint. Under a `txnAppId` of the user's, in a sink or in foreachBatch, a query with
      a new checkpoint is told from a replay by that id, and its batches are refused instead of taken for old ones.
    - A mark counts for one operation on one table, meant by its id, so that a batch may upsert and delete under one number.

With `atomic=false` tasks commit by themselves, batch by batch, and a task that is run again writes again: at least once.
Upserts and deletes do not mind; inserts may fail on their own rows.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from typing import TYPE_CHECKING, Any

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from slackwater.clock.timestamp import MIN, us_of
from slackwater.errors import UsageError
from slackwater.protocol.client.staging import PART_BYTES, TIME_BYTES, PartRef, StagingJob, part_id
from slackwater.spark.connection import database, wrote
from slackwater.spark.floors import LOCAL_DIRECTORIES
from slackwater.spark.names import demand_exact, meant
from slackwater.spark.options import Missing, Operation
from slackwater.spark.types import can_store, spark_type

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from slackwater.client import Database
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.schema import TableSchema
    from slackwater.spark.options import Options

QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"
RUN_ID = "spark.jobGroup.id"


class Staged(WriterCommitMessage):
    """What one attempt of one task staged, and for which query."""

    def __init__(self, part: PartRef | None, query: str, upto: Timestamp = MIN) -> None:
        self.part = part
        self.query = query
        self.upto = upto
        """Up to when the task has written by itself."""


class _Writing:
    """What batch and stream writers share."""

    def __init__(self, options: Options, table: TableSchema, schema: StructType) -> None:
        self._names = check_columns(table, schema, options)
        """What each column is called by the frame, and by the table."""
        self._options = options
        self._table = table

    @property
    def _db(self) -> Database:
        return database(self._options)

    def _write(self, batches: Iterator[pa.RecordBatch], job: StagingJob | None = None) -> Staged:
        """In a task."""
        demand_exact(self._names, table=self._table.name)
        named = (
            batch.rename_columns([self._names[n] for n in batch.schema.names]) for batch in batches if batch.num_rows
        )
        query = _query()
        if not self._options.atomic:
            return self._write_through(named, query)
        part = self._db.staging(self._table.name, self._options.operation.value, job=job)
        for batch in named:
            part.add(batch)
        return Staged(part.finish(), query)

    def _write_through(self, batches: Iterator[pa.RecordBatch], query: str) -> Staged:
        db, name = self._db, self._table.name
        write = {Operation.UPSERT: db.upsert, Operation.INSERT: db.insert, Operation.DELETE: db.delete}
        upto = MIN
        for batch in batches:
            upto = max(upto, write[self._options.operation](name, batch).timestamp)
        return Staged(None, query, upto)

    def _publish(self, messages: Sequence[WriterCommitMessage | None], app: tuple[str, int] | None) -> None:
        """In the driver. A task without a message failed, and then Spark does not commit."""
        parts = _parts(messages)
        if not parts and app is None:
            return
        owner = _query_of(messages) if app is not None else ""
        db = self._db
        done = db.publish(
            self._table.name, parts, self._options.operation.value, app=app, owner=owner, keep=self._kept()
        )
        wrote(db, done.ts)
        brought = sum(part.rows for part in parts)
        if done.already and app is not None and done.rows != brought:
            text = _skipped(self._table.name, self._options.operation, app, written=done.rows, brought=brought)
            warnings.warn(text, stacklevel=2)

    def _kept(self) -> list[str]:
        """The columns that an upsert leaves as they are."""
        if self._options.missing is not Missing.KEEP or self._options.operation is not Operation.UPSERT:
            return []
        return [column.name for column in self._table.columns if column.name not in self._names.values()]

    def _written(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """In the driver, after tasks that wrote by themselves."""
        wrote(self._db, max((m.upto for m in messages if isinstance(m, Staged)), default=MIN))

    def _drop(self, messages: Sequence[WriterCommitMessage | None], *jobs: bytes) -> None:
        """In the driver: what was staged goes, of tasks that sent no message too where the name of their job is known."""
        self._db.drop_staged([*_parts(messages), *(PartRef(job, 0, 0) for job in jobs)])


class BatchWriter(_Writing, DataSourceArrowWriter):
    """`df.write.format("slackwater").mode("append")`."""

    def __init__(self, options: Options, table: TableSchema, schema: StructType) -> None:
        super().__init__(options, table, schema)
        self._job = _new_job(self._db)
        """One object writes in all tasks, so what they stage is one job, and their rows are counted together."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # pyspark's own twist
        """In a task: stage."""
        context = TaskContext.get()
        return self._write(iterator, StagingJob(self._job, context.partitionId() if context is not None else 0))

    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver: publish."""
        if not self._options.atomic:
            self._written(messages)
            return
        app, version = self._options.txn_app, self._options.txn_version
        self._publish(messages, None if app is None or version is None else (app, version))

    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """In the driver, after a failure; perhaps one that came after the commit."""
        self._drop(messages, self._job)


class StreamWriter(_Writing, DataSourceStreamArrowWriter):
    """`df.writeStream.format("slackwater")`."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Staged:  # type: ignore[override]  # pyspark's own twist
        """In a task: stage."""
        if not _query():
            raise UsageError("Spark does not say which query this is; use foreachBatch with txnAppId and txnVersion")
        return self._write(iterator, _batch_job())

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """In the driver: publish under the name of the batch."""
        if not self._options.atomic:
            self._written(messages)
            return
        query = _query_of(messages)
        if query:  # a batch without tasks has no rows
            self._publish(messages, (self._options.txn_app or f"spark-query:{query}", batchId))

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803
        """In the driver, after a failure; perhaps one that came after the commit."""
        self._drop(messages)


def _new_job(db: Database) -> bytes:
    """An id for the rows that all tasks of a write stage: the time, and what tells this process from others."""
    now = db.now()
    own = f"{os.environ.get(LOCAL_DIRECTORIES, '')} {os.getpid()} {now}"
    return part_id(us_of(now), hashlib.blake2b(own.encode(), digest_size=PART_BYTES - TIME_BYTES).digest())


def _batch_job() -> StagingJob | None:
    """The job that all tasks of one try at a stream's batch stage for; None where Spark does not say which batch it is."""
    context = TaskContext.get()
    batch = context.getLocalProperty(BATCH_ID) if context is not None else None
    if context is None or not batch:
        return None
    tried = f"{_query()} {context.getLocalProperty(RUN_ID)} {batch} {context.stageId()}"
    return StagingJob(hashlib.blake2b(tried.encode(), digest_size=PART_BYTES).digest(), context.partitionId())


def _query() -> str:
    """The id of the streaming query that a task works for, also in foreachBatch; only tasks know it. Empty without one."""
    context = TaskContext.get()
    return (context.getLocalProperty(QUERY_ID) or "") if context is not None else ""


def _query_of(messages: Sequence[WriterCommitMessage | None]) -> str:
    return next((message.query for message in messages if isinstance(message, Staged) and message.query), "")


def _skipped(table: str, operation: Operation, app: tuple[str, int], *, written: int, brought: int) -> str:
    """What the user is told of a repeat that does not look like one."""
    return (
        f"nothing was written to {table}: {operation.value} under txnAppId {app[0]} has happened up to txnVersion {app[1]} or "
        f"later already, last with {written} rows, and this job brings {brought}. If it is no repeat, it needs a higher "
        "txnVersion, or a txnAppId of its own"
    )


def _parts(messages: Sequence[WriterCommitMessage | None]) -> list[PartRef]:
    return [m.part for m in messages if isinstance(m, Staged) and m.part is not None and m.part.rows]


def check_columns(table: TableSchema, schema: StructType, options: Options) -> dict[str, str]:
    """What each column is called by the frame and by the table; refuses a frame that does not fit, before any task runs."""
    names = meant(schema.fieldNames(), [column.name for column in table.columns], table=table.name)
    for field in schema.fields:
        column = table.column(names[field.name])
        if not can_store(field.dataType, column.type):
            raise UsageError(
                f"column {column.name} of table {table.name} is {column.type} and does not take "
                f"{field.dataType.simpleString()}; cast it in Spark, to {spark_type(column.type).simpleString()}"
            )
    absent = [column for column in table.columns if column.name not in names.values()]
    keys = {column.name for column, _ in table.key_columns()}
    operation = options.operation
    needed = [
        column.name
        for column in absent
        if (column.name in keys and (operation is Operation.DELETE or not column.function))
        or (operation is not Operation.DELETE and not column.nullable and not column.has_default)
    ]
    if needed:
        raise UsageError(
            f"the frame has no column {', '.join(needed)}, which table {table.name} needs for {operation.value}",
            columns=list(names),
        )
    if absent and operation is Operation.UPSERT and options.missing is Missing.REFUSE:
        raise UsageError(
            f"the frame has no column {', '.join(c.name for c in absent)} of table {table.name}, and an upsert replaces whole "
            "rows; give every column, or say what becomes of the others: missingColumns=keep (rows that are there keep what "
            "they have) or missingColumns=null (their default, or NULL)",
            columns=list(names),
        )
    return names


def writer_options(options: Options, *, overwrite: bool, stream: bool) -> Options:
    """Refuse what a write cannot do."""
    if overwrite:
        raise UsageError('this source has no overwrite; use .mode("append") with operation=upsert or operation=delete')
    if stream and options.txn_version is not None:
        raise UsageError("the version of a stream's batch is its number; give txnAppId alone, or neither")
    if not stream and (options.txn_app is None) != (options.txn_version is None):
        raise UsageError("txnAppId and txnVersion belong together; give both or neither")
    if not options.atomic and options.operation is Operation.INSERT_IGNORE:
        raise UsageError("insertIgnore needs atomic=true")
    if options.missing is Missing.KEEP and not options.atomic:
        raise UsageError("missingColumns=keep needs atomic=true: what rows have is read and written in one transaction")
    if not options.atomic and options.txn_app is not None:
        raise UsageError("txnAppId needs atomic=true: without it a write may happen more than once")
    return options


def table_of(options: Options) -> Any:
    """The table to write to, as it is now."""
    return database(options).table(options.table)
