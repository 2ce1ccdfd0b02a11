"""Where a node's schemes of closing meet the network: which nodes they call, and what they answer.

A follower subscribes to every node it shares a range with (`UPDATES`, and `HEARTBEATS` under the store-wide scheme: server
streams), so a connection is dialed in one direction per follower and no node pushes to a peer that may not listen.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.closedts.activation import Activation, activation_of
from slackwater.closedts.driver.schemes import Schemes
from slackwater.closedts.policy import old_enough, terms_of
from slackwater.closedts.publisher import NodeParts
from slackwater.errors import UnavailableError
from slackwater.protocol.closedts.frontier import (
    FRONTIER,
    ReplicaFrontiersReply,
    ReplicaFrontiersRequest,
)
from slackwater.protocol.closedts.heartbeat import (
    HEARTBEATS,
    WAKE,
    WAKE_RANGES_MAX,
    Heartbeat,
    SubscribeHeartbeats,
    WakeRanges,
    Woken,
)
from slackwater.protocol.closedts.update import UPDATES, Subscribe, Update

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.descriptors import Epoch, RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.driver import Store
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.server.member import Member


FRONTIERS_MAX = 1_000
"""Replicas in one reply."""
WAKE_TIMEOUT_S = 2.0
"""How long a leaseholder may take to hear that a follower lacks something; it is told again a second later."""


def _meeting(here: Store, request: ReplicaFrontiersRequest) -> list[RangeId]:
    return sorted(
        range_id
        for range_id, replica in here.replicas.items()
        if range_id > request.beyond
        and replica.state.descriptor.start < request.end
        and request.start < replica.state.descriptor.end
    )


def closing_schemes(member: Member) -> Schemes:
    """The schemes of closing of one node."""
    parts = NodeParts(
        node_id=member.node_id,
        runtime=member.runtime,
        clock=member.clock,
        settings=member.settings,
        scope=member.scope.child("closedts"),
        refused=lambda peer, error: member.server.refused(f"n{peer}", error),
    )
    return Schemes(
        parts,
        subscribe=partial(_subscribe, member),
        subscribe_heartbeats=partial(_subscribe_heartbeats, member),
        wake=partial(_wake, member),
    )


def _address(member: Member, peer: NodeId) -> str:
    address = member.book.resolve(peer)
    if address is None:
        raise UnavailableError(f"the address of n{peer} is not known")
    return address


async def _subscribe(member: Member, peer: NodeId) -> Stream[Update]:
    return await member.dialer.stream(_address(member, peer), UPDATES, Subscribe(member.node_id), node_id=peer)


async def _subscribe_heartbeats(member: Member, peer: NodeId, epoch: Epoch, seq: int) -> Stream[Heartbeat]:
    request = SubscribeHeartbeats(member.node_id, epoch, seq)
    return await member.dialer.stream(_address(member, peer), HEARTBEATS, request, node_id=peer)


async def _wake(member: Member, peer: NodeId, ranges: list[RangeId]) -> None:
    await member.dialer.call(_address(member, peer), WAKE, WakeRanges(ranges), node_id=peer, timeout=WAKE_TIMEOUT_S)


def closed_by_followers(member: Member, descriptor: RangeDescriptor) -> Timestamp:
    """The timestamp that followers of a range have very likely closed, by its policy as this node knows it."""
    settings, spans = member.settings, member.policies.spans
    configured = spans.configured(descriptor.start, descriptor.end)
    if activation_of(settings["closed_timestamp.activation"]) is Activation.CONFIGURED and not configured:
        return MIN
    terms = terms_of(settings)
    policy = spans.of(descriptor.start, descriptor.end, terms)
    return old_enough(policy, member.clock.physical(), terms, slack_s=settings["closed_timestamp.propagation_slack"])


class ClosingService:
    """Answers subscribers to closed timestamps, and questions how far ranges are closed, on one node."""

    def __init__(self, member: Member) -> None:
        self._store = member.store
        member.server.handle_stream(UPDATES, self._updates)
        member.server.handle_stream(HEARTBEATS, self._heartbeats)
        member.server.handle_sync(WAKE, self._on_wake)
        member.server.handle(FRONTIER, self._frontier)

    def _schemes(self) -> Schemes:
        schemes = self._store.context.transport
        if not isinstance(schemes, Schemes):
            raise UnavailableError("this node closes nothing")
        return schemes

    async def _updates(self, request: Subscribe, context: Context) -> AsyncGenerator[Update, None]:
        async with aclosing(self._schemes().log_driven.updates(request)) as stream:
            async for update in stream:
                yield update

    async def _heartbeats(self, request: SubscribeHeartbeats, context: Context) -> AsyncGenerator[Heartbeat, None]:
        async with aclosing(self._schemes().store_wide.heartbeats(request)) as stream:
            async for beat in stream:
                yield beat

    def _on_wake(self, request: WakeRanges, context: Context) -> Woken:
        """Ranges led here are closed from now on, and named again where a follower lacks something."""
        led = 0
        for range_id in request.ranges[:WAKE_RANGES_MAX]:
            replica = self._store.replicas.get(range_id)
            if replica is not None and replica.state.lease.holder == self._store.context.node_id:
                self._schemes().demand(range_id)
                led += 1
        return Woken(led)

    async def _frontier(self, request: ReplicaFrontiersRequest, context: Context) -> ReplicaFrontiersReply:
        here = self._store
        wanted = request.ranges or _meeting(here, request)
        replicas = [here.replicas[r] for r in wanted[:FRONTIERS_MAX] if r in here.replicas]
        found = [await replica.closing.frontier() for replica in replicas if not replica.retired]
        return ReplicaFrontiersReply(
            found,
            here.context.clock.peek(),
            more=len(wanted) > FRONTIERS_MAX,
            schemes=[scheme.label for scheme in sorted(self._schemes().running)],
        )
