"""Feeds over whole nodes in one process: splits, merges, moves, restarts, slow readers, dead nodes."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import KV, kv, prefix_span
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import BelowGcThreshold
from slackwater.feeds.client import Checkpoint
from slackwater.feeds.frontier import decode_token
from slackwater.feeds.validate import Validators
from slackwater.model.spans import Span
from slackwater.model.txns import Resolution, TxnStatus
from slackwater.protect.zone_changes import write_zone
from slackwater.protocol.feeds.events import Changes, Resolved
from slackwater.protocol.feeds.messages import SESSION_BYTES, DropFeed, OpenFeed, RegisterFeed
from slackwater.protocol.range import requests
from slackwater.runtime import run
from slackwater.txn.resolving import resolve_span
from tests.unit.server.cluster import DEADLINE_S, Cluster

WHOLE = prefix_span(KV)
SOON = {"closed_timestamp__target_duration": 0.05, "closed_timestamp__side_transport_interval": 0.02}


def story(test):
    """Run an async test on the real loop."""

    def runs() -> None:
        run(test())

    runs.__doc__ = test.__doc__
    return runs


class Reader:
    """Takes from a feed into a mirror, with all validators."""

    def __init__(self, feed, *, after: Timestamp = MIN) -> None:
        self.feed = feed
        self.validators = Validators([WHOLE], after=after)

    @property
    def mirror(self):
        return self.validators.mirror

    def see(self, event) -> None:
        if isinstance(event, Changes):
            self.validators.event(event, WHOLE)
            return
        assert isinstance(event, Checkpoint)
        for span, ts in event.progress:
            self.validators.event(Resolved(ts), span)

    async def upto(self, ts: Timestamp) -> None:
        """Read until everything at or below is here."""
        async with asyncio.timeout(DEADLINE_S):
            while self.feed.resolved < ts:
                self.see(await anext(self.feed))
        assert not self.validators.breaches, self.validators.breaches

    def table(self, ts: Timestamp) -> dict[bytes, bytes]:
        return dict(self.mirror.table_at(ts))


async def source(cluster: Cluster, ts: Timestamp, node: int = 0) -> dict[bytes, bytes]:
    rows = await cluster.nodes[node].kv.scan(WHOLE.start, WHOLE.end, ts=ts)
    return dict(zip(rows.keys, rows.values, strict=True))


async def check(cluster: Cluster, reader: Reader, ts: Timestamp, node: int = 0) -> None:
    await reader.upto(ts)
    assert reader.table(ts) == await source(cluster, ts, node)


@story
async def test_history_then_live() -> None:
    async with Cluster(1, **SOON) as cluster:
        node = cluster.nodes[0]
        await cluster.fill(50)
        async with node.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            await check(cluster, reader, node.clock.now())
            await cluster.fill(20, prefix=b"live")
            await node.kv.delete(kv(b"k000003"))
            await check(cluster, reader, node.clock.now())
            assert kv(b"k000003") not in reader.table(feed.resolved)


@story
async def test_nothing_is_attached_when_nobody_listens() -> None:
    async with Cluster(1, **SOON, feed__keep_attached=0.3) as cluster:
        node = cluster.nodes[0]
        async with node.feed_client.watch([WHOLE]) as feed:
            await Reader(feed).upto(node.clock.now())
            replica = node.store.holding(kv(b"a"))
            assert replica.apply_subscriber is not None
        await cluster.until(lambda: replica.apply_subscriber is None)
        assert len(node.feeds.sessions) == 1, "the node's own announcements"


@story
async def test_splits_and_merges_are_followed() -> None:
    async with Cluster(1, **SOON) as cluster:
        node = cluster.nodes[0]
        await cluster.fill(30)
        async with node.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            await check(cluster, reader, node.clock.now())
            await node.admin.split(kv(b"k000010"))
            await cluster.fill(30, size=11)
            await check(cluster, reader, node.clock.now())
            assert sum(feed.serving().values()) == 2
            await node.admin.merge(kv(b"a"))
            await cluster.fill(30, size=12)
            await check(cluster, reader, node.clock.now())


@story
async def test_a_follower_serves_and_its_death_moves_the_feed_on() -> None:
    async with Cluster(3, **SOON) as cluster:
        first = cluster.nodes[0]
        for key in (b"\x02", b"\x03\xf0", KV):
            await first.admin.change_replicas(key, [n.node_id for n in cluster.nodes])
        await cluster.fill(30)
        reading = cluster.nodes[2]
        reading.sender.cache.clear()  # it may have met the range before it was moved here
        async with reading.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            await check(cluster, reader, first.clock.now())
            assert feed.serving() == {reading.node_id: 1}, "the replica at hand is the nearest"
        token = feed.token()
        async with first.feed_client.watch([WHOLE], after=token) as feed:
            reader.feed = feed
            reader.validators.restarted()
            await cluster.fill(10, prefix=b"more")
            await check(cluster, reader, first.clock.now())


@story
async def test_the_node_that_serves_dies() -> None:
    async with Cluster(3, **SOON) as cluster:
        first, second = cluster.nodes[:2]
        for key in (b"\x02", b"\x03\xf0", KV):
            await first.admin.change_replicas(key, [n.node_id for n in cluster.nodes])
        await cluster.fill(30)
        reading = cluster.nodes[2]
        await first.admin.change_replicas(KV, [first.node_id, second.node_id])
        await cluster.until(lambda: reading.store.holding(kv(b"a")) is None)
        async with reading.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            await check(cluster, reader, first.clock.now(), 2)
            (serving,) = feed.serving()
            victim = next(n for n in cluster.nodes if n.node_id == serving)
            await cluster.kill(victim)
            await reading.kv.put(kv(b"after"), b"x", timeout=DEADLINE_S)
            await check(cluster, reader, reading.clock.now(), 2)
            assert feed.serving().keys() == {n.node_id for n in (first, second)} - {serving}


@story
async def test_an_open_transaction_holds_back_and_is_pushed() -> None:
    quick = {"feed__push_interval": 0.05, "feed__push_after": 0.1, "txn__buffer_bytes_max": 0}
    async with Cluster(1, **SOON, **quick) as cluster:
        node = cluster.nodes[0]
        async with node.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            txn = node.kv.begin()
            await txn.put(kv(b"a"), b"1")
            await txn.get(kv(b"b"))
            began = node.clock.now()
            await reader.upto(Timestamp(began + 1))  # passes only because the transaction is pushed
            assert kv(b"a") not in reader.table(feed.resolved)
            committed = await txn.commit()
            assert committed > began
            await check(cluster, reader, committed)
            assert reader.mirror.delivered(kv(b"a"), committed)


@story
async def test_a_resolution_that_a_feed_waits_for_gives_way_to_reads_for_a_shorter_time() -> None:
    spans = {"txn__lock_keys_max": 2, "txn__buffer_bytes_max": 0, "feed__keep_attached": 0.0}
    async with Cluster(1, **SOON, **spans) as cluster:
        node = cluster.nodes[0]
        gate, heard = node.store.context.bulk_gate, []
        after_reads = gate.after_reads

        def hearing(clock, *, awaited):
            heard.append(awaited)
            return after_reads(clock, awaited=awaited)

        gate.after_reads = hearing

        async def commit(prefix):
            txn = node.kv.begin()
            await txn.put(kv(b"a" + prefix), b"1")  # its record is in another range
            for n in range(8):
                await txn.put(kv(b"z%s%d" % (prefix, n)), b"1")
            ts = await txn.commit()
            async with asyncio.timeout(DEADLINE_S):
                while not heard:
                    await asyncio.sleep(0.001)
            return ts

        await node.admin.split(kv(b"m"))
        async with gate.admitted(node.store.context.runtime.clock):  # a bulk read that does not end
            await commit(b"a")
            assert heard[0] is False
            heard.clear()
            async with node.feed_client.watch([WHOLE]) as feed:
                reader = Reader(feed)
                await reader.upto(node.clock.now())
                ts = await commit(b"b")
                assert heard[0] is True, "a feed of this replica waits for it"
                await check(cluster, reader, ts)
            await cluster.until(lambda: node.store.holding(kv(b"z")).apply_subscriber is None)
            heard.clear()
            outcome = Resolution(b"t" * 16, 0, TxnStatus.ABORTED)
            await resolve_span(node.kv.context, outcome, kv(b"z"), WHOLE.end, timeout=DEADLINE_S, awaited=True)
            assert heard == [True], "a feed of another node's replica waits for it"


@story
async def test_a_slow_reader_is_cut_off_and_misses_nothing() -> None:
    small = {"feed__consumer_bytes_max": 1 << 12, "feed__client_bytes_max": 1 << 10, "feed__message_bytes": 1 << 10}
    async with Cluster(1, **SOON, **small, rpc__stream_window=1) as cluster:
        node = cluster.nodes[0]
        async with node.feed_client.watch([WHOLE]) as feed:
            reader = Reader(feed)
            await reader.upto(node.clock.now())
            for round_ in range(20):
                await cluster.fill(50, size=20 + round_)
            for attached in list(node.feeds.attached.values()):
                assert all(r.bytes <= 1 << 13 for r in attached.feed.registrations.values())
            await check(cluster, reader, node.clock.now())


@story
async def test_below_the_gc_threshold_is_final() -> None:
    async with Cluster(1, **SOON) as cluster:
        node = cluster.nodes[0]
        before = node.clock.now()
        await cluster.fill(5)
        threshold = node.clock.now()
        cluster.collect_upto_now()
        await node.admin.ask(requests.RaiseGcThreshold(threshold), at=kv(b"a"))
        async with node.feed_client.watch([WHOLE], after=before) as feed:
            with pytest.raises(BelowGcThreshold, match="earliest readable time") as told:
                await Reader(feed).upto(node.clock.now())
            assert told.value.facts == {"timestamp": before, "threshold": threshold, "earliest": threshold + 1}
        async with node.feed_client.watch([WHOLE], after=threshold) as feed:
            await Reader(feed, after=threshold).upto(node.clock.now())


@story
async def test_a_leading_span_is_resolved_ahead_of_time() -> None:
    """What is resolved lies in the future, and everything that is committed there has come before it."""
    async with Cluster(2, **SOON, span_config__poll_interval=0.1, closed_timestamp__lead=1.0) as cluster:
        first, second = cluster.nodes
        await first.admin.change_replicas(KV, [n.node_id for n in cluster.nodes])
        leading = Span(kv(b"k"), kv(b"l"))
        for bound in (leading.start, leading.end):
            await first.admin.split(bound)
        await write_zone(first.kv, ZoneConfig(leading.start, leading.end, policy=PolicyKind.LEAD))
        second.sender.cache.clear()
        async with second.feed_client.watch([leading]) as feed:
            reader = Reader(feed)
            for turn in range(3):
                await first.kv.put(kv(b"k%d" % turn), b"%d" % turn)  # returns when its time has come
                async with asyncio.timeout(DEADLINE_S):
                    while (future := feed.resolved) <= second.clock.now():
                        reader.see(await anext(feed))
                await cluster.until(lambda ts=future: first.clock.now() > ts)
                rows = await first.kv.scan(leading.start, leading.end, ts=future)
                assert reader.table(future) == dict(zip(rows.keys, rows.values, strict=True))
            assert feed.serving() == {second.node_id: 1}, "a follower knows as well"
            assert not reader.validators.breaches, reader.validators.breaches


@story
async def test_before_images() -> None:
    async with Cluster(1, **SOON) as cluster:
        node = cluster.nodes[0]
        await cluster.fill(5)
        await cluster.fill(5, size=3)
        async with node.feed_client.watch([WHOLE], befores=True) as feed:
            reader = Reader(feed)
            await check(cluster, reader, node.clock.now())
            await cluster.fill(5, size=4)
            await check(cluster, reader, node.clock.now())


@story
async def test_a_feed_is_restarted_at_every_checkpoint() -> None:
    async with Cluster(1, **SOON) as cluster:
        node = cluster.nodes[0]
        await node.admin.split(kv(b"m"))
        done = asyncio.Event()

        async def write() -> None:
            for i in range(60):
                await node.kv.put(kv(b"%c%d" % (97 + i % 26, i % 7)), b"%d" % i)
                await asyncio.sleep(0.005)
            done.set()

        writing = asyncio.ensure_future(write())
        token: Timestamp | str = MIN
        reader = Reader(None)
        restarts = 0
        last = node.clock.now()
        while not done.is_set() or reader.feed.resolved < last:
            last = node.clock.now() if not done.is_set() else last
            async with node.feed_client.watch([WHOLE], after=token) as feed:
                reader.feed = feed
                reader.validators.restarted()
                async with asyncio.timeout(DEADLINE_S):
                    while not isinstance(event := await anext(feed), Checkpoint):
                        reader.see(event)
                reader.see(event)
                token = feed.token()
                restarts += 1
        with suppress(asyncio.CancelledError):
            await writing
        assert restarts > 3
        assert not reader.validators.breaches, reader.validators.breaches
        assert reader.table(last) == await source(cluster, last)


@pytest.mark.parametrize(("end", "remembered"), [("stop", True), ("crash", True), ("crash after a stray flush", False)])
def test_who_comes_back_after_a_restart_needs_no_scan(end: str, remembered: bool) -> None:
    """What is new is found by the index on disk, with what is replayed; one that is behind its data is not believed."""

    async def comes_back() -> None:
        async with Cluster(1, **SOON, store__flush_interval=300.0) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(200)
            async with node.feed_client.watch([WHOLE]) as feed:
                reader = Reader(feed)
                await check(cluster, reader, node.clock.now())
                token = feed.token()
            await cluster.fill(5, size=11)
            await node.store.flush()
            await node.kv.delete(kv(b"k000100"))
            await (node.node.stop() if end == "stop" else cluster.kill(node))
            engine = node.engine
            if end != "stop":
                engine = engine.crash(keep=lambda unflushed: 0 if end == "crash" else unflushed)
            node = await cluster.add(engine, 0)
            attached = node.feeds.attached.get(node.store.holding(kv(b"a")).state.descriptor.range_id)
            assert (attached is not None) == remembered
            if attached is not None:
                assert attached.index.lookup(WHOLE, decode_token(token).resolved) is not None
            async with node.feed_client.watch([WHOLE], after=token) as feed:
                reader.feed = feed
                reader.validators.restarted()
                await check(cluster, reader, node.clock.now())
                assert kv(b"k000100") not in reader.table(feed.resolved)

    run(comes_back())


@story
async def test_a_consumer_that_goes_while_locks_are_scanned_leaves_a_feed_that_serves_the_next_one() -> None:
    """The feed is kept for those that come back; its scan was given up half way and never begun again."""
    async with Cluster(1, **SOON, store__flush_interval=300.0) as cluster:
        node = cluster.nodes[0]
        await cluster.fill(20)
        async with node.feed_client.watch([WHOLE]) as feed:
            await check(cluster, Reader(feed), node.clock.now())
        await node.node.stop()
        node = await cluster.add(node.engine, 0)
        held = node.store.holding(kv(b"a")).state.descriptor
        attached = node.feeds.attached[held.range_id]
        sessions = [bytes([number]) * SESSION_BYTES for number in range(2)]
        streams = [node.feeds.events(OpenFeed(session, "test")) for session in sessions]
        for stream in streams:
            await anext(stream)
        node.feeds.register(RegisterFeed(sessions[0], 1, held.range_id, WHOLE.start, WHOLE.end, MIN))
        node.feeds.drop(DropFeed(sessions[0], [1]))
        assert node.feeds.attached[held.range_id] is attached, "it is kept: it remembers what is recent"
        await asyncio.sleep(0.2)
        node.feeds.register(RegisterFeed(sessions[1], 1, held.range_id, WHOLE.start, WHOLE.end, MIN))
        async with asyncio.timeout(DEADLINE_S):
            items = await anext(streams[1])
        assert sum(len(event) for _, event in items.events if isinstance(event, Changes)) >= 20
        for stream in streams:
            await stream.aclose()
