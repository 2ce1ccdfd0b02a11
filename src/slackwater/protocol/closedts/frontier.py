"""`explain frontier`: how far a replica's range is closed and resolved, what holds it back, and since when.

    r7 n1 leads     closed 3.1 s ago, resolved 3.1 s ago
    r7 n2 follows   closed 9.4 s ago, resolved 9.4 s ago; the side transport offers 3.1 s ago at index 12, applied 11
    r8 n1 leads     closed 62.0 s ago, resolved 62.0 s ago; proposals in flight for 61.8 s
    r9 n2 follows   closed 3.1 s ago, resolved 40.2 s ago; transaction 5f3a… has had an intent on /kv/b'k4' for 40.2 s

What holds a frontier back is looked for in this order; the first that is found is the answer:

    replica       this replica is quarantined: it applies and serves nothing
    transaction   an intent: resolved is behind closed. A property of the span, all others are of the range
    apply         something is closed at an index that this replica has not applied yet
    merge         the range is frozen: nothing about its closed timestamp may move
    lease         no node holds it, or it is on its way
    node          the leaseholder has ended, as far as its liveness record says
    request       the leaseholder has requests that are not in the log yet, or not yet applied
    policy        closing is off for this span, or rests

A follower knows only the first six: why its leaseholder does not close is the leaseholder's to tell, so a reader of all
replicas finds it there.
"""

from __future__ import annotations

import enum

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.codec.layout import KEY_MAX, show_key
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Intent
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method


class CannotClose(enum.Enum):
    """Why a range closed nothing at a tick. Counted; shown by `explain frontier`."""

    NO_VALID_LEASE = "no valid lease"
    LEASE_MOVING = "lease transfer under way"
    OVER_LEASE_END = "target over lease end"
    MERGE_IN_PROGRESS = "merge in progress"
    PROPOSALS_IN_FLIGHT = "proposals in flight"
    EVALUATING_BELOW = "requests evaluating below target"
    REPLICA_GONE = "replica gone"
    POLICY_OFF = "policy off"
    TOO_MANY_POLICIES = "too many different policies on this node"
    OTHER_SCHEME = "closed by another scheme"
    AT_REST = "closing rests: nothing asks for this range (closed_timestamp.activation)"


class HoldKind(enum.Enum):
    """What sort of thing holds a frontier back."""

    NOTHING = ""
    REPLICA = "replica"
    TRANSACTION = "transaction"
    APPLY = "apply"
    MERGE = "merge"
    LEASE = "lease"
    NODE = "node"
    REQUEST = "request"
    POLICY = "policy"


BEHIND_S = 0.5
"""A leaseholder that is less than this behind its policy's target is not held back by its requests."""
_KINDS = {
    CannotClose.NO_VALID_LEASE.value: HoldKind.LEASE,
    CannotClose.LEASE_MOVING.value: HoldKind.LEASE,
    CannotClose.OVER_LEASE_END.value: HoldKind.LEASE,
    CannotClose.MERGE_IN_PROGRESS.value: HoldKind.MERGE,
    CannotClose.PROPOSALS_IN_FLIGHT.value: HoldKind.REQUEST,
    CannotClose.EVALUATING_BELOW.value: HoldKind.REQUEST,
    CannotClose.REPLICA_GONE.value: HoldKind.REPLICA,
    CannotClose.POLICY_OFF.value: HoldKind.POLICY,
    CannotClose.TOO_MANY_POLICIES.value: HoldKind.POLICY,
    CannotClose.OTHER_SCHEME.value: HoldKind.NOTHING,
    CannotClose.AT_REST.value: HoldKind.POLICY,
}


