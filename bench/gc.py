"""Garbage collection: what it costs while it runs, and what it gives back. One real node per store; plain keys.

foreground   upserts per second while a range with a hundred versions of each row is collected / without collecting
disk         bytes of the store's files once 99 of 100 versions are gone / those of a store that was only ever given the rows
scan         seconds for a scan of the whole table after collecting / of a fresh table with the same rows
deep scan    the same for a table of 20 versions: before collecting / fresh, and after / fresh
collected    versions per second, from the first deletion to the last, with nothing else to do
protect      pairs of protect and release per second; what 10 000 of them leave behind (0); memory of a node's copy at the limits
"""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
import tracemalloc
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import slackwater
from bench.harness import figure
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import SlackwaterError
from slackwater.model.protection import Metadata, Mode, Record, State
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.node.services import INIT, STATUS, InitRequest, StatusRequest
from slackwater.runtime import Scope
from slackwater.runtime.ports import free_ports
from slackwater.runtime.real import RealRuntime
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.server.remote import connect
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from bench.harness import Figure
    from slackwater.server.remote import Remote

BLOCK = 1_000
VALUE_BYTES = 100
TTL_S = 1.0
LONG_S = 4 * 3600.0
FOREGROUND_S = 8.0
FOREGROUND_TASKS = 16
FOREGROUND_ROWS = 500
SETTINGS = {"queue.interval": 2.0, "gc.interval": 2.0, "range.max_bytes": float(1 << 30), "range.max_requests": 0.0}


class Server:
    """One node in a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[bytes] | None = None
        self.remote: Remote

    def launch(self) -> None:
        """Start the process."""
        command = [sys.executable, "-m", "slackwater.cli.main", "start", "--insecure", "--http", "none"]
        command += [
            "--store",
            str(self.directory / "n1"),
            "--listen",
            self.address,
            "--log",
            f"sqlite://{self.directory}/log.db",
        ]
        for name, value in SETTINGS.items():
            command += ["--set", f"{name}={value}"]
        with (self.directory / "journal").open("ab") as journal:
            self._process = subprocess.Popen(command, stdout=journal, stderr=journal, stdin=subprocess.DEVNULL)

    def stop(self) -> None:
        """End it in order: everything becomes durable."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait()
            self._process = None

    async def init(self) -> None:
        """Make a cluster of it."""
        runtime = RealRuntime(disk=RocksDisk(Path(), sleep=asyncio.sleep))
        scope = Scope("bench")
        self.dialer = Dialer(runtime, scope, identity=Identity(), settings=Settings())
        for _ in range(200):
            try:
                await self.dialer.call(self.address, INIT, InitRequest(), timeout=10.0)
            except SlackwaterError:
                await asyncio.sleep(0.1)
            else:
                return
        raise RuntimeError((self.directory / "journal").read_text())

    async def fill(self, prefix: bytes, rows: int, versions: int) -> None:
        """Write every row so many times."""
        for version in range(versions):
            draw = random.Random(version)
            for low in range(0, rows, BLOCK):
                keys = [kv(prefix + b"%08d" % i) for i in range(low, min(rows, low + BLOCK))]
                await self.remote.kv.put_rows(keys, [draw.randbytes(VALUE_BYTES) for _ in keys])

    async def scan_s(self, prefix: bytes, rows: int, *, rounds: int = 3) -> float:
        """Seconds for one scan of a table; the best of some."""
        best = float("inf")
        for _ in range(rounds):
            began = time.perf_counter()
            found = await self.remote.kv.scan(kv(prefix), kv(prefix + b"~"))
            best = min(best, time.perf_counter() - began)
            assert len(found.keys) == rows, (len(found.keys), rows)
        return best

    async def upserts(self, seconds: float) -> float:
        """Single upserts per second, of a few clients at a time."""
        end, done = time.perf_counter() + seconds, 0

        async def one(number: int) -> None:
            nonlocal done
            at, draw = 0, random.Random(number)
            while time.perf_counter() < end:
                at += 1
                await self.remote.kv.put(
                    kv(b"fg/%02d/%08d" % (number, at % FOREGROUND_ROWS)), draw.randbytes(VALUE_BYTES)
                )
                done += 1

        began = time.perf_counter()
        await asyncio.gather(*(one(n) for n in range(FOREGROUND_TASKS)))
        return done / (time.perf_counter() - began)

    async def garbage(self) -> tuple[int, int]:
        """(versions, garbage bytes) of all ranges of plain keys."""
        answer = await self.dialer.call(self.address, STATUS, StatusRequest(), timeout=10.0)
        stats = [Stats(*r.stats) for r in answer.replicas if r.stats and r.descriptor.start >= kv(b"")[:1]]
        return sum(s.versions for s in stats), sum(s.garbage_bytes for s in stats)

    async def ttl(self, seconds: float) -> None:
        """Keep history of everything for so long."""
        await change_zone(self.remote.kv, b"", b"", gc_ttl_s=seconds)

    async def collected(self, versions: int, *, within_s: float) -> float:
        """Seconds until there are no more versions than that."""
        began = time.perf_counter()
        while (await self.garbage())[0] > versions:
            assert time.perf_counter() - began < within_s, await self.garbage()
            await asyncio.sleep(0.1)
        return time.perf_counter() - began

    def disk_bytes(self) -> int:
        """Of the store's tables on disk."""
        return sum(f.stat().st_size for f in (self.directory / "n1").rglob("*.sst"))


