"""What the nemesis does to the world, and how each of it ends.

A fault is begun, lasts for a drawn time, and is undone by its own `end`, so that overlapping faults do not heal one
another. Each leaves one line for the failure report:

    partition(n2|n1 n3) 35.0–39.7 · pause(n2) 38.1–40.0

Kinds are enabled per run (swarm testing: each with probability one half), because faults mask one another: a cluster
that is always partitioned never gets far enough to meet a full disk.

Limits of the fault model: spoiled reads (`disk-read`, `disk-short`, `disk-rot`) on one node at a time, and rot only where
another node has a healthy copy (`World.spare`): never on all copies; a clock beyond the bound on one
node at a time, for two broken clocks that agree could convince a third; at least one node stays within it.
"""

from __future__ import annotations

import enum
from collections import Counter
from typing import TYPE_CHECKING

from slackwater.runtime.seam import Family
from slackwater.sim.disk import SLOW_FLUSH_MAX_NS
from slackwater.sim.handles import NS
from slackwater.sim.rot import Rotten

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.sim.link import Link
    from slackwater.sim.tape import TapeStream
    from slackwater.sim.world import Machine, World

MS = NS // 1000
SHORTEST_MEAN_NS = NS // 10
ROTTEN_KEYS_MAX = 8


class FaultKind(enum.Enum):
    """Everything that can go wrong."""

    CRASH = "crash"
    KILL = "kill"
    PAUSE = "pause"
    SLOW_NODE = "slow-node"
    PARTITION = "partition"
    ONE_WAY = "one-way"
    ISOLATE = "isolate"
    SWIZZLE = "swizzle"
    SLOW_LINK = "slow-link"
    LOSSY_LINK = "lossy-link"
    RESET = "reset"
    DISK_SLOW = "disk-slow"
    DISK_STALL = "disk-stall"
    DISK_FULL = "disk-full"
    DISK_READ = "disk-read"
    DISK_SHORT = "disk-short"
    DISK_ROT = "disk-rot"
    LOG_UNKNOWN = "log-unknown"
    LOG_LOST = "log-lost"
    LOG_LATE = "log-late"
    LOG_DUPLICATE = "log-duplicate"
    LOG_SLOW = "log-slow"
    LOG_CUT = "log-cut"
    READER_LAG = "reader-lag"
    READER_RESTART = "reader-restart"
    CLOCK_JUMP = "clock-jump"
    CLOCK_BEYOND = "clock-beyond"
    CLIENT_CRASH = "client-crash"
    CLIENT_PAUSE = "client-pause"
    STOP = "stop"
    QUARANTINE = "quarantine"


NODES_NEEDED = {FaultKind.CLOCK_BEYOND: 3}
"""A broken clock is only told from the others by a majority."""
COPIES_NEEDED = {FaultKind.DISK_SHORT: 2, FaultKind.DISK_ROT: 2, FaultKind.QUARANTINE: 2}
"""Damage is mended from another copy, and a replica that is quarantined is fetched from one."""


CLUSTER_KINDS = frozenset(
    {
        *(FaultKind.CLIENT_CRASH, FaultKind.CLIENT_PAUSE, FaultKind.STOP, FaultKind.QUARANTINE),
        *(FaultKind.DISK_SHORT, FaultKind.DISK_ROT),
    }
)
"""Kinds that need programs which can take them."""


class InjectedFault:
    """One fault: what, where, from when to when, and how to undo it."""

    def __init__(
        self, kind: FaultKind, where: str, *, begin_ns: int, undo: Callable[[], None] | None, name: str = ""
    ) -> None:
        self.kind = kind
        self.name = name
        self.where = where
        self.begin_ns = begin_ns
        self.end_ns: int | None = None if undo else begin_ns
        self._undo = undo

    def end(self, world: World) -> None:
        """Undo it, once."""
        undo, self._undo = self._undo, None
        if undo is not None:
            undo()
            self.end_ns = world.loop.now_ns
            world.event(f"end {self.kind.value}({self.where})")

    def __str__(self) -> str:
        began = f"{self.kind.value}({self.where}) {self.begin_ns / NS:.1f}"
        return (
            began
            if self.end_ns == self.begin_ns
            else f"{began}–{'' if self.end_ns is None else f'{self.end_ns / NS:.1f}'}"
        )


