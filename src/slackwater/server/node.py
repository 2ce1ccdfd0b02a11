"""One node: everything wired together. The same class runs in production, in tests and in the simulator.

    Node
    ├── HybridClock, OffsetMonitor        time, and whether to trust it
    ├── RpcServer, Dialer                 the way in and the way out
    ├── Store ── Replica …                the ranges here
    ├── NodeLiveness                      heartbeat
    ├── RangeSender ── KV                 requests to any range, transactions
    ├── TableCatalog, Gateway             tables, and what clients ask for
    ├── NodeFeeds, FeedClient             change feeds: served and read
    ├── Jobs                              durable jobs: claims and runs them
    └── Queues                            split, merge, replicate, lease, trim, check

A store without identity is no node yet: it either becomes the first of a new cluster (`init`) or joins one. From then on
its identity is on disk and is checked at every start, the log's identity included.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock import HybridClock, OffsetMonitor, SteadyWall, StepGuard
from slackwater.closedts.policy import PolicyBook
from slackwater.errors import LogIdentityMismatch, SlackwaterError, UnavailableError, UsageError
from slackwater.gateway.service import Gateway, table_catalog
from slackwater.jobs import JobTypes
from slackwater.model.descriptors import FIRST_RANGE, Lease, Liveness, NodeDescriptor, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.replica.driver import NodeLiveness, Store
from slackwater.routing.nodes import NodeHealth, NodeView
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import KV_BATCH, LocalTransport, RpcTransport
from slackwater.runtime.rpc.dialer import Dialer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.rpc.server import RpcServer
from slackwater.runtime.sync import Event, timeout
from slackwater.server import services as sv
from slackwater.server.addresses import AddressBook
from slackwater.server.admin import Admin
from slackwater.server.admin_service import AdminService
from slackwater.server.announcements import announcements
from slackwater.server.announcing import keep_addresses
from slackwater.server.bootstrap import FIRST_FREE_RANGE_ID, FIRST_NODE, RANGE_ID_KEY, bootstrap_store
from slackwater.server.clock_hook import HybridClockHook
from slackwater.server.closing import serve_updates, side_transport
from slackwater.server.config_service import ConfigService
from slackwater.server.damage import give_up_later
from slackwater.server.drain import drain
from slackwater.server.feeds import feed_client, node_feeds, serve_feeds
from slackwater.server.fitness import Fitness
from slackwater.server.identity import (
    StoreIdentity,
    StoreLives,
    check_heads,
    check_log,
    read_identity,
    write_identity,
)
from slackwater.server.jobs import node_jobs
from slackwater.server.membership import admit, check_node, check_told
from slackwater.server.peers import Peers
from slackwater.server.protection import FeedProtector, PinnedHistory, node_protections
from slackwater.server.queues import Queues
from slackwater.server.queues.context import QueueContext
from slackwater.server.raw_writes import WRITES, check_raw, known_plain
from slackwater.server.records import check_record
from slackwater.server.refetch import refetch
from slackwater.server.reports import capacity, checksum, replica_status, report
from slackwater.server.retention import NodeRetention
from slackwater.server.span_watch import span_watch
from slackwater.server.system_kv import KvAdapter
from slackwater.settings import Settings
from slackwater.txn.kv import KV

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable

    from slackwater.feeds.driver import NodeFeeds
    from slackwater.log.contract import OrderedLog
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.driver import ApplyListener
    from slackwater.replica.driver.liveness import Lives
    from slackwater.replica.snapshot import SnapshotPart
    from slackwater.replica.state import RangeState
    from slackwater.runtime.access import Certificate
    from slackwater.runtime.credentials import Credentials
    from slackwater.runtime.later import Later
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.seam import Address, Engine, Runtime, TaskScope

JOIN_PAUSE_S = 0.5
RELEASE_S = 2.0


class Node:
    """A node of a cluster, or of a cluster to be."""

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
    ) -> None:
        self.runtime = runtime
        self.scope = scope
        self._addresses = scope.child("addresses")
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
        self.identity = Identity()
        self.ready = Event()
        """Set once the node belongs to a cluster and serves."""
        self.credentials: Credentials | None = None
        """The certificates it shows, if it shows some."""
        self._listener = listener
        self.policies = PolicyBook()
        """Which timestamps are closed where; kept up to date by `span_watch`."""
        self.hook = hook = HybridClockHook(self.clock, self.offsets, own=self._is_me)
        self.server = RpcServer(
            runtime, scope, identity=self.identity, settings=self.settings, hook=hook, check_node=self._check_node
        )
        self.dialer = Dialer(runtime, scope, identity=self.identity, settings=self.settings, hook=hook)
        self.book = AddressBook(address, join, self.dialer, local_first_range=self._local_first_range)
        self.store: Store | None = None
        self.liveness: NodeLiveness | None = None
        self.fitness = Fitness(self)
        self.feeds: NodeFeeds | None = None
        self.job_types = JobTypes()
        """What this node can do for jobs; the parts of the node that have work of this kind add theirs."""
        self._initializing = False
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
            await check_heads(self.engine, self.log, self.runtime, self.scope)
        bound = await self.server.listen(listen or self.address)
        if self.address.endswith(":0"):
            self.address = bound
        if identity is not None:
            await self._begin_life(identity)
        elif self.join:
            self.scope.spawn(self._join_cluster(), name="join")

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
        identity = StoreIdentity(name, FIRST_NODE, self.log.identity())
        bootstrap_store(self.engine, identity, self.clock.now())
        await self._begin_life(identity)
        return name

    async def _join_cluster(self) -> None:
        kind, name, incarnation = self.log.identity()
        request = sv.JoinRequest(self.address, self.locality, (kind, name, incarnation))
        while not self.node_id:
            self.steps.accept()  # it has stamped nothing that binds anybody: a clock that was put right is right from now on
            for address in self.join:
                try:
                    reply = await self.dialer.call(address, sv.JOIN, request, timeout=10.0)
                except (LogIdentityMismatch, UsageError):
                    raise
                except SlackwaterError:
                    continue
                if self._initializing or read_identity(self.engine) is not None:
                    return  # this node was made the first of a new cluster meanwhile; its neighbours join it
                identity = StoreIdentity(reply.cluster_id, reply.node_id, self.log.identity(), reply.born)
                await write_identity(self.engine, identity)
                self.book.learn(reply.nodes)
                await self._begin_life(identity)
                return
            await self.runtime.clock.sleep(JOIN_PAUSE_S)

    async def _begin_life(self, identity: StoreIdentity) -> None:
        """Write down that another process runs on this store, durably, and act as its node."""
        lives = StoreLives(self.engine, self.runtime.rng)
        await lives.claim()
        self._become(identity, lives)

    def _become(self, identity: StoreIdentity, lives: Lives) -> None:
        """Start to act as the node this identity names."""
        self.identity.cluster_id, self.identity.node_id = identity.cluster_id, identity.node_id
        node_id = identity.node_id
        self.sender = self._range_sender(node_id)
        self.kv = KV(
            sender=self.sender,
            clock=self.clock,
            runtime=self.runtime,
            settings=self.settings,
            scope=self.scope.child("kv"),
        )
        self.system = KvAdapter(self.kv)
        self.liveness = NodeLiveness(
            node_id,
            self.runtime,
            self.clock,
            self.settings,
            self.system,
            trusted=self.fitness.check_heartbeat,
            lives=lives,
            first_lease=self._first_lease,
        )
        self.store = Store(
            node_id=node_id,
            runtime=self.runtime,
            clock=self.clock,
            settings=self.settings,
            engine=self.engine,
            log=self.log,
            liveness=self.liveness,
            scope=self.scope.child("store"),
            listener=self._listener,
            on_trimmed=self._fetch_later,
            on_damaged=partial(give_up_later, self),
            trusted=self.fitness.check_serving,
            transport=side_transport(self),
            policies=self.policies,
            check_record=check_record,
            life=lives.life,
        )
        self.store.context.on_complaint = self.fitness.complained
        self.sender.directory.held = self.store.descriptor_of
        self.span_watch = span_watch(self, self.store)
        self.feeds = node_feeds(self, self.store)
        self.feed_client = feed_client(self, self.feeds)
        self._administer(self.store, self.liveness)
        self.catalog = table_catalog(self)
        self.jobs = node_jobs(self, self.liveness)
        self.store.start()
        self.feeds.resume()
        self.descriptor = NodeDescriptor(node_id, self.address, self.locality, started_at=self.clock.now())
        self.book.recall(self.engine)
        self.scope.spawn(self.liveness.run(), name="liveness")
        self.fitness.start()
        self._addresses.spawn(keep_addresses(self, self.liveness), name="addresses")
        self.scope.spawn(self.span_watch.run(), name="span config")
        self.scope.spawn(self.queues.run(), name="queues")
        self.announcements = announcements(self, self.liveness)
        self.ready.set()

    def _administer(self, store: Store, liveness: NodeLiveness) -> None:
        """What changes ranges on purpose, and what keeps them in order."""
        self.protections, self.pinned = node_protections(self), PinnedHistory(self)
        self.feed_protector = FeedProtector(self)
        store.context.retention = NodeRetention(self.clock)
        self.peers = Peers(self.dialer, self.book.resolve, self.scope.child("peers"))
        self.admin = Admin(
            sender=self.sender,
            kv=self.kv,
            peers=self.peers,
            liveness=liveness,
            runtime=self.runtime,
            new_range_id=self.new_range_id,
        )
        self.queues = Queues(
            QueueContext(
                node_id=self.node_id,
                store=store,
                admin=self.admin,
                peers=self.peers,
                kv=self.kv,
                system=self.system,
                liveness=liveness,
                book=self.book,
                log=self.log,
                clock=self.clock,
                runtime=self.runtime,
                settings=self.settings,
                scope=self.scope.child("queues"),
                configs=lambda: self.span_watch.known(),
                tables=lambda table_id: self.catalog.find_id(table_id),
            )
        )

    async def stop(self) -> None:
        """Stop gracefully: nothing more is served, what was applied is durable, and nobody has to wait for our leases."""
        if self.liveness is not None and self.store is not None:
            await self.jobs.stop()
            await self.drain()
        await self.server.close()
        if self.liveness is not None and self.store is not None:
            with suppress(SlackwaterError):  # otherwise the record expires by itself
                await self.liveness.leave(horizon=self.store.horizon)
            await self._release_first_range()
            await self.fitness.close()
            await self._addresses.close()  # it writes too, and the store's last flush must be the last word
            await self.store.stop()
        await self.dialer.close()
        await self.scope.close()

    async def drain(self) -> int:
        """Hand every lease over, within `drain.timeout`; returns how many are left. The node still serves."""
        return await drain(self.queues.context)

    async def _release_first_range(self) -> None:
        """Its lease does not end with our liveness record: end it, so that the next holder need not wait for it."""
        replica = self._here().replicas.get(FIRST_RANGE)
        with suppress(SlackwaterError, TimeoutError):
            if replica is not None:
                async with timeout(RELEASE_S):
                    await replica.release_lease()

    # --- serving -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        server = self.server
        server.handle(KV_BATCH, self._on_batch, at_once=self._batch_at_once)
        server.handle_sync(sv.HELLO, self._on_hello)
        server.handle(sv.INIT, self._on_init)
        server.handle(sv.JOIN, self._on_join)
        server.handle_sync(sv.REPORT, self._on_report)
        server.handle_sync(sv.STATUS, self._on_status)
        server.handle_sync(sv.CAPACITY, self._on_capacity)
        server.handle(sv.FETCH, self._on_fetch)
        server.handle_sync(sv.CHECKSUM, self._on_checksum)
        server.handle_sync(sv.QUARANTINE, self._on_quarantine)
        server.handle_stream(sv.SNAPSHOT, self._on_snapshot)
        AdminService(self)
        ConfigService(self)
        self.gateway = Gateway(self)
        serve_updates(server, self._here)
        serve_feeds(self)
        self.fitness.serve(server)

    def _check_node(self, node_id: int, certificate: Certificate | None) -> None:
        check_node(self.book, node_id, certificate)

    def _batch_at_once(self, batch: Batch, context: Context) -> BatchResult | Later[BatchResult] | None:
        if not context.node_id and not known_plain(batch):
            return None
        return self._at_once(batch)

    def _on_batch(self, batch: Batch, context: Context) -> Awaitable[BatchResult]:
        if not context.node_id and not WRITES.isdisjoint(map(type, batch.requests)):
            return self._checked(batch)
        return self._execute(batch)

    async def _checked(self, batch: Batch) -> BatchResult:
        """Execute the batch of a caller that is no node, if its rows and keys are what they should be."""
        await check_raw(self.gateway, batch)
        return await self._execute(batch)

    def _range_sender(self, node_id: NodeId) -> RangeSender:
        remote = RpcTransport(self.dialer, self.book.resolve)
        return RangeSender(
            transport=LocalTransport(node_id, self._execute, remote, at_once=self._at_once),
            runtime=self.runtime,
            scope=self.scope.child("sender"),
            clock=self.clock,
            settings=self.settings,
            first_range=self.book.first_range,
            node_id=node_id,
            locality=self.locality,
            view=self._view,
            at_once=self._at_once,
        )

    def _at_once(self, batch: Batch) -> BatchResult | Later[BatchResult] | None:
        return self._here().at_once(batch)

    def _execute(self, batch: Batch) -> Awaitable[BatchResult]:
        self.fitness.check_serving()
        return self._here().execute_waiting(batch)

    def _on_hello(self, request: sv.HelloRequest, context: Context) -> sv.HelloReply:
        if request.node is not None and request.node.node_id:
            check_told(request.node, context, latest=self.clock.now())
            self.book.learn([request.node])
        own = self.book.own or NodeDescriptor(self.node_id, self.address, self.locality)
        return sv.HelloReply(
            self.identity.cluster_id, own, list(self.book.nodes.values()), self.book.known_first_range()
        )

    async def _on_init(self, request: sv.InitRequest, context: Context) -> sv.InitReply:
        cluster_id = await self.init(cluster_id=request.cluster_id or None)
        return sv.InitReply(cluster_id, self.node_id, joins=bool(self.join))

    def _on_report(self, request: sv.ReportRequest, context: Context) -> sv.ReportReply:
        return report(self)

    async def _on_join(self, request: sv.JoinRequest, context: Context) -> sv.JoinReply:
        self._here()
        return await admit(self, request, context)

    def _on_status(self, request: sv.StatusRequest, context: Context) -> sv.StatusReply:
        store = self._here()
        wanted = request.ranges or sorted(store.replicas)
        found = [replica_status(store, r, self.span_watch) for r in wanted if r in store.replicas]
        return sv.StatusReply(self.node_id, found)

    def _on_capacity(self, request: sv.CapacityRequest, context: Context) -> sv.CapacityReply:
        return capacity(self._here(), self.node_id)

    def _on_checksum(self, request: sv.ChecksumRequest, context: Context) -> sv.ChecksumReply:
        replica = self._here().replicas.get(request.range_id)
        return sv.ChecksumReply(None, "no replica") if replica is None else checksum(replica, request.checksum_id)

    def _on_quarantine(self, request: sv.QuarantineRequest, context: Context) -> sv.Ok:
        replica = self._here().replicas.get(request.range_id)
        if replica is not None:
            replica.quarantine(request.reason)
        return sv.Ok()

    async def _on_snapshot(self, request: sv.SnapshotRequest, context: Context) -> AsyncGenerator[SnapshotPart, None]:
        async for part in self._here().send_snapshot(request.range_id):
            yield part

    async def _on_fetch(self, request: sv.FetchRequest, context: Context) -> sv.Ok:
        await self.fetch(request.range_id, request.source)
        return sv.Ok()

    # --- replicas from elsewhere -------------------------------------------------------------------------------------

    async def fetch(self, range_id: RangeId, source: NodeId) -> RangeState:
        """Install a replica from another node's snapshot."""
        address = self.book.resolve(source)
        if address is None:
            raise UnavailableError(f"the address of n{source} is not known")
        stream = await self.dialer.stream(address, sv.SNAPSHOT, sv.SnapshotRequest(range_id), node_id=source)
        return await self._here().install_snapshot(stream)

    def _fetch_later(self, state: RangeState) -> None:
        """Have a replica that failed, or whose log is gone, fetched from a node that has a good one."""
        self.scope.spawn(refetch(self, self._here(), state.descriptor), name=f"fetch r{state.descriptor.range_id}")

    # --- what others here ask ----------------------------------------------------------------------------------------

    def _here(self) -> Store:
        if self.store is None:
            raise UnavailableError("this node belongs to no cluster yet; run `slackwater init` or start it with --join")
        return self.store

    def _local_first_range(self) -> RangeDescriptor | None:
        replica = self.store.replicas.get(FIRST_RANGE) if self.store else None
        return None if replica is None or replica.failure is not None else replica.state.descriptor

    def _first_lease(self) -> Lease | None:
        """The lease of range 1 as this node has applied it."""
        replica = self.store.replicas.get(FIRST_RANGE) if self.store else None
        return None if replica is None else replica.state.lease

    def _view(self, node_id: NodeId) -> NodeView:
        record: Liveness | None = self.liveness.get(node_id) if self.liveness else None
        if record is None:
            return NodeView(NodeHealth.SUSPECT, self.book.locality(node_id))
        now = self.clock.peek()
        health = NodeHealth.DRAINING if record.draining else NodeHealth.LIVE if record.live_at(now) else NodeHealth.DEAD
        return NodeView(health, self.book.locality(node_id))

    async def new_range_id(self) -> RangeId:
        """An id that no range ever had."""
        return RangeId(await self.system.increment(RANGE_ID_KEY, 1))

    def status(self) -> str:
        """A few lines for people."""
        lines = [f"n{self.node_id} {self.address} cluster={self.identity.cluster_id or '-'} {self.clock.status()}"]
        if self.liveness is not None and self.store is not None:
            lines += [self.liveness.status(), self.store.status(), self.queues.status()]
        return "\n".join(lines)
