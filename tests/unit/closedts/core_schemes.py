"""The three schemes as `core_world` sees them: what a leaseholder asks, what nodes tell each other, what followers may serve."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.max_write_age.ages import WriteAges
from slackwater.closedts.policy import ClosingPolicy, target
from slackwater.closedts.records import Records
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.closedts.store_wide.sender import Sender as HeartbeatSender
from slackwater.model.descriptors import Epoch

if TYPE_CHECKING:
    from slackwater.closedts.closable import Closable, NodeLease
    from slackwater.closedts.policy import Terms
    from slackwater.model.descriptors import Lease, LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId


class CoreScheme(Protocol):
    """One node's end of a scheme."""

    scheme: Scheme

    def add(self, range_id: RangeId, closable: Closable) -> None: ...
    def remove(self, range_id: RangeId) -> None: ...
    def touch(self, range_id: RangeId) -> Timestamp: ...
    def floor(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp: ...
    def proposed(self, range_id: RangeId, ts: Timestamp) -> None: ...
    def carried(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp: ...
    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp: ...
    def tick(self, now: Timestamp, terms: Terms, lease: NodeLease) -> None: ...
    def tell(self, other: CoreScheme) -> bool:
        """Have the other take all that it was not told yet."""
        ...

    def lose(self) -> bool:
        """What the other was not told yet is lost."""
        ...


class LogDrivenCore:
    scheme = Scheme.LOG_DRIVEN

    def __init__(self, node_id: NodeId) -> None:
        self.sender, self.receiver = Sender(node_id, incarnation=1), Receiver()
        self.token = 0
        self.seq: int | None = None

    def add(self, range_id: RangeId, closable: Closable) -> None:
        self.sender.add(range_id, closable)
        self.receiver.records.watch(range_id)

    def remove(self, range_id: RangeId) -> None:
        self.sender.remove(range_id)
        self.receiver.records.forget(range_id)

    def touch(self, range_id: RangeId) -> Timestamp:
        return self.sender.touch(range_id)

    def floor(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return MIN

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """The tracker knows."""

    def carried(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return target(ClosingPolicy(), now, terms) or MIN

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        return self.receiver.closed_for(range_id, applied)

    def tick(self, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        self.sender.tick(now, terms, lease)

    def tell(self, other: CoreScheme) -> bool:
        assert isinstance(other, LogDrivenCore)
        self.token = self.token or other.receiver.attach(self.sender.node_id)
        updates = self.sender.after(self.seq)
        for update in updates:
            if not other.receiver.receive(self.token, update):
                self.token, self.seq = 0, None
                return True
            self.seq = update.seq
        return bool(updates)

    def lose(self) -> bool:
        updates = self.sender.after(self.seq) if self.seq is not None else []
        for update in updates:
            self.seq = update.seq
        return bool(updates)


def _live(node: NodeId) -> Epoch:
    """Every node lives, in its first epoch."""
    return Epoch(1)


class StoreWideCore:
    scheme = Scheme.STORE_WIDE

    def __init__(self, node_id: NodeId) -> None:
        self.records = Records()
        self.sender, self.receiver = (
            HeartbeatSender(node_id, incarnation=1),
            HeartbeatReceiver(self.records, live_epoch=_live),
        )
        self.sender.start()
        self.seq: int | None = None

    def add(self, range_id: RangeId, closable: Closable) -> None:
        self.records.watch(range_id)
        self.sender.add(range_id, closable)

    def remove(self, range_id: RangeId) -> None:
        self.records.forget(range_id)
        self.sender.remove(range_id)

    def touch(self, range_id: RangeId) -> Timestamp:
        return self.sender.touch(range_id)

    def floor(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return self.sender.floor(range_id)

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """The tracker counts it."""

    def carried(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return self.sender.promised(range_id)

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        return self.receiver.closed_for(range_id, applied, lease)

    def tick(self, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        beat = self.sender.heartbeat(now, terms, lease)
        if beat is not None:
            self.receiver.take(beat)

    def tell(self, other: CoreScheme) -> bool:
        assert isinstance(other, StoreWideCore)
        beats = self.sender.after(self.seq)
        for beat in beats:
            other.receiver.take(beat)
            self.seq = beat.seq
        return bool(beats)

    def lose(self) -> bool:
        beats = self.sender.after(self.seq) if self.seq is not None else []
        for beat in beats:
            self.seq = beat.seq
        return bool(beats)


AGE_S = 0.5


class MaxWriteAgeCore:
    scheme = Scheme.MAX_WRITE_AGE

    def __init__(self, node_id: NodeId) -> None:
        self.ages = WriteAges()
        self.ranges: dict[RangeId, Closable] = {}

    def add(self, range_id: RangeId, closable: Closable) -> None:
        self.ranges[range_id] = closable

    def remove(self, range_id: RangeId) -> None:
        self.ranges.pop(range_id, None)
        self.ages.forget(range_id)

    def touch(self, range_id: RangeId) -> Timestamp:
        return MIN

    def floor(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return self.carried(range_id, now, terms)

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        self.ages.proposed(range_id, ts)

    def carried(self, range_id: RangeId, now: Timestamp, terms: Terms) -> Timestamp:
        return self.ages.bound(range_id, lease_start=self.ranges[range_id].lease_start(), now=now, age_s=AGE_S)

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        return MIN

    def tick(self, now: Timestamp, terms: Terms, lease: NodeLease) -> None:
        """Nothing travels but commands."""

    def tell(self, other: CoreScheme) -> bool:
        return False

    def lose(self) -> bool:
        return False


def core_scheme(scheme: Scheme, node_id: NodeId) -> CoreScheme:
    """One node's end of that scheme."""
    if scheme is Scheme.LOG_DRIVEN:
        return LogDrivenCore(node_id)
    return StoreWideCore(node_id) if scheme is Scheme.STORE_WIDE else MaxWriteAgeCore(node_id)
