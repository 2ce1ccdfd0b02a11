"""What time a simulated node believes it is.

    wall = true time + offset + drift + sine + step          skewed; the hybrid clock reads it
    monotonic = true time + a constant of the node           never jumps; pauses do not stop it

All in integer nanoseconds. By default the parts together stay within `max_offset * 80 % / 2` of true time, so that any
two nodes are within 80 % of the maximum offset: everything must stay correct. A fault may step a clock back inside that
band (allowed, if rude), or beyond 100 % of the bound (the node must fence itself: I-01). The world knows true time and
every skew, which is what makes the clock oracle possible.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from slackwater.sim.loop import SimLoop
    from slackwater.sim.tape import TapeStream


class Shadow:
    """A time in which one node's clock is beyond the bound, or in which what it did by that clock may still be about.

    set ─────────── put right ─── what it stamped is no longer ahead ─── leases of that time have ended
    │    broken     │      catching up (only if it was ahead)            │
    begin_ns        ended_ns                                             upto_ns
    """

    def __init__(self, node: str, *, begin_ns: int, step_ns: int, max_offset_ns: int, lease_ns: int) -> None:
        self.node = node
        self.begin_ns = begin_ns
        self.step_ns = step_ns
        self.ended_ns: int | None = None
        self._tail_ns = max(0, step_ns) + 2 * max_offset_ns + lease_ns

    @property
    def upto_ns(self) -> int | None:
        """When it is over; None while the clock is still wrong."""
        return None if self.ended_ns is None else self.ended_ns + self._tail_ns

    def covers(self, at_ns: int) -> bool:
        """Whether that moment lies in it."""
        return self.begin_ns <= at_ns and (self.upto_ns is None or at_ns < self.upto_ns)


EPOCH_NS = 1_767_225_600 * NS
"""2026-01-01T00:00:00Z: where simulated time begins."""
DRIFT_PPM_MAX = 200
TICK_BITS = 26
TICK_NS = 1 << TICK_BITS
"""Between ticks of about 67 ms the error is a straight line: clocks are read thousands of times a second."""
BAND_PERCENT = 80


def wave(phase: int, period: int, amplitude: int) -> int:
    """A sine-like wave in integers: two parabolas per period, exact on every machine."""
    at = phase % period
    half = period // 2
    sign, at = (1, at) if at < half else (-1, at - half)
    return sign * amplitude * 4 * at * (half - at) // (half * half) if half else 0


class SimClock:
    """Implements `seam.Clock` for one node, across its incarnations."""

    def __init__(self, loop: SimLoop, stream: TapeStream, *, max_offset_ns: int) -> None:
        self._loop = loop
        self.max_offset_ns = max_offset_ns
        self.band_ns = max_offset_ns * BAND_PERCENT // 200  # half of 80 %: two nodes may err in opposite directions
        part = self.band_ns // 4
        self._offset_ns = stream.between(-part, part)
        self._drift_ppm = stream.between(-DRIFT_PPM_MAX, DRIFT_PPM_MAX)
        self._drift_limit_ns = part
        self._amplitude_ns = stream.between(0, part)
        self._period_ns = stream.between(10 * NS, 120 * NS)
        self._base_ns = stream.between(0, 10_000) * NS
        self.step_ns = 0
        self._tick_ns = 0
        self._error_at_tick_ns = self._error_ns(0)
        self._change_ns = self._error_ns(TICK_NS) - self._error_at_tick_ns

    def skew_ns(self) -> int:
        """Wall time minus true time, now. Only the world may ask."""
        past_ns = self._loop.now_ns - self._tick_ns
        if not 0 <= past_ns < TICK_NS:
            past_ns &= TICK_NS - 1
            self._tick_ns = tick_ns = self._loop.now_ns - past_ns
            self._error_at_tick_ns = self._error_ns(tick_ns)
            self._change_ns = self._error_ns(tick_ns + TICK_NS) - self._error_at_tick_ns
        return self._error_at_tick_ns + (self._change_ns * past_ns >> TICK_BITS) + self.step_ns

    def _error_ns(self, now: int) -> int:
        drift = now * self._drift_ppm // 1_000_000
        drift = max(-self._drift_limit_ns, min(self._drift_limit_ns, drift))
        return self._offset_ns + drift + wave(now, self._period_ns, self._amplitude_ns)

    def wall_ns(self) -> int:
        """Wall time as this node believes it."""
        now_ns = self._loop.now_ns
        past_ns = now_ns - self._tick_ns
        if not 0 <= past_ns < TICK_NS:
            return EPOCH_NS + now_ns + self.skew_ns()
        # `skew_ns`, inlined: the most frequent question of all
        return EPOCH_NS + now_ns + self._error_at_tick_ns + (self._change_ns * past_ns >> TICK_BITS) + self.step_ns

    def monotonic_ns(self) -> int:
        """Time since some moment in the past."""
        return self._base_ns + self._loop.now_ns

    async def sleep(self, seconds: float) -> None:
        """Suspend in simulated time."""
        loop = self._loop
        waiter = loop.create_future()
        timer = loop.call_at_ns(loop.now_ns + max(0, round(seconds * NS)), _wake, waiter)
        try:
            await waiter
        finally:
            timer.cancel()


def _wake(waiter: object) -> None:
    if not waiter.done():  # type: ignore[attr-defined]
        waiter.set_result(None)  # type: ignore[attr-defined]
