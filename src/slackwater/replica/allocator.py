"""Which nodes should hold a range, and which of them its lease. Pure: facts in, one action out.

    state of a node   known by                                    for the allocator
    LIVE              its record has not expired                  may be given replicas and leases
    DRAINING          live, and says that it stops soon           keeps its replicas, gives its leases away
    LEAVING           marked by `decommission`                    loses everything, once there is a substitute
    UNKNOWN           no record, or expired a while ago           left alone: unknown is not dead
    DEAD              expired for longer than `dead_after`        its replicas are replaced

One step at a time, so that every state in between is a good one:

    add       a replica is missing, or one must go and there is a better place for it: the substitute comes first
    remove    there are more than wanted: first those that must go, then the one whose loss costs least diversity
    move      everything is in order, but a node holds many more replicas than another that would do as well
    nothing   anything else, and whenever the picture is incomplete

Diversity of two localities is how early they part: `region=a,zone=1` and `region=b,zone=1` part at the first of two
tiers, which is worth 2; different zones of one region are worth 1. A set of replicas is worth the sum over its pairs.
Ties go to fewer replicas, then less load, then the lower id: equal facts give equal answers everywhere.
"""

from __future__ import annotations

import enum
from itertools import combinations
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from slackwater.clock.timestamp import Timestamp, seconds_between
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from slackwater.model.descriptors import Liveness
    from slackwater.model.ids import NodeId

Locality: TypeAlias = "tuple[tuple[str, str], ...]"

UNEVEN_MIN = 2
"""Nodes whose counts differ by less than this are balanced."""
UNEVEN_PERCENT = 5
"""… and also those whose counts differ by less than this part of the larger."""
assert UNEVEN_MIN >= 2, "moving one replica between nodes that differ by one would never end"
assert 0 < UNEVEN_PERCENT < 100, "a share of the replicas"
assert describe("liveness.dead_after").default > describe("liveness.duration").default, (
    "a node is declared dead long after its record has expired"
)


class NodeState(enum.Enum):
    """What the allocator may assume of a node."""

    LIVE = "live"
    DRAINING = "draining"
    LEAVING = "leaving"
    UNKNOWN = "unknown"
    DEAD = "dead"


class NodeInfo(NamedTuple):
    """One node, as the allocator sees it."""

    node_id: NodeId
    state: NodeState
    locality: Locality = ()
    replicas: int = 0
    leases: int = 0
    load: float = 0.0


class Add(NamedTuple):
    """Put a replica on this node."""

    node: NodeId


class Remove(NamedTuple):
    """Take the replica off this node."""

    node: NodeId


class Move(NamedTuple):
    """Put a replica on `to`, then take it off `node`."""

    node: NodeId
    to: NodeId


Action: TypeAlias = Add | Remove | Move


def node_state(record: Liveness | None, *, seen_at: Timestamp, dead_after_s: float) -> NodeState:
    """What a liveness record says. `seen_at` is when it was read: a view that is old declares no node dead."""
    if record is None:
        return NodeState.UNKNOWN
    if not record.live_at(seen_at):
        if seconds_between(record.expiration, seen_at) > dead_after_s:
            return NodeState.DEAD
        return NodeState.LEAVING if record.decommissioning else NodeState.UNKNOWN
    if record.decommissioning:
        return NodeState.LEAVING
    return NodeState.DRAINING if record.draining else NodeState.LIVE


def distance(a: Locality, b: Locality) -> int:
    """How early two localities part; 0 when they are the same."""
    tiers = max(len(a), len(b))
    for i, (left, right) in enumerate(zip(a, b, strict=False)):
        if left != right:
            return tiers - i
    return tiers - min(len(a), len(b))


def diversity(localities: Iterable[Locality]) -> int:
    """The sum over all pairs."""
    return sum(distance(a, b) for a, b in combinations(localities, 2))


def best_target(members: Sequence[NodeInfo], nodes: Iterable[NodeInfo]) -> NodeInfo | None:
    """Where to put one more replica: the live node that adds most diversity to those that stay."""
    held = {m.node_id for m in members}
    candidates = [n for n in nodes if n.state is NodeState.LIVE and n.node_id not in held]
    staying = [m.locality for m in members if m.state not in _MUST_GO]
    assert all(n.node_id not in held for n in candidates), "one replica on a node"
    return min(
        candidates,
        key=lambda n: (-sum(distance(n.locality, s) for s in staying), n.replicas, n.load, n.node_id),
        default=None,
    )


