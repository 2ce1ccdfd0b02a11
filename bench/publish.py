"""A large atomic commit, seen by readers: how soon it is readable everywhere, and what it costs scans beside it.

    staged rows ──publish──► acknowledged ──► a second connection, through another node
                                                get        the last of the rows, in the present
                                                snapshot   the same in the freshest snapshot that the nearest replicas serve
                                                close_now  the same after the present was closed, from the followers
                                                scan       all rows of the table, in the present

Of `get`, `snapshot` and `close_now` the figure is the time from the acknowledgement until the row is found that way; the peer
is the goal, 2 s, for snapshots on top of the closing lag. A scan's peer is a scan of the same table in the same run when it
is quiet; `beside` is the slowest that began before all intents were gone. The peer of publishing is PostgreSQL: COPY of the
same rows, COMMIT, and a count by a second connection.

Three nodes in processes of their own over a sqlite log, which keep no columns: every scan is one.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench._cluster import ServerProcess
from bench._load import disk
from bench._postgres import Postgres
from bench.harness import Figure, figure
from slackwater.client import aconnect
from slackwater.errors import SlackwaterError, UsageError
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from slackwater.client import AsyncDatabase

GOAL_S = 2.0
LAG_S = 3.2
"""How far followers are behind by default: `closed_timestamp.target_duration` and one tick of the side transport."""
GAVE_UP_S = 120.0
BATCH = 16_384
BESIDE_S = 30.0
"""Scans beside the resolution of intents are timed for at most this long."""
TABLE = "CREATE TABLE rows (id bigint PRIMARY KEY, a bigint, b double precision, note text)"


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, rows=60_000 if quick else 1_000_000))
    finally:
        shutil.rmtree(directory)


def _rows(low: int, count: int) -> Any:
    ids = range(low, low + count)
    return pa.table(
        {"id": ids, "a": [i * 7 for i in ids], "b": [i / 3 for i in ids], "note": [f"row number {i}" for i in ids]}
    )


@asynccontextmanager
async def _cluster(directory: Path) -> AsyncIterator[list[AsyncDatabase]]:
    """Three nodes and a connection to each, once a table's range has three replicas."""
    servers: list[ServerProcess] = []
    url = f"sqlite://{directory}/log.db"
    async with AsyncExitStack() as stack:
        for name in ("n1", "n2", "n3"):
            join = servers[0].address if servers else ""
            servers.append(ServerProcess(directory / name, url, join=join, columns=False))
            stack.callback(servers[-1].stop)
        databases = [
            await stack.enter_async_context(aconnect(f"slackwater://{server.address}", timeout=GAVE_UP_S))
            for server in servers
        ]
        await databases[0].create_table("rows", _rows(0, 1).schema, primary_key=["id"])
        while len(await databases[0].frontier(["rows"])) < 3:
            await asyncio.sleep(0.2)
        yield databases


async def _count(db: AsyncDatabase) -> int:
    return sum([batch.num_rows async for batch in db.scan_batches("rows", columns=["id"])])


async def _until(rows: int, read: Any) -> float:
    """Seconds until `read` finds that many rows; it may fail meanwhile, which is told."""
    begin = time.perf_counter()
    while True:
        try:
            if await read() >= rows:
                return time.perf_counter() - begin
        except UsageError:
            raise
        except SlackwaterError as error:
            print(f"    a reader failed after {time.perf_counter() - begin:.1f} s: {str(error)[:200]}", flush=True)
        if time.perf_counter() - begin > GAVE_UP_S:
            return float("inf")
        await asyncio.sleep(0.02)


async def _snapshot(db: AsyncDatabase, key: int) -> int:
    frozen = await db.snapshot(tables=["rows"])
    return int(await frozen.get("rows", key) is not None)


async def _closed(db: AsyncDatabase, key: int) -> int:
    ts = await db.close_now(["rows"])
    frozen = await db.snapshot(as_of=ts, read_from="any")
    return int(await frozen.get("rows", key) is not None)


