"""One log, one order, one state (I-04, I-05, I-06, I-08), watched on every replica as it applies.

    I-04   after the entry at p comes the same next entry on every replica, the one that is in the log
    I-05   a command is accepted at one position and one index, however often it stands in the log
    I-06   the state record at each position is equal everywhere; every so often the whole content is too
    I-08   an accepted command was proposed under the lease in force

The state *before* an entry is compared as well: that is what a restart or a snapshot brought back.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

from slackwater.protocol.log.commands import LeaseTrigger
from slackwater.replica.apply import ApplyVerdict
from slackwater.replica.snapshot import range_digest
from slackwater.sim.oracles.witness import witness_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.log.contract import Entry
    from slackwater.model.ids import RangeId
    from slackwater.replica.driver import Replica
    from slackwater.replica.state import RangeState
    from slackwater.sim.checkers.violation import Violation
    from slackwater.sim.oracles.witness import ApplyEvent
    from slackwater.sim.world import World

DIGEST_ONE_IN = 50
_MIX = 2_654_435_761


def sampled(position: int, one_in: int) -> bool:
    """A fixed choice among positions, the same on every replica."""
    return position * _MIX % (1 << 32) % one_in == 0


class _Watcher:
    """What the watchers here share."""

    name = ""

    def attach(self, world: World) -> None:
        """Watch."""
        self.world = world
        witness_of(world).watchers.append(self)

    def judge(self, world: World) -> Iterable[Violation]:
        """Everything was judged online."""
        return ()

    def applied(self, event: ApplyEvent) -> None:
        """To be overridden."""

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """Nothing to see here."""

    def violated(self, kind: str, text: str, **evidence: object) -> None:
        """Say no."""
        self.world.violated(self.name, kind, text, **evidence)


class OneOrder(_Watcher):
    """I-04."""

    name = "I-04"

    def __init__(self) -> None:
        self._positions: dict[RangeId, list[int]] = {}
        self._commands: dict[tuple[int, int], tuple[bytes, ...]] = {}

    def attach(self, world: World) -> None:
        """Listen to the log as well."""
        super().attach(world)
        world.log.landed = self._landed

    def _landed(self, range_id: RangeId, entries: list[Entry]) -> None:
        self._positions.setdefault(range_id, []).extend(e.position for e in entries)

    def applied(self, event: ApplyEvent) -> None:
        """The next entry of the log, with the commands that all others found in it."""
        range_id = event.after.descriptor.range_id
        truth = self._positions.get(range_id, [])
        at = bisect_right(truth, event.before.position)
        if at >= len(truth) or truth[at] != event.position:
            expected = truth[at] if at < len(truth) else None
            text = f"{event.node} r{range_id} applied {event.position} after {event.before.position}, not {expected}"
            self.violated("wrong-order", text)
        commands = tuple(o.command.command_id for o in event.outcomes if o.verdict is ApplyVerdict.ACCEPTED)
        known = self._commands.setdefault((range_id, event.position), commands)
        if known != commands:
            text = f"{event.node} r{range_id} accepted other commands at {event.position} than an earlier replica"
            self.violated("other-commands", text)


class OnceOnly(_Watcher):
    """I-05."""

    name = "I-05"

    def __init__(self) -> None:
        self._places: dict[bytes, tuple[int, int, int]] = {}

    def applied(self, event: ApplyEvent) -> None:
        """Each command at one place."""
        range_id = event.after.descriptor.range_id
        taken: set[bytes] = set()
        for command, verdict in event.outcomes:
            if verdict is not ApplyVerdict.ACCEPTED:
                continue
            place = (range_id, event.position, command.lai)
            known = self._places.setdefault(command.command_id, place)
            if known != place or command.command_id in taken:
                text = f"{event.node} applied a command at {place} that was applied at {known} already (range, position, index)"
                self.violated("applied-twice", text, command=command.command_id.hex())
            taken.add(command.command_id)


class OneState(_Watcher):
    """I-06."""

    name = "I-06"

    def __init__(self) -> None:
        self._states: dict[tuple[int, int], RangeState] = {}
        self._digests: dict[tuple[int, int], bytes] = {}

    def applied(self, event: ApplyEvent) -> None:
        """States at every position, content at some."""
        for state in (event.before, event.after):
            self._same(event.node, state)
        if event.engine is not None and sampled(event.position, DIGEST_ONE_IN) and event.last_of_run:
            self.digest(event.node, event.after, range_digest(event.engine, event.after))

    def _same(self, node: str, state: RangeState) -> None:
        place = (state.descriptor.range_id, state.position)
        known = self._states.setdefault(place, state)
        if state is not known and state != known and state.position:
            text = f"{node} has another state at {place}: {state.status()}; elsewhere it was {known.status()}"
            self.violated("state-differs", text, here=str(state), there=str(known))

    def digest(self, node: str, state: RangeState, digest: bytes) -> None:
        """The content of a replica at its position."""
        place = (state.descriptor.range_id, state.position)
        if self._digests.setdefault(place, digest) != digest:
            self.violated("content-differs", f"{node} holds other bytes than another replica at {place}")


class OwnLease(_Watcher):
    """I-08."""

    name = "I-08"

    def applied(self, event: ApplyEvent) -> None:
        """Accepted under the sequence in force at that very command."""
        sequence = event.before.lease.sequence
        for command, verdict in event.outcomes:
            if verdict is not ApplyVerdict.ACCEPTED:
                continue
            if command.lease_sequence != sequence:
                text = (
                    f"{event.node} r{event.after.descriptor.range_id} accepted a command of lease {command.lease_sequence} "
                    f"at {event.position}, under lease {sequence}"
                )
                self.violated("wrong-lease", text)
            if isinstance(command.trigger, LeaseTrigger):
                sequence = command.trigger.lease.sequence
