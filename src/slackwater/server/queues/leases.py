"""Leases: ranges that nobody leads, leases on nodes that want to be rid of them, and even counts.

A range without a live lease closes nothing and its feeds stand still, even if nobody asks it for anything (pitfall 12). So
its first live replica takes the lease; the others wait their turn, which comes when the first is no longer live.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.replica.allocator import NodeState, lease_target
from slackwater.replica.lease import LeaseState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.replica.allocator import NodeInfo
    from slackwater.runtime.seam import NodeId
    from slackwater.server.queues.desk import Visit


def should_nudge(
    state: LeaseState, replicas: Sequence[NodeId], nodes: Mapping[NodeId, NodeInfo], *, own: NodeId
) -> bool:
    """Whether this node should take the lease of a range that has none."""
    if state not in (LeaseState.EXPIRED, LeaseState.NONE):
        return False
    live = [n for n in replicas if n in nodes and nodes[n].state is NodeState.LIVE]
    return not live or live[0] == own


class NudgeQueue:
    """Takes leases that nobody holds."""

    name = "nudge"

    async def process(self, visit: Visit) -> bool:
        """Acquire the lease if it is up to this node."""
        leasing, desk = visit.replica.leasing, visit.desk
        state = leasing.status(desk.clock.now())
        if not should_nudge(state, visit.descriptor.replicas, visit.picture.nodes, own=desk.node_id):
            return False
        probe("queues.nudge")
        await leasing.hold()
        return False


class LeaseQueue:
    """Moves leases off nodes that are stopping or leaving, and from nodes with many to nodes with few."""

    name = "lease"

    async def process(self, visit: Visit) -> bool:
        """Transfer the lease if another node should have it."""
        desk, picture = visit.desk, visit.picture
        if not visit.leading:
            return False
        target = lease_target(visit.descriptor.replicas, picture.nodes, holder=desk.node_id)
        if target is None:
            return False
        picture.moved_lease(away=desk.node_id, to=target)
        await desk.admin.transfer_lease(visit.descriptor.start, target)
        return True
