"""Rows in and out: writes as one transaction or as a bulk load, and point reads.

    no transaction   all rows at one timestamp or none: a transaction of its own, in one phase where one range has them all;
                     begun in the step in which the request arrives where that range is on this node.
                     The client chose its id, so that it can ask any gateway what became of it, should the answer be lost.
    transaction      handed to the transaction that is open here
    bulk             every row at least once, many blocks at a time, not at one timestamp

A transaction whose id the client chose is never reborn under another one: when a rival aborts it, the client is told and
comes again with a new id.
"""

from __future__ import annotations

from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import FORMAT, HEADER_BYTES, check_sizes
from slackwater.errors import AmbiguousResult, SlackwaterError, UsageError
from slackwater.gateway.scans import range_reads
from slackwater.model.system_tables import check_not_system
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.protocol.range.requests import Get, Header, Value
from slackwater.replica.driver.waiting import as_known
from slackwater.routing import outcome
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.later import Later
from slackwater.txn.at_once import begin_write, write_at_once
from slackwater.txn.buffer import chunks
from slackwater.txn.check import rows_ok
from slackwater.txn.kv import until_committed

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.row_checks import RowCheckers
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.gateway.txns import OpenTxn
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.txn import Transaction

KEYS_PER_GET_MAX = 10_000
_HEADER = itemgetter(slice(HEADER_BYTES))
"""What a value begins with."""


