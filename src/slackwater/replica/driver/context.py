"""What a replica is given by its node: identity, time, log, engine, and a few narrow doors to what stands above it."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from slackwater.clock.timestamp import seconds_between
from slackwater.closedts.policy import PolicyBook
from slackwater.errors import DamageError, StorageError
from slackwater.replica.driver.bulk_gate import POINT_WRITES_MAX, BulkGate
from slackwater.replica.driver.duty import Duty
from slackwater.replica.evaluation import NO_RULES, Neighbors, RetentionRules
from slackwater.storage.batch import WriteBatch
from slackwater.storage.columns.shelf import NOTHING, Shelf
from slackwater.storage.files import MemoryFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.clock import HybridClock, Timestamp
    from slackwater.closedts.publisher import Publisher
    from slackwater.errors import SlackwaterError
    from slackwater.log.contract import OrderedLog
    from slackwater.model.descriptors import Liveness, RangeDescriptor
    from slackwater.model.ids import NodeId, Position, RangeId
    from slackwater.protocol.log.commands import ComplaintTrigger
    from slackwater.replica.apply import Applied, ApplyOutcome
    from slackwater.replica.read_summary import ReadSummary
    from slackwater.replica.state import RangeState
    from slackwater.runtime.seam import Engine, Runtime
    from slackwater.settings import Settings
    from slackwater.storage.columns.shelf import KeptSegment


class HasState(Protocol):
    """A replica, to the parts of it that look at its applied state."""

    state: RangeState


class LivenessView(Protocol):
    """What a replica may know of nodes. `None` is unknown, which is neither live nor dead."""

    def get(self, node: NodeId) -> Liveness | None:
        """The newest known record of a node."""
        ...

    def own(self, now: Timestamp | None = None) -> Liveness | None:
        """This node's record, while it may rely on it."""
        ...

    async def end_epoch(self, record: Liveness) -> Liveness:
        """Raise the epoch of an expired node, so that its leases end for good; returns the new record."""
        ...


class ApplyListener(Protocol):
    """Sees what a replica applies, in order, before waiters are told. Change feeds and oracles implement it."""

    def applied(
        self, before: RangeState, after: RangeState, batch: WriteBatch, outcomes: list[ApplyOutcome], position: Position
    ) -> None:
        """One log entry was applied."""
        ...


class DetachReason(enum.Enum):
    """Why a replica applies nothing any more."""

    REMOVED = "the range no longer counts this replica"
    ABSORBED = "its range was merged into the left neighbour"
    REPLACED = "a snapshot took its place"
    FAILED = "it is quarantined"


class ApplySubscriber(Protocol):
    """Is told of everything that applies on one replica, such as its change feed. While there is none, it costs nothing.

    Called in the very step in which the replica acts, so that nothing can come between.
    """

    def applied(self, run: list[tuple[RangeState, Applied, Position]], whole: WriteBatch) -> None:
        """Take entries that were applied together, in one engine batch: (state before, what was applied, where)."""
        ...

    def flushing(self) -> None:
        """Everything applied so far becomes durable in this very step; what is written to the engine now does too."""
        ...

    def gone(self, why: DetachReason, detail: str) -> None:
        """End the subscription: the replica applies no more."""
        ...


class StoreHooks(Neighbors, Protocol):
    """What a replica tells its store."""

    def replica_created(self, state: RangeState, reads: ReadSummary, *, continued: bool) -> None:
        """A split made a new range, here too; `reads` is what the left side served of its keys.

        `continued`: it goes on under the lease of the left side, which knows all that was served under that lease.
        """
        ...

    def replica_removed(self, range_id: RangeId) -> None:
        """The range no longer counts this replica."""
        ...

    def generation_changed(self, batch: WriteBatch, before: RangeDescriptor, after: RangeDescriptor) -> None:
        """An entry changes a descriptor; what the store wants to remember of that goes into the same batch."""
        ...

    def replica_absorbed(self, right: RangeDescriptor, into: RangeId) -> None:
        """A merge ended the range `right`."""
        ...

    async def wait_applied(self, range_id: RangeId, position: Position) -> None:
        """Return once this store's replica of the range has applied up to `position`; `UnavailableError` if it cannot."""
        ...

    def reached(self) -> Timestamp:
        """At or above everything that replicas which are no longer here had closed or served."""
        ...

    def replica_failed(self, range_id: RangeId, error: BaseException) -> None:
        """A replica met something it must not go on from; it is quarantined, its neighbours are not."""
        ...

    def unwritable(self, error: DamageError) -> None:
        """The store takes no more writes, because damage was met behind them: the node has to begin anew."""
        ...

    def read_failed(self, range_id: RangeId, error: StorageError) -> SlackwaterError:
        """A replica's content could not be read here; returns the refusal that sends the reader to another one (I-34)."""
        ...


