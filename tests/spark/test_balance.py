"""Money moves, nodes die, and every snapshot that Spark reads adds up.

    transfers   a process of its own, one transaction each, between the rows of two tables, without a pause
    reads       both tables at one timestamp, each in four partitions; their sums are what was there at the beginning
    faults      the node that leads the tables is killed with -9; it is away for some reads and then started again

`make test` runs a few rounds with one kill. `make faults-spark` runs thirty (`SLACKWATER_SPARK_ROUNDS`) with a kill before
every tenth, and prints the rate of the transfers that were acknowledged beside the reads, node deaths included.
"""

from __future__ import annotations

import asyncio
import os
import time

from pyspark.sql import functions as f

import slackwater.spark
from slackwater.clock.timestamp import show
from tests.spark.transfers import START, Transfers, make_accounts

ROUNDS = int(os.environ.get("SLACKWATER_SPARK_ROUNDS", "5"))
WORKERS = int(os.environ.get("SLACKWATER_SPARK_WORKERS", "24"))
PACE_S = float(os.environ.get("SLACKWATER_SPARK_PACE", "3" if ROUNDS > 5 else "0"))
KILL_EVERY, AWAY_ROUNDS = 10, 2
FIRST_KILL = 1
PARTITIONS = 4
ACCOUNTS = 5_000
LEFT, RIGHT = "left_accounts", "right_accounts"


class Rounds:
    """What happens before each read, and what was seen."""

    def __init__(self, cluster, db) -> None:
        self.cluster = cluster
        self.db = db
        self.away: dict[int, int] = {}
        """Nodes that are dead, and the round in which each comes back."""
        self.kills = 0

    def prepare(self, number: int) -> None:
        """Start who was away long enough; kill the leader if it is time."""
        for index in [index for index, until in self.away.items() if until <= number]:
            del self.away[index]
            asyncio.run(self.cluster.start(index))
        if number % KILL_EVERY == FIRST_KILL:
            victim = self.leader()
            self.cluster.kill(victim)
            self.away[victim] = number + AWAY_ROUNDS
            self.kills += 1

    def leader(self) -> int:
        """The place of the node that leads most of the tables' ranges."""
        leads = [row.node for row in self.db.frontier([LEFT, RIGHT]) if row.leads]
        node = max(set(leads), key=leads.count)
        address = next(place.address for place in self.db.nodes() if place.node == node)
        return self.cluster.addresses.index(address)

    def end(self) -> None:
        for index in self.away:
            asyncio.run(self.cluster.start(index))
        asyncio.run(self.cluster.wait_live())


def test_every_snapshot_balances_while_money_moves_and_nodes_die(cluster, db, url, spark, capsys):
    make_accounts(db, LEFT, RIGHT, accounts=ACCOUNTS)
    rounds = Rounds(cluster, db)
    seen, took, wrong = [], [], []
    with Transfers(url, LEFT, RIGHT, accounts=ACCOUNTS, workers=WORKERS) as moving:
        try:
            for number in range(ROUNDS):
                began = time.monotonic()
                rounds.prepare(number)
                snapshot = slackwater.spark.snapshot(spark, url, tables=[LEFT, RIGHT], fresh=number % 2 == 0)
                found = sums(snapshot)
                if found != (moving.total, 2 * ACCOUNTS):
                    wrong.append((number, show(snapshot.timestamp), found))
                seen.append((snapshot.timestamp, moving.done))
                took.append(time.monotonic() - began)
                time.sleep(max(0.0, PACE_S - took[-1]))
            rate = moving.rate()
        finally:
            rounds.end()
    assert not wrong, f"sums at one timestamp differ from {moving.total}"
    assert [at for at, _ in seen] == sorted({at for at, _ in seen}), "snapshots go forward"
    assert seen[-1][1] > seen[0][1], "money moved between the reads"
    assert rounds.kills
    total = sums(slackwater.spark.snapshot(spark, url, tables=[LEFT, RIGHT], fresh=True))
    assert total == (moving.total, 2 * ACCOUNTS), "and at the end"
    with capsys.disabled():
        print(
            f"\n[spark] {len(seen)} snapshots of two tables, {PARTITIONS} partitions each, all of them {moving.total:,}; "
            f"{rounds.kills} kill -9 of the leader; {seen[-1][1] - seen[0][1]:,} transfers between the first and the "
            f"last; {rate:.0f} transfers/s from {WORKERS} clients beside the reads, "
            f"which took {sorted(took)[len(took) // 2]:.1f} s (median)"
        )


def sums(snapshot) -> tuple[int, int]:
    """Money and rows of both tables at one timestamp, each table by tasks of its own."""
    left, right = (snapshot.table(table, numPartitions=PARTITIONS) for table in (LEFT, RIGHT))
    lost = left.agg(f.sum("balance"), f.count("*"))
    gained = right.agg(f.sum("balance"), f.count("*"))
    (a, m), (b, n) = lost.first(), gained.first()
    assert left.rdd.getNumPartitions() == right.rdd.getNumPartitions() == PARTITIONS
    assert START * ACCOUNTS - a == b - START * ACCOUNTS, "what one table lost is what the other gained"
    return a + b, m + n
