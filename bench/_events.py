"""Events from commit to consumer: our feed beside Debezium's embedded engine on PostgreSQL 18's logical decoding.

    writer ── transactions of 1000 rows ──►  server  ──►  consumer in a process of its own          both sides alike

    live   the clock starts with the first transaction and stops when its consumer has the last row. It includes the writing:
           on our side the feed is done some 30 ms after the last commit, so that this is mostly the speed of our writes
    held   the consumer is held up while the rows are committed; the clock starts when it goes on. It includes no writing. Their
           engine stays connected and has its queue and a socket full; ours opens its feed again and has to fetch everything
    work   processor time of server and consumer together per event of the live rounds, writing included. Their side is four
           processes and more threads, ours is two: on a machine that others use as well theirs gets the larger share, so the
           rates say less there than this does

The same rows of 8 columns go to both sides, in transactions of the same size, from the same number of connections. Their
consumer gets an event as JSON without a schema (`bench._debezium` says how it is tuned), ours record batches of Arrow from
`db.changes`. Both stay attached for the whole contest; the sides take turns, each first in every other, and the first turns warm
up the just-in-time compiler. A figure is the median of the ratios of two turns that were neighbors.
"""

from __future__ import annotations

import asyncio
import gc
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow
from pyarrow import csv as pyarrow_csv

from bench._cluster import ServerProcess
from bench._cpu import cpu_s, family_cpu_s
from bench._debezium import debezium
from bench._event_reader import event_reader
from bench._postgres import Postgres
from bench.codec import MIXED, mixed_rows
from bench.harness import Figure, figure
from bench.writes import TABLE
from slackwater.client import aconnect
from slackwater.codec.arrow import arrow_schema

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
LIVE = f"events from commit to consumer, live, writing {TXN_ROWS} rows a transaction"
HELD = "events from commit to consumer, which was held up"
WORK = "processor time per event, live, server and consumer"
PEER = "Debezium on PostgreSQL 18"
WORK_GOAL = 0.5


class Turn(NamedTuple):
    """What one side did in one turn."""

    rate: float
    cpu_us: float


class Side(NamedTuple):
    """One of the two."""

    reader: ConsumerProcess
    write: Write
    server_pid: int


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
            sides = [
                Side(readers[0], _ours(db), server.pid),
                Side(readers[1], _theirs(connections), postgres.pid),
            ]
            live, held = await _contest(sides, rows=rows, rounds=rounds)
            for reader in readers:
                reader.stop()
            for connection in connections:
                await connection.close()
    finally:
        server.stop()
    return [
        _figure(LIVE, [(ours.rate, theirs.rate) for ours, theirs in live], "events/s", goal=GOAL, better="higher"),
        _figure(HELD, [(ours.rate, theirs.rate) for ours, theirs in held], "events/s", goal=GOAL, better="higher"),
        _figure(WORK, [(ours.cpu_us, theirs.cpu_us) for ours, theirs in live], "us", goal=WORK_GOAL, better="lower"),
    ]


def _figure(metric: str, pairs: list[tuple[float, float]], unit: str, *, goal: float, better: str) -> Figure:
    base = statistics.median(theirs for _, theirs in pairs)
    value = base * statistics.median(ours / theirs for ours, theirs in pairs)
    return figure("feeds", metric, value, unit, peer=PEER, peer_value=base, goal=goal, better=better)


async def _prepare(connection: psycopg.AsyncConnection[Any]) -> None:
    await connection.execute(TABLE)
    await connection.execute(f"CREATE PUBLICATION {NAME} FOR TABLE mixed")
    await connection.execute(f"SELECT pg_create_logical_replication_slot('{NAME}', 'pgoutput')")


async def _contest(sides: list[Side], *, rows: int, rounds: int) -> list[list[tuple[Turn, Turn]]]:
    """(ours, theirs) turn by turn: live, and held."""
    template = pa.Table.from_pylist(mixed_rows(rows), schema=arrow_schema(MIXED))
    turns: list[list[tuple[Turn, Turn]]] = [[], []]
    first = 0
    for turn in range(WARM_UPS + rounds):
        for held in (False, True) if turn >= WARM_UPS else (False,):
            ids = pa.array(range(first, first + rows), pa.int64())
            first += rows
            table = template.set_column(0, template.schema.field(0), ids)
            done: dict[int, Turn] = {}
            for at in (0, 1) if turn % 2 else (1, 0):
                gc.collect()
                done[at] = await _turn(sides[at], table, held=held)
            if turn >= WARM_UPS:
                turns[held].append((done[0], done[1]))
    return turns


async def _turn(side: Side, table: Any, *, held: bool) -> Turn:
    """Write a table in transactions and wait until its last row has come."""
    reader = side.reader
    blocks = iter([table.slice(low, TXN_ROWS) for low in range(0, table.num_rows, TXN_ROWS)])

    async def one(number: int) -> None:
        for block in blocks:
            await side.write(number, block)

    if held:
        reader.hold()
    reader.expect(table.num_rows)
    spent, began = family_cpu_s(side.server_pid) + cpu_s(reader.pid), time.monotonic()
    await asyncio.gather(*(one(number) for number in range(WRITERS)))
    if held:
        began = time.monotonic()
        reader.go()
    rate = table.num_rows / (await asyncio.to_thread(reader.came) - began)
    spent = family_cpu_s(side.server_pid) + cpu_s(reader.pid) - spent
    return Turn(float(rate), spent / table.num_rows * 1e6)


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
