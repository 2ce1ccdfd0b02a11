"""`slackwater frontier` and what feeds it: every replica of a span over RPC, with what holds it back."""

from __future__ import annotations

import asyncio
import contextlib
import io

import msgspec
import pytest

from slackwater.cli import frontier as frontier_command
from slackwater.cli.frontier import Report, _row
from slackwater.clock.timestamp import MIN
from slackwater.codec.layout import kv
from slackwater.model.descriptors import LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import FRONTIER, Holding, HoldKind, ReplicaFrontier, ReplicaFrontiersRequest
from slackwater.protocol.node.services import STATUS, StatusRequest
from tests.unit.closedts.transport_world import at
from tests.unit.server.cluster import Cluster


async def frontiers(cluster, node, **request):
    reply = await cluster.nodes[0].dialer.call(node.address, FRONTIER, ReplicaFrontiersRequest(**request), timeout=5.0)
    return reply.replicas


def test_every_replica_tells_how_far_it_is_and_what_holds_it():
    async def test():
        async with Cluster(3, closed_timestamp__target_duration=0.1, txn__buffer_bytes_max=0) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await cluster.fill(10)
            _, right = await leader.admin.split(kv(b"k000005"))
            await leader.admin.change_replicas(kv(b"k000005"), [n.node_id for n in cluster.nodes])
            await leader.admin.transfer_lease(kv(b"k000005"), leader.node_id)
            span = {"start": kv(b"k000005"), "end": kv(b"k000006")}
            now = leader.clock.now()

            async def closed_everywhere():
                found = [r for n in cluster.nodes for r in await frontiers(cluster, n, **span)]
                return found if len(found) == 3 and all(r.closed > now for r in found) else None

            async with asyncio.timeout(20):
                while (found := await closed_everywhere()) is None:
                    await asyncio.sleep(0.02)
            assert {r.range_id for r in found} == {right.range_id}
            assert [r.leads for r in found] == [True, False, False]
            # What `slackwater ranges` shows is what is served, side transport included.
            status = await leader.dialer.call(follower.address, STATUS, StatusRequest([right.range_id]), timeout=5.0)
            assert status.replicas[0].closed > now
            txn = leader.kv.begin()
            await txn.put(kv(b"k000005"), b"unfinished")
            async with asyncio.timeout(20):
                while True:
                    (seen,) = await frontiers(cluster, follower, **span)
                    if seen.held_by is not None:
                        break
                    await asyncio.sleep(0.02)
            assert seen.holding().kind is HoldKind.TRANSACTION
            assert seen.holding().since == seen.held_by.ts
            assert seen.resolved < seen.held_by.ts
            row = _row(seen, leader.clock.now())
            assert (row.kind, row.leads, row.node) == ("transaction", False, follower.node_id)
            await txn.rollback()
            # All of them, page by page.
            everything = await frontiers(cluster, leader)
            ids = [r.range_id for r in everything]
            assert ids == sorted(leader.store.replicas)
            assert [r.range_id for r in await frontiers(cluster, leader, beyond=ids[0])] == ids[1:]

    asyncio.run(test())


NOW = at(100)
FINE = ReplicaFrontier(
    range_id=RangeId(7),
    node_id=NodeId(1),
    leaseholder=NodeId(1),
    applied=LeaseAppliedIndex(11),
    closed=at(97),
    resolved=at(97),
    target=at(97.2),
    start=kv(b"a"),
    end=kv(b"b"),
    policy="lag",
)


@pytest.mark.parametrize(
    ("changes", "held"),
    [
        ({}, Holding(HoldKind.NOTHING)),
        ({"refusal": "proposals in flight", "refused_since": at(90)}, Holding(HoldKind.NOTHING)),
        (
            {"refusal": "proposals in flight", "refused_since": at(90), "closed": at(89), "in_flight": 3},
            Holding(HoldKind.REQUEST, "proposals in flight (3 commands)", at(90)),
        ),
        ({"refusal": "policy off", "refused_since": at(1)}, Holding(HoldKind.POLICY, "policy off", at(1))),
        ({"refusal": "no valid lease", "refused_since": at(1)}, Holding(HoldKind.LEASE, "no valid lease", at(1))),
        ({"frozen": True}, Holding(HoldKind.MERGE, "the range is frozen by a merge")),
        (
            {"leaseholder": NodeId(2), "leaseholder_ended": at(80)},
            Holding(HoldKind.NODE, "n2, which holds the lease, has not been alive", at(80)),
        ),
        ({"failure": "it differs"}, Holding(HoldKind.REPLICA, "this replica is quarantined: it differs")),
    ],
)
def test_what_holds_a_replica_back(changes, held):
    assert msgspec.structs.replace(FINE, **changes).holding() == held


def test_the_table_for_people():
    late = msgspec.structs.replace(
        FINE, node_id=NodeId(2), leaseholder=NodeId(1), closed=MIN, resolved=MIN, leaseholder_ended=at(80)
    )
    rows = [_row(FINE, NOW), _row(late, NOW)]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        frontier_command._print(Report("now", rows, [3]))
    head, first, second = out.getvalue().splitlines()
    assert head.split()[:5] == ["range", "replica", "role", "closed", "resolved"]
    assert first.split()[:6] == ["r7", "n1", "leads", "3.0", "s", "ago"]
    assert "node: n1, which holds the lease, has not been alive" in second
    assert second.split()[:3] == ["n2", "follows", "never"]
    assert "20.0 s" in second
    assert err.getvalue() == "n3 did not answer: its replicas are not shown\n"
