"""Draining: a node that is about to stop hands its leases over, so that clients need not wait for them to expire.

    1  its liveness record says `draining`: others give it no leases and no replicas, and send it no reads (pitfall 23)
    2  every lease it holds goes to a live replica; one that no replica can take is released, if it is of the kind that lasts
    3  it stops

Bounded by `drain.timeout`: a lease that could not be moved in time ends with the node's liveness record.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.replica.allocator import lease_target
from slackwater.routing.parallel import in_parallel
from slackwater.runtime.sync import timeout
from slackwater.server.queues.context import Visit, view_cluster

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica
    from slackwater.server.queues.context import ClusterView, QueueContext

TRANSFERS_AT_ONCE = 8


async def drain(context: QueueContext) -> int:
    """Hand over every lease this node holds; returns how many it still has."""
    seconds = context.settings["drain.timeout"]
    try:
        async with timeout(seconds):
            await context.liveness.drain()
            await _hand_over(context, await view_cluster(context))
    except TimeoutError:
        probe("drain.timeout")
    except SlackwaterError:
        probe("drain.failed")
    return len(_led(context))


def _led(context: QueueContext) -> list[Replica]:
    return [r for r in context.store.replicas.values() if r.state.lease.holder == context.node_id]


async def _hand_over(context: QueueContext, view: ClusterView) -> None:
    # The first range last: moving the others' leases and this node's own record depend on it.
    led = sorted(_led(context), key=lambda r: -r.state.descriptor.range_id)
    works = [partial(_move, context, view, r) for r in led]
    await in_parallel(context.scope, works[:-1], limit=TRANSFERS_AT_ONCE, name="drain")
    await in_parallel(context.scope, works[-1:], limit=1, name="drain")


async def _move(context: QueueContext, view: ClusterView, replica: Replica) -> None:
    if not Visit(context, replica, view).leading:
        return
    here = replica.state.descriptor
    target = lease_target(here.replicas, view.nodes, holder=context.node_id)
    if target is not None:
        view.moved_lease(away=context.node_id, to=target)
        await context.admin.transfer_lease(here.start, target)
