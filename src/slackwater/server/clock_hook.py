"""Couples a node's clock to every message: it stamps and follows, as a client's does, and measures its peers.

A node stops serving when its peers prove its clock wrong (`OffsetMonitor`). A client only stamps and follows
(`clock.hook.FollowClock`), and a stamp too far ahead is refused by its receiver.

A node may also talk to itself over a connection, and then it measures itself. That measurement always says that the two
clocks agree, and is worth nothing: counted, it would vouch for a clock that was set (`StepGuard`) and outvote a peer who
proves it wrong. So a node that is `own` is left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock import HybridClock, OffsetMonitor, PeerOffset
from slackwater.clock.hlc import PEERS_MAX
from slackwater.clock.hook import FollowClock
from slackwater.model.ids import NodeId

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.rpc.method import Measurement


RTT_WEIGHT = 4
"""A measurement counts for one in so many."""


class HybridClockHook(FollowClock):
    """Implements `runtime.rpc.method.ClockHook`."""

    def __init__(
        self, clock: HybridClock, monitor: OffsetMonitor, *, own: Callable[[str], bool] = lambda _peer: False
    ) -> None:
        super().__init__(clock)
        self._monitor = monitor
        self._own = own
        self._rtt_ns: dict[str, int] = {}

    def measured(self, peer: str, measurement: Measurement) -> None:
        """A heartbeat came back from `peer`."""
        if self._own(peer):
            return
        if peer not in self._rtt_ns and len(self._rtt_ns) >= PEERS_MAX:
            self._rtt_ns.pop(next(iter(self._rtt_ns)))
        # One slow heartbeat is no longer way; a way that is longer shows in a few.
        known = self._rtt_ns.get(peer, measurement.rtt_ns)
        self._rtt_ns[peer] = known + (measurement.rtt_ns - known) // RTT_WEIGHT
        self._monitor.record(peer, PeerOffset(measurement.offset_us, measurement.error_us, measurement.measured_at_ns))

    def round_trips_s(self) -> dict[NodeId, float]:
        """The round trip to every node that was measured, smoothed."""
        return {NodeId(int(peer[1:])): rtt / 1e9 for peer, rtt in self._rtt_ns.items() if _is_node(peer)}


def _is_node(peer: str) -> bool:
    return peer.startswith("n") and peer[1:].isdecimal()