def worst_member(members: Sequence[NodeInfo], *, keep: NodeId) -> NodeInfo | None:
    """Which replica to lose: one that must go, else the one whose loss costs least diversity. Never `keep`."""
    removable = [m for m in members if m.node_id != keep]

    def cost(member: NodeInfo) -> tuple[bool, int, int, float, int]:
        left = diversity(m.locality for m in members if m is not member)
        return member.state not in _MUST_GO, -left, -member.replicas, -member.load, -member.node_id

    return min(removable, key=cost, default=None)


def decide(
    replicas: Sequence[NodeId], nodes: Mapping[NodeId, NodeInfo], *, factor: int, holder: NodeId
) -> Action | None:
    """The next step towards `factor` replicas in the right places; None when all is well or nothing can be done."""
    assert factor > 0, "a range is wanted somewhere"
    members = [nodes.get(n) or NodeInfo(n, NodeState.UNKNOWN) for n in replicas]
    assert len({m.node_id for m in members}) == len(members), "a node is named once"
    staying = [m for m in members if m.state not in _MUST_GO]
    if len(staying) < factor:
        target = best_target(members, nodes.values())
        if target is not None:
            assert target.node_id not in replicas, "one replica on a node"
            return Add(target.node_id)
    if len(members) > factor:
        return _remove(members, holder=holder)
    if len(members) == factor and all(m.state is NodeState.LIVE for m in members):
        return _even_out(members, nodes, keep=holder)
    return None


def _remove(members: Sequence[NodeInfo], *, holder: NodeId) -> Remove | None:
    """The replica to remove of too many: one that must go; a good one only when all nodes can be seen and none must go."""
    doomed = [m for m in members if m.state in _MUST_GO]
    if not doomed and any(m.state is NodeState.UNKNOWN for m in members):
        return None
    if doomed and all(m.node_id == holder for m in doomed):
        return None  # its lease moves first
    worst = worst_member(members, keep=holder)
    assert worst is None or worst.node_id != holder, "the leaseholder's replica is not removed"
    return Remove(worst.node_id) if worst is not None else None


def _even_out(members: Sequence[NodeInfo], nodes: Mapping[NodeId, NodeInfo], *, keep: NodeId) -> Move | None:
    """Move a replica from a full node to an emptier one, if diversity does not suffer."""
    held = {m.node_id for m in members}
    now = diversity(m.locality for m in members)
    best: tuple[tuple[int, int, int, int], Move] | None = None
    for node in nodes.values():
        if node.state is not NodeState.LIVE or node.node_id in held:
            continue
        for member in members:
            if member.node_id == keep:
                continue
            after = diversity(node.locality if m is member else m.locality for m in members)
            gap = member.replicas - node.replicas
            if after > now or (after == now and uneven(member.replicas, node.replicas)):
                rank = (-after, -gap, node.node_id, member.node_id)
                if best is None or rank < best[0]:
                    best = rank, Move(member.node_id, node.node_id)
    assert best is None or best[1].node != keep, "the leaseholder's replica is not moved"
    assert best is None or best[1].to not in held, "one replica on a node"
    return best[1] if best else None


def uneven(more: int, less: int) -> bool:
    """Whether two counts differ so much that moving one thing pays."""
    return more - less >= max(UNEVEN_MIN, more * UNEVEN_PERCENT // 100)


def lease_target(
    replicas: Sequence[NodeId], nodes: Mapping[NodeId, NodeInfo], *, holder: NodeId, balance: bool = True
) -> NodeId | None:
    """The node that should hold the lease instead of `holder`; None when it is well where it is, or no other node can take it."""
    able = [nodes[n] for n in replicas if n != holder and n in nodes and nodes[n].state is NodeState.LIVE]
    if not able:
        return None
    target = min(able, key=lambda n: (n.leases, n.load, n.node_id))
    assert target.node_id != holder, "a lease moves to another node"
    assert target.node_id in replicas, "only a node with a replica holds the lease"
    own = nodes.get(holder)
    if own is not None and own.state in _GIVES_LEASES_UP:
        return target.node_id
    if balance and own is not None and own.state is NodeState.LIVE and uneven(own.leases, target.leases):
        return target.node_id
    return None


_MUST_GO = frozenset({NodeState.DEAD, NodeState.LEAVING})
_GIVES_LEASES_UP = frozenset({NodeState.DRAINING, NodeState.LEAVING})
assert NodeState.LIVE not in _MUST_GO | _GIVES_LEASES_UP, "a live node keeps its replicas and its leases"
assert NodeState.UNKNOWN not in _MUST_GO, "a node that was not heard of is not declared dead"
