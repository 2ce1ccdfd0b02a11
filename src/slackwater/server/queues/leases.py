"""Leases: ranges without a leaseholder, leases on nodes that want to be rid of them, and even counts.

A range without a live lease closes nothing and its feeds stand still, even if no request comes (pitfall 12). So
its first live replica takes the lease. The others wait their turn, which comes when those before them are no longer live,
or have had a turn each to do it: a node may be live and have no replica yet, or a broken one, or its record may say that it
is live for a moment longer than its lease. A turn is a second or so (`scheduler.TURN_S`), not a whole interval of sweeps.

A replica that was fetched anew while its node held the lease is in the same position, and only its own node can tell: it
acquires the lease anew.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.replica.allocator import NodeState, lease_target
from slackwater.replica.driver.leasing import LeaseUse
from slackwater.replica.lease import LeaseState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.allocator import NodeInfo
    from slackwater.server.queues.context import Visit


def should_nudge(
    state: LeaseState, replicas: Sequence[NodeId], nodes: Mapping[NodeId, NodeInfo], *, own: NodeId, turns: int = 0
) -> bool:
    """Whether this node should take the lease of a range that has been without one for so many turns."""
    if state not in (LeaseState.EXPIRED, LeaseState.NONE):
        return False
    live = [n for n in replicas if n in nodes and nodes[n].state is NodeState.LIVE]
    return not live or own in live[: turns + 1]


class NudgeQueue:
    """Takes leases that have no holder."""

    name = "nudge"

    def __init__(self) -> None:
        self._turns: dict[RangeId, int] = {}
        """Visits in a row that found a range without a lease."""

    async def process(self, visit: Visit) -> bool:
        """Acquire the lease if it is up to this node."""
        leasing, context, range_id = visit.replica.leasing, visit.context, visit.descriptor.range_id
        state, turns = leasing.status(context.clock.now()), self._turns.pop(range_id, 0)
        if state in (LeaseState.EXPIRED, LeaseState.NONE):
            self._turns[range_id] = turns + 1
        former = leasing.use(context.clock.now()) is LeaseUse.FORMER and not leasing.by_expiration
        if not former and not should_nudge(
            state, visit.descriptor.replicas, visit.view.nodes, own=context.node_id, turns=turns
        ):
            visit.waits_its_turn = range_id in self._turns
            return False
        probe("queues.nudge")
        await leasing.hold()
        visit.again = True  # the other queues had nothing to do here as long as the range had no leaseholder
        return False


class LeaseQueue:
    """Moves leases off nodes that are stopping or leaving, and from nodes with many to nodes with few."""

    name = "lease"

    async def process(self, visit: Visit) -> bool:
        """Transfer the lease if another node should have it."""
        context, view = visit.context, visit.view
        if not visit.leading:
            return False
        target = lease_target(visit.descriptor.replicas, view.nodes, holder=context.node_id)
        if target is None:
            return False
        view.moved_lease(away=context.node_id, to=target)
        await context.admin.transfer_lease(visit.descriptor.start, target)
        return True
