"""One real node under mutual TLS on loopback, in this process, and dialers with any certificate.

async with Guarded(directory) as guarded:
    dialer = guarded.dialer("ann")              with the certificate of client ann
    await dialer.call(guarded.address, …)
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from slackwater.codec.arrow import settle_pandas
from slackwater.log.memory import MemoryLog
from slackwater.runtime import RealRuntime, TcpNet
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.runtime.tls import TlsFiles, client_context, client_files, node_files, server_context
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from tests.unit.server.cluster import DEADLINE_S, FAST

if TYPE_CHECKING:
    from pathlib import Path

settle_pandas()


class Guarded:
    """A cluster of one behind certificates, or a node that joins another."""

    def __init__(
        self, certs: Path, *, engine: MemoryEngine | None = None, join: Guarded | None = None, **settings: float
    ) -> None:
        self.certs = certs
        self.settings = Settings({**FAST, **{name.replace("__", "."): value for name, value in settings.items()}})
        self.engine = engine or MemoryEngine()
        self._first = join
        self._ends: list[Any] = []

    async def __aenter__(self) -> Guarded:
        files = node_files(self.certs)
        net = TcpNet(self.settings, server_tls=server_context(files), client_tls=client_context(files))
        self._runtime = RealRuntime(disk=MemoryDisk(), net=net, settings=self.settings)
        self.scope = self._runtime.scope("guarded")
        self.log = MemoryLog("test", rng=self._runtime.rng) if self._first is None else self._first.log
        node = Node(
            runtime=self._runtime,
            scope=self.scope.child("node"),
            engine=self.engine,
            log=self.log.handle(),
            address="127.0.0.1:0",
            settings=self.settings,
            join=() if self._first is None else (self._first.address,),
        )
        await node.start()
        if self._first is None and not node.node_id:
            await node.init(cluster_id="test")
        self.node = await asyncio.wait_for(node.joined(), DEADLINE_S)
        self.address = self.node.address
        return self

    async def __aexit__(self, *exc: object) -> None:
        for dialer in self._ends:
            await dialer.close()
        await self.node.server.close()
        await self.node.dialer.close()
        await self.scope.close()
        self._runtime.close()

    def dialer(self, user: str = "", *, files: TlsFiles | None = None, node_id: int = 0) -> Dialer:
        """A dialer that shows the certificate of a user, or of `files`, and says that it is that node."""
        files = files or client_files(self.certs, user)
        runtime = RealRuntime(disk=MemoryDisk(), settings=self.settings)
        runtime.net = TcpNet(self.settings, client_tls=client_context(files))
        made = Dialer(runtime, self.scope, identity=Identity(node_id=node_id), settings=self.settings)
        self._ends.append(made)
        return made
