"""The side transport, alive: one loop that ticks, one stream to every peer that follows.

    sender     every `closed_timestamp.side_transport_interval`: tick, then wake the streams
    receiver   takes updates as they come. No replica is touched by a message

Every node ticks and follows, whichever scheme closes its ranges: an update also tells which scheme its sender has heard
is the cluster's, which is how nodes know when all of them have moved (`closedts.kinds`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.closedts.driver.streams import Following, Outgoing
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.policy import target
from slackwater.errors import invariant

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.closable import Closable
    from slackwater.closedts.policy import ClosingPolicy, Terms
    from slackwater.closedts.publisher import NodeParts, Ranges
    from slackwater.closedts.records import Promise, Records
    from slackwater.model.descriptors import Lease, LeaseAppliedIndex
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.frontier import CannotClose
    from slackwater.protocol.closedts.update import Subscribe, Update
    from slackwater.runtime.rpc.stream import Stream


class SideTransport:
    """One node's end of the side transport, in both directions. Satisfies `ClosingScheme`."""

    scheme = Scheme.LOG_DRIVEN

    def __init__(
        self,
        parts: NodeParts,
        *,
        records: Records,
        subscribe: Callable[[NodeId], Awaitable[Stream[Update]]],
        heard: Callable[[NodeId, Scheme], None],
    ) -> None:
        self.sender = Sender(parts.node_id, incarnation=parts.clock.now())
        self.receiver = Receiver(records)
        self._parts = parts
        self._subscribe = subscribe
        self._heard = heard
        self._own_token = 0
        self._outgoing: Outgoing[Update] = Outgoing(parts.runtime, after=self.sender.after)
        self.touch = self.sender.touch
        self.promised = self.sender.promised
        self.refusal = self.sender.refusal

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges could not be closed when they were asked, by reason."""
        return self.sender.refusals

    def start(self, ranges: Ranges, look: Callable[[], None]) -> None:
        """Begin to tick and to follow; `look` is called when more may be closed."""
        assert not self._own_token, "a transport is started once"
        self._own_token = self.receiver.attach(self.sender.node_id)
        invariant(self.receiver.receive(self._own_token, self.sender.full()), "A-own-stream", node=self._parts.node_id)

        def took(update: Update) -> None:
            self._heard(update.sender, Scheme(update.scheme) if update.scheme in set(Scheme) else Scheme.LOG_DRIVEN)
            look()

        following: Following[Update] = Following(
            self._parts,
            name="closedts",
            incoming=self.receiver,
            subscribe=self._subscribe,
            peers=ranges.peers,
            took=took,
        )
        self._parts.scope.spawn(self._keep_ticking(ranges, look), name="closedts sender")
        self._parts.scope.spawn(following.run(), name="closedts receiver")

    async def _keep_ticking(self, ranges: Ranges, look: Callable[[], None]) -> None:
        while True:
            await self._parts.runtime.clock.sleep(self._parts.settings["closed_timestamp.side_transport_interval"])
            update = self.sender.tick(self._parts.clock.physical(), self._parts.terms(), ranges.node_lease())
            # A leaseholder follows itself: it too answers how far its ranges are closed.
            invariant(self.receiver.receive(self._own_token, update), "A-own-stream", update=update)
            look()
            await self._outgoing.wake()

    def updates(self, request: Subscribe) -> AsyncGenerator[Update, None]:
        """Serve one subscriber for as long as it listens. It is told everything first."""
        return self._outgoing.serve()

    # --- replicas ----------------------------------------------------------------------------------------------------

    def add(self, range_id: RangeId, closable: Closable) -> None:
        """A replica appeared here."""
        self.sender.add(range_id, closable)

    def remove(self, range_id: RangeId) -> None:
        """A replica is gone from here."""
        self.sender.remove(range_id)

    def touch_all(self) -> None:
        """Policies or schemes changed: ask every range again."""
        self.sender.touch_all()

    def floor(self, range_id: RangeId) -> Timestamp:
        """Nothing beyond what was promised: writers are moved above what is closed, and not before."""
        return MIN

    def carried(self, range_id: RangeId, policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp:
        """Commands carry what the policy wants closed."""
        return target(policy, now, terms) or MIN

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """The tracker of the range knows what is under way; nothing else is remembered of a command."""

    def closed_for(self, range_id: RangeId, applied: LeaseAppliedIndex, lease: Lease) -> Timestamp:
        """What streams have closed for a replica that has applied that far; whose lease it is does not matter."""
        return self.receiver.closed_for(range_id, applied)

    def waiting_for(self, range_id: RangeId, applied: LeaseAppliedIndex) -> Promise | None:
        """What would be closed, were more applied."""
        return self.receiver.waiting_for(range_id, applied)

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"{self.sender.status()} streams={len(self._outgoing)}"
