"""Whether an idle leaseholder may close a timestamp without a command.

The schemes of closing ask (`closedts/closable.py`); this is the answer, from what one replica knows:

    lease      usable here, by the one rule for everything done under a lease (`Leasing.use`), and reaching past the timestamp
    merge      a frozen range closes nothing: its left neighbor may already be writing below (pitfall 3)
    buffer     nothing proposed and undecided: the promise names the *applied* index, so that a follower that has applied
               it needs to know nothing of leases or of commands that may or may not come. (The store-wide scheme names
               the last *assigned* index of a busy range instead: if the lease changes before those commands apply, the
               next one begins above all that was closed under this one)
    tracker    nothing evaluating at or below

    I-10  from here on the proposal buffer's floor is above the timestamp
    I-11  the timestamp is below every evaluating write and inside the lease
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from slackwater.closedts.closable import Closed
from slackwater.errors import invariant
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.log.commands import FreezeTrigger

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
    in_flight: bool = False,
) -> Closed | CannotClose:
    """Promise that nothing at or below `ts` will be written, or say why not.

    `hindered` says why the lease cannot be used, if it cannot; `upto` is the last instant of the lease. With `in_flight`
    commands may be on their way to the log: the promise names the last index that was assigned, theirs.
    """
    if hindered is not None:
        return hindered
    if state.frozen is not None:
        return CannotClose.MERGE_IN_PROGRESS
    if ts > upto:
        return CannotClose.OVER_LEASE_END
    if buffer.in_flight and (not in_flight or buffer.proposes(FreezeTrigger)):
        # A freeze carries what was closed when it got its index, and nothing may be closed beyond that (pitfall 3).
        return CannotClose.PROPOSALS_IN_FLIGHT
    lowest = buffer.tracker.lower_bound()
    if lowest is not None and lowest <= ts:
        return CannotClose.EVALUATING_BELOW
    closed = buffer.close(target=ts, limit=upto)
    invariant(closed >= ts, "I-11", closed=closed, target=ts, upto=upto)
    lai = buffer.assigned_lai if buffer.in_flight else state.lai
    assert lai >= state.lai, "a promise names what is applied, or what is on its way (I-12)"
    return Closed(lai, state.lease.epoch, quiet=not buffer.in_flight)
