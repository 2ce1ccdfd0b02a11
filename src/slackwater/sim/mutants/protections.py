"""Planted bugs of protections: made too late, or of too little."""

from __future__ import annotations

from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "M21",
        "a timestamp is protected although it may be collected already",
        play="collecting",
        expected=("I-27",),
        patches=(
            Patch(
                "slackwater.protect.store:ProtectionStore._set_deadline",
                "deadline <= now",
                "False",
            ),
            Patch(
                "slackwater.protect.store:ProtectionStore._set_deadline",
                "txn.deadline = deadline if txn.deadline is None else min(txn.deadline, deadline)",
                "pass",
            ),
        ),
    )
)
plant(
    PlantedBug(
        "M22",
        "the rows of a table are protected, and what it takes to decode them is not",
        play="collecting",
        expected=("I-27",),
        patches=(
            Patch("slackwater.protect.store:ProtectionStore._wanted", "wanted += self._decoding(table_id)", "pass"),
        ),
    )
)
plant(
    PlantedBug(
        "X-FORGOTTEN-PROTECTIONS",
        "what has expired is not released",
        play="collecting",
        expected=("I-28",),
        patches=(Patch("slackwater.protect.reconcile:Reconciler.round", "MIN < record.expires <= now", "False"),),
    )
)
plant(
    PlantedBug(
        "X-COVERED-BY-ANY",
        "a time is protected again because another protection is there, although that one keeps only what came later",
        play="collecting",
        expected=("I-26", "I-27"),
        patches=(
            Patch(
                "slackwater.protect.store:uncovered",
                "Kept(s.start, s.end, ts, after)",
                "Kept(s.start, s.end, MAX, after)",
            ),
        ),
    )
)
