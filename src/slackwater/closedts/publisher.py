"""The interface through which replicas have closed timestamps published without commands.

    replica, as leaseholder   touch, promised       "something happens here": what has been promised on my behalf so far?
    replica, as follower      closed_for            what is closed at the index that I have applied?
                              wait_closed …         tell me when more is
    explain                   refusal, waiting_for  why not further?
    node                      start, touch_all      policies have changed

A scheme of publishing is one implementation. The one there is, `closedts.driver.SideTransport`, closes idle ranges in
groups and streams that to followers. Another scheme (one minimum proposal timestamp for a whole store, say) stands beside
it by implementing this, and both may run at once behind a publisher that answers with the higher of two: a promise is
(range, index, ts), stays true for ever, and the higher of two true promises is true. What a scheme may promise is
the range's own decision in all of them: `Closable.try_close` is the one gate (I-10, I-11), and what commands carry and
the applied state keeps does not depend on a scheme at all.

    I-09, I-12  `closed_for` never goes back for the same replica, and names nothing whose index is not applied
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.policy import Terms
    from slackwater.closedts.receiver import Promise
    from slackwater.closedts.side_transport import Closable, NodeLease, Refusal
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.frontier import CannotClose


class Ranges(Protocol):
    """What a publisher asks of the store that holds the replicas."""

    def node_lease(self) -> NodeLease | None:
        """The epoch this node's leases hang on, while it may be relied on."""
        ...

    def closed(self, range_id: RangeId) -> Timestamp:
        """What a follower read of this range may be served at, here and now."""
        ...

    def peers(self) -> Iterable[NodeId]:
        """Nodes that share a range with this one."""
        ...


class Publisher(Protocol):
    """Closes idle ranges and tells followers. Nothing but `wait_closed` may wait."""

    on_update: Callable[[], None] | None
    """Called whenever more may be closed. For change feeds."""

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges led here could not be closed when they were asked, by reason."""
        ...

    def start(self, ranges: Ranges) -> None:
        """Begin to publish and to follow."""
        ...

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        ...

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here. What was promised for its range stays promised."""
        ...

    def replace(self, range_id: RangeId, applied: LeaseAppliedIndex) -> None:
        """A replica that had applied so much is gone from here, and a snapshot of its range is about to take its place."""
        ...

    def recall(self, range_id: RangeId, promise: Promise) -> None:
        """A replica here was given that promise before its node was stopped in good order."""
        ...

    def terms(self) -> Terms:
        """The settings that targets are made of, as they are now."""
        ...

    # --- leaseholders

    def touch(self, range_id: RangeId) -> Timestamp:
        """Something is about to happen to a range: nothing more is promised until it is asked. Returns what has been."""
        ...

    def touch_all(self) -> None:
        """Policies changed: ask every range again."""
        ...

    def promised(self, range_id: RangeId) -> Timestamp:
        """What others were told is closed for a range that is led here."""
        ...

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range could not be closed when it was last asked."""
        ...

    # --- followers

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Timestamp:
        """What is closed for a replica that has applied that far."""
        ...

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        ...

    def awaited(self, range_id: RangeId) -> bool:
        """Whether reads wait on a range."""
        ...

    def advanced(self, range_id: RangeId, closed: Timestamp) -> None:
        """A replica here applied something: reads may have waited for it."""
        ...

    async def wait_closed(self, range_id: RangeId, required: Timestamp, *, seconds: float) -> None:
        """Return when `required` may be closed here, when time is up, or when waiting is of no use. Look again then."""
        ...
