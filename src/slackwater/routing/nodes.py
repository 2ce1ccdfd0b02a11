"""What a sender has seen of nodes: how fast they answer, and whether they failed a moment ago.

Liveness records are seconds old by design; the sender's own experience is milliseconds old. So both are used: the
record's view (draining, dead) is injected, and this table adds the moving average of answer times and a short grudge
after a failed try. A grudge only changes the order of tries: a node is never left out because of it. Bounded; pure.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId

NODES_MAX = 4096
GRUDGE_NS = 2_000_000_000
"""How long a node that could not be reached is tried after the others."""
_WEIGHT = 8
"""One answer moves the average by an eighth."""


class NodeHealth(enum.IntEnum):
    """In the order in which nodes are tried."""

    LIVE = 0
    SUSPECT = 1  # failed a moment ago, or nothing is known
    DRAINING = 2
    DEAD = 3


class NodeView(msgspec.Struct, frozen=True):
    """What the cluster says of a node."""

    health: NodeHealth = NodeHealth.LIVE
    locality: tuple[tuple[str, str], ...] = ()


UNKNOWN = NodeView()


class NodeTable:
    """Answer times and recent failures by node."""

    def __init__(self) -> None:
        self._latency_us: dict[NodeId, int] = {}
        self._grudge_until_ns: dict[NodeId, int] = {}

    def answered(self, node_id: NodeId, *, took_ns: int) -> None:
        """The node answered, whatever it said."""
        self._grudge_until_ns.pop(node_id, None)
        took_us = max(1, took_ns // 1000)
        known = self._latency_us.pop(node_id, took_us)
        if len(self._latency_us) >= NODES_MAX:
            del self._latency_us[next(iter(self._latency_us))]
        self._latency_us[node_id] = known + (took_us - known) // _WEIGHT

    def failed(self, node_id: NodeId, *, now_ns: int) -> None:
        """The node could not be reached."""
        self._grudge_until_ns.pop(node_id, None)
        if len(self._grudge_until_ns) >= NODES_MAX:
            del self._grudge_until_ns[next(iter(self._grudge_until_ns))]
        self._grudge_until_ns[node_id] = now_ns + GRUDGE_NS

    def latency_us(self, node_id: NodeId) -> int:
        """The moving average; 0 when it never answered."""
        return self._latency_us.get(node_id, 0)

    def suspect(self, node_id: NodeId, *, now_ns: int) -> bool:
        """Whether the node failed a moment ago."""
        return now_ns < self._grudge_until_ns.get(node_id, 0)
