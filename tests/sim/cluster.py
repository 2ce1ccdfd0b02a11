"""A small cluster on the simulator for tests of routing and transactions: real nodes, a real client, virtual time.

    world ── n1        `server.Node` on a simulated disk and log
          └─ c1        `RangeSender` and `KV` of their own, over the simulated network

    def test_something():
        async def story(c: Cluster) -> None:
            await c.split(b"m")
            assert await c.kv.get(c.key(b"a")) is None
        play(story)

No line of the product is replaced. What a test may do to the network or to a node it does through the world.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from slackwater import hooks
from slackwater.clock import HybridClock, Timestamp
from slackwater.codec import layout
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE, RangeSender
from slackwater.routing.transport import RpcTransport, Transport
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.runtime.sync import Event
from slackwater.server.addresses import AddressBook
from slackwater.server.node import Node
from slackwater.settings import Settings
from slackwater.sim.fence import fenced
from slackwater.sim.handles import NS
from slackwater.sim.mutants import applied
from slackwater.sim.schedule import SchedulePolicy
from slackwater.sim.tape import Tape
from slackwater.sim.world import World
from slackwater.txn import KV

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.model.ids import NodeId
    from slackwater.runtime.seam import TaskScope
    from slackwater.server.member import Member
    from slackwater.sim.world import SimRuntime

NODE = "n1:7400"
RUN_S = 300


class Hook:
    """Couples the client's clock to its messages."""

    def __init__(self, clock: HybridClock) -> None:
        self.clock = clock

    def stamp(self) -> int:
        return self.clock.now()

    def update(self, ts: int) -> None:
        self.clock.update(Timestamp(ts))

    def measured(self, peer: str, measurement: Any) -> None:
        """Nothing to learn from."""


class Tap:
    """A transport that shows what passes and may lose answers: the network's worst habits, on demand."""

    def __init__(self, inner: Transport) -> None:
        self.inner = inner
        self.sent: list[tuple[NodeId, requests.Batch]] = []
        self.before: Callable[[NodeId, requests.Batch], Awaitable[None]] | None = None
        self.after: Callable[[NodeId, requests.Batch, requests.BatchResult], Awaitable[None]] | None = None

    async def batch(self, node_id: NodeId, batch: requests.Batch) -> requests.BatchResult:
        self.sent.append((node_id, batch))
        if self.before is not None:
            await self.before(node_id, batch)
        result = await self.inner.batch(node_id, batch)
        if self.after is not None:
            await self.after(node_id, batch, result)
        return result

    def kinds(self) -> list[str]:
        """The names of all requests sent so far."""
        return [type(r).__name__ for _, batch in self.sent for r in batch.requests]

    def batches(self) -> list[list[str]]:
        """The names of the requests of each batch."""
        return [[type(r).__name__ for r in batch.requests] for _, batch in self.sent]


