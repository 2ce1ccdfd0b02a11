"""Spark on three nodes, beside Spark's JDBC source on PostgreSQL 18: one large table, and one column of it.

    snapshot   every column of a table of some million rows, again and again      the same over JDBC
    column     the sum of one column                                              the same

Planning, tasks and the shuffle cost a query some tenths of a second on either side, however many rows it reads. So the table is
large, and the sum of one column of a small one is a figure too: what is left of a ratio of two large ones when that is taken
off both says what the rows cost. A frame is loaded anew for each query. Rounds in turns, medians count.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from bench._spark import ONE_COLUMN, PEER, QUIET_S, WARM, WARM_ROWS, Sides, beside_jdbc, scan, sum_of_one, warm_up
from bench.harness import Figure, figure, interleaved

if TYPE_CHECKING:
    from collections.abc import Iterator

GOAL_SCAN, GOAL_COLUMN = 1.8, 3.0
TABLE = "mixed0"


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    rows = 40_000 if quick else 5_000_000

    def measure(sides: Sides) -> list[Figure]:
        return _measure(sides, rows, rounds=2 if quick else 5, quick=quick)

    yield from beside_jdbc({WARM: WARM_ROWS, TABLE: rows}, measure)


def _measure(sides: Sides, rows: int, *, rounds: int, quick: bool) -> list[Figure]:
    ready = time.monotonic()
    warm_up(sides, quick=quick)
    time.sleep(max(0.0, ready + (5.0 if quick else QUIET_S) - time.monotonic()))
    rates = interleaved(
        {
            "ours": lambda: scan(sides.ours(TABLE)),
            "jdbc": lambda: scan(sides.theirs(TABLE, rows)),
            "column": lambda: sum_of_one(sides.ours(TABLE, (ONE_COLUMN,)), rows),
            "jdbc column": lambda: sum_of_one(sides.theirs(TABLE, rows), rows),
            "few": lambda: sum_of_one(sides.ours(WARM, (ONE_COLUMN,)), WARM_ROWS),
            "jdbc few": lambda: sum_of_one(sides.theirs(WARM, WARM_ROWS), WARM_ROWS),
        },
        rounds=rounds,
    )
    few_s, jdbc_few_s = WARM_ROWS / rates["few"], WARM_ROWS / rates["jdbc few"]
    return [
        _figure(f"{rows:,} rows, every column", rates["ours"], rates["jdbc"], GOAL_SCAN),
        _figure(f"{rows:,} rows, sum of one column", rates["column"], rates["jdbc column"], GOAL_COLUMN),
        figure("spark_column", f"{WARM_ROWS:,} rows, sum of one column", few_s, "s", peer=PEER, peer_value=jdbc_few_s,
               better="lower"),
    ]  # fmt: skip


def _figure(metric: str, ours: float, jdbc: float, goal: float) -> Figure:
    return figure("spark_column", metric, ours, "rows/s", peer=PEER, peer_value=jdbc, goal=goal)
