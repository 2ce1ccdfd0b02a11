"""Planted bugs of columns on disk: segments that show what rows do not."""

from __future__ import annotations

from slackwater.sim.mutants.patch import Patch
from slackwater.sim.scenario import PlantedBug, plant

plant(
    PlantedBug(
        "X-COLUMNS-UNNOTED",
        "what is written beside a segment is not noted",
        play="columns",
        expected=("I-38",),
        patches=(
            Patch("slackwater.storage.columns.shelf:Shelf._change", "noted.changed.append((kept, found))", "None"),
        ),
    )
)
