"""Schema changes in a loop on three real nodes that are killed with -9, under a bank whose balances are indexed.

    transfers   move money between two accounts in one transaction; by the index, the richest account pays now and then
    changes     create and drop indexes on balances, add and drop columns and checks, without end; each waits for its job
    faults      kill -9 of any node, of the one that runs the change, or of a holder of the oldest lease (changes wait for it)
    moments     timestamps that are noted on the way, 50 or more

Must hold: at every noted moment, and in the end, every index that was public then shows exactly the rows of the table, and the
total is what it was. No change stays under way for ever. How long the longest change took is printed, not asserted.

`make faults-schema SECONDS=600` runs it for ten minutes, with the liveness and lease durations that clusters have by default.
"""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

import slackwater
from slackwater.errors import SlackwaterError
from slackwater.model.jobs import Status
from slackwater.settings import SETTINGS as ALL_SETTINGS
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
SECONDS = float(os.environ.get("SLACKWATER_SCHEMA_SECONDS", "0"))
SHORT_S = 12.0
ACCOUNTS = 60
FIRST_BALANCE = 100
TRANSFERERS = 4
MOMENTS = 50
AWAY_S = (0.0, 6.0)
DURATIONS = ("liveness.duration", "liveness.heartbeat_interval", "catalog.lease.duration", "lease.duration")
QUICK = {"catalog.lease.duration": 2.0, "catalog.lease.abandoned_duration": 2.0}


class Play:
    """What the tasks share."""

    def __init__(self, cluster: Processes, seed: int) -> None:
        self.cluster = cluster
        self.random = random.Random(seed)
        self.url = "slackwater://" + ",".join(cluster.addresses)
        self.stopping = asyncio.Event()
        self.counts: dict[str, int] = {}
        self.moments: list[Any] = []
        self.took: list[tuple[float, str, int]] = []
        """Seconds of each change, what it was, and how often a node was killed meanwhile."""
        self.job = 0
        """The job of the change that is under way."""
        self.nodes: dict[int, int] = {}
        """By node id, which process it is."""

    def count(self, what: str) -> None:
        self.counts[what] = self.counts.get(what, 0) + 1

    # --- the bank

    async def transfer(self, db: AsyncDatabase, number: int) -> None:
        draw = random.Random(f"{self.random.random()} {number}")
        while not self.stopping.is_set():
            one, other = draw.sample(range(ACCOUNTS), 2)
            amount = draw.randint(1, 20)

            try:
                await db.run(partial(move, one=one, other=other, amount=amount))
                self.count("transfers")
            except SlackwaterError as error:
                self.count(f"transfer: {type(error).__name__}")
                await asyncio.sleep(0.1)
            await asyncio.sleep(0.01)

    # --- changes

    async def change(self, db: AsyncDatabase) -> None:
        """One change after the other; an error is that of a change that does not fit what is there, or of a dying gateway."""
        draw, round_ = random.Random(self.random.random()), 0
        while not self.stopping.is_set():
            round_ += 1
            try:
                latest = (await db.history("accounts")).latest
                names = [index.name for index in latest.indexes]
                kills, began = self.counts.get("kills", 0), time.monotonic()
                what = draw.random()
                if what < 0.5 and len(names) < 3:
                    columns, storing = draw.choice([(["balance"], []), (["balance desc"], ["owner"]), (["owner"], [])])
                    made = await db.create_index("accounts", f"i{round_}", columns, storing=storing, wait=False)
                elif what < 0.7 and names:
                    made = await db.drop_index("accounts", draw.choice(names), wait=False)
                elif "note" in [column.name for column in latest.columns]:
                    made = await db.alter_table("accounts", drop_column="note", wait=False)
                else:
                    made = await db.alter_table(
                        "accounts", add_column={"note": "text not null default 'n'"}, wait=False
                    )
                self.job = made.jobs[-1].id
                ended = await self.ended(db, self.job)
                self.took.append((time.monotonic() - began, ended.description, self.counts.get("kills", 0) - kills))
                self.count(f"change {ended.status.value}")
            except SlackwaterError as error:
                self.count(f"change: {type(error).__name__}")
                await asyncio.sleep(0.2)
            self.job = 0

    async def ended(self, db: AsyncDatabase, job_id: int) -> Any:
        """The job of a change when it has ended, however long gateways are away."""
        while True:
            try:
                job = await db.jobs.get(job_id)
                if job.status.ended:
                    return job
            except SlackwaterError:
                self.count("looked for a job in vain")
            await asyncio.sleep(0.1)

    # --- faults

    async def hurt(self, db: AsyncDatabase, seconds: float) -> None:
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            await asyncio.sleep(self.random.uniform(1.0, 4.0))
            victim = await self.victim(db)
            self.cluster.kill(victim)
            self.count("kills")
            await asyncio.sleep(self.random.uniform(*AWAY_S))
            await self.cluster.start(victim)
        self.stopping.set()

    async def victim(self, db: AsyncDatabase) -> int:
        """The node that runs the change, one that holds a lease on the table, or any."""
        anyone, drawn = self.random.randrange(len(self.cluster.addresses)), self.random.random()
        try:
            if self.job and drawn < 0.5:
                claimed = (await db.jobs.get(self.job)).claimed_by
                if claimed.startswith("n") and int(claimed[1:]) in self.nodes:
                    self.count("kills of the executor")
                    return self.nodes[int(claimed[1:])]
            elif drawn < 0.8:
                oldest = sorted((held.version, held.node) for held in (await db.leases("accounts")).leases)
                if oldest and oldest[0][1] in self.nodes:
                    self.count("kills of a holder of the oldest lease")
                    return self.nodes[oldest[0][1]]
        except SlackwaterError:
            pass
        return anyone

    async def note(self, db: AsyncDatabase, every_s: float) -> None:
        while not self.stopping.is_set():
            self.moments.append(db.now())
            await asyncio.sleep(every_s)

    # --- in the end

    async def judge(self, db: AsyncDatabase) -> int:
        """Compare every index with its table at every moment; returns how many comparisons were made."""
        history, compared = await db.history("accounts"), 0
        for moment in [*self.moments, db.now()]:
            snapshot = await db.snapshot(tables=["accounts"], as_of=moment)
            then = history.at(snapshot.timestamp)
            assert then is not None
            rows = (await snapshot.scan("accounts", index="primary")).to_pylist()
            assert sum(row["balance"] for row in rows) == ACCOUNTS * FIRST_BALANCE
            for index in then.indexes:
                if index.state.public:
                    found = (await snapshot.scan("accounts", index=index.name)).to_pylist()
                    assert sorted(found, key=_key) == sorted(rows, key=_key), f"{index.name} at {moment}"
                    compared += 1
        return compared


