"""A cluster of real processes moves from scheme to scheme of closing and back, under load, and followers serve all along."""

from __future__ import annotations

import asyncio
import json

import pytest

import slackwater
from slackwater.errors import SlackwaterError
from slackwater.protocol.range.served import Why
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, spread
from tests.integration.test_policies import command
from tests.integration.test_recover import ACCOUNTS, BALANCE, transfer

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]

NODES = 3
TRIES = 200
SETTINGS = {
    "clock.max_offset": 0.2,
    "closed_timestamp.target_duration": 0.5,
    "closed_timestamp.max_write_age": 0.5,
    "closed_timestamp.empty_command_interval": 0.2,
    "closed_timestamp.propagation_slack": 0.3,
    "feed.poll_interval": 1.0,
}
MOVES = ("store-wide", "max-write-age", "log-driven", "max-write-age", "store-wide", "log-driven")
"""Every move from one scheme to another, there and back."""


async def moved(cluster: Processes, name: str) -> None:
    """Wait until every node closes by that scheme alone."""
    for _ in range(TRIES):
        # A command of its own loop: it must not run inside this one.
        status, text = await asyncio.to_thread(command, "frontier", "--json", "--host", cluster.addresses[0])
        schemes = json.loads(text)["schemes"] if status == 0 else {}
        if len(schemes) == NODES and all(running == [name] for running in schemes.values()):
            return
        await asyncio.sleep(0.1)
    raise AssertionError(f"not every node has moved to {name}: {schemes}")


async def followers_serve(addresses: list[str], since: int) -> None:
    """On every node the past holds all money, and in the end the node itself serves it, with the lease on one of them."""
    followers = 0
    for address in addresses:
        async with slackwater.aconnect(f"slackwater://{address}?timeout=5s") as db:
            for _ in range(TRIES):
                snap = await db.snapshot(min_timestamp=since)
                rows = (await snap.scan("accounts")).to_pylist()
                assert sum(row["balance"] for row in rows) == ACCOUNTS * BALANCE, snap.reads
                assert len(rows) == ACCOUNTS
                if all(read.by_follower or read.why == Why.LEADS.value for read in snap.reads):
                    followers += any(read.by_follower for read in snap.reads)
                    break
                await asyncio.sleep(0.05)
            else:
                raise AssertionError(f"{address} never served by itself: {snap.reads}")
    assert followers >= NODES - 1, "all nodes but the leaseholder serve as followers"


def test_a_running_cluster_moves_between_all_schemes_and_back_while_followers_serve(tmp_path):
    async def main() -> None:
        commits: list[int] = []
        log = f"sqlite://{tmp_path}/log.db"
        async with Processes(tmp_path, nodes=NODES, log_url=log, settings=SETTINGS) as cluster:
            await cluster.make()
            async with slackwater.aconnect(f"slackwater://{','.join(cluster.addresses)}") as db:
                await db.create_table("accounts", {"id": "int8", "balance": "int8 not null"}, primary_key=["id"])
                await db.upsert("accounts", [{"id": n, "balance": BALANCE} for n in range(ACCOUNTS)])
                async with connect(cluster.addresses, settings=client_settings(**{"clock.max_offset": 0.2})) as remote:
                    await spread(remote, cluster)
                since = db.now()
                workers = [asyncio.create_task(transfer(db, n, commits)) for n in range(2)]
                for name in MOVES:
                    before = len(commits)
                    words = ("settings", "set", "closed_timestamp.scheme", name, "--host", cluster.addresses[0])
                    assert await asyncio.to_thread(command, *words) == (0, f"closed_timestamp.scheme = {name}\n")
                    await followers_serve(cluster.addresses, since)
                    await moved(cluster, name)
                    await followers_serve(cluster.addresses, since)
                    assert len(commits) > before, "money moved meanwhile"
                for worker in workers:
                    worker.cancel()
                await asyncio.gather(*workers, return_exceptions=True)
                rows = (await db.scan("accounts")).to_pylist()
                assert sum(row["balance"] for row in rows) == ACCOUNTS * BALANCE

    try:
        asyncio.run(main())
    except SlackwaterError as error:
        raise AssertionError(f"the cluster did not serve: {error}") from error
