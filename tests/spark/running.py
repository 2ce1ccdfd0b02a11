"""Starting streams on a machine that has other work to do, and what a crash of Spark leaves of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

if TYPE_CHECKING:
    from pathlib import Path

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


def lose_last_commit(checkpoint: Path) -> None:
    """As if Spark had crashed after the sink's commit and before its own: the last batch will be run again."""
    newest = max((p for p in (checkpoint / "commits").iterdir() if p.name.isdigit()), key=lambda p: int(p.name))
    newest.unlink()
    (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
