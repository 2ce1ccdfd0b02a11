"""The client over one node against PostgreSQL 18 with its default, durable settings.

    bulk      `db.upsert(arrow table)`                       Arrow ─► pyarrow.csv ─► COPY … FROM STDIN (FORMAT CSV)
    upserts   `db.upsert(one row)`, a transaction each       INSERT … ON CONFLICT DO UPDATE, prepared, autocommit
    gets      `db.get(key)` ─► a dict                        SELECT … WHERE id = …, prepared ─► a tuple
    scan      `db.scan` ─► pyarrow.Table                     COPY … TO STDOUT (FORMAT CSV) ─► pyarrow.csv ─► Arrow

Both servers run in processes of their own, over loopback TCP; the clients of both are tasks of the benchmark's process and
take turns. The rows are the 8 columns of `bench codec`. Bulk is from one and the same Arrow table to the last
acknowledgement; both sides' clients encode it with vectorized code. The scans bring the same rows to the same Arrow types.
"""

from __future__ import annotations

import gc
import io
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow
from pyarrow import csv as pyarrow_csv

from bench._cluster import ServerProcess
from bench._load import contest, disk
from bench._postgres import Postgres
from bench.codec import MIXED, mixed_rows
from bench.harness import Figure, figure
from bench.writes import BLOCK_ROWS, TABLE
from slackwater.client import aconnect
from slackwater.codec.arrow import arrow_schema
from slackwater.runtime import run as run_main

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator

    import psycopg

    from slackwater.client import AsyncDatabase

pa: Any = pyarrow
csv: Any = pyarrow_csv

PEER = "PostgreSQL 18"
CLIENTS = (1, 32)
STEP = 7919
GOAL_BULK = 0.5
NAMES = [column.name for column in MIXED.columns]
UPSERT = f"INSERT INTO mixed VALUES ({', '.join(['%s'] * len(NAMES))}) ON CONFLICT (id) DO UPDATE SET " + ", ".join(
    f"{name} = EXCLUDED.{name}" for name in NAMES[1:]
)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, quick=quick))
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, quick: bool) -> list[Figure]:
    rows = 50_000 if quick else 200_000
    rounds = 3 if quick else 5
    seconds = 0.5 if quick else 2.0
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with Postgres(directory) as postgres, aconnect(f"slackwater://{server.address}") as db:
            connections = [await postgres.connect() for _ in range(max(CLIENTS))]
            await connections[0].execute(TABLE)
            await db.create_table("mixed", list(MIXED.columns), primary_key=["id"])
            figures = [await _bulk(db, connections[0], rows=rows, rounds=rounds)]
            figures += await _points(db, connections, rows=rows, seconds=seconds, rounds=rounds)
            figures.append(await _scan(db, connections[0], rounds=rounds))
            for connection in connections:
                await connection.close()
            return figures
    finally:
        server.stop()


# --- bulk ------------------------------------------------------------------------------------------------------------


async def _bulk(db: AsyncDatabase, connection: psycopg.AsyncConnection[Any], *, rows: int, rounds: int) -> Figure:
    template = pa.Table.from_pylist(mixed_rows(rows), schema=arrow_schema(MIXED))
    ours: list[float] = []
    theirs: list[float] = []
    for turn in range(rounds + 1):  # the first is the warm-up
        ids = pa.array(range(turn * rows, (turn + 1) * rows), pa.int64())
        table = template.set_column(0, template.schema.field(0), ids)
        gc.collect()
        ours.append(rows / await _timed(db.upsert("mixed", table)))
        theirs.append(rows / await _timed(_copy_in(connection, table)))
    mine, peer = statistics.median(ours[1:]), statistics.median(theirs[1:])
    metric = "bulk upsert from Arrow, 8 columns"
    return figure("client", metric, mine, "rows/s", peer=f"{PEER} COPY", peer_value=peer, goal=GOAL_BULK)


async def _timed(work: Awaitable[object]) -> float:
    begin = time.perf_counter()
    await work
    return time.perf_counter() - begin


