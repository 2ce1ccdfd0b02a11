"""The statistics of what lies at or above a key, kept current while a snapshot of it is counted.

A split needs the exact numbers of its right half. To count them takes as long as to read it, and what holds up the range for so
long holds up every writer to it. So the half is counted on a snapshot while commands go on applying, and what each of
them changes is added:

    snapshot ────────────── counted on a thread ───────────────┐
       │   put @ left     put @ right      put @ right         ▼
       └──── nothing ──── + its change ─── + its change ───► right half now

The statistics of a command are of the keys that it writes (`storage.stats`). One that writes on both sides, or clears a span, or
changes the range itself, cannot be divided: then counting ends, and the half is counted with nothing under way. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.layout import VERSION_BYTES
from slackwater.replica.apply import ApplyVerdict
from slackwater.replica.state import add_stats
from slackwater.runtime.seam import Family
from slackwater.storage.batch import decode_batch
from slackwater.storage.stats import Stats

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.protocol.log.commands import Command
    from slackwater.replica.apply import ApplyOutcome
    from slackwater.replica.state import RangeState

COUNTED = (Family.DATA, Family.LOCK)
"""What statistics are of."""
assert set(COUNTED) == set(Family) - {Family.LOCAL}, "statistics are of all that a range holds but its own records"


class SideStats:
    """The numbers of `[at, end of the range)`: those of a snapshot of `state`, and what was applied since."""

    def __init__(self, state: RangeState, at: bytes) -> None:
        assert state.descriptor.start < at < state.descriptor.end, "a key inside divides a range"
        self.at = at
        self.end = state.descriptor.end
        self._generation = state.descriptor.generation
        self.counted: Stats | None = None
        """What the snapshot held; told once that is known."""
        self._change: tuple[int, ...] = ()
        self.lost = False
        """Whether something was applied that cannot be divided."""

    def applied(self, outcomes: Iterable[ApplyOutcome]) -> None:
        """Take in what was applied: every command since the snapshot, in its order."""
        for command, verdict in outcomes:
            if verdict is ApplyVerdict.ACCEPTED and not self.lost:
                self._take(command)

    def now(self, state: RangeState) -> tuple[int, ...] | None:
        """The numbers in `state`, which is what was applied last; None if they cannot be told."""
        if self.counted is None or self.lost:
            return None
        if state.descriptor.generation != self._generation or state.descriptor.end != self.end:
            return None
        right = add_stats(tuple(self.counted), self._change)
        whole = Stats(*state.stats) if state.stats else Stats()
        inside = all(0 <= side <= all_ for side, all_ in zip(right, whole, strict=True))
        return right if inside else None  # a range whose statistics are wrong already (I-34): its half is counted anew

    def _take(self, command: Command) -> None:
        sides = _sides(command.effects, self.at) if command.effects else set()
        if sides == {True}:
            self._change = add_stats(self._change, command.stats)
        elif sides == {False, True} or (not sides and any(command.stats)):
            self.lost = True


def _sides(effects: bytes, at: bytes) -> set[bool]:
    """Of the keys that some effects write: whether they lie at or above `at`. Both, where a span is cleared."""
    batch = decode_batch(effects)
    if any(batch.ranges[family] for family in COUNTED):
        return {False, True}
    sides = {stored[:-VERSION_BYTES] >= at for stored in batch.writes[Family.DATA]}
    return sides | {key >= at for key in batch.writes[Family.LOCK]}
