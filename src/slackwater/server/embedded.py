"""A whole node inside an application: `slackwater.open("./data")`.

    application thread          loop thread
    Database ─────────────────► AsyncDatabase ── LocalNet ──► Node ── RocksDB in DIR/engine
                                                               └───── log: SQLite in DIR/log.db

The node is a cluster of one; its store is the same as that of `slackwater start`, which can open the directory later and let
others join. Without `listen` it cannot be reached from outside the process, and no port is opened. With `listen` it serves that
loopback address, for tools and for worker processes.
"""

from __future__ import annotations

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from slackwater.client.arguments import path_of
from slackwater.client.connect import opened
from slackwater.client.database import AsyncDatabase
from slackwater.client.gateways import Gateways
from slackwater.client.url import DEFAULT_TIMEOUT_S, SCHEME, seconds_of
from slackwater.errors import UnavailableError
from slackwater.log import open_log
from slackwater.runtime.local import LocalNet
from slackwater.runtime.real import RealRuntime
from slackwater.runtime.sync import timeout
from slackwater.server.arguments import node_net
from slackwater.server.identity import check_log, read_identity
from slackwater.server.node import Node
from slackwater.server.process import StartOptions, log_url, open_store
from slackwater.settings import Settings
from slackwater.storage.rocks import RocksDisk

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from slackwater.client.sync import Database
    from slackwater.runtime.seam import Net

ADDRESS = "embedded:7400"
READY_S = 30.0


@asynccontextmanager
async def embedded(
    directory: Path, *, listen: str = "", settings: Settings | None = None, timeout_s: float = DEFAULT_TIMEOUT_S
) -> AsyncIterator[AsyncDatabase]:
    """A node and a session with it for the length of a block."""
    settings = settings or Settings()
    options = StartOptions(store=directory, listen=listen or ADDRESS, insecure=True)
    net: Net = node_net(settings, credentials=None, insecure=True, listen=listen) if listen else LocalNet(settings)
    runtime: RealRuntime
    runtime = RealRuntime(
        disk=RocksDisk(directory, sleep=lambda s: runtime.clock.sleep(s), settings=settings), net=net, settings=settings
    )
    engine = open_store(directory, runtime)
    scope = runtime.scope("embedded")
    try:
        log = await open_log(
            log_url(options), clock=runtime.clock, rng=runtime.rng, scope=scope.child("log"), settings=settings
        )
        try:
            identity = read_identity(engine)
            if identity is not None:
                check_log(identity, log.identity())
            node = Node(
                runtime=runtime,
                scope=scope.child("node"),
                engine=engine,
                log=log,
                address=options.listen,
                settings=settings,
            )
            await _serve(node)
            gateways = Gateways(runtime, scope, [node.address], settings=settings, timeout_s=timeout_s)
            try:
                await gateways.greet()
                url = f"{SCHEME}://{node.address}" if listen else ""
                yield AsyncDatabase(gateways, scope.child("client"), url=url)
            finally:
                await gateways.close()
                await node.stop()
        finally:
            await log.close()
    finally:
        await scope.close()
        engine.close()
        runtime.close()


def open_database(path: str | Path, *, listen: str = "", timeout: float | str | None = None) -> Database:
    """A node on a loop thread of its own, and a session with it."""
    seconds = DEFAULT_TIMEOUT_S if timeout is None else seconds_of(timeout)
    return opened(embedded(path_of(path, "a data directory"), listen=listen, timeout_s=seconds))


async def _serve(node: Node) -> None:
    await node.start()
    if not node.node_id:
        await node.init()
    try:
        async with timeout(READY_S):
            await node.ready.wait()
    except TimeoutError:
        raise UnavailableError("the node did not become ready in time", seconds=READY_S) from None
