"""Planted bugs of leases and clocks: a node serves although another one may, or does not know what was served before it."""

from __future__ import annotations

from slackwater.sim.faults import FaultKind
from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "M28",
        "a lease is used up to its very end, whatever the clocks' skew: two leaseholders",
        play="leases",
        # It also closes up to there (I-11), where the next holder may already write (I-07).
        expected=("I-07", "I-20", "I-11"),
        patches=(
            Patch("slackwater.replica.lease:lease_state", "max_offset_us << LOGICAL_BITS", "0"),
            Patch("slackwater.replica.lease:usable_until", "max_offset_us << LOGICAL_BITS", "0"),
        ),
    )
)
plant(
    PlantedBug(
        "X-TSCACHE-LOST",
        "the new leaseholder does not know what the old one served",
        play="leases",
        # Seen as soon as such a lease applies (I-07); what it lets happen would break I-18.
        expected=("I-07", "I-18"),
        patches=(
            Patch(
                "slackwater.replica.driver.replica:Replica._lease_changed",
                "Timestamp(max(lease.start, self.state.read_floor))",
                "Timestamp(0)",
            ),
            Patch(
                "slackwater.replica.driver.leasing:Leasing.transfer",
                "state, now = self._of.state, self._context.clock.now()",
                "state = self._of.state; now = Timestamp(state.lease.start + 1)",
            ),
            Patch("slackwater.replica.driver.leasing:Leasing.transfer", "Timestamp(max(now, served))", "now"),
        ),
    )
)
plant(
    PlantedBug(
        "X-ENDED-UNHEARD",
        "a lease begins at its taker's clock, whatever the holder before has served when it ended its epoch itself",
        play="unheard",
        expected=("I-07",),
        patches=(
            Patch(
                "slackwater.replica.driver.leasing:Leasing._next",
                "record.ended_at if record is not None and record.epoch > held.epoch else MIN",
                "MIN",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-GRAY",
        "a node that no other node can reach, or whose disk is full, keeps its leases for as long as it can write to the log",
        play="gray",
        expected=("I-35",),
        patches=(Patch("slackwater.server.fitness:Fitness.reasons", "return found", "return []"),),
    )
)
plant(
    PlantedBug(
        "X-NO-LIFE",
        "records and leases do not say which process of a node they belong to",
        play="leases",
        expected=("I-07", "I-31"),
        patches=(
            Patch(
                "slackwater.server.node:Node._begin_life",
                "self.start_as_member(identity, lives)",
                """
from slackwater.replica.driver.liveness import Unnamed
self.start_as_member(identity, Unnamed())
""",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "X-NO-FENCE",
        "a node whose clock was set while it ran serves on until its peers prove it wrong",
        play="standard",
        expected=("I-01",),
        faults=frozenset({FaultKind.CLOCK_BEYOND}),
        patches=(
            Patch("slackwater.clock.hlc:SteadyWall.__call__", "steady_ns if parted else wall_ns", "wall_ns"),
            Patch(
                "slackwater.clock.hlc:StepGuard.check",
                "-self._max_offset_ns <= stepped_ns <= self._max_offset_ns",
                "True",
            ),
        ),
    )
)
