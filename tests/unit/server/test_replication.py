"""What `init` waits for and `status` warns of: ranges with too few replicas, and spans that nobody who answers holds."""

from __future__ import annotations

from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import KEY_MAX, KEY_MIN, kv
from slackwater.model.descriptors import NO_LEASE, Generation, LeaseAppliedIndex, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.protocol.node.services import ReplicaStatus
from slackwater.server.replication import count_replicas, gaps, warnings
from slackwater.storage.stats import ZERO

MIDDLE = kv(b"m")


def replica(
    range_id: int, start: bytes, end: bytes, *, position: int = 1, wanted: int = 3, failure: str = ""
) -> ReplicaStatus:
    descriptor = RangeDescriptor(RangeId(range_id), start, end, (NodeId(1),), Generation(1))
    at = Position(position)
    return ReplicaStatus(
        descriptor,
        NO_LEASE,
        LeaseAppliedIndex(0),
        at,
        at,
        MIN,
        tuple(ZERO),
        frozen=False,
        failure=failure,
        wanted=wanted,
    )


def test_replicas_that_are_quarantined_do_not_count() -> None:
    well, bad = replica(1, KEY_MIN, KEY_MAX), replica(1, KEY_MIN, KEY_MAX, failure="damaged")
    (one,) = count_replicas([well, bad, well])
    assert (one.answered, one.wanted) == (2, 3)


def test_nothing_is_said_of_a_cluster_that_has_what_was_asked_for() -> None:
    counted = count_replicas([replica(1, KEY_MIN, KEY_MAX)] * 3)
    assert warnings(counted, nodes=3) == []


def test_the_only_replica_among_several_nodes_is_worth_a_word() -> None:
    counted = count_replicas([replica(1, KEY_MIN, MIDDLE)] * 3 + [replica(2, MIDDLE, KEY_MAX)])
    (said,) = warnings(counted, nodes=3)
    assert "r2 1 of 3" in said
    assert "do not stop the node" in said
    (alone,) = warnings(count_replicas([replica(1, KEY_MIN, KEY_MAX)]), nodes=1)
    assert "only 1 of the 3 nodes" in alone


def test_a_span_that_nobody_holds_is_named() -> None:
    left, right = replica(1, KEY_MIN, kv(b"a")), replica(3, MIDDLE, KEY_MAX)
    assert gaps(count_replicas([left, right])) == [(kv(b"a"), MIDDLE)]
    assert gaps(count_replicas([left])) == [(kv(b"a"), KEY_MAX)]
    assert any("no node that answers" in said for said in warnings(count_replicas([left]), nodes=3))


def test_the_bounds_are_those_of_the_most_advanced_replica() -> None:
    """One that has not split yet would hide the gap."""
    behind, ahead = replica(1, KEY_MIN, KEY_MAX, position=1), replica(1, KEY_MIN, MIDDLE, position=9)
    assert gaps(count_replicas([behind, ahead])) == [(MIDDLE, KEY_MAX)]
