"""What the demo shows without Spark, one function a step.

Every step reads through the client only, prints what it saw, and returns the checks it made. `Stage` is what they share.
"""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

import slackwater
from slackwater.clock.timestamp import MIN, seconds_between, show
from slackwater.demo.screen import DemoCheck
from slackwater.demo.shop import MONEY, TABLES, TILLS, WALLETS, Books, count, read_acks

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator
    from pathlib import Path

    from slackwater.client import Database, Snapshot
    from slackwater.clock.timestamp import Timestamp
    from slackwater.demo.picture import Sampler
    from slackwater.demo.processes import LocalCluster
    from slackwater.demo.screen import Screen

pa: Any = pyarrow

READS = 40
PARTS = 8
WAIT_S = 20.0
VICTIM = 1
DOWN_S = 6.0
RECOVERY_S = 60.0


class Stage(NamedTuple):
    """What every step has."""

    screen: Screen
    cluster: LocalCluster
    db: Database
    sampler: Sampler
    customers: subprocess.Popen[bytes]
    acks: Path


def books_at(snapshot: Snapshot) -> Books:
    """Read the three tables at one timestamp."""
    columns = {"wallets": ["balance"], "tills": ["balance"], "orders": ["amount"]}
    return count(*(snapshot.scan(table, columns=columns[table]) for table in TABLES))


@contextmanager
def beside_a_follower(stage: Stage) -> Iterator[tuple[Database, int]]:
    """A session with a node that leads as little as possible: a user in another region than the leaseholders."""
    leads = dict.fromkeys((place.address for place in stage.db.nodes()), 0)
    addresses = {place.node: place.address for place in stage.db.nodes()}
    for row in stage.db.frontier(list(TABLES)):
        leads[addresses[row.node]] += row.leads
    least = min(leads, key=lambda address: leads[address])
    node = next(node for node, address in addresses.items() if address == least)
    with slackwater.connect(f"slackwater://{least}") as db:
        yield db, node


def follower_reads(stage: Stage) -> list[DemoCheck]:
    """One row, read from the leaseholder and from the nearest replica: who answered, how old, how fast."""
    with beside_a_follower(stage) as (db, node):
        return _follower_reads(stage, db, node)


