"""What heartbeats may prove about a node's clock, and what they may not (I-01)."""

from __future__ import annotations

import pytest

from slackwater.clock import HybridClock, OffsetMonitor, StepGuard
from slackwater.errors import ClockError
from slackwater.runtime.rpc.method import Measurement
from slackwater.server.clock_hook import HybridClockHook

NS = 1_000_000_000
MAX_OFFSET_S = 0.5


class Host:
    """A node `n2` at `here:1` whose wall clock can be set."""

    def __init__(self) -> None:
        self.true_ns, self.step_ns = 1_000 * NS, 0
        self.offsets = OffsetMonitor(max_offset_s=MAX_OFFSET_S)
        clock = HybridClock(self.wall_ns, max_offset_s=MAX_OFFSET_S)
        self.hook = HybridClockHook(clock, self.offsets, own=lambda peer: peer in ("n2", "here:1"))
        self._guard = StepGuard(
            clock, wall_ns=self.wall_ns, monotonic_ns=lambda: self.true_ns, max_offset_s=MAX_OFFSET_S
        )

    def wall_ns(self) -> int:
        """True time and what somebody did to it."""
        return self.true_ns + self.step_ns

    def heartbeat(self, peer: str, offset_us: int) -> None:
        """A second later, a heartbeat comes back from `peer`."""
        self.true_ns += NS
        self.hook.measured(
            peer, Measurement(rtt_ns=20_000, offset_us=offset_us, error_us=10, measured_at_ns=self.true_ns)
        )

    def serve(self) -> None:
        """What a node checks before it evaluates anything."""
        self._guard.check(self.offsets)
        self.offsets.check(self.true_ns)


@pytest.mark.parametrize("myself", ["n2", "here:1"])
def test_a_node_does_not_vouch_for_itself(myself: str) -> None:
    """The heartbeat of a connection to itself finds its clock right, however wrong it is."""
    host = Host()
    host.step_ns = 4 * NS
    with pytest.raises(ClockError, match="while it ran"):
        host.serve()
    host.heartbeat(myself, 0)
    with pytest.raises(ClockError, match="while it ran"):
        host.serve()


def test_a_node_does_not_outvote_its_only_peer() -> None:
    """One of two measurements would not be a majority; a node's own is none."""
    host = Host()
    host.heartbeat("n2", 0)
    host.heartbeat("n1", 4_000_000)
    with pytest.raises(ClockError, match="too far from its peers"):
        host.serve()


def test_peers_vouch_for_a_clock_that_was_wrong_before() -> None:
    """A clock that was put right while the process ran is believed once others find it right."""
    host = Host()
    host.step_ns = 4 * NS
    with pytest.raises(ClockError):
        host.serve()
    host.heartbeat("n1", 100)
    host.serve()
