"""What `explain frontier` says, cause by cause."""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import kv
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Intent
from slackwater.protocol.closedts.frontier import ReplicaFrontier
from tests.unit.closedts.transport_world import at

NOW = at(100)
FINE = ReplicaFrontier(
    range_id=RangeId(7),
    node_id=NodeId(2),
    leaseholder=NodeId(1),
    applied=LeaseAppliedIndex(11),
    closed=at(97),
    resolved=at(97),
)


def but(**changes: object) -> ReplicaFrontier:
    return msgspec.structs.replace(FINE, **changes)


def test_nothing_unusual() -> None:
    assert FINE.status(NOW) == "r7 n2 follows closed 3.0 s ago, resolved 3.0 s ago"
    assert but(leaseholder=NodeId(2)).status(NOW) == "r7 n2 leads   closed 3.0 s ago, resolved 3.0 s ago"


def test_an_intent_comes_first() -> None:
    intent = Intent(kv(b"k4"), bytes.fromhex("5f3a00ff") * 4, b"k4", at(50), 0, at(60))
    line = but(resolved=at(59.9), held_by=intent, refusal="merge in progress").status(NOW)
    assert line.endswith(
        "resolved 40.1 s ago; transaction 5f3a00ff has had an intent on /kv/b'k4\\x00\\x01' for 40.0 s"
    )


def test_an_index_that_is_not_applied() -> None:
    line = but(closed=MIN, resolved=MIN, offered_ts=at(97), offered_lai=LeaseAppliedIndex(12)).status(NOW)
    assert line == (
        "r7 n2 follows closed never, resolved never; the side transport offers 3.0 s ago at index 12, applied 11"
    )


def test_a_refusal_is_the_leaseholders() -> None:
    refused = but(refusal="proposals in flight", refused_since=at(40))
    assert refused.reason(NOW) == "", "what a follower's own sender says about a range it does not lead means nothing"
    assert msgspec.structs.replace(refused, leaseholder=NodeId(2)).reason(NOW) == "proposals in flight for 60.0 s"


def test_nobody_closes_without_a_lease() -> None:
    assert but(leaseholder=NodeId(0)).reason(NOW) == "no node holds the lease, so nothing is closed"
