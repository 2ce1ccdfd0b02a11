"""Definitions of tables: create, drop, look up.

A table belongs to the client who made it, by the name in the certificate, or to the operators when one of them did (and where
there are no certificates). Only its owner and operators may drop it. Rights on rows come with SQL's users and grants.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.protocol.client import calls
from slackwater.runtime.access import Role

if TYPE_CHECKING:
    from slackwater.gateway.context import CallContext
    from slackwater.gateway.service import Gateway


class TableService:
    """Answers from this node's catalog."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: calls.CreateTable, context: CallContext) -> calls.TableReply:
        """Make a table."""
        catalog = self._gateway.catalog
        owner, timeout = owner_of(context) or "", context.remaining()
        made = await catalog.create(
            request.name, request.columns, request.primary_key, indexes=request.indexes, owner=owner, timeout=timeout
        )
        return calls.TableReply(await catalog.find_id(made.table_id))

    async def drop(self, request: calls.DropTableByName, context: CallContext) -> calls.TableReply:
        """Drop a table."""
        catalog = self._gateway.catalog
        gone = await catalog.drop(request.name, by=owner_of(context), timeout=context.remaining())
        return calls.TableReply(await catalog.find_id(gone.table_id))

    async def find(self, request: calls.FindTable, context: CallContext) -> calls.TableReply:
        """A table by id, or by name at a time. Asked for by name, the answer is of now: what is new is read first."""
        catalog = self._gateway.catalog
        await self._gateway.reach(request.floor)
        if request.table_id:
            await catalog.refresh()
            return calls.TableReply(await catalog.find_id(request.table_id))
        if request.at == MIN:
            await catalog.refresh()
        return calls.TableReply(await catalog.find(request.name, at=None if request.at == MIN else request.at))

    async def all(self, request: calls.ListTables, context: CallContext) -> calls.TablesReply:
        """Every table."""
        at = None if request.at == MIN else request.at
        await self._gateway.reach(request.floor)
        return calls.TablesReply(await self._gateway.catalog.names(at=at))


def owner_of(context: CallContext) -> str | None:
    """The client that asks; None for an operator, who may do everything."""
    return None if Role.OPERATOR in context.roles else context.user
