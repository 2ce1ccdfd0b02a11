"""What a node is once it belongs to a cluster: the ranges here, what answers for them, and what keeps them in order.

    Member
    ├── Store ── Replica …                the ranges here
    ├── NodeLiveness, Fitness             heartbeat, and whether this node should lead anything
    ├── RangeSender ── KV                 requests to any range, transactions
    ├── TableCatalog, Gateway             tables, and what clients ask for
    ├── NodeFeeds, FeedClient             change feeds: served and read
    ├── Jobs                              durable jobs: claims and runs them
    └── Queues                            split, merge, replicate, lease, trim, check

A `Node` makes its member when it has an identity, and never another one. Every part exists from construction on; `start` begins
what runs by itself. Parts get handed what they need of others when they are made, so the order here is the order of dependency;
where two need each other, the earlier one is given a method of the member.
"""

from __future__ import annotations

from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from slackwater.catalog import TableCatalog
from slackwater.closedts.policy import PolicyBook
from slackwater.errors import SlackwaterError, UnavailableError
from slackwater.gateway.node import GatewayNode
from slackwater.gateway.service import Gateway
from slackwater.jobs import Jobs
from slackwater.model.descriptors import FIRST_RANGE, Lease, Liveness, NodeDescriptor, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.protect.driver import PollingTracker
from slackwater.protocol.node import services
from slackwater.replica.driver import NodeLiveness, Store
from slackwater.routing.nodes import NodeHealth, NodeView
from slackwater.routing.sender import RangeSender
from slackwater.routing.transport import KV_BATCH, LocalTransport, RpcTransport
from slackwater.runtime.sync import timeout
from slackwater.server.admin import Admin
from slackwater.server.admin_service import AdminService
from slackwater.server.announcements import announcements
from slackwater.server.announcing import keep_addresses
from slackwater.server.bootstrap import RANGE_ID_KEY
from slackwater.server.closing import ClosingService, closed_by_followers, closing_schemes
from slackwater.server.cluster_settings import ClusterSettings
from slackwater.server.config_service import ConfigService
from slackwater.server.damage import give_up_later
from slackwater.server.drain import drain
from slackwater.server.feeds import FeedService, feed_client, node_feeds
from slackwater.server.fitness import Fitness
from slackwater.server.lease_settings import abandoned_s, lease_s
from slackwater.server.membership import admit
from slackwater.server.peers import Peers
from slackwater.server.protection import FeedProtector, PinnedHistory, keep_reconciled, node_protections
from slackwater.server.queues import Queues
from slackwater.server.queues.context import QueueContext
from slackwater.server.raw_writes import WRITES, check_raw, known_plain
from slackwater.server.records import check_record
from slackwater.server.refetch import refetch
from slackwater.server.reports import capacity, checksum, replica_status
from slackwater.server.retention import node_retention, refresh_retention
from slackwater.server.system_kv import KvAdapter
from slackwater.server.zone_follower import zone_follower
from slackwater.txn.kv import KV

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.protocol.node.snapshots import SnapshotPart
    from slackwater.protocol.range.requests import Batch, BatchResult
    from slackwater.replica.driver.liveness import Lives
    from slackwater.replica.state import RangeState
    from slackwater.runtime.later import Later
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.identity import (
        StoreIdentity,
    )
    from slackwater.server.node import Node

RELEASE_S = 2.0


