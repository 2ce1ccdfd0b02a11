"""Real-time order on one key (the second half of I-19).

Every access to a key has a *position* in the key's version order: a write has the position of the version it made, a
read that of the version it saw. When A returned before B was invoked, then on every key that both touched

    A wrote, B wrote    position(A) <  position(B)
    A wrote, B read     position(A) <= position(B)       otherwise B is a stale read
    A read,  B wrote    position(A) <  position(B)
    A read,  B read     position(A) <= position(B)       otherwise time ran backwards for the readers

so it is enough to keep the highest position among everything that has returned, and to look at it once per invocation:
one sweep, O(n log n). If the sweep finds nothing, each real-time edge between transactions that conflict on a key is
already implied by a dependency path, which is why the cycle search does not need to carry those edges.

Where the position is not certain (values that repeat, versions that were never read) an access has two: the lowest it may have
when it comes first, the highest it may have when it comes second. That never accuses an innocent history.
"""

from __future__ import annotations

from operator import itemgetter
from typing import NamedTuple

LAST = 1 << 62
"""Position of a version known only to come after all that were seen; two of these are not comparable."""
NEVER_NS = 1 << 62
"""Return time of what never returned."""
READ, WROTE = False, True


Touch = tuple[int, int, int, int, bool, int]
"""The fields of an `TimedAccess`: there are many, and a plain tuple is four times cheaper to make."""


class TimedAccess(NamedTuple):
    """One transaction's touch of one key."""

    invoked_ns: int
    returned_ns: int
    as_first: int
    as_second: int
    is_write: bool
    who: int


def out_of_order(accesses: list[Touch]) -> tuple[TimedAccess, TimedAccess] | None:
    """Two accesses of one key, the first over before the second began, whose positions say the opposite."""
    if len(accesses) < 2:
        return None
    ends = sorted(accesses, key=itemgetter(1))
    highest = ends[0]  # of those that are over, once any is
    position, done, next_end = -1, 0, highest[1]
    for access in sorted(accesses, key=itemgetter(0)):
        if next_end < access[0]:
            while next_end < access[0]:
                if ends[done][2] > position:
                    highest = ends[done]
                    position = highest[2]
                done += 1
                next_end = ends[done][1] if done < len(ends) else NEVER_NS
        second = access[3]
        if second <= position and (second < position or (access[4] and position != LAST)):
            return TimedAccess(*highest), TimedAccess(*access)
    return None
