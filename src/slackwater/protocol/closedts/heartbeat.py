"""What a store tells its followers under the store-wide scheme: one closed timestamp, and the ranges that were active.

    { n1 epoch 3 #8 after #7  closed 120  ranges [(r1, MLAI 5) (r2, MLAI 9, quiesced)]  awake [r3] }

A range that is not named goes on as before: a quiesced one with the store's closed timestamp and the index it was last named
with, any other one with what it was last told. `awake` names ranges that are quiesced no more and for which this message
closes nothing. `after` is the message before it that it goes on from: missed ones are merged into the next, so it may lie
further back, and an entry may carry its own, older timestamp.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.model.ids import Natural, NodeId, RangeId
from slackwater.protocol.closedts.update import closes_ahead
from slackwater.runtime.access import NODES
from slackwater.runtime.rpc.method import Method, StreamMethod


class Entry(NamedTuple):
    """One range of a heartbeat."""

    range_id: RangeId
    mlai: LeaseAppliedIndex
    """A follower that has applied this index may serve up to the closed timestamp."""
    quiesced: bool = False
    """The store's closed timestamps to come hold for this range, too, until it is named again."""
    closed: Timestamp = MIN
    """When it differs from the heartbeat's: of a heartbeat that was merged into this one."""


class Heartbeat(msgspec.Struct, frozen=True, array_like=True):
    """One message of a store."""

    sender: NodeId
    epoch: Epoch
    """Of the sender's liveness: its leases hang on it."""
    seq: Natural
    after: Natural
    """The number of the heartbeat that this one goes on from."""
    closed: Timestamp
    ranges: list[Entry] = []
    awake: list[RangeId] = []

    def problem(self, upto: Timestamp) -> str:
        """Why no sound node says this at a time when nothing above `upto` can be closed; empty: it may be believed."""
        if self.after >= self.seq:
            return "numbers its heartbeats backwards"
        return closes_ahead(max([self.closed, *(e.closed for e in self.ranges)]), upto)

    def status(self) -> str:
        """One line for logs and scripts."""
        ranges = "".join(
            f" r{e.range_id}@{e.mlai}{' quiesced' if e.quiesced else ''}{f' closed={e.closed}' if e.closed else ''}"
            for e in self.ranges
        )
        awake = "".join(f" awake=r{r}" for r in self.awake)
        after = "" if self.after == self.seq - 1 else f" after=#{self.after}"
        return f"n{self.sender} epoch={self.epoch} #{self.seq}{after} closed={self.closed}{ranges}{awake}"


class SubscribeHeartbeats(msgspec.Struct, frozen=True, array_like=True):
    """Ask a node for its heartbeats."""

    receiver: NodeId
    epoch: Epoch = Epoch(0)
    seq: Natural = 0
    """Of the last heartbeat that the receiver has had, and its epoch; 0: none."""


class WakeRanges(msgspec.Struct, frozen=True, array_like=True):
    """Ask a leaseholder to close these ranges, or to name them again: a follower lacks what it needs to serve reads."""

    ranges: list[RangeId]


class Woken(msgspec.Struct, frozen=True, array_like=True):
    """How many of the ranges are led by the node that was asked."""

    led: int


WAKE_RANGES_MAX = 1_000
"""Ranges in one request."""
HEARTBEATS: StreamMethod[SubscribeHeartbeats, Heartbeat] = StreamMethod(
    "closedts.heartbeats", SubscribeHeartbeats, Heartbeat, callers=NODES
)
WAKE: Method[WakeRanges, Woken] = Method("closedts.wake", WakeRanges, Woken, callers=NODES)
