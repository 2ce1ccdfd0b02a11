"""A process with a store: what it is before it belongs to a cluster, and what it keeps afterwards.

    Node
    ├── HybridClock, OffsetMonitor        time, and whether to trust it
    ├── RpcServer, Dialer                 the way in and the way out
    ├── AddressBook                       where other nodes are
    └── Member                            everything else, once it belongs to a cluster (`member.py`)

The same class runs in production, in tests and in the simulator. A store without identity is no member yet: it either becomes the
first of a new cluster (`init`) or joins one. From then on its identity is on disk and is checked at every start, the log's
identity included. Until then the node answers `node.hello`, `node.init` and `node.report`; whatever else is asked of it gets
`UnavailableError` with a word about what to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock import HybridClock, OffsetMonitor, SteadyWall, StepGuard
from slackwater.errors import ClockError, LogIdentityMismatch, SlackwaterError, UnavailableError, UsageError
from slackwater.jobs import JobTypes
from slackwater.model.descriptors import NodeDescriptor, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.node import services
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.rpc.server import RpcServer
from slackwater.runtime.rpc.versions import SUPPORTED, ProtocolVersions
from slackwater.runtime.sync import Event
from slackwater.server.addresses import AddressBook
from slackwater.server.bootstrap import FIRST_FREE_RANGE_ID, FIRST_NODE, bootstrap_store
from slackwater.server.clock_hook import HybridClockHook
from slackwater.server.identity import (
    StoreIdentity,
    StoreLives,
    check_heads,
    check_log,
    read_identity,
    write_identity,
)
from slackwater.server.member import Member
from slackwater.server.membership import check_node, check_told
from slackwater.server.reports import report
from slackwater.settings import Settings

if TYPE_CHECKING:
    from slackwater.log.contract import OrderedLog
    from slackwater.replica.driver import ApplyListener
    from slackwater.replica.driver.liveness import Lives
    from slackwater.runtime.access import Certificate
    from slackwater.runtime.credentials import Credentials
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.seam import Address, Engine, Runtime, TaskScope

JOIN_PAUSE_S = 0.5


class Node:
    """A process that is a node of a cluster, or of a cluster to be."""

    def __init__(
        self,
        *,
        runtime: Runtime,
        scope: TaskScope,
        engine: Engine,
        log: OrderedLog,
        address: Address,
        settings: Settings | None = None,
        join: tuple[Address, ...] = (),
        locality: tuple[tuple[str, str], ...] = (),
        listener: ApplyListener | None = None,
        versions: ProtocolVersions = SUPPORTED,
    ) -> None:
        self.runtime = runtime
        self.scope = scope
        self.engine = engine
        self.log = log
        self.address = address
        self.locality = locality
        self.settings = settings or Settings()
        self.join = join
        offset_s = self.settings["clock.max_offset"]
        wall_ns, monotonic_ns = runtime.clock.wall_ns, runtime.clock.monotonic_ns
        steady = SteadyWall(wall_ns, monotonic_ns, max_offset_s=offset_s)
        self.clock = HybridClock(steady, max_offset_s=offset_s)
        self.offsets = OffsetMonitor(max_offset_s=offset_s)
        self.steps = StepGuard(
            self.clock, wall_ns=wall_ns, monotonic_ns=monotonic_ns, max_offset_s=offset_s, steady=steady
        )
        self.identity = Identity(versions=versions)
        self.ready = Event()
        """Set once the node belongs to a cluster and serves."""
        self.credentials: Credentials | None = None
        """The certificates it shows, if it shows some."""
        self.listener = listener
        """Told of everything that replicas here apply; for tests and the simulator."""
        self.hook = hook = HybridClockHook(self.clock, self.offsets, own=self._is_me)
        self.server = RpcServer(
            runtime, scope, identity=self.identity, settings=self.settings, hook=hook, check_node=self._check_node
        )
        self.server.why_unserved = self._why_unserved
        self.dialer = Dialer(runtime, scope, identity=self.identity, settings=self.settings, hook=hook)
        self.book = AddressBook(address, join, self.dialer, local_first_range=self._local_first_range)
        self.member: Member | None = None
        """What this process is in its cluster, once it belongs to one."""
        self.job_types = JobTypes()
        """What this node can do for jobs; the parts of the node that have work of this kind add theirs."""
        self._initializing = False
        self.stopping = False
        """Whether this node was asked to stop: it begins nothing more."""
        self._serve()

    @property
    def node_id(self) -> NodeId:
        """0 before the node belongs to a cluster."""
        return NodeId(self.identity.node_id)

    def _is_me(self, peer: str) -> bool:
        """Whether that name of a peer (`n3`, or an address) is this node's own."""
        return peer in (f"n{self.identity.node_id}", self.address)

    # --- starting ----------------------------------------------------------------------------------------------------

    async def start(self, *, listen: Address | None = None) -> None:
        """Listen; go on from the identity on disk, or join, or wait for `init`."""
        identity = read_identity(self.engine)
        if identity is not None:
            check_log(identity, self.log.identity())
            await self._check_heads()
        if self.stopping:
            return
        bound = await self.server.listen(listen or self.address)
        if self.address.endswith(":0"):
            self.address = bound
        if identity is not None:
            try:
                await self._begin_life(identity)
            except BaseException:
                await self.server.close()  # a start that met damage is tried again in this process, at the same address
                raise
        elif self.join:
            self.scope.spawn(self._join_cluster(), name="join")

    async def _check_heads(self) -> None:
        try:
            await check_heads(self.engine, self.log, self.runtime, self.scope)
        except UnavailableError:
            if not self.stopping:  # asked to stop meanwhile: then its tasks have ended, and this one ends as well
                raise

    async def init(self, *, cluster_id: str | None = None) -> str:
        """Make this empty store the first node of a new cluster."""
        if read_identity(self.engine) is not None or self._initializing:
            raise UsageError("this store already belongs to a cluster; there is nothing to initialize")
        self._initializing = True
        try:
            return await self._init(cluster_id)
        finally:
            self._initializing = False

    async def _init(self, cluster_id: str | None) -> str:
        name = cluster_id or self.runtime.rng.bytes(8).hex()
        for range_id in range(1, FIRST_FREE_RANGE_ID):
            if await self.log.head(RangeId(range_id)):
                raise LogIdentityMismatch(
                    "this log already holds a cluster's entries; a new cluster needs an empty log"
                )
        if self.stopping:
            raise UnavailableError("this node was asked to stop; it begins no cluster")
        identity = StoreIdentity(name, FIRST_NODE, self.log.identity())
        bootstrap_store(self.engine, identity, self.clock.now())
        await self._begin_life(identity)
        return name

    async def _join_cluster(self) -> None:
        kind, name, incarnation = self.log.identity()
        request = services.JoinRequest(self.address, self.locality, (kind, name, incarnation))
        while not self.node_id:
            self.steps.accept()  # it has stamped nothing that binds another node: a clock that was put right is right from now on
            for address in self.join:
                try:
                    reply = await self.dialer.call(address, services.JOIN, request, timeout=10.0)
                except (LogIdentityMismatch, UsageError):
                    raise
                except SlackwaterError:
                    continue
                if self.stopping or self._initializing or read_identity(self.engine) is not None:
                    return  # it ends, or was made the first of a new cluster meanwhile; its neighbours join it then
                identity = StoreIdentity(reply.cluster_id, reply.node_id, self.log.identity(), reply.born)
                await write_identity(self.engine, identity)
                self.book.learn(reply.nodes)
                await self._begin_life(identity)
                return
            await self.runtime.clock.sleep(JOIN_PAUSE_S)

    async def _begin_life(self, identity: StoreIdentity) -> None:
        """Write down that another process runs on this store, durably, and act as its node.

        A node that was asked to stop writes nothing more: the flush by which it ends has begun, and it is the last word.
        """
        if self.stopping:
            return
        lives = StoreLives(self.engine, self.runtime.rng)
        await lives.claim()
        if not self.stopping:  # asked to stop meanwhile, while the store was slow
            self.start_as_member(identity, lives)

    def start_as_member(self, identity: StoreIdentity, lives: Lives) -> None:
        """Become the node that this identity names, and serve as it from this very step on."""
        self.identity.cluster_id, self.identity.node_id = identity.cluster_id, identity.node_id
        self.member = Member(self, identity, lives)
        self.member.start()
        self.ready.set()

    async def joined(self) -> Member:
        """What this process is in its cluster; waits until it belongs to one."""
        await self.ready.wait()
        return self.here()

    def here(self) -> Member:
        """What this process is in its cluster; raises `UnavailableError` while it belongs to none."""
        if self.member is None:
            raise UnavailableError("this node belongs to no cluster yet; run `slackwater init` or start it with --join")
        return self.member

    async def stop(self) -> None:
        """Stop gracefully: nothing more is served, what was applied is durable, and leases need not expire."""
        self.stopping = True
        if self.member is not None:
            await self.member.leave()
        await self.server.close()
        if self.member is not None:
            await self.member.close()
        else:  # it was still beginning, and what it wrote of that must not be lost either
            await self.engine.flush()
        await self.dialer.close()
        await self.scope.close()

    # --- serving -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        self.server.handle_sync(services.HELLO, self._on_hello)
        self.server.handle(services.INIT, self._on_init)
        self.server.handle_sync(services.REPORT, self._on_report)

    def _why_unserved(self) -> SlackwaterError | None:
        """Why a method that has no handler has none: most belong to members."""
        try:
            self.here()
        except UnavailableError as error:
            return error
        return None

    def _check_node(self, node_id: int, certificate: Certificate | None) -> None:
        check_node(self.book, node_id, certificate)

    def _on_hello(self, request: services.HelloRequest, context: Context) -> services.HelloReply:
        if request.node is not None and request.node.node_id:
            check_told(request.node, context, latest=self.clock.now())
            self.book.learn([request.node])
        own = self.book.own or NodeDescriptor(self.node_id, self.address, self.locality)
        return services.HelloReply(
            self.identity.cluster_id, own, list(self.book.nodes.values()), self.book.known_first_range()
        )

    async def _on_init(self, request: services.InitRequest, context: Context) -> services.InitReply:
        cluster_id = await self.init(cluster_id=request.cluster_id or None)
        return services.InitReply(cluster_id, self.node_id, joins=bool(self.join))

    def _on_report(self, request: services.ReportRequest, context: Context) -> services.ReportReply:
        return report(self)

    def _local_first_range(self) -> RangeDescriptor | None:
        return None if self.member is None else self.member.first_range()

    # --- clock and state ---------------------------------------------------------------------------------------------

    def check_clock(self) -> None:
        """Raise `ClockError` while this node's clock must not be relied on (I-01)."""
        self.steps.check(self.offsets)
        if not self.offsets.all_well:
            self.offsets.check(self.runtime.clock.monotonic_ns())

    def why_unfit(self) -> list[str]:
        """Why this node leads nothing now, its clock included; empty when it may."""
        reasons = [] if self.member is None else self.member.fitness.reasons()
        try:
            self.check_clock()
        except ClockError as error:
            reasons.append(str(error))
        return reasons

    def status(self) -> str:
        """A few lines for people."""
        line = f"n{self.node_id} {self.address} cluster={self.identity.cluster_id or '-'} {self.clock.status()}"
        return line if self.member is None else f"{line}\n{self.member.status()}"
