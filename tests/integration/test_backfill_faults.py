"""An index of 200 000 rows is filled in blocks on three real processes while rows change, and is disturbed in the middle.

    killed     the node that runs the change is killed with -9; another goes on from the checkpoint
    frozen     it is stopped with SIGSTOP until another has taken over, and goes on when the index is there: its blocks come late
    clash      two rows that no run reads together have one value: the change fails and names both
    canceled   its user cancels it

In the end each index that is there equals the table, one that failed is gone, and the table has what was written to it.
"""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

import slackwater
from slackwater.errors import AmbiguousResult, RetryableError, SlackwaterError, UnavailableError
from slackwater.model.jobs import Status
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from slackwater.client.database import AsyncDatabase

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
ROWS = 200_000
LOADED = 20_000
NODES = 3
WAIT_S = 240.0
SETTINGS = {
    "schema.backfill_chunk": 20_000,
    "schema.backfill_rate": 40_000,
    "catalog.lease.duration": 2.0,
    "catalog.lease.abandoned_duration": 2.0,
}


def person(number: int) -> dict[str, Any]:
    return {"id": number, "email": f"{number * 2_654_435_761 % (1 << 32):010d}@x", "city": number % 97}


class Fill:
    """A cluster with a large table, and a writer that changes it and remembers what it wrote."""

    def __init__(self, cluster: Processes, sessions: list[AsyncDatabase], nodes: dict[int, int]) -> None:
        self.cluster = cluster
        self.sessions = sessions
        self.nodes = nodes
        self.changed: dict[int, dict[str, Any]] = {}
        self.removed: set[int] = set()
        self.away: set[int] = set()
        """Processes that are killed or frozen."""
        self._number = 1

    async def write(self, on: int, enough: asyncio.Event) -> None:
        """Move emails and remove rows until it is enough; a write of unknown outcome is made again."""
        while not enough.is_set():
            self._number = number = (self._number * 48_271) % 2_147_483_647
            row = {**person(number % ROWS), "email": f"new{number}", "city": number % 89}
            async with asyncio.timeout(WAIT_S):
                while True:
                    try:
                        if number % 7:
                            await self.sessions[on].upsert("people", [row])
                        else:
                            await self.sessions[on].delete("people", [row["id"]])
                        break
                    except (RetryableError, AmbiguousResult, UnavailableError):
                        await asyncio.sleep(0.05)
            self.changed[row["id"]] = row
            (self.removed.discard if number % 7 else self.removed.add)(row["id"])
            await asyncio.sleep(0.005)

    async def job(self, job_id: int) -> Any:
        """A job, from a node that answers."""
        async with asyncio.timeout(WAIT_S):
            while True:
                for index, db in enumerate(self.sessions):
                    if index in self.away:
                        continue
                    try:
                        return await db.jobs.get(job_id)
                    except SlackwaterError:
                        pass
                await asyncio.sleep(0.05)

    async def in_the_middle(self, job_id: int) -> int:
        """Which process runs a change, when it has filled a part of the index."""
        async with asyncio.timeout(WAIT_S):
            while True:
                job = await self.job(job_id)
                assert not job.status.ended, f"{job.status} {job.error}: it was over too soon"
                if " rows, " in job.progress and job.claimed_by:
                    return self.nodes[int(job.claimed_by[1:])]
                await asyncio.sleep(0.02)

    async def ended(self, job_id: int) -> Any:
        async with asyncio.timeout(WAIT_S):
            while not (job := await self.job(job_id)).status.ended:
                await asyncio.sleep(0.1)
            return job

    async def judge(self, on: int) -> list[str]:
        """Compare each index with the table, and the table with what was written; returns the indexes there are."""
        db = self.sessions[on]
        snapshot = await db.snapshot(tables=["people"], as_of=db.now())
        rows = (await snapshot.scan("people", index="primary")).sort_by("id")
        found = {row["id"]: row for row in rows.to_pylist()}
        assert len(found) == rows.num_rows
        wanted = {n: self.changed.get(n, person(n)) for n in range(ROWS) if n not in self.removed}
        assert found == wanted
        names = [index.name for index in (await db.history("people")).latest.indexes]
        for name in names:
            assert (await snapshot.scan("people", index=name)).sort_by("id").equals(rows), name
        return names


