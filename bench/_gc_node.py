"""One real node whose history is collected: what the benchmarks of garbage collection share. Plain keys."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from bench._cpu import cpu_s
from slackwater.codec.layout import kv
from slackwater.errors import SlackwaterError
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
    from collections.abc import AsyncIterator, Iterator, Mapping

    from slackwater.server.remote import Remote

BLOCK = 1_000
PAGE_ROWS = 50_000
VALUE_BYTES = 100
TTL_S = 1.0
LONG_S = 4 * 3600.0
WRITERS = 4
FOREGROUND_TASKS = 16
FOREGROUND_ROWS = 500
SETTINGS = {"queue.interval": 2.0, "gc.interval": 2.0}
"""Sweeps are more frequent than by default, so that the benchmark does not wait for them."""


class Upserts(NamedTuple):
    """How upserts went."""

    rate: float
    """Per second."""
    slowest_ms: float
    """99th percentile of their latency."""
    spent_us: float
    """Processor time of the node for each, with all that it did beside."""


class Server:
    """One node in a process of its own."""

    def __init__(self, directory: Path, settings: Mapping[str, float]) -> None:
        self.directory = directory
        self._settings = {**SETTINGS, **settings}
        self.address = f"127.0.0.1:{free_ports(1)[0]}"
        self._process: subprocess.Popen[bytes] | None = None
        self._end = 0.0
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
        for name, value in self._settings.items():
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
            blocks = iter(range(0, rows, BLOCK))

            async def write(number: int, version: int = version, blocks: Iterator[int] = blocks) -> None:
                draw = random.Random((version << 8) + number)
                for low in blocks:
                    keys = [kv(prefix + b"%08d" % i) for i in range(low, min(rows, low + BLOCK))]
                    noise = draw.randbytes(VALUE_BYTES * len(keys))
                    values = [noise[at : at + VALUE_BYTES] for at in range(0, len(noise), VALUE_BYTES)]
                    await self.remote.kv.put_rows(keys, values)

            await asyncio.gather(*(write(n) for n in range(WRITERS)))

    async def scan_s(self, prefix: bytes, rows: int, *, rounds: int = 3) -> float:
        """Seconds for one scan of a table; the best of some."""
        best = float("inf")
        for _ in range(rounds):
            began, seen = time.perf_counter(), 0
            start: bytes | None = kv(prefix)
            while start is not None:  # in pages: all rows at once are more than one answer holds
                found = await self.remote.kv.scan(start, kv(prefix + b"~"), max_keys=PAGE_ROWS)
                seen, start = seen + len(found.keys), found.resume
            best = min(best, time.perf_counter() - began)
            assert seen == rows, (seen, rows)
        return best

    async def upserts(self, seconds: float) -> Upserts:
        """Single upserts of a few clients at a time, until `enough` is called at the latest."""
        self._end, took = time.perf_counter() + seconds, []

        async def one(number: int) -> None:
            at, draw, now = 0, random.Random(number), time.perf_counter()
            while now < self._end:
                at += 1
                key = kv(b"fg/%02d/%08d" % (number, at % FOREGROUND_ROWS))
                await self.remote.kv.put(key, draw.randbytes(VALUE_BYTES))
                began, now = now, time.perf_counter()
                took.append(now - began)

        began, spent_s = time.perf_counter(), self.cpu_s()
        await asyncio.gather(*(one(n) for n in range(FOREGROUND_TASKS)))
        slowest, spent_s = sorted(took)[len(took) * 99 // 100], self.cpu_s() - spent_s
        return Upserts(len(took) / (time.perf_counter() - began), slowest * 1e3, spent_s / len(took) * 1e6)

    def enough(self) -> None:
        """End the upserts that are under way."""
        self._end = 0.0

    async def garbage(self) -> tuple[int, int]:
        """(versions, garbage bytes) of all ranges of plain keys."""
        answer = await self.dialer.call(self.address, STATUS, StatusRequest(), timeout=10.0)
        stats = [Stats(*r.stats) for r in answer.replicas if r.stats and r.descriptor.start >= kv(b"")[:1]]
        return sum(s.versions for s in stats), sum(s.garbage_bytes for s in stats)

    def cpu_s(self) -> float:
        """Processor time that the process has used."""
        assert self._process is not None, "it runs"
        return cpu_s(self._process.pid)

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
async def served(**settings: float) -> AsyncIterator[Server]:
    """A server and a client of it, for the length of a `with` statement; settings with `_` for `.`."""
    with tempfile.TemporaryDirectory(prefix="slackwater-gc-", dir="/var/tmp") as name:
        server = Server(Path(name), {n.replace("_", ".", 1): value for n, value in settings.items()})
        server.launch()
        try:
            await server.init()
            async with connect([server.address], settings=Settings()) as server.remote:
                yield server
        finally:
            server.stop()
