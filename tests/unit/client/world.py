"""A client of a cluster in one process: real nodes and a real client over `LocalNet`. No fixed sleeps.

async with Cluster(3) as cluster, session(cluster) as db:
    await db.create_table(...)
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.runtime import RealRuntime
from slackwater.storage.memory import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.unit.server.cluster import Cluster

ACCOUNTS = {"id": "int8", "owner": "text", "balance": "int8 not null"}


@asynccontextmanager
async def session(cluster: Cluster, *gateways: int, timeout_s: float = 10.0) -> AsyncIterator[AsyncDatabase]:
    """A session whose gateways are these nodes (by index; all when none is named), in this order."""
    runtime = RealRuntime(disk=MemoryDisk(), net=cluster.net, settings=cluster.settings)
    scope = runtime.scope("client")
    addresses = [cluster.nodes[i].address for i in gateways or range(len(cluster.nodes))]
    found = Gateways(runtime, scope, addresses, settings=cluster.settings, timeout_s=timeout_s)
    try:
        await found.greet()
        yield AsyncDatabase(found, scope)
    finally:
        await found.close()
        await scope.close()
        runtime.close()


def accounts(count: int, *, first: int = 0, balance: int = 100) -> list[dict[str, object]]:
    """Rows of the table `accounts`."""
    return [{"id": i, "owner": f"o{i}", "balance": balance} for i in range(first, first + count)]
