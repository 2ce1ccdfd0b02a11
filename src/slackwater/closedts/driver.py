"""The side transport, alive: one loop that ticks, one stream to every peer that follows, and reads that wait.

    sender     every `closed_timestamp.side_transport_interval`: tick, then wake the streams, a few at a time: a hundred
               streams that all wake in the same instant would hold up everything else on the loop (pitfall 13)
    streams    a *follower* subscribes to every node it shares ranges with; the sender yields what `Sender.after` says.
               A stream that breaks is opened again after a pause and starts with a full update
    receiver   takes updates as they come, and wakes the reads that wait for them. No replica is touched by a message

The store implements `Ranges` and tells this object of every replica that comes and goes. To
replicas it is a `Publisher` (`closedts.publisher`), one of the ways in which idle ranges could be closed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.policy import Terms, terms_of
from slackwater.closedts.receiver import Receiver
from slackwater.closedts.side_transport import Sender
from slackwater.closedts.waiting import WaitQueue
from slackwater.errors import SlackwaterError, invariant
from slackwater.hooks import probe
from slackwater.runtime.sync import Event, Future, get_running_loop, timeout

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from slackwater.clock import HybridClock
    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.publisher import Ranges
    from slackwater.closedts.receiver import Promise
    from slackwater.closedts.side_transport import Closable, Refusal
    from slackwater.model.descriptors import LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.frontier import CannotClose
    from slackwater.protocol.closedts.update import Subscribe, Update
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.settings import Settings


STREAMS_PER_STEP = 8
"""Streams woken together after a tick."""
STEP_S = 0.001
"""Pause between two groups of streams."""
RECONNECT_S = 0.5
"""Pause before a broken stream is opened again."""
PEERS_INTERVAL_S = 1.0
"""How often the set of peers to follow is looked up."""
assert STEP_S < RECONNECT_S <= PEERS_INTERVAL_S, "a broken stream is opened again before its peer is looked for again"


class SideTransport:
    """One node's end of the side transport, in both directions. Satisfies `Publisher`."""

    def __init__(
        self,
        *,
        node_id: NodeId,
        runtime: Runtime,
        clock: HybridClock,
        settings: Settings,
        scope: TaskScope,
        subscribe: Callable[[NodeId], Awaitable[Stream[Update]]],
    ) -> None:
        self.sender = Sender(node_id, incarnation=clock.now())
        self.receiver = Receiver()
        self._runtime = runtime
        self._clock = clock
        self._settings = settings
        self._scope = scope
        self._subscribe = subscribe
        self._own_token = 0
        self._streams: dict[int, Event] = {}
        self._streams_opened = 0
        self._following: set[NodeId] = set()
        self._waits: WaitQueue[Future[None]] = WaitQueue()
        self.on_update: Callable[[], None] | None = None
        """Called after every update, this node's own included: more may be closed. For change feeds."""

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges could not be closed when they were asked, by reason."""
        return self.sender.refusals

    def start(self, ranges: Ranges) -> None:
        """Begin to tick and to follow."""
        assert not self._own_token, "a transport is started once"
        self._own_token = self.receiver.attach(self.sender.node_id)
        self.receiver.receive(self._own_token, self.sender.full())
        self._scope.spawn(self._keep_ticking(ranges), name="closedts sender")
        self._scope.spawn(self._keep_following(ranges), name="closedts receiver")

    # --- replicas ----------------------------------------------------------------------------------------------------

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        self.sender.add(range_id, closable)
        self.receiver.watch(range_id)

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here."""
        self.sender.remove(range_id)
        self.receiver.forget(range_id)
        for ticket in self._waits.drop(range_id):
            _wake(ticket)

    def replace(self, range_id: RangeId, applied: LeaseAppliedIndex) -> None:
        """A replica that had applied so much is gone from here, and a snapshot of its range is about to take its place."""
        self.receiver.carry(range_id, applied)
        self.sender.remove(range_id)
        for ticket in self._waits.drop(range_id):
            _wake(ticket)

    def recall(self, range_id: RangeId, promise: Promise) -> None:
        """A replica here was given that promise before its node was stopped in good order."""
        self.receiver.recall(range_id, promise)

    def touch(self, range_id: RangeId) -> Timestamp:
        """Something is about to happen to a range; returns what has been promised for it."""
        return self.sender.touch(range_id)

    def touch_all(self) -> None:
        """Policies changed: ask every range again."""
        self.sender.touch_all()

    def promised(self, range_id: RangeId) -> Timestamp:
        """What streams were told is closed for a range that is led here."""
        return self.sender.promised(range_id)

    def refusal(self, range_id: RangeId) -> Refusal | None:
        """Why a range did not close at the last tick at which it was asked."""
        return self.sender.refusal(range_id)

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Timestamp:
        """What streams have closed for a replica that has applied that far."""
        return self.receiver.closed_for(range_id, applied)

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        return self.receiver.waiting_for(range_id, applied)

    def awaited(self, range_id: RangeId) -> bool:
        """Whether reads wait on a range."""
        return self._waits.lowest(range_id) is not None

    def advanced(self, range_id: RangeId, closed: Timestamp) -> None:
        """A replica here applied something."""
        for ticket in self._waits.advance(range_id, closed):
            _wake(ticket)

    async def wait_closed(self, range_id: RangeId, required: Timestamp, *, seconds: float) -> None:
        """Return when `required` may be closed here, when time is up, or when waiting is of no use. Look again then."""
        assert required > 0, "there is something to wait for"
        ticket: Future[None] = get_running_loop().create_future()
        number = self._waits.add(range_id, required=required, ticket=ticket)
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

    # --- sending -----------------------------------------------------------------------------------------------------

    def terms(self) -> Terms:
        """The settings as they are now."""
        return terms_of(self._settings)

    async def _keep_ticking(self, ranges: Ranges) -> None:
        while True:
            await self._runtime.clock.sleep(self._settings["closed_timestamp.side_transport_interval"])
            update = self.sender.tick(self._clock.physical(), self.terms(), ranges.node_lease())
            # A leaseholder follows itself: it too answers how far its ranges are closed.
            invariant(self.receiver.receive(self._own_token, update), "A-own-stream", update=update)
            self._look(ranges)
            streams = list(self._streams.values())
            for first in range(0, len(streams), STREAMS_PER_STEP):
                if first:
                    await self._runtime.clock.sleep(STEP_S)
                for event in streams[first : first + STREAMS_PER_STEP]:
                    event.set()

    async def updates(self, request: Subscribe) -> AsyncGenerator[Update, None]:
        """Serve one subscriber for as long as it listens."""
        self._streams_opened += 1
        number, event = self._streams_opened, Event()
        assert number not in self._streams, "streams are numbered once"
        self._streams[number] = event
        seq: int | None = None
        try:
            while True:
                # One at a time: a slow subscriber falls behind the ring and then gets one full update, not fifty.
                for update in self.sender.after(seq)[:1]:
                    yield update
                    seq = update.seq
                if seq == self.sender.seq:
                    event.clear()
                    await event.wait()
        finally:
            del self._streams[number]

    # --- receiving ---------------------------------------------------------------------------------------------------

    async def _keep_following(self, ranges: Ranges) -> None:
        while True:
            for peer in sorted(set(ranges.peers()) - self._following):
                self._following.add(peer)
                self._scope.spawn(self._follow(peer, ranges), name=f"closedts from n{peer}")
            await self._runtime.clock.sleep(PEERS_INTERVAL_S)

    async def _follow(self, peer: NodeId, ranges: Ranges) -> None:
        """Take a peer's updates until no range is shared with it any more."""
        try:
            while peer in set(ranges.peers()):
                await self._follow_once(peer, ranges)
                await self._runtime.clock.sleep(RECONNECT_S)
        finally:
            self._following.discard(peer)

    async def _follow_once(self, peer: NodeId, ranges: Ranges) -> None:
        token = self.receiver.attach(peer)
        assert token > 0, "0 means no connection"
        try:
            async with await self._subscribe(peer) as stream:
                async for update in stream:
                    if update.sender != peer or not self.receiver.receive(token, update):
                        probe("closedts.stream_refused")
                        return
                    self._look(ranges)
        except SlackwaterError:
            probe("closedts.stream_broke")
        finally:
            self.receiver.detach(peer, token)

    def _look(self, ranges: Ranges) -> None:
        """Wake reads whose timestamp has come; asks only for ranges that a read waits on."""
        if self.on_update is not None:
            self.on_update()
        for range_id in self._waits.ranges():
            self.advanced(range_id, ranges.closed(range_id))

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"{self.sender.status()} streams={len(self._streams)} following={len(self._following)} waits={len(self._waits)}"


def _wake(ticket: Future[None]) -> None:
    if not ticket.done():
        ticket.set_result(None)