Injection = tuple[str, "Callable[[], None] | None", int]
"""Where, how to undo it, and for how long (ns)."""


def _node(world: World, draw: TapeStream) -> Machine:
    focus = world.focus()
    if focus is not None and draw.chance(1, 3):
        return world.machines[focus]
    node: Machine = draw.pick(world.nodes)
    return node


def _crash(world: World, draw: TapeStream, *, kernel_lives: bool) -> Injection | None:
    node = _node(world, draw)
    if not node.up:
        return None
    node.crash(kernel_lives=kernel_lives)
    return node.name, node.start, draw.between(10 * MS, 8 * NS)


def _power_cut(world: World, draw: TapeStream) -> Injection | None:
    return _crash(world, draw, kernel_lives=False)


def _kill(world: World, draw: TapeStream) -> Injection | None:
    return _crash(world, draw, kernel_lives=True)


def _pause(world: World, draw: TapeStream) -> Injection | None:
    node = _node(world, draw)
    if not node.up or node.paused:
        return None
    node.pause()
    lasts_ns = draw.between(MS, 30 * NS) if draw.chance(1, 4) else draw.between(MS, 3 * NS)
    return node.name, node.resume, lasts_ns


def _slow_node(world: World, draw: TapeStream) -> Injection | None:
    node = _node(world, draw)
    node.slow_down(draw.between(MS, 50 * MS))
    return node.name, lambda: node.slow_down(0), draw.between(NS, 10 * NS)


def _cut_all(world: World, links: list[Link]) -> Callable[[], None]:
    for link in links:
        link.cut()

    def heal() -> None:
        for link in links:
            if link.cuts:
                link.heal(world.loop.now_ns)

    return heal


def _between(world: World, some: list[str], others: list[str], *, both_ways: bool = True) -> list[Link]:
    pairs = [(a, b) for a in some for b in others if a != b]
    if both_ways:
        pairs += [(b, a) for a, b in pairs]
    return [world.net.link(a, b) for a, b in pairs]


