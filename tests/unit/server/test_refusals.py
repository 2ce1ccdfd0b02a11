"""What an operator, a node or a client may ask for by right, and that would do harm: refused before it is proposed."""

import msgspec
import pytest

import slackwater
from slackwater.clock.timestamp import MAX, MIN
from slackwater.codec.layout import kv, meta, system, table_prefix
from slackwater.codec.rows import RowCodec
from slackwater.errors import SlackwaterError, UsageError
from slackwater.model.descriptors import Epoch, Liveness, NodeDescriptor, RangeDescriptor
from slackwater.model.txns import TXN_ID_BYTES
from slackwater.protocol.client import calls
from slackwater.protocol.range import requests
from slackwater.protocol.range.requests import Batch, Header
from slackwater.routing.transport import KV_BATCH
from slackwater.runtime import run
from slackwater.server.bootstrap import NODE_ID_KEY
from slackwater.server.records import check_record
from tests.unit.server.guarded import Guarded


def guarded(certs, work):
    async def main():
        async with Guarded(certs) as g:
            url = f"slackwater://{g.address}?user=ann"
            async with slackwater.aconnect(url, certs=str(certs)) as db:
                await db.create_table("t", {"id": "int8", "s": "text"}, primary_key=["id"])
                await db.upsert("t", [{"id": 1, "s": "one"}])
                await work(g, db)
                assert (await db.scan("t")).to_pylist() == [{"id": 1, "s": "one"}]

    run(main())


def test_rows_that_no_scan_could_decode_are_refused_from_clients_and_operators(certs):
    async def attack(g, db):
        (schema,) = [t for t in await db.tables() if t.name == "t"]
        codec = RowCodec(schema)
        key, good = codec.encode({"id": 2, "s": "two"})
        _, other = codec.encode({"id": 3, "s": "three"})
        short = key[:-1]
        bad = [
            (key, good[:-1]),
            (key, good + b"x"),
            (key, other),
            (key, good[:5]),
            (short, good),
            (key + b"\x00", good),
        ]
        ann, root = g.dialer("ann"), g.dialer("root")
        range_id = (await g.node.sender.range_of(key)).range_id
        for number, (k, value) in enumerate(bad):
            txn_id = bytes([number]) * TXN_ID_BYTES
            for bulk in (False, True):
                write = calls.Write(
                    schema.table_id, schema.version, calls.WriteKind.UPSERT, [k], [value], b"", txn_id, bulk
                )
                with pytest.raises(UsageError):
                    await ann.call(g.address, calls.WRITE, write, timeout=5)
            for request in (requests.Put(k, value), requests.PutRows([k], [value]), requests.Increment(k, 1)):
                with pytest.raises(UsageError):
                    await root.call(g.address, KV_BATCH, Batch(Header(range_id), [request]), timeout=5)
        delete = calls.Write(
            schema.table_id, schema.version, calls.WriteKind.DELETE, [short], [], b"", b"d" * TXN_ID_BYTES
        )
        with pytest.raises(UsageError):
            await ann.call(g.address, calls.WRITE, delete, timeout=5)
        for nowhere in (table_prefix(99) + b"k", b"\x04 no end"):
            with pytest.raises(UsageError):
                await root.call(g.address, KV_BATCH, Batch(Header(range_id), [requests.Put(nowhere, good)]), timeout=5)

    guarded(certs, attack)


def test_changes_of_a_range_that_could_not_be_applied_are_refused_from_operators(certs):
    async def attack(g, db):
        left, right = await g.node.admin.split(kv(b"m"))
        frozen = requests.SubsumeResult(1, 1, MAX, MAX, left.generation, MAX, MAX, (0,) * 8)
        root = g.dialer("root")
        for request in (
            requests.RaiseGcThreshold(MAX),
            requests.GcTxnRecords(MAX),
            requests.Merge(right, frozen),
            requests.Split(kv(b"c"), right.range_id),
            requests.AbortMerge(1 << 40),
            requests.ChangeReplicas((1, 77), left.generation),
            requests.GcVersions(((kv(b"k"), MAX),)),
        ):
            await g.node.kv.put(kv(b"k"), b"v")
            with pytest.raises(SlackwaterError):
                await root.call(g.address, KV_BATCH, Batch(Header(left.range_id), [request]), timeout=5)
            assert await g.node.kv.get(kv(b"k")) == b"v"

    guarded(certs, attack)


GOOD = {
    meta(b"m"): RangeDescriptor(7, b"a", b"m", (1, 2), 3),
    system("liveness", (1).to_bytes(4, "big")): Liveness(1, Epoch(1), MIN),
    system("address", (1).to_bytes(4, "big")): NodeDescriptor(1, "h:1"),
    system("setting", b"rpc.connect_timeout"): 5.0,
}


@pytest.mark.parametrize("key", GOOD, ids=["range", "liveness", "address", "setting"])
def test_a_record_of_the_system_is_one_or_is_refused(key):
    good = msgspec.msgpack.encode(GOOD[key])
    check_record(key, good)
    for bad in (b"", b"\xc1", good[:-1], good + b"x", b"\x91" * 100_000, msgspec.msgpack.encode([1, 2])):
        with pytest.raises(UsageError, match="no record of the system"):
            check_record(key, bad)


def test_a_record_lies_under_its_own_key():
    records = list(GOOD.items())[:3]
    for key, _ in records:
        for other, value in records:
            if key != other:
                with pytest.raises(UsageError):
                    check_record(key, msgspec.msgpack.encode(value))
    doubled = RangeDescriptor(7, b"a", b"m", (1, 1), 3)
    with pytest.raises(UsageError):
        check_record(meta(b"m"), msgspec.msgpack.encode(doubled))


def test_garbage_among_the_systems_records_is_refused_by_every_write(certs):
    async def attack(g, db):
        for key in GOOD:
            for request in (
                requests.Put(key, b"garbage"),
                requests.InitPut(key, b"garbage"),
                requests.ConditionalPut(key, b"garbage", None),
                requests.PutRows([key], [b"garbage"]),
                requests.Increment(key, 1),
            ):
                with pytest.raises(UsageError):
                    await g.node.sender.send([request], Header(0), timeout=5)
        for by in (0, -1, 1 << 62):
            with pytest.raises(UsageError):
                await g.node.sender.send([requests.Increment(NODE_ID_KEY, by)], Header(0), timeout=5)

    guarded(certs, attack)
