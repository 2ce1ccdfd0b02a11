"""A request that hangs in one range holds back that range alone: every other one goes on closing."""

from __future__ import annotations

import asyncio

from slackwater.codec.layout import kv
from slackwater.protocol.closedts.frontier import HoldKind
from tests.unit.server.cluster import Cluster


class Gate:
    """The log of one node, in which the entries of one range wait until they are let through."""

    def __init__(self, log, range_id):
        self._append = log.append
        self._range_id = range_id
        self.waiting = asyncio.Event()
        self.open = asyncio.Event()
        log.append = self.append

    async def append(self, range_id, payloads):
        if range_id == self._range_id:
            self.waiting.set()
            await self.open.wait()
        return await self._append(range_id, payloads)


def test_a_hanging_request_holds_back_only_its_own_range():
    async def test():
        async with Cluster(2, closed_timestamp__target_duration=0.05) as cluster:
            leader, follower = cluster.nodes
            await cluster.fill(30)
            for at in (b"k000010", b"k000020"):
                await leader.admin.split(kv(at))
            for at in (b"k000000", b"k000010", b"k000020"):
                await leader.admin.change_replicas(kv(at), [n.node_id for n in cluster.nodes])
                await leader.admin.transfer_lease(kv(at), leader.node_id)
            ids = [(await leader.sender.range_of(kv(at))).range_id for at in (b"k000000", b"k000010", b"k000020")]
            busy, slow, idle = ids
            here = {range_id: leader.store.replicas[range_id] for range_id in ids}
            await cluster.until(lambda: all(range_id in follower.store.replicas for range_id in ids))
            there = {range_id: follower.store.replicas[range_id] for range_id in ids}
            await cluster.until(lambda: all(replica.closing.closed() for replica in there.values()))

            gate = Gate(here[slow].context.log, slow)
            began = leader.clock.now()
            hanging = asyncio.ensure_future(leader.kv.put(kv(b"k000015"), b"slow"))
            await gate.waiting.wait()
            # On the follower both others pass the present again and again: one with writes, one without.
            for _ in range(5):
                now = leader.clock.now()
                await leader.kv.put(kv(b"k000005"), b"busy")
                await cluster.until(lambda now=now: there[busy].closing.closed() > now)
                await cluster.until(lambda now=now: there[idle].closing.closed() > now)
            wrote = here[slow].pipeline.buffer.assigned_closed
            assert there[slow].closing.closed() < now, "its own range waits: the write may still land below"
            assert there[slow].closing.closed() <= max(wrote, began)
            held = here[slow].closing.explain().holding()
            assert held.kind is HoldKind.REQUEST
            assert held.since > 0
            assert here[busy].closing.explain().holding().kind is HoldKind.NOTHING
            assert here[idle].closing.explain().holding().kind is HoldKind.NOTHING

            gate.open.set()
            await hanging
            now = leader.clock.now()
            await cluster.until(lambda: there[slow].closing.closed() > now)

    asyncio.run(test())
