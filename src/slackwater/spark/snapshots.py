"""Several tables at one timestamp.

    snap = slackwater.spark.snapshot(spark, "slackwater://h1:7400", tables=["accounts", "ledger"])
    snap["accounts"].agg(sum("balance")), snap.table("ledger", columns=["amount"]), snap.timestamp

Each `load()` by itself picks the freshest timestamp it can have, so two of them see two moments and a join of them may see a
transfer on one side only. A snapshot picks one for all its tables, now or `as_of`, and every table it hands out is read there.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import UsageError
from slackwater.spark.connection import database
from slackwater.spark.floors import asked_of
from slackwater.spark.options import parse_options
from slackwater.spark.threads import FORMAT

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession


class SparkSnapshot:
    """Tables of a cluster as they were at `timestamp`."""

    def __init__(self, spark: SparkSession, endpoint: str, timestamp: Timestamp, options: dict[str, str]) -> None:
        self._spark = spark
        self._options = {"endpoint": endpoint, **options}
        self.timestamp = timestamp

    def table(
        self,
        name: str,
        *,
        columns: Sequence[str] | None = None,
        filters: Sequence[Sequence[Any]] | None = None,
        **options: object,
    ) -> DataFrame:
        """One table; `columns`, `filters` and options are those of the format."""
        reader = (
            self._spark.read.format(FORMAT).options(**self._options).option("versionAsOf", str(int(self.timestamp)))
        )
        if columns is not None:
            reader = reader.option("columns", json.dumps(list(columns)))
        if filters is not None:
            reader = reader.option("filters", json.dumps([list(f) for f in filters], default=_plain))
        for key, value in options.items():
            reader = reader.option(key, str(value))
        return reader.load(name)

    def __getitem__(self, name: str) -> DataFrame:
        return self.table(name)

    def __repr__(self) -> str:
        return f"SparkSnapshot({show(self.timestamp)})"


def _plain(value: object) -> object:
    """A literal that JSON does not have, as the option `filters` takes it."""
    return {"hex": bytes(value).hex()} if isinstance(value, bytes | bytearray | memoryview) else str(value)


def snapshot(
    spark: SparkSession,
    url: str,
    *,
    as_of: Timestamp | int | str | dt.datetime | None = None,
    max_staleness: float | None = None,
    tables: Sequence[str] = (),
    fresh: bool = False,
    **options: str,
) -> SparkSnapshot:
    """One timestamp for several tables.

    Args:
        spark: The session that will read them.
        url: The cluster: `slackwater://h1:7400,h2:7400`.
        as_of: A version, a time (ISO 8601 or datetime); without it, the freshest that followers can serve at once, and what
            this session wrote.
        max_staleness: Seconds; instead of `as_of`.
        tables: The tables that matter for choosing; all when empty.
        fresh: Close the present first (`close_now`), and read there: what is committed before this call is in the snapshot.
        options: Options of the format, for every table (`readFrom`, `certs`, …).
    """
    known = parse_options({"endpoint": url, "table": "any", **options})
    db = database(known)
    if as_of is None and max_staleness is None:
        db.raise_session_floor(asked_of(spark.read.format(FORMAT).option("endpoint", url).options(**options)))
    if fresh:
        if as_of is not None or max_staleness is not None:
            raise UsageError("fresh excludes as_of and max_staleness")
        as_of = db.close_now(list(tables) or [found.name for found in db.tables()])
    chosen = db.snapshot(
        as_of=as_of, max_staleness=max_staleness, tables=list(tables), read_from=known.read_from.value, wait=known.wait
    )
    return SparkSnapshot(spark, url, chosen.timestamp, {k: str(v) for k, v in options.items()})
