"""Schema changes beside traffic, and what indexes and leases cost. One real node in a process of its own.

create index   rows per second of CREATE UNIQUE INDEX on a table that takes 500 upserts a second meanwhile, beside PostgreSQL 18's
CREATE UNIQUE INDEX CONCURRENTLY under the same load in the same run (goal: half of its speed)
upserts' p99   of those upserts while the index is built / without (goal: 2 at most); PostgreSQL's beside it
lookup         time of `db.get(by=)` over a unique index / of `db.get` by primary key (goal: 2.2 at most)
upserts        per second of a table with one and with three indexes / with none
lease          time that taking and giving back a lease takes / time of a whole upsert, on one processor (goal: 1 % at most)
acquisitions   leases written to `system.lease` per second, one after the other, each in a transaction of its own
"""

from __future__ import annotations

import asyncio
import random
import shutil
import statistics
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from bench._cluster import ServerProcess
from bench._load import disk
from bench._postgres import Postgres
from bench.harness import Figure, figure
from slackwater.catalog.leases import LeaseBook
from slackwater.client import aconnect
from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.log.memory import MemoryLog
from slackwater.model.descriptors import Epoch, Liveness
from slackwater.model.ids import NodeId
from slackwater.protocol.client.calls import ColumnSpec, KeySpec
from slackwater.runtime import LocalNet, RealRuntime
from slackwater.runtime import run as run_main
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk, MemoryEngine

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from slackwater.client import AsyncDatabase
    from slackwater.model.tables import TableDescriptor
    from slackwater.server.member import Member

UPSERTS_PER_S = 500
REST_S = 15.0
"""After the rows were loaded, before anything is timed: what either does for them in the background comes to an end."""
QUIET_S = 8.0
BATCH = 16_384
CONNECTIONS = 16
IN_FLIGHT_MAX = 64
LOOKUPS = 3_000
WRITES = 3_000
WRITERS = 16
LEASES = 300
TABLE = "CREATE TABLE people (id bigint PRIMARY KEY, email text, balance bigint, note text)"
UPSERT = (
    "INSERT INTO people VALUES (%s, %s, %s, %s) ON CONFLICT (id) DO UPDATE SET email = excluded.email,"
    " balance = excluded.balance, note = excluded.note"
)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(_all(directory, rows=50_000 if quick else 1_000_000))
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, rows: int) -> list[Figure]:
    theirs = await _postgres(directory, rows)
    async with _one_node(directory) as db:
        figures = _beside(rows, await _ours(db, rows), theirs)
        figures += await _lookups(db, rows)
        figures += await _indexed(db)
    return [*figures, *await _leases()]


async def create_index(directory: Path, *, rows: int) -> list[Figure]:
    """The figures of CREATE INDEX beside upserts alone: `bench.create_index`."""
    theirs = await _postgres(directory, rows)
    async with _one_node(directory) as db:
        return _beside(rows, await _ours(db, rows), theirs)


def _beside(rows: int, ours: Built, theirs: Built) -> list[Figure]:
    return [
        figure(
            "schema",
            f"create index on {rows} rows beside {UPSERTS_PER_S} upserts/s",
            rows / ours.seconds,
            "rows/s",
            peer="PostgreSQL 18, create unique index concurrently",
            peer_value=rows / theirs.seconds,
            goal=0.5,
        ),
        figure(
            "schema",
            "p99 of those upserts while the index is built",
            ours.p99_ms,
            "ms",
            peer="without",
            peer_value=ours.quiet_p99_ms,
            goal=2.0,
            better="lower",
        ),
        figure(
            "schema",
            "the same of PostgreSQL 18",
            theirs.p99_ms,
            "ms",
            peer="without",
            peer_value=theirs.quiet_p99_ms,
            better="lower",
        ),
        figure(
            "schema",
            "upserts that were made beside it",
            ours.upserts_per_s,
            "rows/s",
            peer="PostgreSQL 18",
            peer_value=theirs.upserts_per_s,
        ),
    ]


class Built:
    """An index that was built beside upserts."""

    def __init__(self, seconds: float, quiet_ms: list[float], beside_ms: list[float]) -> None:
        self.seconds = seconds
        self.upserts_per_s = len(beside_ms) / seconds
        self.quiet_p99_ms = _p99(quiet_ms)
        self.p99_ms = _p99(beside_ms)


def _p99(times_ms: list[float]) -> float:
    return statistics.quantiles(times_ms, n=100)[98]