async def move(tx: AsyncTransaction, *, one: int, other: int, amount: int) -> None:
    """Move money from one account to the other."""
    paying, paid = await tx.get("accounts", one), await tx.get("accounts", other)
    assert paying is not None
    assert paid is not None
    rows = [paying | {"balance": paying["balance"] - amount}, paid | {"balance": paid["balance"] + amount}]
    await tx.upsert("accounts", rows)


def _key(row: dict[str, Any]) -> int:
    return int(row["id"])


async def play(cluster: Processes, seed: int, seconds: float) -> None:
    await cluster.make_whole()
    me = Play(cluster, seed)
    async with slackwater.aconnect(me.url, timeout=20) as db:
        await db.create_table("accounts", {"id": "int8", "owner": "text", "balance": "int8 not null"}, primary_key="id")
        rows = [{"id": n, "owner": f"o{n}", "balance": FIRST_BALANCE} for n in range(ACCOUNTS)]
        await db.upsert("accounts", rows)
        await db.create_index("accounts", "by_balance", ["balance"])
        me.nodes = {place.node: cluster.addresses.index(place.address) for place in await db.nodes()}
        every_s = max(0.1, seconds / (MOMENTS + 10))
        async with asyncio.TaskGroup() as tasks:
            for number in range(TRANSFERERS):
                tasks.create_task(me.transfer(db, number))
            tasks.create_task(me.change(db))
            tasks.create_task(me.note(db, every_s))
            tasks.create_task(me.hurt(db, seconds))
        await cluster.wait_live()
        for job in await db.jobs.list(kind="schema-change"):
            assert (await me.ended(db, job.id)).status in (Status.SUCCEEDED, Status.FAILED)
        assert len(me.moments) >= MOMENTS
        compared = await me.judge(db)
    took = sorted(me.took)
    quiet = [seconds for seconds, _, kills in took if not kills]
    print(me.counts)
    print(f"{len(took)} changes, {compared} comparisons of an index with its table at {len(me.moments)} moments")
    print(f"median of a change without a kill {statistics.median(quiet or [0]):.2f} s; the longest of all: {took[-3:]}")
    print(f"the longest with one kill: {[change for change in took if change[2] == 1][-2:]}")
    assert me.counts["transfers"] > 10
    assert me.counts["change succeeded"] > 1
    assert compared > 10


def test_indexes_fit_their_table_while_nodes_are_killed(tmp_path: Path) -> None:
    seed = int(os.environ.get("SLACKWATER_FAULT_SEED", "0")) or time.time_ns() & 0xFFFFFF
    print(f"SLACKWATER_FAULT_SEED={seed}")
    usual = {setting.name: setting.default for setting in ALL_SETTINGS if setting.name in DURATIONS}

    async def main() -> None:
        settings = usual if SECONDS else QUICK
        log_url = f"sqlite://{tmp_path}/log.db"
        async with Processes(tmp_path, nodes=3, log_url=log_url, settings=settings) as cluster:
            await play(cluster, seed, SECONDS or SHORT_S)

    asyncio.run(main())
