"""The same through Spark: a snapshot of several tables at one timestamp, and streams that mirror them.

Spark starts in the background while other steps run: a JVM takes its time. `local[2]` on a small machine.
"""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import slackwater.spark
from slackwater.clock.timestamp import show
from slackwater.demo.screen import DemoCheck
from slackwater.demo.shop import MONEY, TABLES, Books
from slackwater.demo.steps import (
    RECOVERY_S,
    WAIT_S,
    MirrorCheck,
    Stage,
    independent_reads,
    kill_a_node,
    mirror_checks,
    progress_of,
)

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

SNAPSHOTS = 3
PARTITIONS = 4
WIDTHS = (27, 13, 9, 13, 3, 6)
POLL_S = 0.3
IDLE_S, IDLE_POLL_S = 10.0, 0.02
TRIGGER = "1 second"


def start(directory: Path) -> Future[SparkSession]:
    """A session, some seconds from now; its journal is in a directory."""
    pool = ThreadPoolExecutor(1, thread_name_prefix="spark")
    started = pool.submit(_session, directory / "spark.journal")
    pool.shutdown(wait=False)
    return started


def _session(journal: Path) -> SparkSession:
    spark = slackwater.spark.session(app="slackwater demo", master="local[2]")
    # Workers whose rows Spark needs no more, when a stream is stopped, say "Broken pipe". Spark's own errors stay on the screen.
    jvm: Any = spark._jvm
    jvm.java.lang.System.setErr(jvm.java.io.PrintStream(str(journal)))
    return spark


def snapshots(stage: Stage, spark: SparkSession) -> list[DemoCheck]:
    """Two tables and their orders in Spark, each time at one timestamp."""
    good = 0
    stage.screen.head(["timestamp", "wallets", "tills", "together", "off", "took"], WIDTHS)
    for number in range(SNAPSHOTS):
        began = time.monotonic()
        with stage.screen.waiting(
            f"snapshot {number + 1} of {SNAPSHOTS}" + (": Spark's workers start" * (number == 0))
        ):
            snapshot = slackwater.spark.snapshot(spark, stage.cluster.url, tables=list(TABLES))
            books = _books(snapshot)
        good += books.balanced
        sums = [f"{n:,}" for n in (books.wallets, books.tills, books.wallets + books.tills)]
        took = f"{time.monotonic() - began:.1f} s"
        stage.screen.row([show(snapshot.timestamp), *sums, f"{books.off:+d}", took], WIDTHS)
    with stage.screen.waiting("the same without a snapshot"):
        independent_reads(stage)
    return [DemoCheck("Spark snapshots balance", good == SNAPSHOTS, f"{good} of {SNAPSHOTS} equal {MONEY:,}")]


def _books(snapshot: slackwater.spark.SparkSnapshot) -> Books:
    wallets = _sum(snapshot.table("wallets", columns=["balance"], numPartitions=PARTITIONS), "balance")
    tills = _sum(snapshot.table("tills", columns=["balance"], numPartitions=PARTITIONS), "balance")
    orders = snapshot.table("orders", columns=["amount"], numPartitions=PARTITIONS)
    row = orders.selectExpr("count(*) as n", "coalesce(sum(amount), 0) as amount").collect()[0]
    return Books(wallets=wallets, tills=tills, orders=row["amount"], number=row["n"])


def _sum(frame: DataFrame, column: str) -> int:
    return int(frame.selectExpr(f"sum({column}) as total").collect()[0]["total"])


def mirror_by_streams(stage: Stage, spark: SparkSession, checkpoints: Path) -> list[DemoCheck]:
    """Two streams keep two mirrors, compared at resolved timestamps, while a node dies and comes back."""
    mirrors = [MirrorCheck(stage.db, "wallets"), MirrorCheck(stage.db, "tills")]
    queries = [_stream(stage, spark, mirror, checkpoints / mirror.table) for mirror in mirrors]
    try:
        with stage.screen.waiting(lambda: progress_of(mirrors)):
            _wait(queries, mirrors, rounds=1)
            kill_a_node(stage, lambda: _alive(queries))
            _wait(queries, mirrors, rounds=2)
    finally:
        for mirror in mirrors:
            mirror.finished = True
        for query in queries:
            _stop(query)
    return mirror_checks(stage, mirrors)


def _stop(query: StreamingQuery) -> None:
    """Stop a stream between two batches: Spark prints pages about one that is stopped in the middle of its work."""
    deadline = time.monotonic() + IDLE_S
    while query.isActive and query.status["isTriggerActive"] and time.monotonic() < deadline:
        time.sleep(IDLE_POLL_S)
    query.stop()


def _stream(stage: Stage, spark: SparkSession, mirror: MirrorCheck, checkpoint: Path) -> StreamingQuery:
    changes = (
        spark.readStream.format("slackwater")
        .option("endpoint", stage.cluster.url)
        .option("readChangeFeed", "true")
        .option("waitForTimestamp", f"{WAIT_S:g}s")
        .load(mirror.table)
        .selectExpr("id", "balance", "_change_type AS _op", "_commit_version AS _commit_ts")
    )

    def batch(frame: DataFrame, number: int) -> None:
        if mirror.finished:
            return
        table: Any = frame.toArrow()
        if table.num_rows:
            mirror.apply(table)
            # Nothing else happened up to the end of the batch: the newest change is as good a moment to compare.
            mirror.compare(max(table["_commit_ts"].to_pylist()))

    writer = changes.writeStream.foreachBatch(batch).option("checkpointLocation", str(checkpoint))
    return writer.trigger(processingTime=TRIGGER).start()


def _alive(queries: list[StreamingQuery]) -> None:
    for query in queries:
        error = query.exception()
        if error is not None:
            raise error


def _wait(queries: list[StreamingQuery], mirrors: list[MirrorCheck], *, rounds: int) -> None:
    """Return once every mirror was compared so many times from now on."""
    wanted = [mirror.compared + rounds for mirror in mirrors]
    deadline = time.monotonic() + RECOVERY_S
    while any(mirror.compared < want for mirror, want in zip(mirrors, wanted, strict=True)):
        _alive(queries)
        if time.monotonic() > deadline:
            return  # the checks will say that it was not compared often enough
        time.sleep(POLL_S)
