"""Protected timestamps: pairs of protect and release, what they leave behind, and a node's copy at the limits.

pairs        of protect and release per second, one after the other / single upserts
left         records after 10 000 pairs (none)
tracker      bytes of a node's copy of 512 records with 4096 spans
"""

from __future__ import annotations

import asyncio
import time
import tracemalloc
from typing import TYPE_CHECKING

import slackwater
from bench._gc_node import served
from bench.harness import figure
from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import kv
from slackwater.errors import SlackwaterError
from slackwater.model.protection import Metadata, Mode, Record, State
from slackwater.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench._gc_node import Server
    from bench.harness import Figure


async def measured(cycles: int) -> list[Figure]:
    async with served() as server:
        return await _protections(server, cycles)


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
    return figure("protections", metric, value, unit, peer=peer, peer_value=peer_value, goal=goal, better=better)


def run(*, quick: bool) -> Iterator[Figure]:
    """Every figure; `quick` is a smoke test."""
    try:
        yield from asyncio.run(measured(20 if quick else 10_000))
    except SlackwaterError as error:
        raise SystemExit(f"protections: {error}") from error
