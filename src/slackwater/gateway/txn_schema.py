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

    create a table                             everything: rows, indexes, further changes of every kind
    changes of one version each                the new version: columns added, renamed, widened or dropped
    everything else (indexes, checks, NOT      nothing: jobs that begin with the commit (`CommitReply.jobs`), and so do the
    NULL, a new name)                          changes that follow; the transaction goes on with the version that it has
    drop a table                               the table is gone, its name is not free; the drop is a job too

However many changes a transaction makes to a table, it publishes one version of it: others may still write by the present one,
and only neighbors may be used together (I-29). So each further change makes *that* version anew, under the same number, and rows
that the transaction has written by the former shape are written again in the new one (`_rewrite`). A table that was made in the
transaction is known to no other: the rows of the transaction are all that it has, so indexes are filled, and checks and NOT NULL
proven, in the same way. One operation at a time defines tables (`Txns.using`): no write of the former shape is under way then.

What is held back was checked when it was asked for, at reads that hold until the commit; it is computed again when it is
written, and must come out the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.catalog import definition, ladder
from slackwater.catalog.planning import WritePlanner
from slackwater.catalog.records import TableRecord, name_key
from slackwater.codec.row_checks import RowCheckers
from slackwater.codec.rows import RowCodec
from slackwater.errors import RetryableError, SlackwaterError, UsageError
from slackwater.gateway.planned_writes import read_keys, write_planned
from slackwater.gateway.tables import owner_of
from slackwater.hooks import probe
from slackwater.model.tables import TableDescriptor, TableHistory
from slackwater.protocol.client import schema as calls
from slackwater.protocol.client.calls import WriteKind
from slackwater.protocol.client.schema import Change

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway
    from slackwater.gateway.txns import OpenTxn
    from slackwater.model.jobs import Job
    from slackwater.protocol.client.calls import CreateTable, Write
    from slackwater.txn import Transaction

DEFINITIONS_MAX = 64
"""Tables made, changed and dropped in one transaction."""
OWN_ROWS_MAX = 10_000
"""Rows written by a version that may still change; with more, it may not."""
replace = msgspec.structs.replace


class OwnTable:
    """A table in a version that is not committed. What is made from it is kept nowhere else: the version may never come to be."""

    def __init__(self, gateway: Gateway, history: TableHistory, before: OwnTable | None = None) -> None:
        self.history = history
        self.checkers = RowCheckers(gateway.node.settings)
        self.planner = WritePlanner(history.latest, history.schemas())
        self.keys: set[bytes] | None = set() if before is None else before.keys
        """Rows that were written by this version, and perhaps deleted again; None once they are too many to be remembered."""

    @property
    def table(self) -> TableDescriptor:
        """The uncommitted version."""
        return self.history.latest

    def wrote(self, request: Write) -> None:
        """Remember the rows of a write."""
        if self.keys is not None and request.kind is not WriteKind.DELETE:
            self.keys.update(request.keys)
            if len(self.keys) > OWN_ROWS_MAX:
                self.keys = None

    def rows(self) -> list[bytes]:
        """The rows that were written by this version, in order; an error says what to do where they are not known."""
        if self.keys is None:
            raise UsageError(
                f"this transaction has written more than {OWN_ROWS_MAX} rows to table {self.table.name} since it made or altered"
                " it; define the table first and write then, or commit in between",
                table=self.table.name,
            )
        return sorted(self.keys)


class _Alteration(msgspec.Struct, frozen=True):
    base: TableDescriptor
    """The version that the transaction found."""
    changes: tuple[Change, ...]
    by: str | None


