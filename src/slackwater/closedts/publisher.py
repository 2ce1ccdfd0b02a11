"""The interface between replicas and the schemes by which they close timestamps.

What every scheme needs to hear, and what it answers (`ClosingScheme`); each stands in a folder of its own:

    leaseholder   a request enters          floor, promised   it must write above these, and is moved up if it does not
                  it is proposed            touch, proposed   "something happens here": what was promised stands still
                  it leaves, with an index  a tracker         counted from evaluation until it has its place in the log
                  it is handed to the log   carried           how far the command itself closes
                  a tick, a heartbeat       (a loop of the scheme's driver)
    follower      an update arrives         (a stream of the scheme's driver)
                  may I serve t?            closed_for        at this applied index, under this lease

`Publisher` is what replicas see: all schemes that a node runs at once, behind one object (`closedts.driver`). A promise is
(range, index, ts) in all of them and stays true for ever, so the answer is the highest of all answers, and the floor the
highest of all floors (I-13). What a scheme may promise is the range's own decision in all of them:
`Closable.try_close` is the one gate (I-10, I-11).

    I-09, I-12  `closed_for` never goes back for the same replica, and names nothing whose index is not applied
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from slackwater.clock.timestamp import add_seconds
from slackwater.closedts.policy import LEAD_MAX_S, Terms, longest_lead_s, terms_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

    from slackwater.clock import HybridClock
    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.closable import Closable, NodeLease, Refusal
    from slackwater.closedts.kinds import Scheme
    from slackwater.closedts.policy import ClosingPolicy
    from slackwater.closedts.records import Promise
    from slackwater.errors import SlackwaterError
    from slackwater.model.descriptors import Epoch, Lease, LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.frontier import CannotClose
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings


@dataclass(frozen=True)
class NodeParts:
    """What a scheme is given by its node."""

    node_id: NodeId
    runtime: Runtime
    clock: HybridClock
    settings: Settings
    scope: TaskScope
    refused: Callable[[NodeId, SlackwaterError], None] = lambda _peer, _error: None
    """Hears of peers whose messages were refused."""

    def believable_upto(self) -> Timestamp:
        """Nothing above this is closed by a sound node: its clock is at most where this one has heard it to be."""
        now = self.clock.peek()
        upto = add_seconds(now, max(LEAD_MAX_S, longest_lead_s(self.terms())))
        assert upto >= now, "the present may be closed: what a sound peer says of it is believed"
        return upto

    def terms(self) -> Terms:
        """The settings that targets are made of, as they are now."""
        return terms_of(self.settings)


class Ranges(Protocol):
    """What a scheme asks of the store that holds the replicas."""

    def node_lease(self) -> NodeLease | None:
        """The epoch this node's leases hang on, while it may be relied on."""
        ...

    def live_epoch(self, node: NodeId) -> Epoch:
        """The epoch in which a node is known to be live now; 0: it is not, or that is not known."""
        ...

    def closed(self, range_id: RangeId) -> Timestamp:
        """What a follower read of this range may be served at, here and now."""
        ...

    def leaseholder(self, range_id: RangeId) -> NodeId:
        """The node that holds the lease of a range that is here, as far as is known; 0: none."""
        ...

    def peers(self) -> Iterable[NodeId]:
        """Nodes that share a range with this one."""
        ...


class ClosingAnswers(Protocol):
    """What one scheme answers, and the publisher for all of them."""

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges led here could not be closed when they were asked, by reason."""
        ...

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        ...

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here. What was promised for its range stays promised."""
        ...

    # --- leaseholders

    def touch(self, range_id: RangeId) -> Timestamp:
        """Something is about to happen to a range: nothing more is promised until it is asked. Returns what has been."""
        ...

    def touch_all(self) -> None:
        """Policies or schemes changed: ask every range again."""
        ...

    def promised(self, range_id: RangeId) -> Timestamp:
        """What others were told is closed for a range that is led here."""
        ...

    def floor(self, range_id: RangeId) -> Timestamp:
        """New writes must lie above this, besides what was promised; MIN: no such bound."""
        ...

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """A command that writes at `ts` or above is on its way to the log."""
        ...

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range could not be closed when it was last asked."""
        ...

    # --- followers

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        """What is closed for a replica that has applied that far and knows that lease."""
        ...

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        ...


class ClosingScheme(ClosingAnswers, Protocol):
    """One way of closing timestamps, on one node. Nothing here may wait."""

    @property
    def scheme(self) -> Scheme:
        """Which one it is."""
        ...

    def start(self, ranges: Ranges, look: Callable[[], None]) -> None:
        """Begin to publish and to follow; `look` is called whenever more may be closed here."""
        ...

    def carried(self, range_id: RangeId, policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp:
        """How far a command that is handed to the log now should close; MIN: no further than what was promised."""
        ...


class Publisher(ClosingAnswers, Protocol):
    """All schemes of a node, as its replicas see them. Nothing but `wait_closed` may wait."""

    on_update: Callable[[], None] | None
    """Called whenever more may be closed. For change feeds."""
    plain: bool
    """Only the log-driven scheme runs here: what others would want to hear need not be said."""
    awaited: Collection[RangeId]
    """Ranges that reads wait on."""
    always: bool
    """Every range closes: `active` need not be asked."""

    @property
    def running(self) -> frozenset[Scheme]:
        """The schemes this node publishes by and listens to."""
        ...

    def start(self, ranges: Ranges) -> None:
        """Begin to publish and to follow."""
        ...

    def replace(self, range_id: RangeId, applied: LeaseAppliedIndex) -> None:
        """A replica that had applied so much is gone from here, and a snapshot of its range is about to take its place."""
        ...

    def recall(self, range_id: RangeId, promise: Promise) -> None:
        """A replica here was given that promise before its node was stopped in good order."""
        ...

    def divided(self, left: RangeId, right: RangeId) -> None:
        """A split was applied here: what was answered for the left half holds for the right one, from index 0 on."""
        ...

    def terms(self) -> Terms:
        """The settings that targets are made of, as they are now."""
        ...

    # --- which ranges close at all

    def want(self, range_id: RangeId) -> None:
        """A read or a feed here needs closed timestamps of a range: its leaseholder is told, wherever it is."""
        ...

    def demand(self, range_id: RangeId) -> None:
        """A range that is led here is wanted by a replica somewhere: it closes, and is named again where that was lacking."""
        ...

    def active(self, range_id: RangeId, *, configured: bool) -> bool:
        """Whether a range is to close now; `configured`: a zone gives it its policy."""
        ...

    # --- leaseholders

    def carried(self, range_id: RangeId, closable: Closable, now: Timestamp) -> Timestamp:
        """How far a command that is handed to the log now should close; MIN: no further than what was promised."""
        ...

    # --- followers

    def advanced(self, range_id: RangeId, closed: Timestamp) -> None:
        """A replica here applied something: reads may have waited for it."""
        ...

    async def wait_closed(self, range_id: RangeId, required: Timestamp, *, seconds: float) -> None:
        """Return when `required` may be closed here, when time is up, or when waiting is of no use. Look again then."""
        ...
