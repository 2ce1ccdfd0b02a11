"""Tables made and changed inside a transaction: it sees them at once, others when it has committed.

    async with db.transaction() as tx:
        await tx.create_table("orders", {"id": "int8", "total": "int8"}, primary_key="id")
        await tx.upsert("orders", [{"id": 1, "total": 5}])
        await tx.alter_table("customers", add_column={"orders": "int8 not null default 0"})

Committed together or not at all. What an alteration shows inside of its transaction: columns that are added, renamed, widened or
dropped. Everything else (indexes, checks, NOT NULL, a new name) becomes jobs that begin with the commit, and so does what is
asked for after it: `tx.jobs` has them then, for `db.jobs.wait`. A table that was made in the transaction shows every change. A
table that is dropped cannot be used in the transaction any more; its name is free when the job that drops it has ended.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.client.arguments import names_of, text_of
from slackwater.client.definitions import column_specs, index_specs, key_specs
from slackwater.client.schema_changes import alterations
from slackwater.client.tables import KnownTables, table_name
from slackwater.errors import UsageError
from slackwater.protocol.client import calls
from slackwater.protocol.client import schema as to

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from slackwater.client.definitions import Index
    from slackwater.client.gateways import Gateways
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.protocol.client.schema import Change
    from slackwater.runtime.retry import RetryBudget
    from slackwater.runtime.rpc.method import Method

T = TypeVar("T")


class OwnTables(KnownTables):
    """What a transaction knows of tables once it has defined one; nothing of it is kept when the transaction ends."""

    def __init__(self, gateways: Gateways) -> None:
        super().__init__(gateways)
        self._own: dict[str, TableHistory] = {}
        self._dropped: set[str] = set()

    def define(self, history: TableHistory, *, instead_of: str = "") -> TableHistory:
        """Take a table as this transaction has defined it, and forget what was made from another shape of the same version."""
        self._own.pop(instead_of, None)
        self._own[history.latest.name] = history
        self.forget()
        return history

    def drop(self, name: str) -> None:
        """Refuse a table from now on."""
        self._own.pop(name, None)
        self._dropped.add(name)
        self.forget()

    def forget(self, name: str = "") -> None:
        """Ask again next time, but for what only this transaction knows."""
        super().forget(name)
        for history in self._own.values():
            self.remember(history)

    async def by_name(self, name: str, *, deadline: RetryBudget) -> TableHistory:
        """The table that has this name for this transaction."""
        if name in self._dropped and name not in self._own:
            raise UsageError(f"this transaction drops table {name!r}; it cannot be used in it any more", table=name)
        return await super().by_name(name, deadline=deadline)

    async def prepared(self, name: str, prepare: Callable[[TableHistory], T], *, deadline: RetryBudget) -> T:
        """What `prepare` makes from a table; of one that this transaction has defined there is no newer version."""
        if name in self._own:
            return prepare(self._own[name])
        return await super().prepared(name, prepare, deadline=deadline)


class TransactionSchema(ABC):
    """What `AsyncTransaction` offers about tables themselves."""

    _gateways: Gateways
    _tables: KnownTables

    @abstractmethod
    async def _call(self, method: Method[Any, Any], request: Any, table: str, deadline: RetryBudget) -> Any:
        """One message of the transaction."""

    @abstractmethod
    async def _deliver(self, deadline: RetryBudget) -> None:
        """Send the writes that are held back."""

    @abstractmethod
    def _patience(self) -> RetryBudget:
        """When the operation at hand must have ended."""

    async def create_table(
        self,
        name: str,
        columns: Mapping[str, Any] | Sequence[Any] | Any,
        *,
        primary_key: str | Sequence[str],
        indexes: Sequence[Index] = (),
    ) -> TableSchema:
        """Make a table: it is here at once, and there for others when this transaction commits; see `Database.create_table`."""
        request = calls.CreateTable(
            table_name(name), column_specs(columns), key_specs(primary_key), index_specs(indexes)
        )
        return (await self._define(to.DefineInTxn(b"", request), name)).latest.schema

    async def drop_table(self, name: str) -> None:
        """Drop a table when this transaction commits; the job that does it is in `jobs` then. It cannot be used here any more."""
        request = to.DefineInTxn(b"", table=table_name(name), changes=(to.DropTable(),))
        await self._defined(request, name)
        self._own_tables().drop(name)

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
    ) -> TableSchema:
        """Change a table when this transaction commits, as `Database.alter_table` does; returns what it looks like here now."""
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
        return await self._alter(table, changes)

    async def create_index(
        self,
        table: str,
        name: str,
        columns: str | Sequence[str],
        *,
        unique: bool = False,
        storing: str | Sequence[str] = (),
    ) -> None:
        """Begin to build an index when this transaction commits; its job is in `jobs` then."""
        stored = names_of(storing, "the stored columns of an index")
        await self._alter(
            table, [to.CreateIndex(text_of(name, "name", "by_email"), key_specs(columns), bool(unique), stored)]
        )

    async def drop_index(self, table: str, name: str) -> None:
        """Begin to remove an index when this transaction commits; its job is in `jobs` then."""
        await self._alter(table, [to.DropIndex(text_of(name, "name", "by_email"))])

    async def _alter(self, table: str, changes: Sequence[Change]) -> TableSchema:
        request = to.DefineInTxn(b"", table=table_name(table), changes=tuple(changes))
        return (await self._define(request, table)).latest.schema

    async def _define(self, request: to.DefineInTxn, table: str) -> TableHistory:
        return self._own_tables().define((await self._defined(request, table)).table, instead_of=table)

    async def _defined(self, request: to.DefineInTxn, table: str) -> to.DefinedInTxn:
        """Ask for a definition. Writes go before, by themselves: it may be refused, and they would be in doubt with it."""
        deadline = self._patience()
        await self._deliver(deadline)
        reply: to.DefinedInTxn = await self._call(to.DEFINE_IN_TXN, request, table, deadline)
        return reply

    def _own_tables(self) -> OwnTables:
        """What this transaction knows of tables, from its first definition on."""
        if not isinstance(self._tables, OwnTables):
            self._tables = OwnTables(self._gateways)
        return self._tables
