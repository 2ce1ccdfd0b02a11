"""Rows in and out: writes as one transaction or as a bulk load, and point reads.

    no transaction   all rows at one timestamp or none: a transaction of its own, in one phase where one range has them all;
                     begun in the step in which the request arrives where that range is on this node.
                     The client chose its id, so that it can ask any gateway what became of it, should the answer be lost.
    transaction      handed to the transaction that is open here
    bulk             every row at least once, many blocks at a time, not at one timestamp

Of a table with indexes or checks, every write of rows is planned (`catalog.planning`) and is a transaction, blocks of a bulk load
included; also this one is begun in the step in which it arrives, if a range on this node has rows and entries
(`planned_at_once`). A table without them pays one comparison for that.

A transaction whose id the client chose is never reborn under another one: when a rival aborts it, the client is told and
comes again with a new id.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog.planning import is_plain
from slackwater.clock.timestamp import MIN
from slackwater.codec.row_checks import check_block
from slackwater.errors import AmbiguousResult, ConditionFailed, RetryableError, SlackwaterError, UsageError
from slackwater.gateway.planned_at_once import begin_planned
from slackwater.gateway.planned_writes import write_planned
from slackwater.gateway.scans import range_reads
from slackwater.gateway.system_views import rows_at, rows_in
from slackwater.model.system_tables import VIEWS, check_not_system, is_system
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.protocol.range.requests import Get, Header, Value
from slackwater.replica.driver.waiting import as_known
from slackwater.routing import outcome
from slackwater.routing.parallel import in_parallel
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.later import Later
from slackwater.txn.at_once import begin_write, write_at_once
from slackwater.txn.buffer import chunks
from slackwater.txn.kv import until_committed

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.catalog.leases import DescriptorLease
    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.row_checks import RowCheckers
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.gateway.txns import OpenTxn
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.range.requests import BatchResult, Request
    from slackwater.txn import Transaction

KEYS_PER_GET_MAX = 10_000
PLANNED_BLOCK_ROWS = 1_000
"""Rows of a bulk load to a table with indexes that are one transaction: more would meet other writers more often."""
PLANNED_BLOCKS_AT_ONCE = 4
NOTHING_WRITTEN = (RetryableError, ConditionFailed, UsageError)
"""Errors after which a write that is one transaction will never commit."""


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
        lease = self._gateway.node.catalog.leases.find(request.table_id, request.version)
        if lease is None:
            return None
        self._gateway.checkers.check_written(lease.table.schema, request.keys, request.values)
        txns, below = self._gateway.node.kv.context, lease.term.frontier
        begun: Later[tuple[Timestamp, bool] | None] | Later[tuple[Timestamp, bool]] | None
        if lease.plain:
            begun = begin_write(txns, request.txn_id, request.keys, request.values, below=below)
        else:
            begun = self._begin_planned(request, lease, below)
        if begun is None:
            return None
        lease.taken += 1
        return begun.go_on(partial(self._begun_ended, request, context, lease, below))

    def _begin_planned(
        self, request: calls.Write, lease: DescriptorLease, below: Timestamp
    ) -> Later[tuple[Timestamp, bool]] | None:
        table, history = lease.table, self._gateway.known(request.table_id)
        if history is None or history.latest.version < table.version:
            return None
        planner, txns = self._gateway.planners.of(history, table), self._gateway.node.kv.context
        return begin_planned(txns, planner, request.txn_id, request.keys, request.values, below=below)

    def _begun_ended(
        self,
        request: calls.Write,
        context: CallContext,
        lease: DescriptorLease,
        below: Timestamp,
        committed: tuple[Timestamp, bool] | None,
        error: SlackwaterError | None,
    ) -> calls.WriteReply | Later[calls.WriteReply]:
        ts, passed = committed or (None, False)
        if ts is not None and passed:
            lease.given += 1
            return calls.WriteReply(len(request.keys), ts)
        if error is not None and outcome.lost(error):
            lease.give_back_after(below)
            raise outcome.ambiguous(error)
        lease.give_back_after(ts or MIN)
        # The time of the commit has not come, or nothing came of it: that takes a task.
        answer: Later[calls.WriteReply] = Later()
        again = self._alone if error is None else self._as_transaction
        try:
            work = self._go_on(request, context, answer, ts, again)
            self._gateway.node.kv.context.scope.spawn(work, name="write goes on")
        except UsageError:
            raise AmbiguousResult("this node is shutting down; ask another what became of the write") from None
        return answer

    async def _go_on(
        self,
        request: calls.Write,
        context: CallContext,
        answer: Later[calls.WriteReply],
        ts: Timestamp | None,
        again: Callable[[calls.Write, CallContext, DescriptorLease], Awaitable[Timestamp]],
    ) -> None:
        """Acknowledge a commit in the future once that time has come; or write by `again`, a long way, what was not written."""
        txns = self._gateway.node.kv.context
        try:
            if ts is None:
                async with self._leased(request) as lease:
                    ts = await again(request, context, lease)
            else:
                await txns.acknowledged(ts)
            answer.settle(calls.WriteReply(len(request.keys), ts))
        except Exception as failed:
            answer.settle(None, as_known(failed, doing="going on with a write"))

    def get_at_once(self, request: calls.GetRows, context: CallContext) -> calls.RowsReply | None:
        """Read the latest values of a few keys, where one range led here has them."""
        gateway, policy, keys = self._gateway, request.policy, request.keys
        if request.txn or policy.at != MIN or policy.follower_ok or not 0 < len(keys) <= KEYS_PER_GET_MAX:
            return None
        if request.table_id in VIEWS:
            return None
        gateway.check_inside(request.table_id, min(keys), max(keys) + b"\x00")
        if policy.floor > gateway.node.clock.latest or not gateway.holds(request.table_id, request.version):
            return None
        answer = gateway.node.kv.get_at_once(keys)
        return None if answer is None else _rows_reply(answer)

    # --- the long way

    async def write(self, request: calls.Write, context: CallContext) -> calls.WriteReply:
        """Write rows of one table."""
        if request.txn:
            return await self._in_txn(request, context)
        async with self._leased(request) as lease:
            self._check(request, lease)
            write = self._bulk if request.bulk else self._alone
            return calls.WriteReply(len(request.keys), await write(request, context, lease))

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
        if policy.at == MIN and request.version and not is_system(request.table_id):
            await self._gateway.current(request.table_id, request.version)
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
                leader_only=not policy.follower_ok,
            )
        if request.table_id in VIEWS:
            rows, ts = await rows_at(kv, request.table_id, header, timeout=context.remaining())
            return calls.RowsReply([rows.get(key) for key in request.keys], ts)
        return _rows_reply(await kv.read(gets, header, timeout=context.remaining(), movable=policy.at == MIN))

    async def _get_in_txn(self, request: calls.GetRows, gets: list[Request], context: CallContext) -> calls.RowsReply:
        for other in request.also:
            if not 0 < len(other.keys) <= KEYS_PER_GET_MAX - len(gets):
                raise UsageError(f"ask for 1 to {KEYS_PER_GET_MAX} rows at a time", keys=len(other.keys))
            self._gateway.check_inside(other.table_id, min(other.keys), max(other.keys) + b"\x00")
            gets += [Get(key) for key in other.keys]
        async with self._gateway.txns.using(request, context) as open_txn:
            for of_table in ((request.table_id, request.version), *((o.table_id, o.version) for o in request.also)):
                await open_txn.reads_by(self._gateway, *of_table)
            results = await open_txn.txn.batch(gets)
            values = [v.value for v in results if isinstance(v, Value)]
            wanted = [(request.table_id, request.keys), *((other.table_id, other.keys) for other in request.also)]
            if not VIEWS.isdisjoint(table_id for table_id, _ in wanted):
                values = await self._with_views(open_txn.txn, wanted, values)
            return calls.RowsReply(values, open_txn.txn.state.read_ts, mark=open_txn.mark())

    async def _with_views(
        self, txn: Transaction, wanted: list[tuple[int, list[bytes]]], values: list[bytes | None]
    ) -> list[bytes | None]:
        """The values of keys of some tables, with those of views put in."""
        found: list[bytes | None] = []
        for table_id, keys in wanted:
            rows = await rows_in(txn, table_id) if table_id in VIEWS else None
            stored = values[len(found) : len(found) + len(keys)]
            found += stored if rows is None else [rows.get(key) for key in keys]
        return found

    # --- writes

    async def _in_txn(self, request: calls.Write, context: CallContext) -> calls.WriteReply:
        async with self._gateway.txns.using(request, context) as open_txn:
            await self.take(open_txn, request)
            return calls.WriteReply(len(request.keys), open_txn.txn.state.write_ts, open_txn.mark())

    async def take(self, open_txn: OpenTxn, request: calls.Write) -> None:
        """Give an open transaction a client's write, if it fits the table."""
        own = open_txn.own(request.table_id, request.version)
        if own is not None:
            check_rows(own.table, request, own.checkers)
            own.wrote(request)
            if is_plain(own.table):
                await write_intents(open_txn.txn, request, block_bytes=self._block_bytes())
            else:
                await write_planned(open_txn.txn, own.planner, request.kind, request.keys, request.values)
            return
        lease = await open_txn.leased(self._gateway, request.table_id, request.version)
        self._check(request, lease)
        await self._write_into(open_txn.txn, lease, request)

    def _check(self, request: calls.Write, lease: DescriptorLease) -> None:
        check_rows(lease.table, request, self._gateway.checkers)

    def _leased(self, request: calls.Write) -> Leased:
        """The lease on the version of a client's write, for as long as the write takes."""
        return Leased(self._gateway, request.table_id, request.version, in_parts=request.bulk)

    async def _write_into(self, txn: Transaction, lease: DescriptorLease, request: calls.Write) -> None:
        """Give a transaction the rows of a request, with what follows from them where the table has indexes or checks."""
        table, gateway = lease.table, self._gateway
        if is_plain(table):
            await write_intents(txn, request, block_bytes=self._block_bytes())
        else:
            history = await gateway.catalog.find_id(table.table_id, version=table.version)
            await write_planned(txn, gateway.planners.of(history, table), request.kind, request.keys, request.values)

    async def _bulk(self, request: calls.Write, context: CallContext, lease: DescriptorLease) -> Timestamp:
        node = self._gateway.node
        if request.kind is not calls.WriteKind.UPSERT:
            await self._alone(request, context, lease)
        elif lease.plain:
            await node.kv.put_rows(request.keys, request.values, below=lease.deadline, timeout=context.remaining())
        else:
            await self._bulk_planned(request, context, lease)
        return node.clock.now()

    async def _bulk_planned(self, request: calls.Write, context: CallContext, lease: DescriptorLease) -> None:
        """A bulk load of a table with indexes: block by block, each a transaction, so that entries follow concurrent writers."""
        node, deadline = self._gateway.node, self._gateway.deadline(context)

        async def block(low: int) -> None:
            rows = slice(low, low + PLANNED_BLOCK_ROWS)
            part = msgspec.structs.replace(request, keys=request.keys[rows], values=request.values[rows])

            async def work(txn: Transaction) -> None:
                await self._write_into(txn, lease, part)
                txn.deadline = lease.deadline

            await node.kv.run(work, timeout=deadline.remaining())

        works = [partial(block, low) for low in range(0, len(request.keys), PLANNED_BLOCK_ROWS)]
        done = await in_parallel(node.scope, works, limit=PLANNED_BLOCKS_AT_ONCE, name="bulk block")
        for failed in done:
            if isinstance(failed, SlackwaterError):
                raise failed

    async def _alone(self, request: calls.Write, context: CallContext, lease: DescriptorLease) -> Timestamp:
        kv = self._gateway.node.kv
        if len(request.txn_id) != TXN_ID_BYTES and not request.bulk:
            raise UsageError(f"a write needs an id of {TXN_ID_BYTES} bytes to be known by")
        if request.kind is calls.WriteKind.UPSERT and request.txn_id and lease.plain:
            below, timeout = lease.deadline, context.remaining()
            written = await write_at_once(
                kv.context, request.txn_id, request.keys, request.values, below=below, timeout=timeout
            )
            if written is not None:
                return written
        return await self._as_transaction(request, context, lease)

    async def _as_transaction(self, request: calls.Write, context: CallContext, lease: DescriptorLease) -> Timestamp:
        kv = self._gateway.node.kv
        budget = kv.context.budget(self._gateway.deadline(context).remaining())
        txn = kv.begin(until=budget, name=request.txn_id)

        async def once() -> Timestamp:
            await self._write_into(txn, lease, request)
            txn.deadline = lease.deadline
            return await txn.commit()

        return await until_committed(txn, once, budget, same_id=True)

    def _block_bytes(self) -> int:
        return max(1, int(self._gateway.node.settings["log.entry_bytes_max"]) // 4)


class Leased:
    """A lease on one version of a table, taken for the length of a write (`async with`)."""

    __slots__ = ("_gateway", "_in_parts", "_lease", "_table_id", "_version")

    def __init__(self, gateway: Gateway, table_id: int, version: int, *, in_parts: bool = False) -> None:
        self._gateway = gateway
        self._in_parts = in_parts
        self._table_id = table_id
        self._version = version
        self._lease: DescriptorLease | None = None

    async def __aenter__(self) -> DescriptorLease:
        self._lease = await self._gateway.writable(self._table_id, self._version)
        return self._lease

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        lease = self._lease
        assert lease is not None, "it was entered"
        if error is None or (isinstance(error, NOTHING_WRITTEN) and not self._in_parts):
            lease.give_back()
        else:  # all or a part of it may still commit, below the deadline it was sent with
            lease.give_back_after(lease.deadline)


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


def check_rows(table: TableDescriptor, request: calls.Write, checkers: RowCheckers) -> None:
    """Refuse keys that are not in order or not of the table, and values that are too large or no rows of its present version."""
    if request.kind is not calls.WriteKind.DELETE:
        checkers.check_written(table.schema, request.keys, request.values)
        return
    checker = checkers.of(table.schema)
    if checker.of_system:
        check_not_system(table.name, what="write to")
    check_block(request.keys, request.keys)
    checker.check_span(request.keys)
    checker.check_keys(request.keys)
