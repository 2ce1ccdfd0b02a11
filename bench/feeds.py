"""Change feeds on one node in a process of its own: what they cost writers, how far they lag, and coming back.

    events      per second from commit to consumer, beside Debezium's embedded engine on PostgreSQL 18 (goal: 2; `bench._events`)
    cost        server CPU per autocommit upsert with one feed attached, beside the same without (goal: 1.03, limit 1.05;
                `bench._feed_cost`)
    nobody      the same where nobody listens, beside a node that has no feeds at all (goal: no difference, no call)
    lag         99th percentile of (now − resolved) at the consumer, beside target_duration + 0.5 s (goal: 1)
    coming back rows of the table passed per second by a consumer that comes back when 1 % of history is new, beside one that
                reads all of it, end to end, while the range still remembers what is new (goal: 10)
    scan        the same where the range remembers nothing: the storage's part alone, one thread, beside a scan of everything

The consumer is a process of its own for cost and lag (`bench._feed_reader`), and the benchmark's process for coming back.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bench._cluster import ServerProcess
from bench._events import events_figures
from bench._feed_cost import feed_figures, nobody_figures
from bench._load import disk
from bench.harness import Figure, figure, interleaved
from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.feeds.client import Checkpoint, FeedClient
from slackwater.feeds.driver import HISTORY_ROWS
from slackwater.feeds.links import RpcLinks
from slackwater.model.layout import KV, prefix_span, versioned
from slackwater.model.layout import kv as kv_key
from slackwater.runtime import run as run_main
from slackwater.runtime.seam import Family
from slackwater.server.cluster_settings import write_setting
from slackwater.server.remote import connect
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.reads import scan_versions
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.runtime.seam import Snapshot
    from slackwater.server.remote import Remote

VALUE = b"v" * 90
BACK_GOAL = 10.0
NEW_ONE_IN = 100
BLOCK = 5_000
SETTLE_S = 1.0


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(events_figures(directory, rows=50_000 if quick else 100_000, rounds=3 if quick else 5))
        seconds, rounds = (0.5, 7) if quick else (1.0, 21)
        yield from run_main(nobody_figures(directory, seconds=seconds, rounds=rounds))
        yield from run_main(_all(directory, seconds=seconds, rounds=rounds, rows=50_000 if quick else 300_000))
    finally:
        shutil.rmtree(directory)


async def _all(directory: Path, *, seconds: float, rounds: int, rows: int) -> list[Figure]:
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with connect([server.address]) as remote:
            figures = [await _back(remote, rows), await _scan(directory, rows)]
            # From here on a range lets go of its feed with the last consumer, or "no feed" would not be none.
            await write_setting(remote.kv, "feed.keep_attached", 0)
            await asyncio.sleep(SETTLE_S)
            return figures + await feed_figures(remote, server, seconds=seconds, rounds=rounds)
    finally:
        server.stop()


# --- coming back ---------------------------------------------------------------------------------------------------------


async def _back(remote: Remote, rows: int) -> Figure:
    client = FeedClient(
        sender=remote.sender,
        links=RpcLinks(remote.dialer, remote.book.resolve),
        runtime=remote.runtime,
        settings=Settings(),
        scope=remote.scope.child("feeds"),
    )
    keys = [kv_key(b"back/%08d" % i) for i in range(rows)]
    await remote.kv.put_rows(keys, [VALUE] * rows)
    everything, token, seen = await _until(client, MIN, remote.clock.now())
    assert seen >= rows, f"{seen} of {rows}"
    some = keys[::NEW_ONE_IN]
    await remote.kv.put_rows(some, [b"w" * len(VALUE)] * len(some))
    little, _, new = await _until(client, token, remote.clock.now())
    assert len(some) <= new <= 2 * len(some), f"{new} of {len(some)}"
    metric = f"table rows passed when 1 % of {rows} is new"
    return figure(
        "feeds", metric, rows / little, "rows/s", peer="all is new", peer_value=rows / everything, goal=BACK_GOAL
    )


async def _until(client: FeedClient, after: Timestamp | str, ts: Timestamp) -> tuple[float, str, int]:
    """Follow until everything up to `ts` has come; seconds until the last event, where that was, and how many."""
    events, began = 0, time.perf_counter()
    last = began
    async with client.watch([prefix_span(KV)], after=after) as feed:
        while feed.resolved < ts:
            event = await anext(feed)
            if not isinstance(event, Checkpoint):
                events, last = events + len(event), time.perf_counter()
        return last - began, feed.token(), events


async def _scan(directory: Path, rows: int) -> Figure:
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
            {"all": lambda: _pass(frozen, MIN, rows), "new": lambda: _pass(frozen, after, rows)}, rounds=3
        )
    engine.close()
    metric = f"table rows passed by a scan when 1 % of {rows} is new"
    return figure("feeds", metric, rates["new"], "rows/s", peer="all is new", peer_value=rates["all"])


def _pass(frozen: Snapshot, after: Timestamp, rows: int) -> int:
    span, start = prefix_span(KV), KV
    while True:
        found = scan_versions(
            frozen, start, span.end, after=after, upto=MAX, max_versions=HISTORY_ROWS, ignore_intents=True
        )
        if found.resume is None:
            return rows
        start = found.resume
