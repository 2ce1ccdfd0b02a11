"""Change feeds on one node in a process of its own: what they cost writers, how far they lag, and coming back.

    events      per second from commit to consumer, beside Debezium's embedded engine on PostgreSQL 18 (goal: 2; `bench._events`)
    cost        server CPU per autocommit upsert with one feed attached, beside the same without (goal: 1.03, limit 1.05;
                `bench._feed_cost`)
    nobody      the same where nobody listens, beside a node that has no feeds at all (goal: no difference, no call)
    lag         99th percentile of (now − resolved) at the consumer, beside target_duration + 0.5 s (goal: 1)
    coming back rows of the table passed per second by a consumer that comes back when 1 % of history is new, beside one that
                reads all of it: remembered, after a restart, and by scanning (goal: 10; `bench._feed_back`)

The consumer is a process of its own for cost and lag (`bench._feed_reader`), and the benchmark's process for coming back.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from bench._cluster import ServerProcess
from bench._events import events_figures
from bench._feed_back import back_figures
from bench._feed_cost import feed_figures, nobody_figures
from bench._load import disk
from slackwater.runtime import run as run_main
from slackwater.server.cluster_settings import write_setting
from slackwater.server.remote import connect

if TYPE_CHECKING:
    from collections.abc import Iterator

    from bench.harness import Figure

SETTLE_S = 1.0


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures of this benchmark."""
    directory = Path(tempfile.mkdtemp(prefix="slackwater-bench-", dir=disk()))
    try:
        yield from run_main(events_figures(directory, rows=50_000 if quick else 100_000, rounds=3 if quick else 5))
        seconds, rounds = (0.5, 7) if quick else (1.0, 21)
        yield from run_main(nobody_figures(directory, seconds=seconds, rounds=rounds))
        yield from run_main(_attached(directory, seconds=seconds, rounds=rounds))
        yield from run_main(back_figures(directory, rows=50_000 if quick else 300_000))
    finally:
        shutil.rmtree(directory)


async def _attached(directory: Path, *, seconds: float, rounds: int) -> list[Figure]:
    server = ServerProcess(directory / "node", f"sqlite://{directory}/log.db")
    try:
        async with connect([server.address]) as remote:
            # A range lets go of its feed with the last consumer, or "no feed" would not be none.
            await write_setting(remote.kv, "feed.keep_attached", 0)
            await asyncio.sleep(SETTLE_S)
            return await feed_figures(remote, server, seconds=seconds, rounds=rounds)
    finally:
        server.stop()
