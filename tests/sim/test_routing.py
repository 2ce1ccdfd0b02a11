"""Routing among two real nodes: leases that move, followers that answer, nodes that die."""

from __future__ import annotations

from slackwater.clock import add_seconds
from slackwater.model.ids import NodeId
from slackwater.protocol.range import requests
from slackwater.routing.nodes import NodeHealth, NodeView
from slackwater.routing.sender import NO_RANGE
from tests.sim.cluster import Cluster, play

N1, N2 = NodeId(1), NodeId(2)
QUEUES_OFF = {"queue.interval": 0.0}
"""The stories place replicas by hand; the queues would be quicker."""


def test_a_lease_that_moved_is_found_by_its_hint_and_remembered() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.transfer(b"a", N2)
        assert await c.kv.get(a) == b"1"
        range_id = (await c.sender.range_of(a)).range_id
        assert c.sender.cache.leaseholder(range_id) == N2
        del c.tap.sent[:]
        await c.kv.put(a, b"2")
        assert [node for node, _ in c.tap.sent] == [N2]
        await c.transfer(b"a", N1)
        await c.kv.put(a, b"3")
        assert c.sender.cache.leaseholder(range_id) == N1

    play(story, settings=QUEUES_OFF)


def test_a_follower_answers_old_reads_and_is_not_taken_for_the_leaseholder() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.transfer(b"a", N2)
        await c.kv.put(a, b"2")
        wrote = c.clock.now()
        range_id = (await c.sender.range_of(a)).range_id
        assert c.sender.cache.leaseholder(range_id) == N2
        for _ in range(10):
            await c.kv.put(c.key(b"other"), b"x")  # what closes timestamps on a busy range
            await c.settle(1)
        by: set[tuple[int, bool]] = set()
        for _ in range(30):
            header = requests.Header(NO_RANGE, ts=wrote, follower_ok=True)
            answer = await c.sender.send([requests.Get(a)], header)
            assert answer.results == [requests.Value(b"2", answer.results[0].ts)]
            by.add((answer.served_by, answer.by_follower))
            assert c.sender.cache.leaseholder(range_id) == N2, "pitfall 22"
        assert (N1, True) in by

    play(story, settings={**QUEUES_OFF, "closed_timestamp.target_duration": 1.0})


def test_a_follower_that_cannot_serve_sends_the_read_to_the_leaseholder() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.transfer(b"a", N2)
        await c.kv.put(a, b"2")
        del c.tap.sent[:]
        for _ in range(10):
            recent = c.clock.now()
            assert await c.kv.get(a, ts=recent, follower_ok=True) == b"2"
        assert len(c.tap.sent) <= 20, "one refusal, then the leaseholder"

    world = play(story, settings=QUEUES_OFF)
    assert world.probes["routing.follower_refused"] >= 1


def test_draining_and_dead_nodes_are_asked_last() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.settle(8)
        await c.kv.put(a, b"2")  # carries what is closed by now
        old = add_seconds(c.clock.now(), -4)
        health = {N1: NodeHealth.LIVE, N2: NodeHealth.DRAINING}
        c.sender._view = lambda node: NodeView(health[node])
        del c.tap.sent[:]
        for _ in range(10):
            await c.sender.send([requests.Get(a)], requests.Header(NO_RANGE, ts=old, follower_ok=True))
        assert {node for node, _ in c.tap.sent} == {N1}, "pitfall 23"

    play(story, settings=QUEUES_OFF)


def test_when_the_leaseholder_dies_the_other_replica_takes_over() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.second_node(b"a")
        await c.transfer(b"a", N2)
        await c.kv.put(a, b"2")
        txn = c.kv.begin()
        await txn.increment(c.key(b"n"))
        c.world.machines["n2"].crash()
        assert await c.kv.get(a, timeout=60) == b"2"
        await c.kv.put(a, b"3", timeout=60)
        assert await txn.increment(c.key(b"n")) == 2
        await txn.commit()
        assert await c.kv.increment(c.key(b"n"), 0) == 2

    play(story, settings=QUEUES_OFF)


def test_a_range_that_is_made_while_its_store_stops_is_stopped_too() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"b"), b"1")
        store = c.node.store
        assert store is not None
        first = next(iter(store.replicas.values()))
        stop = first.stop

        async def slowly() -> None:
            await c.split(b"m", meta=False)  # one that has not been stopped yet still applies what comes
            await stop()

        first.stop = slowly  # type: ignore[method-assign]
        right = len(store.replicas) + 1
        await store.stop()
        assert len(store.replicas) == right
        assert all(replica.stopped for replica in store.replicas.values())

    play(story)
