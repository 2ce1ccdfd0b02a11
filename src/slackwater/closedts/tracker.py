"""Remembers which write timestamps are in flight, so that a range closes only below them.

A request enters before it evaluates and leaves in the same step in which its proposal gets its place in the log. What
the leaseholder may close lies below the lowest timestamp inside:

    closed ......... lower bound ............... now
      |  safe to read  |  a write may land here  |
    ----------------------------------------------------> time

The exact minimum of a changing multiset needs a heap (the twin in the tests). An answer that is never too high and
never much too low needs only two counters:

    first   {ts=10, count=1}      the older generation: it only drains
    second  {ts=15, count=3}      the younger generation: everything above `first.ts` gathers here

Rules
    1. A bucket's timestamp only decreases while a request is in it; an empty bucket has none.
    2. first.ts < second.ts whenever both are occupied; if only one is occupied it is the first.
    3. `ts <= first.ts` joins the first bucket and lowers it to ts. Anything above joins the second: nothing new can
       raise the age of the first, so it drains.
    4. When the first bucket drains, the second takes its place, timestamp and all.
    I-11  lower_bound() is at or below every tracked timestamp; closing happens strictly below it.

How late it is. Let E be the longest time a request stays inside. Then for *any* order of timestamps

    lower_bound(t)  >=  the lowest exact bound seen anywhere in [t - 2E, t]

A member that set `first.ts` by joining the first bucket (rule 3) was inside less than E ago, and the exact bound was
at or below it then. Otherwise all members of the first bucket gathered while the previous generation drained, which
took at most E after its own last joiner, and have been draining for at most E since. For requests that write at the
time they arrive, the lag behind now is therefore at most 2E; `tests/property/test_tracker.py` checks the inequality
itself, and `bench/closedts.py` prints the measured lag (goal: 3E; measured: 1.6E).

The tracker knows nothing of closing, of policies or of time, which is why it can be this small. A token is an integer
that is never used twice, so leaving twice is caught exactly (pitfall 6: an exit path that forgets to leave stops the
range from closing for ever; `count` is 0 when the range is idle, and the simulator checks it).

Cost: about 0.5 µs for track + lower_bound + untrack, whatever the number of requests inside (CPython 3.11 on the
shared two-core machine this was written on; `bench/closedts.py` measures it beside the heap).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NewType, Protocol

from slackwater.clock.timestamp import Timestamp
from slackwater.errors import InvariantViolation, Overloaded
from slackwater.hooks import level

if TYPE_CHECKING:
    from collections.abc import Iterable

Token = NewType("Token", int)
"""A place inside a tracker. Hand it back exactly once."""

TRACKED_MAX = 1 << 16
"""Requests one range may have evaluating; admission stops far below this."""


class Tracker(Protocol):
    """What the proposal buffer needs to know about requests in flight."""

    def track(self, ts: Timestamp) -> Token:
        """Enter a request that may write at `ts` or above."""
        ...

    def untrack(self, token: Token) -> None:
        """Leave; a second time with the same token is an invariant violation."""
        ...

    def leave(self, tokens: Iterable[Token]) -> Timestamp | None:
        """`untrack` of each, then `lower_bound`: what a flush needs to know when its members have their indexes."""
        ...

    def lower_bound(self) -> Timestamp | None:
        """At or below every tracked timestamp; None when nothing is tracked."""
        ...

    @property
    def count(self) -> int:
        """Requests inside."""
        ...


class _Bucket:
    """One generation: the lowest timestamp that entered it since it was empty, and how many are inside."""

    __slots__ = ("count", "ts")

    def __init__(self) -> None:
        self.ts = Timestamp(0)
        self.count = 0


class BucketTracker:
    """Two buckets with reference counts. Constant time, never above the truth."""

    __slots__ = ("_first", "_last_token", "_members", "_second")

    def __init__(self) -> None:
        self._first = _Bucket()
        self._second = _Bucket()
        self._members: dict[Token, _Bucket] = {}
        self._last_token = 0

    @property
    def count(self) -> int:
        """Requests inside."""
        return len(self._members)

    def track(self, ts: Timestamp) -> Token:
        """Enter a request that may write at `ts` or above."""
        members = self._members
        if len(members) >= TRACKED_MAX:
            raise Overloaded("too many requests are evaluating in this range; retry later", limit=TRACKED_MAX)
        bucket = self._first
        if bucket.count == 0 or ts <= bucket.ts:
            bucket.ts = ts
        else:
            # Above the first bucket even if it would fit "beside" its members: only so does the first one drain.
            bucket = self._second
            if bucket.count == 0 or ts < bucket.ts:
                bucket.ts = ts
        assert bucket.ts <= ts, "a bucket is at or below all that is in it (I-11)"
        bucket.count += 1
        token = Token(self._last_token + 1)
        self._last_token = token
        members[token] = bucket
        level("closedts.tracked", len(members), TRACKED_MAX)
        return token

    def untrack(self, token: Token) -> None:
        """Leave; a second time with the same token is an invariant violation."""
        self.leave((token,))

    def leave(self, tokens: Iterable[Token]) -> Timestamp | None:
        """`untrack` of each, then `lower_bound`."""
        members = self._members
        for token in tokens:
            bucket = members.pop(token, None)
            if bucket is None:
                raise InvariantViolation("A-tracker-untrack-once", {"token": token, "inside": self.count})
            bucket.count -= 1
            if bucket.count < 0:
                raise InvariantViolation("A-tracker-count", {"token": token, "status": self.status()})
            if bucket.count == 0 and bucket is self._first:
                assert self._second.count == len(members), "every request is in one of two buckets"
                # The drained bucket object is reused as the new, empty second one: rule 4.
                self._first, self._second = self._second, bucket
        first = self._first
        assert first.count or not members, "the older generation drains first: what is inside has a bound (I-11)"
        return first.ts if first.count else None

    def lower_bound(self) -> Timestamp | None:
        """At or below every tracked timestamp; None when nothing is tracked."""
        first = self._first
        return first.ts if first.count else None

    def status(self) -> str:
        """One line: both buckets."""
        parts = []
        for name, bucket in (("first", self._first), ("second", self._second)):
            parts.append(f"{name}={{ts={bucket.ts}, count={bucket.count}}}" if bucket.count else f"{name}={{}}")
        return " ".join(parts)

    def check(self) -> None:
        """Rules 1 and 2, for tests and the simulator."""
        first, second = self._first, self._second
        if second.count and not first.count:
            raise InvariantViolation("A-tracker-first-bucket-first", {"status": self.status()})
        if second.count and not first.ts < second.ts:
            raise InvariantViolation("A-tracker-bucket-order", {"status": self.status()})
        if first.count + second.count != len(self._members):
            raise InvariantViolation("A-tracker-count", {"status": self.status(), "members": len(self._members)})
