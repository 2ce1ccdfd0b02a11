"""Fetching a replica that failed here from a node whose replica is good.

    quarantined, or its log was trimmed ──► try every other replica in turn ──► installed: acquire its lease anew
                                                  │ none can                       if it had one
                                                  ▼
                                       ask how the range has gone on: without this node, or as part of another one?

A snapshot that broke off has removed the old replica already. The range needs the new one all the same, and where this
node holds the lease, no other node would see to it: so it goes on until a replica is there or none is wanted.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.replica.driver import Store
    from slackwater.server.node import Node

PAUSE_S, PAUSE_S_MAX = 1.0, 10.0
"""Between two rounds over the other replicas; longer each time, because a sender reads its whole replica first."""


async def refetch(node: Node, store: Store, descriptor: RangeDescriptor) -> None:
    """Return once the replica is good again, or its range has gone on without it."""
    range_id, pause_s = descriptor.range_id, PAUSE_S
    while True:
        replica = store.replicas.get(range_id)
        if replica is not None and replica.failure is None:
            return
        for source in descriptor.replicas:
            if source == node.node_id:
                continue
            with suppress(SlackwaterError):
                await node.fetch(range_id, source)
                node.queues.wake()  # the lease it had must be acquired anew, even if no request comes
                return
        await node.runtime.clock.sleep(pause_s)
        pause_s = min(2 * pause_s, PAUSE_S_MAX)
        with suppress(SlackwaterError):
            newer = await _superseded(node, descriptor)
            if newer is None:
                continue
            if node.node_id not in newer.replicas:
                store.remove(range_id)
                return
            if newer.range_id == range_id:
                descriptor = newer
            elif range_id not in store.replicas:
                return  # merged away, and so is what was left of it here


async def _superseded(node: Node, descriptor: RangeDescriptor) -> RangeDescriptor | None:
    """The range that now holds where this one began, if its leaseholder says that it is newer."""
    now = (await node.admin.describe(descriptor.start)).descriptor
    return now if now.generation > descriptor.generation else None
