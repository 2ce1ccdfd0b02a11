"""A bank on three real nodes, while they are killed with -9, paused and restarted in turn.

The clients never stop. Whatever happens to the nodes, in the end every acknowledged transfer is there exactly once, no
failed one is, the total was right at every instant, and the whole history is serializable: see `bank.py`.

`SLACKWATER_FAULT_SECONDS=600 pytest tests/integration/test_cluster_bank.py` runs the same for ten minutes;
`SLACKWATER_FAULT_SEED` repeats a run's choices (not its timing).
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from typing import TYPE_CHECKING

import pytest

from slackwater.errors import SlackwaterError
from slackwater.log.nats_server import LocalNats
from slackwater.runtime import run
from slackwater.runtime.clock import RealClock
from slackwater.server.remote import connect
from tests.integration.bank import Bank, account, ledger_key
from tests.integration.cluster import Processes, client_settings, merge, split, spread
from tests.integration.digests import digests

if TYPE_CHECKING:
    from slackwater.server.remote import Remote

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]

SECONDS = float(os.environ.get("SLACKWATER_FAULT_SECONDS", "0"))
SQLITE_SECONDS, NATS_SECONDS = SECONDS or 40.0, SECONDS or 30.0
CLIENTS = 8
ACCOUNTS = 24
AWAY_S = 7.0
PATIENCE_S = (15.0, 1.0)
"""Patient clients sit a failover out; impatient ones give up in the middle of things and leave intents behind."""


def seed_of_this_run() -> int:
    seed = int(os.environ.get("SLACKWATER_FAULT_SEED", "0")) or time.time_ns() & 0xFFFFFF
    print(f"SLACKWATER_FAULT_SEED={seed}")
    return seed


class Faults:
    """Does something bad to one node after the other. The others must go on; after a blackout all of them.

    After each of them a range is split or two are merged.
    """

    def __init__(self, cluster: Processes, seed: int, *, servers: LocalNats | None = None) -> None:
        self.cluster = cluster
        self.servers = servers
        self.random = random.Random(seed)
        self.done: dict[str, int] = {}
        self.current = ""
        """What is being done to the cluster."""

    async def run(self, seconds: float, remote: Remote) -> None:
        ends = time.monotonic() + seconds
        kinds = ["kill", "pause", "away", "stop", "server" if self.servers else "blackout"]
        turn = 0
        while time.monotonic() < ends:
            kind = kinds[turn % len(kinds)]
            victim = self.random.randrange(len(self.cluster.addresses))
            turn += 1
            self._count(kind)
            self.current = kind
            await getattr(self, f"_{kind}")(victim)
            for index in range(len(self.cluster.addresses)):
                assert self.cluster.running(index), f"n{index + 1} ended by itself"
            self.current = ""
            await self._reshape(remote)
            await asyncio.sleep(self.random.uniform(0.5, 2.0))

    async def _reshape(self, remote: Remote) -> None:
        """Split a range somewhere, or merge two, while the cluster is still busy with the last fault."""
        work = self.random.choice([split, merge])
        try:
            await work(remote, account(self.random.randrange(ACCOUNTS)))
        except SlackwaterError as error:
            self._count(f"{work.__name__}: {type(error).__name__}")
        else:
            self._count(work.__name__)

    def _count(self, what: str) -> None:
        self.done[what] = self.done.get(what, 0) + 1

    async def _kill(self, victim: int) -> None:
        self.cluster.kill(victim)
        await asyncio.sleep(self.random.uniform(0.0, 3.0))
        await self.cluster.start(victim)

    async def _away(self, victim: int) -> None:
        """Long enough to be given up: the log is trimmed without it, and it comes back by snapshots."""
        self.cluster.kill(victim)
        await asyncio.sleep(AWAY_S)
        await self.cluster.start(victim)

    async def _blackout(self, _: int) -> None:
        """All at once: what was acknowledged is in the log, or in stores that flushed."""
        everyone = range(len(self.cluster.addresses))
        for index in everyone:
            self.cluster.kill(index)
        await asyncio.gather(*(self.cluster.start(index) for index in everyone))

    async def _stop(self, victim: int) -> None:
        assert await self.cluster.stop(victim) == 0, "a graceful stop is a success"
        await asyncio.sleep(self.random.uniform(0.0, 1.0))
        await self.cluster.start(victim)

    async def _pause(self, victim: int) -> None:
        self.cluster.pause(victim)
        await asyncio.sleep(self.random.uniform(0.5, 5.0))
        self.cluster.resume(victim)

    async def _server(self, victim: int) -> None:
        self.servers.kill(victim)
        await asyncio.sleep(self.random.uniform(0.5, 3.0))
        await self.servers.restart(victim)


async def bank_under_faults(cluster: Processes, faults: Faults, seed: int, seconds: float) -> None:
    await cluster.make()
    await cluster.wait_live()
    async with connect(cluster.addresses, settings=client_settings()) as remote:
        bank = Bank(accounts=ACCOUNTS, seed=seed)
        for at in (bank.accounts[ACCOUNTS // 3], bank.accounts[2 * ACCOUNTS // 3], ledger_key(0)):
            await split(remote, at)
        await spread(remote, cluster)
        await bank.load(remote)
        clients = [
            asyncio.ensure_future(bank.client(remote, n, timeout=PATIENCE_S[n % len(PATIENCE_S)]))
            for n in range(CLIENTS)
        ]
        try:
            await asyncio.sleep(1.0)
            calm = bank.done
            started = time.monotonic()
            await faults.run(seconds, remote)
            took = time.monotonic() - started
            under_faults = bank.done - calm
            await cluster.wait_live()
            await bank.progress(CLIENTS)
        finally:
            bank.stopping.set()
            await asyncio.gather(*clients)
        versions = await bank.versions(remote)
        problems = bank.judge(versions)
        copies = await digests(remote)
        print(bank.summary())
        print(f"calm {calm} txn/s; under faults {under_faults / took:.0f} txn/s for {took:.0f} s; {faults.done}")
        assert not problems, "\n".join(problems[:10])
        assert all(len(different) == 1 for different in copies.values()), f"replicas differ: {copies}"


def test_bank_over_sqlite_survives_kills_pauses_and_restarts(tmp_path):
    async def main() -> None:
        seed = seed_of_this_run()
        async with Processes(tmp_path, nodes=3, log_url=f"sqlite://{tmp_path}/log.db") as cluster:
            await bank_under_faults(cluster, Faults(cluster, seed), seed, SQLITE_SECONDS)

    run(main())


def test_bank_over_nats_survives_kills_of_nodes_and_log_servers(tmp_path):
    pytest.importorskip("nats")

    async def main() -> None:
        seed = seed_of_this_run()
        async with (
            LocalNats(tmp_path / "nats", servers=3, clock=RealClock()) as servers,
            Processes(tmp_path, nodes=3, log_url=servers.url(stream="bank")) as cluster,
        ):
            await bank_under_faults(cluster, Faults(cluster, seed, servers=servers), seed, NATS_SECONDS)

    run(main())
