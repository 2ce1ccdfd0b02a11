"""Versions of tables and what is written by them (I-29, I-30), read off the log and judged in the end.

    I-29   versions of a table grow by one; a lease is written on the newest version of its own timestamp; when version v+1 is
           published no lease on v-1 or an older one is left. So leases lie on two neighbors at most, at every timestamp
    I-30   a lease is not deleted by others while its node may still write by it
           a row or an entry that was written by version v lies in v's window: from its publication to that of v+2; by a version
           that takes no rows none is written
           rows satisfy what the version of each timestamp promises: NOT NULL, checks
           at *every* timestamp at which a table or its descriptor changed: an entry of an index in whatever state is that of a
           row, and an index that is public, or was in the version before, has an entry for every row
           every replica shows V at sampled timestamps

The lease rule is about rows of `system.lease` in timestamps of the store, which is what publishers count. A version that nodes
hold in memory shows in what they write by it.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING, Any, NamedTuple

from slackwater.catalog.lease_driver import ROWS
from slackwater.catalog.records import decode_record, descriptors_span, is_version
from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import TABLE, split_table_key, split_version, table_span
from slackwater.codec.rows import RowCodec, version_of
from slackwater.errors import DecodeError
from slackwater.hooks import probe
from slackwater.model.conditions import bind_condition, condition_holds
from slackwater.model.system_tables import LEASE
from slackwater.model.tables import TableHistory
from slackwater.runtime.seam import Family
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.oracles.replication import _Watcher
from slackwater.sim.oracles.settled import engine_of
from slackwater.sim.oracles.versions import _visible
from slackwater.sim.scenarios.cluster_plan import cluster_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackwater.model.indexes import Index
    from slackwater.model.tables import TableDescriptor
    from slackwater.sim.oracles.versions import VersionsOracle
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.world import World

    Contents = dict[bytes, bytes]

RECORDS = descriptors_span()
LEASES = table_span(LEASE.table_id)
SAMPLES = 8
"""Timestamps at which every replica is compared with V."""


class Descriptors(_Watcher):
    """Every version of every table, off the log: what both rules go by. Itself no rule."""

    name = "I-29"

    def __init__(self) -> None:
        self.found: dict[int, dict[int, TableDescriptor]] = {}

    def applied(self, event: ApplyEvent) -> None:
        """Take the versions of an entry that is new."""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value and RECORDS.start <= stored < RECORDS.end:
                key, ts = split_version(stored)
                if is_version(key):
                    table = decode_record(key, value, Timestamp(ts))
                    self.found.setdefault(table.table_id, {})[table.version] = table

    def histories(self) -> dict[int, TableHistory]:
        """By table, its versions in order."""
        return {
            table_id: TableHistory(tuple(versions[number] for number in sorted(versions)))
            for table_id, versions in sorted(self.found.items())
        }


class TwoVersions(_Watcher):
    """I-29."""

    name = "I-29"

    def __init__(self, versions: VersionsOracle, tables: Descriptors) -> None:
        self._versions = versions
        self._tables = tables

    def judge(self, world: World) -> Iterable[Violation]:
        """Versions, and leases on them, over the whole run."""
        histories = self._tables.histories()
        for history in histories.values():
            yield from self._growing(history)
        for key, found in sorted(self._versions.found.items()):
            if LEASES.start <= key < LEASES.end:
                lease = ROWS.codec.decode_key(key)
                of_table = histories.get(lease["desc_id"])
                if of_table is not None:
                    yield from self._lease(lease, sorted(found.items()), of_table)

    def _growing(self, history: TableHistory) -> Iterator[Violation]:
        numbers = [table.version for table in history.versions]
        times = [table.modified for table in history.versions]
        if numbers != list(range(1, len(numbers) + 1)) or times != sorted(set(times)):
            text = f"table {history.latest.table_id} has versions {numbers} of {times}"
            yield Violation(self.name, "versions-skip", text, {})

    def _lease(
        self, lease: dict[str, Any], found: list[tuple[int, bytes]], history: TableHistory
    ) -> Iterator[Violation]:
        version, who = lease["version"], f"n{lease['node_id']}'s lease on {lease['desc_id']}@{lease['version']}"
        beyond = next((table for table in history.versions if table.version == version + 2), None)
        for at, (ts, value) in enumerate(found):
            upto = found[at + 1][0] if at + 1 < len(found) else None
            if not value:
                continue
            probe("schema.oracle_lease")
            newest = history.at(Timestamp(ts))
            if newest is None or newest.version != version:
                text = f"{who} was written at {ts}, when the newest version was {newest and newest.version}"
                yield Violation(self.name, "old-version-leased", text, {})
            elif beyond is not None and (upto is None or upto > beyond.modified):
                text = f"{who} lasted from {ts} to {upto}, and version {version + 2} was published at {beyond.modified}"
                yield Violation(self.name, "published-over-a-lease", text, {})


class WithinItsVersion(_Watcher):
    """I-30."""

    name = "I-30"

    def __init__(self, versions: VersionsOracle, tables: Descriptors) -> None:
        self._versions = versions
        self._tables = tables

    def applied(self, event: ApplyEvent) -> None:
        """A lease that is deleted: does its node still rely on it?"""
        for stored, value in event.batch.writes[Family.DATA].items() if event.first else ():
            if value == b"" and LEASES.start <= stored < LEASES.end:
                key, ts = split_version(stored)
                self._deleted(ROWS.codec.decode_key(key), ts)

    def _deleted(self, lease: dict[str, Any], ts: int) -> None:
        for name, node in cluster_of(self.world).up():
            if node.node_id != lease["node_id"] or node.member is None:
                continue
            for held in node.member.catalog.leases.book.held(lease["desc_id"]):
                if held.version == lease["version"] and held.deadline > ts:
                    text = f"the lease {held.status()} of {name} was deleted at {ts}, below its end"
                    self.violated("deadline-undercut", text)

    def judge(self, world: World) -> Iterable[Violation]:
        """Everything that was ever written into tables."""
        histories = self._tables.histories()
        written: dict[int, dict[bytes, dict[int, bytes]]] = {}
        for key, found in self._versions.found.items():
            if key.startswith(TABLE):
                table_id = split_table_key(key)[0]
                if table_id in histories:
                    written.setdefault(table_id, {})[key] = found
        for table_id, keys in sorted(written.items()):
            yield from _outside(histories[table_id], keys)
            yield from Replay(histories[table_id], keys).judged()
        yield from self._replicas(world, histories, written)

    def _replicas(
        self, world: World, histories: dict[int, TableHistory], written: dict[int, dict[bytes, dict[int, bytes]]]
    ) -> Iterator[Violation]:
        """What each node holds of tables, at some of the timestamps at which they changed."""
        for name, node in cluster_of(world).up():
            for replica in node.member.store.replicas.values() if node.member else ():
                start, end = replica.state.descriptor.start, replica.state.descriptor.end
                for table_id, keys in sorted(written.items()):
                    span = table_span(table_id)
                    low, high = max(start, span.start), min(end, span.end)
                    times = sorted({ts for found in keys.values() for ts in found})
                    step = max(1, len(times) // SAMPLES)
                    for ts in times[::step] if low < high else ():
                        if ts <= replica.state.gc_threshold:
                            continue
                        probe("schema.oracle_replica")
                        seen = _visible(engine_of(node), low, high, ts)
                        wanted = {
                            k: at for k, f in keys.items() if low <= k < high and (at := _live(f, ts)) is not None
                        }
                        gone = histories[table_id].gone_indexes
                        differ = sorted(
                            one
                            for one in seen.items() ^ wanted.items()
                            if ts < gone.get(split_table_key(one[0])[1], MAX)  # else no read at ts reaches it
                        )[:4]
                        if differ:
                            text = f"{name} shows {histories[table_id].latest.name} at {ts} other than V: {differ}"
                            yield Violation(self.name, "replica-differs", text, {})


def _live(found: dict[int, bytes], ts: int) -> int | None:
    """When the version that is visible at `ts` was written; None where there is none, or a deletion."""
    at = max((at for at in found if at <= ts), default=None)
    return None if at is None or not found[at] else at


def _outside(history: TableHistory, keys: dict[bytes, dict[int, bytes]]) -> Iterator[Violation]:
    """Rows and entries outside the window of the version that wrote them."""
    tables = {table.version: table for table in history.versions}
    for key, found in keys.items():
        for ts, value in found.items():
            if not value:
                continue
            version = version_of(value)
            table, beyond = tables.get(version), tables.get(version + 2)
            shown = f"{history.latest.name}@{version} wrote {key!r} at {ts}"
            if table is None or ts < table.modified:
                yield Violation("I-30", "before-its-version", f"{shown}, which is from {table and table.modified}", {})
            elif beyond is not None and ts >= beyond.modified:
                text = f"{shown}, and version {version + 2} was published at {beyond.modified}"
                yield Violation("I-30", "after-its-version", text, {})
            elif table.dropped or table.dropping or table.read_only:
                yield Violation("I-30", "takes-no-rows", f"{shown}, a version that takes no rows", {})


class _Event(NamedTuple):
    """What changes at one timestamp."""

    ts: int
    key: bytes
    value: bytes


class Replay:
    """A table and its indexes, timestamp by timestamp."""

    def __init__(self, history: TableHistory, keys: dict[bytes, dict[int, bytes]]) -> None:
        self._history = history
        events = [_Event(ts, key, value) for key, found in keys.items() for ts, value in found.items()]
        self._events = sorted(events)
        self._contents: dict[int, Contents] = {}
        """By index id: what is in it."""
        self._readers: dict[int, tuple[RowCodec, list[tuple[Index, IndexCodec]], list[Any]]] = {}
        self._rows: dict[tuple[int, bytes], dict[str, object]] = {}
        self._entries: dict[tuple[int, int, bytes], tuple[bytes, dict[str, object]]] = {}

    def judged(self) -> Iterator[Violation]:
        """The first thing that is wrong, with its timestamp."""
        moments = sorted({event.ts for event in self._events} | {int(t.modified) for t in self._history.versions})
        starts = [event.ts for event in self._events]
        done = 0
        for ts in moments:
            upto = bisect_right(starts, ts)
            for event in self._events[done:upto]:
                contents = self._contents.setdefault(split_table_key(event.key)[1], {})
                if event.value:
                    contents[event.key] = event.value
                else:
                    contents.pop(event.key, None)
            done = upto
            for kind, text in self._wrong(ts):
                yield Violation("I-30", kind, f"table {self._history.latest.name} at {ts}: {text}", {})
                return

    def _wrong(self, ts: int) -> Iterator[tuple[str, str]]:
        table = self._history.at(Timestamp(ts))
        if table is None or table.dropped:
            return
        codec, indexes, conditions = self._reader(table)
        contents = self._contents.get(table.schema.index_id, {})
        try:
            rows = {key: self._row(table.version, codec, value) for key, value in contents.items()}
        except DecodeError as error:
            yield "not-decoded", f"version {table.version} does not decode what is there: {error}"
            return
        yield from _promises(table, rows, conditions)
        before = {i.id: i for i in self._history.versions[table.version - 2].indexes} if table.version > 1 else {}
        for index, entries in indexes:
            was = before.get(index.id)
            complete = index.state.public or (was is not None and was.state.public)
            yield from self._index(table, index, entries, rows, contents, complete=complete)

    def _reader(self, table: TableDescriptor) -> tuple[RowCodec, list[tuple[Index, IndexCodec]], list[Any]]:
        if table.version not in self._readers:
            schemas = self._history.schemas()
            codec = RowCodec(table.schema, self._history.by_version())
            indexes = [(index, IndexCodec(table.schema, index, schemas)) for index in table.indexes]
            bound = [(check, bind_condition(table.schema, check.text)) for check in table.checks if check.state.public]
            self._readers[table.version] = codec, indexes, bound
        return self._readers[table.version]

    def _row(self, version: int, codec: RowCodec, value: bytes) -> dict[str, object]:
        if (version, value) not in self._rows:
            self._rows[version, value] = codec.decode(value)
        return self._rows[version, value]

    def _entry(
        self, version: int, index: Index, codec: IndexCodec, value: bytes, row: dict[str, object]
    ) -> tuple[bytes, dict[str, object]]:
        place = (version, index.id, value)
        if place not in self._entries:
            key, encoded = codec.entry(row)
            self._entries[place] = key, codec.codec.decode(encoded)
        return self._entries[place]

    def _index(
        self,
        table: TableDescriptor,
        index: Index,
        codec: IndexCodec,
        rows: dict[bytes, dict[str, object]],
        contents: Contents,
        *,
        complete: bool,
    ) -> Iterator[tuple[str, str]]:
        probe(f"schema.oracle_{index.state.value}")
        wanted: dict[bytes, list[dict[str, object]]] = {}
        for key, row in rows.items():
            entry_key, entry = self._entry(table.version, index, codec, contents[key], row)
            wanted.setdefault(entry_key, []).append(entry)
        shown = f"index {index.name} ({index.state.value}, version {table.version})"
        held = self._contents.get(index.id, {})
        for key, value in held.items():
            try:
                entry = codec.codec.decode(value)
            except DecodeError as error:
                yield "not-decoded", f"{shown} has an entry that is not decoded: {error}"
                return
            if entry not in wanted.get(key, ()):
                yield "orphan-entry", f"{shown} has {entry}, which is no row's; rows there: {wanted.get(key)}"
        for key, entries in wanted.items() if complete else ():
            if key not in held:
                yield "missing-entry", f"{shown} has no entry for {entries}"
            elif len(entries) > 1:
                yield "not-unique", f"{shown} has one entry for {entries}"


def _promises(
    table: TableDescriptor, rows: dict[bytes, dict[str, object]], conditions: list[Any]
) -> Iterator[tuple[str, str]]:
    """Rows that break a rule of the table."""
    strict = [column.name for column in table.columns if not column.nullable]
    for row in rows.values():
        for name in strict:
            if row[name] is None:
                yield "null-found", f"version {table.version} says that {name} is not NULL, and there is {row}"
        for check, condition in conditions:
            if not condition_holds(condition, row):
                yield "check-broken", f"version {table.version} has check {check.text}, and there is {row}"
