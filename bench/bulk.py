"""Bulk reads through a whole node, beside the storage scan they are made of.

    the peer    storage.scan_arrow on a snapshot of the node's own engine: rows to record batches, nothing around it
    in process  the same table through KV, routing, the replica's checks and a thread; IPC messages, read back as batches
    loopback    the same from another process over TCP (two processes on two cores)
    changes     every row once as a change, with its type and commit timestamp

The nodes keep no columns (`columns.disk_bytes` = 0), or all but the first scan would be no scan.

A table of 8 columns, in chunks of 4 MiB, one chunk after the other. All in one run, in turns; medians.
"""

from __future__ import annotations

import gc
import shutil
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import one_node
from bench._load import disk
from bench.harness import figure
from bench.storage import SCHEMA, SPAN, table
from slackwater.clock.timestamp import MIN
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.changes_arrow import change_schema
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.log import open_log
from slackwater.model.scan_plan import ScanPlan
from slackwater.protocol.range.bulk import Blocks, ExportArrow, ScanArrow
from slackwater.runtime import RealRuntime, Scope, TcpNet
from slackwater.runtime import run as run_main
from slackwater.runtime.clock import RealClock
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.arrow import scan_arrow
from slackwater.storage.rocks import RocksDisk
from tests.unit.gateway.read_columns import read_columns

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from bench.harness import Figure
    from slackwater.clock.timestamp import Timestamp
    from slackwater.server.member import Member
    from slackwater.txn.kv import KV

PLAN = ScanPlan((SCHEMA,), 1)
SCAN = ScanArrow(SPAN.start, SPAN.end, PLAN.encode())
PEER = "storage.scan_arrow on the same engine, rows/s"
LOAD_ROWS = 20_000


@asynccontextmanager
async def node_here(directory: Path) -> AsyncIterator[Member]:
    """A node in this process, over a sqlite log."""
    settings = Settings({"queue.interval": 0.0, "columns.disk_bytes": 0})
    store = RocksDisk(directory, sleep=RealClock().sleep, settings=settings)
    runtime = RealRuntime(disk=store, net=TcpNet(settings), settings=settings)
    scope = Scope("node")
    log = await open_log(
        f"sqlite://{directory}/log.db", clock=runtime.clock, rng=runtime.rng, scope=scope, settings=settings
    )
    engine = store.open("store")
    node = Node(runtime=runtime, scope=scope, engine=engine, log=log, address="127.0.0.1:0", settings=settings)
    await node.start()
    await node.init()
    try:
        yield await node.joined()
    finally:
        await node.stop()
        engine.close()


async def _fill(kv: KV, keys: list[bytes], values: list[bytes]) -> None:
    for low in range(0, len(keys), LOAD_ROWS):
        await kv.put_rows(keys[low : low + LOAD_ROWS], values[low : low + LOAD_ROWS])


async def _read(kv: KV, request: ScanArrow | ExportArrow, schema: Any, ts: Timestamp) -> int:
    rows = 0
    async for answer in read_columns(kv, request, ts=ts):
        (found,) = answer.results
        assert isinstance(found, Blocks)
        rows += sum(batch.num_rows for batch in unpack(found.blocks, schema))
    return rows


def _peer(node: Member, ts: Timestamp) -> int:
    decoder = BlockDecoder(SCHEMA, {1: SCHEMA})
    with node.engine.snapshot() as snapshot:
        return sum(b.batch.num_rows for b in scan_arrow(snapshot, SPAN.start, SPAN.end, ts=ts, decoder=decoder))


async def _contest(works: dict[str, Callable[[], Awaitable[int]]], *, rows: int, rounds: int) -> dict[str, float]:
    rates: dict[str, list[float]] = {name: [] for name in works}
    for turn in range(rounds + 1):  # the first is a warm-up
        for name, work in works.items():
            gc.collect()
            begin = time.perf_counter()
            done = await work()
            took = time.perf_counter() - begin
            assert done == rows, (name, done)
            if turn:
                rates[name].append(done / took)
    return {name: statistics.median(found) for name, found in rates.items()}


async def _all(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
    keys, values = table(rows)
    for name in ("here", "there"):
        (directory / name).mkdir()
    async with node_here(directory / "here") as node, one_node(directory / "there", columns=False) as there:
        await _fill(node.kv, keys, values)
        await _fill(there, keys, values)
        await node.engine.flush()
        ts = node.clock.now()
        export = ExportArrow(SPAN.start, SPAN.end, MIN, ts, SCAN.plan)

        async def peer() -> int:
            return _peer(node, ts)

        works: dict[str, Callable[[], Awaitable[int]]] = {
            "peer": peer,
            "here": lambda: _read(node.kv, SCAN, plan_schema(PLAN), ts),
            "there": lambda: _read(there, SCAN, plan_schema(PLAN), ts),
            "changes": lambda: _read(node.kv, export, change_schema(PLAN.schema()), ts),
        }
        rates = await _contest(works, rows=rows, rounds=rounds)
    names = {"here": "scan, in process", "there": "scan, over loopback", "changes": "changes, in process"}
    goals = {"here": 0.7, "there": 0.5, "changes": None}
    return [
        figure("bulk", metric, rates[name], "rows/s", peer=PEER, peer_value=rates["peer"], goal=goals[name])
        for name, metric in names.items()
    ]


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, rows=60_000 if quick else 400_000, rounds=3 if quick else 7))
    finally:
        shutil.rmtree(directory)
