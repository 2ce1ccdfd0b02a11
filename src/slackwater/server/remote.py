"""A cluster seen from outside: key/value operations and transactions from a process that is no node.

    async with connect(["127.0.0.1:7400", "127.0.0.1:7401"], settings=Settings()) as remote:
        await remote.kv.put(kv(b"a"), b"1")
        await remote.kv.run(transfer)

        Remote
        ├── HybridClock                follows the clocks of the nodes it talks to
        ├── Dialer                     one connection per node
        ├── AddressBook                who is where: asked of any node, refreshed now and then
        └── RangeSender ── KV          the very classes that nodes use

Any address of the cluster will do to begin with: its answer to `node.hello` names the other nodes and the first range.
A node that joins later is met when its address is first needed: a miss makes the book refresh at once.

The client takes the cluster's identity from the first node that answers, so that it never talks to two clusters by a
mistake in the list of addresses.
"""

from __future__ import annotations

from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, cast

from slackwater.clock import HybridClock, OffsetMonitor
from slackwater.errors import SlackwaterError, UnavailableError
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import RpcTransport
from slackwater.runtime.real import RealRuntime
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.sync import timeout
from slackwater.server.addresses import AddressBook
from slackwater.server.arguments import client_net
from slackwater.server.clock_hook import HybridClockHook
from slackwater.server.system_kv import KvAdapter
from slackwater.settings import Settings
from slackwater.txn.kv import KV

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence
    from pathlib import Path

    from slackwater.runtime.seam import Address, Disk, Runtime, TaskScope

REFRESH_S = 5.0
REFRESH_PAUSE_S = 0.2
"""Shortest time between two refreshes: a miss must not become a storm."""


class Remote:
    """A client of a cluster. Made by `connect`; background work is owned by `scope`."""

    def __init__(
        self,
        runtime: Runtime,
        scope: TaskScope,
        addresses: Sequence[Address],
        *,
        settings: Settings,
        cluster_id: str = "",
    ) -> None:
        self.runtime = runtime
        self.scope = scope
        self.identity = Identity(cluster_id=cluster_id)
        self.clock = HybridClock(runtime.clock.wall_ns, max_offset_s=settings["clock.max_offset"])
        hook = HybridClockHook(self.clock, OffsetMonitor(max_offset_s=settings["clock.max_offset"]))
        self.dialer = Dialer(runtime, scope, identity=self.identity, settings=settings, hook=hook)
        self.book = AddressBook("", addresses, self.dialer, local_first_range=lambda: None)
        self.transport = RpcTransport(self.dialer, self.book.resolve)
        self.sender = RangeSender(
            transport=self.transport,
            runtime=runtime,
            scope=scope.child("sender"),
            clock=self.clock,
            settings=settings,
            first_range=self.book.first_range,
        )
        self.kv = KV(sender=self.sender, clock=self.clock, runtime=runtime, settings=settings, scope=scope.child("kv"))
        self._addresses = tuple(addresses)

    async def greet(self) -> None:
        """Find one node that answers and take its cluster for ours."""
        last: SlackwaterError | None = None
        for address in self._addresses:
            try:
                reply = await self.book.greet(address)
            except SlackwaterError as error:
                last = error
                continue
            if reply.cluster_id:
                self.identity.cluster_id = self.identity.cluster_id or reply.cluster_id
                return
            last = UnavailableError("the node belongs to no cluster yet; run `slackwater init`", address=address)
        raise last or UnavailableError("no address was given")

    def start(self) -> None:
        """Keep the address book fresh from now on."""
        self.scope.spawn(self._keep_addresses(), name="addresses")

    async def _keep_addresses(self) -> None:
        system = KvAdapter(self.kv)
        while True:
            with suppress(TimeoutError):
                async with timeout(REFRESH_S):
                    await self.book.missed.wait()
            self.book.missed.clear()
            try:
                await self.book.refresh(system)
            except SlackwaterError:
                await self.book.greet_all()
            await self.runtime.clock.sleep(REFRESH_PAUSE_S)


@asynccontextmanager
async def connect(
    addresses: Sequence[Address],
    *,
    settings: Settings | None = None,
    certs: Path | None = None,
    user: str = "root",
    cluster_id: str = "",
) -> AsyncIterator[Remote]:
    """A client of the cluster that the addresses belong to, in the real world. Raises when no address answers."""
    settings = settings or Settings()
    net = client_net(settings, tuple(addresses), certs=certs, user=user)
    runtime = RealRuntime(disk=cast("Disk", None), net=net, settings=settings)  # a client keeps nothing
    scope = runtime.scope("client")
    remote = Remote(runtime, scope, addresses, settings=settings, cluster_id=cluster_id)
    try:
        await remote.greet()
        remote.start()
        yield remote
    finally:
        await remote.dialer.close()
        await scope.close()
        runtime.close()


@asynccontextmanager
async def connect_kv(
    addresses: Sequence[Address], *, settings: Settings | None = None, certs: Path | None = None, user: str = "root"
) -> AsyncIterator[KV]:
    """`connect`, for those who need the key/value operations only."""
    async with connect(addresses, settings=settings, certs=certs, user=user) as remote:
        yield remote.kv
