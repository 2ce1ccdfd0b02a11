"""Ranges that can be closed, for tests of the side transport: small, and their own judges.

A `FakeRange` stands for a leaseholder's replica: it has an index, an epoch, a floor, and answers `try_close` by its flags.
Writing goes through `touch` like a real request, and the range checks what the transport must guarantee: no write at
or below anything that was promised for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts.closable import Closed, NodeLease
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.policy import ClosingPolicy, Terms
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from tests.closables import LogDriven

if TYPE_CHECKING:
    from slackwater.protocol.closedts.frontier import CannotClose
    from slackwater.protocol.closedts.update import Update

TERMS = Terms(target_duration_s=3.0)
EPOCH = Epoch(5)


def at(seconds: float) -> Timestamp:
    """A timestamp in seconds after the epoch."""
    return from_us(round(seconds * 1_000_000))


def shown(ts: int) -> str:
    """A timestamp in seconds; the first one above a whole number of them as that number and a plus."""
    whole, ticks = divmod(ts, from_us(1_000_000))
    return f"{whole}+" if ticks == 1 else f"{ts / from_us(1_000_000):g}"


def lease(upto: float = 1e6, epoch: int = EPOCH) -> NodeLease:
    """A node's epoch that ends late."""
    return NodeLease(Epoch(epoch), at(upto))


class FakeRange(LogDriven):
    """A leased range."""

    def __init__(
        self, sender: Sender, range_id: int, *, epoch: int = EPOCH, policy: ClosingPolicy | None = None
    ) -> None:
        self.sender = sender
        self.id = RangeId(range_id)
        self.lai = LeaseAppliedIndex(1)
        self.epoch = Epoch(epoch)
        self.closed = MIN
        self.refuses: CannotClose | None = None
        self.asked = 0
        self.own_policy = policy or ClosingPolicy()
        sender.add(self.id, self)

    def policy(self) -> ClosingPolicy:
        return self.own_policy

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        self.asked += 1
        if self.refuses is not None:
            return self.refuses
        self.closed = max(self.closed, ts)
        return Closed(self.lai, self.epoch)

    def forward(self, ts: Timestamp) -> None:
        self.closed = max(self.closed, ts)

    def write(self) -> Timestamp:
        """The lowest write that is allowed now, applied at once."""
        self.closed = max(self.closed, self.sender.touch(self.id))
        self.lai = LeaseAppliedIndex(self.lai + 1)
        return Timestamp(self.closed + 1)


def new_sender(node: int = 1) -> Sender:
    """A sender of one node."""
    return Sender(NodeId(node), incarnation=1)


def tick(sender: Sender, seconds: float, *, upto: float = 1e6, epoch: int = EPOCH) -> Update:
    """One tick at a time in seconds."""
    return sender.tick(at(seconds), TERMS, lease(upto, epoch))
