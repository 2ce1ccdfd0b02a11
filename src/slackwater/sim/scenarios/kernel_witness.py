"""What the kernel scenario's oracles know: the true log, every acknowledgement, every apply, true time.

L-1    an acknowledged entry is in the log, and counted once, on every node
I-01   no node's hybrid clock goes back, or ahead of true time by more than its own error and the maximum offset
I-04   every node applies exactly the entries of the log, in order, without gaps
I-06   what a node finds on its disk after a crash is the state at the position it says it has applied
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from slackwater.clock import Timestamp, us_of
from slackwater.hooks import probe
from slackwater.model.ids import Position, RangeId
from slackwater.sim.checkers.violation import Violation
from slackwater.sim.clocks import EPOCH_NS
from slackwater.sim.handles import NS
from slackwater.sim.scenarios.kernel_programs import TRIM_KEEPS, KernelStore, unpack

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.log.contract import Entry
    from slackwater.sim.world import World

CLOCK_GRAIN_NS = 2_000
"""A timestamp counts whole microseconds and may run a few logical ticks ahead."""


class KernelWitness:
    """Sees everything; changes nothing."""

    def __init__(self, world: World, *, ranges: int, traffic_upto_ns: int) -> None:
        self.ranges = ranges
        self.traffic_upto_ns = traffic_upto_ns
        self._world = world
        self._truth: dict[int, list[Entry]] = {r: [] for r in range(1, ranges + 1)}
        self._positions: dict[int, list[int]] = {r: [] for r in range(1, ranges + 1)}
        self._acknowledged: set[tuple[int, int, int]] = set()
        self._asking: dict[int, int] = {}
        self._flushed: dict[tuple[str, int], Position] = {}
        world.log.landed = self._landed

    # --- taps ------------------------------------------------------------------------------------------------------

    def _landed(self, range_id: RangeId, entries: list[Entry]) -> None:
        self._truth[range_id].extend(entries)
        self._positions[range_id].extend(e.position for e in entries)

    def asking(self, client: int, number: int) -> None:
        """A client wants this entry in the log; 0 when it is done for good."""
        self._asking[client] = number

    def acknowledged(self, range_id: int, client: int, number: int) -> None:
        """A client was told that its entry is durable."""
        probe("kernel.acknowledged")
        self._acknowledged.add((range_id, client, number))

    def booted(self, node: str, range_id: int, applied: Position, found: dict[bytes, bytes]) -> None:
        """I-06: what is on the disk is the state at the applied position."""
        if found != self._state(range_id, applied):
            expected = len(self._state(range_id, applied))
            text = f"{node} r{range_id} says it applied up to {applied} but holds {len(found)} entries of {expected}"
            self._world.violated("I-06", "torn-state", text, node=node, range_id=range_id, applied=applied)

    def applying(self, node: str, range_id: int, *, after: Position, entries: list[Entry]) -> None:
        """I-04: the next entries of the log, and no others."""
        first = bisect_right(self._positions[range_id], after)
        expected = self._truth[range_id][first : first + len(entries)]
        if entries != expected:
            text = f"{node} r{range_id} applies {_places(entries)} after {after}; the log says {_places(expected)}"
            self._world.violated("I-04", "wrong-entries", text, node=node, range_id=range_id)

    def flushed(self, node: str, range_id: int, position: Position) -> Position:
        """A node made this position durable; answers up to where the log may forget."""
        self._flushed[node, range_id] = position
        least = min(self._flushed.get((m.name, range_id), Position(0)) for m in self._world.nodes)
        kept = bisect_right(self._positions[range_id], least) - TRIM_KEEPS
        return Position(self._positions[range_id][kept]) if kept > 0 else Position(0)

    def stamped(self, node: str, *, before: Timestamp, ts: Timestamp) -> None:
        """I-01: forward only, and never beyond what a right clock and one peer's error can explain."""
        machine = self._world.machines[node]
        if ts <= before:
            self._world.violated("I-01", "clock-went-back", f"{node} stamped {ts} after {before}", node=node)
        if machine.clock_broken:
            return
        clock = machine.clock
        bound_ns = EPOCH_NS + self._world.loop.now_ns + clock.band_ns + clock.max_offset_ns + CLOCK_GRAIN_NS
        ahead_ns = us_of(ts) * 1000 - bound_ns
        if ahead_ns > 0:
            text = f"{node} stamped {ahead_ns / NS:.3f}s beyond its clock's error plus the maximum offset"
            self._world.violated("I-01", "clock-ahead", text, node=node, skew_ns=clock.skew_ns())

    # --- verdicts --------------------------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        """What a healed world still misses."""
        for client, number in self._asking.items():
            if number:
                return f"c{client} is still trying to append entry {number}"
        for node in self._world.nodes:
            if node.runtime is None or "store" not in node.disk.engines:
                return f"{node.name} is not up"
            store = KernelStore(node.disk.engines["store"])
            for range_id, positions in self._positions.items():
                if positions and store.applied(range_id) != positions[-1]:
                    return f"{node.name} r{range_id} applied {store.applied(range_id)} of {positions[-1]}"
        return None

    def judge_acknowledged(self) -> Iterator[Violation]:
        """L-1: acknowledged entries are there."""
        there = {r: {unpack(e.payload) for e in entries} for r, entries in self._truth.items()}
        for range_id, client, number in sorted(self._acknowledged):
            if (client, number) not in there[range_id]:
                text = f"entry {number} of c{client} was acknowledged but is not in the log of r{range_id}"
                yield Violation("L-1", "lost-append", text, {"range_id": range_id, "client": client, "number": number})

    def judge_states(self) -> Iterator[Violation]:
        """L-4 and convergence: every node holds the state of the whole log."""
        for node in self._world.nodes:
            store = KernelStore(node.disk.engines["store"])
            for range_id, positions in self._positions.items():
                expected = self._state(range_id, Position(positions[-1] if positions else 0))
                if store.dump(range_id) != expected:
                    yield Violation("I-06", "diverged", f"{node.name} r{range_id} differs from the log", {})

    def _state(self, range_id: int, upto: Position) -> dict[bytes, bytes]:
        """What a store holds after applying the log up to a position."""
        state: dict[bytes, bytes] = {}
        highest: dict[int, int] = {}
        for entry in self._truth[range_id][: bisect_right(self._positions[range_id], upto)]:
            client, number = unpack(entry.payload)
            if number > highest.get(client, 0):
                highest[client] = number
                state[range_id.to_bytes(2, "big") + entry.payload] = entry.position.to_bytes(8, "big")
        return state


def _places(entries: list[Entry]) -> str:
    return "[" + " ".join(str(e.position) for e in entries[:8]) + (" …]" if len(entries) > 8 else "]")
