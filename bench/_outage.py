"""Three real nodes, writers at every gateway, and the longest time each went without an acknowledged write.

    writer 1 ─► n1 ┐                     a writer begins at its own gateway and goes where its client goes;
    writer 2 ─► n2 ├─► one row each      it writes, waits 20 ms, writes again, and notes when it was told *done*
    writer 3 ─► n3 ┘

The rows lie in one range. What is measured is what an application sees: the client library, the gateways, routing, leases,
the log. A write that fails or whose outcome is not known is not an acknowledged one.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import asynccontextmanager, suppress
from itertools import pairwise
from typing import TYPE_CHECKING

from bench._links import Links
from slackwater.client import aconnect
from slackwater.codec.layout import META
from slackwater.errors import SlackwaterError
from slackwater.model.ids import NodeId
from slackwater.protocol.node.admin import DRAIN, DrainRequest
from slackwater.protocol.node.services import (
    INIT,
    REPORT,
    STATUS,
    InitRequest,
    ReplicaStatus,
    ReportRequest,
    StatusRequest,
)
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.runtime import RealRuntime
from slackwater.runtime.ports import free_ports
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.server.remote import connect
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from slackwater.client import AsyncDatabase
    from slackwater.runtime.seam import Disk

NODES = 3
PAUSE_S = 0.02
READY_S = 90.0
WRITERS_PER_NODE = 2
SYSTEM_RANGES = 3
OPERATION_S = 30.0


class Nodes:
    """`slackwater start`, three times, behind links that can be cut."""

    def __init__(self, directory: Path, log_url: str, *, stores: dict[int, Path] | None = None) -> None:
        self.directory = directory
        self.log_url = log_url
        self.links = Links()
        self.addresses: list[str] = []
        self._ports = free_ports(NODES)
        self._stores = stores or {}
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        runtime = RealRuntime(disk=_no_disk())
        self._runtime = runtime
        self._scope = runtime.scope("bench")
        settings = Settings({"rpc.reconnect_pause_max": 0.1})
        self.dialer = Dialer(runtime, self._scope, identity=Identity(), settings=settings)

    async def make(self) -> None:
        """Start all, make a cluster, wait until every range has its replicas."""
        for index in range(NODES):
            self.addresses.append(await self.links.add(index, self._ports[index]))
        for index in range(NODES):
            self.launch(index)
        await self._until("the first node listens", lambda: self._answers(0))
        await self.dialer.call(self.addresses[0], INIT, InitRequest(), timeout=READY_S)
        await self._until("every range has three replicas", self.replicated)

    def launch(self, index: int) -> None:
        """Start a node."""
        store = self._stores.get(index, self.directory / f"n{index + 1}")
        command = [sys.executable, "-m", "slackwater.cli.main", "start", "--store", str(store), "--insecure"]
        command += ["--listen", f"127.0.0.1:{self._ports[index]}", "--advertise", self.addresses[index]]
        command += ["--join", ",".join(self.addresses), "--log", self.log_url, "--http", "none"]
        with (self.directory / f"n{index + 1}.journal").open("ab") as journal:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=journal, stderr=journal, start_new_session=True
            )
        self._processes[index] = process
        self.links.pids[index] = process.pid

    def signal(self, index: int, number: signal.Signals) -> None:
        """Send a signal to a node."""
        os.kill(self._processes[index].pid, number)

    async def drain(self, index: int) -> None:
        """Have a node hand its leases over."""
        await self.dialer.call(self.addresses[index], DRAIN, DrainRequest(), timeout=30.0)

    async def replicas(self) -> list[ReplicaStatus]:
        """Every replica of every node that answers."""
        found: list[ReplicaStatus] = []
        for address in self.addresses:
            with suppress(SlackwaterError):
                found += (await self.dialer.call(address, STATUS, StatusRequest(), timeout=2.0)).replicas
        return found

    async def holders(self) -> dict[int, int]:
        """The index of the node that holds the lease of each range."""
        best: dict[int, tuple[int, int]] = {}
        for status in await self.replicas():
            range_id, lease = int(status.descriptor.range_id), status.lease
            best[range_id] = max(best.get(range_id, (0, 0)), (lease.sequence, lease.holder - 1))
        return {range_id: holder for range_id, (_, holder) in best.items()}

    async def lead(self, range_id: int, index: int) -> None:
        """Hand the lease of a range to a node."""
        async with connect(self.addresses) as remote:
            for status in await self.replicas():
                if status.descriptor.range_id == range_id:
                    at = max(status.descriptor.start, META)
                    await remote.sender.send(
                        [requests.TransferLease(NodeId(index + 1))], requests.Header(NO_RANGE), at=at
                    )
                    return

    async def replicated(self) -> bool:
        """Whether every range has all its replicas, filled."""
        found = await self.replicas()
        counts: dict[int, int] = {}
        for status in found:
            if len(status.descriptor.replicas) == NODES and not status.failure:
                counts[int(status.descriptor.range_id)] = counts.get(int(status.descriptor.range_id), 0) + 1
        return len(counts) >= SYSTEM_RANGES and all(n == NODES for n in counts.values())

    async def close(self) -> None:
        """End every process started here."""
        for process in self._processes.values():
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGCONT)
            process.kill()
            process.wait()
        await self.links.close()
        await self.dialer.close()
        await self._scope.close()
        self._runtime.close()

    async def _answers(self, index: int) -> bool:
        with suppress(SlackwaterError):
            await self.dialer.call(self.addresses[index], REPORT, ReportRequest(), timeout=2.0)
            return True
        return False

    async def _until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        deadline = time.monotonic() + READY_S
        while not await holds():
            if time.monotonic() > deadline:
                raise RuntimeError(f"not in {READY_S:g} s: {what}; see {self.directory}/*.journal")
            await asyncio.sleep(0.2)


def _no_disk() -> Disk:
    return None  # type: ignore[return-value]  # a client keeps nothing


class Writer:
    """Writes one row again and again through a client that begins at one gateway."""

    def __init__(self, number: int, gateway: int) -> None:
        self.number = number
        self.gateway = gateway
        self.acknowledged: list[float] = []
        self.failed = 0

    async def run(self, db: AsyncDatabase) -> None:
        """Write until cancelled."""
        n = 0
        while True:
            n += 1
            try:
                await db.upsert("probe", [{"id": self.number, "n": n}])
            except SlackwaterError:
                self.failed += 1
            else:
                self.acknowledged.append(time.monotonic())
            await asyncio.sleep(PAUSE_S)

    def longest(self, begin: float, end: float) -> float:
        """The longest time in [begin, end] without an acknowledged write."""
        marks = [begin, *(t for t in self.acknowledged if begin < t < end), end]
        return max(later - earlier for earlier, later in pairwise(marks))


@asynccontextmanager
async def writing(nodes: Nodes) -> AsyncIterator[list[Writer]]:
    """Writers at every gateway, all writing for the length of the block."""
    count = WRITERS_PER_NODE * NODES
    writers = [Writer(number, number % NODES) for number in range(count)]
    stacks: list[AbstractAsyncContextManager[AsyncDatabase]] = []
    tasks: list[asyncio.Task[None]] = []
    try:
        for writer in writers:
            order = nodes.addresses[writer.gateway :] + nodes.addresses[: writer.gateway]
            block = aconnect(f"slackwater://{','.join(order)}", timeout=OPERATION_S)
            db = await block.__aenter__()
            stacks.append(block)
            if not writer.number:
                await db.create_table("probe", {"id": "int8", "n": "int8"}, primary_key=["id"])
            tasks.append(asyncio.get_running_loop().create_task(writer.run(db)))
        yield writers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for block in stacks:
            with suppress(Exception):
                await block.__aexit__(None, None, None)
