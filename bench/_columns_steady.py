"""What making columns costs a node whose table is upserted everywhere all the time, row by row, and read now and then.

    steady      processor time of making columns                         / of the node meanwhile
    upserts     a second, beside the making and the reads                / on a node that keeps no columns

Every so many rows one is written, so that no batch of a segment stays as it is: the dearest case. The two nodes run one after
the other, each with the same writers and readers.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow

from bench._cluster import ServerProcess
from bench._cpu import cpu_s
from bench._point_writer import PointWriter
from bench.harness import figure
from slackwater.client import connect

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from bench.harness import Figure
    from slackwater.client import Database

pa: Any = pyarrow
CLIENTS = 64
STEP = 7_919
COLUMNS = {f"c{number}": "text" if number % 2 else "int8" for number in range(6)}
READ_EVERY_S = 2.0
MADE_S_MAX = 120.0
BLOCK_ROWS = 100_000


class Steady(NamedTuple):
    """What went on in a phase of writes."""

    upserts_per_s: float
    node_cpu_s: float
    making_cpu_s: float
    made: int
    read_s: float
    """The median of the reads."""


def steady_figures(directory: Path, *, rows: int, seconds: float) -> Iterator[Figure]:
    """Both of them."""
    kept, without = (_phase(directory, rows=rows, seconds=seconds, columns=columns) for columns in (True, False))
    name = f"steady upserts everywhere in {rows:,} rows"
    yield figure("columns", f"{name}, making ({kept.made} times)", kept.making_cpu_s, "cpu s",
                 peer="of the node meanwhile", peer_value=kept.node_cpu_s, goal=0.05, better="lower")  # fmt: skip
    yield figure("columns", name, kept.upserts_per_s, "upserts/s", peer="of a node without columns",
                 peer_value=without.upserts_per_s)  # fmt: skip
    yield figure("columns", f"{name}, a read of all", kept.read_s * 1e3, "ms", peer="of a node without columns",
                 peer_value=without.read_s * 1e3, better="lower")  # fmt: skip


def _phase(directory: Path, *, rows: int, seconds: float, columns: bool) -> Steady:
    name = "steady" if columns else "steady_rows"
    server = ServerProcess(directory / name, f"sqlite://{directory}/{name}.db", columns=columns)
    try:
        address = f"slackwater://{server.address}"
        with connect(address, timeout=300.0) as db:
            db.create_table("hot", {"id": "int8", "v": "int8", **COLUMNS}, primary_key=["id"])
            for low in range(0, rows, BLOCK_ROWS):
                ids = np.arange(low, min(low + BLOCK_ROWS, rows))
                texts = pa.array(ids).cast(pa.string())
                others = {name: texts if type_ == "text" else ids for name, type_ in COLUMNS.items()}
                db.upsert("hot", pa.table({"id": ids, "v": ids, **others}))
            _read(db, rows)
            if columns:
                _until_made(server)
            with PointWriter(address, "hot", clients=CLIENTS, rows=rows, step=STEP) as writer:
                writer.mark()
                before, began, times = server.making(), cpu_s(server.pid), []
                until = time.monotonic() + seconds
                while time.monotonic() < until:
                    times.append(_read(db, rows))
                    time.sleep(READ_EVERY_S)
                took, phase, after = cpu_s(server.pid) - began, writer.mark(), server.making()
    finally:
        server.stop()
    if phase.failed:
        raise RuntimeError(f"{phase.failed} upserts failed")
    rate = len(phase.latencies) / seconds
    read_s = sorted(times)[len(times) // 2]
    return Steady(rate, took, after.cpu_s - before.cpu_s, after.made - before.made, read_s)


def _read(db: Database, rows: int) -> float:
    began = time.monotonic()
    found = sum(batch.num_rows for batch in db.snapshot(tables=["hot"]).scan_batches("hot"))
    if found != rows:
        raise RuntimeError(f"a read gave {found} rows of {rows}")
    return time.monotonic() - began


def _until_made(server: ServerProcess) -> None:
    deadline = time.monotonic() + MADE_S_MAX
    while not server.making().made:
        if time.monotonic() > deadline:
            raise RuntimeError("the node made no columns")
        time.sleep(0.2)
