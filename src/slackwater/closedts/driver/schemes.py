"""All schemes of one node behind the interface that replicas see, reads that wait, and the move from one scheme to another.

A node runs the scheme that its setting names and those of its live peers (`closedts.kinds`); every other one rests. The
answer to a follower is the highest of all, writers lie above the highest of all floors, and a command carries the highest
of what the schemes that close its range want carried. The log-driven scheme always ticks, if only to tell peers which
scheme this node has heard of; where it is the only one (`plain`), the others cost nothing.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.activation import Activation, Demands, activation_of
from slackwater.closedts.driver.waking import keep_waking
from slackwater.closedts.kinds import DEFAULT, Scheme, running, scheme_of
from slackwater.closedts.log_driven.driver import SideTransport
from slackwater.closedts.max_write_age.driver import MaxWriteAge
from slackwater.closedts.records import Promise, Records
from slackwater.closedts.store_wide.driver import StoreWide
from slackwater.closedts.waiting import WaitQueue
from slackwater.hooks import probe, tap
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.runtime.sync import Future, get_running_loop, timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Mapping

    from slackwater.closedts.closable import Closable, Refusal
    from slackwater.closedts.policy import Terms
    from slackwater.closedts.publisher import ClosingScheme, NodeParts, Ranges
    from slackwater.model.descriptors import Lease
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.heartbeat import Heartbeat
    from slackwater.protocol.closedts.update import Update
    from slackwater.runtime.rpc.stream import Stream

MOVE_INTERVAL_S = 0.2
"""How often a node looks which schemes it has to run."""


class Schemes:
    """Every scheme of one node. Satisfies `Publisher`."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        subscribe: Callable[[NodeId], Awaitable[Stream[Update]]],
        subscribe_heartbeats: Callable[[NodeId, Epoch, int], Awaitable[Stream[Heartbeat]]],
        wake: Callable[[NodeId, list[RangeId]], Awaitable[None]],
    ) -> None:
        self._parts = parts
        self._records = Records()
        self.log_driven = SideTransport(parts, records=self._records, subscribe=subscribe, heard=self._heard)
        self.store_wide = StoreWide(parts, records=self._records, subscribe=subscribe_heartbeats)
        self.max_write_age = MaxWriteAge(parts)
        self._all: tuple[ClosingScheme, ...] = (self.log_driven, self.store_wide, self.max_write_age)
        assert {scheme.scheme for scheme in self._all} == set(Scheme), "every scheme that a setting can name is here"
        self._others: tuple[ClosingScheme, ...] = ()
        """Those that run beside the log-driven one, which always ticks."""
        self._running = DEFAULT
        self._peers: dict[NodeId, Scheme] = {}
        self._ranges: Ranges | None = None
        self._waits: WaitQueue[Future[None]] = WaitQueue()
        self.awaited: Collection[RangeId] = self._waits.awaited
        """Ranges that reads wait on."""
        self.on_update: Callable[[], None] | None = None
        """Called after every update, this node's own included: more may be closed. For change feeds."""
        self.plain = True
        self.demands = Demands()
        self._activation = Activation.ALWAYS
        self.always = True
        """Whether every range closes (`active`)."""
        self._by_demand = False
        self._wake_peer = wake

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges could not be closed when they were asked, by reason."""
        counts: Counter[CannotClose] = Counter()
        for scheme in (self.log_driven, *self._others):
            counts.update(scheme.refusals)
        return counts

    @property
    def running(self) -> frozenset[Scheme]:
        """The schemes this node publishes by and listens to."""
        return self._running

    def terms(self) -> Terms:
        """The settings as they are now."""
        return self._parts.terms()

    def start(self, ranges: Ranges) -> None:
        """Begin to publish and to follow."""
        assert self._ranges is None, "the schemes of a node are started once"
        self._ranges = ranges
        self._move()
        for scheme in self._all:
            scheme.start(ranges, self._look)
        self._parts.scope.spawn(self._keep_moving(), name="closedts schemes")
        waking = keep_waking(
            self._parts,
            due=self._due,
            here=self.demand,
            wake=self._wake_peer,
            failed=self.demands.untold,
        )
        self._parts.scope.spawn(waking, name="wake leaseholders")

    # --- moving from one scheme to another ---------------------------------------------------------------------------

    def _heard(self, peer: NodeId, scheme: Scheme) -> None:
        """A peer says which scheme it has heard is the cluster's."""
        assert peer != self._parts.node_id, "a node hears from its peers; its own scheme is that of its setting"
        if self._peers.get(peer) is not scheme:
            self._peers[peer] = scheme
            self._move()

    async def _keep_moving(self) -> None:
        while True:
            await self._parts.runtime.clock.sleep(MOVE_INTERVAL_S)
            self._move()

    def _move(self) -> None:
        """Run the scheme of the setting, and those of live peers that have not moved yet or have moved already."""
        own = scheme_of(self._parts.settings["closed_timestamp.scheme"])
        self.log_driven.sender.scheme = own
        self._activate(activation_of(self._parts.settings["closed_timestamp.activation"]))
        run = running(own, self._schemes_of_peers() if self._peers else ())
        if run == self._running:
            return
        probe("closedts.schemes_changed")
        self._running = run
        self.store_wide.run(on=Scheme.STORE_WIDE in run)
        self.max_write_age.run(on=Scheme.MAX_WRITE_AGE in run)
        assert self.store_wide.sender.on == (Scheme.STORE_WIDE in run), "a scheme runs, or rests"
        assert self.max_write_age.on == (Scheme.MAX_WRITE_AGE in run), "a scheme runs, or rests"
        self._others = tuple(s for s in self._all if s.scheme in run and s is not self.log_driven)
        assert {scheme.scheme for scheme in self._others} == run - DEFAULT, "every scheme that runs is asked"
        self.plain = run == DEFAULT
        self.touch_all()
        tap("closedts.schemes", self, run)

    # --- which ranges close at all -----------------------------------------------------------------------------------

    def _activate(self, activation: Activation) -> None:
        """Do as the setting says, and let ranges rest that are not asked for any more."""
        if activation is not self._activation:
            self._activation, self._by_demand = activation, activation.by_demand
            self.always = activation is Activation.ALWAYS
            self.demands.clear()
            self.touch_all()
        assert self.always == (self._activation is Activation.ALWAYS), "`always` says what the activation says"
        assert not (self.always and self._by_demand), "where every range closes, none has to be asked for"
        for range_id in self.demands.rested(self._parts.runtime.clock.monotonic_ns()) if self._by_demand else ():
            probe("closedts.range_rests")
            self.touch(range_id)

    def want(self, range_id: RangeId) -> None:
        """A read or a feed here needs closed timestamps of a range: its leaseholder is told, wherever it is."""
        if self._by_demand:
            self.demands.want(range_id, self._parts.runtime.clock.monotonic_ns())

    def demand(self, range_id: RangeId) -> None:
        """A range that is led here is wanted by a replica somewhere: it closes, and is named again where that was lacking."""
        if self._by_demand:
            now_ns = self._parts.runtime.clock.monotonic_ns()
            if self.demands.demand(range_id, now_ns, self._rest_ns()):
                probe("closedts.range_wakes")
            assert self.active(range_id, configured=False), "a range that is asked for closes"
        self.touch(range_id)

    def active(self, range_id: RangeId, *, configured: bool) -> bool:
        """Whether a range is to close now; `configured`: a zone gives it its policy."""
        activation = self._activation
        if activation is Activation.ALWAYS or (configured and activation.by_zone):
            return True
        return self._by_demand and self.demands.awake(range_id)

    def _rest_ns(self) -> int:
        return int(self._parts.settings["closed_timestamp.rest_after"] * 1e9)

    def _due(self) -> dict[NodeId, list[RangeId]]:
        """Which leaseholders are to be told of which ranges now."""
        ranges = self._ranges
        if ranges is None:
            return {}
        now_ns = self._parts.runtime.clock.monotonic_ns()
        told = self.demands.due(now_ns, self._rest_ns(), ranges.leaseholder) if self._by_demand else {}
        for range_id in self.store_wide.lacking():
            if holder := ranges.leaseholder(range_id):
                told.setdefault(holder, []).append(range_id)
        assert all(told), "only leaseholders that are known are told"
        return told

    def _schemes_of_peers(self) -> list[Scheme]:
        ranges = self._ranges
        if ranges is None:
            return []
        return [scheme for peer, scheme in self._peers.items() if ranges.live_epoch(peer)]

    # --- replicas ----------------------------------------------------------------------------------------------------

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        assert self._waits.lowest(range_id) is None, "no read waits for a replica before it is there"
        self._records.watch(range_id)
        for scheme in self._all:
            scheme.add(range_id, closable)

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here."""
        self._records.forget(range_id)
        self._gone(range_id)

    def replace(self, range_id: RangeId, applied: LeaseAppliedIndex) -> None:
        """A replica that had applied so much is gone from here, and a snapshot of its range is about to take its place."""
        self._records.carry(range_id, applied)
        self._gone(range_id)

    def _gone(self, range_id: RangeId) -> None:
        self.demands.forget(range_id)
        for scheme in self._all:
            scheme.remove(range_id)
        for ticket in self._waits.drop(range_id):
            _wake(ticket)
        assert self._waits.lowest(range_id) is None, "no read waits for a replica that is gone"

    def recall(self, range_id: RangeId, promise: Promise) -> None:
        """A replica here was given that promise before its node was stopped in good order."""
        self._records.keep(range_id, promise)

    def divided(self, left: RangeId, right: RangeId) -> None:
        """A split was applied here: what was answered for the left half holds for the right one, from index 0 on."""
        assert left != right, "a split makes another range"
        known = self._records.get(left)
        if known is not None and known.served:
            self._records.keep(right, Promise(LeaseAppliedIndex(0), known.served))

    # --- leaseholders ------------------------------------------------------------------------------------------------

    def touch(self, range_id: RangeId) -> Timestamp:
        """Something is about to happen to a range; returns what has been promised for it."""
        promised = self.log_driven.touch(range_id)
        for scheme in self._others:
            promised = max(promised, scheme.touch(range_id))
        return promised

    def touch_all(self) -> None:
        """Policies or schemes changed: ask every range again."""
        for scheme in (self.log_driven, *self._others):
            scheme.touch_all()

    def promised(self, range_id: RangeId) -> Timestamp:
        """What streams were told is closed for a range that is led here."""
        promised = self.log_driven.promised(range_id)
        for scheme in self._others:
            promised = max(promised, scheme.promised(range_id))
        return promised

    def floor(self, range_id: RangeId) -> Timestamp:
        """New writes must lie above this, besides what was promised."""
        return Timestamp(max((scheme.floor(range_id) for scheme in self._others), default=MIN))

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """A command that writes at `ts` or above is on its way to the log."""
        for scheme in self._others:
            scheme.proposed(range_id, ts)

    def carried(self, range_id: RangeId, closable: Closable, now: Timestamp) -> Timestamp:
        """How far a command that is handed to the log now should close."""
        policy, terms = closable.policy(), self.terms()
        wanted = (
            scheme.carried(range_id, policy, now, terms)
            for scheme in (self.log_driven, *self._others)
            if closable.closes_by(scheme.scheme)
        )
        return Timestamp(max(wanted, default=MIN))

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range did not close when it was last asked, by a scheme that is to close it."""
        for scheme in (*self._others, self.log_driven):
            refusal = scheme.refusal(range_id)
            if refusal is not None and refusal.reason is not CannotClose.OTHER_SCHEME:
                return refusal
        return None

    # --- followers ---------------------------------------------------------------------------------------------------

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        """What is closed for a replica that has applied that far and knows that lease: the highest of all promises."""
        closed = self.log_driven.receiver.closed_for(range_id, applied)
        for scheme in self._others:
            closed = max(closed, scheme.closed_for(range_id, applied, lease))
        return closed

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        offers = (scheme.waiting_for(range_id, applied) for scheme in (self.log_driven, *self._others))
        lowest = min((offer for offer in offers if offer is not None), default=None)
        assert lowest is None or lowest.lai > applied, "a promise whose index is applied does not wait (I-12)"
        return lowest

    def advanced(self, range_id: RangeId, closed: Timestamp) -> None:
        """A replica here applied something."""
        for ticket in self._waits.advance(range_id, closed):
            _wake(ticket)

    async def wait_closed(self, range_id: RangeId, required: Timestamp, *, seconds: float) -> None:
        """Return when `required` may be closed here, when time is up, or when waiting is of no use. Look again then."""
        assert required > 0, "there is something to wait for"
        ticket: Future[None] = get_running_loop().create_future()
        number = self._waits.add(range_id, required=required, ticket=ticket)
        assert number is None or self._waits.lowest(range_id) is not None, "a read that waits is found by its range"
        if number is None:
            return
        probe("closedts.follower_read_waits")
        try:
            async with timeout(seconds):
                await ticket
        except TimeoutError:
            probe("closedts.follower_read_waited_in_vain")
        finally:
            self._waits.cancel(number)

    def _look(self) -> None:
        """Wake reads whose timestamp has come; asks only for ranges that a read waits on."""
        if self.on_update is not None:
            self.on_update()
        if self._ranges is not None:
            for range_id in list(self.awaited):
                self.advanced(range_id, self._ranges.closed(range_id))

    def status(self) -> str:
        """One line for logs and scripts."""
        lines = "; ".join(s.status() for s in (self.log_driven, self.store_wide, self.max_write_age))
        running = "+".join(s.name.lower() for s in sorted(self._running))
        return f"{running}: {lines} waits={len(self._waits)} {self.demands.status()}"


def _wake(ticket: Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
