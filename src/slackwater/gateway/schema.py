"""Schema changes for clients (`protocol.client.schema`): begun here, run as jobs by any node (`catalog.schema_changes`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.catalog.backfill import Backfills
from slackwater.catalog.bulk_fill import BulkBackfill
from slackwater.catalog.climbing import SCHEMA_CHANGE
from slackwater.catalog.ladder import Work
from slackwater.catalog.lease_report import held_leases, unfinished_changes
from slackwater.catalog.schema_changes import LEASE_WAIT_S_MAX, LEASE_WAIT_S_MIN, SchemaChanger
from slackwater.codec.layout import schema_span
from slackwater.errors import LeasesInTheWay
from slackwater.gateway.tables import owner_of
from slackwater.gateway.txn_schema import TxnSchema
from slackwater.jobs import JobType
from slackwater.model.jobs import Owned, instant
from slackwater.model.kinds import ColumnKind
from slackwater.model.protection import OWNED, OWNED_BY_JOB, Mode
from slackwater.model.spans import Span
from slackwater.protocol.client import schema as calls
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.catalog.ladder import Step
    from slackwater.clock.timestamp import Timestamp
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.model.jobs import Job
    from slackwater.model.tables import TableDescriptor
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.txn import Transaction


class SchemaService:
    """Begins and plans schema changes on one gateway, and lets its node run them."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        node = gateway.node
        self._backfills = Backfills(
            node.catalog,
            node.kv,
            runner=BulkBackfill(node.kv, node.catalog),
            access=self,
            protect=self._protect,
            settings=node.settings,
            clock=node.runtime.clock,
            scope=node.scope.child("schema changes"),
        )
        self.changer = SchemaChanger(node.catalog, node.jobs, self._backfills, node.runtime.clock)
        self.in_txns = TxnSchema(gateway)
        node.job_types.add(JobType(SCHEMA_CHANGE, self.changer))
        node.catalog.drop_job = self.changer.drop_job

    def serve(self, server: RpcServer) -> None:
        """Answer clients."""
        server.handle(calls.CHANGE_TABLE, self.change)
        server.handle(calls.PLAN_CHANGE, self.plan)
        server.handle(calls.LEASES, self.leases)
        server.handle(calls.DEFINE_IN_TXN, self.in_txns.define)

    async def change(self, request: calls.ChangeTable, context: CallContext) -> calls.ChangeReply:
        """Begin changes of a table; what takes one version is done when this returns."""
        node, by = self._gateway.node, owner_of(context)
        deadline, changes = self._gateway.deadline(context), self.dated(request.changes)
        pause_s = LEASE_WAIT_S_MIN
        while True:
            try:
                jobs: list[Job] = await node.jobs.store.run(
                    lambda txn: self.changer.begin(txn, request.table, changes, by=by, job_name=request.name),
                    timeout=deadline.remaining(),
                )
                break
            except LeasesInTheWay:
                if deadline.remaining() <= pause_s:
                    raise
                await node.runtime.clock.sleep(pause_s)
                pause_s = min(LEASE_WAIT_S_MAX, 2 * pause_s)
        node.jobs.ring()
        await node.catalog.refresh()
        table_id = self.changer.table_of(jobs[0])
        return calls.ChangeReply(jobs, await node.catalog.find_id(table_id))

    async def plan(self, request: calls.PlanChange, context: CallContext) -> calls.PlanReply:
        """What `change` would do; nothing is changed."""
        node = self._gateway.node
        now, found = await node.jobs.store.run(
            lambda txn: self.changer.planned(txn, request.table, self.dated(request.changes)),
            timeout=context.remaining(),
        )
        rows = self.rows_about(schema_span(now.schema))
        holders = await self._holders(now)
        blocked = [f"job {m.job}: {m.description}" + (" (going back)" if m.reverting else "") for m in now.mutations]
        blocked += [
            f"n{held.node} to release version {held.version}: {held.says}" for held in holders if held.in_the_way
        ]
        return calls.PlanReply(
            now.name,
            now.version,
            [_planned(said, steps, rows) for said, steps in found],
            holders,
            blocked,
            node.clock.now(),
        )

    def dated(self, changes: Sequence[calls.Change]) -> list[calls.Change]:
        """Changes in which rows that are there take the time of the change in a column that is added with the default now()."""
        now = instant(self._gateway.node.clock.now())
        found: list[calls.Change] = []
        for change in changes:
            if isinstance(change, calls.AddColumn) and change.column.function == "now()":
                spec = change.column
                value = now if spec.type.kind is ColumnKind.TIMESTAMPTZ else now.replace(tzinfo=None)
                default = value.date() if spec.type.kind is ColumnKind.DATE else value
                change = calls.AddColumn(structs.replace(spec, default=default))
            found.append(change)
        return found

    async def leases(self, request: calls.AskLeases, context: CallContext) -> calls.LeasesReply:
        """Which nodes hold which versions of tables, and what changes that have not ended wait for."""
        node = self._gateway.node
        await self._gateway.reach(request.floor)
        await node.catalog.refresh()
        named = (await node.catalog.find(request.table)).latest if request.table else None
        held = await self._holders(named)
        tables = [history.latest for history in await node.catalog.names()] if named is None else [named]
        waiting = await unfinished_changes(tables, held, node.jobs.store, node.kv)
        return calls.LeasesReply(held, waiting, node.clock.now())

    async def _holders(self, table: TableDescriptor | None) -> list[calls.LeaseHolder]:
        """The nodes that use a version of a table, or of any."""
        node = self._gateway.node
        abandoned_s = node.settings["catalog.lease.abandoned_duration"]
        return await held_leases(node.catalog, node.kv, table, now=node.clock.now(), abandoned_s=abandoned_s)

    # --- what the work of a change asks

    async def ranges_of(self, start: bytes, end: bytes) -> list[Span]:
        """The parts of a span, one for each range."""
        found = await self._gateway.node.sender.ranges_of(start, end)
        return [Span(max(start, d.start), min(end, d.end)) for d in found]

    def rows_about(self, span: Span) -> int:
        """Rows of the ranges that hold a span, as far as this node has them: more than the span has, or 0."""
        states = [replica.state for replica in self._gateway.node.store.replicas.values()]
        return sum(
            Stats(*state.stats).live_keys
            for state in states
            if state.descriptor.start < span.end and span.start < state.descriptor.end
        )

    async def _protect(self, txn: Transaction, at: Timestamp, job: Job, table_id: int) -> Owned:
        store = self._gateway.node.protections.store
        record = await store.protect(
            txn, at, Mode.AT, OWNED_BY_JOB, str(job.id).encode(), tables=[table_id], user=job.creator
        )
        return Owned(OWNED, record.hex())


def _planned(description: str, steps: tuple[Step, ...], rows: int) -> calls.PlannedChange:
    work = {step.work for step in steps}
    return calls.PlannedChange(
        description,
        [calls.PlannedStep(step.rung.value, step.work.value) for step in steps],
        rows_to_read=rows if work != {Work.NONE} else 0,
        rows_to_write=rows if Work.BACKFILL in work else 0,
    )
