"""A range as the schemes of closing see it, whichever of them asks: what it wants closed, and whether it may close that.

    try_close(ts)                  idle: nothing is on its way to the log, so the promise names the *applied* index
    try_close(ts, in_flight=True)  busy or idle: the promise names the last index that was *assigned*

Both raise the floor of the range's proposal buffer to `ts` in the step in which they promise it (I-10, I-11).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from slackwater.protocol.closedts.frontier import CannotClose

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.kinds import Scheme
    from slackwater.closedts.policy import ClosingPolicy
    from slackwater.closedts.tracker import Tracker
    from slackwater.model.descriptors import Epoch, LeaseAppliedIndex

PARKED = frozenset(
    {
        CannotClose.NO_VALID_LEASE,
        CannotClose.MERGE_IN_PROGRESS,
        CannotClose.REPLICA_GONE,
        CannotClose.POLICY_OFF,
        CannotClose.OTHER_SCHEME,
    }
)
"""A range that cannot be closed for one of these reasons is not asked again before it is touched.

Nothing about them changes without a command, a lease, a policy or a scheme, each of which touches the range.
"""
assert PARKED.isdisjoint({CannotClose.PROPOSALS_IN_FLIGHT, CannotClose.EVALUATING_BELOW, CannotClose.LEASE_MOVING}), (
    "what ends by itself is looked at again: nothing would touch an idle range"
)


class Closed(NamedTuple):
    """A range closed a timestamp: nothing after index `lai` will write at or below it."""

    lai: LeaseAppliedIndex
    epoch: Epoch
    """Of the lease; 0 for a lease with its own expiration, which must be asked every time."""
    quiet: bool = True
    """Nothing is evaluating, and nothing is on its way to the log."""


class Closable(Protocol):
    """A range that is led here, perhaps. None of these may wait."""

    def policy(self) -> ClosingPolicy:
        """What this range should close."""
        ...

    def closes_by(self, scheme: Scheme) -> bool:
        """Whether that scheme is to close this range now."""
        ...

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        """Promise that nothing will be written at or below `ts` any more, or say why not."""
        ...

    def forward(self, ts: Timestamp) -> None:
        """`ts` was promised on this range's behalf."""
        ...

    def lease_start(self) -> Timestamp:
        """When the lease in force began: no earlier one reached so far."""
        ...

    def propose_empty(self) -> CannotClose | None:
        """Hand a command that changes nothing to the log, or say why not."""
        ...

    def count_by(self, counted: CountedBy | None) -> None:
        """Have every write counted from its evaluation until it has its index; None: no longer."""
        ...


class CountedBy(Protocol):
    """Wraps the tracker of a range, so that its writes are counted for the whole store as well."""

    def __call__(self, inner: Tracker) -> Tracker:
        """A tracker that does what `inner` does, and counts."""
        ...


class NodeLease(NamedTuple):
    """The epoch that this node's leases hang on, while it may be relied on."""

    epoch: Epoch
    upto: Timestamp
    """The last timestamp that may be closed under it: its end less the gap."""


class Refusal(NamedTuple):
    """Why a range does not move, and since which tick's time."""

    reason: CannotClose
    since: Timestamp
