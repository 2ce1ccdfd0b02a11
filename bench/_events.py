"""Events from commit to consumer: our feed beside Debezium's embedded engine on PostgreSQL 18's logical decoding.

    writer ── transactions of 1000 rows ──►  server  ──►  consumer in a process of its own          both sides alike

    live   the clock starts with the first transaction and stops when its consumer has the last row. It includes the writing:
           on our side the feed is done some 30 ms after the last commit, so that this is mostly the speed of our writes
    held   the consumer is held up while the rows are committed; the clock starts when it goes on. It includes no writing. Their
           engine stays connected and has its queue and a socket full; ours opens its feed again and has to fetch everything

The same rows of 8 columns go to both sides, in transactions of the same size, from the same number of connections. Their
consumer gets an event as JSON without a schema (`bench._debezium` says how it is tuned), ours record batches of Arrow from
`db.changes`. Both stay attached for the whole contest; the sides take turns, and the first turns warm up the just-in-time
compiler.
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
METRICS = (
    f"events from commit to consumer, live, writing {TXN_ROWS} rows a transaction",
    "events from commit to consumer, which was held up",
)


async def events_figures(directory: Path, *, rows: int, rounds: int) -> list[Figure]:
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
            rates = await _contest(sides, rows=rows, rounds=rounds)
            for reader in readers:
                reader.stop()
            for connection in connections:
                await connection.close()
    finally:
        server.stop()
    return [
        figure("feeds", metric, ours, "events/s", peer="Debezium on PostgreSQL 18", peer_value=theirs, goal=GOAL)
        for metric, (ours, theirs) in zip(METRICS, rates, strict=True)
    ]


async def _prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(TABLE)
    await connection.execute(f"CREATE PUBLICATION {NAME} FOR TABLE mixed")
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{NAME}', 'pgoutput')")


async def _contest(sides: dict[ConsumerProcess, Write], *, rows: int, rounds: int) -> list[list[float]]:
    """Medians: of each side live, and of each side held."""
    template = pa.Table.from_pylist(mixed_rows(rows), schema=arrow_schema(MIXED))
    rates: dict[tuple[bool, ConsumerProcess], list[float]] = {(h, r): [] for h in (False, True) for r in sides}
    first = 0
    for turn in range(WARM_UPS + rounds):
        for held in (False, True) if turn >= WARM_UPS else (False,):
            ids = pa.array(range(first, first + rows), pa.int64())
            first += rows
            table = template.set_column(0, template.schema.field(0), ids)
            for reader, write in sides.items():
                gc.collect()
                rates[held, reader].append(await _round(reader, write, table, held=held))
    return [[statistics.median(rates[held, reader][-rounds:]) for reader in sides] for held in (False, True)]


async def _round(reader: ConsumerProcess, write: Write, table: Any, *, held: bool) -> float:
    """Write a table in transactions and wait until its last row has come."""
    blocks = iter([table.slice(low, TXN_ROWS) for low in range(0, table.num_rows, TXN_ROWS)])

    async def one(number: int) -> None:
        for block in blocks:
            await write(number, block)

    if held:
        reader.hold()
    reader.expect(table.num_rows)
    began = time.monotonic()
    await asyncio.gather(*(one(number) for number in range(WRITERS)))
    if held:
        began = time.monotonic()
        reader.go()
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
