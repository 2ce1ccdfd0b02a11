"""The session floor: the highest timestamp that a session was told, below which its reads of the present never go.

    told by      acknowledged writes, commits, bulk loads, publishes, changes of tables; the timestamps of its own reads
    obeyed by    get, scan, transactions, snapshot() without a time, close_now, looking tables up
    not by       reads that name their age: as_of, max_staleness, min_timestamp, follower_read_timestamp, read_partition

One process hands its floor to another, which then sees what the first one wrote (*read your writes*) and never less than it
has read (*monotonic reads*), whichever gateway either of them talks to:

    slackwater.connect(url, session_floor=db.session_floor)          or, of a session that is open, db.raise_session_floor(ts)

A request carries the floor. A gateway whose clock is behind it moves its clock up, or waits until the clock gets there
(`gateway`), so a node with a slow clock answers a little later, never with less.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, show
from slackwater.errors import ClockError, UsageError

if TYPE_CHECKING:
    from slackwater.clock.hlc import HybridClock


class SessionFloor:
    """The highest timestamp that one session was told."""

    __slots__ = ("_clock", "ts")

    def __init__(self, clock: HybridClock) -> None:
        self._clock = clock
        self.ts = MIN

    def told(self, ts: Timestamp) -> None:
        """Raise the floor to a timestamp that a gateway answered with; lower ones change nothing."""
        if ts > self.ts:
            self.ts = ts
            if ts <= self._clock.latest:
                return  # the clock has followed the message that the timestamp came in
            with suppress(ClockError):  # requests carry the floor: a gateway waits for what its clock may not follow
                self._clock.update(ts)

    def raise_to(self, ts: object) -> None:
        """Raise the floor to that of another session; refuse what cannot be one, such as a time far in the future."""
        if isinstance(ts, bool) or not isinstance(ts, int) or ts < MIN:
            raise UsageError("a session floor is a timestamp, as `session_floor` of another session gives it", got=ts)
        floor = Timestamp(ts)
        try:
            self._clock.update(floor)
        except ClockError as error:
            raise UsageError(
                f"the session floor {show(floor)} lies {error.facts['offset_us']} us in the future of this machine's"
                " clock; pass the session_floor of another session, and check the time synchronization",
                floor=floor,
            ) from None
        self.ts = max(self.ts, floor)
