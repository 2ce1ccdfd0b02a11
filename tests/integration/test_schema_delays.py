"""How long one dead or frozen node holds a schema change up, on three real processes, and that its return breaks nothing.

    holder      a transaction that is open on a node uses the version before the present one; the next change waits for it; the
                node is killed with -9. The change is made when the lease of the dead is deleted
    executor    a change waits; the node that runs its job is killed with -9, and what it waited for ends. Another node goes on
    frozen      a node is stopped with SIGSTOP while a transaction on it holds a lease, or has altered a table; others build an
                index meanwhile; the node goes on and its client commits. The index equals the table at every noted moment

Times are printed, not asserted: `make delays-schema ROUNDS=10` takes them with the durations that clusters have by default, and
prints their distribution. A change that is held up for ever fails by the timeout of its wait.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import time
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import pytest

import slackwater
from slackwater.client.transaction import AsyncTransaction
from slackwater.errors import RetryableError, SlackwaterError
from slackwater.log.nats_server import LocalNats
from slackwater.model.jobs import Status
from slackwater.runtime.clock import RealClock
from slackwater.settings import SETTINGS as ALL_SETTINGS
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from pathlib import Path

    from slackwater.client.database import AsyncDatabase

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]
ROUNDS = int(os.environ.get("SLACKWATER_SCHEMA_ROUNDS", "0"))
DURATIONS = ("liveness.duration", "liveness.heartbeat_interval", "catalog.lease.duration", "lease.duration")
QUICK = {"catalog.lease.duration": 2.0, "catalog.lease.abandoned_duration": 2.0}
ROWS = 20
NODES = 3
WAIT_S = 120.0


class Trial:
    """Three nodes, a session on each alone, and a table."""

    def __init__(self, cluster: Processes, sessions: list[AsyncDatabase], nodes: dict[int, int]) -> None:
        self.cluster = cluster
        self.sessions = sessions
        self.nodes = nodes
        """By node id, which process it is."""
        self.moments: list[Any] = []

    async def holding(self, process: int) -> AsyncTransaction:
        """A transaction on one node that has written by the present version and stays open."""
        db = self.sessions[process]
        tx = AsyncTransaction(db._gateways, db._tables)
        row = await tx.get("accounts", 1)
        await tx.upsert("accounts", [{**row, "balance": 7}])
        await tx.get("accounts", 2)  # the write is sent with it
        return tx

    async def ended(self, db: AsyncDatabase, job_id: int) -> Any:
        """The job of a change when it has ended, however long gateways are away."""
        async with asyncio.timeout(WAIT_S):
            while True:
                try:
                    job = await db.jobs.get(job_id)
                    if job.status.ended:
                        return job
                except SlackwaterError:
                    pass
                await asyncio.sleep(0.05)

    async def waits(self, db: AsyncDatabase) -> None:
        """Return when a lease is in the way of the table's next version."""
        async with asyncio.timeout(WAIT_S):
            while not any(lease.in_the_way for lease in (await db.leases("accounts")).leases):
                await asyncio.sleep(0.05)

    async def restart(self, process: int) -> None:
        await self.cluster.start(process)
        await self.cluster.wait_live()

    async def judge(self) -> int:
        """Compare every public index with the table at every noted moment; returns how many comparisons were made."""
        db, compared = self.sessions[0], 0
        history = await db.history("accounts")
        for moment in [*self.moments, db.now()]:
            snapshot = await db.snapshot(tables=["accounts"], as_of=moment)
            then = history.at(snapshot.timestamp)
            rows = (await snapshot.scan("accounts", index="primary")).to_pylist()
            for index in then.indexes if then is not None else ():
                if index.state.public:
                    found = (await snapshot.scan("accounts", index=index.name)).to_pylist()
                    assert sorted(found, key=_key) == rows, f"{index.name} at {moment}"
                    compared += 1
        return compared


def _key(row: dict[str, Any]) -> int:
    return int(row["id"])


@asynccontextmanager
async def trial(path: Path, *, frozen: bool = False) -> AsyncIterator[Trial]:
    """Nodes that are `frozen` keep their log on NATS: on SQLite one that is stopped in a commit holds the lock of the file."""
    usual = {setting.name: setting.default for setting in ALL_SETTINGS if setting.name in DURATIONS}
    settings = usual if ROUNDS else QUICK
    async with AsyncExitStack() as stack:
        log_url = f"sqlite://{path}/log.db"
        if frozen:
            servers = await stack.enter_async_context(LocalNats(path / "nats", servers=1, clock=RealClock()))
            log_url = servers.url(stream="delays")
        cluster = Processes(path, nodes=NODES, log_url=log_url, settings=settings)
        await stack.enter_async_context(cluster)
        await cluster.make_whole()
        sessions = [
            await stack.enter_async_context(slackwater.aconnect(f"slackwater://{address}", timeout=WAIT_S))
            for address in cluster.addresses
        ]
        await sessions[0].create_table(
            "accounts", {"id": "int8", "owner": "text", "balance": "int8 not null"}, primary_key="id"
        )
        await sessions[0].upsert("accounts", [{"id": n, "owner": f"o{n}", "balance": 100} for n in range(ROWS)])
        nodes = {place.node: cluster.addresses.index(place.address) for place in await sessions[0].nodes()}
        yield Trial(cluster, sessions, nodes)