class HeldDefinitions:
    """What one transaction has defined, to be written when it commits."""

    def __init__(self) -> None:
        self.tables: dict[int, OwnTable] = {}
        """Tables that the transaction sees in a version of its own."""
        self.made: dict[int, TableRecord] = {}
        self.altered: dict[int, _Alteration] = {}
        self.dropped: dict[int, tuple[str, str | None]] = {}
        """By id: the name, and the user who drops it (None for an operator)."""

    def check_room(self) -> None:
        """Refuse one more table where there are as many as may be."""
        if len(self.made) + len(self.altered) + len(self.dropped) >= DEFINITIONS_MAX:
            raise UsageError(f"a transaction makes, changes and drops at most {DEFINITIONS_MAX} tables; commit first")

    def named(self, name: str) -> OwnTable | None:
        """The table of this name, if it has a version of the transaction's own."""
        return next((own for own in self.tables.values() if own.table.name == name), None)

    def check_not_dropped(self, name: str) -> None:
        """Refuse a name whose table this transaction drops: it is free when the drop has ended, after the commit."""
        if any(name == gone for gone, _ in self.dropped.values()):
            raise UsageError(
                f"this transaction drops table {name!r}, which other nodes may use until they have heard of it; its name is free"
                " when the drop has ended: commit first, or pick another name",
                table=name,
            )

    async def write(self, gateway: Gateway, txn: Transaction) -> list[Job]:
        """Give everything to the transaction, which is about to commit; returns the jobs that begin with it."""
        jobs: list[Job] = []
        for record in self.made.values():
            await gateway.catalog.put_new(txn, record)
        for held in self.altered.values():
            jobs += await gateway.schema.changer.begin(txn, held.base.name, held.changes, by=held.by)
        for name, by in self.dropped.values():
            jobs += await gateway.schema.changer.begin(txn, name, [calls.DropTable()], by=by)
        for own in self.tables.values():
            written = await gateway.catalog.latest_in(txn, own.table.table_id)
            if written.schema != own.table.schema:
                probe("gateway.defined_otherwise")
                raise RetryableError(f"table {own.table.name} has changed since it was altered here; run it again")
        return [job for job in jobs if not job.status.ended]


class TxnSchema:
    """Serves definitions inside of transactions."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def define(self, request: calls.DefineInTxn, context: CallContext) -> calls.DefinedInTxn:
        """Make, change or drop a table inside a client's transaction; after an error nothing of it is left."""
        by = owner_of(context)
        if request.changes:
            self._gateway.node.jobs.check_room(by or "")
        async with self._gateway.txns.using(request, context, alone=True) as open_txn:
            held = open_txn.definitions = open_txn.definitions or HeldDefinitions()
            if request.create is not None:
                history = await self._create(open_txn, held, request.create, by)
            elif any(isinstance(change, calls.DropTable) for change in request.changes):
                history = await self._drop(open_txn, held, request, by)
            else:
                history = await self._alter(open_txn, held, request, by)
            _anchor(open_txn, history.latest.name)
            return calls.DefinedInTxn(history, open_txn.mark())

    async def _create(
        self, open_txn: OpenTxn, held: HeldDefinitions, request: CreateTable, by: str | None
    ) -> TableHistory:
        gateway = self._gateway
        name, how = request.name, (request.columns, request.primary_key)
        definition.first_version(1, name, *how, indexes=request.indexes)  # what is wrong is said first
        self._check_free(held, name)
        held.check_room()
        await gateway.catalog.check_new(open_txn.txn, name)
        table_id = await gateway.catalog.new_id()
        record = definition.first_version(table_id, name, *how, indexes=request.indexes, owner=by or "")
        held.made[table_id] = record
        own = held.tables[table_id] = OwnTable(gateway, TableHistory((record.at(open_txn.txn.state.read_ts),)))
        return own.history

    def _check_free(self, held: HeldDefinitions, name: str) -> None:
        """Refuse a name that another table of the transaction has, or had until now."""
        if held.named(name) is not None:
            raise UsageError(f"this transaction has made a table {name!r} already; pick another name", table=name)
        held.check_not_dropped(name)

    async def _alter(
        self, open_txn: OpenTxn, held: HeldDefinitions, request: calls.DefineInTxn, by: str | None
    ) -> TableHistory:
        gateway, changer, txn = self._gateway, self._gateway.schema.changer, open_txn.txn
        held.check_not_dropped(request.table)
        changes = tuple(gateway.schema.dated(request.changes))
        for change in changes:
            if isinstance(change, calls.RenameTable):
                self._check_free(held, change.to)
        own = held.named(request.table)
        if own is not None and own.table.table_id in held.made:
            return await self._alter_made(open_txn, held, own, changes)
        known = next((h for h in held.altered.values() if h.base.name == request.table), None)
        now = known.base if known is not None else await changer.owned(txn, request.table, by)
        changes = changes if known is None else (*known.changes, *changes)
        if known is None:
            held.check_room()
            await open_txn.leased(gateway, now.table_id, now.version)
        await changer.check(txn, now, changes)
        at_once, record = ladder.folded(changes, now)
        history = own.history if own is not None else await gateway.catalog.find_id(now.table_id, version=now.version)
        if record is not None and at_once == len(changes):
            history = TableHistory((*_upto(history, now), record.at(txn.state.read_ts)))
            held.tables[now.table_id] = await self._reshaped(open_txn, own, history)
        held.altered[now.table_id] = _Alteration(now, changes, by)
        return history

    async def _alter_made(
        self, open_txn: OpenTxn, held: HeldDefinitions, own: OwnTable, changes: Sequence[Change]
    ) -> TableHistory:
        """Change a table that this transaction has made: no other knows it, so every change is whole at once."""
        txn, table = open_txn.txn, own.table
        await self._gateway.schema.changer.check(txn, table, changes)
        for change in changes:
            if isinstance(change, calls.TruncateTable):
                raise UsageError(f"table {table.name} was made in this transaction; delete its rows instead")
            table = ladder.projected(change, table)
        record = definition.renumbered(table, own.table.version)
        history = TableHistory((record.at(txn.state.read_ts),))
        held.tables[table.table_id] = await self._reshaped(open_txn, own, history)
        held.made[table.table_id] = record
        return history

    async def _drop(
        self, open_txn: OpenTxn, held: HeldDefinitions, request: calls.DefineInTxn, by: str | None
    ) -> TableHistory:
        """Drop a table: one that this transaction has made is forgotten with its rows."""
        gateway, txn = self._gateway, open_txn.txn
        held.check_not_dropped(request.table)
        if len(request.changes) > 1:
            raise UsageError(
                f"table {request.table} is to be dropped: no other change goes with that; ask for it alone"
            )
        own = held.named(request.table)
        if own is not None and own.table.table_id in held.made:
            await write_planned(txn, own.planner, WriteKind.DELETE, own.rows(), ())
            del held.made[own.table.table_id], held.tables[own.table.table_id]
            return own.history
        if own is not None and own.keys != set():
            raise UsageError(
                f"this transaction has altered table {own.table.name} and written rows to it since; leave that out, or commit"
                " before the table is dropped",
                table=own.table.name,
            )
        now = await gateway.schema.changer.owned(txn, request.table, by)
        held.check_room()
        held.altered.pop(now.table_id, None)
        held.tables.pop(now.table_id, None)
        held.dropped[now.table_id] = now.name, by
        return await gateway.catalog.find_id(now.table_id, version=now.version)

    async def _reshaped(self, open_txn: OpenTxn, old: OwnTable | None, history: TableHistory) -> OwnTable:
        """The table in another shape of the transaction's own version, with its rows in that shape."""
        new = OwnTable(self._gateway, history, old)
        if old is not None and (keys := old.rows()):
            probe("gateway.rewritten")
            await _rewrite(open_txn.txn, old, new, keys)
        return new


