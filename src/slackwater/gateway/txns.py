"""Transactions that clients have open on this gateway.

    first message ──► open ── get, scan, write ──► commit | rollback ──► gone
                        │ unused for `gateway.txn_idle_timeout`              ▲
                        └────────────────────────────────────────────────────┘ rolled back; the client is told when it
                                                                               comes again

There is no message that only begins: the first one, whatever it asks, opens the transaction under the id that its client
chose. Its first half is also the name that its record is found by, so a client can ask what became of a commit that was its
first word. The other half, by which ranges tell transactions apart, is made here for each (`TxnContext.life`): what clients
choose may come twice, from one that errs or lies. Only the user who opened a transaction goes on with it.

The gateway is the coordinator: it heartbeats, pushes and refreshes. A client that loses its gateway in the middle loses the
transaction, which is safe to run again: nothing of it was committed. A client that loses it during *commit* asks another
gateway (`settle`), with what every answer told it (`TxnMark`): that gateway forces the record to a decision, as the
coordinator itself would. A transaction that has not committed by then never will.

The anchor, where the record lives, is fixed with the first write, not with the first message to a range, so that the client
knows it before it asks for the commit.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.errors import (
    AmbiguousResult,
    Overloaded,
    RetryableError,
    SchemaChanged,
    SlackwaterError,
    UsageError,
)
from slackwater.gateway import system_views
from slackwater.hooks import probe
from slackwater.model.jobs import Job
from slackwater.model.system_tables import VIEWS, is_system
from slackwater.model.txns import TXN_ID_BYTES, Intent, TxnStatus, by_name
from slackwater.protocol.client import calls
from slackwater.txn.settle import settle
from slackwater.txn.state import TxnPhase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.leases import DescriptorLease
    from slackwater.clock.timestamp import Timestamp
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.gateway.txn_schema import HeldDefinitions, OwnTable
    from slackwater.protocol.client.index_reads import GetByIndex
    from slackwater.protocol.client.schema import DefineInTxn
    from slackwater.txn import Transaction

SCAN_ROWS_MAX = 10_000
SWEEPS_PER_TIMEOUT = 4


class OpenTxn:
    """One transaction of one client."""

    def __init__(self, txn: Transaction, *, user: str, now_ns: int) -> None:
        self.txn = txn
        self.user = user
        self.used_ns = now_ns
        self.in_use = 0
        self.defining = False
        """Whether a table is being defined: other operations have to wait, for what they mean depends on it."""
        self.leases: dict[int, DescriptorLease] = {}
        """The tables it has written to, each in one version throughout."""
        self._descriptors_at = MIN
        """The time as of which it takes versions of tables, all of them."""
        self.definitions: HeldDefinitions | None = None
        """Tables that it makes and changes."""

    async def leased(self, gateway: Gateway, table_id: int, version: int) -> DescriptorLease:
        """The lease by which it writes to a table; taken with the first write, and given back at its end."""
        self.check_not_dropped(table_id)
        lease = self.leases.get(table_id)
        if lease is None:
            lease = await gateway.writable(table_id, version)
            if table_id in self.leases or (self.leases and lease.table.modified > self._descriptors_at):
                probe("gateway.descriptors_apart")
                lease.give_back()
                raise RetryableError("a table that this transaction writes to has changed since it began; run it again")
            if not self.leases:
                self._descriptors_at = gateway.node.clock.now()
            self.leases[table_id] = lease
            # It commits at or above the time since when the version holds, however long ago it began.
            self.txn.state.moved(lease.table.modified)
        if lease.version != version:
            raise SchemaChanged(
                f"this transaction writes to table {lease.table.name} in version {lease.version}; run it again",
                table_id=table_id,
                version=version,
            )
        return lease

    async def reads_by(self, gateway: Gateway, table_id: int, version: int) -> None:
        """Let it read a table by this version: the one that it uses throughout, which holds at the time it reads at.

        It is leased like one that is written by: what a reader may rely on (an index that is whole, rows that are there) ends two
        versions later, and those are not published before the lease is given back.
        """
        self.check_not_dropped(table_id)
        if not version or is_system(table_id) or self.own(table_id, version) is not None:
            return
        known = gateway.known(table_id)
        latest = None if known is None else known.latest
        if latest is not None and latest.version == version and (latest.read_only or latest.dropping):
            return  # it takes no rows, and so no leases; what there is stays
        lease = self.leases.get(table_id) or await self.leased(gateway, table_id, version)
        if lease.version != version:
            raise SchemaChanged(
                f"this transaction uses table {lease.table.name} in version {lease.version}; run it again",
                table_id=table_id,
                version=version,
            )
        if lease.table.modified > self.txn.state.read_ts:
            probe("gateway.read_below_version")
            raise RetryableError(f"table {lease.table.name} has changed since this transaction began; run it again")

    def check_not_dropped(self, table_id: int) -> None:
        """Refuse to use a table that this transaction drops."""
        if self.definitions is not None and table_id in self.definitions.dropped:
            name, _ = self.definitions.dropped[table_id]
            raise UsageError(f"this transaction drops table {name!r}; it cannot be used in it any more", table=name)

    def own(self, table_id: int, version: int) -> OwnTable | None:
        """A table in a version that only this transaction knows."""
        found = None if self.definitions is None else self.definitions.tables.get(table_id)
        return found if found is not None and found.table.version == version else None

    def check_reads(self) -> None:
        """Refuse to commit what was read at a time at which the versions it read by may not hold any more."""
        deadline = self.deadline()
        if deadline is not None and self.txn.state.read_ts >= deadline:
            raise RetryableError("a version that this transaction read by may not hold any more; run it again")

    def deadline(self) -> Timestamp | None:
        """The timestamp below which the transaction must commit."""
        return min((lease.deadline for lease in self.leases.values()), default=None)

    def end_leases(self) -> None:
        """Give every lease back: it has ended, or begins again."""
        unknown = self.txn.phase is TxnPhase.UNKNOWN
        for lease in self.leases.values():
            lease.give_back_after(self.txn.deadline or lease.deadline) if unknown else lease.give_back()
        self.leases.clear()
        self.definitions = None

    def mark(self) -> calls.TxnHandle:
        """How the ranges know it."""
        state = self.txn.state
        return calls.TxnHandle(state.txn_id, state.anchor, state.start, state.epoch, state.write_ts, exact=True)


class _Use:
    """One operation of a client's transaction; meanwhile it is not idle."""

    __slots__ = ("_alone", "_before", "_found", "_txns")

    def __init__(self, txns: Txns, found: OpenTxn, before: Sequence[calls.Write], *, alone: bool) -> None:
        self._txns = txns
        self._found = found
        self._before = before
        self._alone = alone

    async def __aenter__(self) -> OpenTxn:
        if self._found.defining or (self._alone and self._found.in_use):
            raise UsageError(
                "a table is defined in a transaction while another operation of it is under way; do one after the other"
            )
        self._found.in_use += 1
        self._found.defining = self._alone
        if self._before:
            try:
                await self._txns.take(self._found, self._before)
            except BaseException:
                self._leave()
                raise
        return self._found

    async def __aexit__(self, *exc: object) -> None:
        self._leave()

    def _leave(self) -> None:
        self._found.in_use -= 1
        self._found.defining = False
        self._found.used_ns = self._txns.now_ns()


