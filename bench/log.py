"""Appends per second, and their latency, for each ordered log at 1, 16 and 256 concurrent appenders.

The peer is the disk itself: append 256 bytes to a file and fdatasync it, one after another, on the same file system
and in turns with the log (so that a noisy neighbor hits both alike). A log that commits one entry per sync has a ratio
of about 1 at best; group commit is what lifts it.

    sqlite     one process, one file
    nats r1    one local server, sync_interval: always
    nats r3    three local servers on this one machine, sync_interval: always: three syncs per commit on one disk

Appenders are tasks of one process, each waiting for its append before it begins the next; all write to one range, which
a tail of the same process reads along, as a replica would. Latency figures are ratios to the time of one fdatasync.
"""

from __future__ import annotations

import asyncio
import gc
import os
import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench.harness import Figure, figure
from slackwater.log import open_log
from slackwater.log.nats_server import LocalNats
from slackwater.model.ids import Position, RangeId
from slackwater.runtime import run as run_main
from slackwater.runtime.clock import RealClock
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.log.contract import OrderedLog

PAYLOAD = b"x" * 256
RANGE = RangeId(1)
GOAL_SQLITE_256 = 8.0


class _Round:
    """One measurement of a log and of the disk beside it."""

    def __init__(self, rate: float, latencies: list[float], disk_rate: float) -> None:
        latencies.sort()
        self.rate = rate
        self.disk_rate = disk_rate
        self.p50_ms = latencies[len(latencies) // 2] * 1e3
        self.p99_ms = latencies[len(latencies) * 99 // 100] * 1e3


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=_disk()))
    try:
        yield from run_main(_all(directory, rounds=3 if quick else 7, appends=1500 if quick else 5000))
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, rounds: int, appends: int) -> list[Figure]:
    figures = await _contest("sqlite", f"sqlite://{directory}/log.db", directory, rounds, appends)
    for servers in (1, 3):
        async with LocalNats(directory / f"nats{servers}", servers=servers, clock=RealClock()) as nats:
            figures += await _contest(f"nats r{servers}", nats.url(stream="bench"), directory, rounds, appends)
    return figures


async def _contest(name: str, url: str, directory: Path, rounds: int, appends: int) -> list[Figure]:
    scope = Scope("bench")
    log = await open_log(url, clock=RealClock(), rng=RealRng(), scope=scope)
    follower = scope.spawn(_follow(log), name="follow")
    figures = []
    for appenders in (1, 16, 256):
        count = max(appends // 10, min(appends, appenders * appends // 16))
        await _append(log, appenders, count // 4)  # warm-up
        results = [await _round(log, appenders, count, directory) for _ in range(rounds)]
        figures += _figures(f"{name}, {appenders} appenders", results, goal=_goal(name, appenders))
    follower.cancel()
    await log.close()
    await scope.close()
    return figures


def _goal(name: str, appenders: int) -> float | None:
    return GOAL_SQLITE_256 if (name, appenders) == ("sqlite", 256) else None


async def _round(log: OrderedLog, appenders: int, count: int, directory: Path) -> _Round:
    gc.collect()
    disk_rate = _fdatasyncs(directory, 200)
    begin = time.perf_counter()
    latencies = await _append(log, appenders, count)
    return _Round(count / (time.perf_counter() - begin), latencies, disk_rate)


async def _append(log: OrderedLog, appenders: int, count: int) -> list[float]:
    """Append `count` entries; the latency of each."""
    latencies: list[float] = []
    tickets = iter(range(count))

    async def appender() -> None:
        for _ in tickets:
            begin = time.perf_counter()
            await log.append(RANGE, [PAYLOAD])
            latencies.append(time.perf_counter() - begin)

    await asyncio.gather(*(appender() for _ in range(appenders)))
    return latencies


async def _follow(log: OrderedLog) -> None:
    async for _ in log.tail(RANGE, after=Position(await log.head(RANGE))):
        pass


def _fdatasyncs(directory: Path, count: int) -> float:
    """Appends with fdatasync per second, straight to a file."""
    path = directory / "raw"
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        begin = time.perf_counter()
        for _ in range(count):
            os.write(descriptor, PAYLOAD)
            os.fdatasync(descriptor)
        return count / (time.perf_counter() - begin)
    finally:
        os.close(descriptor)


def _figures(metric: str, results: list[_Round], *, goal: float | None) -> list[Figure]:
    disk = statistics.median(r.disk_rate for r in results)
    rate = statistics.median(r.rate for r in results)
    peer, sync_ms = "fdatasync", 1e3 / disk
    figures = [figure("log", metric, rate, "appends/s", peer=f"{peer}/s", peer_value=disk, goal=goal)]
    for name in ("p50", "p99"):
        value = statistics.median(getattr(r, f"{name}_ms") for r in results)
        one = figure("log", f"{metric}, {name}", value, "ms", peer=f"one {peer}", peer_value=sync_ms, better="lower")
        figures.append(one)
    return figures


def _disk() -> str | None:
    """A directory on a real disk: /tmp may be in memory, /var/tmp must not be."""
    return "/var/tmp" if os.access("/var/tmp", os.W_OK) else None
