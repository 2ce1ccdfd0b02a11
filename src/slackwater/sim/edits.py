"""What was taken out of a run: the difference between a seed's own run and a smaller one that still fails.

A seed draws a whole swarm: nodes, clients, settings, faults, hundreds of operations. `Edits` names the parts to keep and
leaves the rest of the run as the seed drew it. That works because every subject draws from a stream of its own, down to
one stream per fault and per operation:

    faults/17        when and how the nemesis strikes for the 17th time          without it, the 18th strikes as before
    op/c3/12         what client 3 does the 12th time                            without it, the 13th is the same act

so leaving one thing out does not redraw the others. Time still shifts a little (an operation that is not there takes no
time), which is why a shrinker tries every step and keeps only those under which the same oracle fails again.

`None` keeps everything. A mask is a list of names to keep; what came later than anything the full run ever did is not in
it and is left out as well. Plays that do not count their operations (`World.allows_operation`) are shrunk by the rest.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from slackwater.sim.handles import NS
from slackwater.sim.schedule import SchedulePolicy

if TYPE_CHECKING:
    from slackwater.sim.scenario import Scenario


class Edits(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A smaller run of the same seed."""

    duration_s: float | None = None
    fault_kinds: tuple[str, ...] | None = None
    """Kinds kept."""
    faults: tuple[str, ...] | None = None
    """Strikes kept, by name: `nemesis/17`."""
    clients: int | None = None
    """How many; the operator does not count."""
    operations: tuple[str, ...] | None = None
    """Operations kept, by name: `c3/12`."""
    nodes: int | None = None
    ranges: int | None = None
    settings: tuple[str, ...] | None = None
    """Hostile settings kept; the others go back to their defaults."""
    buggify: bool | None = None
    schedule: str | None = None

    def apply(self, scenario: Scenario) -> Scenario:
        """The scenario a seed drew, made smaller."""
        changes: dict[str, object] = {}
        if self.duration_s is not None:
            changes["duration_ns"] = round(self.duration_s * NS)
        if self.fault_kinds is not None:
            changes["faults"] = frozenset(k for k in scenario.faults if k.value in self.fault_kinds)
        if self.clients is not None:
            changes["clients"] = min(self.clients, scenario.clients)
        if self.nodes is not None:
            changes["nodes"] = min(self.nodes, scenario.nodes)
        if self.settings is not None:
            changes["settings"] = {k: v for k, v in scenario.settings.items() if k in self.settings}
        if self.buggify is not None:
            changes["buggify"] = self.buggify and scenario.buggify
        if self.schedule is not None:
            changes["schedule"] = SchedulePolicy(self.schedule)
        return replace(scenario, **changes)  # type: ignore[arg-type] # names and types are those of the fields above

    def parts(self) -> list[str]:
        """What was changed, for people."""
        return [f for f in self.__struct_fields__ if getattr(self, f) is not None]


NO_EDITS = Edits()
