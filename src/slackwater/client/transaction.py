"""A transaction, as an application holds it: serializable, on one gateway, retried by the client where that is safe.

    async with db.transaction() as tx:          commit at the end of the block; roll back if it raises
        row = await tx.get("accounts", 7)
        await tx.upsert("accounts", [{**row, "balance": row["balance"] - 10}])

    await db.run(transfer)                      the same, run again as long as others are in the way

Writes are seen by the transaction's own reads at once and by no other before the commit. An error that makes it
impossible to go on is a `RetryableError`: run the whole block again, or use `run`.

It costs as few messages as its work allows. There is none to begin with: the first one opens the transaction on the gateway
it reaches, under an id chosen here. Reads asked for at the same time share one (`point_reads`). Upserts and deletes have no
answer to wait for: a few are held back here and travel with the next message, whatever it is: a read, an insert, the commit.

    transfer: gather(get, get) ─ upsert ─ upsert ─ commit        two messages: GetRows(opens), EndTxn(before = both upserts)

The gateway takes held writes first, so every read sees them, and no message overtakes one that has some on board, or that
is the first. When a message with writes fails, the transaction cannot go on: whether they got there is not known.

When the answer to a commit is lost, another gateway is asked what became of it; the caller gets a definite answer, or
`AmbiguousResult` when no gateway can tell.

The session's timeout bounds each operation of a `transaction()` block, and the whole of `run`: all tries, the commit, and
finding out what became of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec
import pyarrow

from slackwater.client.gateways import Resend, lost
from slackwater.client.generated import with_generated
from slackwater.client.index_reads import lookup
from slackwater.client.inputs import Input, in_blocks, key_of
from slackwater.client.point_reads import PointReadBatcher
from slackwater.client.queries import query
from slackwater.client.reads import scan as plain_scan
from slackwater.client.transaction_schema import OwnTables, TransactionSchema
from slackwater.client.writes import MESSAGE_BYTES_MAX, WriteResult, already_there, find_outcome, unique
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.damage import decode_row
from slackwater.codec.keys_arrow import encode_keys
from slackwater.codec.rows import RowCodec, check_sizes
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import (
    ConditionFailed,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    IndexCorrupted,
    RetryableError,
    SchemaChanged,
    SlackwaterError,
    UniqueViolation,
    UsageError,
    invariant,
)
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.protocol.client.calls import WriteKind
from slackwater.protocol.client.index_reads import GET_BY_INDEX
from slackwater.runtime.sync import CancelledError, Lock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.client.queries import Query
    from slackwater.client.tables import KnownTables
    from slackwater.model.jobs import Job
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.rpc.method import Method

pa: Any = pyarrow
T = TypeVar("T")
PAGE_ROWS = 10_000
JOINED_ROWS = 2_000
"""Rows that one message asks for when entries of an index are joined with them."""
HELD_MAX = 64
HELD_BYTES_MAX = 256 << 10
"""Writes, and bytes of them, that wait for the next message; what is larger is sent at once."""
TXN_ROWS_MAX = 100_000
"""Rows that one call may write in a transaction."""


class AsyncTransaction(TransactionSchema):
    """Made by `AsyncDatabase.transaction` and `run`."""

    commit_timestamp: Timestamp
    """When it happened; known after the commit."""
    jobs: list[Job]
    """Of schema changes that began with the commit; known after it."""

    def __init__(self, gateways: Gateways, tables: KnownTables) -> None:
        self._gateways = gateways
        self._tables = self._known = tables
        self.jobs = []
        self._point_reads = PointReadBatcher(gateways.runtime.clock, self._read)
        self._name = b""
        """What it is called on its gateway; empty before the first message and after the end."""
        self._gateway = ""
        self._mark: calls.TxnHandle | None = None
        self._opened = False
        """Whether the gateway surely knows it: until then every message opens it."""
        self._ended = False
        self._lost: SlackwaterError | None = None
        self._held: list[calls.Write] = []
        self._held_bytes = 0
        self._on_board = Lock()  # had by a message that carries writes, or is the first
        self._spoiled: SlackwaterError | None = None
        self._versions: dict[str, int] = {}
        """By name, the version of each table that it used first."""
        self.until: RetryBudget | None = None
        """When everything has to be over; without it, each operation has the session's timeout."""
        self.commit_timestamp = MIN

    # --- life

    async def commit(self) -> Timestamp:
        """Make every write visible at one timestamp, at which every read holds too; returns it."""
        self._usable()
        self._ended = True
        before, deadline = self._take_held(), self._patience()
        try:
            ended = await self._to_gateway(calls.COMMIT, calls.EndClientTxn(b"", before), deadline, sparing=True)
        except RetryableError as error:
            self._ended = False  # it can be restarted
            self._changed(error, before)
            if before:
                self._spoiled = error
            raise
        except SlackwaterError as error:
            if not lost(error):
                self._ended = False
                if isinstance(error, ConnectionLost | DeadlineExceeded) and not deadline.passed:
                    self._lost = RetryableError(f"the commit was never sent; run it again: {error.message}")
                    raise self._lost from error
                raise
            name, self._name = self._name, b""
            settled = await find_outcome(self._gateways, self._committing(name, before), error, deadline=deadline)
            if not settled.committed:
                raise RetryableError("the commit was lost on the way and is now ruled out; run it again") from error
            self.commit_timestamp = settled.ts
        else:
            self.commit_timestamp, self.jobs = ended.ts, ended.jobs
        if self._tables is not self._known:
            self._tables = self._known
            self._tables.forget()
        self._gateways.floor.told(self.commit_timestamp)
        return self.commit_timestamp

    async def rollback(self) -> None:
        """Undo everything. Never fails: a gateway that cannot be reached rolls it back by itself."""
        self._take_held()
        name, self._name = self._name, b""
        ended, self._ended = self._ended, True
        if name and not ended:
            deadline = self._patience()
            if (
                deadline.passed or self._lost is not None
            ):  # the gateway is told all the same, but no caller waits for it
                self._gateways.background(self._roll_back(name, self._gateways.deadline()), name="roll back")
            else:
                await self._roll_back(name, deadline)

    async def _roll_back(self, name: bytes, deadline: RetryBudget) -> None:
        try:
            await self._gateways.call(calls.ROLLBACK, calls.EndClientTxn(name), deadline=deadline, at=self._gateway)
        except SlackwaterError as error:
            self._lost = error

    async def restart(self) -> None:
        """Begin again after a `RetryableError`, with the age of the first try, so that it wins in the end."""
        self._take_held()
        self._tables = self._known
        self._spoiled = None
        self._versions.clear()
        if self._name and not self._ended and self._lost is None:
            try:
                reply = await self._gateways.call(
                    calls.RESTART, calls.EndClientTxn(self._name), deadline=self._patience(), at=self._gateway
                )
            except SlackwaterError:
                pass  # it is not there any more: the next message opens another one
            else:
                self._mark, self._opened = reply.mark, True
                return
        self._lost = None
        self._name, self._mark, self._opened, self._ended = b"", None, False, False

    # --- operations

    async def get(self, table: str, key: object, *, by: str | None = None) -> dict[str, Any] | None:
        """A row by its primary key, or by a unique index (`by`); None when there is none."""
        return await self._by_its_version(table, lambda deadline: self._got(table, key, by, deadline))

    async def _by_its_version(self, table: str, read: Callable[[RetryBudget], Awaitable[T]]) -> T:
        """What `read` brings: once more if the table has a newer version than was known, and this transaction uses none yet."""
        deadline, used = self._patience(), self._tables.known(table)
        try:
            return await read(deadline)
        except SchemaChanged:
            self._tables.forget(table)
            return await read(deadline)
        except DecodeError:
            # What was known before the read: others of this session may have learned of the new version meanwhile.
            used = used or self._tables.known(table)
            if used is None or isinstance(self._tables, OwnTables):
                raise
            fresh = await self._tables.by_id(used.latest.table_id, fresh=True, deadline=deadline)
            if fresh.latest.version == used.latest.version:
                raise  # not of a version that was published since: damaged
            raise RetryableError(f"table {table} has changed since this transaction began; run it again") from None

    async def _got(self, table: str, key: object, by: str | None, deadline: RetryBudget) -> dict[str, Any] | None:
        history = await self._tables.by_name(table, deadline=deadline)
        codec = self._tables.codec(history)
        if by is not None:
            found = await self._prepared(table, lambda known: lookup(self._tables, known.latest, by, key), deadline)
            if found.key is None:
                return None
            policy = calls.ReadPolicy(floor=self._gateways.floor.ts)
            asked = found.request(policy, version=found.table.version)
            reply = await self._call(GET_BY_INDEX, asked, table, deadline)
            (row,) = reply.values
            self._versions.setdefault(table, found.table.version)
            return None if row is None else decode_row(codec, found.key, row)
        wanted = key_of(codec, key)
        value = await self._point_reads.get(history.latest.table_id, history.latest.version, wanted)
        self._versions.setdefault(table, history.latest.version)
        return None if value is None else decode_row(codec, wanted, value)

    async def scan(
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
        options: Any = {"columns": columns, "where": where, "limit": limit, "index": index, "order": order}

        async def read(deadline: RetryBudget) -> Any:
            asked = await self._prepared(table, lambda history: query(history, **options), deadline)
            found = pa.Table.from_batches(await self._scanned(table, asked, deadline), schema=asked.schema)
            return asked.finish(found.slice(0, asked.limit) if asked.limit else found)

        return await self._by_its_version(table, read)

    async def _scanned(self, table: str, asked: Query, deadline: RetryBudget) -> list[Any]:
        """The batches of a scan, page by page."""
        read = asked.plan.schema()
        versions = {schema.version: schema for schema in asked.plan.schemas}
        decoder = BlockDecoder(read, versions, asked.plan.columns, asked.plan.predicates)
        batches: list[Any] = []
        start = asked.span.start if asked.span is not None else None
        while start is not None and asked.span is not None:
            request = calls.TxnScan(
                b"",
                read.table_id,
                start,
                asked.span.end,
                PAGE_ROWS,
                floor=self._gateways.floor.ts,
                version=asked.history.latest.version,
            )
            page = await self._call(calls.TXN_SCAN, request, table, deadline)
            self._versions.setdefault(table, request.version)
            try:
                batch = decoder.decode(page.values)
            except DecodeError:
                async for _ in plain_scan(self._gateways, asked, calls.ReadPolicy(), deadline=deadline):
                    pass  # it meets the same row, where its key is known
                raise
            batches.append(batch if asked.rows is None else await self._joined(table, asked, batch, deadline))
            start = page.resume
            if asked.limit and sum(batch.num_rows for batch in batches) >= asked.limit:
                break
        return batches

    async def _joined(self, table: str, asked: Query, entries: Any, deadline: RetryBudget) -> Any:
        """The rows that entries of an index name, as far as they satisfy what entries could not decide."""
        plan, version = asked.rows, asked.history.latest.version
        assert plan is not None, "entries are joined with rows where there is a plan for these"
        codec = RowCodec(plan.schema())
        keys = [entries.column(name) for name in codec.key_names]
        named = encode_keys(codec.prefix, codec.key_types, keys) if entries.num_rows else []
        values: list[bytes] = []
        policy = calls.ReadPolicy(floor=self._gateways.floor.ts)
        for low in range(0, len(named), JOINED_ROWS):
            request = calls.GetRows(plan.schema().table_id, named[low : low + JOINED_ROWS], policy, version=version)
            reply = await self._call(calls.GET_ROWS, request, table, deadline)
            for key, value in zip(request.keys, reply.values, strict=True):
                if value is None:
                    raise IndexCorrupted(f"an index of table {table} names a row that is not there", row=key)
                values.append(value)
        versions = {schema.version: schema for schema in plan.schemas}
        return BlockDecoder(plan.schema(), versions, plan.columns, plan.predicates).decode(values)

    async def upsert(self, table: str, rows: Any) -> WriteResult:
        """Write rows, replacing those with the same key."""
        return await self._write(WriteKind.UPSERT, table, rows)

    async def insert(self, table: str, rows: Any) -> WriteResult:
        """Write rows whose keys must be new; `ConditionFailed` if one is not, and then none is written."""
        return await self._write(WriteKind.INSERT, table, rows)

    async def delete(self, table: str, rows: Any) -> WriteResult:
        """Delete rows by key: dicts, key values or tuples, Arrow or pandas with the key columns."""
        return await self._write(WriteKind.DELETE, table, rows)

    # --- inside

    async def _read(self, wanted: list[tuple[int, int, bytes]]) -> list[bytes | None]:
        """Values of rows, in one message, table by table."""
        places: dict[tuple[int, int], list[int]] = {}
        for place, (table_id, version, _) in enumerate(wanted):
            places.setdefault((table_id, version), []).append(place)
        (first, *others) = (calls.TableKeys(t[0], [wanted[place][2] for place in places[t]], t[1]) for t in places)
        policy = calls.ReadPolicy(floor=self._gateways.floor.ts)
        request = calls.GetRows(first.table_id, first.keys, policy, also=tuple(others), version=first.version)
        reply = await self._call(calls.GET_ROWS, request, "", self._patience())
        self._gateways.floor.told(reply.ts)
        values: list[bytes | None] = [None] * len(wanted)
        for place, value in zip((p for of_table in places.values() for p in of_table), reply.values, strict=True):
            values[place] = value
        return values

    async def _write(self, kind: WriteKind, table: str, rows: Any) -> WriteResult:
        deadline = self._patience()
        history, keys, values = await self._prepared(table, lambda known: self._encoded(kind, known, rows), deadline)
        if not keys:
            return WriteResult(0, MIN)
        table_id, version = history.latest.table_id, history.latest.version
        self._versions.setdefault(table, version)
        if self._hold_back(calls.Write(table_id, version, kind, keys, values)):
            return WriteResult(len(keys), MIN)
        try:
            for block in in_blocks(keys, values, bytes_max=MESSAGE_BYTES_MAX):
                await self._call(calls.WRITE, calls.Write(table_id, version, kind, *block), table, deadline)
        except UniqueViolation:
            raise
        except ConditionFailed as error:
            raise already_there(self._tables.codec(history), error) from None
        return WriteResult(len(keys), MIN)

    async def _prepared(self, table: str, prepare: Callable[[TableHistory], T], deadline: RetryBudget) -> T:
        """What `prepare` makes from a table. What it refuses may be right for the version that this transaction used before."""
        try:
            return await self._tables.prepared(table, prepare, deadline=deadline)
        except UsageError as error:
            known, used = self._tables.known(table), self._versions.get(table)
            if isinstance(self._tables, OwnTables) or used is None or known is None or known.latest.version == used:
                raise
            self._spoiled = RetryableError(
                f"table {table} has changed since this transaction began; run it again: {error.message}"
            )
            raise self._spoiled from error

    def _encoded(
        self, kind: WriteKind, history: TableHistory, rows: Any
    ) -> tuple[TableHistory, list[bytes], list[bytes]]:
        codec = self._tables.codec(history)
        given = Input(codec, with_generated(self._gateways, codec, rows, kind), kind)
        if given.count > TXN_ROWS_MAX:
            raise UsageError(f"one call in a transaction writes at most {TXN_ROWS_MAX} rows", rows=given.count)
        keys, values = unique(codec, *given.piece(0, given.count), kind)
        check_sizes(codec.schema.name, keys, values, limit=self._gateways.row_bytes_max)
        return history, keys, values

    def _hold_back(self, write: calls.Write) -> bool:
        """Keep a write for the next message, if it is small and tells its caller nothing."""
        self._usable()
        size = sum(map(len, write.keys)) + sum(map(len, write.values))
        if write.kind is WriteKind.INSERT or self._held_bytes + size > HELD_BYTES_MAX or len(self._held) >= HELD_MAX:
            return False
        self._held.append(write)
        self._held_bytes += size
        return True

    def _take_held(self) -> tuple[calls.Write, ...]:
        held, self._held, self._held_bytes = tuple(self._held), [], 0
        return held

    def _patience(self) -> RetryBudget:
        """When the operation at hand must have ended."""
        return self.until or self._gateways.deadline()

    async def _call(self, method: Method[Any, Any], request: Any, table: str, deadline: RetryBudget) -> Any:
        """One message, with the writes held back on board. None overtakes such a message: it must see them."""
        async with self._on_board:
            self._usable()
            if self._held:
                return await self._carry(method, request, table, deadline)
            if not self._opened:
                return await self._message(method, request, table, deadline)
        return await self._message(method, request, table, deadline)

    async def _carry(self, method: Method[Any, Any], request: Any, table: str, deadline: RetryBudget) -> Any:
        before = self._take_held()
        try:
            return await self._message(method, msgspec.structs.replace(request, before=before), table, deadline)
        except (Exception, CancelledError) as error:
            if isinstance(error, ConditionFailed) and not isinstance(error, UniqueViolation):
                raise  # an insert met a row: what it carried had been taken before
            self._spoiled = RetryableError("writes of this transaction may not have arrived; run it again")
            self._changed(error, before)
            raise

    async def _deliver(self, deadline: RetryBudget) -> None:
        async with self._on_board:
            self._usable()
            if self._held:
                await self._carry(calls.WRITE, self._held.pop(), "", deadline)

    async def _message(self, method: Method[Any, Any], request: Any, table: str, deadline: RetryBudget) -> Any:
        try:
            reply = await self._to_gateway(method, request, deadline)
        except ConditionFailed:
            # It told something, so it was taken, and so was the place of the record if this was the first write.
            self._opened = True
            if self._mark is not None and not self._mark.anchor:
                first = (*request.before, request)[0]
                self._mark = msgspec.structs.replace(self._mark, anchor=first.keys[0])
            raise
        except SchemaChanged:
            self._tables.forget(table)
            raise
        except (ConnectionLost, DeadlineExceeded) as error:
            self._lost = RetryableError(f"the transaction's gateway was lost; run it again: {error.message}")
            self._gateways.move_on(self._gateway)
            raise self._lost from error
        self._opened = True
        self._mark = reply.mark or self._mark
        return reply

    async def _to_gateway(
        self, method: Method[Any, Any], request: Any, deadline: RetryBudget, *, sparing: bool = False
    ) -> Any:
        """Send a message to the transaction's gateway; the first one to any, which is the transaction's from then on."""
        if self._name:
            named = msgspec.structs.replace(request, txn=self._name, opens=not self._opened)
            return await self._gateways.call(
                method, named, deadline=deadline, resend=Resend.IF_UNSENT, sparing=sparing, at=self._gateway
            )
        try:
            return await self._gateways.call(
                method, request, deadline=deadline, resend=Resend.IF_UNSENT, sparing=sparing, renew=self._open_at
            )
        except CancelledError:
            self._name = b""  # it may still arrive, whenever: nothing else may be done under that name
            raise

    def _open_at(self, address: str, request: Any) -> Any:
        """A first message for a gateway, with an id of its own: the last one may have got somewhere all the same."""
        self._gateway = address
        self._name = self._gateways.runtime.rng.bytes(TXN_ID_BYTES)
        start = self._gateways.clock.now()
        self._mark = calls.TxnHandle(self._name, b"", start, 0, start)
        return msgspec.structs.replace(request, txn=self._name, opens=True)

    def _committing(self, name: bytes, before: Sequence[calls.Write]) -> calls.TxnHandle:
        """How the ranges know the transaction whose commit was lost. Its record lives with its first key."""
        mark = self._mark
        invariant(mark is not None and bool(name), "A-commit-mark", name=name)
        assert mark is not None
        return msgspec.structs.replace(mark, anchor=before[0].keys[0]) if before and not mark.anchor else mark

    def _changed(self, error: BaseException, writes: Sequence[calls.Write]) -> None:
        """Look tables up again when one of them is not what it was."""
        if isinstance(error, SchemaChanged) and writes:
            self._tables.forget()

    def _usable(self) -> None:
        if self._lost is not None:
            raise self._lost
        if self._spoiled is not None:
            raise self._spoiled
        if self._ended:
            raise UsageError("the transaction has ended; begin another one")


class Attempts:
    """The tries of one function that runs in a transaction: what `run` does between them, for both twins."""

    def __init__(self, tx: AsyncTransaction, gateways: Gateways) -> None:
        self.tx = tx
        self._deadline = tx.until = gateways.deadline()

    async def failed(self, error: BaseException) -> None:
        """Make ready for another try, if the error says that this may help; otherwise roll back and raise it."""
        if not isinstance(error, RetryableError):
            await self.tx.rollback()
            raise error
        try:
            await self._deadline.again(error, "nothing was committed")
        except BaseException:
            await self.tx.rollback()
            raise
        await self.tx.restart()