class Txns:
    """The open transactions of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._open: dict[bytes, OpenTxn] = {}
        self._sweeping = False

    def __len__(self) -> int:
        return len(self._open)

    # --- what clients ask

    async def scan(self, request: calls.TxnScan, context: CallContext) -> calls.TxnRows:
        """Rows as the transaction sees them."""
        self._gateway.check_inside(request.table_id, request.start, request.end)
        await self._gateway.reach(request.floor)
        max_rows = min(request.max_rows or SCAN_ROWS_MAX, SCAN_ROWS_MAX)
        max_bytes = int(self._gateway.node.settings["gateway.page_bytes"])
        async with self.using(request, context) as open_txn:
            await open_txn.reads_by(self._gateway, request.table_id, request.version)
            if request.table_id in VIEWS:
                found = system_views.inside(
                    await system_views.rows_in(open_txn.txn, request.table_id), request.start, request.end
                )
                return calls.TxnRows(found, None, open_txn.mark())
            rows = await open_txn.txn.scan(request.start, request.end, max_keys=max_rows, max_bytes=max_bytes)
            return calls.TxnRows(rows.values, rows.resume, open_txn.mark())

    async def commit(self, request: calls.EndClientTxn, context: CallContext) -> calls.CommitReply:
        """Commit. On an error that can be mended by running it again the transaction stays open, to be restarted."""
        async with self.using(request, context) as open_txn:
            txn = open_txn.txn
            try:
                defined, jobs = open_txn.definitions, list[Job]()
                if defined is not None:
                    jobs = await defined.write(self._gateway, txn)
                txn.deadline = open_txn.deadline()
                open_txn.check_reads()
                ts = await txn.commit()
                if defined is not None:
                    await self._told(jobs)
                return calls.CommitReply(ts, jobs)
            except RetryableError:
                raise
            except SlackwaterError:
                txn.abandon()  # the client gives up on it
                raise
            finally:
                if txn.phase is not TxnPhase.OPEN:
                    if self._open.get(request.txn) is open_txn:  # another may have been opened under the name since
                        del self._open[request.txn]
                    open_txn.end_leases()

    async def _told(self, jobs: Sequence[Job]) -> None:
        """Have this node know what was defined; others hear of it. It is committed whatever happens here."""
        if jobs:
            self._gateway.node.jobs.ring()
        with suppress(SlackwaterError, TimeoutError):
            await self._gateway.catalog.refresh()

    async def rollback(self, request: calls.EndClientTxn, context: CallContext) -> calls.NativeOk:
        """Roll back. One that is not here any more was rolled back already, or never will commit."""
        found = self._found(request.txn, context)
        if found is not None:
            del self._open[request.txn]
        if found is not None and found.txn.phase is TxnPhase.OPEN:
            found.txn.until = self._gateway.deadline(context)
            try:
                await found.txn.rollback()
            finally:
                found.end_leases()
        return calls.NativeOk()

    async def restart(self, request: calls.EndClientTxn, context: CallContext) -> calls.TxnReply:
        """Begin again, with the age of the first try."""
        async with self.using(request, context) as open_txn:
            open_txn.end_leases()
            await open_txn.txn.restart()
            return calls.TxnReply(open_txn.mark())

    async def settle(self, request: calls.Settle, context: CallContext) -> calls.Settled:
        """Find out whether a transaction committed; if it did not, make sure that it never will."""
        mark, txn_context = request.mark, self._gateway.kv.context
        if not mark.anchor:
            # It wrote nothing: there is nothing to decide. What it read may still lie in the future.
            return calls.Settled(committed=True, ts=await txn_context.acknowledged(mark.write_ts))
        if len(mark.txn_id) != TXN_ID_BYTES:
            raise UsageError(f"a transaction is known by an id of {TXN_ID_BYTES} bytes")
        txn_id = mark.txn_id if mark.exact else by_name(mark.txn_id)
        known = Intent(mark.anchor, txn_id, mark.anchor, mark.start, mark.epoch, mark.write_ts)
        pushed = await settle(txn_context, known, deadline=self._gateway.deadline(context))
        if pushed is None:
            raise AmbiguousResult("the commit may or may not have happened; its record gives no answer")
        if pushed.ambiguous:
            raise AmbiguousResult("the transaction's record was collected; it may or may not have committed")
        return calls.Settled(committed=pushed.resolution.status is TxnStatus.COMMITTED, ts=pushed.resolution.ts)

    # --- inside the gateway

    def own_table(self, name: bytes, context: CallContext, table_id: int, version: int) -> OwnTable | None:
        """A table in a version that only the transaction of this name knows."""
        found = self._found(name, context)
        return None if found is None else found.own(table_id, version)

    def _found(self, name: bytes, context: CallContext) -> OpenTxn | None:
        """The transaction that is open under a name, if it is; refused to any user but its own."""
        found = self._open.get(name)
        if found is not None and found.user != context.user:
            probe("gateway.name_of_another")
            raise UsageError("another client has a transaction open under this id; choose ids at random")
        return found

    def _opened(self, name: bytes, context: CallContext) -> OpenTxn:
        """A new transaction, if there is room."""
        node = self._gateway.node
        limit = int(node.settings["gateway.txns_max"])
        if len(self._open) >= limit:
            raise Overloaded("this gateway has as many open transactions as it may; end some", limit=limit)
        if len(name) != TXN_ID_BYTES:
            raise UsageError(f"a transaction needs an id of {TXN_ID_BYTES} bytes to be known by")
        if not self._sweeping:
            self._sweeping = True
            node.scope.spawn(self._sweep(), name="idle transactions")
        opened = self._open[name] = OpenTxn(node.kv.begin(name=name), user=context.user, now_ns=self.now_ns())
        return opened

    def using(
        self,
        request: calls.Write | calls.GetRows | GetByIndex | calls.TxnScan | calls.EndClientTxn | DefineInTxn,
        context: CallContext,
        *,
        alone: bool = False,
    ) -> _Use:
        """A client's transaction, for the length of one operation and no longer than that has time.

        Writes that came with the operation are taken first. One that is to be `alone` is refused beside others.
        """
        found = self._found(request.txn, context)
        if found is None and request.opens:
            found = self._opened(request.txn, context)
        if found is None:
            raise RetryableError(
                "the transaction is not open on this gateway: it ended, was idle for too long, or the node was"
                " restarted; run it again"
            )
        if found.txn.phase is not TxnPhase.OPEN:
            raise UsageError(f"the transaction is {found.txn.phase.value}; begin another one")
        found.txn.until = self._gateway.deadline(context)
        return _Use(self, found, request.before, alone=alone)

    async def take(self, found: OpenTxn, held: Sequence[calls.Write]) -> None:
        """Give a transaction what its client held back."""
        for write in held:
            await self._gateway.rows.take(found, write)

    def now_ns(self) -> int:
        """What idleness is measured by."""
        return self._gateway.node.runtime.clock.monotonic_ns()

    async def _sweep(self) -> None:
        """Roll back transactions that have been idle for too long."""
        node = self._gateway.node
        while True:
            timeout_s = node.settings["gateway.txn_idle_timeout"]
            await node.runtime.clock.sleep(timeout_s / SWEEPS_PER_TIMEOUT)
            oldest_ns = self.now_ns() - int(timeout_s * 1e9)
            for name, found in list(self._open.items()):
                if not found.in_use and found.used_ns < oldest_ns:
                    probe("gateway.idle_transaction")
                    del self._open[name]
                    found.txn.abandon()
                    found.end_leases()
