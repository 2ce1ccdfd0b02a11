"""The catalog of one node: transactions that change it, and a cache that follows it.

    create, drop, publish    a transaction, or two of them; what they made is in this node's cache when they return
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
from slackwater.catalog.lease_driver import ROWS, DescriptorLeases, EpochView, show_lease
from slackwater.catalog.records import (
    TABLE_ID_KEY,
    TableRecord,
    decode_id,
    decode_record,
    descriptor_key,
    descriptors_span,
    encode_id,
    encode_record,
    is_version,
    name_key,
    versions_span,
)
from slackwater.catalog.tables import TABLES_MAX, Tables
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.errors import (
    AccessDenied,
    BelowGcThreshold,
    LeasesInTheWay,
    LimitReached,
    SlackwaterError,
    UsageError,
)
from slackwater.hooks import probe
from slackwater.model.system_tables import check_not_system, is_system
from slackwater.protocol.range.requests import BATCH_REQUESTS_MAX, Export, Get, Header, Value, Versions
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime.sync import Lock, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Sequence

    from slackwater.clock.hlc import HybridClock
    from slackwater.model.ids import NodeId
    from slackwater.model.indexes import Mutation
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.protocol.client.calls import ColumnSpec, IndexSpec, KeySpec
    from slackwater.runtime.deadline import Deadline
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn import KV, Transaction

READ_VERSIONS = 1_000
"""Records read by one request."""
LOOKS_MAX = 1 << 20
"""At the leases on a version that a change waits for: its deadline ends the wait long before."""
assert READ_VERSIONS <= BATCH_REQUESTS_MAX, "records that are read one by one fit one batch"


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
        node_id: NodeId,
        liveness: EpochView,
        give_up: Callable[[], Awaitable[None]],
        abandoned_s: Callable[[Transaction], Awaitable[float]],
        watch: CatalogWatch | None = None,
    ) -> None:
        self._kv = kv
        self._clock = clock
        self._runtime = runtime
        self._settings = settings
        self._scope = scope
        self.watch = watch
        self.drop_job: Callable[[Transaction, TableDescriptor, str, str], Awaitable[Mutation]] | None = None
        """Makes the job that finishes the drop of a table, by its creator and its name, and lets those of other changes end."""
        self.tables = Tables()
        self._reading = Lock()
        self._following = False
        self.leases = DescriptorLeases(
            self,
            kv,
            node_id=node_id,
            liveness=liveness,
            give_up=give_up,
            abandoned_s=abandoned_s,
            clock=clock,
            runtime=runtime,
            settings=settings,
        )
        """The right of this node to write by what it knows of tables."""

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
        assert found.latest.table_id == table_id, "a table is found under its own id"
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
        indexes: Sequence[IndexSpec] = (),
        owner: str = "",
        timeout: float | None = None,
    ) -> TableDescriptor:
        """Make a table; its id is new, its name must be free. It belongs to `owner`, or to the operators."""
        definition.first_version(
            1, name, columns, primary_key, indexes=indexes
        )  # what is wrong is said before anything is written

        async def work(txn: Transaction) -> TableRecord:
            await self.check_new(txn, name)
            table_id = await txn.increment(TABLE_ID_KEY)
            record = definition.first_version(table_id, name, columns, primary_key, indexes=indexes, owner=owner)
            await self.put_new(txn, record)
            return record

        made = await self._change(work, timeout=timeout)
        assert made is not None, "a version was written"
        assert made.version == 1, "a new table begins with its first version"
        return made

    async def new_id(self) -> int:
        """An id for a table to be; one that is not used is no loss."""
        return await self._kv.increment(TABLE_ID_KEY)

    async def check_new(self, txn: Transaction, name: str) -> None:
        """Refuse a name that is taken, as a transaction sees it, and a table too many."""
        await self._fresh(MIN)
        if len(self.tables) >= TABLES_MAX:
            raise LimitReached(
                f"the cluster has had {TABLES_MAX} tables, dropped ones included, which is as many as its nodes remember",
                limit=TABLES_MAX,
            )
        if await txn.get(name_key(name)) is not None:
            raise UsageError(f"there is a table {name!r} already; drop it first or pick another name", table=name)

    async def put_new(self, txn: Transaction, record: TableRecord) -> None:
        """Write the first version of a table and its name, which `check_new` has found free."""
        assert record.schema.version == 1, "a new table begins with its first version"
        await txn.put(name_key(record.schema.name), encode_id(record.schema.table_id))
        key, encoded = descriptor_key(record.schema.table_id, record.schema.version), encode_record(record)
        assert decode_record(key, encoded, MIN) == record.at(MIN), "a version reads as it is written (I-29)"
        await txn.put(key, encoded)

    async def drop(self, name: str, *, by: str | None = None, timeout: float | None = None) -> TableDescriptor:
        """Drop a table. Its rows stay where they are, readable as of before, until their history is collected.

        Two versions: under the first one it takes no more rows, and the second one says that it is dropped. The second is
        published when no node uses the version before the first any more, so no row is committed at or after it (I-30). A drop
        that is cut off in between is finished by its job; until then the table can be read, and not written.

        A user who is named by `by` may drop only what belongs to them; None is for those who may drop everything.
        """

        async def begin(txn: Transaction) -> TableRecord | None:
            now, record = await self.begin_drop(txn, name, by=by)
            begun[:] = [now.table_id]
            return record

        async def end(txn: Transaction) -> TableRecord | None:
            if (await self.latest_in(txn, begun[0])).dropped:
                return None  # its job was quicker
            await self.free_names(txn, begun[0])
            return await self._put_next(txn, begun[0], definition.dropped)

        begun: list[int] = []
        deadline = self._kv.context.deadline(timeout)
        await self._published(begin, deadline)
        if await self._published(end, deadline) is None:
            await self.refresh()
        gone = (await self.find_id(begun[0])).latest
        assert gone.dropped, "the last version was written"
        return gone

    async def begin_drop(
        self, txn: Transaction, name: str, *, by: str | None, job_name: str = ""
    ) -> tuple[TableDescriptor, TableRecord | None]:
        """Have a table take no more rows as of the transaction's commit; returns it as it was, and the version written, if any.

        A job that is made in the same transaction drops it then (`drop_job`).
        """
        now = await self.droppable(txn, name, by)
        if now.dropping:
            return now, None
        mine = () if self.drop_job is None else (await self.drop_job(txn, now, by or "", job_name),)
        record = await self._put_next(txn, now.table_id, lambda now: definition.dropping(now, mine))
        assert record.dropping, "a table that is about to be dropped takes no more rows (I-30)"
        return now, record

    async def free_names(self, txn: Transaction, table_id: int) -> None:
        """Delete the names of a table that is dropped: one that was being renamed has two."""
        span = versions_span(table_id)
        rows = await txn.scan(span.start, span.end)
        pairs = zip(rows.keys, rows.values, strict=True)
        for name in sorted({decode_record(key, value, MIN).name for key, value in pairs}):
            found = await txn.get(name_key(name))
            if found is not None and decode_id(found) == table_id:
                await txn.delete(name_key(name))

    async def droppable(self, txn: Transaction, name: str, by: str | None) -> TableDescriptor:
        """The table of that name, if `by` may drop it."""
        check_not_system(name, what="drop")
        found = await txn.get(name_key(name))
        now = None if found is None else await self.latest_in(txn, decode_id(found))
        if now is None or now.name != name:
            raise UsageError(f"there is no table {name!r} to drop; tables() lists them", table=name)
        if by is not None and now.owner != by:
            whose = now.owner or "the operators"
            raise AccessDenied(f"table {name} belongs to {whose}; its owner or an operator may drop it", table=name)
        return now

    async def publish(
        self, table_id: int, change: Callable[[TableDescriptor], TableRecord], *, timeout: float | None = None
    ) -> TableDescriptor:
        """Write the next version of a table, once that is safe: `change` makes it from the present one (see `definition`)."""

        async def work(txn: Transaction) -> TableRecord:
            return await self._put_next(txn, table_id, change)

        made = await self._published(work, self._kv.context.deadline(timeout))
        assert made is not None, "a version was written"
        return made

    async def publish_in(
        self, txn: Transaction, table_id: int, change: Callable[[TableDescriptor], TableRecord]
    ) -> TableDescriptor:
        """Write the next version of a table in a transaction of the caller's, which commits it together with the rest.

        `LeasesInTheWay` while a node uses the version before the present one: end the transaction and try again later
        (`until_unused` waits for that). Other nodes, and this one, know the version once the transaction has committed and they
        have looked (`refresh`). Its modification time is the commit timestamp, which is not known yet: the descriptor returned
        says `MIN` instead.
        """
        return (await self._put_next(txn, table_id, change)).at(MIN)

    async def until_unused(self, error: LeasesInTheWay, deadline: Deadline) -> None:
        """Return when a change that leases were in the way of may be tried again; raises `error` at the deadline."""
        table_id, version = error.facts["table_id"], error.facts["version"]
        assert isinstance(table_id, int), table_id
        assert isinstance(version, int), version
        span, tries = ROWS.span(table_id, version), self._kv.context.tries(deadline, LOOKS_MAX)
        while tries.spend() and not deadline.passed:
            await tries.back_off()
            with suppress(SlackwaterError, TimeoutError):
                if not (await self._kv.scan(span.start, span.end, max_keys=1)).keys:
                    return
                await self.leases.reap(table_id, version)
        raise error

    async def _put_next(
        self, txn: Transaction, table_id: int, change: Callable[[TableDescriptor], TableRecord]
    ) -> TableRecord:
        """Write the next version of a table: the one place where versions after the first are made (I-29).

        Leases on the version before the present one are counted at the transaction's own timestamp. Those on the present one are
        not looked at: nodes acquire them all the time, and a scan would make them wait.
        """
        if is_system(table_id) and (known := self.tables.by_id(table_id)) is not None:
            check_not_system(known.latest.name, what="alter")
        now = await self.latest_in(txn, table_id)
        if now.dropped:
            raise UsageError(f"table {now.name} was dropped", table=now.name)
        record = change(now)
        if now.dropping and not record.dropped:
            raise UsageError(f"table {now.name} is being dropped; it cannot be changed", table=now.name)
        if record.schema.version != now.version + 1 or record.schema.table_id != table_id:
            raise UsageError("the next version of a table has the next number", version=record.schema.version)
        assert now.dropping or not record.dropped, "a table takes no more rows before it is dropped (I-30)"
        assert record.next_column_id >= now.next_column_id, "ids of columns are never used again"
        assert record.next_index_id >= now.next_index_id, "ids of indexes are never used again"
        held = await ROWS.scan(txn, table_id, now.version - 1)
        if held:
            probe("catalog.leases_in_the_way")
            self.leases.want_gone(table_id, now.version - 1)
            raise LeasesInTheWay(
                f"version {now.version + 1} of table {now.name} waits: version {now.version - 1} is still used by"
                f" {', '.join(show_lease(row) for row in held)}; try again later (`slackwater leases {now.name}` shows them)",
                table_id=table_id,
                version=now.version - 1,
                holders=[(row["node_id"], row["version"]) for row in held],
            )
        key, encoded = descriptor_key(table_id, record.schema.version), encode_record(record)
        assert decode_record(key, encoded, MIN) == record.at(MIN), "a version reads as it is written (I-29)"
        await txn.put(key, encoded)
        return record

    async def _published(
        self, work: Callable[[Transaction], Awaitable[TableRecord | None]], deadline: Deadline
    ) -> TableDescriptor | None:
        """Run a transaction that writes a version, again and again until no lease is in its way."""
        while True:
            try:
                return await self._change(work, timeout=deadline.remaining())
            except LeasesInTheWay as error:
                await self.until_unused(error, deadline)

    async def _change(
        self, work: Callable[[Transaction], Awaitable[TableRecord | None]], *, timeout: float | None = None
    ) -> TableDescriptor | None:
        transaction: list[Transaction] = []

        async def once(txn: Transaction) -> TableRecord | None:
            transaction[:] = [txn]
            return await work(txn)

        record = await self._kv.run(once, timeout=timeout)
        if record is None:
            return None
        descriptor = record.at(transaction[0].commit_ts)
        assert descriptor.modified > 0, "a change has a time"
        self._learn([descriptor])
        return descriptor

    async def latest_in(self, txn: Transaction, table_id: int) -> TableDescriptor:
        """The newest version of a table as a transaction sees it; no newer one can come between this and its commit."""
        span = versions_span(table_id)
        rows = await txn.reverse_scan(span.start, span.end, max_keys=1)
        if not rows.keys:
            raise UsageError("there is no table of this id", table_id=table_id)
        latest = decode_record(rows.keys[0], rows.values[0], MIN)
        assert latest.table_id == table_id, "the newest version is one of the table that was asked for"
        return latest

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
            # A row may be of a later time than it is here: the clock of the node that wrote it is ahead, by so much at most.
            ahead = add_seconds(self._clock.physical(), self._clock.max_offset_us / 1e6)
            await self._learn_upto(Timestamp(max(self._clock.now(), min(at, ahead))))
        assert self.tables.upto > MIN, "tables are looked up in a cache that was filled"

    async def following(self) -> None:
        """Make sure that new versions are heard of or looked for from now on."""
        await self._fresh(MIN)

    def _learn(self, found: Sequence[TableDescriptor]) -> None:
        self.tables.learn(found)
        if found:
            self.leases.nudge()

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
                # Of what is kept now: `upto` itself may be too old, after a long wait for a leaseholder.
                probe("catalog.history_collected")
                upto = Timestamp(max(upto, self._clock.now()))
                found = await self._as_of(upto)
            self._learn(found)
            assert all(descriptor.modified <= upto for descriptor in found), "nothing of the future is known"
            self.tables.complete_upto(upto)
            assert self.tables.upto >= upto, "what is known reaches as far as was read"

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
        return [decode_record(key, value, ts) for key, value, ts in records if is_version(key)]
