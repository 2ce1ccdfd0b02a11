"""What a feed costs writers, listened to and not: processor time of the server per autocommit upsert, in turns.

    one feed     a consumer in a process of its own follows what is written, or follows nothing, round by round
    nobody       two servers: in one feeds are as always and nobody listens to what is written; in the other nothing in the
                 node ever registers a feed, not even for its own announcements. Also counted: calls from the write path
                 into the code of feeds, of which there must be none

Processor time, not throughput: writer, server and consumer share the machine, and the consumer's share is its own. Rounds are
short and neighbors are compared (first one side first, then the other), the median of those ratios is the figure: whatever
else the machine does hits both alike.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING, cast

from bench._cluster import ServerProcess
from bench._cpu import cpu_s
from bench._feed_reader import ReaderProcess
from bench.harness import Figure, figure
from slackwater.codec.layout import kv as kv_key
from slackwater.server.remote import connect, connect_kv
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from slackwater.server.remote import Remote
    from slackwater.txn.kv import KV

    Round = Callable[[], Awaitable[float]]

KEYS = 20_000
VALUE = b"v" * 90
STEP = 7919
CLIENTS = (1, 32, 256)
COST_GOAL, NOBODY_GOAL, LAG_SLACK_S = 1.03, 1.01, 0.5
SETTLE_S = 0.1
CALLS_SECONDS = 1.0


async def feed_figures(remote: Remote, server: ServerProcess, *, seconds: float, rounds: int) -> list[Figure]:
    """One feed beside none, and how far it lags."""
    figures: list[Figure] = []
    lags: list[float] = []
    reader = ReaderProcess(server.address)

    for clients in CLIENTS:

        async def without(clients: int = clients) -> float:
            return await _spent(remote.kv, server, clients, seconds)

        async def with_feed(clients: int = clients) -> float:
            await asyncio.to_thread(reader.begin)
            spent = await _spent(remote.kv, server, clients, seconds)
            seen = await asyncio.to_thread(reader.end)
            lags.extend(cast("list[float]", seen["lags"]))
            await asyncio.sleep(SETTLE_S)
            return spent

        metric = f"server CPU per upsert with one feed, {clients} clients"
        figures.append(await _ratio(metric, with_feed, without, peer="no feed", goal=COST_GOAL, rounds=rounds))
    reader.stop()
    limit = describe("closed_timestamp.target_duration").default + LAG_SLACK_S
    worst = sorted(lags)[int(len(lags) * 0.99)]
    peer = f"target_duration + {LAG_SLACK_S} s"
    lag = figure("feeds", "resolved lag, p99", worst, "s", peer=peer, peer_value=limit, goal=1.0, better="lower")
    return [*figures, lag]


async def nobody_figures(directory: Path, *, seconds: float, rounds: int) -> list[Figure]:
    """Feeds that nobody listens to, beside no feeds."""
    servers = [
        ServerProcess(directory / name, f"sqlite://{directory}/{name}.db", feeds=feeds)
        for name, feeds in (("there", True), ("removed", False))
    ]
    there, removed = servers
    try:
        async with connect_kv([there.address]) as kv, connect_kv([removed.address]) as bare:
            figures = [
                await _ratio(
                    f"server CPU per upsert that nobody listens to, {clients} clients",
                    lambda clients=clients: _spent(kv, there, clients, seconds),  # type: ignore[misc]
                    lambda clients=clients: _spent(bare, removed, clients, seconds),  # type: ignore[misc]
                    peer="no feeds in the node",
                    goal=NOBODY_GOAL,
                    rounds=rounds,
                )
                for clients in CLIENTS[:2]
            ]
        return [*figures, await _calls(there)]
    finally:
        for server in servers:
            server.stop()


async def _calls(server: ServerProcess) -> Figure:
    """Calls into feeds by the write path, without and with a listener."""
    reader = ReaderProcess(server.address)
    counts: list[float] = []
    async with connect([server.address]) as remote:
        for listened in (False, True):
            if listened:
                await asyncio.to_thread(reader.begin)
            await asyncio.to_thread(server.count_calls)
            await _write(remote.kv, CLIENTS[1], CALLS_SECONDS)
            writes, feeds = await asyncio.to_thread(server.count_calls)
            counts.append(feeds / max(1, writes))
    await asyncio.to_thread(reader.end)
    reader.stop()
    nobody, somebody = counts
    metric = "calls into feeds per applied run that nobody listens to"
    return figure("feeds", metric, nobody, "calls", peer="one feed", peer_value=somebody, goal=0.0, better="lower")


async def _ratio(metric: str, side: Round, peer_side: Round, *, peer: str, goal: float, rounds: int) -> Figure:
    """The median ratio of neighboring rounds."""
    await side()
    await peer_side()
    ratios: list[float] = []
    peers: list[float] = []
    for turn in range(rounds):
        first = await (side if turn % 2 else peer_side)()
        second = await (peer_side if turn % 2 else side)()
        ours, theirs = (first, second) if turn % 2 else (second, first)
        ratios.append(ours / theirs)
        peers.append(theirs)
    base = statistics.median(peers) * 1e6
    value = base * statistics.median(ratios)
    return figure("feeds", metric, value, "us", peer=peer, peer_value=base, goal=goal, better="lower")


async def _spent(kv: KV, server: ServerProcess, clients: int, seconds: float) -> float:
    """Processor seconds of the server per upsert."""
    began = cpu_s(server.pid)
    rows = await _write(kv, clients, seconds)
    return (cpu_s(server.pid) - began) / rows


async def _write(kv: KV, clients: int, seconds: float) -> int:
    until, rows = time.perf_counter() + seconds, 0

    async def one(client: int) -> None:
        nonlocal rows
        number = client * KEYS
        while time.perf_counter() < until:
            number, rows = number + 1, rows + 1
            await kv.put(kv_key(b"%08d" % (number * STEP % KEYS)), VALUE)

    await asyncio.gather(*(one(client) for client in range(clients)))
    return rows
