"""The catalog of one node: transactions that change it, and a cache that follows it.

    create, drop, publish    one transaction each; what they made is in this node's cache when they return
    find, find_id, names     from the cache; a miss reads what is new first
    watch                    reads what is new every `catalog.poll_interval`, and at once when the watch rings

Reading what is new is one `Export` of the versions committed after what the cache has: it costs a message and, on an
unchanged catalog, no data. Should history be collected below that point, the records are read as they are now, each with
the timestamp it carries.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Protocol

import msgspec

from slackwater.catalog import definition
from slackwater.catalog.records import (
    DROPPING,
    TABLE_ID_KEY,
    TableRecord,
    decode_id,
    decode_record,
    descriptor_key,
    descriptors_span,
    dropping_key,
    encode_id,
    encode_record,
    is_version,
    name_key,
    table_of,
    versions_span,
)
from slackwater.catalog.tables import TABLES_MAX, Tables
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.errors import AccessDenied, BelowGcThreshold, Overloaded, SlackwaterError, UsageError
from slackwater.hooks import probe
from slackwater.model.system_tables import check_not_system
from slackwater.model.tables import TableDescriptor, TableHistory
from slackwater.protocol.range.requests import Export, Get, Header, Value, Versions
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.sync import Lock, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.protocol.client.calls import ColumnSpec, KeySpec
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn import KV, Transaction

LOOK_AGAIN_SHARE = 0.25
"""With so little trust left, a write reads the catalog first. Polling has usually done so long before."""
assert 0 < LOOK_AGAIN_SHARE < 1, "a catalog is looked at again before it is no longer trusted"
READ_VERSIONS = 1_000
"""Records read by one request."""


class CatalogWatch(Protocol):
    """Tells when the catalog may have changed: a feed over its span. Without one, polling finds out."""

    async def changed(self) -> None:
        """Return when something may have changed since the last call."""
        ...


class TableCatalog:
    """Descriptors of a cluster, as one node knows them."""

    def __init__(
        self,
        kv: KV,
        *,
        clock: HybridClock,
        runtime: Runtime,
        settings: Settings,
        scope: TaskScope,
        watch: CatalogWatch | None = None,
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._runtime = runtime
        self._settings = settings
        self._scope = scope
        self.watch = watch
        self.tables = Tables()
        self._reading = Lock()
        self._following = False

    # --- finding

    async def find(self, name: str, *, at: Timestamp | None = None) -> TableHistory:
        """The table that has this name now, or had it at a time; the error lists names that are near."""
        await self._fresh(MIN if at is None else at)
        found = self.tables.by_name(name, at=at)
        if found is None:
            await self.refresh()
            found = self.tables.by_name(name, at=at)
        if found is None:
            later = self.tables.by_name(name)
            if later is not None and at is not None:
                later.readable_at(at)  # raises, with the time since when the table is there
            known = ", ".join(h.latest.name for h in self.tables.names(at=at)[:20]) or "none"
            raise UsageError(f"there is no table {name!r}; tables: {known}", table=name)
        return found

    def known(self, table_id: int) -> TableHistory | None:
        """A table by its id, if the cache is kept fresh and has it: without waiting for anything."""
        return self.tables.by_id(table_id) if self._following and self.tables.upto != MIN else None

    async def find_id(self, table_id: int, *, version: int = 0) -> TableHistory:
        """A table by its id; with `version`, once that version is known."""
        await self._fresh(MIN)
        found = self.tables.by_id(table_id)
        if found is None or found.latest.version < version:
            await self.refresh()
            found = self.tables.by_id(table_id)
        if found is None or found.latest.version < version:
            raise UsageError("there is no such table, or not in this version", table_id=table_id, version=version)
        return found

    async def names(self, *, at: Timestamp | None = None) -> list[TableHistory]:
        """Every table that exists now, or existed at a time. Now means now: what is new is read first."""
        await self.refresh()
        return self.tables.names(at=at)

    # --- changing

    async def create(
        self,
        name: str,
        columns: Sequence[ColumnSpec],
        primary_key: Sequence[KeySpec],
        *,
        owner: str = "",
        timeout: float | None = None,
    ) -> TableDescriptor:
        """Make a table; its id is new, its name must be free. It belongs to `owner`, or to the operators."""
        definition.first_version(1, name, columns, primary_key)  # what is wrong is said before anything is written
        await self._fresh(MIN)
        if len(self.tables) >= TABLES_MAX:
            raise Overloaded("the cluster has as many tables as it can hold", limit=TABLES_MAX)

        async def work(txn: Transaction) -> TableRecord:
            if await txn.get(name_key(name)) is not None:
                raise UsageError(f"there is a table {name!r} already; drop it first or pick another name", table=name)
            table_id = await txn.increment(TABLE_ID_KEY)
            record = definition.first_version(table_id, name, columns, primary_key, owner=owner)
            await txn.put(name_key(name), encode_id(table_id))
            await txn.put(descriptor_key(table_id, 1), encode_record(record))
            return record

        return await self._change(work, timeout=timeout)

    async def drop(self, name: str, *, by: str | None = None, timeout: float | None = None) -> TableDescriptor:
        """Drop a table. Its rows stay where they are, readable as of before, until their history is collected.

        First it is noted that the table is being dropped: a node that reads the note commits no more rows. Then every node
        that has not read it has run out of trust (`deadline`), and the drop commits above all their deadlines (I-30). A drop
        that is cut off in between is finished by the next one; until then the table can be read, and not written.

        A user who is named by `by` may drop only what belongs to them; None is for those who may drop everything.
        """

        async def work(txn: Transaction) -> TableRecord:
            now = await self._droppable(txn, name, by)
            record = definition.dropped(now)
            await txn.delete(name_key(name))
            await txn.put(descriptor_key(now.table_id, record.schema.version), encode_record(record))
            return record

        check_not_system(name, what="drop")
        deadline = self._kv.context.deadline(timeout)
        await self._fence(name, by=by, deadline=deadline)
        return await self._change(work, timeout=deadline.remaining())

    async def _fence(self, name: str, *, by: str | None, deadline: Deadline) -> None:
        """Note that a table is being dropped, and wait until no node commits rows of it any more."""

        async def note(txn: Transaction) -> int:
            table_id = (await self._droppable(txn, name, by)).table_id
            await txn.put(dropping_key(table_id), DROPPING)
            noted[:] = [txn]
            return table_id

        noted: list[Transaction] = []
        table_id = await self._kv.run(note, timeout=deadline.remaining())
        self.tables.dropping.add(table_id)
        assert noted, "the note was committed"
        assert noted[0].commit_ts > 0, "the note was committed"
        await self._kv.context.wait_past(self._trusted_upto(noted[0].commit_ts))

    async def _droppable(self, txn: Transaction, name: str, by: str | None) -> TableDescriptor:
        """The table of that name, if `by` may drop it."""
        found = await txn.get(name_key(name))
        if found is None:
            raise UsageError(f"there is no table {name!r} to drop", table=name)
        now = await self._latest(txn, decode_id(found))
        if by is not None and now.owner != by:
            whose = now.owner or "the operators"
            raise AccessDenied(f"table {name} belongs to {whose}; its owner or an operator may drop it", table=name)
        return now

    async def publish(self, table_id: int, change: Callable[[TableDescriptor], TableRecord]) -> TableDescriptor:
        """Write the next version of a table: `change` makes it from the present one (see `definition`)."""
        check_not_system((await self.find_id(table_id)).latest.name, what="alter")

        async def work(txn: Transaction) -> TableRecord:
            now = await self._latest(txn, table_id)
            if now.dropped:
                raise UsageError(f"table {now.name} was dropped", table=now.name)
            record = change(now)
            if record.schema.version != now.version + 1 or record.schema.table_id != table_id:
                raise UsageError("the next version of a table has the next number", version=record.schema.version)
            await txn.put(descriptor_key(table_id, record.schema.version), encode_record(record))
            return record

        return await self._change(work)

    async def _change(
        self, work: Callable[[Transaction], Awaitable[TableRecord]], *, timeout: float | None = None
    ) -> TableDescriptor:
        transaction: list[Transaction] = []

        async def once(txn: Transaction) -> TableRecord:
            transaction[:] = [txn]
            return await work(txn)

        record = await self._kv.run(once, timeout=timeout)
        descriptor = TableDescriptor(
            record.schema, transaction[0].commit_ts, record.next_column_id, record.dropped, record.owner
        )
        assert descriptor.modified > 0, "a change has a time"
        self.tables.learn([descriptor])
        return descriptor

    async def _latest(self, txn: Transaction, table_id: int) -> TableDescriptor:
        span = versions_span(table_id)
        rows = await txn.scan(span.start, span.end)
        if not rows.keys:
            raise UsageError("there is no table of this id", table_id=table_id)
        return decode_record(rows.keys[-1], rows.values[-1], MIN)

    # --- writing rows

    async def look_again(self) -> None:
        """Read what is new if what is known will soon be too old to commit rows by; an error if it is and cannot be read."""
        if self.trusted_deadline() is not None:
            return
        probe("catalog.looked_again")
        try:
            await self.refresh()
        except SlackwaterError:
            if self.deadline() <= self._clock.peek():
                raise

    def trusted_deadline(self) -> Timestamp | None:
        """The `deadline`, while what is known is new enough to commit rows by for some time to come."""
        trust_s = self._settings["catalog.trust_duration"]
        deadline = add_seconds(self.tables.upto, trust_s)
        return deadline if seconds_between(self._clock.peek(), deadline) > trust_s * LOOK_AGAIN_SHARE else None

    def deadline(self) -> Timestamp:
        """Rows of tables that are not being dropped, as far as is known here, may be committed below this timestamp.

        A table whose end is not known here was noted as being dropped above `tables.upto`, and is not dropped before the
        trust of every node that had not read it has ended. (Leases on descriptors will put their own end here.)
        """
        assert self.tables.upto >= MIN, "what is known is known up to a time"
        return self._trusted_upto(self.tables.upto)

    def _trusted_upto(self, ts: Timestamp) -> Timestamp:
        return add_seconds(ts, self._settings["catalog.trust_duration"])

    # --- following

    async def complete_upto(self, ts: Timestamp) -> None:
        """Learn everything committed at or below `ts`: a feed decodes what it delivers with the schema as of then."""
        await self._fresh(ts)

    async def refresh(self) -> None:
        """Learn everything committed before this call."""
        await self._learn_upto(self._clock.now())

    async def _fresh(self, at: Timestamp) -> None:
        """Make sure that the cache was ever filled, is kept fresh, and covers `at`."""
        if not self._following:
            self._following = True
            self._scope.spawn(self._follow(), name="catalog")
        if self.tables.upto == MIN or self.tables.upto < at:
            await self.refresh()

    async def _follow(self) -> None:
        while True:
            with suppress(TimeoutError):
                async with timeout(self._settings["catalog.poll_interval"]):
                    await self._rung()
            with suppress(SlackwaterError):
                await self.refresh()

    async def _rung(self) -> None:
        if self.watch is None:
            await self._runtime.clock.sleep(self._settings["catalog.poll_interval"])
        else:
            await self.watch.changed()

    async def _learn_upto(self, upto: Timestamp) -> None:
        async with self._reading:
            if self.tables.upto >= upto:
                return  # another caller that waited for the same turn has read it
            try:
                found = await self._exported(after=self.tables.upto, upto=upto)
            except BelowGcThreshold:
                probe("catalog.history_collected")
                found = await self._as_of(upto)
            self.tables.learn(found)
            assert all(descriptor.modified <= upto for descriptor in found), "nothing of the future is known"
            self.tables.complete_upto(upto)

    async def _exported(self, *, after: Timestamp, upto: Timestamp) -> list[TableDescriptor]:
        start, end = msgspec.structs.astuple(descriptors_span())
        found: list[TableDescriptor] = []
        while start < end:
            header = Header(NO_RANGE, ts=upto, max_keys=READ_VERSIONS)
            answer = await self._kv.read([Export(start, end, after, upto)], header)
            (versions,) = answer.results
            assert isinstance(versions, Versions), versions
            assert all(after < ts <= upto for ts in versions.timestamps), "only what was asked for"
            rows = zip(versions.keys, versions.values, versions.timestamps, strict=True)
            found += self._decoded((key, value, Timestamp(ts)) for key, value, ts in rows if value)
            start = end if versions.resume is None else versions.resume
            assert start <= end, "an export gets further"
        return found

    async def _as_of(self, ts: Timestamp) -> list[TableDescriptor]:
        """Every record as it is now, one by one for their timestamps."""
        span = descriptors_span()
        rows = await self._kv.scan(span.start, span.end, ts=ts)
        found: list[TableDescriptor] = []
        for low in range(0, len(rows.keys), READ_VERSIONS):
            keys = rows.keys[low : low + READ_VERSIONS]
            answer = await self._kv.read([Get(key) for key in keys], Header(NO_RANGE, ts=ts))
            for key, value in zip(keys, answer.results, strict=True):
                if isinstance(value, Value) and value.value is not None:
                    found += self._decoded([(key, value.value, value.ts)])
        return found

    def _decoded(self, records: Iterable[tuple[bytes, bytes, Timestamp]]) -> list[TableDescriptor]:
        """The versions among records; what else they say is learned."""
        found = []
        for key, value, ts in records:
            if is_version(key):
                found.append(decode_record(key, value, ts))
            else:
                self.tables.dropping.add(table_of(key))
        return found
