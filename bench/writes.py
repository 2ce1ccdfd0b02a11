"""Writes of one node against PostgreSQL 18 with its default, durable settings: autocommit upserts and bulk load.

    upserts       `kv.put` over RPC                             INSERT … ON CONFLICT DO UPDATE, prepared, autocommit
    bulk          Arrow ─► RowCodec.encode_batch ─► `put_rows`   Arrow ─► pyarrow.csv ─► COPY … FROM STDIN (FORMAT CSV)

Both acknowledge a write only once it is on the disk (our log's fsync, their WAL's). Both servers run in processes of
their own; the clients of both are tasks of the benchmark's process, over loopback TCP, and take turns. PostgreSQL has one
connection per client. Upserts: 100-byte rows over 20 000 keys. Bulk: the 8-column row of `bench codec`, from one and the
same Arrow batch to the last acknowledgement; each side encodes it with vectorized code.

The figures for three nodes over a log of three NATS servers, all on this one machine, have the same single PostgreSQL
beside them: what replication costs when nothing is gained by more machines.
"""

from __future__ import annotations

import asyncio
import gc
import shutil
import statistics
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import csv as pyarrow_csv

from bench._cluster import one_node, three_nodes
from bench._load import contest, disk
from bench._postgres import Postgres
from bench.codec import MIXED, mixed_rows
from bench.harness import Figure, figure
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.layout import kv as kv_key
from slackwater.codec.rows import RowCodec
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import psycopg

    from slackwater.txn.kv import KV

pa: Any = pyarrow
csv: Any = pyarrow_csv

KEYS = 20_000
VALUE = b"v" * 90
STEP = 7919
CLIENTS = (1, 32, 256)
GOAL_256 = 0.3
GOAL_BULK = 0.5
PEER = "PostgreSQL 18"
UPSERT = "INSERT INTO t VALUES (%b, %b) ON CONFLICT (k) DO UPDATE SET v = EXCLUDED.v"
TABLE = (
    "CREATE TABLE mixed (id int8 PRIMARY KEY, customer int8, quantity int8, weight float8, price numeric(12, 2),"
    " name text, note text, paid bool)"
)
BLOCK_ROWS = 20_000
"""Rows encoded at a time, on both sides."""
BLOCKS_AHEAD_MAX = 1
"""Blocks under way while the next is encoded; the peer's COPY has the socket's buffers for that."""


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(
            _all(
                directory,
                seconds=0.5 if quick else 2.0,
                rounds=3 if quick else 5,
                bulk_rows=50_000 if quick else 200_000,
            )
        )
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, seconds: float, rounds: int, bulk_rows: int) -> list[Figure]:
    figures = []
    async with Postgres(directory) as postgres:
        for suffix, cluster in (("", one_node), (", 3 nodes, NATS", three_nodes)):
            goals = not suffix
            async with cluster(directory) as kv:
                figures += await _upserts(kv, postgres, suffix, seconds=seconds, rounds=rounds, goals=goals)
                figures.append(await _bulk(kv, postgres, suffix, rows=bulk_rows, rounds=rounds, goals=goals))
    return figures


# --- upserts -----------------------------------------------------------------------------------------------------------


async def _upserts(
    kv: KV, postgres: Postgres, suffix: str, *, seconds: float, rounds: int, goals: bool
) -> list[Figure]:
    connections = [await postgres.connect() for _ in range(max(CLIENTS))]
    await connections[0].execute("DROP TABLE IF EXISTS t")
    await connections[0].execute("CREATE TABLE t (k bytea PRIMARY KEY, v bytea NOT NULL)")
    figures = []
    for clients in CLIENTS:
        sides = {"ours": [_our_put(kv)] * clients, "peer": [_their_put(c) for c in connections[:clients]]}
        rates = await contest(sides, seconds=seconds, rounds=rounds)
        metric = f"autocommit upserts, {clients} clients{suffix}"
        goal = GOAL_256 if goals and clients == 256 else None
        figures.append(
            figure("writes", metric, rates["ours"], "rows/s", peer=PEER, peer_value=rates["peer"], goal=goal)
        )
    for connection in connections:
        await connection.close()
    return figures


def _our_put(kv: KV) -> Callable[[int], Awaitable[object]]:
    async def put(number: int) -> None:
        await kv.put(kv_key(b"%08d" % (number * STEP % KEYS)), VALUE)

    return put


def _their_put(connection: psycopg.AsyncConnection[Any]) -> Callable[[int], Awaitable[object]]:
    async def put(number: int) -> None:
        await connection.execute(UPSERT, (b"%08d" % (number * STEP % KEYS), VALUE), prepare=True)

    return put


# --- bulk --------------------------------------------------------------------------------------------------------------


async def _bulk(kv: KV, postgres: Postgres, suffix: str, *, rows: int, rounds: int, goals: bool) -> Figure:
    connection = await postgres.connect()
    await connection.execute("DROP TABLE IF EXISTS mixed")
    await connection.execute(TABLE)
    template = pa.RecordBatch.from_pylist(mixed_rows(rows), schema=arrow_schema(MIXED))
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(rounds + 1):  # the first is the warm-up
        ids = pa.array(range(turn * rows, (turn + 1) * rows), pa.int64())
        batch = template.set_column(0, template.schema.field(0), ids)
        gc.collect()
        ours.append(rows / await _timed(_load(kv, batch)))
        theirs.append(rows / await _timed(_copy(connection, batch)))
    await connection.close()
    mine, peer = statistics.median(ours[1:]), statistics.median(theirs[1:])
    goal = GOAL_BULK if goals else None
    metric = f"bulk rows, 8 columns{suffix}"
    return figure("writes", metric, mine, "rows/s", peer=f"{PEER} COPY", peer_value=peer, goal=goal)


async def _timed(work: Awaitable[None]) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def _load(kv: KV, batch: Any) -> None:
    codec = RowCodec(MIXED)
    sent: deque[asyncio.Task[None]] = deque()
    for i in range(0, batch.num_rows, BLOCK_ROWS):
        keys, values = codec.encode_batch(batch.slice(i, BLOCK_ROWS))
        sent.append(asyncio.create_task(kv.put_rows(keys, values)))
        if len(sent) > BLOCKS_AHEAD_MAX:
            await sent.popleft()
        await asyncio.sleep(0)  # let it leave before the next block is encoded
    for block in sent:
        await block


async def _copy(connection: psycopg.AsyncConnection[Any], batch: Any) -> None:
    options = csv.WriteOptions(include_header=False)
    async with connection.cursor() as cursor, cursor.copy("COPY mixed FROM STDIN (FORMAT CSV)") as copy:
        for i in range(0, batch.num_rows, BLOCK_ROWS):
            block = pa.BufferOutputStream()
            csv.write_csv(batch.slice(i, BLOCK_ROWS), block, options)
            await copy.write(memoryview(block.getvalue()))
