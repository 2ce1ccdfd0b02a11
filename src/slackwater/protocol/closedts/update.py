"""What the side transport says: one kind of message, first full, then only what changed.

    full    { seq 7  groups [(g1, 100), (g2, 810)]  members [(r1, lai 4, g1) (r2, lai 9, g1) (r3, lai 1, g2)] }
    delta   { seq 8  groups [(g1, 120), (g2, 830)]  removed [r2]  members [(r1, lai 5, g1)] }
    idle    { seq 9  groups [(g1, 140), (g2, 850)] }          the same few bytes, whatever the number of ranges

A member that is not mentioned advances with its group. A *promise* (range, lai, ts) says: every command that applies
after index `lai` writes above ts. It stays true for ever, under every later lease, which is why a receiver may keep
promises of a sender that is gone.

Read a message in this order: take out `removed`, put in `members`, then move the groups. What was removed must not move
with its group, and what it was promised before is kept.
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp, seconds_between
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import Natural, NodeId, RangeId
from slackwater.runtime.access import NODES
from slackwater.runtime.rpc.method import StreamMethod

GroupId = Natural
Member = tuple[RangeId, LeaseAppliedIndex, GroupId]


class Update(msgspec.Struct, frozen=True, array_like=True):
    """One message of a stream."""

    sender: NodeId
    incarnation: Natural
    """Of the sending process: the hybrid clock's reading when it started."""
    seq: Natural
    full: bool
    groups: list[tuple[GroupId, Timestamp]]
    removed: list[RangeId] = []
    members: list[Member] = []
    scheme: Natural = 0
    """Which scheme of closing the sender has heard is the cluster's (`closedts.kinds.Scheme`)."""

    def problem(self, upto: Timestamp) -> str:
        """Why no sound node says this at a time when nothing above `upto` can be closed; empty: it may be believed."""
        groups = dict(self.groups)
        if any(group not in groups for _, _, group in self.members):
            return "puts ranges into groups that it does not name"
        return closes_ahead(max(groups.values(), default=MIN), upto)

    def status(self) -> str:
        """One line for logs and scripts."""
        kind = "full" if self.full else "delta"
        groups = " ".join(f"g{g}={ts}" for g, ts in self.groups)
        removed = "".join(f" -r{r}" for r in self.removed)
        members = "".join(f" +r{r}@{lai}:g{g}" for r, lai, g in self.members)
        return f"n{self.sender} #{self.seq} {kind} {groups or 'no groups'}{removed}{members}"


def closes_ahead(ts: Timestamp, upto: Timestamp) -> str:
    """What to say of a message that closes `ts` when nothing above `upto` can be closed; empty: nothing."""
    return "" if ts <= upto else f"closes {seconds_between(upto, ts):.1f} s further ahead than any policy does"


class Subscribe(msgspec.Struct, frozen=True, array_like=True):
    """Ask a node for its stream of updates."""

    receiver: NodeId


UPDATES: StreamMethod[Subscribe, Update] = StreamMethod("closedts.updates", Subscribe, Update, callers=NODES)
