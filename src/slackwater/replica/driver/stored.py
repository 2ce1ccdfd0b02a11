"""What an engine holds of ranges, read before any of them lives."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import LOCAL, prefix_span
from slackwater.replica.state import RangeState, decode_state, state_key
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from slackwater.runtime.seam import Reader

LOAD_CHUNK = 1_000


def stored_states(engine: Reader) -> list[RangeState]:
    """The state of every replica in an engine."""
    span = prefix_span(LOCAL + b"r")
    cursor = engine.cursor(Family.LOCAL, start=span.start, end=span.end)
    states: list[RangeState] = []
    while True:
        keys, values = cursor.chunk(LOAD_CHUNK)
        if not keys:
            return states
        for key, value in zip(keys, values, strict=True):
            range_id = int.from_bytes(key[2:10], "big")
            if key == state_key(range_id):
                states.append(decode_state(value))
                assert states[-1].descriptor.range_id == range_id, "a state is stored under its range's id"
