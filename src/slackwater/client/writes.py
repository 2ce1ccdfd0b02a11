"""Writing rows: a small write is one transaction, a large one is a bulk load.

    up to ATOMIC_ROWS_MAX rows and about ATOMIC_BYTES_MAX bytes     all at one timestamp, or none
    above                                                           blocks, each row written at least once; an error leaves
                                                                    what was written before it (`rows_written` says how much)

A small write is known by an id that the client chose. When its answer is lost (the gateway died, the connection broke), the
client asks another gateway what became of that id: committed, and then the write is done; or not, and then it never will be
and is made again. So a write returns, or fails with nothing written, or says that no gateway can tell (`AmbiguousResult`). All of
it happens within the timeout: a write that runs out of time before it was sent is `DeadlineExceeded`, one that may have been
executed, and that no gateway could tell of in what was left, is `AmbiguousResult`.

A block of a bulk upsert whose answer is lost is sent again: writing a row twice leaves the same row, unless another client
wrote it in between. That is what "bulk load" means; use a transaction where it matters. How long a load takes is up to how much
there is, so each of its blocks is an operation of its own: the timeout bounds the time until the next block has landed.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from slackwater.client.gateways import Gateways, Resend, lost
from slackwater.client.generated import with_generated
from slackwater.client.inputs import Input, duplicate_keys, in_blocks, one_row
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.rows import check_sizes
from slackwater.errors import (
    AmbiguousResult,
    ConditionFailed,
    RetryableError,
    SchemaChanged,
    SlackwaterError,
    UniqueViolation,
)
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.protocol.client.calls import WriteKind

if TYPE_CHECKING:
    from slackwater.client.tables import KnownTables
    from slackwater.codec.rows import RowCodec
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.seam import TaskHandle, TaskScope

ATOMIC_ROWS_MAX = 10_000
ATOMIC_BYTES_MAX = 4 << 20
BULK_ROWS = 20_000
"""Rows of one block of a bulk upsert; encoded while the block before is on its way."""
BULK_CHECKED_ROWS = 2_000
"""Rows of one block of a bulk insert or delete, each a transaction."""
BLOCKS_AHEAD_MAX = 2
MESSAGE_BYTES_MAX = 8 << 20
"""Bytes of rows in one message; a frame holds twice that."""


class WriteResult(msgspec.Struct, frozen=True):
    """What a write did: how many rows, and when. A bulk load was finished at that time; its rows are at or below it."""

    rows: int
    timestamp: Timestamp


class Writer:
    """Writes of one client."""

    def __init__(self, gateways: Gateways, tables: KnownTables, scope: TaskScope) -> None:
        self._gateways = gateways
        self._tables = tables
        self._scope = scope

    async def write(self, kind: WriteKind, table: str, rows: Any) -> WriteResult:
        """Write rows of one table, by its newest version: again, until it is known what became of them."""
        gateways = self._gateways
        deadline = gateways.deadline()
        ready: _Ready | None = None
        while True:
            if ready is None:
                ready = await self._tables.prepared(table, partial(self._ready, kind, rows), deadline=deadline)
            if ready.request is None:
                if (loaded := await self._load(kind, table, ready, deadline)) is not None:
                    return loaded
                ready = None
                continue
            txn_id, start = gateways.runtime.rng.bytes(TXN_ID_BYTES), gateways.clock.now()
            named = msgspec.structs.replace(ready.request, txn_id=txn_id)
            try:
                reply = await gateways.call(
                    calls.WRITE, named, deadline=deadline, resend=Resend.IF_UNSENT, sparing=True
                )
            except UniqueViolation:
                raise
            except ConditionFailed as error:
                raise already_there(ready.codec, error) from None
            except RetryableError as error:
                refused: SlackwaterError = error
                if isinstance(error, SchemaChanged):
                    self._tables.forget(table)
                    ready = None
            except SlackwaterError as error:
                if not lost(error):
                    raise
                refused = error
                mark = calls.TxnHandle(txn_id, named.keys[0], start, 0, start)
                settled = await find_outcome(gateways, mark, error, deadline=deadline)
                if settled.committed:
                    gateways.floor.told(settled.ts)
                    return WriteResult(len(named.keys), settled.ts)
            else:
                gateways.floor.told(reply.ts)
                return WriteResult(reply.rows, reply.ts)
            await deadline.again(refused, "nothing was written")

    def _ready(self, kind: WriteKind, rows: Any, history: TableHistory) -> _Ready:
        """The rows, checked, and encoded if they are few: everything that can be wrong with them is said here."""
        codec, given = self._tables.codec(history), None
        if codec.generated:
            rows = with_generated(self._gateways, codec, rows, kind)
        encoded = one_row(codec, rows, kind)
        if encoded is None:
            given = Input(codec, rows, kind)
            if 0 < given.count <= ATOMIC_ROWS_MAX:
                encoded = unique(codec, *given.piece(0, ATOMIC_ROWS_MAX), kind)
        if encoded is not None:
            keys, values = encoded
            check_sizes(codec.schema.name, keys, values, limit=self._gateways.row_bytes_max)
            if given is None or sum(map(len, values)) <= ATOMIC_BYTES_MAX:
                table = history.latest
                return _Ready(history, codec, given, calls.Write(table.table_id, table.version, kind, keys, values))
        assert given is not None
        if kind is not WriteKind.DELETE:
            given.check_rows(bytes_max=self._gateways.row_bytes_max)
        return _Ready(history, codec, given, None)

    async def _load(self, kind: WriteKind, table: str, ready: _Ready, deadline: RetryBudget) -> WriteResult | None:
        """A bulk load; None if it has to be made again for a table that has changed meanwhile."""
        assert ready.given is not None
        if ready.given.count == 0:
            return WriteResult(0, self._gateways.clock.now())
        load = _Bulk(self._gateways, self._scope, ready.history, ready.codec, ready.given, kind)
        try:
            done = await load.run()
        except SchemaChanged:
            self._tables.forget(table)
            if not deadline.spend():  # its time does not count: each block has the session's timeout
                raise
            return None
        self._gateways.floor.told(done.timestamp)
        return done


class _Ready(NamedTuple):
    """The rows of one call, ready to be sent by one version of the table."""

    history: TableHistory
    codec: RowCodec
    given: Input | None
    """None for a single row, which was encoded as it came."""
    request: calls.Write | None
    """One transaction; None for a bulk load."""


class _Bulk:
    """One bulk load: a block is encoded while others are on their way."""

    def __init__(
        self,
        gateways: Gateways,
        scope: TaskScope,
        history: TableHistory,
        codec: RowCodec,
        given: Input,
        kind: WriteKind,
    ) -> None:
        self._gateways = gateways
        self._scope = scope
        self._table = history.latest
        self._codec = codec
        self._given = given
        self._kind = kind
        self._written = 0
        self._ts = MIN

    async def run(self) -> WriteResult:
        """Send everything; on an error, wait for what is on its way and say how much was written."""
        size = BULK_ROWS if self._kind is WriteKind.UPSERT else BULK_CHECKED_ROWS
        under_way: deque[TaskHandle[calls.WriteReply | SlackwaterError]] = deque()
        try:
            for low in range(0, self._given.count, size):
                keys, values = await self._gateways.runtime.offload(self._given.piece, low, size)
                if self._kind is WriteKind.DELETE:  # of rows to be written it is known that no two have one key
                    keys, values = unique(self._codec, keys, values, self._kind)
                for block in in_blocks(keys, values, bytes_max=MESSAGE_BYTES_MAX):
                    under_way.append(self._scope.spawn(self._send(*block), name="bulk block"))
                    if len(under_way) >= BLOCKS_AHEAD_MAX:
                        self._landed(await under_way.popleft())
            while under_way:
                self._landed(await under_way.popleft())
        except SlackwaterError as error:
            error.facts["rows_written"] = self._written
            raise
        finally:
            for sent in under_way:
                sent.cancel()
        return WriteResult(self._written, self._ts)

    async def _send(self, keys: list[bytes], values: list[bytes]) -> calls.WriteReply | SlackwaterError:
        request = calls.Write(self._table.table_id, self._table.version, self._kind, keys, values, bulk=True)
        resend = Resend.IF_UNSENT if self._kind is WriteKind.INSERT else Resend.ALWAYS
        deadline = self._gateways.deadline()  # a block is an operation of its own
        try:
            while True:
                try:
                    return await self._gateways.call(calls.WRITE, request, deadline=deadline, resend=resend)
                except SchemaChanged:
                    raise
                except RetryableError as error:
                    await deadline.again(error, "a block was not written")
        except UniqueViolation as error:
            return error
        except ConditionFailed as error:
            return already_there(self._codec, error)
        except SlackwaterError as error:
            if lost(error):
                return AmbiguousResult(f"a block may or may not have been written: {error.message}")
            return error

    def _landed(self, outcome: calls.WriteReply | SlackwaterError) -> None:
        if isinstance(outcome, SlackwaterError):
            raise outcome
        self._written += outcome.rows
        self._ts = Timestamp(max(self._ts, outcome.ts))


def unique(codec: RowCodec, keys: list[bytes], values: list[bytes], kind: WriteKind) -> tuple[list[bytes], list[bytes]]:
    """Sorted keys without duplicates: refused, unless they are deleted."""
    if not any(map(bytes.__eq__, keys, keys[1:])):
        return keys, values
    if kind is not WriteKind.DELETE:
        raise duplicate_keys(codec)
    return list(dict.fromkeys(keys)), []


async def find_outcome(
    gateways: Gateways, mark: calls.TxnHandle, cause: SlackwaterError, *, deadline: RetryBudget
) -> calls.Settled:
    """Determines a commit's outcome after its reply was lost; aborts the transaction if it is still undecided.

    `AmbiguousResult` if no gateway can tell within the deadline.
    """
    try:
        return await gateways.call(calls.SETTLE, calls.Settle(mark), deadline=deadline)
    except SlackwaterError as error:
        raise AmbiguousResult(
            f"the write may or may not have happened: its answer was lost ({cause.message}), and no gateway could tell"
            f" ({error.message}); look before you write again"
        ) from error


def already_there(codec: RowCodec, error: ConditionFailed) -> ConditionFailed:
    """The error of an insert, with the key that was there in words."""
    raw = error.facts.get("key")
    try:
        key: object = codec.decode_key(raw) if isinstance(raw, bytes) else raw
    except SlackwaterError:
        key = raw
    return ConditionFailed(
        f"table {codec.schema.name} has a row with this key already; use upsert to replace it", key=key
    )
