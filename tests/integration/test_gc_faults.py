"""Real processes that collect: ten seconds of history, protections that come and go, kill -9 and restarts.

    writers     upsert and delete rows of a small table without end
    travelers   protect a snapshot, remember every row of it, read it again and again, release it; one is never released
    faults      kill -9 of one node, sometimes of two, and restarts

Must hold: every read of a protected snapshot is what it was at the start; and when all nodes have stopped, no store holds a
version that has been garbage, needed by no protection, for longer than the ttl and SLACK_S. That is counted in their files.

`make faults-gc SECONDS=900` runs it for fifteen minutes.
"""

from __future__ import annotations

import asyncio
import os
import random
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

import slackwater
from slackwater.clock.timestamp import Timestamp, add_seconds, from_us, seconds_between, show
from slackwater.codec.layout import KEY_MAX, KV, table_span
from slackwater.errors import BelowGcThreshold, SlackwaterError
from slackwater.model.protection import Kept
from slackwater.model.retention import stretches
from slackwater.protect.zone_changes import change_zone
from slackwater.server.process import ENGINE
from slackwater.server.remote import connect
from slackwater.storage.gc import garbage, keys_of
from slackwater.storage.rocks import RocksDisk
from tests.integration.cluster import Processes, client_settings, spread

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from slackwater.client import Database

pytestmark = pytest.mark.integration
SECONDS = float(os.environ.get("SLACKWATER_GC_SECONDS", "0"))
TTL_S = 10.0
SLACK_S = 60.0
ROWS = 200
COLUMNS = {"id": "int8", "text": "text"}
TRAVELERS = 3
SETTINGS = {"gc.interval": 5.0, "closed_timestamp.target_duration": 1.0}