async def _got(db: AsyncDatabase, key: int) -> int:
    return int(await db.get("rows", key) is not None)


async def _timed(work: Any) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def _beside(db: AsyncDatabase) -> list[float]:
    """Scans one after the other, for as long as anything is left to resolve."""
    took = []
    begin = time.perf_counter()
    while time.perf_counter() - begin < BESIDE_S:
        took.append(await _timed(_count(db)))
        rows = await db.frontier(["rows"])
        if all(row.resolved >= row.closed for row in rows) and len(took) > 2:
            break
    return took


async def _all(directory: Path, *, rows: int) -> list[Figure]:
    base = rows // 4
    async with _cluster(directory) as (writer, reader, third):
        for low in range(0, base, BATCH):
            await writer.upsert("rows", _rows(low, min(BATCH, base - low)))
        begin = time.perf_counter()
        part = await writer.staging("rows", "insert")
        for low in range(base, base + rows, BATCH):
            await part.add(_rows(low, min(BATCH, base + rows - low)))
        ref = await part.finish()
        staged = time.perf_counter() - begin
        await writer.publish("rows", [ref], "insert")
        published = time.perf_counter() - begin - staged
        print(f"    staged in {staged:.1f} s, published in {published:.1f} s", flush=True)
        last = base + rows - 1
        ways = {
            "get": _until(1, lambda: _got(reader, last)),
            "close_now": _until(1, lambda: _closed(reader, last)),
            "snapshot": _until(1, lambda: _snapshot(third, last)),
            "scan": _until(base + rows, lambda: _count(reader)),
        }
        found = dict(zip(ways, await asyncio.gather(*ways.values()), strict=True))
        beside = await _beside(reader)
        await asyncio.sleep(5.0)
        quiet = min([await _timed(_count(reader)) for _ in range(3)])
    theirs = await _postgres(directory, base=base, rows=rows)
    figures = [
        figure("publish", f"{rows} rows: readable by {way} after the acknowledgement", seconds, "s",
               peer="the goal" + (" and the closing lag" if way == "snapshot" else ""),
               peer_value=GOAL_S + (LAG_S if way == "snapshot" else 0.0), goal=1.0, better="lower")
        for way, seconds in found.items() if way != "scan"
    ]  # fmt: skip
    figures.append(
        figure("publish", f"{rows} rows: first scan after the acknowledgement", found["scan"], "s",
               peer="a quiet scan of the same table", peer_value=quiet, goal=2.0, better="lower")
    )  # fmt: skip
    figures.append(
        figure("publish", f"{rows} rows: slowest scan beside the resolution", max(beside), "s",
               peer="a quiet scan of the same table", peer_value=quiet, goal=2.0, better="lower")
    )  # fmt: skip
    figures.append(
        figure("publish", f"{rows} rows: staged and published", staged + published, "s",
               peer="PostgreSQL: COPY, COMMIT, counted by a second connection", peer_value=theirs, better="lower")
    )  # fmt: skip
    return figures


async def _postgres(directory: Path, *, base: int, rows: int) -> float:
    async with Postgres(directory) as postgres:
        first, second = await postgres.connect(), await postgres.connect()
        await first.execute(TABLE)
        begin = time.perf_counter()
        async with first.transaction(), first.cursor() as cursor, cursor.copy("COPY rows FROM STDIN") as copy:
            for low in range(base, base + rows, BATCH):
                found = _rows(low, min(BATCH, base + rows - low)).to_pylist()
                await copy.write("".join(f"{r['id']}\t{r['a']}\t{r['b']}\t{r['note']}\n" for r in found))
        count = await (await second.execute("SELECT count(*) FROM rows")).fetchone()
        assert count == (rows,), count
        took = time.perf_counter() - begin
        await first.close()
        await second.close()
        return took
