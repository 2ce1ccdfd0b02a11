"""Writes from Python threads of the user's own.

Every Python thread has a thread of the JVM to itself, and when a frame is written Spark looks a format's name up in the session
that is *active* in that thread. A new one has none, and then formats written in Python do not exist:
`DATA_SOURCE_NOT_FOUND`. (Reads look in the session they belong to.) `createDataFrame` makes its session active by the way;
`range`, `sql`, `read` and `write` do not.

`prepare` has `format("slackwater")` of a writer do the same. It is called by `session()`, and by hand for sessions that were made
without it. Spark Connect needs none of it: there the server knows the session.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import SparkSession

FORMAT = "slackwater"
_DONE = "_slackwater_activates"


def prepare(spark: SparkSession) -> SparkSession:
    """Let every Python thread write frames of Spark sessions with this format. Idempotent; returns the session."""
    if getattr(spark, "_jsparkSession", None) is None:
        return spark
    from pyspark.sql.readwriter import DataFrameWriter
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    kinds: tuple[Any, ...] = (DataFrameWriter, DataStreamWriter)
    for kind in kinds:
        if not hasattr(kind, _DONE):
            kind.format = _activating(kind.format)
            setattr(kind, _DONE, True)
    return spark


def _activating(plain: Callable[[Any, str], Any]) -> Callable[[Any, str], Any]:
    def format(self: Any, source: str) -> Any:  # noqa: A001 - Spark's name
        if source.lower() == FORMAT:
            session = self._spark
            session._get_j_spark_session_class(session._jvm).setActiveSession(session._jsparkSession)
        return plain(self, source)

    format.__doc__ = plain.__doc__
    return format
