"""Administration over RPC: what an operator may ask any node to do.

    admin.drain          hand over every lease of the node that is asked, before it is stopped
    admin.decommission   mark a node as leaving for good; says what it still holds, so ask again until nothing is left
    admin.split          divide the range of a key there
    admin.merge          merge the range of a key with its right neighbour

Under TLS only the user `root` and nodes may ask. Every operation may be repeated: see `admin.py`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import UnavailableError, UsageError
from slackwater.model.descriptors import RangeDescriptor
from slackwater.runtime.rpc.method import Method
from slackwater.runtime.seam import NodeId, RangeId

if TYPE_CHECKING:
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.admin import Admin
    from slackwater.server.node import Node

ADMINISTRATORS = frozenset({"", "node", "root"})
"""Names of certificates that may administer; without TLS there is none."""


class DrainRequest(msgspec.Struct, frozen=True):
    """Of the node that is asked."""


class DrainReply(msgspec.Struct, frozen=True):
    """How many leases could not be handed over."""

    node_id: NodeId
    leases_left: int


class DecommissionRequest(msgspec.Struct, frozen=True):
    """Of any node."""

    node_id: NodeId


class DecommissionReply(msgspec.Struct, frozen=True):
    """What the node still holds."""

    node_id: NodeId
    replicas_left: list[RangeId]
    leases_left: int


class KeyRequest(msgspec.Struct, frozen=True):
    """Names a range by a key in it."""

    key: bytes


class RangesReply(msgspec.Struct, frozen=True):
    """The ranges as they are now."""

    ranges: list[RangeDescriptor]


DRAIN: Method[DrainRequest, DrainReply] = Method("admin.drain", DrainRequest, DrainReply)
DECOMMISSION: Method[DecommissionRequest, DecommissionReply] = Method(
    "admin.decommission", DecommissionRequest, DecommissionReply
)
SPLIT: Method[KeyRequest, RangesReply] = Method("admin.split", KeyRequest, RangesReply)
MERGE: Method[KeyRequest, RangesReply] = Method("admin.merge", KeyRequest, RangesReply)


class AdminService:
    """Serves the methods above on one node."""

    def __init__(self, node: Node) -> None:
        self._node = node
        server = node.server
        server.handle(DRAIN, self._on_drain)
        server.handle(DECOMMISSION, self._on_decommission)
        server.handle(SPLIT, self._on_split)
        server.handle(MERGE, self._on_merge)

    def _admin(self, context: Context) -> Admin:
        if context.certificate_name not in ADMINISTRATORS:
            raise UsageError("only root may administer a cluster; use its certificate", user=context.certificate_name)
        if self._node.store is None:
            raise UnavailableError("this node belongs to no cluster yet; run `slackwater init`")
        return self._node.admin

    async def _on_drain(self, request: DrainRequest, context: Context) -> DrainReply:
        self._admin(context)
        return DrainReply(self._node.node_id, await self._node.drain())

    async def _on_decommission(self, request: DecommissionRequest, context: Context) -> DecommissionReply:
        left = await self._admin(context).decommission(request.node_id)
        return DecommissionReply(left.node_id, left.replicas_left, left.leases_left)

    async def _on_split(self, request: KeyRequest, context: Context) -> RangesReply:
        return RangesReply(list(await self._admin(context).split(request.key)))

    async def _on_merge(self, request: KeyRequest, context: Context) -> RangesReply:
        return RangesReply([await self._admin(context).merge(request.key)])
