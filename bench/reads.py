"""Point reads of one node against PostgreSQL 18.

    slackwater    `kv.get` over RPC: the leaseholder's present, serializable
    the peer      `SELECT v FROM t WHERE k = …`, prepared, autocommit

Both servers run in processes of their own; the clients of both are tasks of the benchmark's process, over loopback TCP.
PostgreSQL has one connection per client. 20 000 rows of 100 bytes, read in a scattered order. The figure for three nodes
over NATS, all on this one machine, has the same single PostgreSQL beside it.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import one_node, three_nodes
from bench._load import contest, disk
from bench._postgres import Postgres
from bench.harness import Figure, figure
from slackwater.codec.layout import kv as kv_key
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import psycopg

    from slackwater.txn.kv import KV

ROWS = 20_000
CLIENTS = (1, 32)
VALUE = b"v" * 90
GOAL_32 = 0.3
STEP = 7919
PEER = "PostgreSQL 18"


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, seconds=0.5 if quick else 2.0, rounds=3 if quick else 5))
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, seconds: float, rounds: int) -> list[Figure]:
    async with Postgres(directory) as postgres:
        connections = [await postgres.connect() for _ in range(max(CLIENTS))]
        await _fill_peer(connections[0])
        figures = []
        async with one_node(directory) as kv:
            await _fill(kv)
            for clients in CLIENTS:
                rates = await _measure(kv, connections[:clients], seconds=seconds, rounds=rounds)
                figures.append(_figure(f"point reads, {clients} clients", rates, GOAL_32 if clients == 32 else None))
        async with three_nodes(directory) as kv:
            await _fill(kv)
            rates = await _measure(kv, connections[:32], seconds=seconds, rounds=rounds)
            figures.append(_figure("point reads, 32 clients, 3 nodes, NATS", rates, None))
        for connection in connections:
            await connection.close()
        return figures


async def _measure(
    kv: KV, connections: list[psycopg.AsyncConnection[Any]], *, seconds: float, rounds: int
) -> dict[str, float]:
    sides = {"ours": [_our_get(kv)] * len(connections), "peer": [_their_get(c) for c in connections]}
    return await contest(sides, seconds=seconds, rounds=rounds)


def _figure(metric: str, rates: dict[str, float], goal: float | None) -> Figure:
    return figure("reads", metric, rates["ours"], "reads/s", peer=PEER, peer_value=rates["peer"], goal=goal)


async def _fill(kv: KV) -> None:
    await kv.put_rows([kv_key(b"%08d" % i) for i in range(ROWS)], [VALUE] * ROWS)


async def _fill_peer(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute("CREATE TABLE t (k bytea PRIMARY KEY, v bytea NOT NULL)")
    async with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["bytea", "bytea"])
        for i in range(ROWS):
            await copy.write_row((b"%08d" % i, VALUE))
    await connection.execute("VACUUM ANALYZE t")


def _our_get(kv: KV) -> Callable[[int], Awaitable[object]]:
    async def get(number: int) -> None:
        found = await kv.get(kv_key(b"%08d" % (number * STEP % ROWS)))
        assert found == VALUE

    return get


def _their_get(connection: psycopg.AsyncConnection[Any]) -> Callable[[int], Awaitable[object]]:
    async def get(number: int) -> None:
        key = b"%08d" % (number * STEP % ROWS)
        cursor = await connection.execute("SELECT v FROM t WHERE k = %b", (key,), prepare=True)
        row = await cursor.fetchone()
        assert row == (VALUE,)

    return get