def person(number: int) -> dict[str, Any]:
    """A row; no two have one email."""
    return {
        "id": number,
        "email": f"{number * 2_654_435_761 % (1 << 32):010d}@x",
        "balance": number % 1000,
        "note": "x" * 40,
    }


class Load:
    """Upserts at a fixed rate, each timed from when it was due; while `IN_FLIGHT_MAX` of them are under way it waits."""

    def __init__(self, upsert: Callable[[dict[str, Any]], Awaitable[object]], rows: int) -> None:
        self._upsert = upsert
        self._rows = rows
        self._random = random.Random(5)
        self.times_ms: list[float] = []
        self._in_flight = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._task = asyncio.create_task(self._main())

    async def _main(self) -> None:
        begin, number = time.perf_counter(), 0
        async with asyncio.TaskGroup() as tasks:
            while True:
                due = begin + number / UPSERTS_PER_S
                if (wait := due - time.perf_counter()) > 0:
                    await asyncio.sleep(wait)
                if self._in_flight.locked():
                    await self._in_flight.acquire()
                    begin, number = time.perf_counter(), 0
                    due = begin
                else:
                    await self._in_flight.acquire()
                tasks.create_task(self._one(due))
                number += 1

    async def _one(self, due: float) -> None:
        row = person(self._random.randrange(self._rows)) | {"balance": self._random.randrange(1000)}
        try:
            await self._upsert(row)
        finally:
            self._in_flight.release()
        self.times_ms.append((time.perf_counter() - due) * 1000)

    def take(self) -> list[float]:
        """What was timed since the last call."""
        taken, self.times_ms = self.times_ms, []
        return taken

    async def stop(self) -> None:
        """End it."""
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _built(load: Load, build: Callable[[], Awaitable[object]]) -> Built:
    try:
        await asyncio.sleep(QUIET_S / 4)
        load.take()
        await asyncio.sleep(QUIET_S)
        quiet = load.take()
        began = time.perf_counter()
        await build()
        seconds = time.perf_counter() - began
        return Built(seconds, quiet, load.take())
    finally:
        await load.stop()


# --- PostgreSQL


async def _postgres(directory: Path, rows: int) -> Built:
    async with Postgres(directory) as postgres:
        first = await postgres.connect()
        await first.execute(TABLE)
        async with first.cursor() as cursor, cursor.copy("COPY people FROM STDIN") as copy:
            for number in range(rows):
                await copy.write_row(tuple(person(number).values()))
        await first.execute("VACUUM ANALYZE people")
        free: asyncio.Queue[Any] = asyncio.Queue()
        connections = [await postgres.connect() for _ in range(CONNECTIONS)]
        for connection in connections:
            free.put_nowait(connection)

        async def upsert(row: dict[str, Any]) -> None:
            connection = await free.get()
            try:
                await connection.execute(UPSERT, tuple(row.values()))
            finally:
                free.put_nowait(connection)

        await asyncio.sleep(REST_S)
        try:
            return await _built(
                Load(upsert, rows), lambda: first.execute("CREATE UNIQUE INDEX CONCURRENTLY by_email ON people (email)")
            )
        finally:
            for connection in [first, *connections]:
                await connection.close()


# --- ours


@asynccontextmanager
async def _one_node(directory: Path) -> AsyncIterator[AsyncDatabase]:
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with aconnect(f"slackwater://{server.address}", timeout=600) as db:
            yield db
    finally:
        server.stop()


async def _ours(db: AsyncDatabase, rows: int) -> Built:
    columns = {"id": "int8", "email": "text", "balance": "int8", "note": "text"}
    await db.create_table("people", columns, primary_key="id")
    for low in range(0, rows, BATCH):
        chunk = [person(number) for number in range(low, min(rows, low + BATCH))]
        await db.upsert("people", pa.Table.from_pylist(chunk))
    await asyncio.sleep(REST_S)
    load = Load(lambda row: db.upsert("people", [row]), rows)
    return await _built(load, lambda: db.create_index("people", "by_email", "email", unique=True))


async def _lookups(db: AsyncDatabase, rows: int) -> list[Figure]:
    """One after the other, by turns."""
    draw = random.Random(7)
    by_key, by_index = 0.0, 0.0
    for _ in range(LOOKUPS):
        row = person(draw.randrange(rows))
        began = time.perf_counter()
        assert await db.get("people", row["id"]) is not None
        between = time.perf_counter()
        assert await db.get("people", row["email"], by="by_email") is not None
        by_key, by_index = by_key + between - began, by_index + time.perf_counter() - between
    return [
        figure(
            "schema",
            "lookup by a unique index",
            by_index / LOOKUPS * 1e6,
            "us",
            peer="get by primary key",
            peer_value=by_key / LOOKUPS * 1e6,
            goal=2.2,
            better="lower",
        )
    ]