@asynccontextmanager
async def served() -> AsyncIterator[Server]:
    """A server and a client of it, for the length of a `with` statement."""
    with tempfile.TemporaryDirectory() as name:
        server = Server(Path(name))
        server.launch()
        try:
            await server.init()
            async with connect([server.address], settings=Settings()) as server.remote:
                yield server
        finally:
            server.stop()


async def measured(*, rows: int, versions: int, cycles: int) -> list[Figure]:
    figures: list[Figure] = []
    async with served() as fresh, served() as old:
        await fresh.fill(b"t", rows, 1)
        await fresh.fill(b"u", rows, 1)
        for number in range(FOREGROUND_TASKS):
            await fresh.fill(b"fg/%02d/" % number, FOREGROUND_ROWS, 1)
        await old.ttl(LONG_S)
        await old.fill(b"u", rows, 20)
        fresh_scan, deep = await fresh.scan_s(b"u", rows), await old.scan_s(b"u", rows)
        figures.append(_figure("deep scan before", deep, "s", "fresh", fresh_scan))
        await old.ttl(TTL_S)
        await old.collected(rows + 100, within_s=300)
        figures.append(_figure("deep scan after", await old.scan_s(b"u", rows), "s", "fresh", fresh_scan, goal=1.2))
        await old.ttl(LONG_S)
        await old.fill(b"t", rows, versions)
        figures += await _foreground(old)
        before, _ = await old.garbage()
        seconds = await old.collected(2 * rows + FOREGROUND_ROWS * FOREGROUND_TASKS, within_s=900)
        after, _ = await old.garbage()
        rate = (before - after) / max(seconds, 0.1)
        figures.append(_figure("collected", rate, "versions/s", "versions to go", float(before - after)))
        figures.append(
            _figure("scan after", await old.scan_s(b"t", rows), "s", "fresh", await fresh.scan_s(b"t", rows), goal=1.2)
        )
        await asyncio.sleep(10)  # files are compacted by a later sweep
        figures.append(await _disk(old, fresh))
    async with served() as other:
        figures += await _protections(other, cycles)
    return figures


async def _foreground(server: Server) -> list[Figure]:
    """With and without collecting, in turns: a long and a short time to live."""
    with_gc, without = [], []
    await server.upserts(2.0)
    before, _ = await server.garbage()
    for _ in range(2):
        without.append(await server.upserts(FOREGROUND_S / 2))
        await server.ttl(TTL_S)
        await asyncio.sleep(6)  # until the worker is at it
        with_gc.append(await server.upserts(FOREGROUND_S / 2))
        await server.ttl(LONG_S)
    after, _ = await server.garbage()
    await server.ttl(TTL_S)
    metric = f"foreground upserts while {before - after} versions went"
    return [_figure(metric, max(with_gc), "1/s", "without gc", max(without), goal=0.9, better="higher")]


async def _disk(old: Server, fresh: Server) -> Figure:
    """Both stores stopped, so that everything is in files."""
    sizes = []
    for server in (old, fresh):
        await asyncio.to_thread(server.stop)
        sizes.append(server.disk_bytes())
    return _figure("disk after", sizes[0], "bytes", "fresh", sizes[1], goal=1.5)


async def _protections(server: Server, cycles: int) -> list[Figure]:
    async with slackwater.aconnect(f"slackwater://{server.address}", timeout=60) as db:
        await db.create_table("p", {"id": "int8"}, primary_key="id")
        await asyncio.sleep(0.5)
        began = time.perf_counter()
        for _ in range(cycles):
            await db.release(await db.protect("p", at="-0.1s"))
        rate = cycles / (time.perf_counter() - began)
        put = time.perf_counter()
        for _ in range(200):
            await db.upsert("p", [{"id": 1}])
        puts = 200 / (time.perf_counter() - put)
        left = len(await db.protections())
    tracemalloc.start()
    before, _ = tracemalloc.get_traced_memory()
    state = _at_the_limits()
    memory = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    return [
        _figure("protect and release", rate, "pairs/s", "upserts, one at a time", puts, better="higher"),
        _figure(f"left by {cycles} pairs", float(left), "records", "none", 1.0, goal=0.0),
        _figure("tracker at the limits", memory, "bytes", f"{len(state.records)} records", float(len(state.records))),
    ]


def _at_the_limits() -> State:
    """512 records with 4096 spans."""
    records = tuple(
        Record(
            i.to_bytes(16, "big"),
            Timestamp(1 << 60),
            Mode.AT,
            "job",
            b"m" * 32,
            tuple(Span(kv(b"%04d/%d" % (i, j)), kv(b"%04d/%d~" % (i, j))) for j in range(8)),
        )
        for i in range(512)
    )
    return State(Metadata(1, len(records), 8 * len(records)), records, Timestamp(1 << 60))


def _figure(
    metric: str,
    value: float,
    unit: str,
    peer: str,
    peer_value: float,
    *,
    goal: float | None = None,
    better: str = "lower",
) -> Figure:
    return figure("gc", metric, value, unit, peer=peer, peer_value=peer_value, goal=goal, better=better)


def run(*, quick: bool) -> Iterator[Figure]:
    """Every figure; `quick` is a smoke test."""
    rows, versions, cycles = (1_000, 10, 20) if quick else (20_000, 100, 10_000)
    try:
        yield from asyncio.run(measured(rows=rows, versions=versions, cycles=cycles))
    except SlackwaterError as error:
        raise SystemExit(f"gc: {error}") from error
