"""Which nodes hold a range: examples, one per rule."""

from __future__ import annotations

from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.model.descriptors import Liveness
from slackwater.replica.allocator import (
    Add,
    Move,
    NodeInfo,
    NodeState,
    Remove,
    decide,
    distance,
    diversity,
    lease_target,
    node_state,
    uneven,
)

LIVE, UNKNOWN, DEAD = NodeState.LIVE, NodeState.UNKNOWN, NodeState.DEAD
NOW = add_seconds(Timestamp(0), 1000)


def zone(region: str, name: str) -> tuple[tuple[str, str], ...]:
    return ("region", region), ("zone", name)


def nodes(*infos: NodeInfo) -> dict[int, NodeInfo]:
    return {i.node_id: i for i in infos}


def test_states_of_nodes() -> None:
    def state(age_s: float, *, draining: bool = False, leaving: bool = False) -> NodeState:
        record = Liveness(1, 1, add_seconds(NOW, -age_s), draining, leaving)
        return node_state(record, seen_at=NOW, dead_after_s=300)

    assert node_state(None, seen_at=NOW, dead_after_s=300) is UNKNOWN
    assert state(-1) is LIVE
    assert state(-1, draining=True) is NodeState.DRAINING
    assert state(-1, draining=True, leaving=True) is NodeState.LEAVING
    assert state(1) is UNKNOWN
    assert state(300) is UNKNOWN
    assert state(301) is DEAD
    assert state(1, leaving=True) is NodeState.LEAVING
    assert state(301, leaving=True) is DEAD


def test_distance_is_how_early_localities_part() -> None:
    assert distance(zone("a", "1"), zone("b", "1")) == 2
    assert distance(zone("a", "1"), zone("a", "2")) == 1
    assert distance(zone("a", "1"), zone("a", "1")) == 0
    assert distance((), ()) == 0
    assert distance(zone("a", "1"), ()) == 2
    assert diversity([zone("a", "1"), zone("a", "2"), zone("b", "1")]) == 5


def test_a_missing_replica_goes_where_it_adds_most() -> None:
    cluster = nodes(
        NodeInfo(1, LIVE, zone("a", "1")),
        NodeInfo(2, LIVE, zone("a", "1")),
        NodeInfo(3, LIVE, zone("a", "2"), replicas=50),
        NodeInfo(4, LIVE, zone("b", "1"), replicas=99),
        NodeInfo(5, NodeState.DRAINING, zone("c", "1")),
    )
    assert decide((1,), cluster, factor=3, holder=1) == Add(4)
    assert decide((1, 4), cluster, factor=3, holder=1) == Add(3)


def test_unknown_is_neither_replaced_nor_chosen() -> None:
    cluster = nodes(NodeInfo(1, LIVE), NodeInfo(2, LIVE), NodeInfo(3, UNKNOWN), NodeInfo(4, LIVE))
    assert decide((1, 2, 3), cluster, factor=3, holder=1) is None
    assert decide((1, 2, 9), cluster, factor=3, holder=1) is None, "not even one that nobody has heard of"
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=1) is None, "too many, but wait for the unknown one"
    only = nodes(NodeInfo(1, LIVE), NodeInfo(3, UNKNOWN))
    assert decide((1,), only, factor=3, holder=1) is None


def test_a_dead_one_is_replaced_before_it_is_removed() -> None:
    cluster = nodes(NodeInfo(1, LIVE), NodeInfo(2, LIVE), NodeInfo(3, DEAD), NodeInfo(4, LIVE))
    assert decide((1, 2, 3), cluster, factor=3, holder=1) == Add(4)
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=1) == Remove(3)
    del cluster[4]
    assert decide((1, 2, 3), cluster, factor=3, holder=1) is None, "no substitute: better a dead one than a hole"


def test_the_leaseholder_is_never_removed() -> None:
    cluster = nodes(NodeInfo(1, NodeState.LEAVING), *(NodeInfo(n, LIVE) for n in (2, 3, 4)))
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=1) is None, "its lease moves first"
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=2) == Remove(1)
    assert lease_target((1, 2, 3, 4), cluster, holder=1) == 2


def test_one_too_many_goes_where_it_is_missed_least() -> None:
    cluster = nodes(
        NodeInfo(1, LIVE, zone("a", "1")),
        NodeInfo(2, LIVE, zone("a", "1"), replicas=3),
        NodeInfo(3, LIVE, zone("a", "2")),
        NodeInfo(4, LIVE, zone("b", "1")),
    )
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=1) == Remove(2)
    assert decide((1, 2, 3, 4), cluster, factor=3, holder=2) == Remove(1)


def test_replicas_are_evened_out_where_nothing_is_lost() -> None:
    flat = nodes(*(NodeInfo(n, LIVE, (), replicas=r) for n, r in ((1, 9), (2, 9), (3, 8), (4, 1))))
    assert decide((1, 2, 3), flat, factor=3, holder=1) == Move(2, 4)
    assert decide((1, 2, 3), nodes(*(i._replace(replicas=5) for i in flat.values())), factor=3, holder=1) is None
    zones = nodes(
        NodeInfo(1, LIVE, zone("a", "1"), replicas=9),
        NodeInfo(2, LIVE, zone("a", "2"), replicas=9),
        NodeInfo(3, LIVE, zone("a", "1"), replicas=0),
    )
    assert decide((1, 2), zones, factor=2, holder=1) is None, "3 would bring both into one zone"
    assert decide((1, 3), zones, factor=2, holder=1) == Move(3, 2), "better apart, whatever the counts"


def test_leases_are_evened_out() -> None:
    cluster = nodes(NodeInfo(1, LIVE, leases=5), NodeInfo(2, LIVE, leases=4), NodeInfo(3, LIVE, leases=3))
    assert lease_target((1, 2, 3), cluster, holder=1) == 3
    assert lease_target((1, 2), cluster, holder=1) is None
    assert lease_target((1, 2, 3), cluster, holder=1, balance=False) is None
    assert lease_target((1, 9), cluster, holder=1) is None
    assert uneven(40, 38)
    assert not uneven(60, 58)
