"""What Spark finds by itself: the format `slackwater`.

On the first use of a format it does not know, Spark imports every top-level package whose name begins with `pyspark_` and
registers its `DefaultSource`. One that fails to import would switch off discovery for all of them, so this module imports
nothing of ours, and nothing but Spark's own base class; the rest is loaded when the source is used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from collections.abc import MutableMapping

    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class DefaultSource(DataSource):
    """`spark.read.format("slackwater")`; see `slackwater.spark.source`."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        from slackwater.spark.source import Source

        super().__init__(options)
        self._source = Source(options)

    @classmethod
    def name(cls) -> str:
        """The name of the format."""
        return "slackwater"

    def schema(self) -> StructType:
        """The columns."""
        return self._source.schema()

    def reader(self, schema: StructType) -> DataSourceReader:
        """For batch reads."""
        return self._source.reader(schema)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        """For streams."""
        return self._source.stream_reader(schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's signature
        """For batch writes."""
        return self._source.writer(schema, overwrite=overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: FBT001, N802
        """For streams."""
        return self._source.stream_writer(schema, overwrite=overwrite)
