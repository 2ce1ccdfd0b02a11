"""Whether an idle leaseholder may close a timestamp without a command.

The side transport asks (`closedts/side_transport.py`); this is the answer, from what one replica knows:

    lease      usable here, by the one rule for everything done under a lease (`Leasing.use`), and reaching past the timestamp
    merge      a frozen range closes nothing: its left neighbor may already be writing below (pitfall 3)
    buffer     nothing proposed and undecided: the promise names the *applied* index, so that a follower that has applied
               it needs to know nothing of leases or of commands that may or may not come
    tracker    nothing evaluating at or below

    I-10  from here on the proposal buffer's floor is above the timestamp
    I-11  the timestamp is below every evaluating write and inside the lease
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from slackwater.closedts.side_transport import Closed
from slackwater.errors import invariant
from slackwater.protocol.closedts.frontier import CannotClose

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.replica.propose import ProposalBuffer
    from slackwater.replica.state import RangeState

W = TypeVar("W")


def try_close(
    ts: Timestamp,
    *,
    state: RangeState,
    buffer: ProposalBuffer[W],
    hindered: CannotClose | None,
    upto: Timestamp,
) -> Closed | CannotClose:
    """Promise that nothing at or below `ts` will be written, or say why not.

    `hindered` says why the lease cannot be used, if it cannot; `upto` is the last instant of the lease.
    """
    if hindered is not None:
        return hindered
    if state.frozen is not None:
        return CannotClose.MERGE_IN_PROGRESS
    if ts > upto:
        return CannotClose.OVER_LEASE_END
    if buffer.in_flight:
        return CannotClose.PROPOSALS_IN_FLIGHT
    lowest = buffer.tracker.lower_bound()
    if lowest is not None and lowest <= ts:
        return CannotClose.EVALUATING_BELOW
    closed = buffer.close(target=ts, limit=upto)
    invariant(closed >= ts, "I-11", closed=closed, target=ts, upto=upto)
    return Closed(state.lai, state.lease.epoch)
