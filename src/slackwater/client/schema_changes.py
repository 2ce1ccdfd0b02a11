"""Tables as an application defines them: making and finding them, and changing those that exist.

    await db.create_index("users", "by_email", ["email"], unique=True)
    await db.alter_table("users", add_column={"city": "text", "visits": "int8 not null default 0"})
    await db.alter_table("users", rename_column={"name": "full_name"}, drop_column="fax")
    await db.alter_table("users", set_not_null="city", add_check={"positive": "visits >= 0"}, dry_run=True)

Each change is a durable job of the cluster: it goes on when its node, or this client, is gone. With `wait` (the default) a call
returns when its jobs have ended, and raises when one of them failed; what a job did is undone then, and the error says what was
in the way. Without it the jobs are returned at once, for `db.jobs.wait`, `pause` and `cancel`. Rows can be read and written all
the time. With `dry_run` nothing is changed, and the answer tells the steps, about how many rows are read and written, which nodes
use which version, and what the change would wait for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from slackwater.client.arguments import names_of, text_of
from slackwater.client.definitions import column_specs, index_specs, key_specs, type_of_text
from slackwater.client.gateways import Resend, lost
from slackwater.client.jobs import AsyncJobs
from slackwater.client.tables import KnownTables, table_name
from slackwater.errors import AmbiguousResult, SlackwaterError, UsageError
from slackwater.model.jobs import Job, Status
from slackwater.model.kinds import ColumnType
from slackwater.model.schema import Column
from slackwater.protocol.client import calls
from slackwater.protocol.client import schema as to
from slackwater.protocol.client.calls import ColumnSpec
from slackwater.protocol.client.schema import Change, LeasesReply, PlanReply

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.client.definitions import Index
    from slackwater.client.gateways import Gateways
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.rpc.method import Method

Req = TypeVar("Req")
Res = TypeVar("Res")
NAME_BYTES = 16


class TableChange(msgspec.Struct, frozen=True):
    """What became of a call that changes a table: the jobs of its changes, or only the plan of a dry run."""

    table: str
    jobs: list[Job] = []
    plan: PlanReply | None = None


class SchemaOperations:
    """What `AsyncDatabase` offers about tables themselves."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._tables = KnownTables(gateways)

    async def create_table(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[Any] | Any,
        *,
        primary_key: str | Sequence[str],
        indexes: Sequence[Index] = (),
    ) -> TableSchema:
        """Make a table; see `client.definitions` for how columns, keys and indexes (`Index`) are written."""
        specs = index_specs(indexes)
        request = calls.CreateTable(table_name(name), column_specs(columns), key_specs(primary_key), specs)
        reply = await self._define(calls.CREATE_TABLE, request, f"table {name} may or may not have been created")
        made = self._tables.remember(reply.table).latest
        if len(made.indexes) != len(specs):
            raise UsageError(
                f"table {name} was made without its indexes: the gateway is of an older release; upgrade it"
            )
        return made.schema

    async def _define(self, method: Method[Any, calls.TableReply], request: Any, doubt: str) -> calls.TableReply:
        """Change a definition, once: when the answer is lost the caller has to look."""
        try:
            deadline = self._gateways.deadline()
            reply = await self._gateways.call(method, request, deadline=deadline, resend=Resend.IF_UNSENT)
        except SlackwaterError as error:
            if not lost(error):
                raise
            raise AmbiguousResult(f"{doubt}: the answer was lost ({error.message}); look with tables()") from error
        self._gateways.floor.told(reply.table.latest.modified)
        return reply

    async def tables(self) -> list[TableSchema]:
        """Every table, by name."""
        reply = await self._ask(calls.LIST_TABLES, calls.ListTables(floor=self._gateways.floor.ts))
        return [self._tables.remember(history).latest.schema for history in reply.tables]

    async def table(self, name: str) -> TableSchema:
        """What a table looks like now."""
        return (await self.history(table_name(name))).latest.schema

    async def history(self, name: str | int) -> TableHistory:
        """Every version of a table, by name or id, with the time since when each holds. Asks: the answer is of now.

        By its id, a table is found also after it was renamed or dropped.
        """
        if isinstance(name, int):
            return await self._tables.by_id(name, fresh=True, deadline=self._gateways.deadline())
        self._tables.forget(name)
        return await self._tables.by_name(name, deadline=self._gateways.deadline())

    async def _ask(self, method: Method[Req, Res], request: Req) -> Res:
        """One question that is an operation of its own."""
        return await self._gateways.call(method, request, deadline=self._gateways.deadline())

    # --- changing

    async def create_index(
        self,
        table: str,
        name: str,
        columns: str | Sequence[str],
        *,
        unique: bool = False,
        storing: str | Sequence[str] = (),
        wait: bool = True,
        timeout: float | None = None,
        dry_run: bool = False,
    ) -> TableChange:
        """Build a secondary index on columns, each possibly followed by ` desc`, beside all reads and writes.

        Args:
            table: the table.
            name: what the index is called.
            columns: its columns, in order.
            unique: no two rows have the same values in them (NULLs differ). If two have, the job fails and names them.
            storing: columns whose values the index carries too, so that a read of them needs no row.
            wait: return when the index can be used; otherwise at once, with the job.
            timeout: how many seconds to wait; the job goes on.
            dry_run: change nothing, say what would be done.
        """
        stored = names_of(storing, "the stored columns of an index")
        change = to.CreateIndex(text_of(name, "name", "by_email"), key_specs(columns), bool(unique), stored)
        return await self._change(table, [change], wait=wait, timeout=timeout, dry_run=dry_run)

    async def drop_index(
        self, table: str, name: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Remove a secondary index; reads as of before still use it."""
        change = to.DropIndex(text_of(name, "name", "by_email"))
        return await self._change(table, [change], wait=wait, timeout=timeout, dry_run=dry_run)

    async def alter_table(
        self,
        table: str,
        *,
        add_column: Mapping[str, Any] | Sequence[Any] | None = None,
        rename_column: Mapping[str, str] | None = None,
        set_type: Mapping[str, Any] | None = None,
        set_not_null: str | Sequence[str] = (),
        drop_not_null: str | Sequence[str] = (),
        add_check: Mapping[str, str] | None = None,
        drop_check: str | Sequence[str] = (),
        drop_column: str | Sequence[str] = (),
        rename_to: str | None = None,
        wait: bool = True,
        timeout: float | None = None,
        dry_run: bool = False,
    ) -> TableChange:
        """Change columns, checks or the name of a table. Several changes are made in the order of the arguments here.

        Args:
            table: the table.
            add_column: as in `create_table`: names and types such as "int8 not null default 0". No row is rewritten.
            rename_column: old names and new ones.
            set_type: columns and their wider types.
            set_not_null: columns in which NULL is forbidden from now on; a row that has one is named, and nothing changes.
            drop_not_null: columns in which NULL is allowed.
            add_check: names and conditions such as "price >= 0 and state in ('new', 'paid')".
            drop_check: names of checks.
            drop_column: columns to remove; what was in them can be read as of before.
            rename_to: the table's new name.
            wait: return when all of it is done; otherwise at once, with the jobs.
            timeout: how many seconds to wait; the jobs go on.
            dry_run: change nothing, say what would be done.
        """
        changes = alterations(
            add_column=add_column,
            rename_column=rename_column,
            set_type=set_type,
            set_not_null=set_not_null,
            drop_not_null=drop_not_null,
            add_check=add_check,
            drop_check=drop_check,
            drop_column=drop_column,
            rename_to=rename_to,
        )
        return await self._change(table, changes, wait=wait, timeout=timeout, dry_run=dry_run)

    async def rename_table(
        self, table: str, to_name: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Call a table something else; its old name is free when this returns."""
        changes = alterations(rename_to=to_name)
        return await self._change(table, changes, wait=wait, timeout=timeout, dry_run=dry_run)

    async def truncate_table(
        self, table: str, *, wait: bool = True, timeout: float | None = None, dry_run: bool = False
    ) -> TableChange:
        """Remove all rows of a table at one time; they can still be read as of before. Writes wait for a moment."""
        return await self._change(table, [to.TruncateTable()], wait=wait, timeout=timeout, dry_run=dry_run)

    async def drop_table(self, name: str, *, wait: bool = True, dry_run: bool = False) -> TableChange:
        """Drop a table. Its rows can still be read as of a time before. What else was under way for it ends."""
        if dry_run or not wait:
            return await self._change(name, [to.DropTable()], wait=False, timeout=None, dry_run=dry_run)
        request = calls.DropTableByName(table_name(name))
        await self._define(calls.DROP_TABLE, request, f"table {name} may or may not have been dropped")
        self._tables.forget()
        return TableChange(name)

    async def leases(self, table: str | None = None) -> LeasesReply:
        """Which nodes write by which versions of a table, or of all, and what schema changes that have not ended wait for.

        A node holds a lease on each version that it writes by. A change publishes its next version when no node holds an
        older one than the newest: `leases` tells since when each is held and why, `waiting` what each change waits for.
        """
        name = "" if table is None else table_name(table)
        return await self._ask(to.LEASES, to.AskLeases(name, self._gateways.floor.ts))

    async def _change(
        self, table: str, changes: Sequence[Change], *, wait: bool, timeout: float | None, dry_run: bool
    ) -> TableChange:
        name = table_name(table)
        if dry_run:
            plan = await self._ask(to.PLAN_CHANGE, to.PlanChange(name, tuple(changes)))
            return TableChange(name, plan=plan)
        # a name of its own makes it repeatable: the second time the gateway answers with the jobs of the first
        request = to.ChangeTable(name, tuple(changes), self._gateways.runtime.rng.bytes(NAME_BYTES).hex())
        reply = await self._ask(to.CHANGE_TABLE, request)
        self._tables.forget()
        self._gateways.floor.told(reply.table.latest.modified)
        jobs = reply.jobs
        if wait:
            found = AsyncJobs(self._gateways)
            jobs = [job if job.status.ended else await found.wait(job.id, timeout=timeout) for job in jobs]
            self._tables.forget()
            _check_ended(jobs)
        return TableChange(name, jobs)


def _check_ended(jobs: Sequence[Job]) -> None:
    for job in jobs:
        if job.status is Status.CANCELLED:
            raise UsageError(f"{job.description}: job {job.id} was cancelled, and what it did was undone", job=job.id)
        if job.status is not Status.SUCCEEDED:
            raise UsageError(f"{job.description} failed, and what it did was undone: {job.error}", job=job.id)


def alterations(
    *,
    add_column: Mapping[str, Any] | Sequence[Any] | None = None,
    rename_column: Mapping[str, str] | None = None,
    set_type: Mapping[str, Any] | None = None,
    set_not_null: str | Sequence[str] = (),
    drop_not_null: str | Sequence[str] = (),
    add_check: Mapping[str, str] | None = None,
    drop_check: str | Sequence[str] = (),
    drop_column: str | Sequence[str] = (),
    rename_to: str | None = None,
) -> list[Change]:
    """The changes that the arguments of `alter_table` say, in order."""
    changes: list[Change] = []
    if add_column is not None:
        given = [add_column] if isinstance(add_column, Column | ColumnSpec) else add_column
        changes += [to.AddColumn(spec) for spec in column_specs(given)]
    changes += [to.RenameColumn(old, new) for old, new in _pairs(rename_column, "rename_column")]
    changes += [to.SetType(column, _type(wide)) for column, wide in _pairs(set_type, "set_type", values=Any)]
    changes += [to.SetNotNull(column) for column in names_of(set_not_null, "set_not_null")]
    changes += [to.DropNotNull(column) for column in names_of(drop_not_null, "drop_not_null")]
    changes += [to.AddCheck(name, text) for name, text in _pairs(add_check, "add_check")]
    changes += [to.DropCheck(name) for name in names_of(drop_check, "drop_check")]
    changes += [to.DropColumn(column) for column in names_of(drop_column, "drop_column")]
    if rename_to is not None:
        changes.append(to.RenameTable(table_name(rename_to)))
    if not changes:
        raise UsageError("say what to change, such as add_column={'city': 'text'}")
    return changes


def _pairs(given: Mapping[str, Any] | None, what: str, *, values: Any = str) -> list[tuple[str, Any]]:
    if given is None:
        return []
    if not hasattr(given, "items"):
        raise UsageError(f"{what} is a dict, by names", got=type(given).__name__)
    for name, value in given.items():
        if not all(isinstance(text, str) for text in ((name, value) if values is str else (name,))):
            raise UsageError(f"{what} is a dict of texts", got=repr((name, value))[:80])
    return list(given.items())


def _type(given: object) -> ColumnType:
    if isinstance(given, ColumnType):
        return given
    return type_of_text(text_of(given, "a type", "decimal(12,2)"))
