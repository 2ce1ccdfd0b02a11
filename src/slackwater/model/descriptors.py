"""Ranges, leases and nodes, as all layers name them.

A *range* is a span of keys with a log and a set of replicas. Its descriptor changes only by commands in its own log
(split, merge, change of replicas), each of which raises `generation`: of two descriptors that overlap, the one with the
higher generation is newer. The meta index holds copies for finding ranges; the range's own state is the truth.

A *lease* lets one replica evaluate commands. Sequences increase by one with each change of holder; a command applies only
under the sequence it was evaluated under (I-08). Two kinds:

    epoch > 0    valid while the holder's node-liveness record has that epoch and has not expired
    epoch == 0   valid until `expiration` (the range that stores liveness cannot depend on it)

Neither is usable in the last `max_offset` before it ends: another node's clock may already be past the end (I-07).
"""

from __future__ import annotations

from typing import NewType

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.model.ids import Natural, NodeId, RangeId

FIRST_RANGE = RangeId(1)
"""Holds meta and liveness. It never splits, and its lease, which liveness hangs on, is expiration-based."""

REPLICAS_MAX = 64
"""Replicas of one range."""

LeaseAppliedIndex = NewType("LeaseAppliedIndex", Natural)
LeaseSequence = NewType("LeaseSequence", Natural)
Epoch = NewType("Epoch", Natural)
Generation = NewType("Generation", Natural)


class RangeDescriptor(msgspec.Struct, frozen=True, array_like=True):
    """What a range is: its span `[start, end)` and who holds copies."""

    range_id: RangeId
    start: bytes
    end: bytes
    replicas: tuple[NodeId, ...]
    generation: Generation

    def contains(self, key: bytes) -> bool:
        """Whether `key` belongs to this range."""
        return self.start <= key < self.end

    def covers(self, start: bytes, end: bytes) -> bool:
        """Whether the whole span `[start, end)` belongs to this range."""
        return self.start <= start and end <= self.end

    def status(self) -> str:
        """One line for logs and scripts."""
        nodes = ",".join(f"n{n}" for n in self.replicas)
        return f"r{self.range_id} [{self.start.hex() or '-'}, {self.end.hex()}) gen={self.generation} on {nodes}"


class Lease(msgspec.Struct, frozen=True, array_like=True):
    """The right of one replica to evaluate commands."""

    holder: NodeId
    sequence: LeaseSequence
    start: Timestamp
    epoch: Epoch = Epoch(0)
    expiration: Timestamp = MIN
    life: Natural = 0
    """Which life of the holder's process it was given to (`Liveness.life`); 0 where that is not known."""

    @property
    def by_epoch(self) -> bool:
        """Whether the lease lives as long as a liveness epoch."""
        return self.epoch > 0

    def status(self) -> str:
        """One line for logs and scripts."""
        if self.holder == 0:
            return "none"
        until = f"epoch={self.epoch}" if self.by_epoch else f"until={self.expiration}"
        return f"n{self.holder} seq={self.sequence} start={self.start} {until}"


NO_LEASE = Lease(NodeId(0), LeaseSequence(0), MIN)


class Liveness(msgspec.Struct, frozen=True, array_like=True):
    """A node's sign of life, kept in the store itself and renewed by conditional put."""

    node_id: NodeId
    epoch: Epoch
    expiration: Timestamp
    draining: bool = False
    decommissioning: bool = False
    life: Natural = 0
    """Of the process that runs as this node: another number at every start, and in every copy of its store."""
    lease_ms: int = 0
    """How long after its expiration what was leased under this epoch counts: leases on descriptors (`catalog.leases`)."""
    relied_upto: Timestamp = MIN
    """Everything promised under earlier epochs ends there. An epoch that its node ended has an earlier expiration than it had."""
    ended_at: Timestamp = MIN
    """When its node last ended an epoch by itself, by its own clock: nothing was closed or served under that one above this."""

    @property
    def promised_upto(self) -> Timestamp:
        """Everything promised under this epoch, as far as this record knows, ends there."""
        return add_seconds(self.expiration, self.lease_ms / 1000)

    def next_epoch(self) -> Liveness:
        """The record with this epoch ended; what was promised under it stays known."""
        relied_upto = max(self.relied_upto, self.promised_upto)
        return msgspec.structs.replace(self, epoch=Epoch(self.epoch + 1), relied_upto=relied_upto, lease_ms=0)

    def live_at(self, now: Timestamp) -> bool:
        """Whether the record had not expired at `now`."""
        return now < self.expiration


class NodeDescriptor(msgspec.Struct, frozen=True):
    """Where a node is and how to reach it."""

    node_id: NodeId
    address: str
    locality: tuple[tuple[str, str], ...] = ()
    store_id: str = ""
    started_at: Timestamp = MIN


class Genesis(msgspec.Struct, frozen=True):
    """What a cluster began with: enough to make it again, and to see whether that is still the same."""

    at: Timestamp
    digest: bytes
