"""Upserts of 16 clients beside garbage collection at full speed / without it. One real node, two minutes.

Each round fills a table with old versions, measures without collecting, shortens the time to live, waits until versions go, and
measures again; then everything is collected before the next round. The figure is the median of the pairs.

upserts      per second while collecting / without
slowest      99th percentile of their latency while collecting / without
collected    versions per second beside these upserts / upserts: above 1 the node keeps up with its own garbage
spent        processor time of the node for each collected version / for each upsert without collecting: says what collecting
             costs also on a machine that is busy elsewhere, where rates say little
"""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING, NamedTuple

from bench._gc_node import FOREGROUND_ROWS, FOREGROUND_TASKS, LONG_S, TTL_S, served
from bench.harness import figure, progress
from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench._gc_node import Server, Upserts
    from bench.harness import Figure

BEGUN_S_MAX = 60.0


class Round(NamedTuple):
    """One pair."""

    without: Upserts
    beside: Upserts
    collected: float
    """Versions per second meanwhile."""


async def measured(*, rows: int, versions: int, rounds: int, seconds: float) -> list[Figure]:
    async with served() as server:
        for number in range(FOREGROUND_TASKS):
            await server.fill(b"fg/%02d/" % number, FOREGROUND_ROWS, 1)
        await server.upserts(seconds / 2)
        pairs: list[Round] = []
        for number in range(rounds):
            pairs.append(pair := await _round(server, rows, versions, seconds))
            told = f"{pair.beside.rate:.0f} beside {pair.collected:.0f} collected/s, {pair.without.rate:.0f} without"
            progress(f"gc_beside: round {number + 1} of {rounds}: {told}")
    rates = [p.beside.rate / p.without.rate for p in pairs]
    error = statistics.stdev(rates) / len(rates) ** 0.5 if len(rates) > 1 else None
    without = statistics.median(p.without.rate for p in pairs)
    beside = statistics.median(rates) * without
    slow = statistics.median(p.without.slowest_ms for p in pairs)
    gone = statistics.median(p.collected for p in pairs)
    alone = statistics.median(p.without.spent_us for p in pairs)
    each = statistics.median((p.beside.spent_us - p.without.spent_us) * p.beside.rate / p.collected for p in pairs)
    return [
        figure("gc_beside", "upserts beside collecting", beside, "1/s", peer="without", peer_value=without,
               goal=0.9, error=error),
        figure("gc_beside", "slowest in a hundred", statistics.median(p.beside.slowest_ms for p in pairs), "ms",
               peer="without", peer_value=slow, better="lower"),
        figure("gc_beside", "collected beside them", gone, "versions/s", peer="upserts", peer_value=beside),
        figure("gc_beside", "spent on a collected version", each, "us", peer="on an upsert", peer_value=alone, better="lower"),
    ]  # fmt: skip


async def _round(server: Server, rows: int, versions: int, seconds: float) -> Round:
    await server.ttl(LONG_S)
    await server.fill(b"t", rows, versions)
    without = await server.upserts(seconds)
    await server.ttl(TTL_S)
    before, _ = await server.garbage()
    during = asyncio.ensure_future(server.upserts(BEGUN_S_MAX))  # collecting begins beside work, as it does in life
    while (await server.garbage())[0] >= before:
        before, _ = await server.garbage()
        await asyncio.sleep(0.1)
    server.enough()
    await during
    before, _ = await server.garbage()
    beside = await server.upserts(seconds)
    after, _ = await server.garbage()
    assert after > rows, "there was something to collect throughout; make it more"
    gone = before + beside.rate * seconds - after
    await server.collected(rows + FOREGROUND_TASKS * FOREGROUND_ROWS + rows // 10, within_s=120)
    return Round(without, beside, gone / seconds)


def run(*, quick: bool) -> Iterator[Figure]:
    """Every figure; `quick` is a smoke test."""
    rows, versions, rounds, seconds = (1_000, 20, 1, 0.5) if quick else (20_000, 15, 5, 6.0)
    try:
        yield from asyncio.run(measured(rows=rows, versions=versions, rounds=rounds, seconds=seconds))
    except SlackwaterError as error:
        raise SystemExit(f"gc_beside: {error}") from error
