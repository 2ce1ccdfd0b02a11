"""Which node serves a range when, in true time (I-07), by which clock (I-01).

Every batch that a replica evaluates as leaseholder is reported in the step in which it checks its lease. Leases of one
range have increasing sequences, so the rule is short: once a node has served under a sequence, none serves under a
lower one, ever; and all that serve under one sequence are one process on one machine. Two machines may have copies of one
store, and so one node id: that makes them two all the same.

    n1  ═══ seq 6 ═══╗ last serve
    n2               ╚═ first serve ═══ seq 7 ═══          in true time, whatever their clocks say

And by the clocks as well: a lease of another holder begins above every reading by which the one before it served, or carries
a read floor above it. What it writes would otherwise lie below reads and promises that nodes were told of.

A clock that goes beyond the bound is the one thing leases do not survive. What is promised then is that its node *stops*:

    I-01   a node whose clock is set while it runs serves nothing more, from the next evaluation on
    I-07   holds all the same, for all other nodes and times. Excused is only what the wrong clock can reach:
           within its shadow (`clocks.Shadow`), a pair of leaseholders one of which is that node, or a lease that depends on
           records which that node served as the holder of range 1; and, while its stamps of the future are still about
           after it was put right, any node that may have heard one
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock import us_of
from slackwater.clock.timestamp import MIN, seconds_between
from slackwater.model.descriptors import FIRST_RANGE
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.handles import NS
from slackwater.sim.oracles.replication import _Watcher

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import RangeId
    from slackwater.replica.driver import Replica
    from slackwater.sim.oracles.witness import ApplyEvent

CLOCK_GRAIN_NS = 2_000


class Clocks(_Watcher):
    """I-01."""

    name = "I-01"

    def __init__(self) -> None:
        self._last: dict[tuple[str, int], Timestamp] = {}
        self._since: dict[tuple[str, int], int] = {}
        """When each life first served."""

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Forward only within one life, and not ahead of what a right clock and one wrong peer can explain."""
        machine = self.world.machines[node]
        life = (node, machine.incarnation)
        self._since.setdefault(life, self.world.loop.now_ns)
        if now <= self._last.get(life, -1):
            self.violated("clock-went-back", f"{node} served at {now} after {self._last[life]}")
        self._last[life] = now
        self._fenced(node)
        if self.world.shadows:
            return  # every node may have heard a stamp of the future, up to the bound above its own time
        clock = machine.clock
        bound_ns = EPOCH_NS + self.world.loop.now_ns + clock.band_ns + clock.max_offset_ns + CLOCK_GRAIN_NS
        if us_of(now) * 1000 > bound_ns:
            ahead_s = (us_of(now) * 1000 - bound_ns) / NS
            self.violated(
                "clock-ahead", f"{node} served {ahead_s:.3f}s beyond its clock's error plus the maximum offset"
            )

    def _fenced(self, node: str) -> None:
        """A node that was up when its clock was set beyond the bound serves nothing until that is mended."""
        machine = self.world.machines[node]
        for shadow in self.world.shadows:
            if (
                shadow.node == node
                and shadow.ended_ns is None
                and self._since[node, machine.incarnation] < shadow.begin_ns
            ):
                by_s = shadow.step_ns / NS
                self.violated("not-fenced", f"{node} serves although its clock was set by {by_s:+.1f}s while it ran")


class OneHolder(_Watcher):
    """I-07."""

    name = "I-07"

    def __init__(self) -> None:
        self._serving: dict[RangeId, tuple[int, int, str]] = {}
        self._led_first: dict[str, int] = {}
        """When each node last served the first range."""
        self._served: dict[RangeId, tuple[Timestamp, str]] = {}
        """The highest reading of a clock by which each range was served, and the node that did so."""

    def _excused(self, *nodes: str) -> bool:
        """Whether a clock beyond the bound can be behind it."""
        now_ns = self.world.loop.now_ns
        return any(
            shadow.covers(now_ns)
            and (
                shadow.node in nodes
                or self._led_first.get(shadow.node, -1) >= shadow.begin_ns
                or (shadow.step_ns > 0 and shadow.ended_ns is not None)
            )
            for shadow in self.world.shadows
        )

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Sequences of serving replicas never go down, and one sequence is one machine."""
        range_id, lease = replica.state.descriptor.range_id, replica.state.lease
        if range_id == FIRST_RANGE:
            self._led_first[node] = self.world.loop.now_ns
        if now > self._served.get(range_id, (MIN, ""))[0]:
            self._served[range_id] = (now, node)
        known = self._serving.get(range_id)
        if known is not None:
            sequence, at_ns, who = known
            broken = lease.sequence < sequence or (lease.sequence == sequence and node != who)
            if broken and self._excused(node, who):
                return
            if broken:
                text = (
                    f"{node} serves r{range_id} under lease {lease.sequence} at {self.world.seconds:.3f}, but {who} served "
                    f"under lease {sequence} since {at_ns / NS:.3f}: two leaseholders"
                )
                self.violated("two-leaseholders", text, lease=lease.status())
            if lease.sequence == sequence:
                return
        self._serving[range_id] = (lease.sequence, self.world.loop.now_ns, node)

    def applied(self, event: ApplyEvent) -> None:
        """Within one sequence an expiration only moves on, and the sequence moves up by at most the leases applied."""
        before, after = event.before.lease, event.after.lease
        if after.sequence < before.sequence:
            self.violated("sequence-went-back", f"{event.node} {before.status()} became {after.status()}")
        if after.sequence == before.sequence and (
            after.expiration < before.expiration or after.holder != before.holder or after.epoch != before.epoch
        ):
            self.violated("lease-changed", f"{event.node} {before.status()} became {after.status()} in one sequence")
        if event.first and after.sequence > before.sequence and after.holder != before.holder:
            self._begins_above(event)

    def _begins_above(self, event: ApplyEvent) -> None:
        """A lease of another holder lies above everything that was served before it, by whichever clock."""
        state = event.after
        served, who = self._served.get(state.descriptor.range_id, (MIN, ""))
        if served > max(state.lease.start, state.read_floor) and not self._excused(event.node, who):
            by_s = seconds_between(state.lease.start, served)
            text = f"a lease of r{state.descriptor.range_id} begins {by_s:.3f}s below what {who} has served"
            self.violated("lease-begins-below", text, lease=state.lease.status(), before=event.before.lease.status())
