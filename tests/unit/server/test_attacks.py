"""What an ordinary client certificate was enough for, and must not be. Real TLS on loopback."""

import asyncio

import msgspec
import pytest

import slackwater
from slackwater.clock.timestamp import MAX
from slackwater.codec.layout import kv
from slackwater.config.setting_records import setting_key
from slackwater.errors import AccessDenied
from slackwater.model.descriptors import NodeDescriptor
from slackwater.model.ids import NodeId
from slackwater.protocol.node import services
from slackwater.protocol.range import requests
from slackwater.protocol.range.requests import Batch, Header
from slackwater.routing.transport import KV_BATCH
from slackwater.runtime import run
from slackwater.runtime.seam import Family
from slackwater.server.addresses import BOOK_KEY
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine
from tests.unit.server.cluster import DEADLINE_S
from tests.unit.server.guarded import Guarded


def attacked(certs, work):
    """Run an attack against a node that holds one key; afterwards the node must serve as before."""

    async def main():
        async with Guarded(certs) as guarded:
            await guarded.node.kv.put(kv(b"k"), b"v")
            await work(guarded, guarded.dialer("ann"))
            assert await guarded.node.kv.get(kv(b"k")) == b"v"

    run(main())


def test_a_client_cannot_make_a_range_unreadable(certs):
    async def attack(guarded, dialer):
        descriptor = await guarded.node.sender.range_of(kv(b"k"))
        batch = Batch(Header(descriptor.range_id), [requests.RaiseGcThreshold(MAX)])
        with pytest.raises(AccessDenied, match=r"kv\.batch is for nodes and operators"):
            await dialer.call(guarded.address, KV_BATCH, batch, timeout=5)

    attacked(certs, attack)


def test_a_client_cannot_forge_a_merge(certs):
    async def attack(guarded, dialer):
        left, right = await guarded.node.admin.split(kv(b"m"))
        frozen = requests.SubsumeResult(1, 1, MAX, MAX, right.generation, MAX, MAX, (0,) * 8)
        merge = requests.Merge(right, frozen)
        with pytest.raises(AccessDenied, match=r"kv\.batch is for nodes and operators"):
            await dialer.call(guarded.address, KV_BATCH, Batch(Header(left.range_id), [merge]), timeout=5)

    attacked(certs, attack)


def test_a_client_cannot_read_raw_replicas(certs):
    async def attack(guarded, dialer):
        descriptor = await guarded.node.sender.range_of(kv(b"k"))
        request = services.SnapshotRequest(descriptor.range_id)
        with pytest.raises(AccessDenied, match=r"store\.snapshot is for nodes"):
            async for _ in await dialer.stream(guarded.address, services.SNAPSHOT, request):
                pass

    attacked(certs, attack)


def test_a_client_cannot_quarantine_a_replica(certs):
    async def attack(guarded, dialer):
        descriptor = await guarded.node.sender.range_of(kv(b"k"))
        request = services.QuarantineRequest(descriptor.range_id, "because")
        with pytest.raises(AccessDenied, match=r"store\.quarantine is for nodes"):
            await dialer.call(guarded.address, services.QUARANTINE, request, timeout=5)

    attacked(certs, attack)


def test_a_client_cannot_change_a_setting_by_writing_its_record(certs):
    async def attack(guarded, dialer):
        key = setting_key("closed_timestamp.target_duration")
        descriptor = await guarded.node.sender.range_of(key)
        put = requests.Put(key, msgspec.msgpack.encode(0.0))
        with pytest.raises(AccessDenied, match=r"kv\.batch is for nodes and operators"):
            await dialer.call(guarded.address, KV_BATCH, Batch(Header(descriptor.range_id), [put]), timeout=5)

    attacked(certs, attack)


def test_a_client_cannot_greet_with_huge_addresses(certs):
    async def attack(guarded, dialer):
        fake = NodeDescriptor(NodeId(7), "x" * (6 << 20) + ":7400")
        with pytest.raises(AccessDenied, match=r"node\.hello is for nodes and operators"):
            await dialer.call(guarded.address, services.HELLO, services.HelloRequest(fake), timeout=5)
        assert NodeId(7) not in guarded.node.book.nodes
        await guarded.node.book.keep(guarded.engine)
        assert len(guarded.engine.get(Family.LOCAL, BOOK_KEY) or b"") < 4096

    attacked(certs, attack)


def test_a_client_cannot_drop_the_table_of_another(certs):
    async def main():
        async with Guarded(certs) as guarded:
            url = f"slackwater://{guarded.address}?certs={certs}"
            async with (
                slackwater.aconnect(url, user="root") as root,
                slackwater.aconnect(url, user="ann") as ann,
                slackwater.aconnect(url, user="bob") as bob,
            ):
                await root.create_table("ours", {"id": "int"}, primary_key="id")
                await ann.create_table("hers", {"id": "int"}, primary_key="id")
                await ann.create_table("too", {"id": "int"}, primary_key="id")
                with pytest.raises(AccessDenied, match="belongs to the operators"):
                    await ann.drop_table("ours")
                with pytest.raises(AccessDenied, match="belongs to ann"):
                    await bob.drop_table("hers")
                assert [t.name for t in await bob.tables()] == ["hers", "ours", "too"]
                await ann.drop_table("hers")
                await root.drop_table("too")
                await root.drop_table("ours")
                assert await ann.tables() == []

    run(main())


def test_a_store_that_was_told_a_huge_address_forgets_it(certs):
    """What an older version has kept does not cut clients off any more."""

    async def main():
        engine = MemoryEngine()
        batch = WriteBatch()
        huge = NodeDescriptor(NodeId(7), "x" * (6 << 20) + ":7400")
        batch.put(Family.LOCAL, BOOK_KEY, msgspec.msgpack.encode([huge]))
        engine.write(batch)
        async with Guarded(certs, engine=engine) as guarded:
            async with asyncio.timeout(DEADLINE_S):  # a node announces itself once it holds its record
                while not guarded.node.book.nodes:
                    await asyncio.sleep(0.01)
            assert set(guarded.node.book.nodes) == {1}
            url = f"slackwater://{guarded.address}?certs={certs}"
            async with slackwater.aconnect(url, user="ann") as ann:
                assert await ann.tables() == []

    run(main())
