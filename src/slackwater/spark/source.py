"""The data source behind `format("slackwater")`. Spark finds it by way of the little package `pyspark_slackwater`.

    load()        ──► plan (`plan.py`): options checked, table looked up, timestamp pinned
    reader        ──► SnapshotReader or ChangesReader (`reading.py`)
    streamReader  ──► ChangeStream (`streaming.py`)
    writer, streamWriter ──► `writing.py`

An object of this class is pickled into every process of a job. What the user got wrong is one `UsageError`, raised before
any task runs wherever that is possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import UsageError
from slackwater.spark.connection import database, freeze_heap
from slackwater.spark.floors import floor
from slackwater.spark.options import Use, parse_options
from slackwater.spark.pins import pin
from slackwater.spark.plan import changes_after, make_plan
from slackwater.spark.types import floor_schema, spark_schema

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from slackwater.spark.plan import Plan


class Source:
    """One `load()` or `save()`."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self.options = parse_options(options)
        self._plan = None if self.options.asks_floor else make_plan(self.options)
        self._pinned = False
        freeze_heap()

    @property
    def plan(self) -> Plan:
        """What this `load()` reads."""
        if self._plan is None:
            raise UsageError("the option sessionFloor is for slackwater.spark.snapshot alone; leave it out")
        return self._plan

    def schema(self) -> StructType:
        """The table's columns, or those asked for; of a change feed, three more; with metadata, two.

        Spark asks when a frame is loaded, and not when one is saved: the moment to pin what will be read.
        """
        asked = self.options
        if asked.asks_floor:
            return floor_schema(floor(database(asked).cluster_id))
        if not asked.changes:  # a stream, or a batch of changes, knows only later where it begins
            self._pin(self.plan.at)
        return spark_schema(self.plan.table, asked.columns, changes=asked.changes, metadata=asked.metadata)

    def reader(self, schema: StructType) -> DataSourceReader:
        """A batch read."""
        from slackwater.spark.reading import ChangesReader, SnapshotReader

        self.options.check_use(Use.CHANGES if self.options.changes else Use.READ)
        self._pin(changes_after(self.plan) if self.options.changes else self.plan.at)
        return ChangesReader(self.plan, schema) if self.options.changes else SnapshotReader(self.plan, schema)

    def _pin(self, ts: Timestamp) -> None:
        """Keep what is to be read, once."""
        if not self._pinned:
            self._pinned = True
            pin(database(self.options), self.options, Timestamp(max(ts, self.plan.since)), changes=self.options.changes)

    def stream_reader(self, schema: StructType) -> DataSourceStreamReader:
        """A stream."""
        from slackwater.spark.streaming import ChangeStream

        if not self.options.changes:
            raise UsageError('a stream reads changes; say so: .option("readChangeFeed", "true")')
        self.options.check_use(Use.CHANGES)
        return ChangeStream(self.plan, schema)

    def writer(self, schema: StructType, *, overwrite: bool) -> DataSourceWriter:
        """A batch write."""
        from slackwater.spark.writing import BatchWriter, table_of, writer_options

        self.options.check_use(Use.WRITE)
        options = writer_options(self.options, overwrite=overwrite, stream=False)
        return BatchWriter(options, table_of(options), schema)

    def stream_writer(self, schema: StructType, *, overwrite: bool) -> DataSourceStreamWriter:
        """The sink of a stream."""
        from slackwater.spark.writing import StreamWriter, table_of, writer_options

        self.options.check_use(Use.WRITE)
        options = writer_options(self.options, overwrite=overwrite, stream=True)
        return StreamWriter(options, table_of(options), schema)
