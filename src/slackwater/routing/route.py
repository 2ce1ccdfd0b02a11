"""Which replica to try next, told what came of each try.

    candidates n2 n1 n3     hints are followed before candidates, at most HINTS_MAX of them

    try n2 ── NotLeaseholder(hint n3) ──► try n3 ── ok
    try n2 ── NotLeaseholder(no hint) ──► try n1 ── lost ──► try n3 ── refused ──► the round is over

After a round the sender pauses, looks the descriptor up again and starts another route. A replica that has refused under
the lease is not asked again in the same round, even if another replica names it as the holder: it knows better, and a holder that
cannot serve just now (its liveness has lapsed, say) would be asked once for every other replica that still names it. So two
nodes that each believe the other holds the lease do not keep a round going. A follower's refusal of a read ends the hope
for followers: from then on the route asks for the lease (pitfall 21), and that refusal does not count. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.hooks import probe
from slackwater.routing.range_cache import NO_NODE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.model.ids import NodeId

HINTS_MAX = 4
"""Hints followed in one round."""


class Route:
    """One round of tries over the replicas of one range."""

    __slots__ = ("_hint", "_hints", "_others", "_queue", "_refusers", "_tried_first", "by_follower")

    def __init__(
        self, candidates: Callable[[], Sequence[NodeId]], *, by_follower: bool, first: NodeId = NO_NODE
    ) -> None:
        """`first` is tried before the others are even put in order: most requests need no other."""
        self._others = candidates
        self._queue: list[NodeId] | None = None
        self._hint: NodeId | None = first or None
        self._tried_first = first
        self._hints = 0
        self._refusers: tuple[NodeId, ...] = ()
        self.by_follower = by_follower

    def next(self) -> NodeId | None:
        """The replica to try; None when the round is over."""
        if self._hint is not None:
            hint, self._hint = self._hint, None
            return hint
        left = self._left
        return left.pop(0) if left else None

    def refused(self, node_id: NodeId, *, hint: NodeId) -> None:
        """`node_id` does not hold the lease, or as a follower cannot serve; `hint` may hold it (0: no idea)."""
        if self.by_follower:
            probe("routing.follower_refused")
            self.by_follower = False
        else:
            self._refusers += (node_id,)
        if hint in (0, node_id):
            return
        if hint in self._refusers:
            probe("routing.hint_has_refused")
            return
        if self._hints >= HINTS_MAX:
            probe("routing.too_many_hints")
            return
        self._hints += 1
        self._hint = hint
        if hint in self._left:
            self._left.remove(hint)

    @property
    def _left(self) -> list[NodeId]:
        if self._queue is None:
            self._queue = [n for n in self._others() if n != self._tried_first]
        return self._queue

    def status(self) -> str:
        """One line for logs and scripts."""
        left = ",".join(f"n{n}" for n in self._left) or "-"
        return f"hint={f'n{self._hint}' if self._hint else '-'} left={left} followed={self._hints}"
