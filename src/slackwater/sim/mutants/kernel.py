"""Planted bugs of the `kernel` play, which prove the simulator itself before any cluster runs in it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.errors import AmbiguousResult
from slackwater.hooks import probe
from slackwater.sim.faults import FaultKind
from slackwater.sim.mutants.patch import BODY, Patch
from slackwater.sim.scenario import PlantedBug, plant

if TYPE_CHECKING:
    from slackwater.model.ids import RangeId
    from slackwater.sim.scenarios.kernel_programs import NodeProgram

_PROGRAMS = "slackwater.sim.scenarios.kernel_programs"


async def append_later(node: NodeProgram, range_id: RangeId, payload: bytes) -> None:
    """K01: append after the caller was answered."""
    try:
        await node._runtime.log.append(range_id, [payload])
    except AmbiguousResult:
        probe("kernel.K01_lost")


plant(
    PlantedBug(
        "K01",
        "acknowledge an append before the log has it",
        play="kernel",
        expected=("L-1",),
        faults=frozenset({FaultKind.LOG_LOST, FaultKind.LOG_CUT}),
        patches=(
            Patch(
                f"{_PROGRAMS}:NodeProgram._append",
                "return AppendReply(await log.append(RangeId(request.range_id), [payload]))",
                """
from slackwater.sim.mutants.kernel import append_later
scope.spawn(append_later(self, RangeId(request.range_id), payload), name="append-later")
return AppendReply(0)
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "K02",
        "write the applied position in a batch of its own",
        play="kernel",
        expected=("I-06",),
        faults=frozenset({FaultKind.CRASH}),
        patches=(
            Patch(
                f"{_PROGRAMS}:KernelStore.apply",
                'batch.put(Family.LOCAL, b"a" + _two(range_id), _eight(entries[-1].position))',
                """
position = self.engine.batch()
position.put(Family.LOCAL, b"a" + _two(range_id), _eight(entries[-1].position))
self.engine.write(position)
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "K03",
        "follow a peer's clock however far ahead it is",
        play="kernel",
        expected=("I-01",),
        faults=frozenset({FaultKind.CLOCK_BEYOND}),
        patches=(
            Patch(f"{_PROGRAMS}:NodeClock.update", BODY, "self.clock.latest = max(self.clock.latest, Timestamp(ts))"),
        ),
    )
)