class Member:
    """A node of a cluster. Made by `Node.start_as_member`."""

    def __init__(self, node: Node, identity: StoreIdentity, lives: Lives) -> None:
        self.node = node
        self.node_id = node_id = identity.node_id
        self.cluster_id = identity.cluster_id
        self.runtime = node.runtime
        self.scope = node.scope
        self.clock = node.clock
        self.hook = node.hook
        self.settings = node.settings
        self.cluster_settings = ClusterSettings(node.settings)
        self.engine = node.engine
        self.log = node.log
        self.address = node.address
        self.locality = node.locality
        self.dialer = node.dialer
        self.server = node.server
        self.book = node.book
        self._addresses = self.scope.child("addresses")
        self.job_types = node.job_types
        self.descriptor = NodeDescriptor(node_id, self.address, self.locality, started_at=self.clock.now())
        self.policies = PolicyBook()
        """Which timestamps are closed where; kept up to date by `zone_follower`."""
        self.fitness = Fitness(self)
        self.sender = _sender(self, execute=self._execute, at_once=self._at_once, view=self._view)
        self.kv = _kv(self)
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
        self.store = _store(self, lives, on_trimmed=self._fetch_later)
        self.sender.at_once = self.store.at_once
        self.store.context.on_complaint = self.fitness.complained
        self.sender.directory.held = self.store.descriptor_of
        self.zone_follower = zone_follower(self)
        self.feeds = node_feeds(self)
        self.feed_client = feed_client(self)
        self.protection_tracker = PollingTracker(self.kv, settings=self.settings)
        self.protections, self.pinned = node_protections(self), PinnedHistory(self)
        self.feed_protector = FeedProtector(self)
        self.retention = self.store.context.retention = node_retention(self)
        self.peers = Peers(self.dialer, self.book.resolve, self.scope.child("peers"))
        self.admin = Admin(
            sender=self.sender,
            kv=self.kv,
            peers=self.peers,
            liveness=self.liveness,
            runtime=self.runtime,
            new_range_id=self.new_range_id,
        )
        self.catalog = _catalog(self)
        self.queues = Queues(_queue_context(self))
        self.jobs = Jobs(
            self.kv,
            self.job_types,
            node_id=node_id,
            liveness=self.liveness,
            runtime=self.runtime,
            settings=self.settings,
            scope=self.scope.child("jobs"),
        )
        self.announcements = announcements(self)
        self.gateway = Gateway(_gateway_node(self))
        self._serve()

    def start(self) -> None:
        """Begin what runs by itself for as long as the node lives."""
        self.scope.spawn(self.protection_tracker.run(), name="protections")
        self.scope.spawn(keep_reconciled(self), name="reconcile protections")
        self.scope.spawn(self.jobs.run(), name="jobs")
        self.store.start()
        self.feeds.resume()
        self.book.recall(self.engine)
        self.scope.spawn(self.liveness.run(), name="liveness")
        self.fitness.start()
        self._addresses.spawn(keep_addresses(self), name="addresses")
        self.scope.spawn(self.zone_follower.run(), name="span config")
        self.queues.start()
        self.scope.spawn(self.catalog.leases.run(), name="descriptor leases")
        self.scope.spawn(self.announcements.follow(), name="announcements")
        self.scope.spawn(self.announcements.poll(), name="announcements repaired")

    async def leave(self) -> None:
        """Give up what others would have to wait for: jobs and leases. The node still serves."""
        await self.jobs.stop()
        await self.drain()

    async def close(self) -> None:
        """End what writes, the liveness record first, and make durable what was applied. Nothing is served any more."""
        with suppress(TimeoutError):  # otherwise other nodes delete what this one has leased, some seconds later
            async with timeout(RELEASE_S):
                await self.catalog.leases.close()
        with suppress(SlackwaterError):  # otherwise the record expires by itself
            await self.liveness.leave(horizon=self.store.horizon)
        await self._release_first_range()
        await self.fitness.close()
        await self._addresses.close()  # it writes too, and the store's last flush must be the last word
        await self.queues.close()  # so do they: notes of merged ranges, records of columns
        await self.store.stop()

    async def drain(self) -> int:
        """Hand every lease over, within `drain.timeout`; returns how many are left. The node still serves."""
        return await drain(self.queues.context)

    async def _release_first_range(self) -> None:
        """End this node's lease on range 1, which does not end with its liveness record: the next holder need not wait."""
        replica = self.store.replicas.get(FIRST_RANGE)
        with suppress(SlackwaterError, TimeoutError):
            if replica is not None:
                async with timeout(RELEASE_S):
                    await replica.release_lease()

    # --- serving -----------------------------------------------------------------------------------------------------

    def _serve(self) -> None:
        server = self.server
        server.handle(KV_BATCH, self._on_batch, at_once=self._batch_at_once)
        server.handle(services.JOIN, self._on_join)
        server.handle_sync(services.STATUS, self._on_status)
        server.handle_sync(services.CAPACITY, self._on_capacity)
        server.handle(services.FETCH, self._on_fetch)
        server.handle_sync(services.CHECKSUM, self._on_checksum)
        server.handle_sync(services.QUARANTINE, self._on_quarantine)
        server.handle_stream(services.SNAPSHOT, self._on_snapshot)
        self.gateway.serve(server)
        AdminService(self)
        ConfigService(self)
        ClosingService(self)
        FeedService(self)
        self.fitness.serve(server)

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

    def _at_once(self, batch: Batch, now: Timestamp | None = None) -> BatchResult | Later[BatchResult] | None:
        return self.store.at_once(batch, now)

    def _execute(self, batch: Batch) -> Awaitable[BatchResult]:
        self.fitness.check_serving()
        return self.store.execute_waiting(batch)

    async def _on_join(self, request: services.JoinRequest, context: Context) -> services.JoinReply:
        return await admit(self, request, context)

    def _on_status(self, request: services.StatusRequest, context: Context) -> services.StatusReply:
        store = self.store
        wanted = request.ranges or sorted(store.replicas)
        found = [replica_status(store, r, self.zone_follower) for r in wanted if r in store.replicas]
        return services.StatusReply(self.node_id, found)

    def _on_capacity(self, request: services.CapacityRequest, context: Context) -> services.CapacityReply:
        return capacity(self.store, self.node_id)

    def _on_checksum(self, request: services.ChecksumRequest, context: Context) -> services.ChecksumReply:
        replica = self.store.replicas.get(request.range_id)
        return services.ChecksumReply(None, "no replica") if replica is None else checksum(replica, request.checksum_id)

    def _on_quarantine(self, request: services.QuarantineRequest, context: Context) -> services.Ok:
        replica = self.store.replicas.get(request.range_id)
        if replica is not None:
            replica.quarantine(request.reason)
        return services.Ok()

    async def _on_snapshot(
        self, request: services.SnapshotRequest, context: Context
    ) -> AsyncGenerator[SnapshotPart, None]:
        async for part in self.store.send_snapshot(request.range_id):
            yield part

    async def _on_fetch(self, request: services.FetchRequest, context: Context) -> services.Ok:
        await self.fetch(request.range_id, request.source)
        return services.Ok()

    # --- replicas from elsewhere -------------------------------------------------------------------------------------

    async def fetch(self, range_id: RangeId, source: NodeId) -> RangeState:
        """Install a replica from another node's snapshot."""
        address = self.book.resolve(source)
        if address is None:
            raise UnavailableError(f"the address of n{source} is not known")
        stream = await self.dialer.stream(
            address, services.SNAPSHOT, services.SnapshotRequest(range_id), node_id=source
        )
        return await self.store.install_snapshot(stream, wanted=range_id)

    def _fetch_later(self, state: RangeState) -> None:
        """Have a replica that failed, or whose log is gone, fetched from a node that has a good one."""
        if not self.node.stopping:
            self.scope.spawn(refetch(self, state.descriptor), name=f"fetch r{state.descriptor.range_id}")

    # --- what others here ask ----------------------------------------------------------------------------------------

    def first_range(self) -> RangeDescriptor | None:
        """Range 1 as this node has applied it, if it has a replica that has not failed."""
        replica = self.store.replicas.get(FIRST_RANGE)
        return None if replica is None or replica.failure is not None else replica.state.descriptor

    def _first_lease(self) -> Lease | None:
        """The lease of range 1 as this node has applied it."""
        replica = self.store.replicas.get(FIRST_RANGE)
        return None if replica is None else replica.state.lease

    def _view(self, node_id: NodeId) -> NodeView:
        record: Liveness | None = self.liveness.get(node_id)
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
        return "\n".join([self.liveness.status(), self.store.status(), self.queues.status()])