async def _indexed(db: AsyncDatabase) -> list[Figure]:
    """Upserts of rows that are there, each by itself, into tables with none, one and three indexes, by turns."""
    columns = {"id": "int8", "a": "int8", "b": "int8", "c": "int8"}
    tables = {count: f"with{count}" for count in (0, 1, 3)}
    for count, name in tables.items():
        await db.create_table(name, columns, primary_key="id")
        for column in "abc"[:count]:
            await db.create_index(name, f"by_{column}", column)
        await db.upsert(name, [{"id": n, "a": n, "b": n, "c": n} for n in range(1_000)])
    seconds = dict.fromkeys(tables, 0.0)
    for turn in range(4):
        for count, name in tables.items():
            began = time.perf_counter()
            await asyncio.gather(*(_upserts(db, name, WRITES // WRITERS // 4, turn * 100 + w) for w in range(WRITERS)))
            seconds[count] += time.perf_counter() - began
    rates = {count: WRITES / spent for count, spent in seconds.items()}
    return [
        figure(
            "schema",
            f"upserts with {count} index{'es' if count > 1 else ''}",
            rates[count],
            "rows/s",
            peer="with none",
            peer_value=rates[0],
        )
        for count in (1, 3)
    ]


async def _upserts(db: AsyncDatabase, name: str, count: int, seed: int) -> None:
    draw = random.Random(seed)
    for _ in range(count):
        number = draw.randrange(1_000)
        await db.upsert(name, [{"id": number, "a": draw.randrange(1 << 30), "b": number, "c": draw.randrange(1 << 30)}])


# --- leases


async def _leases() -> list[Figure]:
    net = LocalNet(Settings())
    runtime = RealRuntime(disk=MemoryDisk(), net=net, settings=Settings())
    log = MemoryLog("bench", rng=runtime.rng)
    scope = runtime.scope("node")
    node = Node(
        runtime=runtime, scope=scope, engine=MemoryEngine(), log=log.handle(), address="n1:7400", settings=Settings()
    )
    await node.start()
    await node.init()
    member = await node.joined()
    try:
        columns, key = (ColumnSpec("id", _int()),), (KeySpec("id"),)
        made = [await member.catalog.create(f"t{number}", columns, key) for number in range(LEASES)]
        leases = member.catalog.leases
        began = time.perf_counter()
        for table in made:
            (await leases.take(table.table_id, 1)).give_back()
        acquired = LEASES / (time.perf_counter() - began)
        upsert_s = await _upsert_s(member, made[0])
    finally:
        await node.stop()
        await scope.close()
        runtime.close()
    taken_s = _take_s(made[0])
    return [
        figure("schema", "lease acquisitions", acquired, "leases/s", peer="one", peer_value=1.0),
        figure(
            "schema",
            "taking and giving back a lease",
            taken_s * 1e6,
            "us",
            peer="a put of one row on the same node, without network, disk or client",
            peer_value=upsert_s * 1e6,
            goal=0.01,
            better="lower",
        ),
    ]


def _int() -> Any:
    from slackwater.model.kinds import INT

    return INT


async def _upsert_s(member: Member, table: TableDescriptor) -> float:
    """The cheapest write there is on this node: less work than any upsert that takes a lease."""
    from slackwater.codec.rows import RowCodec

    codec = RowCodec(table.schema)
    pairs = [codec.encode({"id": number}) for number in range(2_000)]
    began = time.process_time()
    for key, value in pairs:
        await member.kv.put(key, value)
    return (time.process_time() - began) / len(pairs)


def _take_s(table: TableDescriptor) -> float:
    """What a write does with the lease that its gateway holds already."""
    book, count = LeaseBook(), 200_000
    book.renewed(Liveness(NodeId(1), Epoch(1), Timestamp(1 << 60), lease_ms=8000))
    assert book.term is not None
    book.add(table, book.term, since=MIN)
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        for _ in range(count):
            lease = book.usable(table.table_id)
            assert lease is not None
            lease.take()
            assert lease.deadline > 0
            lease.give_back()
        best = min(best, time.perf_counter() - began)
    return best / count
