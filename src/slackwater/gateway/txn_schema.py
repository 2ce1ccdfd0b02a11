"""Schema changes inside a client's transaction: seen by it at once, by others when it has committed, or by none.

    tx.create_table ──► checked; a record is made ────────────┐ held back here: no key is written before the commit,
    tx.alter_table  ──► table leased, checked, version made ──┤ so no node that reads the catalog meets an intent of it
    tx.upsert, get, scan of such a table: by the version that │ only this transaction knows, without a lease
    commit ──► records, names and jobs written, then committed with the rows at one timestamp

No lease is needed for a version that is not committed: no other transaction can use it, and this one commits at the very
timestamp since when it holds. A lease on it could not even be acquired: that takes a transaction of its own, which would wait for
this one. A table that exists is leased in its present version before it is altered, so that this version is still one of the two
that may be in use when the next is committed (I-29), and the transaction has a deadline.

What a change shows inside of its transaction:

    create a table                             everything: rows, indexes, further changes
    one change of one version                  the new version: a column added, renamed, widened or dropped
    everything else (indexes, checks, NOT      nothing: a job that begins with the commit (`CommitReply.jobs`); the
    NULL, a new name, several at a time)       transaction goes on with the version that it has leased

A table that exists takes one alteration in a transaction: two would need two versions, and others may still write by the present
one. What is held back was checked when it was asked for, at reads that hold until the commit; it is computed again when it is
written, and must come out the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog import definition, ladder
from slackwater.catalog.planning import WritePlanners
from slackwater.catalog.records import TableRecord, name_key
from slackwater.codec.row_checks import RowCheckers
from slackwater.errors import RetryableError, UsageError
from slackwater.gateway.tables import owner_of
from slackwater.hooks import probe
from slackwater.model.tables import TableHistory
from slackwater.protocol.client import schema as calls
from slackwater.protocol.client.schema import Change

if TYPE_CHECKING:
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.gateway.txns import OpenTxn
    from slackwater.model.jobs import Job
    from slackwater.model.tables import TableDescriptor
    from slackwater.protocol.client.calls import CreateTable
    from slackwater.txn import Transaction

DEFINITIONS_MAX = 64
"""Tables made and changed in one transaction."""


class OwnTable:
    """A table in a version that is not committed. What is made from it is kept nowhere else: the version may never come to be."""

    def __init__(self, gateway: Gateway, history: TableHistory) -> None:
        self.history = history
        self.checkers = RowCheckers(gateway.node.settings)
        self.planners = WritePlanners()

    @property
    def table(self) -> TableDescriptor:
        """The uncommitted version."""
        return self.history.latest


class _Creation(msgspec.Struct, frozen=True):
    record: TableRecord


class _Alteration(msgspec.Struct, frozen=True):
    table_id: int
    name: str
    changes: tuple[Change, ...]
    by: str | None


class HeldDefinitions:
    """What one transaction has defined, in order, to be written when it commits."""

    def __init__(self) -> None:
        self.tables: dict[int, OwnTable] = {}
        """Tables that the transaction sees in a version of its own."""
        self.altered: set[int] = set()
        """Tables that take no further change in it."""
        self.by_jobs: set[int] = set()
        """Those of them whose change is a job that begins with the commit."""
        self._steps: list[_Creation | _Alteration] = []

    def hold(self, step: _Creation | _Alteration) -> None:
        """One more, if there is room."""
        if len(self._steps) >= DEFINITIONS_MAX:
            raise UsageError(f"a transaction makes and changes at most {DEFINITIONS_MAX} tables; commit first")
        self._steps.append(step)

    def named(self, name: str) -> OwnTable | None:
        """The table of this name, if it has a version of the transaction's own."""
        return next((own for own in self.tables.values() if own.table.name == name), None)

    async def write(self, gateway: Gateway, txn: Transaction) -> list[Job]:
        """Give everything to the transaction, which is about to commit; returns the jobs that begin with it."""
        jobs: list[Job] = []
        for step in self._steps:
            if isinstance(step, _Creation):
                await gateway.catalog.put_new(txn, step.record)
            else:
                jobs += await gateway.schema.changer.begin(txn, step.name, step.changes, by=step.by)
        for own in self.tables.values():
            written = await gateway.catalog.latest_in(txn, own.table.table_id)
            if own.table.table_id not in self.by_jobs and written.schema != own.table.schema:
                probe("gateway.defined_otherwise")
                raise RetryableError(f"table {own.table.name} has changed since it was altered here; run it again")
        return [job for job in jobs if not job.status.ended]


