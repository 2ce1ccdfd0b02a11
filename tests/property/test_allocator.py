"""The allocator from any start: it ends, and where it ends all is well."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.replica.allocator import (
    Add,
    Move,
    NodeInfo,
    NodeState,
    Remove,
    decide,
    diversity,
    lease_target,
)
from slackwater.server.queues.replicate import after

STEPS_MAX = 60


@st.composite
def clusters(draw: st.DrawFn) -> tuple[dict[int, NodeInfo], tuple[int, ...], int, int]:
    count = draw(st.integers(1, 9))
    states = st.sampled_from([NodeState.LIVE] * 4 + list(NodeState))
    infos = {}
    for node in range(1, count + 1):
        locality = (("region", draw(st.sampled_from("ab"))), ("zone", draw(st.sampled_from("xyz"))))
        infos[node] = NodeInfo(
            node,
            draw(states),
            locality if draw(st.booleans()) else (),
            replicas=draw(st.integers(0, 20)),
            leases=draw(st.integers(0, 20)),
            load=float(draw(st.integers(0, 3))),
        )
    replicas = tuple(draw(st.lists(st.integers(1, count), min_size=1, max_size=count, unique=True)))
    holder = draw(st.sampled_from(replicas))
    infos[holder] = infos[holder]._replace(state=NodeState.LIVE)
    return infos, replicas, holder, draw(st.integers(1, 5))


def count(nodes: dict[int, NodeInfo], node: int, by: int) -> None:
    nodes[node] = nodes[node]._replace(replicas=nodes[node].replicas + by)


@settings(max_examples=400)
@given(clusters())
def test_it_settles_and_never_gives_up_what_it_should_not(start) -> None:  # type: ignore[no-untyped-def]
    nodes, replicas, holder, factor = start
    gone = {NodeState.DEAD, NodeState.LEAVING}
    for _ in range(STEPS_MAX):
        action = decide(replicas, nodes, factor=factor, holder=holder)
        if action is None:
            break
        staying = [n for n in replicas if nodes[n].state not in gone]
        match action:
            case Add(node):
                assert node not in replicas
                assert nodes[node].state is NodeState.LIVE
                assert len(staying) < factor
                count(nodes, node, 1)
            case Remove(node):
                assert node != holder
                assert len(replicas) > factor
                # A good one goes only when there are more good ones than wanted.
                assert nodes[node].state in gone or len(staying) > factor
                assert nodes[node].state is not NodeState.UNKNOWN
                count(nodes, node, -1)
            case Move(node, to):
                assert node != holder
                assert nodes[to].state is NodeState.LIVE
                before = diversity(nodes[n].locality for n in replicas)
                assert diversity(nodes[n].locality for n in after(replicas, action)) >= before
                count(nodes, node, -1)
                count(nodes, to, 1)
        replicas = after(replicas, action)
        assert holder in replicas
        assert len(set(replicas)) == len(replicas)
    else:
        raise AssertionError("the allocator never rests")
    live = [n for n in nodes.values() if n.state is NodeState.LIVE]
    good = [n for n in replicas if nodes[n].state not in gone]
    spare = [n for n in live if n.node_id not in replicas]
    assert len(good) >= factor or not spare, "there was room for one more"


@given(clusters())
def test_leases_go_only_to_live_replicas(start) -> None:  # type: ignore[no-untyped-def]
    nodes, replicas, holder, _ = start
    for state in NodeState:
        nodes[holder] = nodes[holder]._replace(state=state)
        target = lease_target(replicas, nodes, holder=holder)
        if target is not None:
            assert target in replicas
            assert target != holder
            assert nodes[target].state is NodeState.LIVE
            if state is NodeState.LIVE:
                assert nodes[target].leases + 1 < nodes[holder].leases
