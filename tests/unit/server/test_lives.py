"""What a node and its stores remember, and what they must not rely on: restarts, drains, neighbours that went on."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from slackwater.codec.layout import META, kv, system
from slackwater.errors import AmbiguousResult, ConnectionLost, NotLeaseholder, StorageError, UnavailableError
from slackwater.model.descriptors import Generation, RangeDescriptor
from slackwater.protocol.range import requests
from slackwater.replica.apply import apply_packet
from slackwater.replica.evaluation import Evaluation
from slackwater.runtime import RealRuntime, run
from slackwater.runtime.seam import Family
from slackwater.server.identity import LIVES_KEY
from slackwater.server.node import Node
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryDisk
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.model.ids import Position, RangeId
    from slackwater.replica.state import RangeState
    from slackwater.server.queues.context import Visit


def test_a_lease_of_a_former_life_is_not_used() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            held = node.store.replicas[1].state.lease
            await cluster.kill(node)
            again = await cluster.add(node.engine, 0)  # type: ignore[arg-type]
            replica = again.store.replicas[1]
            assert replica.state.lease == held
            assert held.expiration > again.clock.now(), "by the letter it is still valid"
            with pytest.raises(NotLeaseholder, match="former life"):
                replica.leasing.check(again.clock.now())
            with pytest.raises(NotLeaseholder, match="has not ended yet"):
                await replica.leasing.hold()
            await cluster.until(lambda: again.liveness.own() is not None)
            assert replica.state.lease.sequence > held.sequence
            assert replica.state.lease.start > held.expiration
            assert len(await cluster.keys()) == 10

    run(main())


def test_a_lease_is_handed_to_the_life_that_its_new_holder_lives_now() -> None:
    """Found by seed 767297928: a drain gave range 1 to a node that had just restarted, in the life of its old record.

    No node could use that lease until it had ended, and no liveness record was renewed meanwhile.
    """

    async def main() -> None:
        async with Cluster(2, lease__duration=60.0) as cluster:
            one, two = cluster.nodes
            for key in (META, kv(b"")):
                await one.admin.relocate(key, (one.node_id, two.node_id))
            old = one.liveness.get(two.node_id)
            await cluster.kill(two)
            again = await cluster.add(two.engine, 1)  # type: ignore[arg-type]
            life, held = again.store.context.life, one.store.holding(kv(b""))
            assert old is not None
            assert life != old.life
            one.liveness.get = lambda _node: old  # type: ignore[method-assign]
            with pytest.raises(UnavailableError, match=r"started again|not known to be live"):
                held.leasing.transfer(again.node_id, served=one.clock.now(), life=life)
            del one.liveness.get
            await one.admin.transfer_lease(META, again.node_id)
            await cluster.until(lambda: again.store.replicas[1].state.lease.holder == again.node_id)
            assert life == again.store.replicas[1].state.lease.life
            again.store.replicas[1].leasing.check(again.clock.now())

    run(main())


def test_no_queue_writes_behind_the_last_flush() -> None:
    """Found by seed 678062198: the note of a merged range was dropped while the store was flushed for the last time."""

    class Late:
        name = "trim"
        begun, may_write = asyncio.Event(), asyncio.Event()

        async def process(self, visit: Visit) -> bool:
            self.begun.set()
            await self.may_write.wait()
            batch = WriteBatch()
            batch.put(Family.LOCAL, b"late", b"")
            visit.context.store.context.engine.write(batch)
            return False

    async def main() -> None:
        async with Cluster(1, queue__interval=0.05) as cluster:
            node = cluster.nodes[0]
            late, engine = Late(), node.engine
            node.queues.queues[:] = [late]
            await asyncio.wait_for(late.begun.wait(), 20)
            flush = engine.flush

            async def slowly() -> None:
                late.may_write.set()
                for _ in range(5):
                    await asyncio.sleep(0)
                await flush()

            engine.flush = slowly  # type: ignore[method-assign]
            await node.node.stop()
            assert engine.get(Family.LOCAL, b"late") is None

    run(main())


@pytest.mark.parametrize("answered", [True, False])
def test_a_node_that_is_asked_to_stop_while_it_begins_writes_nothing_more(answered: bool) -> None:
    """Found by seed 155035588: the log answered during the last flush, and the node went on to write down its life.

    And by 547618264: where the log did not answer, a node that was asked to stop ended with an error.
    """

    async def main() -> None:
        async with Cluster(1) as cluster:
            await cluster.kill(cluster.nodes[0])
            old = cluster.nodes[0].node
            engine, log = old.engine, cluster.log.handle()
            asked, answer, written = asyncio.Event(), asyncio.Event(), engine.get(Family.LOCAL, LIVES_KEY)
            head, flush = log.head, engine.flush

            async def late(range_id: RangeId) -> Position:
                asked.set()
                await answer.wait()
                return await head(range_id)

            async def slowly() -> None:
                if answered:
                    answer.set()
                    await beginning
                await flush()

            log.head, engine.flush = late, slowly  # type: ignore[method-assign]
            runtime = RealRuntime(disk=MemoryDisk(), net=cluster.net)
            scope = runtime.scope("again")
            node = Node(
                runtime=runtime,
                scope=scope,
                engine=engine,
                log=log,
                address="n1:7400",
                settings=cluster.settings,
                join=(),
            )
            beginning = asyncio.ensure_future(node.start())
            await asyncio.wait_for(asked.wait(), 20)
            await node.stop()
            await asyncio.wait([beginning], timeout=20)
            assert beginning.cancelled() or beginning.exception() is None
            assert node.member is None
            assert engine.get(Family.LOCAL, LIVES_KEY) == written
            with pytest.raises(ConnectionLost):
                await cluster.net.connect("n1:7400", lambda _: None)  # type: ignore[arg-type,return-value]

    run(main())


def test_a_lease_that_may_be_given_away_is_not_used_while_the_node_stops() -> None:
    """The log is slow: the replica ends before it hears what became of its transfer, and must not believe in its lease."""

    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            replica = node.store.holding(kv(b"a"))
            trigger = replica.leasing.transfer(node.node_id, served=node.clock.now())
            waiter = replica.propose(Evaluation(trigger=trigger))
            stopping = asyncio.ensure_future(replica.stop())
            batch = requests.Batch(requests.Header(replica.state.descriptor.range_id), [requests.Get(kv(b"k000001"))])
            await asyncio.sleep(0)
            with pytest.raises(UnavailableError, match="stopping"):
                await replica.executor.execute(batch)
            await stopping
            with pytest.raises(AmbiguousResult):
                await waiter.wait()
            with pytest.raises(NotLeaseholder, match="being transferred"):
                replica.leasing.check(node.clock.now())

    run(main())


def test_after_a_graceful_stop_nobody_has_to_wait() -> None:
    async def main() -> None:
        # Leases that last for a minute: without a proper goodbye this test would time out.
        async with Cluster(1, lease__duration=60, liveness__duration=60) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            await node.node.stop()
            again = await cluster.add(node.engine, 0)  # type: ignore[arg-type]
            await cluster.until(lambda: again.liveness.own() is not None)
            assert len(await cluster.keys()) == 10

    run(main())


def test_one_snapshot_at_a_time_until_it_is_durable() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            engine, flushing, go_on = second.engine, asyncio.Event(), asyncio.Event()
            flush = engine.flush

            async def slowly() -> None:
                flushing.set()
                await go_on.wait()
                await flush()

            engine.flush = slowly  # type: ignore[method-assign]
            here = first.store.replicas[3].state.descriptor
            await first.admin.ask(requests.ChangeReplicas((1, 2), here.generation), at=here.start)
            one = asyncio.ensure_future(second.fetch(3, 1))
            await flushing.wait()
            with pytest.raises(StorageError, match="being installed already"):
                await second.fetch(3, 1)
            go_on.set()
            await one
            with pytest.raises(StorageError, match="as new as the snapshot"):
                await second.fetch(3, 1)
            replica = second.store.replicas[3]
            replica.quarantine("for a test")
            await cluster.until(lambda: second.store.replicas.get(3) not in (None, replica))
            assert len(await cluster.keys()) == 10

    run(main())


@pytest.mark.parametrize("cut", [b"k000007", b"k000005"], ids=["inside what was absorbed", "where the two met"])
def test_the_remains_of_an_absorbed_range_do_not_keep_a_snapshot_out(cut: bytes, monkeypatch: Any) -> None:
    """The left side failed after the right side was frozen and before it was absorbed, on this node only."""

    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.change_replicas(kv(b""), [1, 2])
            left, right = await first.admin.split(kv(b"k000005"))
            await cluster.until(lambda: right.range_id in second.store.replicas)
            frozen = await first.admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
            await cluster.until(lambda: second.store.replicas[right.range_id].state.frozen is not None)
            with monkeypatch.context() as patch:
                patch.setattr(second.store, "_on_trimmed", None)
                second.store.replicas[left.range_id].quarantine("its log is gone")
            await first.admin.ask(requests.Merge(right, frozen), at=left.start)
            await first.admin.meta.publish((await first.admin.describe(left.start)).descriptor)
            _, third = await first.admin.split(kv(cut))
            await second.fetch(left.range_id, 1)
            await second.fetch(third.range_id, 1)
            assert right.range_id not in second.store.replicas
            for descriptor in (left, third):
                await first.admin.transfer_lease(descriptor.start, 2)
            assert second.store.replicas[third.range_id].state.lease.holder == 2
            assert len(await cluster.keys()) == 10

    run(main())


def test_a_frozen_range_that_is_still_awaited_is_not_replaced() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await cluster.fill(10)
            left, right = await node.admin.split(kv(b"k000005"))
            await node.admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
            replica = node.store.replicas[right.range_id]
            newer = RangeDescriptor(99, right.start, kv(b"k000007"), (1,), Generation(right.generation + 5))
            assert not node.store._left_behind(replica, newer), "the left side lives and will absorb it"
            node.store.replicas[left.range_id].quarantine("broken")
            assert node.store._left_behind(replica, newer)
            elsewhere = RangeDescriptor(99, kv(b"k000006"), kv(b"k000007"), (1,), Generation(right.generation + 5))
            assert not node.store._left_behind(replica, elsewhere), "it may have split since"

    run(main())


def test_what_a_store_saw_of_the_left_side() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            left, right = await node.admin.split(kv(b"k000005"))
            store = node.store

            def goes(before: RangeDescriptor, generation: int) -> RangeDescriptor:
                batch, after = WriteBatch(), msgspec.structs.replace(before, generation=Generation(generation))
                store.generation_changed(batch, before, after)
                node.engine.write(batch)
                return after

            first = left.generation
            assert store.left_of(right).descriptor == left
            assert store.left_of(right).seen == (0, 0)
            now = goes(left, first + 1)
            now = goes(now, first + 2)
            assert store.left_of(right).seen == (first, first + 2), "one after the other"
            now = msgspec.structs.replace(now, generation=Generation(first + 10))
            goes(now, first + 11)
            assert store.left_of(right).seen == (first + 10, first + 11), (
                "a snapshot came between: nothing is known of that"
            )

    run(main())


def test_a_bug_met_while_applying_stops_the_range_and_not_the_node(monkeypatch: Any) -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await cluster.fill(10)
            reported: list[dict[str, Any]] = []
            asyncio.get_running_loop().set_exception_handler(lambda _, context: reported.append(context))

            def broken(state: RangeState, *rest: Any) -> Any:
                if state.descriptor.range_id == 3:
                    raise KeyError("a bug")
                return apply_packet(state, *rest)

            monkeypatch.setattr("slackwater.replica.driver.replica.apply_packet", broken)
            with pytest.raises(AmbiguousResult):
                await node.kv.put(kv(b"a"), b"1", timeout=5)
            assert set(node.store.quarantined) == {3}
            assert "KeyError" in node.store.quarantined[3]
            assert isinstance(reported[0]["exception"], KeyError), "the trace is kept"
            assert node.scope.failure is None
            await node.system.put(system("still here"), b"1")

    run(main())
