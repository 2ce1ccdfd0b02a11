"""Follower reads that were refused a moment ago, so that the next page or the next try does not ask in vain again.

A follower refuses a read because its timestamp is not closed there. Nothing is closed before the next tick of the side transport,
so until then reads of that range at or above that timestamp go to the leaseholder at once. Reads that are ready to wait, or that
insist on the nearest replica, are not spared their try.

Bounded: the oldest refusals are forgotten first. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.ids import RangeId

REFUSALS_MAX = 4_096


class _Refusal(NamedTuple):
    ts: Timestamp
    until_ns: int


class FollowerRefusals:
    """Which ranges' followers have just refused, and from which timestamp on."""

    def __init__(self) -> None:
        self._known: dict[RangeId, _Refusal] = {}

    def refused(self, range_id: RangeId, ts: Timestamp, *, until_ns: int) -> None:
        """A follower cannot serve a read at `ts`, and hardly will before `until_ns`."""
        self._known.pop(range_id, None)
        if len(self._known) >= REFUSALS_MAX:
            del self._known[next(iter(self._known))]
        self._known[range_id] = _Refusal(ts, until_ns)
        assert len(self._known) <= REFUSALS_MAX, "refusals are bounded"

    def expected(self, range_id: RangeId, ts: Timestamp, now_ns: int) -> bool:
        """Whether a follower that is asked for a read at `ts` would hardly serve it."""
        found = self._known.get(range_id)
        if found is None:
            return False
        if found.until_ns <= now_ns:
            del self._known[range_id]
            return False
        return ts >= found.ts
