"""A cluster recovered from surviving stores is the old one at one timestamp (I-37).

    ─────────────╪──────────────────────────────► the run goes on
                 └ the log and some nodes are lost: what is durable on the others now is recovered, at T

In some runs, at drawn moments, the disks of a drawn part of the nodes are copied as a power cut would leave them, and a
cluster is made from the copies. In the end, when V is complete, what was made must be V at T, key by key. Where the copies lack
keys, the plan must say so, and only these keys may be missing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import UsageError
from slackwater.hooks import probe
from slackwater.log.contract import LogIdentity
from slackwater.server.recovery import build, make_plan, survey
from slackwater.server.recovery.plan import system_lost
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.handles import NS
from slackwater.sim.oracles.versions import ROWS_END, VersionsOracle
from slackwater.sim.scenarios.cluster_plan import KV_SPAN
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.reads import scan

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.server.recovery import Survivor
    from slackwater.sim.world import World

ONE_RUN_IN = 3
EVERY_NS = (NS, 8 * NS)
SHOWN_MAX = 3
NEW_LOG = LogIdentity("memory", "recovered", "new")


class _Made(NamedTuple):
    """What a recovery gave."""

    at: Timestamp
    rows: dict[bytes, bytes]
    lost: list[tuple[bytes, bytes]]
    stores: list[str]


class Recovered:
    """I-37."""

    name = "I-37"

    def __init__(self, versions: VersionsOracle) -> None:
        self._versions = versions
        self._made: list[_Made] = []

    def attach(self, world: World) -> None:
        """Choose whether disasters happen."""
        self.world = world
        self._draw = world.tape.stream("recovery")
        if self._draw.chance(1, ONE_RUN_IN):
            self._wait()

    def _wait(self) -> None:
        self.world.loop.call_at_ns(self.world.loop.now_ns + self._draw.between(*EVERY_NS), self._lose)

    def _lose(self) -> None:
        """Recover from what a drawn part of the disks holds durably now. The run itself notices nothing."""
        if not self.world.healthy:
            self._wait()
            self._recover()

    def _recover(self) -> None:
        survivors: dict[int, Survivor] = {}
        for machine in self.world.nodes:
            if machine.gone or self._draw.chance(1, 3):
                continue
            for engine in machine.disk.platter.copied().engines():
                try:
                    found = survey(machine.name, engine)
                except UsageError:
                    continue  # it has not joined yet
                survivors.setdefault(int(found.identity.node_id), found)  # a copied store counts once
        if not survivors:
            return
        try:
            plan = make_plan(list(survivors.values()))
        except UsageError:
            probe("recovery.collected")
            return
        if system_lost(plan):
            probe("recovery.impossible")
            return
        engine = MemoryEngine()
        build(plan, engine, cluster_id="recovered", log=NEW_LOG, accept_loss=True)
        rows = scan(engine, KV_SPAN[0], ROWS_END, ts=plan.at)
        lost = [(piece.start, piece.end) for piece in plan.lost]
        probe("recovery.partial" if lost else "recovery.whole")
        made = dict(zip(rows.keys, rows.values, strict=True))
        self._made.append(_Made(plan.at, made, lost, [s.name for s in plan.survivors]))

    def judge(self, world: World) -> Iterable[Violation]:
        """Compare what was made with V at its timestamp."""
        for made in self._made:
            expected: dict[bytes, bytes] = {}
            for key, versions in self._versions.found.items():
                newest = max((ts for ts in versions if ts <= made.at), default=None)
                if newest is not None and versions[newest] and not _within(key, made.lost):
                    expected[key] = versions[newest]
            differing = sorted(k for k in made.rows.keys() | expected.keys() if made.rows.get(k) != expected.get(k))
            if differing:
                shown = [(k, made.rows.get(k), expected.get(k)) for k in differing[:SHOWN_MAX]]
                text = f"recovered from {', '.join(made.stores)} at {made.at}: (key, made, V) {shown!r}"
                yield Violation(self.name, "recovered-differs", text, {"keys": len(differing)})


def _within(key: bytes, spans: list[tuple[bytes, bytes]]) -> bool:
    return any(start <= key < end for start, end in spans)
