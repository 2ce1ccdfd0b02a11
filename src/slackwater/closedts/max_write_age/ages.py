"""The highest write that each range has proposed, and what follows from it: how old a write may still be.

    max_write_timestamp       on every replica: the highest write it has applied. It is kept as what that closes, in the
                              applied state, because the age that counts is the one of the command, not of the reader
    max_proposed              on the leaseholder: the highest write it has proposed

                max_proposed − max_write_age              max_proposed     now
    ──────────────────────┬──────────────────────────────────────┬──────────┬────► time
      closed: followers   │  a write may still be proposed here                │
      serve, nothing new  │

Rules
    1. No write is proposed at or below max_proposed − max_write_age (`bound`); it is moved up.
    2. A command carries that bound, so a follower that has applied it may serve up to there (I-10).
    3. A new leaseholder begins at the start of its lease: the former one could write nothing after the end of its own.
    4. A range that writes nothing proposes an empty command now and then (`due`), or followers would stand still.

A write in the future of the leaseholder's clock counts as one of now: an age is measured from the present.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, floor

if TYPE_CHECKING:
    from slackwater.model.ids import RangeId


DUE_SHARE = 0.9
"""Of the interval: how old the last write is when an empty command is due."""
assert 0 < DUE_SHARE < 1, "a timer that is early by a little leaves no command out"


class WriteAges:
    """`max_proposed` of every range that is led here."""

    def __init__(self) -> None:
        self._highest: dict[RangeId, Timestamp] = {}

    def proposed(self, range_id: RangeId, ts: Timestamp) -> None:
        """A command that writes at `ts`, or an empty one of that time, is on its way to the log."""
        if ts > self._highest.get(range_id, MIN):
            self._highest[range_id] = ts
        assert self._highest.get(range_id, MIN) >= ts, "max_proposed never goes back: the bound hangs on it (I-10)"

    def forget(self, range_id: RangeId) -> None:
        """The replica is gone from here."""
        self._highest.pop(range_id, None)

    def highest(self, range_id: RangeId, lease_start: Timestamp) -> Timestamp:
        """`max_proposed`: the start of the lease, until something was written under it."""
        return Timestamp(max(self._highest.get(range_id, MIN), lease_start))

    def bound(self, range_id: RangeId, *, lease_start: Timestamp, now: Timestamp, age_s: float) -> Timestamp:
        """No write is proposed at or below this any more; MIN: there is no such bound."""
        if age_s <= 0:
            return MIN
        highest = min(self.highest(range_id, lease_start), now)
        bound = Timestamp(max(MIN, floor(add_seconds(Timestamp(highest), -age_s))))
        assert bound <= now, "an age closes nothing of the future"
        return bound

    def due(self, range_id: RangeId, now: Timestamp, interval_s: float) -> bool:
        """Whether nothing was written for so long that an empty command has to be proposed.

        Asked once in an interval: a timer that is early by a little, by this clock, must not leave one out.
        """
        assert interval_s > 0, "an empty command is not due all the time"
        return self._highest.get(range_id, MIN) <= add_seconds(now, -interval_s * DUE_SHARE)
