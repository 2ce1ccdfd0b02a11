"""`explain frontier`: how far a replica's range is closed and resolved, and what holds it back.

    r7 n1 leads     closed 3.1 s ago, resolved 3.1 s ago
    r7 n2 follows   closed 9.4 s ago, resolved 9.4 s ago; the side transport offers 3.1 s ago at index 12, applied 11
    r8 n1 leads     closed 62.0 s ago, resolved 62.0 s ago; proposals in flight for 61.8 s
    r9 n2 follows   closed 3.1 s ago, resolved 40.2 s ago; transaction 5f3a… has had an intent on 'k4' for 40.2 s

What holds a frontier back is one of four things, looked for in this order: an intent (resolved is behind closed); an index
that this replica has not applied yet; a leaseholder that refuses to close, with its named reason; or nobody closing at
all, because there is no lease. The first is a property of the span, the others of the range.
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.txns import Intent
from slackwater.runtime.seam import NodeId, RangeId


class ReplicaFrontier(msgspec.Struct, frozen=True):
    """Where one replica stands."""

    range_id: RangeId
    node_id: NodeId
    leaseholder: NodeId
    applied: LeaseAppliedIndex
    closed: Timestamp
    resolved: Timestamp
    held_by: Intent | None = None
    """The oldest intent, when it and not `closed` is the limit."""
    offered_ts: Timestamp = MIN
    offered_lai: LeaseAppliedIndex = LeaseAppliedIndex(0)
    """What the side transport has closed at an index that is not applied here yet."""
    refusal: str = ""
    refused_since: Timestamp = MIN
    """Why the leaseholder, if that is here, did not close at the last tick."""

    def status(self, now: Timestamp) -> str:
        """One line for people."""
        role = "leads  " if self.leaseholder == self.node_id else "follows"
        line = f"r{self.range_id} n{self.node_id} {role} closed {_ago(self.closed, now)}, resolved {_ago(self.resolved, now)}"
        reason = self.reason(now)
        return f"{line}; {reason}" if reason else line

    def reason(self, now: Timestamp) -> str:
        """What holds it back; empty when nothing unusual does."""
        if self.held_by is not None:
            who, since = self.held_by.txn_id.hex()[:8], _for(self.held_by.ts, now)
            return f"transaction {who} has had an intent on {self.held_by.key!r} {since}"
        if self.offered_lai > self.applied:
            offer = _ago(self.offered_ts, now)
            return f"the side transport offers {offer} at index {self.offered_lai}, applied {self.applied}"
        if self.refusal and self.leaseholder == self.node_id:
            return f"{self.refusal} {_for(self.refused_since, now)}"
        return "" if self.leaseholder else "nobody holds the lease, so nobody closes"


def _ago(ts: Timestamp, now: Timestamp) -> str:
    return "never" if ts == MIN else f"{seconds_between(ts, now):.1f} s ago"


def _for(since: Timestamp, now: Timestamp) -> str:
    return f"for {max(0.0, seconds_between(since, now)):.1f} s"
