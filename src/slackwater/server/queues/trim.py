"""Trimming: what every replica has made durable need not stay in the log.

The bound is the lowest *durable* position over all replicas: an applied position that is not flushed may be lost in a
crash and is replayed from the log (pitfall 59). A replica that cannot be asked, or is named and not there yet, counts as
position 0. Only one on a node that has been dead for long is left out: if it comes back, it takes a snapshot.

A range of which one replica is well keeps its log while there is a second, wherever it is and however far behind, or a node
for one: should the first be lost, or its store be damaged, the second goes on from the log, or another node makes the range
again from it (`lost.py`). So the log grows while all nodes but one of a range are dead; retire them to end that.

A range that was merged into this one leaves a log behind; it goes once every replica has durably applied the merge
(`replica/driver/merged_ranges.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.model.ids import Position
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.replica.allocator import NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from slackwater.errors import SlackwaterError
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.server.queues.context import Visit


def trim_upto(
    members: Mapping[NodeId, ReplicaStatus | SlackwaterError | None], state: Callable[[NodeId], NodeState]
) -> Position:
    """The position up to which no replica needs the log any more; 0: nothing is certain."""
    counted = [s for n, s in members.items() if state(n) is not NodeState.DEAD]
    positions = [s.durable if isinstance(s, ReplicaStatus) else Position(0) for s in counted]
    return min(positions, default=Position(0))


async def _only_here(visit: Visit) -> bool:
    """Whether the range has one good replica, is to have more, and another is named or has a node: its log is all else."""
    view, own = visit.view, visit.context.node_id
    filled = [s for s in (await visit.members()).values() if isinstance(s, ReplicaStatus) and not s.failure]
    others = [n for n in view.nodes if n != own and view.state(n) is NodeState.LIVE]
    named = [n for n in visit.descriptor.replicas if n != own]
    return len(filled) < min(2, view.factor(visit.descriptor)) and bool(others or named)


class TrimQueue:
    """Trims the logs of ranges, and of ranges that were merged into them."""

    name = "trim"

    def __init__(self) -> None:
        self.trimmed: dict[RangeId, Position] = {}

    async def process(self, visit: Visit) -> bool:
        """Trim as far as is safe: the leaseholder its range's log, every replica the logs of ranges that its range absorbed."""
        context, range_id = visit.context, visit.descriptor.range_id
        leading, merged = visit.leading, context.store.merged
        if not leading and not merged.of(range_id):
            return False
        upto = trim_upto(await visit.members(), visit.view.state)
        if leading and upto > self.trimmed.get(range_id, 0) and await _only_here(visit):
            probe("queues.trim_only_here")
        elif leading and upto > self.trimmed.get(range_id, 0):
            probe("queues.trim")
            await context.log.trim(range_id, upto=upto)
            self.trimmed[range_id] = upto
        for right in merged.due(range_id, upto=upto):
            probe("queues.trim_absorbed")
            await context.log.trim(right, upto=await context.log.head(right))
            merged.forget(right, into=range_id)
            self.trimmed.pop(right, None)
        return False