class TxnSchema:
    """Serves definitions inside of transactions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def define(self, request: calls.DefineInTxn, context: CallContext) -> calls.DefinedInTxn:
        """Make or change a table inside a client's transaction; after an error nothing of it is left."""
        by = owner_of(context)
        async with self._gateway.txns.using(request, context) as open_txn:
            held = open_txn.definitions = open_txn.definitions or HeldDefinitions()
            if request.create is not None:
                history = await self._create(open_txn, held, request.create, by)
            else:
                history = await self._alter(open_txn, held, request, by)
            return calls.DefinedInTxn(history, open_txn.mark())

    async def _create(
        self, open_txn: OpenTxn, held: HeldDefinitions, request: CreateTable, by: str | None
    ) -> TableHistory:
        gateway = self._gateway
        name, how = request.name, (request.columns, request.primary_key)
        definition.first_version(1, name, *how, indexes=request.indexes)  # what is wrong is said first
        if held.named(name) is not None:
            raise UsageError(f"this transaction has made a table {name!r} already; pick another name", table=name)
        await gateway.catalog.check_new(open_txn.txn, name)
        table_id = await gateway.catalog.new_id()
        record = definition.first_version(table_id, name, *how, indexes=request.indexes, owner=by or "")
        held.hold(_Creation(record))
        own = held.tables[table_id] = OwnTable(gateway, TableHistory((record.at(open_txn.txn.state.read_ts),)))
        _anchor(open_txn, name)
        return own.history

    async def _alter(
        self, open_txn: OpenTxn, held: HeldDefinitions, request: calls.DefineInTxn, by: str | None
    ) -> TableHistory:
        gateway, changer, txn = self._gateway, self._gateway.schema.changer, open_txn.txn
        own = held.named(request.table)
        now = own.table if own is not None else await changer.owned(txn, request.table, by)
        if now.table_id in held.altered:
            raise UsageError(
                f"this transaction has altered table {now.name} already, and others may write by the version before; commit"
                " first, or give all changes in one call",
                table=now.name,
            )
        if own is None:
            await open_txn.leased(gateway, now.table_id, now.version)
        changes = tuple(gateway.schema.dated(request.changes))
        await changer.check(txn, now, changes)
        history = own.history if own is not None else await gateway.catalog.find_id(now.table_id, version=now.version)
        held.hold(_Alteration(now.table_id, now.name, changes, by))
        _anchor(open_txn, now.name)
        at_once = ladder.at_once(changes, now)
        if at_once is None or own is None:
            held.altered.add(now.table_id)
        if at_once is None:
            held.by_jobs.add(now.table_id)
        else:
            history = TableHistory((*_upto(history, now), at_once.at(txn.state.read_ts)))
            held.tables[now.table_id] = OwnTable(gateway, history)
        return history


def _upto(history: TableHistory, now: TableDescriptor) -> tuple[TableDescriptor, ...]:
    """The versions of a table up to the one that a transaction sees."""
    return tuple(version for version in history.versions if version.version <= now.version)


def _anchor(open_txn: OpenTxn, name: str) -> None:
    """Let the record of a transaction that has written no row live with the name of its first table: its client is told."""
    if not open_txn.txn.state.anchor:
        open_txn.txn.state.anchor = name_key(name)
