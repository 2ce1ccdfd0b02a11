"""In which order a range's replicas are tried.

    under the lease    the believed leaseholder, unless it is known to be dead; then the others
    by a follower      all of them

and within that: live before suspect before draining before dead (pitfall 23), this node before others, more shared
locality before less, faster before slower. Answer times are compared by order of magnitude, and ties are broken by
chance, so that equal replicas share the load.

Pure: views and averages come in, chance is handed in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.model.ids import NodeId
from slackwater.model.locality import shared
from slackwater.routing.nodes import NodeHealth, NodeView

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.runtime.seam import Rng


class Candidate(msgspec.Struct, frozen=True):
    """A replica as the chooser sees it."""

    node_id: NodeId
    view: NodeView
    latency_us: int = 0
    suspect: bool = False

    @property
    def health(self) -> NodeHealth:
        """The worse of what the cluster says and what the sender saw."""
        return max(self.view.health, NodeHealth.SUSPECT) if self.suspect else self.view.health


def order(
    candidates: Sequence[Candidate],
    *,
    leaseholder: NodeId,
    by_follower: bool,
    here: NodeId,
    locality: tuple[tuple[str, str], ...],
    rng: Rng,
) -> list[NodeId]:
    """Every replica, best first."""

    def rank(candidate: Candidate) -> tuple[int, int, int, int, int]:
        return (
            candidate.health,
            candidate.node_id != here,
            -shared(locality, candidate.view.locality),
            candidate.latency_us.bit_length(),
            rng.below(1 << 16),
        )

    ranked = [c.node_id for c in sorted(candidates, key=rank)]
    if by_follower or leaseholder == 0:
        return ranked
    dead = any(c.node_id == leaseholder and c.view.health is NodeHealth.DEAD for c in candidates)
    if dead:
        return ranked
    # The hint may name a node that this descriptor does not list yet: it is asked all the same.
    return [leaseholder, *(n for n in ranked if n != leaseholder)]