async def _rewrite(txn: Transaction, old: OwnTable, new: OwnTable, keys: Sequence[bytes]) -> None:
    """Write rows and entries of one shape of a version in another one; after an error they are as they were."""
    found = await read_keys(txn, keys)
    there = [key for key in keys if found[key] is not None]
    before = [found[key] or b"" for key in there]
    after = _in_shape(old, new, before)
    await write_planned(txn, old.planner, WriteKind.DELETE, there, ())
    try:
        await write_planned(txn, new.planner, WriteKind.UPSERT, there, after)
    except RetryableError:
        raise
    except SlackwaterError:
        await write_planned(txn, old.planner, WriteKind.UPSERT, there, before)
        raise


def _in_shape(old: OwnTable, new: OwnTable, values: Sequence[bytes]) -> list[bytes]:
    """Values of rows by the new shape.

    Both shapes have one number, so the reader takes another. It lets every NULL pass: the writer says what is wrong with one.
    """
    schema = new.table.schema
    keys = {part.column_id for part in schema.primary_key}
    columns = tuple(column if column.id in keys else replace(column, nullable=True) for column in schema.columns)
    shape = replace(schema, version=schema.version + 1, columns=columns)
    reader, writer = RowCodec(shape, old.history.by_version()), RowCodec(schema)
    return [writer.encode(reader.decode(value))[1] for value in values]


def _upto(history: TableHistory, now: TableDescriptor) -> tuple[TableDescriptor, ...]:
    """The versions of a table up to the one that a transaction sees."""
    return tuple(version for version in history.versions if version.version <= now.version)


def _anchor(open_txn: OpenTxn, name: str) -> None:
    """Let the record of a transaction that has written no row live with the name of its first table: its client is told."""
    if not open_txn.txn.state.anchor:
        open_txn.txn.state.anchor = name_key(name)
