"""Planted bugs of the client library: sessions that forget, timeouts that do not end."""

from __future__ import annotations

from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "X-NO-FLOOR",
        "a session forgets the timestamps it was told",
        play="sessions",
        expected=("I-16",),
        patches=(Patch("slackwater.client.session:SessionFloor.told", "ts > self.ts", "False"),),
    )
)
plant(
    PlantedBug(
        "X-TIMEOUT-ANEW",
        "the timeout of an operation begins anew with each of its calls",
        play="gateways",
        expected=("I-33",),
        patches=(
            Patch(
                "slackwater.client.gateways:Gateways.call",
                "tries, maybe_done = 0, False",
                "deadline = self.deadline(); tries, maybe_done = 0, False",
            ),
        ),
    )
)
