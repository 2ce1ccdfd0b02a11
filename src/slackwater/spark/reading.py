"""Batch reads: a snapshot, or the changes of an interval, one Spark partition per part of the table.

    driver   partitions() ── snapshot.partitions ──► key ranges, the places of their replicas, the versions of the table
    task     read(part)   ── nearest replica ──► Arrow pages ──► Spark

A part brings every version of its table that holds at the timestamp of the plan, so a task asks one replica and nothing else:
neither a leaseholder nor the catalog has to be reached.

A task reads its key range at the plan's timestamp and nothing less: a follower that is not there yet waits or is passed over,
and when the range has split, merged or moved since it was planned, the client finds where it is now. A retried task reads
the same rows.

With `includeMetadata` each row says when it was written. Only history knows, so such a read goes through all changes of the
table up to T and keeps the newest of each key (`newest.py`): it costs as much as reading that history.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, InputPartition

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import SlackwaterError
from slackwater.spark.change_rows import change_rows
from slackwater.spark.names import demand_exact, meant
from slackwater.spark.newest import net_changes, newest_versions
from slackwater.spark.options import Deduplication
from slackwater.spark.plan import BEGINNING, changes_after
from slackwater.spark.types import Asked, filter_names, where_of, with_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import pyarrow as pa
    from pyspark.sql.types import StructType

    from slackwater.protocol.client.calls import Partition
    from slackwater.spark.plan import Plan


class RangePart(InputPartition):
    """A part of the table, for one task."""

    def __init__(self, partition: Partition) -> None:
        super().__init__(None)
        self.partition = partition


class SnapshotReader(DataSourceReader):
    """Reads a table at one timestamp. Has no `pushFilters` on purpose: Spark 4.3 mixes filters of different scans up."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        self._plan = plan
        self._asked = Asked(schema, plan.table, metadata=plan.options.metadata)
        self._where = where_of(plan.table, plan.options.filters)

    def partitions(self) -> list[RangePart]:
        """Once per `load()`; Spark keeps the answer."""
        if self._plan.to_close:
            with suppress(SlackwaterError):  # then tasks wait for followers, or ask leaseholders
                self._plan.db.close_now([self._plan.table.name])
        if self._plan.options.metadata:  # of every change of the table: no index has those
            return parts_of(self._plan, self._plan.at)
        return parts_of(self._plan, self._plan.at, columns=self._asked.read, where=self._where)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Rows of one part, in a task."""
        assert isinstance(partition, RangePart)
        table = self._plan.table
        demand_exact(named_in_options(self._plan), table=table.name)
        shape = self._asked.shaper()
        read = self._with_metadata if self._plan.options.metadata else self._rows
        for batch in read(partition.partition):
            yield shape(batch)

    def _rows(self, partition: Partition) -> Iterator[Any]:
        plan = self._plan
        return plan.db.read_partition(
            partition,
            at=plan.at,
            columns=self._asked.read,
            where=self._where,
            read_from=plan.options.read_from.value,
            wait=plan.options.wait,
        )

    def _with_metadata(self, partition: Partition) -> Iterator[Any]:
        columns, keys = with_keys(self._plan.table, self._asked.read)
        changes = changes_of(self._plan, partition, columns, after=BEGINNING, upto=self._plan.at)
        return newest_versions(changes, keys)


class ChangesReader(DataSourceReader):
    """Reads every change of an interval, oldest first within a key."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        self._plan = plan
        self._asked = Asked(schema, plan.table, changes=True)
        self._after = changes_after(plan)

    def partitions(self) -> list[RangePart]:
        """Once per `load()`. Where a table was emptied in between, its parts before that and after it."""
        plan = self._plan
        emptied = [version.modified for version in plan.db.history(plan.table.table_id).emptied()]
        times = [Timestamp(ts - 1) for ts in emptied if self._after < ts <= plan.at]
        return [part for at in (*times, plan.at) for part in parts_of(plan, at)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Changes of one part, in a task."""
        assert isinstance(partition, RangePart)
        demand_exact(named_in_options(self._plan), table=self._plan.table.name)
        shape = self._asked.shaper()
        changes = changes_of(self._plan, partition.partition, self._asked.read, after=self._after, upto=self._plan.at)
        for batch in changes:
            yield shape(batch)


def named_in_options(plan: Plan) -> dict[str, str]:
    """What columns are called by the options `columns` and `filters`, and by the table."""
    table, options = plan.table, plan.options
    named = meant(options.columns, [column.name for column in table.columns], table=table.name)
    return {**named, **filter_names(table, options.filters)}


def parts_of(
    plan: Plan, at: Timestamp, *, columns: list[str] | None = None, where: Sequence[Any] = ()
) -> list[RangePart]:
    """The table in parts, as it lies now; or the part of an index that has what satisfies the conditions."""
    name, options = plan.table.name, plan.options
    snapshot = plan.db.snapshot(as_of=at, tables=[name], read_from=options.read_from.value)
    found = snapshot.partitions(name, options.partitions, columns=columns or None, where=where)
    return [RangePart(part) for part in found]


def changes_of(
    plan: Plan, partition: Partition, columns: list[str], *, after: Timestamp, upto: Timestamp
) -> Iterator[Any]:
    """The changes of one part in Spark's words: all, or the net change of each key."""
    net = plan.options.deduplication is Deduplication.NET_CHANGES
    read, keys = with_keys(plan.table, columns) if net else (columns, [])
    changes = plan.db.read_changes(
        partition,
        after=after,
        upto=upto,
        diff=plan.options.diff,
        columns=read,
        version=plan.table.version,
        read_from=plan.options.read_from.value,
        wait=plan.options.wait,
    )
    shown = map(change_rows, changes)
    return net_changes(shown, keys) if net else shown