def _sender(
    member: Member,
    *,
    execute: Callable[[Batch], Awaitable[BatchResult]],
    at_once: Callable[..., BatchResult | Later[BatchResult] | None],
    view: Callable[[NodeId], NodeView],
) -> RangeSender:
    """Sends to any range: to those here without a detour, to the others by RPC."""
    remote = RpcTransport(member.dialer, member.book.resolve)
    return RangeSender(
        transport=LocalTransport(member.node_id, execute, remote, at_once=at_once),
        runtime=member.runtime,
        scope=member.scope.child("sender"),
        clock=member.clock,
        settings=member.settings,
        first_range=member.book.first_range,
        node_id=member.node_id,
        locality=member.locality,
        view=view,
        at_once=at_once,
        old_enough=partial(closed_by_followers, member),
    )


def _kv(member: Member) -> KV:
    return KV(
        sender=member.sender,
        clock=member.clock,
        runtime=member.runtime,
        settings=member.settings,
        scope=member.scope.child("kv"),
    )


def _catalog(member: Member) -> TableCatalog:
    catalog = TableCatalog(
        member.kv,
        clock=member.clock,
        runtime=member.runtime,
        settings=member.settings,
        scope=member.scope.child("catalog"),
        node_id=member.node_id,
        liveness=member.liveness,
        give_up=partial(member.liveness.step_down, horizon=member.store.horizon),
        abandoned_s=partial(abandoned_s, started_with=member.cluster_settings.started_with),
    )
    member.liveness.on_own = catalog.leases.book.renewed
    member.liveness.lease_s = partial(lease_s, member.settings)
    return catalog


