"""Starting streams on a machine that has other work to do."""

from __future__ import annotations

from pyspark.errors import StreamingQueryException

STARTS_MAX = 10


def run(sink, *path: str):
    """Start a stream that ends by itself, and wait for it.

    Spark gives the process that plans a stream ten seconds to start, which a machine with other work may not manage; that
    it did not is no finding about us.
    """
    for _ in range(STARTS_MAX):
        query = sink.trigger(availableNow=True).start(*path)
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
        else:
            return query
    raise AssertionError("Spark never got its planner started")
