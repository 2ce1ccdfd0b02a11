"""Point reads of one node against PostgreSQL 18.

    slackwater    `kv.get` over RPC: the leaseholder's present, serializable
    the peer      `SELECT v FROM t WHERE k = …`, prepared, autocommit

Both servers run in processes of their own; the clients of both are tasks of the benchmark's process, over loopback TCP.
PostgreSQL has one connection per client. 20 000 rows of 100 bytes, read in a scattered order.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bench._cluster import Client, ServerProcess
from bench._load import contest, disk
from bench._postgres import Postgres
from bench.harness import Figure, figure
from slackwater.model.layout import kv as kv_key
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import psycopg

    from slackwater.txn.kv import KV

ROWS = 20_000
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
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with Postgres(directory) as postgres, Client([server.address]) as kv:
            connections = [await postgres.connect() for _ in range(32)]
            await _fill(kv, connections[0])
            figures = []
            for clients in (1, 32):
                sides = {
                    "ours": [_our_get(kv)] * clients,
                    "peer": [_their_get(connection) for connection in connections[:clients]],
                }
                rates = await contest(sides, seconds=seconds, rounds=rounds)
                goal = GOAL_32 if clients == 32 else None
                metric = f"point reads, {clients} clients"
                figures.append(
                    figure("reads", metric, rates["ours"], "reads/s", peer=PEER, peer_value=rates["peer"], goal=goal)
                )
            for connection in connections:
                await connection.close()
            return figures
    finally:
        server.stop()


async def _fill(kv: KV, connection: psycopg.AsyncConnection[Any]) -> None:
    keys = [b"%08d" % i for i in range(ROWS)]
    await kv.put_rows([kv_key(key) for key in keys], [VALUE] * ROWS)
    await connection.execute("CREATE TABLE t (k bytea PRIMARY KEY, v bytea NOT NULL)")
    async with connection.cursor() as cursor, cursor.copy("COPY t FROM STDIN (FORMAT BINARY)") as copy:
        copy.set_types(["bytea", "bytea"])
        for key in keys:
            await copy.write_row((key, VALUE))
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
