"""Which ranges close at all: all of them, those that a zone names, or those that are asked for, until they no longer are.

    closed_timestamp.activation
        always                    every range closes, unless its policy is `off` (the default)
        configured                ranges that a zone gives a policy: `slackwater zone set TABLE --policy lag`, or lead
        on-demand                 ranges that are asked for
        configured-or-on-demand   either

    a read by a follower, served or refused ─┐                    ┌─ leaseholder here: demanded
    how far is it resolved? (QueryResolved)  ├─► wanted ── due ───┤
    a change feed that is attached here      ┘   on this node     └─ elsewhere: one message per node and second (WAKE)

    leaseholder   demanded ── closes like any other ── nothing for `closed_timestamp.rest_after` ──► at rest, like policy `off`

What is wanted again and again is told again after a third of that time, and at once when the lease has moved, so that closing
does not rest in between. A range at rest costs nothing and its writers are moved above nothing; what it had closed stays closed.
The system's own keys always close: nodes follow them.

The source (seed 001) also wants the pace of updates to follow the demand. Updates of ranges that are awake cost the same few
bytes however many there are, so there is one pace.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from slackwater.hooks import level, probe
from slackwater.model.ids import NodeId
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from slackwater.model.ids import RangeId

WANTED_MAX = 1 << 16
"""Ranges that one node remembers to be wanted here; one more is not told, and closes when another one is forgotten."""
TOLD_PER_REST = 3
"""Times that a range which is still wanted is told in the time after which it would rest."""
assert TOLD_PER_REST >= 2, "one message that is lost does not let a range rest"


class Activation(enum.IntEnum):
    """When ranges close. The numbers are those of the setting."""

    ALWAYS = 0
    CONFIGURED = 1
    ON_DEMAND = 2
    CONFIGURED_OR_ON_DEMAND = 3

    @property
    def by_demand(self) -> bool:
        """Whether what is asked for matters."""
        return self in {Activation.ON_DEMAND, Activation.CONFIGURED_OR_ON_DEMAND}

    @property
    def by_zone(self) -> bool:
        """Whether what a zone says matters."""
        return self in {Activation.CONFIGURED, Activation.CONFIGURED_OR_ON_DEMAND}


assert (
    tuple(one.name.lower().replace("_", "-") for one in Activation) == describe("closed_timestamp.activation").names
), "a setting names each activation"


def activation_of(number: float) -> Activation:
    """What the setting says; a number that this release does not know counts as the default."""
    try:
        return Activation(int(number))
    except ValueError:
        return Activation.ALWAYS


assert activation_of(-1) is activation_of(describe("closed_timestamp.activation").default), (
    "an activation that is not known counts as the default"
)


class _Want:
    """What is wanted of one range here, and who was told."""

    __slots__ = ("told", "told_ns", "wanted_ns")

    def __init__(self) -> None:
        self.wanted_ns = 0
        self.told = NodeId(0)
        self.told_ns = 0


class Demands:
    """What is asked for on one node: wanted of ranges that have a replica here, and demanded of those that are led here."""

    def __init__(self) -> None:
        self._wants: dict[RangeId, _Want] = {}
        self._until_ns: dict[RangeId, int] = {}

    def want(self, range_id: RangeId, now_ns: int) -> None:
        """A read or a feed here needs closed timestamps of a range."""
        want = self._wants.get(range_id)
        if want is None:
            if len(self._wants) >= WANTED_MAX:
                probe("closedts.too_many_wanted")
                return
            want = self._wants[range_id] = _Want()
            assert len(self._wants) <= WANTED_MAX, "ranges that are wanted are bounded"
            level("closedts.wanted", len(self._wants), WANTED_MAX)
        assert want.wanted_ns <= now_ns, "the monotonic clock of this node does not go back"
        want.wanted_ns = now_ns

    def due(self, now_ns: int, rest_ns: int, holder: Callable[[RangeId], NodeId]) -> dict[NodeId, list[RangeId]]:
        """Which leaseholders are to be told now, and of which ranges. What is no longer wanted is forgotten."""
        assert rest_ns >= TOLD_PER_REST, "a range that is wanted is told before it would rest"
        told: dict[NodeId, list[RangeId]] = {}
        for range_id, want in list(self._wants.items()):
            if now_ns - want.wanted_ns > rest_ns:
                del self._wants[range_id]
                continue
            to = holder(range_id)
            fresh = want.told == to and now_ns - want.told_ns < rest_ns // TOLD_PER_REST
            if to and not fresh and want.wanted_ns > (want.told_ns if want.told == to else 0):
                assert want.told_ns <= now_ns, "the monotonic clock of this node does not go back"
                want.told, want.told_ns = to, now_ns
                told.setdefault(to, []).append(range_id)
        assert NodeId(0) not in told, "only leaseholders that are known are told"
        return told

    def untold(self, range_ids: Iterable[RangeId]) -> None:
        """A leaseholder could not be told: it is tried again."""
        for range_id in range_ids:
            if range_id in self._wants:
                self._wants[range_id].told = NodeId(0)

    def demand(self, range_id: RangeId, now_ns: int, rest_ns: int) -> bool:
        """A range that is led here is asked for; returns whether it was at rest."""
        rested = range_id not in self._until_ns
        self._until_ns[range_id] = max(self._until_ns.get(range_id, 0), now_ns + rest_ns)
        assert self._until_ns[range_id] > now_ns, "a range that is asked for is awake for a while"
        return rested

    def awake(self, range_id: RangeId) -> bool:
        """Whether a range is asked for, here or elsewhere, as far as this node knows."""
        return range_id in self._until_ns or range_id in self._wants

    def rested(self, now_ns: int) -> list[RangeId]:
        """Ranges led here that were not asked for any more: they rest from now on."""
        over = [range_id for range_id, until_ns in self._until_ns.items() if until_ns <= now_ns]
        for range_id in over:
            del self._until_ns[range_id]
        assert all(until_ns > now_ns for until_ns in self._until_ns.values()), (
            "a range that stays awake was asked for lately"
        )
        return over

    def forget(self, range_id: RangeId) -> None:
        """The replica is gone from here."""
        self._wants.pop(range_id, None)
        self._until_ns.pop(range_id, None)
        assert not self.awake(range_id), "nothing is remembered of a replica that is gone"

    def clear(self) -> None:
        """Demand no longer matters."""
        self._wants.clear()
        self._until_ns.clear()

    def status(self) -> str:
        """One line for logs and scripts."""
        return f"wanted={len(self._wants)} awake={len(self._until_ns)}"