def _always() -> None:
    return None


@dataclass
class ClosingCounts:
    """What follower reads and closing on demand came to, since this node started. For metrics."""

    served: int = 0
    """Reads at a closed timestamp, with no lease needed."""
    waited: int = 0
    """Of reads that came too early, those that waited for their timestamp to close."""
    refused: int = 0
    """Reads that were sent on, or failed, because it was not closed."""
    closes: int = 0
    """Log entries written because a request asked for the present to be closed."""
    close_ns: int = 0
    """From being asked until it was applied here, all of them together."""


class StoreWrites:
    """Whether a store takes what is written to it. One that does not is of no use to a leaseholder (`server.fitness`)."""

    def __init__(self) -> None:
        self.failing_since_ns: int | None = None
        self.error = ""
        self.failures = 0
        self._flushes_fail = False

    def failed(self, error: StorageError, *, now_ns: int, flushing: bool = False) -> None:
        """A write was refused, or could not be made durable."""
        self.failures += 1
        self.error = error.message
        self._flushes_fail |= flushing
        if self.failing_since_ns is None:
            self.failing_since_ns = now_ns
        assert self.failing_since_ns <= now_ns, "the first failure is not after the last"

    def worked(self, *, flushed: bool = False) -> None:
        """A write was taken, or everything was made durable. What could not be flushed is well only once that works."""
        assert self.failing_since_ns is not None or not self._flushes_fail, "flushes that fail have failed since a time"
        if flushed or not self._flushes_fail:
            self.failing_since_ns, self.error, self._flushes_fail = None, "", False


@dataclass
class ReplicaContext:
    """Everything a replica needs from its node."""

    node_id: NodeId
    runtime: Runtime
    clock: HybridClock
    settings: Settings
    engine: Engine
    log: OrderedLog
    liveness: LivenessView
    hooks: StoreHooks
    listener: ApplyListener | None = None
    transport: Publisher | None = None
    trusted: Callable[[], None] = _always
    """Raises while this node's clock must not be relied on: no lease is used or asked for by it (I-01)."""
    policies: PolicyBook = field(default_factory=PolicyBook)
    closing: ClosingCounts = field(default_factory=ClosingCounts)
    bulk_gate: BulkGate = field(default_factory=BulkGate)
    columns: Shelf = field(default_factory=lambda: Shelf(MemoryFiles()))
    making: Duty = field(default_factory=Duty)
    """What the making of columns owes writers."""
    writes: StoreWrites = field(default_factory=StoreWrites)
    retention: RetentionRules = NO_RULES
    """What may be collected, as this node knows it."""
    on_complaint: Callable[[ComplaintTrigger], None] = lambda _complaint: None
    """Told when a node complains in the log of a range that its holder cannot be reached."""
    gathering: bool = False
    """Whether lone writes wait for the end of this turn of the loop (`together`): an entry made now would leave without them."""
    life: int = 0
    """Of this process: a lease that was given to another life of this node is not ours to use (I-07)."""

    def write(self, batch: WriteBatch, *, collects: bool = False) -> None:
        """Write to the engine. No other code may write rows: what changes beside columns is remembered with them.

        A batch that collects history is no point work, however small it is.
        """
        if not collects:
            if sum(map(len, (*batch.writes, *batch.ranges))) <= POINT_WRITES_MAX:
                self.bulk_gate.point()
            else:
                self.bulk_gate.loaded(self.runtime.clock.monotonic_ns())
        noted = self.columns.note(batch)
        try:
            self.engine.write(batch)
        except StorageError as error:
            self.writes.failed(error, now_ns=self.runtime.clock.monotonic_ns())
            if isinstance(error, DamageError):
                self.hooks.unwritable(error)
            raise
        if noted is not NOTHING:
            self.columns.noted(noted)
        if self.writes.failing_since_ns is not None:
            self.writes.worked()

    def drop_columns(self, broken: Iterable[KeptSegment]) -> None:
        """Forget segments that turned out to be damaged; they are made again."""
        for kept in broken:
            assert kept.broken, "only a segment that cannot be used is dropped here"
            batch = WriteBatch()
            self.columns.drop(kept, batch, kept.broken)
            if len(batch):
                self.write(batch)

    async def pass_by(self, ts: Timestamp) -> None:
        """Return once this node's clock is above `ts`: a lease starts at a clock reading, above all that is closed."""
        while (now := self.clock.peek()) <= ts:
            await self.runtime.clock.sleep(seconds_between(now, ts) + 1e-6)
