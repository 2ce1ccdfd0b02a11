"""Keeps staged rows in the cluster, and publishes them in one transaction (`protocol.client.staging` tells the protocol).

    system/staging/<job><part><chunk number>     an encoded chunk
    system/staged_rows/<job><task>               how many rows a task has staged so far
    system/staged_app/<table id>/<operation>/<application>     the newest version that an application has published there

The first two are owned by a job, which every staged write is (`staged_jobs`), and go in the transaction that ends it. The mark of
an application is no work but a promise about a name, and stays for ever.

Publishing reads the chunks outside the transaction, because they never change, and writes inside it: the mark first, so
that two publishers of one name meet there and not after a million rows. A lost answer is no problem: a publish that is repeated
under the same name finds the mark, and one without a name finds that the jobs of its parts have succeeded.

All rows of a publish are in the transaction's intents and their keys are checked for duplicates here, so there is a bound,
`staging.rows_max`. A job over it is told to split itself or to do without atomicity.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.planning import is_plain
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import system
from slackwater.codec.rows import RowCodec, version_of
from slackwater.errors import ConditionFailed, DecodeError, UniqueViolation, UsageError
from slackwater.gateway.planned_writes import write_planned
from slackwater.gateway.rows import Leased, check_rows
from slackwater.gateway.staged_jobs import GONE, TASKS_MAX, StagedJobs, chunk_key, count_key, counts_end
from slackwater.gateway.tables import owner_of
from slackwater.hooks import probe
from slackwater.model.system_tables import check_not_system
from slackwater.protocol.client import calls
from slackwater.protocol.client.staging import (
    APP_CHARS_MAX,
    CHUNK_BYTES_MAX,
    DROP_PARTS,
    PART_BYTES,
    PUBLISH,
    STAGE,
    Chunk,
    DropParts,
    PartRef,
    Publish,
    Published,
    StageChunks,
    StagedKind,
    StagingJob,
    decode_chunk,
)
from slackwater.protocol.range.requests import Get, Value

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from slackwater.catalog.leases import DescriptorLease
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.range.requests import Request
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.txn.coordinator import Transaction

CHUNKS_READ_AT_ONCE = 16
PARTS_PER_CALL_MAX = 100_000
PARTS_DROPPED_AT_ONCE = 64
ROW_OVERHEAD_BYTES = 64
"""What a chunk has beside the key and the value of its only row."""
_APP = "staged_app"
COUNT_BYTES = 8
_WRITE_KINDS = {
    StagedKind.UPSERT: calls.WriteKind.UPSERT,
    StagedKind.INSERT: calls.WriteKind.INSERT,
    StagedKind.INSERT_IGNORE: calls.WriteKind.UPSERT,
    StagedKind.DELETE: calls.WriteKind.DELETE,
}


class Mark(msgspec.Struct, frozen=True, array_like=True):
    """What an application has done last: its version, how many rows that were, and which query counted."""

    version: int
    rows: int
    owner: str = ""


class Staging:
    """Staged rows, on one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self.checkers = gateway.checkers
        self.planners = gateway.planners
        self.jobs = StagedJobs(gateway)

    @property
    def row_bytes_max(self) -> int:
        """Bytes of the key and the value of one row."""
        return self._gateway.row_bytes_max

    def serve(self, server: RpcServer) -> None:
        """Answer clients."""
        server.handle(STAGE, self.stage)
        server.handle(PUBLISH, self.publish)
        server.handle(DROP_PARTS, self.drop)

    async def stage(self, request: StageChunks, context: CallContext) -> calls.NativeOk:
        """Keep chunks of a part."""
        _check_part(request.part)
        limit = max(2 * CHUNK_BYTES_MAX, self.row_bytes_max + ROW_OVERHEAD_BYTES)
        if not request.chunks or any(len(chunk) > limit for chunk in request.chunks):
            raise UsageError(
                f"stage chunks of at most {CHUNK_BYTES_MAX} bytes of rows, or of one row of at most {self.row_bytes_max}",
                chunks=len(request.chunks),
            )
        self._check_rows(request.rows)
        task = request.job or StagingJob(request.part, 0)
        _check_part(task.job)
        creator = owner_of(context) or ""
        job = await self.jobs.open(task.job, table=request.table, creator=creator, timeout=context.remaining())
        keys = [chunk_key(task.job, request.part, request.first + i) for i in range(len(request.chunks))]
        await self._gateway.kv.put_rows(keys, request.chunks, timeout=context.remaining())
        if request.job is not None:
            await self._count(request.job, request.rows, context)
        await self.jobs.confirm(task.job, job, timeout=context.remaining())
        return calls.NativeOk()

    async def _count(self, job: StagingJob, rows: int, context: CallContext) -> None:
        """Count the rows of a job's tasks together; a job that was over the bound once stays refused.

        An attempt of a task replaces the count of an earlier one. So a retry would lower the sum and go on for a while; the
        note that the job was over the bound ends that with its first message.
        """
        kv = self._gateway.kv
        if not 0 <= job.task < TASKS_MAX:
            raise UsageError(f"a job's tasks are numbered from 0 to {TASKS_MAX - 1}", task=job.task)
        await kv.put(count_key(job.job, job.task), rows.to_bytes(COUNT_BYTES, "big"), timeout=context.remaining())
        found = await kv.scan(count_key(job.job, 0), counts_end(job.job), timeout=context.remaining())
        total = sum(int.from_bytes(value, "big") for value in found.values)
        try:
            self._check_rows(total)
        except UsageError:
            over = int(self._gateway.node.settings["staging.rows_max"]) + 1
            await kv.put(count_key(job.job, TASKS_MAX), over.to_bytes(COUNT_BYTES, "big"), timeout=context.remaining())
            raise

    async def publish(self, request: Publish, context: CallContext) -> Published:
        """Make staged rows visible, once."""
        node = self._gateway.node
        self._check(request)
        history = await self._gateway.catalog.find_id(request.table_id, version=request.version)
        check_not_system(history.latest.name, what="write to")
        async with Leased(self._gateway, request.table_id, request.version) as lease:
            work = _Publish(self, request, history, lease, context)
            try:
                published = await node.kv.run(work.run, timeout=context.remaining())
            except UniqueViolation:
                raise
            except ConditionFailed as error:
                raise ConditionFailed(
                    f"a row with this key is in table {lease.table.name} already; nothing was written", **error.facts
                ) from None
        ts = Timestamp(max(published.ts, work.commit_ts))
        return msgspec.structs.replace(published, ts=ts)

    async def drop(self, request: DropParts, context: CallContext) -> calls.NativeOk:
        """Forget parts."""
        if len(request.parts) > PARTS_PER_CALL_MAX:
            raise UsageError(f"drop at most {PARTS_PER_CALL_MAX} parts at a time", parts=len(request.parts))
        for part in request.parts:
            _check_part(part)
        for at in range(0, len(request.parts), PARTS_DROPPED_AT_ONCE):
            work = partial(self.jobs.dropped, names=request.parts[at : at + PARTS_DROPPED_AT_ONCE], why="dropped")
            await self._gateway.kv.run(work, timeout=context.remaining())
        return calls.NativeOk()

    async def chunks(self, ref: PartRef, context: CallContext) -> AsyncIterator[Chunk]:
        """The chunks of a part, in order; an error if one is missing."""
        kv, done, rows = self._gateway.node.kv, 0, 0
        start, end = chunk_key(ref.name, ref.part, 0), chunk_key(ref.name, ref.part, ref.chunks)
        while done < ref.chunks:
            found = await kv.scan(start, end, max_keys=CHUNKS_READ_AT_ONCE, timeout=context.remaining())
            for key, value in zip(found.keys, found.values, strict=True):
                if key != chunk_key(ref.name, ref.part, done):
                    break
                chunk = decode_chunk(value)
                done, rows = done + 1, rows + len(chunk.keys)
                yield chunk
            start = chunk_key(ref.name, ref.part, done)
            if found.resume is None and done < ref.chunks:
                raise UsageError(GONE)
        if rows != ref.rows:
            raise UsageError("staged rows are not as many as were announced", staged=rows, announced=ref.rows)

    def _check(self, request: Publish) -> None:
        if not 0 < len(request.app) <= APP_CHARS_MAX or request.app_version < 0:
            raise UsageError(f"a publish is named by 1 to {APP_CHARS_MAX} characters and a version from 0 on")
        for ref in request.parts:
            _check_part(ref.part)
            _check_part(ref.name)
        if not request.lasting:
            try:
                bytes.fromhex(request.app)
            except ValueError:
                raise UsageError("a job's own name is hexadecimal and begins with its time", app=request.app) from None
        self._check_rows(sum(ref.rows for ref in request.parts))

    def _check_rows(self, rows: int) -> None:
        limit = int(self._gateway.node.settings["staging.rows_max"])
        if rows > limit:
            raise UsageError(
                f"{rows} rows or more are more than one commit takes (staging.rows_max = {limit}); split the job, write with "
                "atomic=false, or raise staging.rows_max",
                rows=rows,
            )


