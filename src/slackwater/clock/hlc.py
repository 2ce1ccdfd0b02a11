"""The hybrid logical clock: wall time that never goes back and follows what it hears.

    now()          strictly increases on one node, stays close to wall time
    update(ts)     after a message stamped ts, everything this node stamps is above ts
    fencing        a message from beyond `max_offset` in the future is refused, not followed: following one broken
                   clock would drag the whole cluster with it

Rules
    I-01  A node's clock never goes back; a message's timestamp is below everything the receiver stamps later; a node
          whose own offset exceeds the bound stops serving.

A node measures its offset to its peers from RPC heartbeats and reports each to `OffsetMonitor`. It fences itself when
it is provably more than `max_offset` away from a majority of the peers it can measure (an interval test: a measurement
of ±e seconds proves only what lies outside the error).

That takes a heartbeat or two, and leases can go wrong sooner. A clock that is *set* while the process runs is seen at
once: wall time and monotonic time part. `StepGuard` compares them before every evaluation. Meanwhile the hybrid clock does
not follow: `SteadyWall` goes on from monotonic time, so a clock that was an hour ahead and is put right again leaves nothing
behind, and its node serves on at once. A clock that was wrong from the start and is put *back* later has stamped the future:
then its node stays silent until time has caught up with what it stamped.

The clock survives restarts: on start the caller passes `floor`, an upper bound of everything stamped before (the
largest timestamp in the store and the last persisted bound), so that a wall clock set back cannot reissue old times.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp
from slackwater.errors import ClockError, InvariantViolation

if TYPE_CHECKING:
    from collections.abc import Callable


class HybridClock:
    """One per node. `wall_ns` is `runtime.Clock.wall_ns`."""

    def __init__(self, wall_ns: Callable[[], int], *, max_offset_s: float, floor: Timestamp = MIN) -> None:
        self._wall_ns = wall_ns
        self.max_offset_us = round(max_offset_s * 1_000_000)
        self.latest = floor
        """The highest timestamp given or heard."""

    def physical(self) -> Timestamp:
        """Wall time, untouched by what was heard; for policies that must not run ahead with a fast peer."""
        return Timestamp(self._wall_ns() // 1_000 << LOGICAL_BITS)

    def now(self) -> Timestamp:
        """A timestamp above every other this clock has given or heard."""
        before = self.latest
        now = self._wall_ns() // 1_000 << LOGICAL_BITS
        if now <= before:
            now = before + 1
        if now <= before:  # spelled out: this is called several times per request
            raise InvariantViolation("I-01", {"before": before, "after": now})
        self.latest = Timestamp(now)
        return self.latest

    def peek(self) -> Timestamp:
        """At or above every timestamp given or heard, without using one up."""
        return Timestamp(max(self.latest, self._wall_ns() // 1_000 << LOGICAL_BITS))

    def update(self, heard: Timestamp) -> None:
        """Follow a timestamp received in a message; refuse one too far in the future."""
        if heard <= self.latest:
            return
        ahead_us = (heard >> LOGICAL_BITS) - self._wall_ns() // 1_000
        if ahead_us > self.max_offset_us:
            raise ClockError(
                "a peer's clock is too far ahead; check its time synchronization",
                offset_us=ahead_us,
                max_offset_us=self.max_offset_us,
            )
        self.latest = heard

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"clock last={self.latest} wall={self.physical()} max_offset_us={self.max_offset_us}"


class SteadyWall:
    """Wall time that does not jump: while it has parted from monotonic time by more than the bound, monotonic time goes on."""

    def __init__(self, wall_ns: Callable[[], int], monotonic_ns: Callable[[], int], *, max_offset_s: float) -> None:
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._max_offset_ns = round(max_offset_s * 1_000_000_000)
        self.began_ns = wall_ns() - monotonic_ns()
        """Wall time less monotonic time when the process began, or at `accept`: what they differ by now was set since."""

    def __call__(self) -> int:
        """Nanoseconds since the Unix epoch, as `wall_ns`."""
        wall_ns = self._wall_ns()
        steady_ns = self._monotonic_ns() + self.began_ns
        parted = not -self._max_offset_ns <= wall_ns - steady_ns <= self._max_offset_ns
        return steady_ns if parted else wall_ns

    def accept(self) -> None:
        """Wall time is right as it is now."""
        self.began_ns = self._wall_ns() - self._monotonic_ns()


class StepGuard:
    """Sees at once that this node's wall clock was set by more than the bound while the process ran."""

    def __init__(
        self,
        clock: HybridClock,
        *,
        wall_ns: Callable[[], int],
        monotonic_ns: Callable[[], int],
        max_offset_s: float,
        steady: SteadyWall | None = None,
    ) -> None:
        self._clock = clock
        self._wall_ns = wall_ns
        self._monotonic_ns = monotonic_ns
        self._max_offset_ns = round(max_offset_s * 1_000_000_000)
        self._steady = steady or SteadyWall(wall_ns, monotonic_ns, max_offset_s=max_offset_s)
        self._noticed_ns: int | None = None

    def accept(self) -> None:
        """Take wall time as it is: for a process that has no part in a cluster yet."""
        self._steady.accept()
        self._noticed_ns = None

    def check(self, offsets: OffsetMonitor) -> None:
        """Raise `ClockError` while wall time has parted from monotonic time, or is behind what was stamped by it.

        Unless a majority of peers has measured since that wall time is right: then it was wrong when the process began.
        """
        wall_ns, now_ns = self._wall_ns(), self._monotonic_ns()
        stepped_ns = wall_ns - now_ns - self._steady.began_ns
        if -self._max_offset_ns <= stepped_ns <= self._max_offset_ns:
            self._noticed_ns = None
        elif self._noticed_ns is not None and offsets.vouched(after_ns=self._noticed_ns, now_ns=now_ns):
            self._steady.accept()
            self._noticed_ns = None
        else:
            self._noticed_ns = now_ns if self._noticed_ns is None else self._noticed_ns
            raise ClockError(
                f"this node's wall clock was set {'forward' if stepped_ns > 0 else 'back'} by {abs(stepped_ns) / 1e9:.3f} s while"
                " it ran; it serves nothing until that is undone, or its peers agree with it",
                offset_us=stepped_ns // 1_000,
                max_offset_us=self._max_offset_ns // 1_000,
            )
        ahead_ns = (self._clock.latest >> LOGICAL_BITS) * 1_000 - wall_ns
        if ahead_ns > self._max_offset_ns:
            raise ClockError(
                "this node's wall clock was ahead when it started and was put right; it serves nothing until time has caught"
                f" up with what it stamped, in {ahead_ns / 1e9:.1f} s; a restart after that time does not help sooner",
                offset_us=ahead_ns // 1_000,
                max_offset_us=self._max_offset_ns // 1_000,
            )