def _follower_reads(stage: Stage, db: Database, here: int) -> list[DemoCheck]:
    rows, nearest = [], 0
    for policy in ("leader", "follower"):
        took, ages = [], []
        for n in range(READS):
            began = time.monotonic()
            snapshot = db.snapshot(max_staleness=10.0, tables=["wallets"], read_from=policy, wait=WAIT_S)
            snapshot.get("wallets", n * (WALLETS // READS))
            took.append(time.monotonic() - began)
            ages.append(age(db, snapshot.timestamp))
            nearest += policy == "follower" and all(read.node == here for read in snapshot.reads)
            if n == 0 or snapshot.reads[-1].by_follower:
                last = snapshot.reads[-1]
        rows.append(
            [
                policy,
                f"n{last.node}" + (" (follower)" if last.by_follower else " (leaseholder)"),
                f"{statistics.median(ages):.2f} s",
                f"{statistics.median(took) * 1000:.1f} ms",
                last.why or "-",
            ]
        )
    head = ["asked for", "served by", "age of the data", f"median of {READS}", "why not a follower"]
    stage.screen.table(head, rows)
    return [
        DemoCheck("the nearest replica serves follower reads", nearest == READS, f"{nearest} of {READS} by n{here}")
    ]


def closed_lag(stage: Stage) -> list[DemoCheck]:
    """How far every range is closed, and what holds it back."""
    rows, worst = [], 0.0
    found = stage.db.frontier(list(TABLES))
    tables: dict[int, list[str]] = {}
    for row in found:
        tables.setdefault(row.range_id, []).append(row.table)
    for row in {(row.range_id, row.node): row for row in found}.values():
        worst = max(worst, row.closed_lag_s)
        role = "leaseholder" if row.leads else "follower"
        lags = [f"{row.closed_lag_s:.2f} s ago", f"{row.resolved_lag_s:.2f} s ago"]
        held = ", ".join(dict.fromkeys(tables[row.range_id]))
        rows.append([f"r{row.range_id}", held, f"n{row.node}", role, *lags, row.reason or "-"])
    stage.screen.table(["range", "of", "node", "role", "closed up to", "resolved up to", "held back by"], rows)
    return [DemoCheck("every replica has closed the recent past", worst < WAIT_S, f"worst lag {worst:.2f} s")]


def fresh_bulk_read(stage: Stage) -> list[DemoCheck]:
    """`close_now`, then a bulk read of the present, by followers."""
    acknowledged, _ = read_acks(stage.acks)
    began = time.monotonic()
    closed = stage.db.close_now(list(TABLES))
    closing = time.monotonic() - began
    stage.sampler.note("close_now")
    with beside_a_follower(stage) as (db, _):
        began_reading = time.monotonic()
        snapshot = db.snapshot(as_of=closed, tables=list(TABLES), read_from="follower", wait=WAIT_S)
        books = books_at(snapshot)
        reading = time.monotonic() - began_reading
        orders = set(snapshot.scan("orders", columns=["id"])["id"].to_pylist())
    missing = len(acknowledged.keys() - orders)
    followers = sum(read.by_follower for read in snapshot.reads)
    rows = WALLETS + TILLS + books.number
    stage.screen.say(f"closed the present of three tables in {closing * 1000:.0f} ms: {show(closed)}")
    stage.screen.say(
        f"read {rows:,} rows there in {reading:.2f} s; {followers} of {len(snapshot.reads)} reads served by followers"
    )
    return [
        DemoCheck(
            "a read of the present sees every purchase acknowledged before",
            missing == 0,
            f"{len(acknowledged):,} acknowledged, {missing} missing",
        ),
        DemoCheck("money balances at the present", books.balanced, f"{books.wallets + books.tills:,} of {MONEY:,}"),
    ]


def independent_reads(stage: Stage) -> None:
    """For contrast: the same table in N reads of their own, as N queries over JDBC would see it."""
    step = WALLETS // PARTS
    total = 0
    for n in range(PARTS):
        part = stage.db.scan(
            "wallets", columns=["balance"], where=[("id", ">=", n * step), ("id", "<", (n + 1) * step)]
        )
        total += sum(part["balance"].to_pylist())
    tills = sum(stage.db.scan("tills", columns=["balance"])["balance"].to_pylist())
    off = total + tills - MONEY
    stage.screen.say(
        f"for contrast: {PARTS + 1} reads, each at its own present, as {PARTS + 1} JDBC queries would: "
        f"{total + tills:,}, {off:+,} off"
    )


def parallel_snapshot(stage: Stage) -> list[DemoCheck]:
    """Partitions read in parallel at one timestamp, the way Spark's tasks do, with threads."""
    snapshot = stage.db.snapshot(max_staleness=10.0, tables=list(TABLES), read_from="follower", wait=WAIT_S)

    def read(partition: Any) -> Any:
        batches = stage.db.read_partition(partition, at=snapshot.timestamp, wait=WAIT_S)
        return list(batches)

    tables = []
    with ThreadPoolExecutor(4) as pool:
        for name in TABLES:
            found = [batch for part in pool.map(read, snapshot.partitions(name, 4)) for batch in part]
            tables.append(pa.Table.from_batches(found) if found else snapshot.scan(name))
    books = count(*tables)
    stage.screen.say(f"at {show(snapshot.timestamp)} wallets and tills add up to {books.wallets + books.tills:,}")
    return [DemoCheck("a parallel snapshot balances", books.balanced, f"{books.number} orders, {books.off:+d} off")]


class MirrorCheck:
    """A copy of one table's balances, kept by changes alone."""

    def __init__(self, db: Database, table: str) -> None:
        self.table = table
        self.upto = MIN
        self.changes = 0
        self.compared = 0
        self.different = 0
        self.finished = False
        """Nothing more is applied."""
        self._db = db
        self._rows: dict[int, int] = {}

    def begin(self, at: Timestamp) -> None:
        """Take the table as it was at `at`; changes after it come next."""
        found = self._db.snapshot(as_of=at, tables=[self.table], wait=WAIT_S).scan(
            self.table, columns=["id", "balance"]
        )
        self._rows = dict(zip(found["id"].to_pylist(), found["balance"].to_pylist(), strict=True))
        self.upto = at

    def apply(self, batch: Any) -> None:
        """Changes in any order between keys, in order within one; pre-images are not asked for."""
        order = batch.sort_by("_commit_ts") if batch.num_rows else batch
        kinds, ids = order["_op"].to_pylist(), order["id"].to_pylist()
        for kind, key, balance in zip(kinds, ids, order["balance"].to_pylist(), strict=True):
            if kind == "delete":
                self._rows.pop(key, None)
            else:
                self._rows[key] = balance
        self.changes += batch.num_rows

    def compare(self, at: Timestamp) -> None:
        """With the table as it was at `at`, row by row."""
        snapshot = self._db.snapshot(as_of=at, tables=[self.table], read_from="any", wait=WAIT_S)
        found = snapshot.scan(self.table, columns=["id", "balance"])
        there = dict(zip(found["id"].to_pylist(), found["balance"].to_pylist(), strict=True))
        self.compared += 1
        self.different += there != self._rows
        self.upto = at


def mirror_by_changes(stage: Stage) -> list[DemoCheck]:
    """Rebuild two tables from their changes, between resolved timestamps, while a node dies and comes back."""
    mirrors = [MirrorCheck(stage.db, "wallets"), MirrorCheck(stage.db, "tills")]

    def advance(mirror: MirrorCheck) -> None:
        upto = stage.db.resolved(mirror.table)
        if mirror.upto == MIN:
            mirror.begin(upto)
        for partition in stage.db.partitions(mirror.table, at=upto):
            for batch in stage.db.read_changes(partition, after=mirror.upto, upto=upto, wait=WAIT_S):
                mirror.apply(pa.Table.from_batches([batch]))
        mirror.compare(upto)

    def advance_all() -> None:
        for mirror in mirrors:
            advance(mirror)

    with stage.screen.waiting(lambda: progress_of(mirrors)):
        advance_all()
        kill_a_node(stage, advance_all)
    return mirror_checks(stage, mirrors)


def progress_of(mirrors: list[MirrorCheck]) -> str:
    """How far the mirrors are."""
    return "; ".join(f"{m.table}: {m.changes:,} changes, compared {m.compared} times" for m in mirrors)


def kill_a_node(stage: Stage, during: Any) -> None:
    """End one of three with `kill -9`, go on working, start it again."""
    address = stage.cluster.addresses[VICTIM]
    name = next(f"n{place.node}" for place in stage.db.nodes() if place.address == address)
    stage.cluster.kill(VICTIM)
    stage.sampler.note(f"kill -9 {name}")
    stage.screen.say(f"[{stage.screen.seconds:5.1f} s] kill -9 {name}; the customers go on with the other two")
    deadline = time.monotonic() + DOWN_S
    while time.monotonic() < deadline:
        during()
        time.sleep(0.5)
    stage.cluster.start(VICTIM)
    stage.sampler.note("restarted")
    stage.screen.say(f"[{stage.screen.seconds:5.1f} s] {name} is back, with what it missed")
    during()


def mirror_checks(stage: Stage, mirrors: list[MirrorCheck]) -> list[DemoCheck]:
    """Every mirror was compared, and never differed."""
    checks = []
    for mirror in mirrors:
        stage.screen.say(
            f"{mirror.table}: {mirror.changes:,} changes applied, compared row by row at {mirror.compared} resolved timestamps"
        )
        held = mirror.compared > 0 and mirror.different == 0
        figure = f"{mirror.compared} comparisons, {mirror.different} different"
        checks.append(DemoCheck(f"the mirror of {mirror.table} equals the table", held, figure))
    return checks


def nothing_lost(stage: Stage, *, seconds: float) -> list[DemoCheck]:
    """After everything: every purchase that was acknowledged is there, and the books balance."""
    acknowledged, maybe = read_acks(stage.acks)
    snapshot = stage.db.snapshot(as_of=stage.db.close_now(list(TABLES)), tables=list(TABLES), wait=WAIT_S)
    orders = snapshot.scan("orders", columns=["id", "amount"])
    there = dict(zip(orders["id"].to_pylist(), orders["amount"].to_pylist(), strict=True))
    lost = [order for order, amount in acknowledged.items() if there.get(order) != amount]
    unknown = there.keys() - acknowledged.keys() - maybe.keys()
    books = books_at(snapshot)
    rate = len(acknowledged) / seconds
    stage.screen.say(
        f"{len(acknowledged):,} purchases acknowledged in {seconds:.0f} s, {rate:.0f} a second on average, "
        "while all of the above ran on the same machine"
    )
    return [
        DemoCheck(
            "no acknowledged purchase was lost", not lost, f"{len(acknowledged):,} acknowledged, {len(lost)} lost"
        ),
        DemoCheck(
            "no order is there that was not placed", not unknown, f"{len(unknown)} unexplained, {len(maybe)} unknown"
        ),
        DemoCheck(
            "money balances at the end", books.balanced, f"{books.off:+d} off, {books.orders_off:+d} unexplained"
        ),
    ]


def age(db: Database, ts: Timestamp) -> float:
    """Seconds since a timestamp."""
    return max(0.0, seconds_between(ts, db.now()))