class Cluster:
    """What a story is given."""

    def __init__(self, world: World, settings: Settings) -> None:
        self.world = world
        self.settings = settings
        self.nodes: dict[str, Member] = {}
        self.books: list[AddressBook] = []
        self.ready = Event()
        self.done = False
        self.runtime: SimRuntime
        self.scope: TaskScope
        self.clock: HybridClock
        self.tap: Tap
        self.sender: RangeSender
        self.kv: KV

    @property
    def node(self) -> Member:
        return self.nodes["n1"]

    @staticmethod
    def key(name: bytes) -> bytes:
        return layout.kv(name)

    async def boot_node(self, runtime: SimRuntime) -> None:
        scope = runtime.scope(f"{runtime.name} node")
        engine = runtime.disk.open("store")
        founder = runtime.name == "n1"
        node = Node(
            runtime=runtime,
            scope=scope,
            engine=engine,
            log=runtime.log,
            address=f"{runtime.name}:7400",
            settings=self.settings,
            join=() if founder else (NODE,),
        )
        await node.start()
        if founder and not node.node_id:
            await node.init(cluster_id="test")
        self.nodes[runtime.name] = await node.joined()
        if founder:
            self.ready.set()

    async def boot_client(self, runtime: SimRuntime, story: Callable[[Cluster], Awaitable[None]]) -> None:
        await self.ready.wait()
        self.runtime = runtime
        self.scope = runtime.scope("client")
        self.clock = HybridClock(runtime.clock.wall_ns, max_offset_s=self.settings["clock.max_offset"])
        self.sender, self.kv = self.new_client()
        self.tap = self.sender._transport  # type: ignore[assignment]
        await story(self)
        self.done = True

    def new_client(self, *, behind_s: float = 0.0) -> tuple[RangeSender, KV]:
        """Another sender and KV with an empty cache and connections; with a clock of its own if that is behind."""
        clock = self.clock
        if behind_s:
            max_offset_s = self.settings["clock.max_offset"]
            clock = HybridClock(lambda: self.clock._wall_ns() - int(behind_s * NS), max_offset_s=max_offset_s)
        dialer = Dialer(
            self.runtime,
            self.scope,
            identity=Identity(cluster_id="test"),
            settings=self.settings,
            hook=Hook(clock),
        )
        book = AddressBook("c1:1", [NODE], dialer, local_first_range=lambda: None)
        self.books.append(book)
        sender = RangeSender(
            transport=Tap(RpcTransport(dialer, book.resolve)),
            runtime=self.runtime,
            scope=self.scope.child("sender"),
            clock=clock,
            settings=self.settings,
            first_range=book.first_range,
        )
        kv = KV(sender=sender, clock=clock, runtime=self.runtime, settings=self.settings, scope=self.scope.child("kv"))
        return sender, kv

    async def split(self, name: bytes, *, meta: bool = True) -> None:
        """Divide the range of a key there; with `meta`, bring the index up to date as well."""
        at = self.key(name)
        right_id = await self.node.new_range_id()
        answer = await self.node.sender.send([requests.Split(at, right_id)], requests.Header(NO_RANGE))
        (halves,) = answer.results
        assert isinstance(halves, requests.SplitResult)
        if meta:
            for half in (halves.right, halves.left):
                await self.node.kv.put(layout.meta(half.end), msgspec.msgpack.encode(half))

    async def second_node(self, name: bytes) -> Member:
        """Add n2 to the cluster, with a replica of the range that holds a key."""
        self.world.add_node("n2", self.boot_node)
        await self.settle(1)
        while "n2" not in self.nodes:
            await self.settle(0.1)
        added = self.nodes["n2"]
        key = self.key(name)
        old = await self.node.sender.range_of(key)
        both = (self.node.node_id, added.node_id)
        await self.node.sender.send([requests.ChangeReplicas(both, old.generation)], requests.Header(NO_RANGE), at=key)
        await added.fetch(old.range_id, self.node.node_id)
        new = self.node.store.replicas[old.range_id].state.descriptor
        await self.node.kv.put(layout.meta(new.end), msgspec.msgpack.encode(new))
        for book in [self.node.book, *self.books]:
            book.learn([added.descriptor])
        return added

    async def transfer(self, name: bytes, to: NodeId) -> None:
        """Hand the lease of a key's range over."""
        await self.node.sender.send([requests.TransferLease(to)], requests.Header(NO_RANGE), at=self.key(name))

    async def settle(self, seconds: float = 5.0) -> None:
        """Let background work end."""
        await self.runtime.clock.sleep(seconds)

    def intents(self) -> int:
        """Intents in the store."""
        from slackwater.runtime.seam import Family

        cursor = self.node.engine.cursor(Family.LOCK, start=b"", end=b"\xff")
        return len(cursor.chunk(10_000)[0])


def play(
    story: Callable[[Cluster], Awaitable[None]],
    *,
    seed: int = 1,
    settings: dict[str, float] | None = None,
    bugs: frozenset[str] = frozenset(),
    buggify: bool = False,
    policy: SchedulePolicy = SchedulePolicy.UNIFORM,
) -> World:
    """Run a story to its end in virtual time."""
    values = Settings(settings or {})
    with applied(sorted(bugs)), fenced():
        world = World(Tape(seed), values, schedule=policy, buggify=buggify)
        cluster = Cluster(world, values)
        world.install_hooks()
        try:
            world.add_node("n1", cluster.boot_node)
            world.add_client("c1", lambda runtime: cluster.boot_client(runtime, story))
            while not cluster.done and world.loop.now_ns < RUN_S * NS:
                world.loop.run(upto_ns=world.loop.now_ns + NS)
            assert cluster.done, f"the story did not end within {RUN_S} simulated seconds"
        finally:
            hooks.install()
            world.loop.dispose()
    return world
