"""Who serves when, in true time (I-07), by which clock (I-01).

Every batch that a replica evaluates as leaseholder is reported in the step in which it checks its lease. Leases of one
range have increasing sequences, so the rule is short: once anybody has served under a sequence, nobody serves under a
lower one, ever; and all who serve under one sequence are one node.

    n1  ═══ seq 6 ═══╗ last serve
    n2               ╚═ first serve ═══ seq 7 ═══          in true time, whatever their clocks say

A run in which a clock went beyond the bound promises less: until its node is found out, it may end leases too early or
hold them too long. There only the hybrid clocks are judged, not the order of leases.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock import us_of
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.handles import NS
from slackwater.sim.oracles.replication import _Watcher

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.replica.driver import Replica
    from slackwater.runtime.seam import NodeId, RangeId
    from slackwater.sim.oracles.witness import Applied

CLOCK_GRAIN_NS = 2_000


class Clocks(_Watcher):
    """I-01."""

    name = "I-01"

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Timestamp] = {}

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Forward only within one life, and not ahead of what a right clock and one wrong peer can explain."""
        machine = self.world.machines[node]
        life = (node, machine.incarnation)
        if now <= self._last.get(life, -1):
            self.violated("clock-went-back", f"{node} served at {now} after {self._last[life]}")
        self._last[life] = now
        if any(m.clock_broken for m in self.world.nodes):
            return
        clock = machine.clock
        bound_ns = EPOCH_NS + self.world.loop.now_ns + clock.band_ns + clock.max_offset_ns + CLOCK_GRAIN_NS
        if us_of(now) * 1000 > bound_ns:
            ahead_s = (us_of(now) * 1000 - bound_ns) / NS
            self.violated(
                "clock-ahead", f"{node} served {ahead_s:.3f}s beyond its clock's error plus the maximum offset"
            )


class OneHolder(_Watcher):
    """I-07."""

    name = "I-07"

    def __init__(self) -> None:
        self._serving: dict[RangeId, tuple[int, NodeId, int, str]] = {}

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Sequences of serving replicas never go down, and one sequence is one node."""
        if any(m.clock_broken for m in self.world.nodes):
            return
        range_id, lease = replica.state.descriptor.range_id, replica.state.lease
        known = self._serving.get(range_id)
        if known is not None:
            sequence, holder, at_ns, who = known
            if lease.sequence < sequence or (lease.sequence == sequence and lease.holder != holder):
                text = (
                    f"{node} serves r{range_id} under lease {lease.sequence} at {self.world.seconds:.3f}, but {who} served "
                    f"under lease {sequence} since {at_ns / NS:.3f}: two leaseholders"
                )
                self.violated("two-leaseholders", text, lease=lease.status())
            if lease.sequence == sequence:
                return
        self._serving[range_id] = (lease.sequence, lease.holder, self.world.loop.now_ns, node)

    def applied(self, event: Applied) -> None:
        """Within one sequence an expiration only moves on, and the sequence moves up by at most the leases applied."""
        before, after = event.before.lease, event.after.lease
        if after.sequence < before.sequence:
            self.violated("sequence-went-back", f"{event.node} {before.status()} became {after.status()}")
        if after.sequence == before.sequence and (
            after.expiration < before.expiration or after.holder != before.holder or after.epoch != before.epoch
        ):
            self.violated("lease-changed", f"{event.node} {before.status()} became {after.status()} in one sequence")
