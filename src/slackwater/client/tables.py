"""The tables that a client has met: their histories, and the codecs made from them.

A client learns a table when it first names it and keeps what it learned. It finds out that a table has changed when a
gateway refuses its version (`SchemaChanged`) or a row's version is not among those it knows; then it asks again, once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.protocol.client import calls

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.client.gateways import Gateways
    from slackwater.model.indexes import Index
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.runtime.retry import RetryBudget

T = TypeVar("T")
TABLES_MAX = 10_000
"""Tables a client remembers; beyond it all are forgotten and learned again."""


class KnownTables:
    """A cache of histories by name and by id."""

    def __init__(self, gateways: Gateways) -> None:
        self._gateways = gateways
        self._by_name: dict[str, TableHistory] = {}
        self.known = self._by_name.get
        """The table that has this name, as far as is known; None when it was never met."""
        self._by_id: dict[int, TableHistory] = {}
        self._upto: dict[int, Timestamp] = {}
        """Up to when every version of a table is known."""
        self._codecs: dict[tuple[int, int, int], RowCodec] = {}
        self._index_codecs: dict[tuple[int, int, int], IndexCodec] = {}

    def remember(self, history: TableHistory, *, upto: Timestamp = MIN) -> TableHistory:
        """Keep what a gateway told; with `upto`, every version at or below that is among it."""
        if len(self._by_id) >= TABLES_MAX:
            self.forget()
        table_id = history.latest.table_id
        self._upto[table_id] = Timestamp(max(upto, self._upto.get(table_id, MIN)))
        known = self._by_id.get(history.latest.table_id)
        if known is not None and known.latest.version > history.latest.version:
            history = known
        self._by_id[history.latest.table_id] = history
        if not history.latest.dropped:
            self._by_name[history.latest.name] = history
        return history

    def forget(self, name: str = "") -> None:
        """Ask again next time: for one table, or for all."""
        if name:
            self._by_name.pop(name, None)
            return
        self._by_name.clear()
        self._by_id.clear()
        self._upto.clear()
        self._codecs.clear()
        self._index_codecs.clear()

    async def by_name(self, name: str, *, deadline: RetryBudget) -> TableHistory:
        """The table that has this name now, as far as is known."""
        found = self.known(name)
        if found is None:
            request = calls.FindTable(name=table_name(name), floor=self._gateways.floor.ts)
            reply = await self._gateways.call(calls.FIND_TABLE, request, deadline=deadline)
            found = self.remember(reply.table)
        return found

    async def prepared(self, name: str, prepare: Callable[[TableHistory], T], *, deadline: RetryBudget) -> T:
        """What `prepare` makes from a table. What it refuses may be right for a newer version: that is looked for first."""
        history = self.known(name) or await self.by_name(name, deadline=deadline)
        try:
            return prepare(history)
        except UsageError:
            fresh = await self.by_id(history.latest.table_id, fresh=True, deadline=deadline)
            if fresh.latest.version == history.latest.version:
                raise
            self.forget(name)
            return prepare(await self.by_name(name, deadline=deadline))

    async def by_name_at(self, name: str, at: Timestamp, *, deadline: RetryBudget) -> TableHistory:
        """The table that had this name at a time."""
        known = self._by_name.get(name)
        if known is not None and at <= self._upto.get(known.latest.table_id, MIN):
            held = known.at(at)
            if held is not None and held.name == name:
                return known
        request = calls.FindTable(name=table_name(name), at=at)
        reply = await self._gateways.call(calls.FIND_TABLE, request, deadline=deadline)
        return self.remember(reply.table, upto=at)

    async def by_id(
        self, table_id: int, *, deadline: RetryBudget, fresh: bool = False, at: Timestamp = MIN
    ) -> TableHistory:
        """A table by its id; with `fresh`, with every version up to what this session was told, and up to `at`."""
        found = self._by_id.get(table_id)
        if found is None or fresh:
            floor = Timestamp(max(at, self._gateways.floor.ts))
            request = calls.FindTable(table_id=table_id, floor=floor)
            reply = await self._gateways.call(calls.FIND_TABLE, request, deadline=deadline)
            found = self.remember(reply.table)
        return found

    def codec(self, history: TableHistory, *, at: Timestamp = MIN) -> RowCodec:
        """Encodes rows of the newest version, or decodes rows as of a time."""
        read = history.latest if at == MIN else history.readable_at(at)
        name = (read.table_id, read.version, history.latest.version)
        found = self._codecs.get(name)
        if found is None:
            found = self._codecs[name] = RowCodec(read.schema, history.by_version())
        return found

    def index_codec(self, table: TableDescriptor, index: Index) -> IndexCodec:
        """Encodes the keys of an index's entries, under one version of its table."""
        name = (table.table_id, table.version, index.id)
        found = self._index_codecs.get(name)
        if found is None:
            found = self._index_codecs[name] = IndexCodec(table.schema, index)
        return found


def table_name(name: object) -> str:
    """`name`, when it can be one."""
    if not isinstance(name, str) or not name:
        raise UsageError("a table is named by a text that is not empty", got=name)
    return name