class _Publish:
    """One publish on its way; `run` may be called again with another transaction."""

    def __init__(
        self, staging: Staging, request: Publish, history: TableHistory, lease: DescriptorLease, context: CallContext
    ) -> None:
        self._staging = staging
        self._request = request
        self._history = history
        self._lease = lease
        self._table = lease.table
        self._merge = StagedMerge(lease.table.schema, history, request.keep) if request.keep else None
        self._context = context
        self.commit_ts = MIN

    async def run(self, txn: Transaction) -> Published:
        """The mark, then the rows."""
        request, jobs = self._request, self._staging.jobs
        names = list(dict.fromkeys(ref.name for ref in request.parts))
        written = await self._written(txn, names)
        if written is not None:
            probe("staging.published_already")
            await jobs.dropped(txn, names, why="its name was published before; nothing was written")
            return Published(written, txn.state.read_ts, already=True)
        rows = sum(ref.rows for ref in request.parts)
        if request.lasting:
            mark = Mark(request.app_version, rows, request.owner)
            await txn.put(mark_key(request), msgspec.msgpack.encode(mark))
        seen: set[bytes] = set()
        for ref in request.parts:
            async for chunk in self._staging.chunks(ref, self._context):
                rows_now = self._brought_up(chunk)
                self._check(rows_now, seen)
                await self._write_intents(txn, rows_now)
        await jobs.published(txn, names, rows=rows)
        txn.deadline = self._lease.deadline
        self.commit_ts = await txn.commit()
        return Published(rows, self.commit_ts, already=False)

    def _brought_up(self, chunk: Chunk) -> Chunk:
        """The rows of a chunk in the version that they are written by; most are in it since they were staged."""
        try:
            versions = {version_of(value) for value in chunk.values}
        except DecodeError:
            return chunk  # refused where rows are checked
        if self._request.kind is StagedKind.DELETE or versions <= {self._table.version}:
            return chunk
        probe("staging.brought_up")
        table, codec = self._table, RowCodec(self._table.schema, self._history.by_version())
        try:
            rows = [codec.encode(codec.decode(value)) for value in chunk.values]
        except (DecodeError, UsageError) as error:
            raise UsageError(
                f"table {table.name} has changed since rows were staged, and they are no rows of version {table.version}:"
                f" {error.message}; nothing was written, run the job again"
            ) from None
        if [key for key, _ in rows] != chunk.keys:
            raise UsageError(
                f"table {table.name} was emptied since rows were staged; nothing was written, run the job again"
            )
        return Chunk(chunk.keys, [value for _, value in rows])

    async def _written(self, txn: Transaction, names: list[bytes]) -> int | None:
        """How many rows were published if this publish has happened already, under its name or as these very parts."""
        request = self._request
        if not request.lasting:
            done = await self._staging.jobs.publish_of(txn, names)
            return None if done is None else done.rows
        found = await txn.get(mark_key(request))
        mark = None if found is None else msgspec.msgpack.decode(found, type=Mark)
        if mark is None or mark.version < request.app_version:
            return None
        self._check_owner(mark)
        return mark.rows

    def _check_owner(self, mark: Mark) -> None:
        """Refuse batches that a new checkpoint counts from 0 again: they are no repeats of older ones."""
        request = self._request
        if mark.owner and request.owner and mark.owner != request.owner:
            raise UsageError(
                f"another query has written up to version {mark.version} under the name {request.app} to table "
                f"{self._table.name}, and a query with a new checkpoint counts from 0 again; nothing was written. Go on "
                "with the old checkpoint, or choose another name (txnAppId)",
                version=request.app_version,
                query=request.owner,
                written_by=mark.owner,
            )

    def _check(self, chunk: Chunk, seen: set[bytes]) -> None:
        """Check rows as for a direct write; and refuse a key that is in a job twice: which row should win?"""
        kind = _WRITE_KINDS[self._request.kind]
        write = calls.Write(self._table.table_id, self._table.version, kind, chunk.keys, chunk.values)
        check_rows(self._table, write, self._staging.checkers)
        before = len(seen)
        seen.update(chunk.keys)
        if len(seen) != before + len(chunk.keys):
            raise UsageError(
                f"the job brings two rows with the same primary key for table {self._table.name}; nothing was written. "
                "Drop duplicates before writing"
            )

    async def _write_intents(self, txn: Transaction, chunk: Chunk) -> None:
        kind, keys, values = self._request.kind, chunk.keys, chunk.values
        if kind is StagedKind.INSERT_IGNORE:
            rows = zip(keys, values, await _there(txn, chunk), strict=True)
            new = [(key, value) for key, value, old in rows if old is None]
            keys, values = [key for key, _ in new], [value for _, value in new]
        elif self._merge is not None:
            both = zip(values, await _there(txn, chunk), strict=True)
            values = [self._merge.merged(value, old) for value, old in both]
        if not keys:
            return
        if not is_plain(self._table):
            planner = self._staging.planners.of(self._history, self._table)
            await write_planned(txn, planner, _WRITE_KINDS[kind], keys, values)
        elif kind is StagedKind.DELETE:
            await txn.delete_rows(keys)
        else:
            await txn.put_rows(keys, values, must_be_new=kind is StagedKind.INSERT)