class RowService:
    """Writes and point reads of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    # --- in the step in which the request arrives

    def write_at_once(self, request: calls.Write, context: CallContext) -> Later[calls.WriteReply] | None:
        """Begin a write of rows that are a transaction of their own, where the table is known and one range here has them."""
        if (
            request.txn
            or request.bulk
            or request.kind is not calls.WriteKind.UPSERT
            or len(request.txn_id) != TXN_ID_BYTES
        ):
            return None
        found = self._gateway.writable_now(request.table_id, request.version)
        if found is None:
            return None
        table, below = found
        rows_ok(request.keys, request.values)
        check_rows(table, request, self._gateway.checkers, bytes_max=self._gateway.row_bytes_max)
        txns = self._gateway.node.kv.context
        begun = begin_write(txns, request.txn_id, request.keys, request.values, below=below)
        if begun is None:
            return None
        answer: Later[calls.WriteReply] = Later()
        begun.then(partial(self._begun_ended, request, context, answer))
        return answer

    def _begun_ended(
        self,
        request: calls.Write,
        context: CallContext,
        answer: Later[calls.WriteReply],
        ts: Timestamp | None,
        error: SlackwaterError | None,
    ) -> None:
        txns = self._gateway.node.kv.context
        if ts is not None and txns.passed(ts):
            answer.settle(calls.WriteReply(len(request.keys), ts))
        elif error is not None and outcome.lost(error):
            answer.settle(None, outcome.ambiguous(error))
        else:  # the time of the commit has not come, or nothing came of it: that takes a task
            try:
                txns.scope.spawn(self._go_on(request, context, answer, ts), name="write goes on")
            except UsageError:
                answer.settle(None, AmbiguousResult("this node is shutting down; ask another what became of the write"))

    async def _go_on(
        self, request: calls.Write, context: CallContext, answer: Later[calls.WriteReply], ts: Timestamp | None
    ) -> None:
        """Acknowledge a commit in the future once that time has come; or write the long way what was not written."""
        txns = self._gateway.node.kv.context
        try:
            ts = await self._as_transaction(request, context) if ts is None else await txns.acknowledged(ts)
            answer.settle(calls.WriteReply(len(request.keys), ts))
        except Exception as failed:
            answer.settle(None, as_known(failed, doing="going on with a write"))

    def get_at_once(self, request: calls.GetRows, context: CallContext) -> calls.RowsReply | None:
        """Read the latest values of a few keys, where one range led here has them."""
        gateway, policy, keys = self._gateway, request.policy, request.keys
        if request.txn or policy.at != MIN or policy.follower_ok or not 0 < len(keys) <= KEYS_PER_GET_MAX:
            return None
        gateway.check_inside(request.table_id, min(keys), max(keys) + b"\x00")
        if policy.floor > gateway.node.clock.latest:
            return None
        answer = gateway.node.kv.get_at_once(keys)
        return None if answer is None else _rows_reply(answer)

    # --- the long way

    async def write(self, request: calls.Write, context: CallContext) -> calls.WriteReply:
        """Write rows of one table."""
        if request.txn:
            return await self._in_txn(request, context)
        await self._checked(request)
        if request.bulk:
            return calls.WriteReply(len(request.keys), await self._bulk(request, context))
        return calls.WriteReply(len(request.keys), await self._alone(request, context))

    async def get(self, request: calls.GetRows, context: CallContext) -> calls.RowsReply:
        """Values by key."""
        if not 0 < len(request.keys) <= KEYS_PER_GET_MAX:
            raise UsageError(f"ask for 1 to {KEYS_PER_GET_MAX} rows at a time", keys=len(request.keys))
        self._gateway.check_inside(request.table_id, min(request.keys), max(request.keys) + b"\x00")
        gets: list[Request] = [Get(key) for key in request.keys]
        await self._gateway.reach(request.policy.floor)
        if request.txn:
            return await self._get_in_txn(request, gets, context)
        policy = request.policy
        kv, now = self._gateway.node.kv, self._gateway.node.clock.now()
        if policy.at == MIN and policy.follower_ok:  # the present, by the nearest replica if it is closed there
            header = Header(NO_RANGE, ts=now, uncertainty_limit=kv.uncertain_upto(now), follower_ok=True)
        else:
            header = Header(
                NO_RANGE,
                ts=policy.at,
                follower_ok=policy.follower_ok,
                wait_ms=policy.wait_ms,
                nearest_only=policy.nearest_only,
            )
        return _rows_reply(await kv.read(gets, header, timeout=context.remaining(), movable=policy.at == MIN))

    async def _get_in_txn(self, request: calls.GetRows, gets: list[Request], context: CallContext) -> calls.RowsReply:
        for other in request.also:
            if not 0 < len(other.keys) <= KEYS_PER_GET_MAX - len(gets):
                raise UsageError(f"ask for 1 to {KEYS_PER_GET_MAX} rows at a time", keys=len(other.keys))
            self._gateway.check_inside(other.table_id, min(other.keys), max(other.keys) + b"\x00")
            gets += [Get(key) for key in other.keys]
        async with self._gateway.txns.using(request, context) as open_txn:
            results = await open_txn.txn.batch(gets)
            values = [v.value for v in results if isinstance(v, Value)]
            return calls.RowsReply(values, open_txn.txn.state.read_ts, mark=open_txn.mark())

    # --- writes

    async def _in_txn(self, request: calls.Write, context: CallContext) -> calls.WriteReply:
        async with self._gateway.txns.using(request, context) as open_txn:
            await self.take(open_txn, request)
            return calls.WriteReply(len(request.keys), open_txn.txn.state.write_ts, open_txn.mark())

    async def take(self, open_txn: OpenTxn, request: calls.Write) -> None:
        """Give an open transaction a client's write, if it fits the table."""
        await self._checked(request)
        open_txn.tables[request.table_id] = request.version
        await write_intents(open_txn.txn, request, block_bytes=self._block_bytes())

    async def _checked(self, request: calls.Write) -> None:
        history = await self._gateway.current(request.table_id, request.version)
        check_rows(history.latest, request, self._gateway.checkers, bytes_max=self._gateway.row_bytes_max)

    async def _bulk(self, request: calls.Write, context: CallContext) -> Timestamp:
        node = self._gateway.node
        if request.kind is calls.WriteKind.UPSERT:
            below = await self._gateway.writable(request.table_id, request.version)
            await node.kv.put_rows(request.keys, request.values, below=below, timeout=context.remaining())
        else:
            await self._alone(request, context)
        return node.clock.now()

    async def _alone(self, request: calls.Write, context: CallContext) -> Timestamp:
        kv = self._gateway.node.kv
        if len(request.txn_id) != TXN_ID_BYTES and not request.bulk:
            raise UsageError(f"a write needs an id of {TXN_ID_BYTES} bytes to be known by")
        if request.kind is calls.WriteKind.UPSERT and request.txn_id:
            rows_ok(request.keys, request.values)
            below = await self._gateway.writable(request.table_id, request.version)
            written = await write_at_once(
                kv.context, request.txn_id, request.keys, request.values, below=below, timeout=context.remaining()
            )
            if written is not None:
                return written
        return await self._as_transaction(request, context)

    async def _as_transaction(self, request: calls.Write, context: CallContext) -> Timestamp:
        kv = self._gateway.node.kv
        budget = kv.context.budget(self._gateway.deadline(context).remaining())
        txn = kv.begin(until=budget, txn_id=request.txn_id)

        async def once() -> Timestamp:
            await write_intents(txn, request, block_bytes=self._block_bytes())
            txn.deadline = await self._gateway.writable(request.table_id, request.version)
            return await txn.commit()

        return await until_committed(txn, once, budget, same_id=True)

    def _block_bytes(self) -> int:
        return max(1, int(self._gateway.node.settings["log.entry_bytes_max"]) // 4)


def _rows_reply(answer: BatchResult) -> calls.RowsReply:
    values = [v.value for v in answer.results if isinstance(v, Value)]
    return calls.RowsReply(values, answer.ts, range_reads(answer))


async def write_intents(txn: Transaction, request: calls.Write, *, block_bytes: int) -> None:
    """Give a transaction the rows of a request, in blocks that fit a log entry. Its record lives with its first key."""
    if not txn.state.anchor:
        txn.state.anchor = request.keys[0]
    if request.kind is calls.WriteKind.DELETE:
        for key in request.keys:
            await txn.delete(key)
    elif request.kind is calls.WriteKind.UPSERT:
        await txn.put_rows(request.keys, request.values)
    else:
        for keys, values in chunks(request.keys, request.values, bytes_max=block_bytes):
            await txn.put_rows(keys, values, must_be_new=True)


def check_rows(table: TableDescriptor, request: calls.Write, checkers: RowCheckers, *, bytes_max: int) -> None:
    """Refuse keys that are not in order or not of the table, and values that are too large or no rows of its present version."""
    deleting = request.kind is calls.WriteKind.DELETE
    if (
        request.kind is not calls.WriteKind.UPSERT or not request.keys
    ):  # blocks of those are checked where they are taken
        rows_ok(request.keys, request.keys if deleting else request.values)
    check_not_system(table.name, what="write to")
    span = schema_span(table.schema)
    if request.keys[0] < span.start or request.keys[-1] >= span.end:
        raise UsageError(f"a key does not belong to table {table.name}", key=request.keys[0][:32])
    checker = checkers.of(table.schema)
    if deleting:
        checker.check_keys(request.keys)
        return
    header = bytes([FORMAT]) + table.version.to_bytes(HEADER_BYTES - 1, "little")
    if set(map(_HEADER, request.values)) != {header}:
        raise UsageError(f"a value is not a row of table {table.name} in version {table.version}")
    check_sizes(table.name, request.keys, request.values, limit=bytes_max)
    checker.check_rows(request.keys, request.values)
