"""Administration of ranges: split, merge, move leases and replicas, decommission nodes.

Each operation is a few requests in a fixed order, and each prefix of them is a state the cluster can live with:

    split             [new id] ► Split ► publish            an id is lost; the index is behind until it is repaired
    merge             see merging.py                        a frozen range, found and thawed by a queue
    transfer_lease    TransferLease                         one command
    add a replica     ChangeReplicas ► fetch ► publish      a replica that is named but empty: found and fetched by a queue
    remove one        ChangeReplicas ► publish              its store removes it when it applies that it is not counted

There is no quorum to be careful about: the log has its own. A replica that is named but has no data yet costs nothing but
a place; what must never happen is that it is given the lease, which `transfer_lease` looks after.

Operations may be repeated. One that finds its work done says so by succeeding; one that finds the range changed since it
looked raises `ConditionFailed` or `UnavailableError`, and nothing has happened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.codec.layout import KEY_MAX, check_split_key
from slackwater.errors import AmbiguousResult, ConditionFailed, SlackwaterError, UnavailableError, UsageError
from slackwater.hooks import probe
from slackwater.model.descriptors import FIRST_RANGE, REPLICAS_MAX
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.protocol.range import requests
from slackwater.protocol.range.requests import Header
from slackwater.routing.sender import NO_RANGE
from slackwater.server import merging
from slackwater.server.meta import MetaIndex

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.replica.driver import NodeLiveness
    from slackwater.routing.sender import RangeSender
    from slackwater.runtime.seam import Runtime
    from slackwater.server.peers import Peers
    from slackwater.txn.kv import KV

ADMIN_TIMEOUT_S = 10.0
DESCRIBE_TRIES_MAX = 64
DESCRIBE_PAUSE_S = 0.02


class Decommission(msgspec.Struct, frozen=True):
    """How far a node is from being empty."""

    node_id: NodeId
    replicas_left: list[RangeId]
    leases_left: int

    @property
    def done(self) -> bool:
        """Whether the node may be switched off for good."""
        return not self.replicas_left


class Admin:
    """Changes ranges, from any node of the cluster."""

    key_max = KEY_MAX

    def __init__(
        self,
        *,
        sender: RangeSender,
        kv: KV,
        peers: Peers,
        liveness: NodeLiveness,
        runtime: Runtime,
        new_range_id: Callable[[], Awaitable[RangeId]],
    ) -> None:
        self.sender = sender
        self.kv = kv
        self.peers = peers
        self.runtime = runtime
        self.meta = MetaIndex(kv)
        self._liveness = liveness
        self._new_range_id = new_range_id

    # --- ranges ------------------------------------------------------------------------------------------------------

    async def split(self, at: bytes) -> tuple[RangeDescriptor, RangeDescriptor]:
        """Divide the range that holds `at`, so that one range ends and another begins there."""
        check_split_key(at)
        held = (await self.describe(at)).descriptor
        if held.start == at:
            left = await self.range_below(at)
            await self.meta.publish(left, held)
            return left, held
        if held.range_id == FIRST_RANGE:
            raise UsageError("the first range holds the index of ranges and is never split", at=at)
        try:
            done = await self.ask(requests.Split(at, await self._new_range_id()), at=at)
        except AmbiguousResult:
            probe("admin.split_ambiguous")
            if (await self.describe(at)).descriptor.start != at:
                raise UnavailableError("the split did not happen, or has not yet; try again", at=at) from None
            return await self.split(at)
        if not isinstance(done, requests.SplitResult):
            raise UnavailableError("a split was answered with something else", kind=type(done).__name__)
        self.sender.cache.insert(done.left)
        self.sender.cache.insert(done.right)
        await self.meta.publish(done.left, done.right)
        return done.left, done.right

    async def merge(self, key: bytes) -> RangeDescriptor:
        """Merge the range that holds `key` with its right neighbour."""
        return await merging.merge(self, key)

    async def undo_merge(self, right: RangeDescriptor, *, left_generation: int) -> None:
        """End a merge whose coordinator has gone; harmless if it has not, or if the merge succeeded."""
        await merging.undo(self, right, left_generation=left_generation)

    # --- leases ------------------------------------------------------------------------------------------------------

    async def transfer_lease(self, key: bytes, to: NodeId) -> None:
        """Hand the lease of a range to a node that has a healthy replica of it."""
        found = await self.describe(key)
        if found.lease.holder == to:
            return
        target = await self.peers.replica(to, found.descriptor.range_id)
        if target is None or target.failure:
            raise UnavailableError(
                f"n{to} has no healthy replica of r{found.descriptor.range_id}; it cannot take the lease",
                failure=target.failure if target else "none there",
            )
        if found.lease.holder and target.lease.sequence != found.lease.sequence:
            raise UnavailableError(f"the replica on n{to} is behind; it cannot take the lease yet")
        try:
            await self.ask(requests.TransferLease(to, target.life), at=found.descriptor.start)
        except AmbiguousResult:
            if (await self.describe(key)).lease.holder != to:
                raise

    # --- replicas ----------------------------------------------------------------------------------------------------

    async def change_replicas(self, key: bytes, replicas: Sequence[NodeId]) -> RangeDescriptor:
        """Make these the replicas of the range that holds `key`. New ones are filled before this returns.

        Additions come first, then the removal of the rest. The leaseholder cannot be removed: transfer the lease first.
        """
        wanted = tuple(dict.fromkeys(replicas))
        if not 0 < len(wanted) <= REPLICAS_MAX:
            raise UsageError("a range needs at least one replica", replicas=wanted, limit=REPLICAS_MAX)
        found = await self.describe(key)
        now = found.descriptor
        if found.lease.holder and found.lease.holder not in wanted:
            raise UsageError(f"n{found.lease.holder} holds the lease of r{now.range_id}; transfer it first")
        added = [n for n in wanted if n not in now.replicas]
        if added:
            now = await self._set_replicas(now, (*now.replicas, *added))
        await self.fill(now, wanted)
        if set(now.replicas) != set(wanted):
            now = await self._set_replicas(now, wanted)
        await self.meta.publish(now)
        return now

    async def relocate(self, key: bytes, replicas: Sequence[NodeId]) -> RangeDescriptor:
        """Make these the replicas of a range, moving its lease along if its holder is not among them."""
        wanted = tuple(dict.fromkeys(replicas))
        found = await self.describe(key)
        if found.lease.holder not in wanted:
            both = tuple(dict.fromkeys((*found.descriptor.replicas, *wanted)))
            await self.change_replicas(key, both)
            await self.transfer_lease(key, wanted[0])
        return await self.change_replicas(key, wanted)

    async def fill(self, descriptor: RangeDescriptor, nodes: Sequence[NodeId]) -> None:
        """Have every node that is named as a replica and has none fetch it; raises if one cannot."""
        holder = (await self.describe(descriptor.start)).lease.holder
        found = await self.peers.replicas(nodes, descriptor.range_id)
        for node, status in found.items():
            if isinstance(status, ReplicaStatus):
                continue
            if status is not None:
                raise status
            await self._fetch(node, descriptor, holder)

    async def _fetch(self, node: NodeId, descriptor: RangeDescriptor, holder: NodeId) -> None:
        """From the leaseholder, which has applied everything there is; the others may not know the new replica yet."""
        sources = [n for n in (holder, *descriptor.replicas) if n not in (0, node)]
        last: SlackwaterError | None = None
        for source in dict.fromkeys(sources):
            try:
                await self.peers.fetch(node, descriptor.range_id, source=source)
            except SlackwaterError as error:
                last = error
            else:
                return
        if await self.peers.replica(node, descriptor.range_id) is not None:
            probe("admin.fetched_meanwhile")  # by a split on that node, or by another request
            return
        raise UnavailableError(f"n{node} could not fetch r{descriptor.range_id}", cause=str(last)) from last

    async def _set_replicas(self, old: RangeDescriptor, replicas: tuple[NodeId, ...]) -> RangeDescriptor:
        try:
            await self.ask(requests.ChangeReplicas(replicas, old.generation), at=old.start)
        except (AmbiguousResult, ConditionFailed) as error:
            now = (await self.describe(old.start)).descriptor
            if now.range_id != old.range_id or set(now.replicas) != set(replicas):
                raise UnavailableError("the range changed meanwhile; look at it again", cause=str(error)) from error
            return now
        return (await self.describe(old.start)).descriptor

    # --- nodes -------------------------------------------------------------------------------------------------------

    async def decommission(self, node: NodeId) -> Decommission:
        """Mark a node as leaving and report what it still holds. Call again until it is done; queues do the moving."""
        await self._liveness.mark_decommissioning(node)
        return await self.emptiness(node)

    async def emptiness(self, node: NodeId) -> Decommission:
        """What a node still holds, according to the index of ranges and to the node itself, if it answers."""
        listed = [r.descriptor for r in await self.meta.read(b"", KEY_MAX) if node in r.descriptor.replicas]
        left = {d.range_id for d in listed}
        leases = 0
        try:
            status = await self.peers.status(node)
        except UnavailableError:
            probe("admin.decommission_of_silent_node")
        else:
            left |= {r.descriptor.range_id for r in status.replicas}
            leases = sum(1 for r in status.replicas if r.lease.holder == node)
        return Decommission(node, sorted(left), leases)

    # --- asking ------------------------------------------------------------------------------------------------------

    async def describe(self, key: bytes) -> requests.LeaseResult:
        """The range that holds `key` as its leaseholder has applied it."""
        for _ in range(DESCRIBE_TRIES_MAX):
            info = await self.ask(requests.LeaseInfo(by_holder=True), at=key)
            if not isinstance(info, requests.LeaseResult):
                raise UnavailableError("a question for the lease was answered with something else")
            self.sender.cache.insert(info.descriptor)
            if info.descriptor.contains(key):
                return info
            probe("admin.describe_again")
            await self.runtime.clock.sleep(DESCRIBE_PAUSE_S)
        raise UnavailableError("the range of this key keeps changing", key=key)

    async def range_below(self, key: bytes) -> RangeDescriptor:
        """The range that holds the keys just below `key`."""
        call = self.sender.new_call(timeout=ADMIN_TIMEOUT_S)
        for _ in range(DESCRIBE_TRIES_MAX):
            guess = await self.sender.directory.locate(key, call, below=True)
            now = (await self.describe(guess.start)).descriptor
            if now.start < key <= now.end:
                return now
            probe("admin.below_again")
            await call.next_round(pause=True)
        raise UnavailableError("the range below this key keeps changing", key=key)

    async def ask(self, request: requests.Request, *, at: bytes) -> requests.Result:
        """Send one request to the range that holds `at`."""
        answer = await self.sender.send([request], Header(NO_RANGE), at=at, timeout=ADMIN_TIMEOUT_S)
        return answer.results[0]
