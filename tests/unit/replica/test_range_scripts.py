"""Golden scripts of splits and merges on the pure apply functions: one log per range, two replicas if need be."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import Lease, RangeDescriptor
from slackwater.protocol.log.commands import (
    Command,
    DescriptorTrigger,
    FreezeTrigger,
    LeaseTrigger,
    MergeTrigger,
    Packet,
    SplitTrigger,
    ThawTrigger,
)
from slackwater.protocol.range.requests import SubsumeResult
from slackwater.replica.apply import Absorbed, Created, apply_packet
from slackwater.replica.state import RangeState
from tests import golden

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.protocol.log.commands import Trigger


class Ranges:
    """The ranges of one store. Every verb appends one command to the log of range `r` and applies it."""

    def __init__(self) -> None:
        self.states: dict[int, RangeState] = {}
        self.frozen: dict[int, SubsumeResult] = {}
        self.position = 0

    def do_range(self, r: str, start: str, end: str, gen: str, closed: str = "100") -> str:
        descriptor = RangeDescriptor(int(r), start.encode(), end.encode(), (1, 2), int(gen))
        self.states[int(r)] = RangeState(
            descriptor, Lease(1, 3, Timestamp(50), epoch=1), closed=Timestamp(int(closed)), stats=(10,)
        )
        return self._show(int(r))

    def do_write(self, r: str, ts: str, closed: str = "0", gen: str = "0") -> str:
        return self._apply(int(r), None, ts=int(ts), closed=int(closed), gen=int(gen))

    def do_split(self, r: str, at: str, new: str, closed: str = "0", gen: str = "") -> str:
        old = self.states[int(r)].descriptor
        left = msgspec.structs.replace(old, end=at.encode(), generation=old.generation + 1)
        right = RangeDescriptor(int(new), at.encode(), old.end, old.replicas, old.generation + 1)
        trigger = SplitTrigger(left, right, (4,))
        return self._apply(int(r), trigger, closed=int(closed), gen=int(gen or old.generation))

    def do_freeze(self, r: str, left: str, closed: str = "0", now: str = "0") -> str:
        generation = self.states[int(left)].descriptor.generation
        shown = self._apply(int(r), FreezeTrigger(int(left), generation), closed=int(closed))
        state = self.states[int(r)]
        self.frozen[int(r)] = SubsumeResult(
            state.position,
            state.lai,
            state.closed,
            Timestamp(max(state.read_floor, int(now))),
            generation,
            state.gc_threshold,
            state.txn_floor,
            state.stats,
        )
        return shown

    def do_thaw(self, r: str, closed: str = "0") -> str:
        return self._apply(int(r), ThawTrigger(), closed=int(closed))

    def do_merge(self, r: str, right: str, gen: str = "") -> str:
        left, other = self.states[int(r)].descriptor, self.states[int(right)].descriptor
        under = int(gen or self.frozen[int(right)].freeze_generation)
        merged = RangeDescriptor(
            left.range_id, left.start, other.end, left.replicas, max(left.generation, other.generation) + 1
        )
        return self._apply(int(r), MergeTrigger(merged, other, self.frozen[int(right)]), gen=under)

    def do_abort(self, r: str, gen: str) -> str:
        old = self.states[int(r)].descriptor
        raised = msgspec.structs.replace(old, generation=int(gen) + 1)
        return self._apply(int(r), DescriptorTrigger(raised), gen=old.generation)

    def do_lease(self, r: str, to: str, start: str) -> str:
        held = self.states[int(r)].lease
        lease = Lease(int(to), held.sequence + 1, Timestamp(int(start)), epoch=1)
        return self._apply(int(r), LeaseTrigger(lease))

    def do_show(self) -> str:
        return "\n".join(self._show(r) for r in sorted(self.states))

    def _apply(self, r: int, trigger: Trigger | None, *, ts: int = MIN, closed: int = 0, gen: int = 0) -> str:
        state = self.states[r]
        self.position += 1
        command = Command(
            b"c" * 12,
            state.lease.sequence,
            state.lai + 1,
            Timestamp(closed),
            Timestamp(ts),
            stats=(1,) if ts else (),
            trigger=trigger,
            generation=gen,
        )
        applied = apply_packet(state, self.position, Packet(r, [command]))
        self.states[r] = applied.state
        shown = [applied.outcomes[0].verdict.value]
        for event in applied.aftermath:
            if isinstance(event, Created):
                self.states[event.state.descriptor.range_id] = event.state
                shown.append(f"created {self._show(event.state.descriptor.range_id)}")
            elif isinstance(event, Absorbed):
                del self.states[event.descriptor.range_id]
                shown.append(f"absorbed r{event.descriptor.range_id} at {event.position}")
        shown.append(self._show(r))
        return "\n".join(shown)

    def _show(self, r: int) -> str:
        state = self.states[r]
        here = state.descriptor
        frozen = f" frozen-under={state.frozen.left_generation}" if state.frozen else ""
        return (
            f"r{r} [{here.start.decode()}, {here.end.decode()}) gen={here.generation} lai={state.lai} "
            f"closed={state.closed} floor={state.read_floor} stats={state.stats[0]}{frozen}"
        )


SCRIPTS = [p for p in golden.scripts("replica") if p.name.startswith(("split_", "merge_"))]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Ranges())
