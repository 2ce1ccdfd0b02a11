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
plant(
    PlantedBug(
        "X-COLUMNS-INTENTS",
        "a segment is made at a timestamp below which intents may still commit",
        play="columns",
        expected=("I-38",),
        patches=(
            Patch("slackwater.storage.columns.build:anchor_of", "min(lowest, Timestamp(intent.ts - 1))", "lowest"),
        ),
    )
)
plant(
    PlantedBug(
        "X-COLUMNS-OUTLIVE",
        "a segment outlives the rows that it was made of",
        play="columns",
        expected=("I-38",),
        patches=(
            Patch("slackwater.storage.columns.shelf:Shelf.note", "self._take_out(batch, start, end, noted)", "None"),
        ),
    )
)
