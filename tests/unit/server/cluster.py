"""Whole nodes in one process: one log and one network for all, memory engines, the real loop. No fixed sleeps.

async with Cluster(3) as cluster:
    await cluster.nodes[0].admin.split(kv(b"m"))
    await cluster.until(lambda: …)          polls a condition, with a deadline
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.arrow import settle_pandas
from slackwater.codec.layout import kv
from slackwater.log.memory import MemoryLog
from slackwater.replica.evaluation import Permit
from slackwater.runtime import LocalNet, RealRuntime
from slackwater.runtime.rpc import SUPPORTED, ProtocolVersions
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.storage.memory import MemoryDisk, MemoryEngine

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.replica.driver import ApplyListener
    from slackwater.replica.state import RangeState
    from slackwater.server.member import Member

settle_pandas()  # the nodes' threads must not do it, two at a time
DEADLINE_S = 20.0
FAST = {
    "liveness.heartbeat_interval": 0.1,
    "liveness.duration": 1.0,
    "lease.duration": 2.0,
    "clock.max_offset": 0.05,
    "store.flush_interval": 0.1,
    "queue.interval": 0.0,
    "range.quiet_period": 0.0,
    "range.frozen_patience": 0.0,
}


class _UpToNow:
    """Rules that protect nothing and keep no history."""

    def __init__(self, node: Member) -> None:
        self._node = node

    def permit(self, state: RangeState) -> Permit:
        return Permit(self._node.clock.now())

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        return MIN


class Cluster:
    """Nodes n1… in one process; queues are off unless a test turns them on."""

    def __init__(
        self,
        size: int,
        *,
        locality: tuple[str, ...] = (),
        versions: tuple[ProtocolVersions, ...] = (),
        **settings: float,
    ) -> None:
        values = {**FAST, **{name.replace("__", "."): value for name, value in settings.items()}}
        self.settings = Settings(values)
        self.net = LocalNet(self.settings)
        self._localities = [(("zone", z),) for z in locality] or [()] * size
        self.size = size
        self.versions = versions
        self.nodes: list[Member] = []

    async def __aenter__(self) -> Cluster:
        self.log = MemoryLog("test", rng=RealRuntime(disk=MemoryDisk(), net=self.net).rng)
        for number in range(self.size):
            await self.add(MemoryEngine(), number)
        await self.until(lambda: all(n.liveness.own() and len(n.liveness.all()) == self.size for n in self.nodes))
        await self.until(lambda: all(len(n.book.nodes) == self.size for n in self.nodes), poke=self._learn)
        return self

    async def add(self, engine: MemoryEngine, number: int, *, listener: ApplyListener | None = None) -> Member:
        """Start a node; the first makes the cluster, the others join it."""
        runtime = RealRuntime(disk=MemoryDisk(), net=self.net)
        node = Node(
            runtime=runtime,
            scope=runtime.scope(f"n{number + 1}"),
            engine=engine,
            log=self.log.handle(),
            address=f"n{number + 1}:7400",
            settings=Settings(self.settings),
            join=() if number == 0 else ("n1:7400",),
            locality=self._localities[number] if number < len(self._localities) else (),
            listener=listener,
            versions=self.versions[number] if number < len(self.versions) else SUPPORTED,
        )
        await node.start()
        if number == 0 and not node.node_id:
            await node.init(cluster_id="test")
        member = await asyncio.wait_for(node.joined(), DEADLINE_S)
        if number < len(self.nodes):
            self.nodes[number] = member
        else:
            self.nodes.append(member)
        return member

    async def _learn(self) -> None:
        for node in self.nodes:
            await node.book.refresh(node.system)

    async def __aexit__(self, *exc: object) -> None:
        for node in self.nodes:
            await self.kill(node)

    async def kill(self, node: Member) -> None:
        """End a node without any goodbye."""
        await node.server.close()
        await node.dialer.close()
        await node.scope.close()

    async def until(self, condition: Callable[[], Any], *, poke: Callable[[], Awaitable[Any]] | None = None) -> None:
        """Return once the condition holds; fails after a deadline, with the state of the cluster."""
        async with asyncio.timeout(DEADLINE_S):
            try:
                while not condition():
                    if poke is not None:
                        await poke()
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                print("\n".join(n.status() for n in self.nodes))
                raise

    async def fill(self, count: int, *, prefix: bytes = b"k", size: int = 10) -> None:
        """Write some keys."""
        keys = [kv(prefix + b"%06d" % i) for i in range(count)]
        await self.nodes[0].kv.put_rows(keys, [b"v" * size] * count)

    def collect_upto_now(self) -> None:
        """Let ranges collect everything up to the present: for tests of what is refused afterwards."""
        for node in self.nodes:
            node.store.context.retention = _UpToNow(node)

    async def keys(self) -> list[bytes]:
        """Everything in the plain key space, read through the last node."""
        rows = await self.nodes[-1].kv.scan(kv(b""), b"\x05")
        return rows.keys