async def _copy_in(connection: psycopg.AsyncConnection[Any], table: Any) -> None:
    options = csv.WriteOptions(include_header=False)
    async with connection.cursor() as cursor, cursor.copy("COPY mixed FROM STDIN (FORMAT CSV)") as copy:
        for low in range(0, table.num_rows, BLOCK_ROWS):
            block = pa.BufferOutputStream()
            csv.write_csv(table.slice(low, BLOCK_ROWS), block, options)
            await copy.write(memoryview(block.getvalue()))


# --- points ----------------------------------------------------------------------------------------------------------


async def _points(
    db: AsyncDatabase,
    connections: list[psycopg.AsyncConnection[Any]],
    *,
    rows: int,
    seconds: float,
    rounds: int,
) -> list[Figure]:
    figures = []
    template = mixed_rows(1)[0]
    for clients in CLIENTS:
        for metric, ours, theirs in (
            ("point gets", _our_get(db, rows), _their_get(rows)),
            ("one-row upserts", _our_upsert(db, template, rows), _their_upsert(template, rows)),
        ):
            sides = {"ours": [ours] * clients, "peer": [theirs(c) for c in connections[:clients]]}
            rates = await contest(sides, seconds=seconds, rounds=rounds)
            name = f"{metric}, {clients} clients"
            figures.append(figure("client", name, rates["ours"], "rows/s", peer=PEER, peer_value=rates["peer"]))
    return figures


def _our_get(db: AsyncDatabase, rows: int) -> Callable[[int], Awaitable[object]]:
    return lambda number: db.get("mixed", number * STEP % rows)


def _our_upsert(db: AsyncDatabase, template: dict[str, object], rows: int) -> Callable[[int], Awaitable[object]]:
    return lambda number: db.upsert("mixed", [{**template, "id": number * STEP % rows}])


def _their_get(rows: int) -> Callable[[psycopg.AsyncConnection[Any]], Callable[[int], Awaitable[object]]]:
    def bind(connection: psycopg.AsyncConnection[Any]) -> Callable[[int], Awaitable[object]]:
        async def get(number: int) -> object:
            key = number * STEP % rows
            cursor = await connection.execute("SELECT * FROM mixed WHERE id = %s", (key,), prepare=True)
            return await cursor.fetchone()

        return get

    return bind


def _their_upsert(
    template: dict[str, object], rows: int
) -> Callable[[psycopg.AsyncConnection[Any]], Callable[[int], Awaitable[object]]]:
    values = [template[name] for name in NAMES[1:]]

    def bind(connection: psycopg.AsyncConnection[Any]) -> Callable[[int], Awaitable[object]]:
        async def upsert(number: int) -> object:
            return await connection.execute(UPSERT, (number * STEP % rows, *values), prepare=True)

        return upsert

    return bind


# --- scan ------------------------------------------------------------------------------------------------------------


async def _scan(db: AsyncDatabase, connection: psycopg.AsyncConnection[Any], *, rounds: int) -> Figure:
    ours: list[float] = []
    theirs: list[float] = []
    schema = arrow_schema(MIXED)
    for _ in range(rounds + 1):
        gc.collect()
        begin = time.perf_counter()
        found = await db.scan("mixed")
        ours.append(found.num_rows / (time.perf_counter() - begin))
        begin = time.perf_counter()
        copied = await _copy_out(connection, schema)
        theirs.append(copied.num_rows / (time.perf_counter() - begin))
        assert found.num_rows == copied.num_rows, (found.num_rows, copied.num_rows)
    mine, peer = statistics.median(ours[1:]), statistics.median(theirs[1:])
    metric = "scan to Arrow, 8 columns"
    return figure("client", metric, mine, "rows/s", peer=f"{PEER} COPY to Arrow", peer_value=peer)


async def _copy_out(connection: psycopg.AsyncConnection[Any], schema: Any) -> Any:
    text = io.BytesIO()
    async with connection.cursor() as cursor, cursor.copy("COPY mixed TO STDOUT (FORMAT CSV)") as copy:
        async for block in copy:
            text.write(block)
    text.seek(0)
    types = {field.name: pa.string() if pa.types.is_boolean(field.type) else field.type for field in schema}
    read = csv.read_csv(
        text,
        read_options=csv.ReadOptions(column_names=NAMES),
        convert_options=csv.ConvertOptions(column_types=types),
    )
    paid = pa.compute.equal(read.column("paid"), "t")
    return read.set_column(NAMES.index("paid"), "paid", paid)
