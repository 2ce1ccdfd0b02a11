"""The programs of a simulated cluster's machines: nodes are `server.Node`, clients are `txn.KV` over real RPC.

    n1 … n5     Node over the simulated disk and log; n1 founds the cluster, the others join it
    c1 … c6     HybridClock, Dialer, AddressBook, RangeSender, KV: what a client library is made of
    op          the same, used by setup, operators and the sweep

A node that is started again finds its identity on its disk and goes on; the program is the same for both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock import HybridClock, OffsetMonitor
from slackwater.errors import SlackwaterError, UnavailableError, UsageError
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import RpcTransport
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.sync import Event
from slackwater.server.addresses import AddressBook
from slackwater.server.clock_hook import HybridClockHook
from slackwater.server.identity import read_identity
from slackwater.server.node import Node
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.cluster_plan import PORT
from slackwater.txn.kv import KV

if TYPE_CHECKING:
    from slackwater.client.database import AsyncDatabase
    from slackwater.client.jobs import AsyncJobClaim
    from slackwater.replica.driver import ApplyListener
    from slackwater.sim.scenarios.cluster_plan import Cluster
    from slackwater.sim.world import SimRuntime

CLUSTER_ID = "sim"
FOUND_AGAIN_S = 0.5


async def node_program(runtime: SimRuntime, cluster: Cluster, listener: ApplyListener) -> None:
    """One node, for as long as the machine is up."""
    name = runtime.name
    switched_on_ns = dict(cluster.plan.late).get(name, 0)
    while cluster.world.loop.now_ns < switched_on_ns:
        await runtime.clock.sleep((switched_on_ns - cluster.world.loop.now_ns) / NS)
    founder = next(iter(cluster.addresses))
    # Others tell the founder where they are. Not so when another process has taken its place: it has to ask to find out.
    alone = name == founder and name not in cluster.world.copied
    engine = runtime.disk.open("store")
    node = Node(
        runtime=runtime,
        scope=runtime.scope(f"{name}/node"),
        engine=engine,
        log=runtime.log,
        address=cluster.addresses.get(name, f"{name}:{PORT}"),
        settings=runtime.settings,
        join=() if alone else tuple(a for n, a in cluster.addresses.items() if n != name),
        listener=listener,
    )
    for add in cluster.on_node:
        add(node)
    cluster.nodes[name] = node
    cluster.world.facts["witness"].engines[name] = engine.engine  # type: ignore[attr-defined] # a SimEngine
    runtime.on_stop(node.stop)
    await node.start()
    while name == founder and read_identity(engine) is None:
        try:
            await node.init(cluster_id=CLUSTER_ID)
        except UsageError:
            raise
        except UnavailableError:
            await runtime.clock.sleep(FOUND_AGAIN_S)
    forever = Event()
    cluster.parked.append(forever)  # or nothing would hold on to this task while it waits
    await forever.wait()


class Client:
    """What a client library is made of."""

    def __init__(self, runtime: SimRuntime, cluster: Cluster) -> None:
        self.runtime = runtime
        self.scope = runtime.scope(f"{runtime.name}/client")
        self.session: AsyncDatabase | None = None
        """The same machine as an application's: a session over gateways, once it needs one (`gateways_work`)."""
        self.claim: AsyncJobClaim | None = None
        """A job that this machine works on (`jobs`)."""
        settings = runtime.settings
        max_offset_s = settings["clock.max_offset"]
        self.clock = HybridClock(runtime.clock.wall_ns, max_offset_s=max_offset_s)
        hook = HybridClockHook(self.clock, OffsetMonitor(max_offset_s=max_offset_s))
        identity = Identity(cluster_id=CLUSTER_ID)
        self.dialer = Dialer(runtime, self.scope, identity=identity, settings=settings, hook=hook)
        self.book = AddressBook("", cluster.addresses.values(), self.dialer, local_first_range=lambda: None)
        self.sender = RangeSender(
            transport=RpcTransport(self.dialer, self.book.resolve),
            runtime=runtime,
            scope=self.scope.child("sender"),
            clock=self.clock,
            settings=settings,
            first_range=self.book.first_range,
        )
        self.kv = KV(
            sender=self.sender, clock=self.clock, runtime=runtime, settings=settings, scope=self.scope.child("kv")
        )

    async def meet(self, nodes: int) -> None:
        """Return once every node has a place in the cluster and this client knows its address."""
        while len(self.book.nodes) < nodes or self.book.known_first_range() is None:
            for address in self.book._join:
                try:
                    await self.book.greet(address)
                except SlackwaterError:
                    continue
            await self.runtime.clock.sleep(0.05)
