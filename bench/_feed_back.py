"""Coming back to a feed when one row in a hundred is new: beside reading everything, end to end, in the same process.

    remembered   the range still has the new blocks in memory
    restarted    its node was stopped and started: what is new is found by the index on disk (`feeds.index`)
    scan         nothing is remembered: the storage's part alone, one thread; every key has to be passed

The figure is rows of the table passed per second: what is not new counts, since it takes a look to know that it is not.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from typing import TYPE_CHECKING

from bench._cluster import ServerProcess
from bench._feed_reader import feed_client
from bench.harness import Figure, figure, interleaved
from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import KV, prefix_span, versioned
from slackwater.codec.layout import kv as kv_key
from slackwater.feeds.client import Checkpoint
from slackwater.feeds.history import HISTORY_ROWS
from slackwater.runtime.seam import Family
from slackwater.server.remote import connect
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.reads import scan_versions
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.runtime.seam import EngineSnapshot
    from slackwater.server.remote import Remote

VALUE = b"v" * 90
BACK_GOAL = 10.0
NEW_ONE_IN = 100
BLOCK = 5_000
ROUNDS = 3
SCAN_ROUNDS = 7


async def back_figures(directory: Path, *, rows: int) -> list[Figure]:
    """All three."""
    place, url = directory / "back", f"sqlite://{directory}/back.db"
    keys = [kv_key(b"back/%08d" % i) for i in range(rows)]
    some = keys[::NEW_ONE_IN]
    server = ServerProcess(place, url)
    try:
        async with connect([server.address]) as remote:
            await remote.kv.put_rows(keys, [VALUE] * rows)
            token = await _upto_now(remote)
            await _renew(remote, some)
            remembered = await _contest(remote, token, rows)
            token = await _upto_now(remote)
            await _renew(remote, some)
        server.stop()
        server = ServerProcess(place, url)
        async with connect([server.address]) as remote:
            await remote.kv.put(kv_key(b"awake"), VALUE)
            restarted = await _contest(remote, token, rows)
    finally:
        server.stop()
    return [
        _figure(f"table rows passed when 1 % of {rows} is new", *remembered),
        _figure(f"the same after the node was restarted, {rows} rows", *restarted),
        _figure(f"table rows passed by a scan when 1 % of {rows} is new", *await _scan(directory, rows)),
    ]


def _figure(metric: str, ours: float, theirs: float) -> Figure:
    return figure("feeds", metric, ours, "rows/s", peer="all is new", peer_value=theirs, goal=BACK_GOAL)


async def _renew(remote: Remote, keys: list[bytes]) -> None:
    await remote.kv.put_rows(keys, [b"w" * len(VALUE)] * len(keys))


async def _contest(remote: Remote, token: str, rows: int) -> tuple[float, float]:
    """Rows passed per second from a token, and from the beginning; medians of turns."""
    little: list[float] = []
    everything: list[float] = []
    for _ in range(ROUNDS):
        seconds, _, new = await _until(remote, token, remote.clock.now())
        assert rows // NEW_ONE_IN <= new <= 4 * rows // NEW_ONE_IN, f"{new} of {rows // NEW_ONE_IN}"
        little.append(rows / seconds)
        seconds, _, seen = await _until(remote, MIN, remote.clock.now())
        assert seen >= rows, f"{seen} of {rows}"
        everything.append(rows / seconds)
    return statistics.median(little), statistics.median(everything)


async def _upto_now(remote: Remote) -> str:
    """Read everything; where that ends."""
    return (await _until(remote, MIN, remote.clock.now()))[1]


async def _until(remote: Remote, after: Timestamp | str, ts: Timestamp) -> tuple[float, str, int]:
    """Follow until everything up to `ts` has come; seconds until the last event, where that was, and how many."""
    client = feed_client(remote)
    events, began = 0, time.perf_counter()
    last = began
    async with client.watch([prefix_span(KV)], after=after) as feed:
        while feed.resolved < ts:
            event = await anext(feed)
            if not isinstance(event, Checkpoint):
                events, last = events + len(event), time.perf_counter()
        return last - began, feed.token(), events


async def _scan(directory: Path, rows: int) -> tuple[float, float]:
    """A catch-up scan that has to pass every key to find one in a hundred."""
    engine = RocksDisk(directory, sleep=asyncio.sleep, settings=Settings()).open("scan")
    for low in range(0, rows, BLOCK):
        batch = WriteBatch()
        for i in range(low, min(low + BLOCK, rows)):
            batch.put(Family.DATA, versioned(kv_key(b"%08d" % i), Timestamp(1 + i)), VALUE)
        engine.write(batch)
    batch, after = WriteBatch(), Timestamp(rows + 1)
    for i in range(0, rows, NEW_ONE_IN):
        batch.put(Family.DATA, versioned(kv_key(b"%08d" % i), Timestamp(after + 1 + i)), VALUE)
    engine.write(batch)
    await engine.flush()
    with engine.snapshot() as frozen:
        rates = interleaved(
            {"all": lambda: _pass(frozen, MIN, rows), "new": lambda: _pass(frozen, after, rows)}, rounds=SCAN_ROUNDS
        )
    engine.close()
    return rates["new"], rates["all"]


def _pass(frozen: EngineSnapshot, after: Timestamp, rows: int) -> int:
    span, start = prefix_span(KV), KV
    while True:
        found = scan_versions(
            frozen, start, span.end, after=after, upto=MAX, max_versions=HISTORY_ROWS, ignore_intents=True
        )
        if found.resume is None:
            return rows
        start = found.resume
