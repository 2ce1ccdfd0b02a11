"""The store-wide scheme, alive: heartbeats out and in, and leaseholders woken where a follower knows too little.

It rests until its node runs it (`run`), and what it said before it was told to rest stays promised.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.closedts.driver.streams import Following, Outgoing
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.closedts.store_wide.sender import Sender
from slackwater.errors import SlackwaterError
from slackwater.hooks import probe
from slackwater.model.descriptors import Epoch
from slackwater.protocol.closedts.heartbeat import WAKE_RANGES_MAX

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

WAKE_INTERVAL_S = 1.0
"""How often leaseholders are woken for ranges of which a replica here knows too little."""


class StoreWide:
    """One node's end of the store-wide scheme, in both directions. Satisfies `ClosingScheme`."""

    scheme = Scheme.STORE_WIDE

    def __init__(
        self,
        parts: NodeParts,
        *,
        records: Records,
        subscribe: Callable[[NodeId, Epoch, int], Awaitable[Stream[Heartbeat]]],
        wake: Callable[[NodeId, list[RangeId]], Awaitable[None]],
    ) -> None:
        self.sender = Sender(parts.node_id, incarnation=parts.clock.now())
        self.receiver = HeartbeatReceiver(records, live_epoch=self._live_epoch)
        self._parts = parts
        self._subscribe = subscribe
        self._wake = wake
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
        self._parts.scope.spawn(self._keep_waking(ranges), name="wake leaseholders")

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
                look()
                await self._outgoing.wake()

    def heartbeats(self, request: SubscribeHeartbeats) -> AsyncGenerator[Heartbeat, None]:
        """Serve one follower for as long as it listens, from where it was."""
        return self._outgoing.serve(request.seq or None)

    async def _keep_waking(self, ranges: Ranges) -> None:
        while True:
            await self._parts.runtime.clock.sleep(WAKE_INTERVAL_S)
            lacking, self.receiver.lacking = list(self.receiver.lacking), {}
            by_holder: dict[NodeId, list[RangeId]] = {}
            for range_id in filter(self.sender.closes, lacking) if self.sender.on else ():
                by_holder.setdefault(ranges.leaseholder(range_id), []).append(range_id)
            for holder, range_ids in sorted(by_holder.items()):
                if holder == self._parts.node_id:
                    for range_id in range_ids:
                        self.touch(range_id)
                elif holder:
                    probe("closedts.leaseholder_woken")
                    for first in range(0, len(range_ids), WAKE_RANGES_MAX):
                        try:
                            await self._wake(holder, range_ids[first : first + WAKE_RANGES_MAX])
                        except SlackwaterError:
                            probe("closedts.wake_failed")
                            break

    # --- what a command has to do with it ----------------------------------------------------------------------------

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """The range's tracker counts its commands for the store (`CountedTracker`)."""

    def carried(self, range_id: RangeId, policy: ClosingPolicy, now: Timestamp, terms: Terms) -> Timestamp:
        """Commands close nothing by themselves: they carry what heartbeats have promised, for the next leaseholder."""
        return self.promised(range_id)

    def status(self) -> str:
        """One line for logs and scripts."""
        return self.sender.status()
