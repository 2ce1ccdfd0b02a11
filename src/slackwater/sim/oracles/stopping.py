"""A node that is asked to stop does so in time, leaves no task behind, and loses nothing (I-31).

    asked ── drain ── close the doors ── leave ── release ── flush ── stopped ── 0.1 s ── looked at ── power off

    in time      within `drain.timeout` and what the later steps are allowed; not judged where the node itself was paused,
                 slowed or its disk was, for then the time it took is the fault's
    no task      nothing of its program is left on the loop
    no loss      every write to its engine is durable: the power cut that follows takes nothing

That what it acknowledged is not lost either is for the judges of the history, as after any other end of a node.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.sim.faults import FaultKind
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.world import Machine, World

STOP_SLACK_S = 30.0
"""Closing doors, leaving the cluster, releasing a lease and the last flush each have their own bound; this is their sum."""
HEALTHY_SLACK_S = 5.0
_SLOWING = frozenset(
    {FaultKind.PAUSE, FaultKind.SLOW_NODE, FaultKind.DISK_SLOW, FaultKind.DISK_STALL, FaultKind.DISK_FULL}
)


def stopped_lives(world: World) -> set[tuple[str, int]]:
    """Incarnations of machines that ended in good order, by name and number."""
    lives: set[tuple[str, int]] = world.facts.setdefault("stopped", set())
    return lives


class Stops:
    """I-31: graceful stops."""

    name = "I-31"

    def attach(self, world: World) -> None:
        """Be told of every stop."""
        self.world = world
        world.stopped = self._stopped

    def judge(self, world: World) -> Iterable[Violation]:
        """Everything was judged online."""
        return ()

    def _stopped(self, machine: Machine, took_ns: int) -> None:
        probe("cluster.stopped")
        stopped_lives(self.world).add((machine.name, machine.incarnation))
        left = machine.leftovers()
        if left:
            self.world.violated(self.name, "task-outlives-node", f"{machine.name} has stopped, but {left[0]!r} goes on")
        at_risk = machine.disk.at_risk()
        if at_risk:
            text = f"{machine.name} has stopped with {at_risk} writes that are not durable"
            self.world.violated(self.name, "stop-lost-writes", text)
        slack_s = HEALTHY_SLACK_S if self.world.healthy_since_ns(took_ns) else STOP_SLACK_S
        bound_s = self.world.settings["drain.timeout"] + slack_s
        if took_ns > bound_s * NS and not self._slowed(machine, took_ns):
            text = f"{machine.name} took {took_ns / NS:.1f}s to stop, and its bound is {bound_s:.1f}s"
            self.world.violated(self.name, "slow-stop", text)

    def _slowed(self, machine: Machine, took_ns: int) -> bool:
        """Whether a fault of the machine itself overlapped the stop."""
        began_ns = self.world.loop.now_ns - took_ns
        return any(
            fault.kind in _SLOWING
            and fault.where.partition(" ")[0] == machine.name
            and (fault.end_ns is None or fault.end_ns >= began_ns)
            for fault in self.world.faults
        )
