"""Shows every apply of a cluster to its watchers, before any waiter is told of it.

    n1  Replica ── applied(before, after, batch, outcomes, position) ──► Witness ──► every watcher
    n2  Replica ── serving(replica, now) ─────────────────────────────►    │
    log ── landed(range, entries) ────────────────────────────────────►    ▼   in true order, on one thread

A watcher sees true time and every node. It changes nothing and draws nothing, so that watching leaves the run as it is.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slackwater.errors import InvariantViolation
from slackwater.replica.state import decode_state, state_key
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import Position
    from slackwater.replica.apply import ApplyOutcome
    from slackwater.replica.driver import Replica
    from slackwater.replica.state import RangeState
    from slackwater.sim.world import World
    from slackwater.storage.batch import WriteBatch
    from slackwater.storage.memory import MemoryEngine


class ApplyEvent:
    """One log entry, applied on one node."""

    __slots__ = ("after", "batch", "before", "engine", "first", "node", "outcomes", "position")

    def __init__(
        self,
        node: str,
        before: RangeState,
        after: RangeState,
        batch: WriteBatch,
        outcomes: list[ApplyOutcome],
        position: Position,
        *,
        engine: MemoryEngine | None,
        first: bool,
    ) -> None:
        self.node = node
        self.before = before
        self.after = after
        self.batch = batch
        self.outcomes = outcomes
        self.position = position
        self.engine = engine
        """What the node's store holds: exactly this entry's state only when `last_of_run`."""
        self.first = first
        """Whether no other replica has applied this entry before."""

    @property
    def last_of_run(self) -> bool:
        """Whether the store holds exactly this entry's state, and nothing of a later one yet."""
        range_id = self.after.descriptor.range_id
        return self.engine is not None and stored_position(self.engine, range_id) == self.position


class Watcher(Protocol):
    """Sees applies and serves of all nodes."""

    def applied(self, event: ApplyEvent) -> None:
        """A replica applied one log entry."""
        ...

    def serving(self, node: str, replica: Replica, now: Timestamp) -> None:
        """A replica answers a batch as leaseholder, in this very step."""
        ...


class Witness:
    """Passes everything on to the watchers."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.watchers: list[Watcher] = []
        self.engines: dict[str, MemoryEngine] = {}
        self._seen: set[tuple[int, int]] = set()
        world.taps["replica.serving"] = self._serving
        world.taps["replica.quarantined"] = self._quarantined

    def listener(self, node: str) -> WitnessListener:
        """What is given to one incarnation of a node."""
        return WitnessListener(self, node)

    def applied(
        self,
        node: str,
        before: RangeState,
        after: RangeState,
        batch: WriteBatch,
        outcomes: list[ApplyOutcome],
        position: Position,
    ) -> None:
        """From a listener."""
        place = (after.descriptor.range_id, position)
        engine = self.engines.get(node)
        event = ApplyEvent(
            node,
            before,
            after,
            batch,
            outcomes,
            position,
            engine=engine,
            first=place not in self._seen,
        )
        self._seen.add(place)
        for watcher in self.watchers:
            watcher.applied(event)

    def _quarantined(self, replica: Replica, error: Exception) -> None:
        """A replica that stops because an invariant broke has found a bug: that ends the run under the rule's name."""
        node = replica.context.runtime.name  # type: ignore[attr-defined]
        self.world.event(f"{node} quarantined r{replica.state.descriptor.range_id}: {error}")
        if isinstance(error, InvariantViolation):
            self.world.loop.fail(error)

    def _serving(self, replica: Replica, now: Timestamp) -> None:
        node = replica.context.runtime.name  # type: ignore[attr-defined]
        for watcher in self.watchers:
            watcher.serving(node, replica, now)


class WitnessListener:
    """Implements `replica.driver.ApplyListener` for one node."""

    def __init__(self, witness: Witness, node: str) -> None:
        self._witness = witness
        self._node = node

    def applied(
        self, before: RangeState, after: RangeState, batch: WriteBatch, outcomes: list[ApplyOutcome], position: Position
    ) -> None:
        """One log entry was applied."""
        self._witness.applied(self._node, before, after, batch, outcomes, position)


def stored_position(engine: MemoryEngine, range_id: int) -> int:
    """The applied position that a store holds for a range; -1 when it holds none."""
    raw = engine.get(Family.LOCAL, state_key(range_id))
    return -1 if raw is None else decode_state(raw).position


def witness_of(world: World) -> Witness:
    """The witness of a run."""
    witness: Witness = world.facts["witness"]
    return witness
