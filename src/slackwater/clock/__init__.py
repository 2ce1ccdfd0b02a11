"""Time as the system tells it: 64-bit timestamps and the hybrid logical clock.

    wall clock (skewed) ──► HybridClock.now() ──► Timestamp, strictly increasing
    messages ───────────────► update(ts) ─────────^      refuses ts beyond max_offset (I-01)
    heartbeats ─────────────► OffsetMonitor.check()      fences the node when its own clock is off

Pure: the wall clock comes in as a function, nothing here sleeps or does I/O.
"""

from slackwater.clock.hlc import HybridClock, OffsetMonitor, PeerOffset, SteadyWall, StepGuard
from slackwater.clock.timestamp import (
    MAX,
    MIN,
    Timestamp,
    add_seconds,
    floor,
    from_us,
    logical_of,
    parse,
    seconds_between,
    show,
    us_of,
)

__all__ = [
    "MAX",
    "MIN",
    "HybridClock",
    "OffsetMonitor",
    "PeerOffset",
    "SteadyWall",
    "StepGuard",
    "Timestamp",
    "add_seconds",
    "floor",
    "from_us",
    "logical_of",
    "parse",
    "seconds_between",
    "show",
    "us_of",
]
