"""What evaluation is given and what it gives back.

`View` is the leaseholder's situation in one instant: the engine, the range's state, the clock, and the floors below which
nothing may be written. `Evaluation` is everything a batch decided: results, effects, and the trigger, if any.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import RetryableError
from slackwater.protocol.range.requests import Barrier, Batch, BatchResult, Result
from slackwater.replica.state import add_stats
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.model.protection import Kept
    from slackwater.model.txns import TxnRecord
    from slackwater.protocol.log.commands import Trigger
    from slackwater.protocol.range.requests import TransferLease
    from slackwater.protocol.range.served import Served
    from slackwater.replica.evaluate_bulk import BulkReads
    from slackwater.replica.state import RangeState
    from slackwater.replica.tscache import TimestampCache
    from slackwater.runtime.seam import Reader


class Neighbors(Protocol):
    """What the store of a replica knows that a request to change its range is held against."""

    def left_of(self, descriptor: RangeDescriptor) -> LeftSide:
        """The replica on this store that ends where the given range begins."""
        ...

    def state_of(self, range_id: RangeId) -> RangeState | None:
        """The applied state of this store's replica of a range; None: there is none here."""
        ...

    def check_record(self, key: bytes, value: bytes) -> None:
        """Refuse a value that nodes could not read back as the record of the cluster that its key names."""
        ...

    def node_known(self, node_id: NodeId) -> bool:
        """Whether a node of this id belongs to the cluster, as far as this node has heard."""
        ...


class NoNeighbors:
    """A store with nothing else on it."""

    def left_of(self, descriptor: RangeDescriptor) -> LeftSide:
        """No left side."""
        return LeftSide()

    def state_of(self, range_id: RangeId) -> RangeState | None:
        """No other range."""
        return None

    def check_record(self, key: bytes, value: bytes) -> None:
        """Every value may be a record."""

    def node_known(self, node_id: NodeId) -> bool:
        """Every id may be a node's."""
        return True


class LeftSide(NamedTuple):
    """What this store knows of the range to the left of another, whose freeze it may have asked for."""

    descriptor: RangeDescriptor | None = None
    """Of the replica here that ends where the other begins; None: there is none here now."""
    seen: tuple[int, int] = (0, 0)
    """The generations `low <= g < high` of the left side that this store saw end, by applying the log entries that led
    on from each, while the other range stayed."""


class Permit(NamedTuple):
    """What the protocol allows to be collected of a range."""

    target: Timestamp
    """Everything at or below this may go, but for what is protected."""
    protections: tuple[Kept, ...] = ()
    """Of spans that touch the range; those above the target are of no interest and may be left out."""


class RetentionRules(Protocol):
    """What a leaseholder knows of time to live, protections and dropped tables."""

    def permit(self, state: RangeState) -> Permit:
        """What may be collected of a range now. Raises `RetryableError` with the reason while that is not known."""
        ...

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        """When the table that [start, end) lies in was dropped; MIN: there is no such table, or it lives."""
        ...


class NoRules:
    """Rules of a node that knows none: it collects nothing."""

    def permit(self, state: RangeState) -> Permit:
        """No permit."""
        raise RetryableError("time to live and protections are not known here; nothing is collected")

    def dropped_at(self, start: bytes, end: bytes) -> Timestamp:
        """No dropped table."""
        return MIN


NO_NEIGHBORS = NoNeighbors()
NO_RULES = NoRules()


class View:
    """The situation a batch is evaluated in."""

    __slots__ = (
        "floor",
        "furthest",
        "lease_end",
        "neighbors",
        "now",
        "prepared",
        "read_at",
        "reader",
        "resolve_bytes_max",
        "retention",
        "state",
        "tscache",
        "txn_expiration_s",
        "uncertain_upto",
    )

    def __init__(
        self,
        *,
        reader: Reader,
        state: RangeState,
        now: Timestamp,
        read_at: Timestamp,
        floor: Timestamp,
        lease_end: Timestamp,
        tscache: TimestampCache | None,
        txn_expiration_s: float,
        prepared: tuple[int, ...] = (),
        retention: RetentionRules = NO_RULES,
        neighbors: Neighbors = NO_NEIGHBORS,
        furthest: Callable[[], Timestamp] = lambda: MAX,
        uncertain_upto: Timestamp = MIN,
        resolve_bytes_max: int = 1 << 18,
    ) -> None:
        self.reader = reader
        self.state = state
        self.now = now
        self.read_at = read_at
        """Where the batch reads. Fixed before its latches were taken: they hold off writes at or below this, and no others."""
        self.floor = floor
        """The lowest timestamp that is not yet closed on this leaseholder."""
        self.lease_end = lease_end
        """Nothing may be read or written at or above this under the current lease."""
        self.tscache = tscache
        """Reads are recorded here; None for a follower, whose reads are below what is closed."""
        self.txn_expiration_s = txn_expiration_s
        self.prepared = prepared
        """Computed beforehand, under the batch's latches: for a split the statistics of the right half, for a span that is to
        be collected its own; empty when the span may not go."""
        self.retention = retention
        """For collecting: what may go."""
        self.neighbors = neighbors
        """For changes of the range itself: the ranges beside it, as this store has applied them."""
        self.furthest = furthest
        """What no timestamp of another leaseholder can be above."""
        self.uncertain_upto = uncertain_upto
        """Of a batch whose timestamp this leaseholder chose: a version above its clock, up to here, may have been
        acknowledged by a node whose clock is ahead of this one."""
        self.resolve_bytes_max = resolve_bytes_max
        """Bytes of intents that one command turns into values, however many requests ask for it: it must fit a log entry."""


