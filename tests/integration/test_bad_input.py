"""What a real node answers to nonsense: a typed error each time, nothing applied, and it goes on serving.

Every case talks to a process over RPC, past the checks that a well-behaved client makes for itself. Afterwards the user
ranges must be exactly where they were: the same applied index, the same keys, no replica quarantined.
"""

from __future__ import annotations

import time

import msgspec
import pytest

from slackwater.clock.timestamp import MAX, Timestamp, add_seconds
from slackwater.codec.layout import KEY_MAX, LOCAL, kv
from slackwater.errors import (
    ClockError,
    ConditionFailed,
    ConnectionLost,
    DecodeError,
    EntryTooLarge,
    ProtocolError,
    RangeMismatch,
    SlackwaterError,
    UsageError,
)
from slackwater.model.descriptors import Generation
from slackwater.model.ids import NodeId, RangeId
from slackwater.model.txns import Txn
from slackwater.protocol.node.services import REPORT, STATUS, ReportRequest, StatusRequest
from slackwater.protocol.range.requests import (
    BATCH_REQUESTS_MAX,
    Batch,
    BatchResult,
    ChangeReplicas,
    Delete,
    DeleteRange,
    EndTxn,
    Export,
    Get,
    Header,
    HeartbeatTxn,
    Increment,
    Put,
    PutRows,
    Refresh,
    Scan,
    Split,
)
from slackwater.routing.transport import KV_BATCH
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc.method import Method
from slackwater.server.remote import connect
from tests.integration.cluster import Processes, client_settings, split

pytestmark = [pytest.mark.integration, pytest.mark.xdist_group("cluster")]

N1 = NodeId(1)
LEFT = RangeId(3)
"""The first range of user keys; it was split at `m`."""
MIDDLE = kv(b"m")


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    directory = tmp_path_factory.mktemp("node")
    # No merges, no checks: nothing but the tests may change what `standing` compares, however slow the machine is.
    calm = {"range.min_bytes": 0, "queue.check_interval": 0}
    cluster = Processes(directory, nodes=1, log_url=f"sqlite://{directory}/log.db", settings=calm)

    async def make() -> None:
        await cluster.make()
        async with connect(cluster.addresses, settings=client_settings()) as remote:
            await remote.kv.put(kv(b"a"), b"1")
            await split(remote, MIDDLE)
            await remote.kv.put(kv(b"z"), b"1")

    try:
        run(make())
        yield cluster
    finally:
        cluster.end_all()


async def standing(remote) -> list[tuple]:
    """Where the user ranges stand."""
    reply = await remote.dialer.call(remote.book.resolve(N1), STATUS, StatusRequest(), timeout=10.0)
    return [
        (r.descriptor, r.lai, r.stats, r.frozen, r.failure) for r in reply.replicas if r.descriptor.range_id >= LEFT
    ]


def check(node: Processes, story) -> None:
    """Tell a story to the node; nothing may change by it, and an ordinary client must be served afterwards."""

    async def main() -> None:
        async with connect(node.addresses, settings=client_settings()) as remote:
            before = await standing(remote)
            await story(remote)
            assert await standing(remote) == before, "bad input changed something"
        async with connect(node.addresses, settings=client_settings()) as remote:
            report = await remote.dialer.call(node.addresses[0], REPORT, ReportRequest(), timeout=10.0)
            assert report.quarantined == {}
            assert await remote.kv.get(kv(b"a")) == b"1"
            await remote.kv.put(kv(b"healthy"), b"%d" % time.time_ns(), timeout=10.0)
            await remote.kv.put(kv(b"z"), b"1", timeout=10.0)

    run(main())


def send(remote, requests, *, range_id=LEFT, **header):
    return remote.transport.batch(N1, Batch(Header(range_id, **header), list(requests)))


@pytest.mark.parametrize(
    ("requests", "range_id"),
    [
        ([Put(kv(b"z"), b"2")], LEFT),
        ([Put(kv(b"a"), b"2")], RangeId(2)),
        ([Put(kv(b"a"), b"2"), Put(kv(b"z"), b"2")], LEFT),
        ([DeleteRange(kv(b"a"), kv(b"zz"))], LEFT),
        ([Put(KEY_MAX, b"2")], LEFT),
        ([Put(KEY_MAX + b"x", b"2")], LEFT),
        ([Put(kv(b"a"), b"2")], RangeId(99)),
        ([Split(kv(b"zzz"), RangeId(50))], LEFT),
    ],
    ids=[
        "other range",
        "system range",
        "two ranges",
        "span over the end",
        "max",
        "above max",
        "no such range",
        "split elsewhere",
    ],
)
def test_keys_outside_the_range(node, requests, range_id):
    async def story(remote):
        with pytest.raises(RangeMismatch) as caught:
            await send(remote, requests, range_id=range_id)
        assert "descriptors" in caught.value.facts

    check(node, story)


@pytest.mark.parametrize(
    "requests",
    [
        [DeleteRange(kv(b"c"), kv(b"b"))],
        [Scan(kv(b"c"), kv(b"b"))],
        [Put(b"", b"2")],
        [PutRows([kv(b"c"), kv(b"b")], [b"1", b"2"])],
        [PutRows([kv(b"b"), kv(b"b")], [b"1", b"2"])],
        [PutRows([kv(b"b")], [b"1", b"2"])],
        [PutRows([], [])],
        [],
        [EndTxn(commit=True)],
        [HeartbeatTxn()],
        [Increment(kv(b"a"), 1)],
        [Increment(kv(b"count"), 1 << 63)],
    ],
    ids=[
        "inverted delete",
        "inverted scan",
        "empty key",
        "unsorted",
        "twice",
        "uneven",
        "no rows",
        "no requests",
        "commit of nothing",
        "heartbeat of nothing",
        "not a number",
        "overflow",
    ],
)
def test_requests_that_make_no_sense(node, requests):
    async def story(remote):
        with pytest.raises((UsageError, DecodeError)):
            await send(remote, requests)

    check(node, story)


