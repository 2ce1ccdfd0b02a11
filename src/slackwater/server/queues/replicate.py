"""Replication: as many replicas as the configuration wants, filled, in the right places; `replica/allocator.py` decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.replica.allocator import Add, Move, NodeState, Remove, decide

if TYPE_CHECKING:
    from slackwater.model.ids import NodeId
    from slackwater.replica.allocator import Action
    from slackwater.server.queues.context import Visit


def after(replicas: tuple[NodeId, ...], action: Action) -> tuple[NodeId, ...]:
    """The replicas once an action is done."""
    match action:
        case Add(node):
            return (*replicas, node)
        case Remove(node):
            return tuple(n for n in replicas if n != node)
        case Move(node, to):
            return (*(n for n in replicas if n != node), to)


class ReplicateQueue:
    """Adds, fills, moves and removes replicas, one at a time."""

    name = "replicate"

    async def process(self, visit: Visit) -> bool:
        """Take the next step, if there is one."""
        if not visit.leading:
            return False
        if await self._fill(visit):
            return True
        context, view, here = visit.context, visit.view, visit.descriptor
        action = decide(here.replicas, view.nodes, factor=view.factor(here), holder=context.node_id)
        if action is None:
            return False
        match action:
            case Add(node):
                view.moved_replica(to=node)
            case Remove(node):
                view.moved_replica(away=node)
            case Move(node, to):
                view.moved_replica(away=node, to=to)
        probe(f"queues.replica_{type(action).__name__.lower()}")
        await context.admin.change_replicas(here.start, after(here.replicas, action))
        visit.again = not isinstance(action, Move)  # several may be missing, or too many
        return True

    async def _fill(self, visit: Visit) -> bool:
        """A replica that is named and not there, on a node that can be asked: the change that named it was not finished."""
        found = await visit.members()
        empty = [n for n, s in found.items() if s is None and visit.view.state(n) is NodeState.LIVE]
        if not empty:
            return False
        probe("queues.replica_filled")
        await visit.context.admin.fill(visit.descriptor, empty)
        visit.again = True
        return True
