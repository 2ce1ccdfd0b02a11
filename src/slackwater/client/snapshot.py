"""A database at one timestamp: every read of every table sees exactly what was committed then.

    snap = await db.snapshot(max_staleness=5)
    snap.timestamp                              when
    await snap.scan("orders"); await snap.get("customers", 7)
    snap.reads                                  which node answered, as a follower or not, how old, and why not a follower

A snapshot holds nothing open: it is a timestamp. Reading it again, here or in another process, gives the same rows, for as
long as the history of that time is kept: for the ttl of the tables' zones, or, with `protect=True`, until `release`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow

from slackwater.client import protections
from slackwater.client.arguments import count_of, duration_of
from slackwater.client.index_reads import lookup
from slackwater.client.inputs import key_of
from slackwater.client.queries import Query, explained, query
from slackwater.client.reads import partitions, read_policy, scan
from slackwater.codec.damage import decode_row
from slackwater.errors import UsageError
from slackwater.protocol.client import calls
from slackwater.protocol.client.index_reads import GET_BY_INDEX

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Sequence

    from slackwater.client.gateways import Gateways
    from slackwater.client.tables import KnownTables
    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.access_paths import ScanExplanation
    from slackwater.model.schema import TableSchema
    from slackwater.protocol.client.protections import Protection
    from slackwater.runtime.retry import RetryBudget

pa: Any = pyarrow
READS_KEPT_MAX = 10_000
"""Ranges whose last read a snapshot remembers."""


class AsyncSnapshot:
    """Made by `AsyncDatabase.snapshot`."""

    timestamp: Timestamp
    """The one timestamp that everything is read at."""
    protection: Protection | None
    """What keeps its history from being collected, if that was asked for."""
    by_followers: bool
    """Whether the nearest replicas said that they can serve it without waiting."""

    def __init__(
        self,
        gateways: Gateways,
        tables: KnownTables,
        timestamp: Timestamp,
        *,
        by_followers: bool,
        read_from: str,
        wait: float | None,
        nearest_only: bool = False,
        protection: Protection | None = None,
    ) -> None:
        self.protection = protection
        self._gateways = gateways
        self._tables = tables
        self.timestamp = timestamp
        self.by_followers = by_followers
        self._policy = read_policy(timestamp, read_from=read_from, wait=wait, nearest_only=nearest_only)
        self._reads: dict[int, calls.RangeRead] = {}

    @property
    def reads(self) -> list[calls.RangeRead]:
        """Per range, the last read of it: timestamp, node, lag, and why the leaseholder had to answer."""
        return [self._reads[range_id] for range_id in sorted(self._reads)]

    async def table(self, name: str) -> TableSchema:
        """What a table looked like then."""
        history = await self._tables.by_name_at(name, self.timestamp, deadline=self._gateways.deadline())
        return history.readable_at(self.timestamp).schema

    async def get(self, table: str, key: object, *, by: str | None = None) -> dict[str, Any] | None:
        """A row by its primary key as it was, or by a unique index that there was then; None when there was none."""
        deadline = self._gateways.deadline()
        history = await self._tables.by_name_at(table, self.timestamp, deadline=deadline)
        codec = self._tables.codec(history, at=self.timestamp)
        if by is not None:
            found = lookup(self._tables, history.readable_at(self.timestamp), by, key)
            if found.key is None:
                return None
            asked = found.request(self._policy, version=history.latest.version)
            reply = await self._gateways.call(GET_BY_INDEX, asked, deadline=deadline)
            self._note(reply.reads)
            (value,) = reply.values
            return None if value is None else decode_row(codec, found.key, value)
        wanted = key_of(codec, key)
        request = calls.GetRows(history.latest.table_id, [wanted], self._policy)
        reply = await self._gateways.call(calls.GET_ROWS, request, deadline=deadline)
        self._note(reply.reads)
        (value,) = reply.values
        return None if value is None else decode_row(codec, wanted, value)

    async def scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> Any:
        """Rows as they were, as a `pyarrow.Table`, by the indexes that there were then; the rest is as in `Database.scan`."""
        deadline = self._gateways.deadline()
        asked = await self._query(table, deadline, columns=columns, where=where, limit=limit, index=index, order=order)
        batches = [batch async for batch in self._batches(asked, deadline)]
        return asked.finish(pa.Table.from_batches(batches, schema=asked.schema))

    async def scan_batches(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> AsyncGenerator[Any, None]:
        """The same, batch by batch, as they come; an `order` must be that of an index."""
        deadline = self._gateways.deadline()
        asked = await self._query(table, deadline, columns=columns, where=where, limit=limit, index=index, order=order)
        asked.check_streams()
        async for batch in self._batches(asked):
            yield batch

    async def explain_scan(
        self,
        table: str,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
        limit: int | None = None,
        index: str | None = None,
        order: str | Sequence[str] = (),
    ) -> ScanExplanation:
        """How `scan` would read: see `Database.explain_scan`."""
        history = await self._tables.by_name_at(table, self.timestamp, deadline=self._gateways.deadline())
        return explained(
            history, at=self.timestamp, columns=columns, where=where, limit=limit, index=index, order=order
        )

    async def partitions(
        self,
        table: str,
        num: int | None = None,
        *,
        columns: Sequence[str] | None = None,
        where: Sequence[Any] = (),
    ) -> list[calls.Partition]:
        """Parts of a table for tasks to read in parallel: see `Database.partitions`."""
        deadline = self._gateways.deadline()
        history = await self._tables.by_name_at(table, self.timestamp, deadline=deadline)
        count = count_of(num, "num")
        return await partitions(
            self._gateways, history, at=self.timestamp, count=count, deadline=deadline, columns=columns, where=where
        )

    async def renew(self, seconds: float) -> None:
        """Keep a protected snapshot for so many seconds from now."""
        self.protection = await protections.renew(self._gateways, self._pinned(), duration_of(seconds, "seconds"))

    async def release(self) -> None:
        """Let the history of a protected snapshot be collected; reading it may fail from now on."""
        await protections.release(self._gateways, self._pinned())
        self.protection = None

    def _pinned(self) -> Protection:
        if self.protection is None:
            raise UsageError("this snapshot is not protected; make it with protect=True")
        return self.protection

    async def _query(self, table: str, deadline: RetryBudget, **asked: Any) -> Query:
        history = await self._tables.by_name_at(table, self.timestamp, deadline=deadline)
        return query(history, at=self.timestamp, **asked)

    async def _batches(self, asked: Query, deadline: RetryBudget | None = None) -> AsyncGenerator[Any, None]:
        async for page, batches in scan(self._gateways, asked, self._policy, deadline=deadline):
            self._note(page.reads)
            for batch in batches:
                yield batch

    def _note(self, found: Sequence[calls.RangeRead]) -> None:
        for read in found:
            if len(self._reads) < READS_KEPT_MAX or read.range_id in self._reads:
                self._reads[read.range_id] = read

    def __repr__(self) -> str:
        return f"Snapshot({self.timestamp})"
