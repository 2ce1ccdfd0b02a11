"""Where a node's side transport meets the network: whom it calls, and who calls it.

A follower subscribes to every node it shares a range with (`UPDATES`, a server stream), so a connection is dialed in one
direction per follower and nobody has to push to a peer that may not listen.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.driver import UPDATES, SideTransport
from slackwater.closedts.explain import ReplicaFrontier
from slackwater.codec.layout import KEY_MAX
from slackwater.errors import UnavailableError
from slackwater.model.ids import RangeId
from slackwater.protocol.closedts.update import Subscribe, Update
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from slackwater.model.ids import NodeId
    from slackwater.replica.driver import Store
    from slackwater.runtime.rpc.method import Context
    from slackwater.runtime.rpc.server import RpcServer
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.server.node import Node


FRONTIERS_MAX = 1_000
"""Replicas in one reply."""


class ReplicaFrontiersRequest(msgspec.Struct, frozen=True):
    """How far replicas here are closed and resolved: of these ranges, or of those that meet a span, by id."""

    ranges: list[RangeId] = []
    start: bytes = b""
    end: bytes = KEY_MAX
    beyond: RangeId = RangeId(0)
    """Only ranges with a higher id: where the last reply ended."""


class ReplicaFrontiersReply(msgspec.Struct, frozen=True):
    """One per replica that is here, by id, and the clock of the node."""

    replicas: list[ReplicaFrontier]
    now: Timestamp = MIN
    more: bool = False
    """Whether there are others beyond the last."""


FRONTIER: Method[ReplicaFrontiersRequest, ReplicaFrontiersReply] = Method(
    "closedts.frontier", ReplicaFrontiersRequest, ReplicaFrontiersReply, callers=NODES_AND_OPERATORS
)


def _meeting(here: Store, request: ReplicaFrontiersRequest) -> list[RangeId]:
    return sorted(
        range_id
        for range_id, replica in here.replicas.items()
        if range_id > request.beyond
        and replica.state.descriptor.start < request.end
        and request.start < replica.state.descriptor.end
    )


def side_transport(node: Node) -> SideTransport:
    """The side transport of a node that belongs to a cluster."""

    async def subscribe(peer: NodeId) -> Stream[Update]:
        address = node.book.resolve(peer)
        if address is None:
            raise UnavailableError(f"the address of n{peer} is not known")
        return await node.dialer.stream(address, UPDATES, Subscribe(node.node_id), node_id=peer)

    return SideTransport(
        node_id=node.node_id,
        runtime=node.runtime,
        clock=node.clock,
        settings=node.settings,
        scope=node.scope.child("closedts"),
        subscribe=subscribe,
    )


def serve_updates(server: RpcServer, store: Callable[[], Store]) -> None:
    """Answer subscribers, and those who ask how far ranges are closed, once there is a store."""

    async def updates(request: Subscribe, context: Context) -> AsyncGenerator[Update, None]:
        transport = store().context.transport
        if not isinstance(transport, SideTransport):
            raise UnavailableError("this node closes nothing by the side transport")
        async with aclosing(transport.updates(request)) as stream:
            async for update in stream:
                yield update

    def frontier(request: ReplicaFrontiersRequest, context: Context) -> ReplicaFrontiersReply:
        here = store()
        wanted = request.ranges or _meeting(here, request)
        replicas = [here.replicas[r] for r in wanted[:FRONTIERS_MAX] if r in here.replicas]
        found = [replica.closing.explain() for replica in replicas]
        return ReplicaFrontiersReply(found, here.context.clock.peek(), more=len(wanted) > FRONTIERS_MAX)

    server.handle_stream(UPDATES, updates)
    server.handle_sync(FRONTIER, frontier)
