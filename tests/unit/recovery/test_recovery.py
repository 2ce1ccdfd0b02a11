"""Recovery from surviving stores: what is chosen, at which timestamp, and what is refused."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from slackwater.codec.layout import KEY_MAX, KEY_MIN, kv
from slackwater.errors import StorageError, UsageError
from slackwater.log.contract import LogIdentity
from slackwater.runtime.seam import Family
from slackwater.server.identity import IDENTITY_KEY, STORE_FORMAT, read_identity
from slackwater.server.recovery import build, make_plan, survey
from slackwater.server.recovery.plan import system_lost
from slackwater.storage.memory import MemoryDisk, MemoryEngine
from slackwater.storage.reads import scan
from tests.unit.server.cluster import Cluster

NEW = LogIdentity("memory", "new", "1")


def stores(*engines):
    """Copies of what is durable in engines, surveyed."""
    found = []
    for number, engine in enumerate(engines, 1):
        disk = MemoryDisk()
        disk.add("store", engine)
        found.append(survey(f"/data/n{number}", disk.copied().engines()[0]))
    return found


async def flushed(*nodes):
    for node in nodes:
        await node.store.flush()


def recovered(plan, **options):
    engine = MemoryEngine()
    made = build(plan, engine, cluster_id="new", log=NEW, **options)
    rows = scan(engine, kv(b""), b"\x05", ts=plan.at)
    return made, dict(zip(rows.keys, rows.values, strict=True))


def test_one_store_gives_everything_it_has_closed_and_a_node_starts_on_it():
    async def main():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await cluster.fill(50)
            written = await cluster.keys()
            last = node.clock.now()
            await cluster.until(lambda: all(r.closing.closed() >= last for r in node.store.replicas.values()))
            await flushed(node)
            plan = make_plan(stores(node.engine))
            assert plan.at >= last
            assert not plan.lost
            made, rows = recovered(plan)
            assert made.identity.node_id == 2, "the old node's number is not used again"
            assert sorted(rows) == sorted(written)

    asyncio.run(main())


def test_an_undecided_transaction_holds_the_timestamp_below_itself():
    async def main():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await cluster.fill(5)
            before = node.clock.now()
            txn = node.kv.begin()
            await txn.put(kv(b"k000001"), b"half")
            await txn.put(kv(b"z"), b"half")
            await txn._flush(txn._waiting())  # as a transaction does whose buffer is full: its intents are laid
            last = node.clock.now()
            await cluster.until(lambda: all(r.closing.closed() >= last for r in node.store.replicas.values()))
            await flushed(node)
            plan = make_plan(stores(node.engine))
            assert plan.limited_by is not None
            assert plan.limited_by.held_by is not None, "the intent holds it, not what is closed"
            assert before - (1 << 30) <= plan.at < last
            _, rows = recovered(plan)
            assert kv(b"z") not in rows
            assert b"half" not in rows.values()
            await txn.rollback()

    asyncio.run(main())


def test_a_replica_from_before_a_split_serves_what_no_newer_one_has():
    async def main():
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await first.admin.change_replicas(KEY_MIN, [1, 2])
            await first.admin.change_replicas(kv(b""), [1, 2])
            for descriptor in await first.sender.ranges_of(KEY_MIN, KEY_MAX):
                if 2 not in descriptor.replicas:
                    await first.admin.change_replicas(descriptor.start, [1, 2])
            await cluster.fill(40)
            last = first.clock.now()
            await cluster.until(lambda: {1, 2, 3} <= set(second.store.replicas))
            await cluster.until(lambda: all(r.closing.closed() >= last for r in second.store.replicas.values()))
            await flushed(first, second)
            old = stores(second.engine)[0]
            await first.admin.split(kv(b"k000020"))
            await cluster.fill(41)
            await flushed(first)
            plan = make_plan([old])
            _, rows = recovered(plan)
            assert len(rows) == 40
            newer = stores(first.engine)[0]
            left = next(c for c in newer.copies if c.state.descriptor.end == kv(b"k000020"))
            both = make_plan([old, newer._replace(copies=[left])])
            sources = {piece.start: piece.copy for piece in both.pieces}
            assert sources[left.state.descriptor.start] is left, "it has applied more"
            assert sources[kv(b"k000020")] in old.copies, "only the replica from before the split has these keys"
            assert both.at == plan.at

    asyncio.run(main())


def test_keys_that_no_store_has_are_named_and_must_be_accepted():
    async def main():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await cluster.fill(40)
            await node.admin.split(kv(b"k000010"))
            await node.admin.split(kv(b"k000030"))
            last = node.clock.now()
            await cluster.until(lambda: all(r.closing.closed() >= last for r in node.store.replicas.values()))
            await flushed(node)
            whole = stores(node.engine)[0]
            lost = next(c for c in whole.copies if c.state.descriptor.start == kv(b"k000010"))
            less = whole._replace(copies=[c for c in whole.copies if c is not lost])
            plan = make_plan([less])
            assert [(p.start, p.end) for p in plan.lost] == [(kv(b"k000010"), kv(b"k000030"))]
            with pytest.raises(UsageError, match="--accept-loss"):
                recovered(plan)
            _, rows = recovered(plan, accept_loss=True)
            assert len(rows) == 20
            system = next(c for c in whole.copies if c.state.descriptor.range_id == 2)
            nothing = make_plan([whole._replace(copies=[c for c in whole.copies if c is not system])])
            assert system_lost(nothing)
            with pytest.raises(UsageError, match="own records"):
                recovered(nothing, accept_loss=True)
            damaged = whole._replace(copies=[c._replace(damage="rot") if c is lost else c for c in whole.copies])
            assert len(make_plan([damaged]).lost) == 1, "a damaged replica is not used"

    asyncio.run(main())


def test_stores_that_do_not_belong_together_are_refused_by_name():
    async def main():
        async with Cluster(1) as one, Cluster(1) as other:
            first, second = one.nodes[0], other.nodes[0]
            await flushed(first, second)
            (here,), (there,) = stores(first.engine), stores(second.engine)
            with pytest.raises(UsageError, match="both of node n1"):
                make_plan([here, here._replace(name="/data/copy")])
            with pytest.raises(UsageError, match="/data/n2 was built on another log"):
                make_plan([here, there._replace(name="/data/n2")])
            alien = there.identity.__class__("other", there.identity.node_id, there.identity.log)
            with pytest.raises(UsageError, match="/data/n3 belongs to cluster other"):
                make_plan([here, there._replace(name="/data/n3", identity=alien)])
            with pytest.raises(UsageError, match="at least one"):
                make_plan([])
            with pytest.raises(UsageError, match="belongs to no cluster"):
                survey("/data/n9", MemoryEngine())
            with pytest.raises(UsageError, match="complete up to"):
                make_plan([here], at=first.clock.now() + (1 << 50))

    asyncio.run(main())


def test_a_store_of_a_newer_format_is_refused():
    async def main():
        async with Cluster(1) as cluster:
            engine = cluster.nodes[0].engine
            newer = msgspec.structs.replace(read_identity(engine), format=STORE_FORMAT + 1)
            batch = engine.batch()
            batch.put(Family.LOCAL, IDENTITY_KEY, msgspec.msgpack.encode(newer))
            engine.write(batch)
            with pytest.raises(StorageError, match="use a newer one"):
                read_identity(engine)

    asyncio.run(main())
