"""The store-wide scheme, alive: heartbeats out and in, and which leaseholders are to be woken: a follower knows too little.

It rests until its node runs it (`run`), and what it said before it was told to rest stays promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.driver.streams import Following, Outgoing
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.closedts.store_wide.sender import Sender
from slackwater.model.descriptors import Epoch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.policy import ClosingPolicy, Terms
    from slackwater.closedts.publisher import NodeParts, Ranges
    from slackwater.closedts.records import Records
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.protocol.closedts.frontier import CannotClose
    from slackwater.protocol.closedts.heartbeat import Heartbeat, SubscribeHeartbeats
    from slackwater.runtime.rpc.stream import Stream


class StoreWide:
    """One node's end of the store-wide scheme, in both directions. Satisfies `ClosingScheme`."""

    scheme = Scheme.STORE_WIDE

    def __init__(
        self,
        parts: NodeParts,
        *,
        records: Records,
        subscribe: Callable[[NodeId, Epoch, int], Awaitable[Stream[Heartbeat]]],
    ) -> None:
        self.sender = Sender(parts.node_id, incarnation=parts.clock.now())
        self.receiver = HeartbeatReceiver(records, live_epoch=self._live_epoch)
        self._parts = parts
        self._subscribe = subscribe
        self._ranges: Ranges | None = None
        self._outgoing: Outgoing[Heartbeat] = Outgoing(parts.runtime, after=self.sender.after)
        self.touch = self.sender.touch
        self.touch_all = self.sender.touch_all
        self.promised = self.sender.promised
        self.floor = self.sender.floor
        self.refusal = self.sender.refusal
        self.add = self.sender.add
        self.remove = self.sender.remove
        self.closed_for = self.receiver.closed_for
        self.waiting_for = self.receiver.waiting_for

    @property
    def refusals(self) -> Mapping[CannotClose, int]:
        """How often ranges could not be closed when they were asked, by reason."""
        return self.sender.refusals

    def _live_epoch(self, node: NodeId) -> Epoch:
        return Epoch(0) if self._ranges is None else self._ranges.live_epoch(node)

    def start(self, ranges: Ranges, look: Callable[[], None]) -> None:
        """Begin to beat and to follow, whenever the scheme runs."""
        assert self._ranges is None, "a scheme is started once"
        self._ranges = ranges
        following: Following[Heartbeat] = Following(
            self._parts,
            name="heartbeats",
            incoming=self.receiver,
            subscribe=lambda peer: self._subscribe(peer, *self.receiver.had(peer)),
            peers=lambda: ranges.peers() if self.sender.on else (),
            took=lambda _: look(),
        )
        self._parts.scope.spawn(self._keep_beating(ranges, look), name="heartbeats")
        self._parts.scope.spawn(following.run(), name="heartbeats of others")

    def run(self, *, on: bool) -> None:
        """Publish and listen from now on, or rest."""
        if on:
            self.sender.start()
        elif self.sender.on:
            self.sender.stop()
            self.receiver.forget_stores()

    async def _keep_beating(self, ranges: Ranges, look: Callable[[], None]) -> None:
        while True:
            await self._parts.runtime.clock.sleep(self._parts.settings["closed_timestamp.side_transport_interval"])
            if not self.sender.on:
                continue
            beat = self.sender.heartbeat(self._parts.clock.physical(), self._parts.terms(), ranges.node_lease())
            if beat is not None:
                self.receiver.take(beat)  # a leaseholder follows itself
                assert self.receiver.had(beat.sender) == (beat.epoch, beat.seq), (
                    "a leaseholder has heard its own last heartbeat"
                )
                look()
                await self._outgoing.wake()

    def heartbeats(self, request: SubscribeHeartbeats) -> AsyncGenerator[Heartbeat, None]:
        """Serve one follower for as long as it listens, from where it was."""
        return self._outgoing.serve(request.seq or None)

    def lacking(self) -> list[RangeId]:
        """Ranges of which a replica here was asked and knew too little since the last call: leaseholders are woken for them."""
        lacking, self.receiver.lacking = list(self.receiver.lacking), {}
        return [range_id for range_id in lacking if self.sender.closes(range_id)] if self.sender.on else []

    # --- what a command has to do with it ----------------------------------------------------------------------------

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """The range's tracker counts its commands for the store (`CountedTracker`)."""

    def carried(self, range_id: RangeId, policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp:
        """Commands close nothing by themselves: they carry what heartbeats have promised, for the next leaseholder."""
        return self.promised(range_id)

    def status(self) -> str:
        """One line for logs and scripts."""
        return self.sender.status()
