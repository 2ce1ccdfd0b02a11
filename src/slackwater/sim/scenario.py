"""What a seed decides before the first event, and the shelf where workloads, oracles and planted bugs are kept.

    Scenario       one draw per line (swarm testing): nodes, clients, faults, settings, schedule, duration
    Workload       the programs of nodes and clients, and what "recovered" means for them
    Oracle         watches online, judges at the end
    Play           a named recipe: how to draw its scenario, which workloads, which oracles
    PlantedBug     a deliberate bug (`sim/mutants/`), the play that runs it, and the oracles that must find it

Later layers add plays by registering from a module under `sim/scenarios/`, which is imported by itself:

    register(Play(name="cluster", summary="…", draw=_draw, workloads=lambda: [Bank()], oracles=lambda: [Closed()]))

A workload's `setup` calls `world.add_node(name, boot)` and `world.add_client(name, boot)`, where `boot` is the program:
an async function of a `SimRuntime` (a `seam.Runtime` with `log`, `settings` and `name`). Online oracles call
`world.violated(rule, kind, summary, **evidence)`; what workload and oracles share goes into `world.facts`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

from slackwater.errors import UsageError
from slackwater.settings import SETTINGS
from slackwater.sim.faults import COPIES_NEEDED, NODES_NEEDED, FaultKind
from slackwater.sim.handles import NS
from slackwater.sim.schedule import SchedulePolicy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.mutants.patch import Patch
    from slackwater.sim.tape import Tape
    from slackwater.sim.world import World

SAFETY_PERCENT_MIN, SAFETY_PERCENT_MAX = 60, 80
FAULT_MEAN_NS_MIN, FAULT_MEAN_NS_MAX = NS, 3 * NS
HOSTILE_STEPS = 1000


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Everything a seed decides before the first event."""

    nodes: int
    clients: int
    faults: frozenset[FaultKind]
    fault_mean_ns: int
    settings: dict[str, float]
    schedule: SchedulePolicy
    duration_ns: int
    safety_percent: int
    buggify: bool

    @property
    def safety_ns(self) -> int:
        """When the faults stop."""
        return self.duration_ns * self.safety_percent // 100

    def __str__(self) -> str:
        hostile = ", ".join(f"{name}={value:g}" for name, value in self.settings.items()) or "defaults"
        size = f"nodes={self.nodes} clients={self.clients} schedule={self.schedule.value} faults={len(self.faults)}"
        return f"{size} settings: {hostile}"


def draw_scenario(tape: Tape, *, nodes: tuple[int, int], clients: tuple[int, int], duration_s: float) -> Scenario:
    """The swarm draw, one draw per line."""
    draw = tape.stream("scenario")
    settings = hostile_settings(tape)
    return Scenario(
        nodes=(count := draw.between(*nodes)),
        clients=draw.between(*clients),
        faults=drawn_faults(tape, nodes=count, copies=int(settings.get("range.replication_factor", count))),
        fault_mean_ns=draw.between(FAULT_MEAN_NS_MIN, FAULT_MEAN_NS_MAX),
        settings=settings,
        schedule=draw.pick(_SCHEDULES),
        duration_ns=round(duration_s * NS),
        safety_percent=draw.between(SAFETY_PERCENT_MIN, SAFETY_PERCENT_MAX),
        buggify=draw.chance(3, 4),
    )


_SCHEDULES = (
    *(SchedulePolicy.UNIFORM,) * 6,
    SchedulePolicy.FIFO,
    SchedulePolicy.PCT2,
    SchedulePolicy.PCT3,
    SchedulePolicy.PCT4,
    SchedulePolicy.STARVE,
)


def drawn_faults(tape: Tape, *, nodes: int, copies: int) -> frozenset[FaultKind]:
    """Half of the kinds that make sense; each from a stream of its own, so that a new kind disturbs no other."""
    kinds = (kind for kind in FaultKind if tape.stream(f"fault/{kind.value}").chance(1, 2))
    copies = min(nodes, copies)
    return frozenset(k for k in kinds if nodes >= NODES_NEEDED.get(k, 1) and copies >= COPIES_NEEDED.get(k, 1))


