"""Columns on a node in a process of its own: what making them costs beside a load, memory, and what readers cost writers.

    making      processor time of making columns while rows are loaded   / of the node meanwhile
                of making them at any time                               / of the node that loads them
    memory      that the node takes more while columns are made and      / 150 MB
                its table is read again and again, than after the load
    upserts     99th percentile of point upserts beside snapshots        / with nothing beside them

Writers and readers are processes of their own (`bench._point_writer`, `bench._snapshots`).
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench._cluster import ServerProcess
from bench._cpu import cpu_s
from bench._mixed import BLOCK_ROWS, mixed_blocks
from bench._point_writer import PointWriter
from bench._snapshots import Snapshots
from bench.codec import MIXED
from bench.harness import figure, progress
from slackwater.client import connect
from slackwater.codec.arrow import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.harness import Figure
    from slackwater.client import Database

MEMORY_MB = 150
MADE_S_MAX = 300.0
CLIENTS = 4
TURNS = 6
HOT_ROWS = 1_000
READS = 20
SETTLE_S = 5.0


def node_figures(directory: Path, *, rows: int, seconds: float, make_ns: float) -> Iterator[Figure]:
    """All of them; `make_ns`: what making a segment costs a row."""
    place = directory / "node"
    server = ServerProcess(place, f"sqlite://{directory}/node.db")
    try:
        address = f"slackwater://{server.address}"
        with connect(address, timeout=300.0) as db:
            db.create_table("mixed", arrow_schema(MIXED), primary_key=["id"])
            db.create_table("hot", {"id": "int8", "v": "int8"}, primary_key=["id"])
            began = cpu_s(server.pid)
            for number, block in enumerate(mixed_blocks(rows)):
                db.upsert("mixed", block)
                if number % 10 == 9:
                    progress(f"columns: {(number + 1) * BLOCK_ROWS:,} of {rows:,} rows loaded")
            load_s, making_s = cpu_s(server.pid) - began, server.making().cpu_s
            yield figure("columns", "making, while a bulk load goes on", making_s / rows * 1e9, "ns/row",
                         peer="of the node that loads them", peer_value=load_s / rows * 1e9, goal=0.05,
                         better="lower")  # fmt: skip
            yield figure("columns", "making, all of it", make_ns, "ns/row", peer="of the node that loads them, without",
                         peer_value=(load_s - making_s) / rows * 1e9, goal=0.15, better="lower")  # fmt: skip
            time.sleep(SETTLE_S)
            idle_mb = _memory_mb(server.pid)
            most_mb = _read_until_made(db, server, place)
            for _ in range(READS):
                if _read(db) != rows:
                    raise RuntimeError("a read gave other rows than were loaded")
                most_mb = max(most_mb, _memory_mb(server.pid))
            yield figure("columns", f"memory beside {idle_mb} MB, {rows:,} rows read {READS} times", most_mb - idle_mb, "MB",
                         peer="goal", peer_value=MEMORY_MB, goal=1.0, better="lower")  # fmt: skip
        yield from _beside(address, seconds)
    finally:
        server.stop()


def _read(db: Database) -> int:
    return sum(batch.num_rows for batch in db.scan_batches("mixed"))


def _read_until_made(db: Database, server: ServerProcess, place: Path) -> int:
    """Read rows once, which makes columns wanted, and wait until there are files of all; the most memory meanwhile."""
    _read(db)
    most_mb, deadline, before = _memory_mb(server.pid), time.monotonic() + MADE_S_MAX, [""]
    while True:
        files = sorted(file.name for file in (place / "store" / "columns").glob("*"))
        if files and files == before and not any(name.endswith(".tmp") for name in files):
            return most_mb
        if time.monotonic() > deadline:
            raise RuntimeError("the node made no columns")
        before = files
        for _ in range(20):
            time.sleep(0.2)
            most_mb = max(most_mb, _memory_mb(server.pid))


def _beside(address: str, seconds: float) -> Iterator[Figure]:
    """In turns, so that noise hits both."""
    alone: list[float] = []
    beside: list[float] = []
    with PointWriter(address, "hot", clients=CLIENTS, rows=HOT_ROWS) as writer, Snapshots(address, "mixed") as reader:
        for _ in range(TURNS):
            writer.mark()
            time.sleep(seconds / TURNS)
            alone += writer.mark().latencies
            reader.begin()
            time.sleep(0.3)
            writer.mark()
            time.sleep(seconds / TURNS)
            beside += writer.mark().latencies
            reader.end()
            time.sleep(0.2)
    for percent, goal in ((50, None), (99, 1.3)):
        yield figure("columns", f"point upsert p{percent} beside snapshots", _percentile(beside, percent) * 1e3, "ms",
                     peer="nothing beside them", peer_value=_percentile(alone, percent) * 1e3, goal=goal,
                     better="lower")  # fmt: skip


def _percentile(values: list[float], percent: int) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[percent - 1]


def _memory_mb(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) >> 10
    raise RuntimeError("the server ended")
