"""Administration over RPC: what an operator may ask any node to do.

    admin.drain          hand over every lease of the node that is asked, before it is stopped
    admin.decommission   mark a node as leaving for good; says what it still holds, so ask again until nothing is left
    admin.split          divide the range of a key there
    admin.merge          merge the range of a key with its right neighbour
    admin.refetch        discard one replica of a range and fetch it anew from a healthy one

Only operators may ask. Every operation may be repeated: see `admin.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.protocol.node.admin import (
    DECOMMISSION,
    DRAIN,
    MERGE,
    REFETCH,
    SPLIT,
    DecommissionReply,
    DecommissionRequest,
    DrainReply,
    DrainRequest,
    KeyRequest,
    RangesReply,
    RefetchReply,
    RefetchRequest,
)
from slackwater.server.damage import refetch_replica

if TYPE_CHECKING:
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.member import Member


class AdminService:
    """Serves the methods of `protocol.node.admin` on one node."""

    def __init__(self, member: Member) -> None:
        self._member = member
        server = member.server
        server.handle(DRAIN, self._on_drain)
        server.handle(DECOMMISSION, self._on_decommission)
        server.handle(SPLIT, self._on_split)
        server.handle(MERGE, self._on_merge)
        server.handle(REFETCH, self._on_refetch)

    async def _on_drain(self, request: DrainRequest, context: Context) -> DrainReply:
        return DrainReply(self._member.node_id, await self._member.drain())

    async def _on_decommission(self, request: DecommissionRequest, context: Context) -> DecommissionReply:
        left = await self._member.admin.decommission(request.node_id)
        return DecommissionReply(left.node_id, left.replicas_left, left.leases_left)

    async def _on_split(self, request: KeyRequest, context: Context) -> RangesReply:
        return RangesReply(list(await self._member.admin.split(request.key)))

    async def _on_merge(self, request: KeyRequest, context: Context) -> RangesReply:
        return RangesReply([await self._member.admin.merge(request.key)])

    async def _on_refetch(self, request: RefetchRequest, context: Context) -> RefetchReply:
        await refetch_replica(self._member, request.range_id, request.node_id)
        return RefetchReply(request.range_id, request.node_id)