def _store(member: Member, lives: Lives, *, on_trimmed: Callable[[RangeState], None]) -> Store:
    return Store(
        node_id=member.node_id,
        runtime=member.runtime,
        clock=member.clock,
        settings=member.settings,
        engine=member.engine,
        log=member.log,
        liveness=member.liveness,
        scope=member.scope.child("store"),
        listener=member.node.listener,
        on_trimmed=on_trimmed,
        on_damaged=partial(give_up_later, member),
        trusted=member.fitness.check_serving,
        transport=closing_schemes(member),
        policies=member.policies,
        check_record=check_record,
        life=lives.life,
    )


def _queue_context(member: Member) -> QueueContext:
    return QueueContext(
        node_id=member.node_id,
        store=member.store,
        admin=member.admin,
        peers=member.peers,
        kv=member.kv,
        system=member.system,
        liveness=member.liveness,
        book=member.book,
        log=member.log,
        clock=member.clock,
        runtime=member.runtime,
        settings=member.settings,
        scope=member.scope.child("queues"),
        configs=member.zone_follower.known,
        tables=member.catalog.find_id,
        retention=member.retention,
        refresh_retention=partial(refresh_retention, member),
    )


def _gateway_node(member: Member) -> GatewayNode:
    return GatewayNode(
        cluster_id=member.cluster_id,
        descriptor=member.descriptor,
        runtime=member.runtime,
        scope=member.scope,
        settings=member.settings,
        clock=member.clock,
        kv=member.kv,
        sender=member.sender,
        dialer=member.dialer,
        store=member.store,
        book=member.book,
        catalog=member.catalog,
        policies=member.policies,
        zone_follower=member.zone_follower,
        feed_client=member.feed_client,
        feed_protector=member.feed_protector,
        jobs=member.jobs,
        job_types=member.job_types,
        protections=member.protections,
        pinned=member.pinned,
    )
