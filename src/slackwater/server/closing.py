"""Where a node's side transport meets the network: whom it calls, and who calls it.

A follower subscribes to every node it shares a range with (`UPDATES`, a server stream), so a connection is dialed in one
direction per follower and no node pushes to a peer that may not listen.
"""

from __future__ import annotations

from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

from slackwater.closedts.driver import SideTransport
from slackwater.errors import UnavailableError
from slackwater.protocol.closedts.frontier import (
    FRONTIER,
    ReplicaFrontiersReply,
    ReplicaFrontiersRequest,
)
from slackwater.protocol.closedts.update import UPDATES, Subscribe, Update

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.driver import Store
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.server.member import Member


FRONTIERS_MAX = 1_000
"""Replicas in one reply."""


def _meeting(here: Store, request: ReplicaFrontiersRequest) -> list[RangeId]:
    return sorted(
        range_id
        for range_id, replica in here.replicas.items()
        if range_id > request.beyond
        and replica.state.descriptor.start < request.end
        and request.start < replica.state.descriptor.end
    )


def side_transport(member: Member) -> SideTransport:
    """The side transport of one node."""
    return SideTransport(
        node_id=member.node_id,
        runtime=member.runtime,
        clock=member.clock,
        settings=member.settings,
        scope=member.scope.child("closedts"),
        subscribe=partial(_subscribe, member),
    )


async def _subscribe(member: Member, peer: NodeId) -> Stream[Update]:
    address = member.book.resolve(peer)
    if address is None:
        raise UnavailableError(f"the address of n{peer} is not known")
    return await member.dialer.stream(address, UPDATES, Subscribe(member.node_id), node_id=peer)


class ClosingService:
    """Answers subscribers to closed timestamps, and questions how far ranges are closed, on one node."""

    def __init__(self, member: Member) -> None:
        self._store = member.store
        member.server.handle_stream(UPDATES, self._updates)
        member.server.handle_sync(FRONTIER, self._frontier)

    async def _updates(self, request: Subscribe, context: Context) -> AsyncGenerator[Update, None]:
        transport = self._store.context.transport
        if not isinstance(transport, SideTransport):
            raise UnavailableError("this node closes nothing by the side transport")
        async with aclosing(transport.updates(request)) as stream:
            async for update in stream:
                yield update

    def _frontier(self, request: ReplicaFrontiersRequest, context: Context) -> ReplicaFrontiersReply:
        here = self._store
        wanted = request.ranges or _meeting(here, request)
        replicas = [here.replicas[r] for r in wanted[:FRONTIERS_MAX] if r in here.replicas]
        found = [replica.closing.explain() for replica in replicas]
        return ReplicaFrontiersReply(found, here.context.clock.peek(), more=len(wanted) > FRONTIERS_MAX)
