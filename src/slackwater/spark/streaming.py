"""The change feed as a Spark stream: micro-batches between resolved timestamps.

    initialOffset     before everything            ── or after startingVersion, or now for `latest`
    latestOffset      how far the table is finished, cut to the end of a microsecond, and to the limit
    partitions        the parts of the table as it lies now: a pure function of (start, end)
    read              in a task: the versions in (start, end], or the table at `end` for the first batch

Up to a resolved timestamp nothing changes any more, so the same (start, end] gives the same rows whenever it is read, on
whichever replica, and a batch that Spark replays after a failure is the batch it was. Offsets are in `offsets.py`, with the
reason for cutting where the microsecond changes.

A stream without a start begins with the table as it is: its first batch holds every row at `end`, as inserts made at `end`.
It is one batch whatever the limit, because all its rows have one commit timestamp.

`Trigger.AvailableNow` should deliver everything committed before it began, and resolved timestamps lag some seconds. So it
asks for the present to be closed (`close_now`) and stops there.

Rows have the columns of the version that the query was started with, whichever wrote them. What becomes of a query when its table
changes is up to `schemaEvolution` (`evolution`).

What a stream has yet to read is kept from being collected from its committed offset on (`pins.StreamPin`), before a batch is
planned.

Of the three objects that Spark makes of this class, one lives long (it is asked for offsets), others are made for a batch and
pickled into tasks: `read` uses nothing but the part it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import UsageError
from slackwater.model.reserved import COMMIT_VERSION
from slackwater.spark.change_rows import as_inserts
from slackwater.spark.evolution import end_before_changes
from slackwater.spark.names import demand_exact
from slackwater.spark.offsets import Offset, batch_end, check_table, decode, limited_end
from slackwater.spark.pins import StreamPin
from slackwater.spark.plan import BEGINNING, resolved
from slackwater.spark.reading import changes_of, named_in_options, parts_of
from slackwater.spark.types import Asked

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from numpy.typing import NDArray
    from pyspark.sql.types import StructType

    from slackwater.protocol.client.calls import Partition
    from slackwater.spark.plan import Plan


class ChangePart(InputPartition):
    """A part of the table and an interval, for one task."""

    def __init__(self, partition: Partition, *, after: Timestamp, upto: Timestamp, snapshot: bool) -> None:
        super().__init__(None)
        self.partition = partition
        self.after = after
        self.upto = upto
        self.snapshot = snapshot


class ChangeStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """One table's changes as a stream."""

    def __init__(self, plan: Plan, schema: StructType) -> None:
        options = plan.options
        if options.upto is not None:
            raise UsageError("a stream has no end; leave endingVersion and endingTimestamp to batch reads")
        self._plan = plan
        self._asked = Asked(schema, plan.table, changes=True)
        self._first: Offset | None = None
        self._target: Timestamp | None = None
        self._finished = MIN
        self._pin = StreamPin(options)

    # --- offsets, in the driver's planner

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Where a new stream begins; asked twice, so kept."""
        if self._first is None:
            self._first = self._begin()
        return self._first.encode()

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        """`maxRowsPerTrigger`, or everything."""
        rows = self._plan.options.rows_per_trigger
        return ReadAllAvailable() if rows is None else ReadMaxRows(rows)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Everything that is committed by now will be delivered, and nothing later."""
        self._target = batch_end(self._plan.db.close_now([self._plan.table.name]))

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Where the batch that begins at `start` may end."""
        first = self._checked(start)
        upto = self._target if self._target is not None else batch_end(self._resolved())
        if upto <= max(first.resolved, self._plan.since):  # nothing new, or not even a table yet
            return first.encode()
        upto = self._before_changes(first, upto)
        self._keep(upto if first.snapshot else first.resolved)
        if isinstance(limit, ReadMaxRows) and not first.snapshot:
            upto = limited_end(self._versions, after=self._since(first.resolved), upto=upto, rows=limit.max_rows)
        return self._offset(upto).encode()

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802
        """How far the table is finished, for the query's progress."""
        return self._offset(batch_end(self._resolved())).encode()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[ChangePart]:
        """The parts of a batch, wherever the table lies now."""
        first, last = self._checked(start), self._checked(end)
        if last.resolved <= first.resolved:
            return []
        self._keep(last.resolved if first.snapshot else first.resolved)
        return [
            ChangePart(part.partition, after=first.resolved, upto=last.resolved, snapshot=first.snapshot)
            for part in parts_of(self._plan, last.resolved)
        ]

    def commit(self, end: dict[str, Any]) -> None:
        """What came up to here need not be kept any more."""
        self._pin.advance(self._plan.db, self._since(self._checked(end).resolved))

    # --- in tasks

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """The rows of one part of a batch."""
        assert isinstance(partition, ChangePart)
        demand_exact(named_in_options(self._plan), table=self._plan.table.name)
        shape = self._asked.shaper()
        for batch in self._snapshot(partition) if partition.snapshot else self._changes(partition):
            yield shape(batch)

    def _changes(self, part: ChangePart) -> Iterator[Any]:
        return changes_of(self._plan, part.partition, self._asked.read, after=part.after, upto=part.upto)

    def _snapshot(self, part: ChangePart) -> Iterator[Any]:
        options = self._plan.options
        batches = self._plan.db.read_partition(
            part.partition,
            at=part.upto,
            columns=self._asked.read or [self._plan.table.key_columns()[0][0].name],
            read_from=options.read_from.value,
            wait=options.wait,
        )
        for batch in batches:
            yield as_inserts(batch, part.upto)

    # --- inside

    def _before_changes(self, first: Offset, upto: Timestamp) -> Timestamp:
        """Where a batch may end as far as the table's versions go; raises when the query has to be started again."""
        plan = self._plan
        history = plan.db.history(plan.table.table_id)
        after = self._since(first.resolved)
        if first.snapshot:  # the table as it is: what has happened to it before is over
            after = history.numbered(plan.table.version).modified
        return end_before_changes(history, plan.table, self._asked.read, plan.options.evolution, after=after, upto=upto)

    def _keep(self, after: Timestamp) -> None:
        """Keep the changes after an offset from being collected."""
        self._pin.begin(self._plan.db, self._since(after))

    def _since(self, after: Timestamp) -> Timestamp:
        """The timestamp that the stream begins after, once there is a table."""
        return Timestamp(max(after, self._plan.since))

    def _begin(self) -> Offset:
        start = self._plan.options.start
        if start is None:
            return self._offset(MIN, snapshot=True)
        if start.word == "latest":
            return self._offset(batch_end(self._resolved()))
        return self._offset(BEGINNING if start.after is None else Timestamp(max(BEGINNING, start.after)))

    def _offset(self, resolved: Timestamp, *, snapshot: bool = False) -> Offset:
        return Offset(self._plan.table.table_id, self._plan.table.version, resolved, snapshot)

    def _checked(self, found: dict[str, Any]) -> Offset:
        table = self._plan.table
        offset = decode(found)
        check_table(offset, table=table.table_id, schema=table.version, name=table.name)
        return offset

    def _resolved(self) -> Timestamp:
        self._finished = resolved(self._plan.db, self._plan.table.name, self._finished)
        return self._finished

    def _versions(self, after: Timestamp, upto: Timestamp) -> NDArray[np.int64]:
        """The commit version of each change in an interval."""
        found = [np.empty(0, dtype=np.int64)]
        for part in parts_of(self._plan, upto):
            batches = changes_of(self._plan, part.partition, [], after=after, upto=upto)
            found += [batch.column(COMMIT_VERSION).to_numpy() for batch in batches]
        return np.concatenate(found)