async def holder_killed(me: Trial, round_: int) -> float:
    """Seconds from the death of a node to the change that waited for its lease."""
    victim = round_ % NODES
    db = me.sessions[(victim + 1) % NODES]
    await me.holding(victim)
    await db.alter_table("accounts", add_column={f"a{round_}": "text"})
    change = asyncio.create_task(db.alter_table("accounts", add_column={f"b{round_}": "text"}))
    await me.waits(db)
    await asyncio.sleep(1.0)
    assert not change.done(), "it waits for those who write by the version before"
    me.cluster.kill(victim)
    began = time.monotonic()
    await change
    took = time.monotonic() - began
    await me.restart(victim)
    return took


async def executor_killed(me: Trial, round_: int) -> float:
    """Seconds from the death of the node that runs a change to its end, which nothing else holds up."""
    asked, other = round_ % NODES, (round_ + 1) % NODES
    db = me.sessions[other]
    tx = await me.holding(other)
    made = await me.sessions[asked].create_index("accounts", f"i{round_}", "balance", wait=False)
    await me.waits(db)
    async with asyncio.timeout(WAIT_S):
        while not (claimed := (await db.jobs.get(made.jobs[-1].id)).claimed_by):
            await asyncio.sleep(0.05)
    victim = me.nodes[int(claimed[1:])]
    if victim == other:
        db = me.sessions[(other + 1) % NODES]  # the holder runs the change, and dies with both
    me.cluster.kill(victim)
    began = time.monotonic()
    if victim != other:
        await tx.rollback()
    assert (await me.ended(db, made.jobs[-1].id)).status is Status.SUCCEEDED
    took = time.monotonic() - began
    await me.restart(victim)
    await db.drop_index("accounts", f"i{round_}")
    return took


@pytest.mark.parametrize("way", [holder_killed, executor_killed])
def test_a_dead_node_holds_a_change_up_for_a_while_and_not_for_ever(
    tmp_path: Path, way: Callable[[Trial, int], Awaitable[float]]
) -> None:
    async def main() -> None:
        async with trial(tmp_path) as me:
            took = sorted([await way(me, round_) for round_ in range(ROUNDS or 1)])
            shown = " ".join(f"{seconds:.1f}" for seconds in took)
            print(f"{way.__name__}: median {statistics.median(took):.1f} s, longest {took[-1]:.1f} s; all: {shown}")
            await me.judge()

    asyncio.run(main())


@pytest.mark.parametrize("altered", [False, True], ids=["wrote by the old version", "altered the table"])
def test_a_frozen_gateway_comes_back_and_writes_nothing_by_a_version_that_is_gone(
    tmp_path: Path, altered: bool
) -> None:
    async def main() -> None:
        async with trial(tmp_path, frozen=True) as me:
            for round_ in range(ROUNDS or 1):
                frozen = round_ % NODES
                db = me.sessions[(frozen + 1) % NODES]
                tx = await me.holding(frozen)
                if altered:
                    await tx.alter_table("accounts", add_column={f"t{round_}": "text"})
                    await tx.upsert(
                        "accounts", [{"id": 3, "owner": "frozen", "balance": 3, f"t{round_}": "own version"}]
                    )
                    await tx.get("accounts", 3)
                me.cluster.pause(frozen)
                began = time.monotonic()
                await db.create_index("accounts", f"by_balance{round_}", ["balance"], storing=["owner"])
                took = time.monotonic() - began
                for number in range(10):
                    await db.upsert(
                        "accounts", [{"id": number, "owner": "meanwhile", "balance": round_ * 100 + number}]
                    )
                    me.moments.append(db.now())
                me.cluster.resume(frozen)
                with pytest.raises(RetryableError):
                    await tx.commit()
                me.moments.append(db.now())
                # the node that was frozen writes by what it knew, or learns better
                await me.sessions[frozen].upsert("accounts", [{"id": 5, "owner": "back", "balance": -round_ - 1}])
                await me.sessions[frozen].delete("accounts", [6])
                row = await db.get("accounts", 3)
                assert row["owner"] == "meanwhile", "nothing of the frozen transaction was written"
                assert f"t{round_}" not in row
                print(f"frozen (altered: {altered}): the index was there after {took:.1f} s")
                await me.cluster.wait_live()
            assert await me.judge() > 10

    asyncio.run(main())