class Holding(msgspec.Struct, frozen=True):
    """What holds a frontier back, and since when (MIN: not known)."""

    kind: HoldKind
    what: str = ""
    since: Timestamp = MIN


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
    start: bytes = b""
    end: bytes = b""
    policy: str = ""
    target: Timestamp = MIN
    """What the policy wants closed now; MIN: nothing, or not known."""
    evaluating: Timestamp = MIN
    """The lowest timestamp of a write that is not in the log yet."""
    in_flight: int = 0
    """Commands that are not applied yet."""
    frozen: bool = False
    leaseholder_ended: Timestamp = MIN
    """When the leaseholder's liveness record expired; MIN while it lives, and when that is not known."""
    failure: str = ""

    @property
    def leads(self) -> bool:
        """Whether this replica holds the lease."""
        return self.leaseholder == self.node_id

    def holding(self) -> Holding:
        """What holds it back."""
        if self.failure:
            return Holding(HoldKind.REPLICA, f"this replica is quarantined: {self.failure}")
        if self.held_by is not None:
            who = self.held_by.txn_id.hex()[:8]
            return Holding(
                HoldKind.TRANSACTION,
                f"transaction {who} has had an intent on {show_key(self.held_by.key)}",
                self.held_by.ts,
            )
        if self.offered_lai > self.applied:
            what = f"index {self.offered_lai} is closed further on but only {self.applied} is applied here"
            return Holding(HoldKind.APPLY, what, self.closed)
        return self._of_the_range()

    def _of_the_range(self) -> Holding:
        if not self.leaseholder:
            return Holding(HoldKind.LEASE, "no node holds the lease, so nothing is closed")
        if self.leaseholder_ended:
            what = f"n{self.leaseholder}, which holds the lease, has not been alive"
            return Holding(HoldKind.NODE, what, self.leaseholder_ended)
        if self.refusal and self.leads:
            kind = _KINDS.get(self.refusal, HoldKind.REQUEST)
            if kind is HoldKind.REQUEST and self.target and seconds_between(self.closed, self.target) < BEHIND_S:
                return Holding(HoldKind.NOTHING)  # a busy range closes with its commands, not at ticks
            more = f" ({self.in_flight} commands)" if kind is HoldKind.REQUEST and self.in_flight else ""
            return Holding(kind, f"{self.refusal}{more}", self.refused_since)
        if self.frozen:
            return Holding(HoldKind.MERGE, "the range is frozen by a merge")
        return Holding(HoldKind.NOTHING)

    def status(self, now: Timestamp) -> str:
        """One line for people."""
        role = "leads  " if self.leads else "follows"
        line = f"r{self.range_id} n{self.node_id} {role} closed {ago(self.closed, now)}, resolved {ago(self.resolved, now)}"
        reason = self.reason(now)
        return f"{line}; {reason}" if reason else line

    def reason(self, now: Timestamp) -> str:
        """What holds it back, in words; empty when nothing unusual does."""
        found = self.holding()
        if found.kind is HoldKind.APPLY:
            offer = ago(self.offered_ts, now)
            return f"the side transport offers {offer} at index {self.offered_lai}, applied {self.applied}"
        return f"{found.what} {lasting(found.since, now)}".rstrip() if found.kind is not HoldKind.NOTHING else ""


def ago(ts: Timestamp, now: Timestamp) -> str:
    """How long ago, for people; ahead of now, where the future is closed."""
    if ts == MIN:
        return "never"
    seconds = seconds_between(ts, now)
    return f"{seconds:.1f} s ago" if seconds >= 0 else f"{-seconds:.1f} s ahead"


def lasting(since: Timestamp, now: Timestamp) -> str:
    """For how long, for people."""
    return "" if since == MIN else f"for {max(0.0, seconds_between(since, now)):.1f} s"


class ReplicaFrontiersRequest(msgspec.Struct, frozen=True):
    """How far replicas here are closed and resolved: of these ranges, or of those that meet a span, by id."""

    ranges: list[RangeId] = []
    start: bytes = b""
    end: bytes = KEY_MAX
    beyond: RangeId = RangeId(0)
    """Only ranges with a higher id: where the last reply ended."""


class ReplicaFrontiersReply(msgspec.Struct, frozen=True):
    """One per replica that is here, by id, and the clock of the node."""

    replicas: list[ReplicaFrontier]
    now: Timestamp = MIN
    more: bool = False
    """Whether there are others beyond the last."""
    schemes: list[str] = []
    """How the node closes: one scheme, or several while the cluster moves (`closed_timestamp.scheme`)."""


FRONTIER: Method[ReplicaFrontiersRequest, ReplicaFrontiersReply] = Method(
    "closedts.frontier", ReplicaFrontiersRequest, ReplicaFrontiersReply, callers=NODES_AND_OPERATORS
)
