"""The wire from one host to another: delay, capacity, and whether it is cut.

    delay = min + exponential-like + what is queued ahead at the link's rate
            + slow (a fault) + one retransmission timeout, doubling, for every time the packet is lost (a fault)

A link is directed, so a partition may be one-way. Cuts are counted, not flagged: two overlapping partitions heal only
when both have healed. All arithmetic is in integer nanoseconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from slackwater.sim.net import Endpoint
    from slackwater.sim.tape import TapeStream

BYTES_PER_MS = 125_000
"""1 Gbit/s."""
LOOPBACK_NS = 5_000
RETRANSMIT_NS = 200_000_000
RETRANSMIT_NS_MAX = 8 * RETRANSMIT_NS


class Link:
    """From `src` to `dst`."""

    __slots__ = ("_free_ns", "_stream", "cuts", "dst", "loss_percent", "mean_ns", "min_ns", "slow_ns", "src", "stalled")

    def __init__(self, src: str, dst: str, stream: TapeStream) -> None:
        self.src = src
        self.dst = dst
        self._stream = stream
        self.cuts = 0
        self.slow_ns = 0
        self.loss_percent = 0
        self.stalled: list[Endpoint] = []
        self._free_ns = 0
        if src == dst:
            self.min_ns, self.mean_ns = LOOPBACK_NS, LOOPBACK_NS
        else:
            self.min_ns = stream.between(50_000, 2_000_000)
            self.mean_ns = stream.between(20_000, 1_000_000)

    def arrival_ns(self, now_ns: int, size: int) -> int:
        """When something of this size, sent now, gets there; takes up the capacity."""
        free_ns = max(self._free_ns, now_ns) + size * 1_000_000 // BYTES_PER_MS
        self._free_ns = free_ns
        late_ns = self._stream.decay(self.slow_ns) if self.slow_ns else 0
        if self.loss_percent:
            late_ns += self._retransmissions_ns()
        return free_ns + self.min_ns + self._stream.decay(self.mean_ns) + late_ns

    def _retransmissions_ns(self) -> int:
        """How long a packet takes that is lost some number of times."""
        wait_ns, timeout_ns = 0, RETRANSMIT_NS
        while self._stream.below(100) < self.loss_percent and timeout_ns < RETRANSMIT_NS_MAX:
            wait_ns += timeout_ns
            timeout_ns *= 2
        return wait_ns

    def cut(self) -> None:
        """Let nothing through until healed as often."""
        self.cuts += 1

    def heal(self, now_ns: int) -> None:
        """Undo one cut; what stalled is sent again, as TCP retransmits."""
        self.cuts -= 1
        if self.cuts == 0:
            stalled, self.stalled = self.stalled, []
            for endpoint in stalled:
                endpoint.retransmit(now_ns)
