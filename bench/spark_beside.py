"""What Spark's reads cost writers of the same cluster, and the change feed as a stream.

    writes     p99 of point upserts while snapshots are read       the same upserts with nothing beside them
    peer       the same                                            while Spark reads PostgreSQL over JDBC as busily
    stream     the change feed of a table as one AvailableNow run  the snapshot read of the same rows

On two cores Spark, three nodes and the writers share them, and a write waits its turn for a core whatever Spark reads: the peer
says how much of the p99 is Spark's own hunger, since those reads ask nothing of a node. The writers are another process, and
each node has a session of its own. In turns, so that noise hits all alike.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from pyspark.errors import StreamingQueryException

from bench._point_writer import PointWriter
from bench._spark import PARTITIONS, PEER, Sides, beside_jdbc, scan
from bench.harness import Figure, figure, rate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from pyspark.sql.streaming.readwriter import DataStreamWriter

GOAL_P99 = 1.3
QUIET_S = 60.0
WRITERS = 4
TURNS = 4
HOT_ROWS = 1_000
STARTS_MAX = 10
TABLE = "mixed0"


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    rows = 40_000 if quick else 2_000_000

    def measure(sides: Sides) -> list[Figure]:
        time.sleep(5.0 if quick else QUIET_S)  # followers make columns
        snapshots = rate(lambda: scan(sides.ours(TABLE)), rounds=2 if quick else 5)
        figures = _write_figures(sides, rows, seconds=3.0 if quick else 32.0)
        return [*figures, _stream_figure(_stream(sides, rounds=1 if quick else 3), snapshots)]

    yield from beside_jdbc({TABLE: rows}, measure)


def _write_figures(sides: Sides, rows: int, *, seconds: float) -> list[Figure]:
    """What begins in one phase and ends in the next counts for the next."""
    works: dict[str, Callable[[], object]] = {
        "alone": lambda: time.sleep(0.2),
        "ours": lambda: scan(sides.ours(TABLE)),
        "jdbc": lambda: scan(sides.theirs(TABLE, rows)),
    }
    found: dict[str, list[float]] = {name: [] for name in works}
    works["jdbc"]()
    with PointWriter(sides.address, "hot", clients=WRITERS, rows=HOT_ROWS) as writer:
        time.sleep(1.0)
        for _ in range(TURNS):
            for name, work in works.items():
                writer.mark()
                end = time.monotonic() + seconds / TURNS
                while time.monotonic() < end:
                    work()
                phase = writer.mark()
                found[name] += phase.latencies
                if phase.failed:
                    raise RuntimeError(f"{phase.failed} writes failed")
    return [
        _latency(50, found["ours"], found["alone"], "nothing beside them", None),
        _latency(99, found["ours"], found["alone"], "nothing beside them", GOAL_P99),
        _latency(99, found["ours"], found["jdbc"], f"reads over {PEER}, beside them", None),
    ]


def _latency(percent: int, ours: list[float], peer: list[float], name: str, goal: float | None) -> Figure:
    metric = f"point upsert p{percent} beside snapshot reads"
    value, peer_value = _percentile(ours, percent) * 1e3, _percentile(peer, percent) * 1e3
    return figure("spark_beside", metric, value, "ms", peer=name, peer_value=peer_value, goal=goal, better="lower")


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _stream(sides: Sides, *, rounds: int) -> float:
    """Rows per second of a run that delivers every change of the table there ever was."""
    rates: list[float] = []
    for number in range(rounds):
        reader = sides.spark.readStream.format("slackwater").option("endpoint", sides.address)
        reader = reader.option("readChangeFeed", "true").option("startingVersion", "earliest")
        frame = reader.option("numPartitions", PARTITIONS).load(TABLE)
        checkpoint: Path = sides.directory / f"checkpoint{number}"
        sink = frame.writeStream.format("noop").option("checkpointLocation", str(checkpoint))
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
    return figure("spark_beside", "change feed, AvailableNow", stream, "rows/s", peer=peer, peer_value=snapshot)
