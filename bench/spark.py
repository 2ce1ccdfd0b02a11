"""Spark on three nodes, beside Spark's JDBC source on PostgreSQL 18: bulk reads.

    first      snapshots of tables that no reader has read yet, a minute after their load     the same over JDBC
    snapshot   the same table again and again                                                 the same

`bench._spark` says what is read, and how both sides are warmed up. PostgreSQL has its pages in memory, and followers have made
columns of their tables in the minute after the load (`server.queues.columns`); no file of theirs has been opened by a read. A
first read is one sample of a table, so there are several tables, and the side that begins changes. Rounds in turns, medians
count. `bench.spark_column` reads a larger table, and one column of it.
"""

from __future__ import annotations

import statistics
import time
from typing import TYPE_CHECKING

from bench._spark import PEER, QUIET_S, WARM, WARM_ROWS, Sides, beside_jdbc, scan, warm_up
from bench.harness import Figure, figure, interleaved

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

GOAL = 1.8
TABLES = 3


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    rows = 40_000 if quick else 2_000_000
    tables = {WARM: WARM_ROWS} | {f"mixed{number}": rows for number in range(TABLES)}

    def measure(sides: Sides) -> list[Figure]:
        return _measure(sides, rows, rounds=2 if quick else 5, quick=quick)

    yield from beside_jdbc(tables, measure)


def _measure(sides: Sides, rows: int, *, rounds: int, quick: bool) -> list[Figure]:
    ready = time.monotonic()
    warm_up(sides, quick=quick)
    time.sleep(max(0.0, ready + (5.0 if quick else QUIET_S) - time.monotonic()))
    first: dict[str, list[float]] = {"ours": [], "jdbc": []}
    for number in range(TABLES):
        reads: dict[str, Callable[[], int]] = {
            "ours": lambda name=f"mixed{number}": scan(sides.ours(name)),  # type: ignore[misc]
            "jdbc": lambda name=f"mixed{number}": scan(sides.theirs(name, rows)),  # type: ignore[misc]
        }
        for side in sorted(reads, reverse=bool(number % 2)):
            first[side].append(_rate(reads[side], rows))
    table = f"mixed{TABLES - 1}"
    rates = interleaved(
        {"ours": lambda: scan(sides.ours(table)), "jdbc": lambda: scan(sides.theirs(table, rows))}, rounds=rounds
    )
    medians = {side: statistics.median(found) for side, found in first.items()}
    return [
        _figure(f"snapshot read, the first of a table ({TABLES})", medians["ours"], medians["jdbc"]),
        _figure("snapshot read from followers", rates["ours"], rates["jdbc"]),
    ]


def _rate(read: Callable[[], int], rows: int) -> float:
    """Rows a second of one read."""
    begin = time.perf_counter()
    if read() != rows:
        raise RuntimeError("the two sides do not hold the same rows")
    return rows / (time.perf_counter() - begin)


def _figure(metric: str, ours: float, jdbc: float) -> Figure:
    return figure("spark", metric, ours, "rows/s", peer=PEER, peer_value=jdbc, goal=GOAL)