@asynccontextmanager
async def filled(path: Path) -> AsyncIterator[Fill]:
    async with AsyncExitStack() as stack:
        cluster = Processes(path, nodes=NODES, log_url=f"sqlite://{path}/log.db", settings=SETTINGS)
        await stack.enter_async_context(cluster)
        await cluster.make_whole()
        sessions = [
            await stack.enter_async_context(slackwater.aconnect(f"slackwater://{address}", timeout=WAIT_S))
            for address in cluster.addresses
        ]
        await sessions[0].create_table("people", {"id": "int8", "email": "text", "city": "int8"}, primary_key="id")
        for low in range(0, ROWS, LOADED):
            await sessions[0].upsert("people", pa.Table.from_pylist([person(n) for n in range(low, low + LOADED)]))
        nodes = {place.node: cluster.addresses.index(place.address) for place in await sessions[0].nodes()}
        yield Fill(cluster, sessions, nodes)


async def disturbed(me: Fill, name: str, *, unique: bool, freeze: bool) -> None:
    """Build an index beside a writer while the node that runs the change is killed or frozen in the middle."""
    column = "email" if unique else "city"
    job_id = (await me.sessions[0].create_index("people", name, column, unique=unique, wait=False)).jobs[-1].id
    victim = await me.in_the_middle(job_id)
    enough = asyncio.Event()
    writer = asyncio.create_task(me.write((victim + 1) % NODES, enough))
    try:
        me.away.add(victim)
        if freeze:
            me.cluster.pause(victim)
        else:
            me.cluster.kill(victim)
        job = await me.ended(job_id)
        assert job.status is Status.SUCCEEDED, job.error
        if freeze:
            me.cluster.resume(victim)
        else:
            await me.cluster.start(victim)
        await me.cluster.wait_live()
        me.away.discard(victim)
        await asyncio.sleep(1.0)  # what the victim had under way comes now, or not at all
    finally:
        enough.set()
        await writer
    assert me.changed, "rows have changed meanwhile"
    assert name in await me.judge((victim + 1) % NODES)
    await me.sessions[0].drop_index("people", name)


async def clash(me: Fill) -> None:
    db, (one, other) = me.sessions[0], (777, ROWS - 555)
    kept = await db.get("people", other)
    await db.upsert("people", [{**kept, "email": (await db.get("people", one))["email"]}])
    job_id = (await db.create_index("people", "doubtful", "email", unique=True, wait=False)).jobs[-1].id
    job = await me.ended(job_id)
    assert job.status is Status.FAILED
    assert f"id={one}" in job.error, job.error
    assert f"id={other}" in job.error, job.error
    await db.upsert("people", [kept])
    assert await me.judge(0) == []


async def canceled(me: Fill) -> None:
    db = me.sessions[0]
    job_id = (await db.create_index("people", "unwanted", "email", unique=True, wait=False)).jobs[-1].id
    await me.in_the_middle(job_id)
    await db.jobs.cancel(job_id)
    assert (await me.ended(job_id)).status is Status.CANCELLED
    assert await me.judge(0) == []


def test_an_index_of_many_rows_is_whole_or_gone_whatever_happens_while_it_is_filled(tmp_path: Path) -> None:
    async def main() -> None:
        async with filled(tmp_path) as me:
            await clash(me)
            await canceled(me)
            await disturbed(me, "killed", unique=True, freeze=False)
            await disturbed(me, "frozen", unique=True, freeze=True)
            await disturbed(me, "frozen_shared", unique=False, freeze=True)

    asyncio.run(main())
