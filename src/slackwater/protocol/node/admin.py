"""What an operator asks of any node: drain, decommission, split, merge, refetch. Served by `server/admin_service.py`."""

from __future__ import annotations

import msgspec

from slackwater.model.descriptors import RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.runtime.access import OPERATORS
from slackwater.runtime.rpc.method import HEAVY, Method


class DrainRequest(msgspec.Struct, frozen=True):
    """Asks a node to hand over its leases before it is stopped."""


class DrainReply(msgspec.Struct, frozen=True):
    """Answers a drain: how many leases could not be handed over."""

    node_id: NodeId
    leases_left: int


class DecommissionRequest(msgspec.Struct, frozen=True):
    """Asks any node to mark one as leaving for good."""

    node_id: NodeId


class DecommissionReply(msgspec.Struct, frozen=True):
    """Answers a decommission: what the node still holds."""

    node_id: NodeId
    replicas_left: list[RangeId]
    leases_left: int


class RefetchRequest(msgspec.Struct, frozen=True):
    """Asks to discard one replica and to fetch it anew from a healthy one."""

    range_id: RangeId
    node_id: NodeId


class RefetchReply(msgspec.Struct, frozen=True):
    """The replica is quarantined and being fetched."""

    range_id: RangeId
    node_id: NodeId


class KeyRequest(msgspec.Struct, frozen=True):
    """Names a range by a key in it."""

    key: bytes


class RangesReply(msgspec.Struct, frozen=True):
    """The ranges as they are now."""

    ranges: list[RangeDescriptor]


DRAIN: Method[DrainRequest, DrainReply] = Method(
    "admin.drain", DrainRequest, DrainReply, callers=OPERATORS, weight=HEAVY
)
DECOMMISSION: Method[DecommissionRequest, DecommissionReply] = Method(
    "admin.decommission", DecommissionRequest, DecommissionReply, callers=OPERATORS, weight=HEAVY
)
SPLIT: Method[KeyRequest, RangesReply] = Method("admin.split", KeyRequest, RangesReply, callers=OPERATORS, weight=HEAVY)
MERGE: Method[KeyRequest, RangesReply] = Method("admin.merge", KeyRequest, RangesReply, callers=OPERATORS, weight=HEAVY)
REFETCH: Method[RefetchRequest, RefetchReply] = Method(
    "admin.refetch", RefetchRequest, RefetchReply, callers=OPERATORS, weight=HEAVY
)