class PeerOffset(msgspec.Struct, frozen=True):
    """A measured clock offset: the peer's clock minus ours, give or take `error_us`."""

    offset_us: int
    error_us: int
    measured_at_ns: int


MEASUREMENT_AGE_MAX_NS = 30_000_000_000
PEERS_MAX = 1024


class OffsetMonitor:
    """Decides from heartbeats whether this node's clock may still be trusted."""

    def __init__(self, *, max_offset_s: float) -> None:
        self.max_offset_us = round(max_offset_s * 1_000_000)
        self._peers: dict[str, PeerOffset] = {}
        self.all_well = True
        """Whether nothing that was measured speaks against this clock, however old: then `check` need not be asked."""

    def record(self, peer: str, offset: PeerOffset) -> None:
        """Keep the latest measurement of one peer, unless a recent one is more exact and the two agree.

        Two that cannot both be right mean that a clock was set in between: then only the newer one counts.
        """
        known = self._peers.get(peer)
        if known is not None and known.error_us < offset.error_us:
            recent = offset.measured_at_ns - known.measured_at_ns < MEASUREMENT_AGE_MAX_NS // 3
            if recent and abs(offset.offset_us - known.offset_us) <= offset.error_us + known.error_us:
                return
        if known is None and len(self._peers) >= PEERS_MAX:
            self._peers.pop(next(iter(self._peers)))
        self._peers[peer] = offset
        self.all_well = not any(self._beyond(o) for o in self._peers.values())

    def latest(self) -> dict[str, int]:
        """The latest offset of each peer in microseconds: its clock minus ours."""
        return {peer: offset.offset_us for peer, offset in self._peers.items()}

    def check(self, now_ns: int) -> None:
        """Raise `ClockError` when a majority of measured peers prove that this clock is beyond the bound."""
        if self.all_well:
            return
        fresh = [o for o in self._peers.values() if now_ns - o.measured_at_ns <= MEASUREMENT_AGE_MAX_NS]
        beyond = [o for o in fresh if self._beyond(o)]
        if fresh and 2 * len(beyond) > len(fresh):
            worst = max(beyond, key=lambda o: abs(o.offset_us))
            raise ClockError(
                "this node's clock is too far from its peers; it stops serving until that is mended",
                offset_us=worst.offset_us,
                max_offset_us=self.max_offset_us,
                peers=f"{len(beyond)} of {len(fresh)}",
            )

    def vouched(self, *, after_ns: int, now_ns: int) -> bool:
        """Whether a majority of the peers heard lately has measured, after that moment, that this clock is right."""
        fresh = [o for o in self._peers.values() if now_ns - o.measured_at_ns <= MEASUREMENT_AGE_MAX_NS]
        right = [
            o for o in fresh if o.measured_at_ns > after_ns and abs(o.offset_us) + o.error_us <= self.max_offset_us
        ]
        return 2 * len(right) > len(fresh)

    def _beyond(self, offset: PeerOffset) -> bool:
        """Whether a measurement proves more than the bound."""
        return abs(offset.offset_us) - offset.error_us > self.max_offset_us
