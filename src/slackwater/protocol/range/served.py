"""How a read was served: when, where, how far behind that replica was, and why not by a follower.

    r7 n3 read at 19:15:00.1   closed 0.4 s behind it there, by a follower
    r8 n1 read at 19:15:00.1   by the leaseholder: the timestamp was not closed on the follower that was asked

Every answer to a read that names its timestamp or allows followers has one `Served` per range it came from. The replica
says what it knows of itself; the sender, which knows who was asked before, adds why a follower did not serve it. Reads
that leave their timestamp to the leaseholder have nothing to tell: they are of now, and by the leaseholder.
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import Timestamp, seconds_between, show
from slackwater.model.ids import NodeId, RangeId


class Why(enum.Enum):
    """Why a follower did not serve a read; the first reason that was met."""

    FOLLOWER = ""
    """One did."""
    NOT_ALLOWED = "the read did not allow followers"
    KIND = "followers do not serve such requests"
    LEADS = "the nearest replica holds the lease"
    NOT_CLOSED = "the timestamp was not closed on the follower"
    WAITED = "the timestamp was not closed on the follower within the wait"
    INTENT = "an intent was in the way on the follower"
    UNREACHABLE = "the follower could not be reached"


class Served(msgspec.Struct, frozen=True, array_like=True):
    """How one range served a read."""

    range_id: RangeId
    node_id: NodeId
    ts: Timestamp
    """Where it was read."""
    closed: Timestamp
    """What was closed on that replica then."""
    now: Timestamp
    """That node's clock then."""
    by_follower: bool
    """Whether a replica that does not hold the lease served it."""
    why: Why = Why.FOLLOWER
    """Why it was not a follower."""

    @property
    def lag_s(self) -> float:
        """How far that replica's closed timestamp was behind its clock; below 0 where the future is closed."""
        return seconds_between(self.closed, self.now)

    @property
    def age_s(self) -> float:
        """How old what was read was."""
        return seconds_between(self.ts, self.now)

    def status(self) -> str:
        """One line for people."""
        who = "a follower" if self.by_follower else f"the leaseholder: {self.why.value}"
        return f"r{self.range_id} n{self.node_id} read at {show(self.ts)}, closed {self.lag_s:.1f} s behind, by {who}"


def explained(found: Served, why: Why) -> Served:
    """What a replica said, with the reason that its asker knows."""
    return msgspec.structs.replace(found, why=Why.FOLLOWER if found.by_follower else why)