def test_local_keys_cannot_be_written_as_data(node):
    async def story(remote):
        for request in (Put(LOCAL + b"rxxxxxxxx", b"1"), Delete(LOCAL), DeleteRange(LOCAL, LOCAL + b"z")):
            with pytest.raises((UsageError, RangeMismatch)):
                await send(remote, [request], range_id=RangeId(1))

    check(node, story)


def test_stale_descriptors(node):
    async def story(remote):
        descriptor = await remote.sender.range_of(kv(b"a"))
        old = Generation(descriptor.generation - 1)
        with pytest.raises(ConditionFailed):
            await send(remote, [ChangeReplicas((N1, NodeId(2)), old)])
        with pytest.raises(RangeMismatch) as caught:
            await send(remote, [Get(kv(b"z"))], generation=old)
        assert caught.value.facts["descriptors"], "the refusal says where to go"

    check(node, story)


def test_a_client_of_another_cluster(node):
    async def story(remote):
        with pytest.raises(ProtocolError, match="another cluster"):
            async with connect(node.addresses, settings=client_settings(), cluster_id="elsewhere") as stranger:
                await stranger.kv.put(kv(b"a"), b"2")

    check(node, story)


class Nonsense(msgspec.Struct, array_like=True, tag=True):
    key: bytes


class NonsenseBatch(msgspec.Struct, array_like=True):
    header: Header
    requests: list


def test_unknown_requests_and_methods(node):
    async def story(remote):
        method = Method(KV_BATCH.name, NonsenseBatch, BatchResult, callers=ANYBODY)
        address = node.addresses[0]
        for requests in ([Nonsense(kv(b"a"))], [Put(kv(b"a"), b"2"), Nonsense(b"")], [42], [["Put", kv(b"a")]]):
            with pytest.raises(DecodeError):
                await remote.dialer.call(address, method, NonsenseBatch(Header(LEFT), requests), timeout=5.0)
        with pytest.raises(SlackwaterError, match=r"no\.such"):
            await remote.dialer.call(
                address, Method("no.such", ReportRequest, BatchResult, callers=ANYBODY), ReportRequest(), timeout=5.0
            )

    check(node, story)


def test_oversized_batches(node):
    async def story(remote):
        many = [Put(kv(b"b%d" % n), b"") for n in range(BATCH_REQUESTS_MAX + 1)]
        with pytest.raises(UsageError):
            await send(remote, many)
        with pytest.raises(EntryTooLarge):
            await send(remote, [Put(kv(b"b"), bytes(2 << 20))])
        with pytest.raises((EntryTooLarge, ConnectionLost)):
            await send(remote, [Put(kv(b"b"), bytes(40 << 20))])
        with pytest.raises(EntryTooLarge):
            await remote.kv.put(kv(b"b"), bytes(2 << 20), timeout=5.0)

    check(node, story)


def test_a_transaction_after_its_end(node):
    async def story(remote):
        for finish in ("commit", "rollback"):
            txn = remote.kv.begin(timeout=5.0)
            await txn.get(kv(b"a"))
            await getattr(txn, finish)()
            for operation in (txn.get(kv(b"a")), txn.put(kv(b"a"), b"2"), txn.commit()):
                with pytest.raises(UsageError):
                    await operation

    check(node, story)


def test_clocks_beyond_the_maximum_offset(node):
    """A client whose clock is ten seconds ahead is refused; its stamps and timestamps move nobody else's clock."""

    async def story(remote):
        async with connect(node.addresses, settings=client_settings()) as other:
            other.clock._wall_ns = lambda: time.time_ns() + 10 * 10**9
            for work in (other.kv.put(kv(b"a"), b"2", timeout=5.0), other.kv.get(kv(b"a"), timeout=5.0)):
                with pytest.raises(ClockError):
                    await work

    check(node, story)


@pytest.mark.parametrize("ahead", [10.0, None], ids=["ten seconds", "the end of time"])
def test_timestamps_beyond_the_maximum_offset(node, ahead):
    """A well-stamped message may still carry a timestamp of the far future: it must not be served, nor remembered."""

    async def story(remote):
        future = MAX if ahead is None else add_seconds(remote.clock.now(), ahead)
        txn = Txn(b"t" * 16, kv(b"a"), future, 0, future, future, future, 1)
        a = kv(b"a")
        cases = [
            ({"ts": future}, [Get(a)]),
            ({"ts": future}, [Scan(a, MIDDLE)]),
            ({"ts": future}, [Put(a, b"2")]),
            ({"txn": txn}, [Get(a)]),
            ({"txn": txn}, [Put(a, b"2")]),
            ({}, [Export(a, MIDDLE, Timestamp(0), future)]),
            ({}, [Refresh(a, MIDDLE, Timestamp(0), future)]),
            ({"txn": txn}, [Refresh(a, MIDDLE, Timestamp(0), future)]),
        ]
        for header, requests in cases:
            with pytest.raises((ClockError, UsageError)):
                await send(remote, requests, **header)

    check(node, story)
