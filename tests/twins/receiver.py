"""The twin of the receiver: every promise ever made, in a list.

    promises   r1: [(lai 4, 90), (lai 4, 100), (lai 5, 140)]       closed_for(r1, applied=4) = 100

Every message is spelled out for every member at once, so a tick costs as much as there are ranges and the lists grow for
ever. Nothing can be forgotten too early, and there is no order to get wrong. Tests and the benchmark use it.

    I-12  closed_for(r, applied) = max(ts for (lai, ts) promised for r if lai <= applied)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp

if TYPE_CHECKING:
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.update import GroupId, Update


class NaiveReceiver:
    """Believes every message it is given; the caller leaves out those that the protocol refuses."""

    def __init__(self) -> None:
        self._members: dict[NodeId, dict[RangeId, tuple[LeaseAppliedIndex, GroupId]]] = {}
        self._promises: dict[RangeId, list[tuple[LeaseAppliedIndex, Timestamp]]] = {}

    def receive(self, update: Update) -> None:
        """Spell a message out."""
        members = {} if update.full else self._members.setdefault(update.sender, {})
        self._members[update.sender] = members
        for range_id in update.removed:
            members.pop(range_id, None)
        for range_id, lai, group in update.members:
            members[range_id] = (lai, group)
        times = dict(update.groups)
        for range_id, (lai, group) in members.items():
            self._promises.setdefault(range_id, []).append((lai, times[group]))

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Timestamp:
        """The highest timestamp promised for an applied index."""
        return max((ts for lai, ts in self._promises.get(range_id, ()) if lai <= applied), default=MIN)