def hostile_settings(tape: Tape) -> dict[str, float]:
    """A third of the settings, each drawn from its hostile range; whole numbers stay whole.

    Each has a stream of its own, so that a new setting leaves the draws of the others alone.
    """
    values: dict[str, float] = {}
    for setting in SETTINGS:
        draw = tape.stream(f"setting/{setting.name}")
        if draw.chance(1, 3):
            low, high = setting.hostile
            value = low + (high - low) * draw.below(HOSTILE_STEPS + 1) / HOSTILE_STEPS
            whole = setting.default == int(setting.default) and low == int(low) and high == int(high)
            values[setting.name] = int(value) if whole else value
    return values


class Workload(Protocol):
    """Programs to run, and what recovered means."""

    def setup(self, world: World, scenario: Scenario) -> None:
        """Add machines and tasks, before the first event."""
        ...

    def unsettled(self, world: World) -> str | None:
        """After healing: what is still missing, or None. Asked several times a simulated second."""
        ...

    def check(self, world: World) -> Iterable[Violation]:
        """After the run: what is wrong."""
        ...


class Oracle(Protocol):
    """A rule that is watched, judged, or both."""

    name: str

    def attach(self, world: World) -> None:
        """Before the first event: put taps where something is to be watched."""
        ...

    def judge(self, world: World) -> Iterable[Violation]:
        """After the run: what is wrong."""
        ...


@dataclass(frozen=True, kw_only=True)
class Play:
    """A recipe for runs."""

    name: str
    summary: str
    draw: Callable[[Tape, float], Scenario]
    workloads: Callable[[], list[Workload]]
    oracles: Callable[[], list[Oracle]]
    settle_s: float = 60.0
    """Simulated seconds within which a healed world must have recovered."""


@dataclass(frozen=True)
class PlantedBug:
    """A deliberate bug, applied by name for the length of a run (`sim/mutants/`)."""

    name: str
    summary: str
    play: str
    expected: tuple[str, ...]
    faults: frozenset[FaultKind] = field(default_factory=frozenset)
    """Fault kinds forced on for its runs, where it cannot show without them."""
    settings: dict[str, float] = field(default_factory=dict)
    """Settings that make it show sooner."""
    patches: tuple[Patch, ...] = field(kw_only=True)
    """What it changes."""


MIX = (
    *("cluster", "kernel", "feeds", "leases", "cluster", "cluster"),
    *("policies", "frontier", "cluster", "feeds_back", "cluster", "kernel"),
    *("cluster", "snapshots", "cluster", "feeds_tight", "gateways", "late"),
    *("cluster", "feeds_tables", "feeds_lead", "feeds_lag", "sessions", "feeds_gc"),
    *("refetch", "cluster", "gray", "jobs", "collecting", "columns", "cluster", "cluster"),
    *("schemes", "store_wide", "cluster", "ages", "schema", "cluster"),
    *("refetch", "columns", "cluster", "schema", "jobs", "collecting", "cluster"),
    *("feeds_behind", "cluster", "unheard"),
)
"""What consecutive seeds play: a share for everything that was built, and a round that any 48 seeds complete. Left out are
`standard`, which is for measuring, and `resend`, a neighbor of `frontier`."""
PLAYS: dict[str, Play] = {}
PLANTED: dict[str, PlantedBug] = {}


def register(play: Play) -> None:
    """Put a play on the shelf."""
    PLAYS[play.name] = play


def plant(bug: PlantedBug) -> None:
    """Put a planted bug on the shelf."""
    PLANTED[bug.name] = bug


def find_play(name: str) -> Play:
    """A play by name."""
    load()
    if name not in PLAYS:
        raise UsageError(f"there is no scenario {name!r}; there are: {', '.join(sorted(PLAYS))}")
    return PLAYS[name]


def default_play(seed: int) -> str:
    """The play of a seed when none is named: whole clusters most of all, and each narrower play now and then."""
    return MIX[seed % len(MIX)]


def find_planted(name: str) -> PlantedBug:
    """A planted bug by name."""
    load()
    if name not in PLANTED:
        raise UsageError(f"there is no planted bug {name!r}; there are: {', '.join(sorted(PLANTED))}")
    return PLANTED[name]


def with_bug(scenario: Scenario, bug: PlantedBug) -> Scenario:
    """The same scenario with what a planted bug needs to show."""
    settings = {**scenario.settings, **bug.settings}
    return replace(scenario, faults=scenario.faults | bug.faults, settings=settings)


def load() -> None:
    """Import every module under `sim/scenarios/` and `sim/mutants/`, which register themselves."""
    from slackwater.sim import mutants, scenarios

    scenarios.load()
    mutants.load()