class Evaluation:
    """Everything one batch decided."""

    __slots__ = (
        "batch", "bulk", "close_at", "effects", "finishers", "generation", "min_write_ts", "parked", "records",
        "results", "stats", "transfer_to", "trigger", "ts", "txn_write_ts",
    )  # fmt: skip

    def __init__(self, batch: Batch | None = None, *, trigger: Trigger | None = None) -> None:
        self.batch = batch
        self.results: list[Result] = []
        self.bulk: BulkReads | None = None
        """Reads whose results are still to be made, off the loop, from a snapshot of this very state."""
        self.effects = WriteBatch()
        self.stats: tuple[int, ...] = ()
        self.min_write_ts = MIN
        self.trigger = trigger
        self.generation = 0
        self.close_at = MIN
        """What the flush of this command is asked to close."""
        self.ts = MIN
        """Where the batch read or wrote."""
        self.txn_write_ts = MIN
        self.parked: bytes | None = None
        """A transaction whose record has to change before this push can be answered."""
        self.records: tuple[bytes, ...] = ()
        """Transactions whose records change when this applies."""
        self.transfer_to: TransferLease | None = None
        self.finishers: list[Callable[[RangeState, Timestamp], Result]] = []
        """Make the last results from the state in which the command applied and the clock thereafter."""

    @property
    def read_only(self) -> bool:
        """Whether there is nothing to replicate."""
        effects = self.effects
        if self.trigger is not None or self.transfer_to is not None or any(effects.writes) or any(effects.ranges):
            return False
        forced = self.batch is not None and (self.close_at != MIN or Barrier in map(type, self.batch.requests))
        return not forced

    def write_at(self, ts: Timestamp) -> None:
        """Note that the effects hold a new version or intent at `ts`."""
        assert ts > 0, "a write has a timestamp"
        self.min_write_ts = ts if self.min_write_ts == MIN else Timestamp(min(self.min_write_ts, ts))
        assert self.min_write_ts <= ts, "the lowest of all writes"

    def add_stats(self, delta: tuple[int, ...]) -> None:
        """Note a change of the range's statistics."""
        self.stats = add_stats(self.stats, delta)

    def result(
        self,
        state: RangeState,
        node_id: NodeId,
        *,
        now: Timestamp,
        by_follower: bool = False,
        served: tuple[Served, ...] = (),
    ) -> BatchResult:
        """The answer to the caller, once the command has applied (or needed no command)."""
        results = self.results
        if self.finishers:
            results = [*results, *(finish(state, now) for finish in self.finishers)]
        assert self.batch is None or len(results) == len(self.batch.requests), "a result for every request"
        assert node_id > 0, "a node answers"
        return BatchResult(results, self.ts, self.txn_write_ts, node_id, by_follower, served)


class Work:
    """One batch under evaluation: what the handlers of single requests share."""

    __slots__ = (
        "batch", "effects", "evaluation", "header", "keys_left", "one_phase", "read_ts", "reader", "record",
        "resolve_left", "sequence", "txn", "view", "write_ts", "writer",
    )  # fmt: skip

    def __init__(
        self,
        batch: Batch,
        view: View,
        *,
        read_ts: Timestamp,
        write_ts: Timestamp,
        reader: Reader,
        evaluation: Evaluation,
        one_phase: bool,
        record: TxnRecord | None = None,
    ) -> None:
        self.batch = batch
        self.header = batch.header
        self.txn = batch.header.txn
        """The batch's transaction."""
        self.writer = None if one_phase else self.txn
        """The transaction that writes intents; None when versions are written directly."""
        self.effects = evaluation.effects
        """Where writes go."""
        self.view = view
        self.read_ts = read_ts
        self.write_ts = write_ts
        self.reader = reader
        self.evaluation = evaluation
        self.one_phase = one_phase
        """All that the transaction writes here is in this batch, which also commits it: no intents are needed."""
        self.record = record
        """In one phase: the record of the transaction as it was before."""
        self.resolve_left = view.resolve_bytes_max
        """Bytes of intents that this batch may still turn into values."""
        self.sequence = 0
        """The transaction sequence of the request at hand."""
        self.keys_left = batch.header.max_keys
        """Rows that scans may still return; 0 when there is no limit."""