def _partition(world: World, draw: TapeStream) -> Injection | None:
    names = draw.shuffled(list(world.machines))
    size = draw.between(1, max(1, len(names) // 2))
    some, others = sorted(names[:size]), sorted(names[size:])
    heal = _cut_all(world, _between(world, some, others))
    return f"{' '.join(some)}|{' '.join(others)}", heal, draw.between(100 * MS, 15 * NS)


def _one_way(world: World, draw: TapeStream) -> Injection | None:
    node = _node(world, draw).name
    others = [name for name in world.machines if name != node]
    inward = draw.chance(1, 2)
    links = (
        _between(world, others, [node], both_ways=False) if inward else _between(world, [node], others, both_ways=False)
    )
    where = f"*→{node}" if inward else f"{node}→*"
    return where, _cut_all(world, links), draw.between(100 * MS, 15 * NS)


def _isolate(world: World, draw: TapeStream) -> Injection | None:
    node = world.focus() or _node(world, draw).name
    heal = _cut_all(world, _between(world, [node], [name for name in world.machines if name != node]))
    return node, heal, draw.between(100 * MS, 15 * NS)


def _swizzle(world: World, draw: TapeStream) -> Injection | None:
    """Clog nodes one after another, then unclog them in another order."""
    names = [m.name for m in world.nodes]
    step_ns = draw.between(50 * MS, NS)
    everybody = list(world.machines)
    heals: dict[str, Callable[[], None]] = {}

    def clog(name: str) -> None:
        if not world.healthy:
            heals[name] = _cut_all(world, _between(world, [name], everybody))

    def unclog(name: str) -> None:
        heal = heals.pop(name, None)
        if heal is not None:
            heal()

    def unclog_all() -> None:
        for name in list(heals):
            unclog(name)

    now_ns, loop = world.loop.now_ns, world.loop
    for i, name in enumerate(draw.shuffled(names)):
        loop.call_at_ns(now_ns + i * step_ns, clog, name)
    for i, name in enumerate(draw.shuffled(names)):
        loop.call_at_ns(now_ns + (len(names) + i) * step_ns, unclog, name)
    return " ".join(names), unclog_all, 2 * len(names) * step_ns


def _bad_link(knob: str, low: int, high: int) -> Callable[[World, TapeStream], Injection | None]:
    """Turn one knob of both directions between two machines."""

    def inject(world: World, draw: TapeStream) -> Injection | None:
        if len(world.machines) < 2:
            return None
        a, b = draw.shuffled(list(world.machines))[:2]
        links = _between(world, [a], [b])
        value = draw.between(low, high)
        for link in links:
            setattr(link, knob, value)

        def heal() -> None:
            for link in links:
                setattr(link, knob, 0)

        return f"{a}–{b}", heal, draw.between(NS, 20 * NS)

    return inject


def _reset(world: World, draw: TapeStream) -> Injection | None:
    connections = world.net.open_connections()
    if not connections:
        return None
    end = draw.pick(connections)
    end.break_now()
    return end.name, None, 0


def _disk_slow(world: World, draw: TapeStream) -> Injection | None:
    disk = _node(world, draw).disk
    disk.slow_max_ns = draw.between(10 * MS, SLOW_FLUSH_MAX_NS)
    return disk.name, lambda: setattr(disk, "slow_max_ns", 0), draw.between(NS, 20 * NS)


def _disk_stall(world: World, draw: TapeStream) -> Injection | None:
    disk = _node(world, draw).disk
    lasts_ns = draw.between(100 * MS, 10 * NS)
    disk.stalled_upto_ns = world.loop.now_ns + lasts_ns
    return disk.name, lambda: setattr(disk, "stalled_upto_ns", 0), lasts_ns


def _disk_full(world: World, draw: TapeStream) -> Injection | None:
    disk = _node(world, draw).disk
    disk.full = True
    return disk.name, lambda: setattr(disk, "full", False), draw.between(100 * MS, 5 * NS)


def _disk_read(world: World, draw: TapeStream) -> Injection | None:
    if any(node.disk.spoiled for node in world.nodes):
        return None
    disk = _node(world, draw).disk
    disk.break_reads(draw.between(1, 3))
    return disk.name, lambda: setattr(disk, "bad_reads", 0), draw.between(100 * MS, 5 * NS)


def _disk_short(world: World, draw: TapeStream) -> Injection | None:
    """Let streams end early now and then: a reader that trusts the end loses rows."""
    if any(node.disk.spoiled for node in world.nodes):
        return None
    node = _node(world, draw)
    if not node.up or not world.spare(node.name, Family.DATA, None):
        return None
    node.disk.spoil(short_percent=draw.between(10, 60))
    return node.disk.name, node.disk.spoil, draw.between(NS, 10 * NS)


def _disk_rot(world: World, draw: TapeStream) -> Injection | None:
    """A block of one node goes bad, where others have good copies; it stays so until the replica is fetched anew."""
    if any(node.disk.spoiled for node in world.nodes):
        return None
    node = _node(world, draw)
    family = Family.LOCK if draw.chance(1, 4) else Family.DATA
    keys = [key for key in node.disk.stored(family) if world.spare(node.name, family, key)]
    if not keys:
        return None
    at = draw.below(len(keys))
    last = keys[min(len(keys) - 1, at + draw.below(ROTTEN_KEYS_MAX))]
    node.disk.spoil(rot=(Rotten(family, keys[at], last + b"\x00"),))
    return node.disk.name, node.disk.spoil, draw.between(NS, 30 * NS)


def _log_knob(knob: str, low: int, high: int) -> Callable[[World, TapeStream], Injection | None]:
    """Turn one knob of one node's connection to the log."""

    def inject(world: World, draw: TapeStream) -> Injection | None:
        name = _node(world, draw).name
        link = world.log.link(name)
        setattr(link, knob, draw.between(low, high))
        return name, lambda: setattr(link, knob, 0), draw.between(500 * MS, 15 * NS)

    return inject


def _log_cut(world: World, draw: TapeStream) -> Injection | None:
    name = _node(world, draw).name
    world.log.link(name).cut = True
    return name, lambda: world.log.heal(name), draw.between(100 * MS, 10 * NS)


def _reader_restart(world: World, draw: TapeStream) -> Injection | None:
    name = _node(world, draw).name
    world.log.restart_readers(name)
    return name, None, 0


def _clock_jump(world: World, draw: TapeStream) -> Injection | None:
    """A step back inside the band: rude but allowed."""
    node = _node(world, draw)
    if node.clock.step_ns:
        return None
    step_ns = draw.between(1, max(1, node.clock.band_ns // 4))
    node.clock.step_ns = -step_ns
    return f"{node.name} −{step_ns / MS:.0f}ms", lambda: setattr(node.clock, "step_ns", 0), draw.between(NS, 20 * NS)


def _clock_beyond(world: World, draw: TapeStream) -> Injection | None:
    """Set a clock wrong: its node must fence itself and no other node may follow it (I-01)."""
    if len(world.nodes) < NODES_NEEDED[FaultKind.CLOCK_BEYOND] or any(
        node.clock_broken and node.clock.step_ns for node in world.nodes
    ):
        return None
    node = _node(world, draw)
    if node.clock.step_ns:
        return None
    step_ns = draw.between(2, 10) * node.clock.max_offset_ns * draw.pick([1, 1, -1])
    node.clock.step_ns = step_ns
    node.clock_broken = True
    shadow = world.cast_shadow(node, step_ns)

    def mend() -> None:
        node.clock.step_ns = 0
        shadow.ended_ns = world.loop.now_ns

    return f"{node.name} {step_ns / NS:+.1f}s", mend, draw.between(NS, 10 * NS)


def _stop(world: World, draw: TapeStream) -> Injection | None:
    """An operator restarts a node in good manners, in the middle of everything else."""
    node = _node(world, draw)
    if node.paused or not node.stop(rest_ns=draw.between(10 * MS, 8 * NS), stopped=world.stopped):
        return None
    return node.name, None, 0


def _quarantine(world: World, draw: TapeStream) -> Injection | None:
    """A replica meets something it must not go on from, a leaseholder's most often: its node fetches it anew."""
    where = world.spoil(draw)
    return None if where is None else (where, None, 0)


def _client_crash(world: World, draw: TapeStream) -> Injection | None:
    """A client dies in the middle of whatever it does, and comes back with no memory of it."""
    up = [client for client in world.clients if client.up]
    if world.calm_clients() or not up:
        return None
    client: Machine = draw.pick(up)
    client.crash(kernel_lives=draw.chance(1, 2))
    return client.name, client.start, draw.between(10 * MS, 15 * NS)


def _client_pause(world: World, draw: TapeStream) -> Injection | None:
    """A client stands still in the middle of a transaction, and then goes on as if nothing had been."""
    up = [client for client in world.clients if client.up and not client.paused]
    if world.calm_clients() or not up:
        return None
    client: Machine = draw.pick(up)
    client.pause()
    return client.name, client.resume, draw.between(MS, 20 * NS)


INJECTORS: dict[FaultKind, Callable[[World, TapeStream], Injection | None]] = {
    FaultKind.CRASH: _power_cut,
    FaultKind.KILL: _kill,
    FaultKind.PAUSE: _pause,
    FaultKind.SLOW_NODE: _slow_node,
    FaultKind.PARTITION: _partition,
    FaultKind.ONE_WAY: _one_way,
    FaultKind.ISOLATE: _isolate,
    FaultKind.SWIZZLE: _swizzle,
    FaultKind.SLOW_LINK: _bad_link("slow_ns", 10 * MS, 2 * NS),
    FaultKind.LOSSY_LINK: _bad_link("loss_percent", 1, 30),
    FaultKind.RESET: _reset,
    FaultKind.DISK_SLOW: _disk_slow,
    FaultKind.DISK_STALL: _disk_stall,
    FaultKind.DISK_FULL: _disk_full,
    FaultKind.DISK_READ: _disk_read,
    FaultKind.DISK_SHORT: _disk_short,
    FaultKind.DISK_ROT: _disk_rot,
    FaultKind.LOG_UNKNOWN: _log_knob("lose_answer", 5, 50),
    FaultKind.LOG_LOST: _log_knob("lose_request", 5, 50),
    FaultKind.LOG_LATE: _log_knob("late", 5, 30),
    FaultKind.LOG_DUPLICATE: _log_knob("duplicate", 5, 50),
    FaultKind.LOG_SLOW: _log_knob("slow_ns", 10 * MS, 3 * NS),
    FaultKind.LOG_CUT: _log_cut,
    FaultKind.READER_LAG: _log_knob("lag_ns", 10 * MS, 5 * NS),
    FaultKind.READER_RESTART: _reader_restart,
    FaultKind.CLOCK_JUMP: _clock_jump,
    FaultKind.CLOCK_BEYOND: _clock_beyond,
    FaultKind.CLIENT_CRASH: _client_crash,
    FaultKind.CLIENT_PAUSE: _client_pause,
    FaultKind.STOP: _stop,
    FaultKind.QUARANTINE: _quarantine,
}


def inject(world: World, kind: FaultKind, *, name: str | None = None) -> InjectedFault | None:
    """Begin one fault now; it ends by itself. None where it makes no sense at this moment."""
    name = name or f"hand/{len(world.faults) + 1}"
    injection = INJECTORS[kind](world, world.tape.stream(f"faults/{name}"))
    if injection is None:
        return None
    where, undo, lasts_ns = injection
    fault = InjectedFault(kind, where, begin_ns=world.loop.now_ns, undo=undo, name=name)
    world.faults.append(fault)
    world.event(f"begin {kind.value}({where})")
    if undo is not None:
        world.loop.call_at_ns(world.loop.now_ns + lasts_ns, fault.end, world, context=world.loop.root.context)
    return fault


async def nemesis(world: World, kinds: frozenset[FaultKind], *, mean_ns: int, upto_ns: int) -> None:
    """Hurt the world until it is to recover. `mean_ns` is the mean time between faults.

    Shorter at first, if there would not be time for every kind that the run enables before `upto_ns`.
    """
    enabled = sorted(kinds, key=lambda kind: kind.value)
    draw = world.tape.stream("nemesis")
    fresh = draw.shuffled(enabled)  # each enabled kind once first, so that every run shows all it enabled
    struck = 0
    while enabled:
        share_ns = (upto_ns - world.loop.now_ns) // (len(fresh) + 1)
        pace_ns = max(SHORTEST_MEAN_NS, min(mean_ns, share_ns)) if fresh else mean_ns
        await world.sleep_ns(draw.between(pace_ns // 4, pace_ns * 7 // 4))
        if world.healthy:
            return
        if world.calm():
            continue
        struck += 1
        name = f"nemesis/{struck}"
        kind = draw.pick(enabled) if not fresh else fresh[-1]
        if not world.allows_fault(name):
            del fresh[-1:]
        elif inject(world, kind, name=name) is not None and fresh:
            fresh.pop()
        elif fresh:
            fresh.insert(0, fresh.pop())


def counts(world: World) -> dict[str, int]:
    """How many faults of each kind there were."""
    return dict(sorted(Counter(fault.kind.value for fault in world.faults).items()))