class StagedMerge:
    """Puts rows that lack some columns together with those that are there."""

    def __init__(self, schema: TableSchema, history: TableHistory, keep: Sequence[int]) -> None:
        self._codec = RowCodec(schema, {known.version: known for known in history.schemas()})
        keys = {column.id for column, _ in schema.key_columns()}
        kept = [schema.by_id(column) for column in keep]
        self._names = [column.name for column in kept if column is not None and column.id not in keys]
        if len(self._names) != len(keep):
            raise UsageError(f"table {schema.name} has no such column outside of its key", columns=list(keep))

    def merged(self, new: bytes, old: bytes | None) -> bytes:
        """`new` with the kept columns of `old`."""
        if old is None:
            return new
        there, row = self._codec.decode(old), self._codec.decode(new)
        return self._codec.encode(row | {name: there[name] for name in self._names})[1]


async def _there(txn: Transaction, chunk: Chunk) -> list[bytes | None]:
    """The values that the keys of a chunk have; seen so until the commit."""
    gets: list[Request] = [Get(key) for key in chunk.keys]
    return [found.value if isinstance(found, Value) else None for found in await txn.batch(gets)]


def mark_key(request: Publish) -> bytes:
    """Where the mark of an application lies: a name counts for one operation on one table."""
    return system(_APP, f"{request.table_id}/{request.kind.value}/{request.app}".encode())


def _check_part(part: bytes) -> None:
    if len(part) != PART_BYTES:
        raise UsageError(f"a part's id has {PART_BYTES} bytes", got=len(part))
