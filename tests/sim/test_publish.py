"""Large atomic commits beside readers, in virtual time: seen whole, at once, by everybody, wherever their intents are."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy.random  # noqa: F401 - asks the system for randomness when it is imported, which no simulation may do
import pytest

from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.errors import SlackwaterError, UnavailableError
from tests.sim.cluster import Cluster, play
from tests.sim.test_client import session, table

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.snapshot import AsyncSnapshot
    from slackwater.protocol.client.staging import Published

ROWS = 1200
OLD = 8
"""Rows that are there before."""
SETTINGS = {
    "log.entry_bytes_max": 1 << 17,  # resolving takes several commands
    "txn.lock_keys_max": 64,
    "queue.interval": 1.0,
    "closed_timestamp.target_duration": 1.0,
}
AT_ONCE_S = 2.0
"""Of virtual time: how long a read after the acknowledgement may take. Messages take milliseconds."""


async def publish(db: AsyncDatabase) -> Published:
    part = await db.staging("accounts", "insert")
    await part.add([{"id": 1000 + i, "balance": 7} for i in range(ROWS)])
    return await db.publish("accounts", [await part.finish()], "insert")


async def counted(reader: AsyncDatabase | AsyncSnapshot) -> int:
    return len((await reader.scan("accounts")).column("id"))


class Readers:
    """Reads all the time, in many ways, and keeps what is wrong."""

    def __init__(self, c: Cluster, db: AsyncDatabase) -> None:
        self._c, self._db = c, db
        self.acknowledged = MIN
        self.wrong: list[str] = []
        self.reads = 0
        self.over = False

    async def run(self, name: str, read: Any) -> None:
        clock = self._c.runtime.clock
        while not self.over:
            acknowledged, began = self.acknowledged, clock.monotonic_ns()
            try:
                rows, ts = await read()
            except UnavailableError:
                continue  # faults are switched on; a conflict is none
            except SlackwaterError as error:
                self.wrong.append(f"{name}: {type(error).__name__}: {error}")
                continue
            self.reads += 1
            took = (clock.monotonic_ns() - began) / 1e9
            if rows not in (OLD, OLD + ROWS):
                self.wrong.append(f"{name}: {rows} rows: a part of a commit")
            if acknowledged and (ts is None or ts >= acknowledged) and rows != OLD + ROWS:
                self.wrong.append(f"{name}: {rows} rows after the acknowledgement")
            if acknowledged and took > AT_ONCE_S:
                self.wrong.append(f"{name}: took {took:.1f} s after the acknowledgement")
            await clock.sleep(0.05)

    async def scan(self) -> tuple[int, Any]:
        return await counted(self._db), None

    async def snapshot(self) -> tuple[int, Any]:
        frozen = await self._db.snapshot(tables=["accounts"])
        return await counted(frozen), frozen.timestamp

    async def closed(self) -> tuple[int, Any]:
        ts = await self._db.close_now(["accounts"])
        return await counted(await self._db.snapshot(as_of=ts, read_from="any")), ts


@pytest.mark.parametrize("seed", range(4))
def test_a_large_publish_is_seen_whole_and_at_once_by_readers_beside_it(seed: int) -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        await c.settle(3)
        readers = Readers(c, session(c))
        await readers._db._gateways.greet()
        ways = {"scan": readers.scan, "snapshot": readers.snapshot, "close_now": readers.closed}
        tasks = [c.scope.spawn(readers.run(name, way), name=name) for name, way in ways.items()]
        await c.settle(1)
        done = await publish(db)
        readers.acknowledged = done.ts
        await c.settle(6)
        readers.over = True
        for task in tasks:
            await task
        assert not readers.wrong, readers.wrong[:3]
        assert readers.reads > 30
        await c.settle(90)
        assert c.intents() == 0

    play(story, seed=seed, settings=SETTINGS, buggify=True)


def test_a_publish_whose_gateway_dies_right_after_the_acknowledgement_is_readable_and_resolved() -> None:
    async def story(c: Cluster) -> None:
        db = await table(c)
        done = await publish(db)
        assert c.intents() > ROWS // 2, "the story is about intents that are left"
        machine = c.world.nodes[0]
        machine.crash()
        machine.start()
        await c.settle(10)  # until it serves again
        fresh = session(c)
        await fresh._gateways.greet()
        began = c.runtime.clock.monotonic_ns()
        assert await counted(fresh) == OLD + ROWS
        await c.settle(2)  # the closing lag
        assert c.intents() > ROWS // 2, "they were read through, not waited for"
        assert await fresh.resolved("accounts") >= done.ts, "a decided transaction holds nothing back"
        frozen = await fresh.snapshot(tables=["accounts"])
        assert (frozen.timestamp >= done.ts, await counted(frozen)) == (True, OLD + ROWS)
        assert (c.runtime.clock.monotonic_ns() - began) / 1e9 < 10

    play(story, settings={**SETTINGS, "queue.interval": 0.0})  # nobody cleans up after the dead


def test_a_transaction_that_writes_for_long_holds_up_no_reader() -> None:
    async def story(c: Cluster) -> None:
        a, z = c.key(b"a"), c.key(b"z")
        await c.kv.put(a, b"old")
        writer = c.kv.begin()
        await writer.put(a, b"new")
        assert await writer.get(a) == b"new"  # it is an intent now
        reads: list[Any] = [
            lambda: c.kv.get(a),
            lambda: c.kv.get(a, ts=c.clock.now()),
            lambda: c.kv.run(lambda txn: txn.get(a)),
        ]
        for read in reads:
            before = c.clock.now()
            assert await read() == b"old"
            assert seconds_between(before, c.clock.now()) < AT_ONCE_S
        assert (await c.kv.scan(a, z)).values == [b"old"]
        await writer.commit()
        assert await c.kv.get(a) == b"new"

    world = play(story, settings=SETTINGS)
    assert world.probes["txn.fate_known"] or world.probes["evaluate.read_through"]
