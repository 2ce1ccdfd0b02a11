"""Events from commit to consumer: our feed beside Debezium's embedded engine on PostgreSQL 18's logical decoding.

    writer ── transactions of 1000 rows ──►  server  ──►  consumer in a process of its own          both sides alike
    └── the clock starts with the first                    └── and stops when the last row has come

The same rows of 8 columns go to both sides, in transactions of the same size, from the same number of connections. Their
consumer gets an event as JSON without a schema (`bench._debezium` says how it is tuned), ours record batches of Arrow from
`db.changes`. Both stay attached for the whole contest; the sides take turns, and the first turns warm up the just-in-time
compiler. A round's figure includes the writing: a consumer cannot be faster than what it follows.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import csv as pyarrow_csv

from bench._cluster import ServerProcess
from bench._debezium import debezium
from bench._event_reader import event_reader
from bench._postgres import Postgres
from bench.codec import MIXED, mixed_rows
from bench.harness import Figure, figure
from bench.writes import TABLE
from slackwater.client import aconnect
from slackwater.model.arrow import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    import psycopg

    from bench._counter import ConsumerProcess
    from slackwater.client import AsyncDatabase

    Write = Callable[[int, Any], Awaitable[None]]

pa: Any = pyarrow
csv: Any = pyarrow_csv

TXN_ROWS = 1000
WRITERS = 4
WARM_UPS = 3
GOAL = 2.0
NAME = "bench"


async def events_figure(directory: Path, *, rows: int, rounds: int) -> Figure:
    """Events per second, beside theirs."""
    server = ServerProcess(directory / "events", f"sqlite://{directory}/events.db")
    readers: list[ConsumerProcess] = []
    try:
        async with (
            Postgres(directory, options=("wal_level=logical",)) as postgres,
            aconnect(f"slackwater://{server.address}") as db,
        ):
            connections = [await postgres.connect() for _ in range(WRITERS)]
            await _prepare(connections[0])
            await db.create_table("mixed", list(MIXED.columns), primary_key=["id"])
            readers.append(event_reader(server.address, "mixed", after=(await db.history("mixed")).latest.modified))
            readers.append(debezium(port=postgres.port, slot=NAME, publication=NAME, table="mixed"))
            sides = dict(zip(readers, (_ours(db), _theirs(connections)), strict=True))
            ours, theirs = await _contest(sides, rows=rows, rounds=rounds)
            for reader in readers:
                reader.stop()
            for connection in connections:
                await connection.close()
    finally:
        server.stop()
    peer = "Debezium on PostgreSQL 18"
    metric = f"events from commit to consumer, transactions of {TXN_ROWS} rows"
    return figure("feeds", metric, ours, "events/s", peer=peer, peer_value=theirs, goal=GOAL)


async def _prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(TABLE)
    await connection.execute(f"CREATE PUBLICATION {NAME} FOR TABLE mixed")
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{NAME}', 'pgoutput')")


async def _contest(sides: dict[ConsumerProcess, Write], *, rows: int, rounds: int) -> list[float]:
    template = pa.Table.from_pylist(mixed_rows(rows), schema=arrow_schema(MIXED))
    rates: dict[ConsumerProcess, list[float]] = {reader: [] for reader in sides}
    for turn in range(WARM_UPS + rounds):
        ids = pa.array(range(turn * rows, (turn + 1) * rows), pa.int64())
        table = template.set_column(0, template.schema.field(0), ids)
        for reader, write in sides.items():
            gc.collect()
            rates[reader].append(await _round(reader, write, table))
    return [statistics.median(measured[WARM_UPS:]) for measured in rates.values()]


async def _round(reader: ConsumerProcess, write: Write, table: Any) -> float:
    """Write a table in transactions and wait until its last row has come."""
    blocks = iter([table.slice(low, TXN_ROWS) for low in range(0, table.num_rows, TXN_ROWS)])

    async def one(number: int) -> None:
        for block in blocks:
            await write(number, block)

    reader.expect(table.num_rows)
    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(WRITERS)))
    return float(table.num_rows / (await asyncio.to_thread(reader.came) - began))


def _ours(db: AsyncDatabase) -> Write:
    async def write(_: int, block: Any) -> None:
        await db.upsert("mixed", block)

    return write


def _theirs(connections: list[psycopg.AsyncConnection[Any]]) -> Write:
    async def write(number: int, block: Any) -> None:
        out = pa.BufferOutputStream()
        csv.write_csv(block, out, csv.WriteOptions(include_header=False))
        async with connections[number].cursor() as cursor, cursor.copy("COPY mixed FROM STDIN (FORMAT CSV)") as copy:
            await copy.write(memoryview(out.getvalue()))

    return write