class Play:
    """What the threads share."""

    def __init__(self, url: str, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        self.stopping = threading.Event()
        self.problems: list[str] = []
        self.counts: dict[str, int] = {}
        self.pinned: dict[str, tuple[Timestamp, float | None]] = {}
        """Timestamps that were protected, and until when by this machine's clock; None: still."""

    def count(self, what: str, number: int = 1) -> None:
        self.counts[what] = self.counts.get(what, 0) + number

    def thread(self, work: Callable[[Database, random.Random], None], number: int) -> threading.Thread:
        draw = random.Random(self.random.random() + number)

        def main() -> None:
            try:
                with slackwater.connect(self.url, timeout=30) as db:
                    while not self.stopping.is_set():
                        try:
                            work(db, draw)
                        except BelowGcThreshold as error:
                            self.problems.append(f"{work.__name__}: {error}")
                        except SlackwaterError as error:
                            self.count(f"{work.__name__}: {type(error).__name__}")
                            self.stopping.wait(0.2)
            except Exception as error:  # a thread's error must not be lost
                self.problems.append(f"{work.__name__} ended with {error!r}")

        return threading.Thread(target=main, name=f"{work.__name__} {number}")

    def write(self, db: Database, draw: random.Random) -> None:
        ids = draw.sample(range(ROWS), 20)
        if draw.random() < 0.1:
            db.delete("t", ids[:5])
        else:
            text = f"{time.time_ns()}" * draw.randint(1, 5)
            db.upsert("t", [{"id": i, "text": text} for i in ids])
        self.count("writes")
        self.stopping.wait(0.02)

    def travel(self, db: Database, draw: random.Random, *, forever: bool = False) -> None:
        snapshot = db.snapshot(tables=["t"], protect=True, protect_ttl=3600)
        name = f"{snapshot.timestamp}"
        self.pinned[name] = (Timestamp(snapshot.timestamp), None)
        first = rows_of(snapshot)
        until = time.monotonic() + draw.uniform(2, 60)
        while not self.stopping.is_set() and (forever or time.monotonic() < until):
            self.stopping.wait(draw.uniform(0.5, 5))
            try:
                again = rows_of(snapshot)
            except BelowGcThreshold as error:
                self.problems.append(f"a protected read at {show(snapshot.timestamp)} was refused: {error}")
                return
            except SlackwaterError as error:
                self.count(f"read: {type(error).__name__}")
                continue
            if again != first:
                self.problems.append(f"a protected read at {show(snapshot.timestamp)} has changed")
            self.count("protected reads")
            self.count("oldest protected read, s", 0)
            age = int(seconds_between(Timestamp(snapshot.timestamp), now()))
            self.counts["oldest protected read, s"] = max(age, self.counts["oldest protected read, s"])
        if not self.stopping.is_set():
            self.pinned[name] = (Timestamp(snapshot.timestamp), time.time())
            snapshot.release()
            self.count("released")

    def stay(self, db: Database, draw: random.Random) -> None:
        self.travel(db, draw, forever=True)

    async def hurt(self, cluster: Processes, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            await asyncio.sleep(self.random.uniform(3, 12))
            victims = self.random.sample(range(len(cluster.addresses)), 2 if self.random.random() < 0.15 else 1)
            for index in victims:
                cluster.kill(index)
                self.count("kills")
            await asyncio.sleep(self.random.uniform(0.2, 3))
            for index in victims:
                await cluster.start(index)
        await cluster.wait_live()


def now() -> Timestamp:
    return from_us(time.time_ns() // 1000)


def rows_of(snapshot: Any) -> list[Any]:
    return sorted((row["id"], row["text"]) for row in snapshot.scan("t").to_pylist())


def left_over(store: Path, *, stopped: Timestamp, kept: list[Kept]) -> tuple[int, int, str]:
    """(versions, garbage that is too old, one of it) in a store's files, while no process has them open."""
    engine = RocksDisk(store, sleep=asyncio.sleep).open(ENGINE)
    versions = wrong = 0
    example = ""
    try:
        rules = stretches(add_seconds(stopped, -(TTL_S + SLACK_S)), kept, KV, KEY_MAX)
        at = 0
        for key, found in keys_of(engine, KV, KEY_MAX):
            while key >= rules[at].end:
                at += 1
            versions += len(found)
            going = garbage(found, rules[at].floor, rules[at].instants)
            wrong += len(going)
            if going and not example:
                example = f"{key!r} at {show(going[0][0])}"
    finally:
        engine.close()
    return versions, wrong, example


async def play(directory: Path, seconds: float, seed: int) -> Play:
    cluster = Processes(directory, nodes=3, log_url=f"sqlite://{directory}/log.db", settings=SETTINGS)
    async with cluster:
        await cluster.make()
        await cluster.wait_live()
        async with connect(cluster.addresses, settings=client_settings()) as remote:
            await spread(remote, cluster)
            await change_zone(remote.kv, b"", b"", gc_ttl_s=TTL_S)
        story = Play("slackwater://" + ",".join(cluster.addresses), seed)
        table_id = await asyncio.to_thread(_create, story.url)
        threads = [story.thread(story.write, n) for n in range(2)]
        threads += [story.thread(story.travel, n) for n in range(TRAVELERS)] + [story.thread(story.stay, 0)]
        for thread in threads:
            thread.start()
        try:
            await story.hurt(cluster, seconds)
        finally:
            story.stopping.set()
            for thread in threads:
                await asyncio.to_thread(thread.join)
        stopped = now()
        for index in range(len(cluster.addresses)):
            with suppress(TimeoutError):
                await cluster.stop(index)
    span, recent = table_span(table_id), time.time() - TTL_S - SLACK_S
    kept = [Kept(span.start, span.end, ts) for ts, until in story.pinned.values() if until is None or until > recent]
    for index in range(len(cluster.addresses)):
        versions, wrong, example = left_over(directory / f"n{index + 1}", stopped=stopped, kept=kept)
        story.counts[f"n{index + 1} versions"] = versions
        if wrong:
            story.problems.append(
                f"n{index + 1}: {wrong} versions are garbage for longer than allowed, such as {example}"
            )
    return story


def _create(url: str) -> int:
    with slackwater.connect(url, timeout=30) as db:
        db.create_table("t", COLUMNS, primary_key="id")
        db.upsert("t", [{"id": i, "text": "first"} for i in range(ROWS)])
        return db.table("t").table_id


@pytest.mark.slow
def test_protected_reads_do_not_change_and_nothing_else_that_is_old_stays(tmp_path: Path) -> None:
    seconds = SECONDS or 90.0
    story = asyncio.run(play(tmp_path, seconds, seed=int(seconds)))
    print(f"{seconds:.0f} s:", dict(sorted(story.counts.items())))
    assert story.problems == []
    assert story.counts["protected reads"] > 0
    assert story.counts["kills"] > 0
    assert story.counts["writes"] > 100
