"""Forged closed timestamps: a client reaches neither stream, and a node with a real certificate is not believed everything."""

import asyncio

import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds
from slackwater.closedts.driver.streams import Following
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.publisher import NodeParts
from slackwater.closedts.records import Records
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.codec.layout import kv
from slackwater.errors import AccessDenied
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.heartbeat import HEARTBEATS, WAKE, Entry, Heartbeat, SubscribeHeartbeats, WakeRanges
from slackwater.protocol.closedts.update import UPDATES, Subscribe, Update
from slackwater.runtime import run
from slackwater.runtime.rpc import RpcServer
from slackwater.runtime.rpc.method import Identity
from slackwater.runtime.tls import node_files
from tests.unit.server.guarded import Guarded

LIAR = NodeId(7)
R1 = RangeId(1)
LAI = LeaseAppliedIndex(1)


@pytest.mark.parametrize("user", ["ann", "root"])
def test_neither_clients_nor_operators_speak_of_closed_timestamps(certs, user):
    async def main():
        async with Guarded(certs) as guarded:
            dialer = guarded.dialer(user)
            for method, request in ((UPDATES, Subscribe(LIAR)), (HEARTBEATS, SubscribeHeartbeats(LIAR))):
                with pytest.raises(AccessDenied, match=r"closedts\.(updates|heartbeats) is for nodes"):
                    async for _ in await dialer.stream(guarded.address, method, request):
                        pass
            with pytest.raises(AccessDenied, match=r"closedts\.wake is for nodes"):
                await dialer.call(guarded.address, WAKE, WakeRanges([R1]), timeout=5)

    run(main())


def test_a_node_that_wakes_a_million_ranges_that_are_not_there_changes_nothing(certs):
    async def main():
        async with Guarded(certs) as guarded:
            await guarded.node.kv.put(kv(b"k"), b"v")
            dialer = guarded.dialer(files=node_files(certs), node_id=7)
            many = WakeRanges([RangeId(n) for n in range(10_000, 1_010_000)])
            assert (await dialer.call(guarded.address, WAKE, many, timeout=20)).led == 0
            assert (await dialer.call(guarded.address, WAKE, WakeRanges([R1] * 5), timeout=5)).led == 5
            assert await guarded.node.kv.get(kv(b"k")) == b"v"

    run(main())


def update(now, **changes):
    said = {"sender": LIAR, "incarnation": 5, "seq": 1, "full": True, "groups": [(1, now)], "members": [(R1, LAI, 1)]}
    return Update(**{**said, **changes})


def beat(now, **changes):
    said = {"sender": LIAR, "epoch": Epoch(1), "seq": 2, "after": 1, "closed": now, "ranges": [Entry(R1, LAI)]}
    return Heartbeat(**{**said, **changes})


LIES = {
    "updates in the name of another": lambda now: [update(now, sender=NodeId(1))],
    "updates that close the end of time": lambda now: [update(now, groups=[(1, MAX)])],
    "updates an hour ahead": lambda now: [update(now, groups=[(1, add_seconds(now, 3600))])],
    "updates with members of no group": lambda now: [update(now, members=[(R1, LAI, 2)])],
    "updates that end a group with members": lambda now: [
        update(MIN),
        update(now, seq=2, full=False, groups=[], members=[]),
    ],
    "heartbeats in the name of another": lambda now: [beat(now, sender=NodeId(1))],
    "heartbeats that close the end of time": lambda now: [beat(MAX)],
    "heartbeats whose entries close the end of time": lambda now: [beat(now, ranges=[Entry(R1, LAI, closed=MAX)])],
    "heartbeats that count backwards": lambda now: [beat(now, after=9)],
    "heartbeats that take back what was closed": lambda now: [
        beat(Timestamp(9), ranges=[]),
        beat(Timestamp(5), seq=3, after=2),
    ],
}


@pytest.mark.parametrize("lie", LIES)
def test_what_no_sound_node_says_is_refused_before_it_is_kept(certs, lie):
    """A node with a certificate of the cluster's own authority serves the stream over TLS, and is followed."""

    async def main():
        async with Guarded(certs) as guarded:
            now = guarded.node.clock.now()
            messages = LIES[lie](now)
            kind = type(messages[0])
            ended = asyncio.Event()
            told = []
            server, liar = await lying_server(guarded, kind, messages, ended)
            records = Records()
            records.watch(R1)
            incoming = receiver(kind, records)
            parts = NodeParts(
                NodeId(1), guarded._runtime, guarded.node.clock, guarded.settings, guarded.scope.child("follower"),
                refused=lambda peer, error: told.append((peer, error)),
            )  # fmt: skip
            method, ask = (UPDATES, Subscribe(LIAR)) if kind is Update else (HEARTBEATS, SubscribeHeartbeats(LIAR))
            dialer = guarded.dialer(files=node_files(certs), node_id=1)
            following = Following(
                parts, name="test", incoming=incoming, peers=lambda: [LIAR], took=lambda _: None,
                subscribe=lambda peer: dialer.stream(liar, method, ask, node_id=peer),
            )  # fmt: skip
            task = asyncio.create_task(following.run())
            async with asyncio.timeout(20):
                await ended.wait()  # the follower has hung up
            task.cancel()
            await server.close()
            assert records[R1].served == MIN
            assert records[R1].steps == []
            if kind is Update:
                assert incoming.closed_for(R1, LAI) == MIN
            if "end a group" not in lie:
                peer, error = told[0]
                assert peer == LIAR
                assert "is not believed" in str(error)

    run(main())


def receiver(kind, records):
    return Receiver(records) if kind is Update else HeartbeatReceiver(records, live_epoch=lambda _: Epoch(1))


async def lying_server(guarded, kind, messages, ended):
    scope = guarded.scope.child("liar")
    server = RpcServer(guarded._runtime, scope, identity=Identity(node_id=LIAR), settings=guarded.settings)

    async def lies(request, context):
        try:
            for message in messages:
                yield message
            await asyncio.Event().wait()
        finally:
            ended.set()

    server.handle_stream(UPDATES if kind is Update else HEARTBEATS, lies)
    return server, await server.listen("127.0.0.1:0")
