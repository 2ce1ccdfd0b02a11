"""Definitions of tables as an application asks for them: create, drop, look up."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.client.definitions import column_specs, index_specs, key_specs
from slackwater.client.gateways import Resend, lost
from slackwater.client.tables import KnownTables, table_name
from slackwater.errors import AmbiguousResult, SlackwaterError, UsageError
from slackwater.protocol.client import calls

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.client.definitions import Index
    from slackwater.client.gateways import Gateways
    from slackwater.model.schema import TableSchema
    from slackwater.model.tables import TableHistory
    from slackwater.runtime.rpc.method import Method

Req = TypeVar("Req")
Res = TypeVar("Res")


class TableOperations:
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
