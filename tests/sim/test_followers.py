"""Follower reads on real nodes in virtual time: idle ranges close, reads wait, `close` publishes, resolved holds."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from msgspec import structs

from slackwater.clock import add_seconds
from slackwater.clock.timestamp import seconds_between
from slackwater.errors import InvariantViolation, NotLeaseholder, TooStale, UnavailableError, UsageError
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import FRONTIER, ReplicaFrontiersRequest
from slackwater.protocol.range import requests
from slackwater.runtime.sync import Event
from slackwater.txn.staleness import Staleness
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.clock import Timestamp
    from slackwater.log.contract import Entry
    from slackwater.replica.driver.store import Store

N1, N2 = NodeId(1), NodeId(2)
LAG_S, INTERVAL_S = 1.0, 0.2
QUEUES_OFF = {"queue.interval": 0.0}
"""Leases stay where a story puts them."""
SETTINGS = {
    **QUEUES_OFF,
    "closed_timestamp.target_duration": LAG_S,
    "closed_timestamp.side_transport_interval": INTERVAL_S,
}


async def follower(c: Cluster, key: bytes) -> tuple[RangeId, Store]:
    """Put a second replica of the key's range on n2 and let it settle; n1 keeps the lease."""
    await c.second_node(key)
    await c.settle(3)
    range_id = (await c.sender.range_of(c.key(key))).range_id
    store = c.nodes["n2"].store
    assert store is not None
    assert store.replicas[range_id].state.lease.holder == N1
    return range_id, store


def read(range_id: RangeId, key: bytes, ts: Timestamp, *, wait_ms: int = 0) -> requests.Batch:
    return requests.Batch(requests.Header(range_id, ts=ts, follower_ok=True, wait_ms=wait_ms), [requests.Get(key)])


def test_an_idle_range_keeps_closing_on_its_follower_without_a_log_entry() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        replica = store.replicas[range_id]
        position = replica.state.position
        await c.settle(30)
        assert replica.state.position == position, "nothing may be written to close an idle range"
        now = c.clock.now()
        lag = seconds_between(replica.closing.closed(), now)
        assert lag <= LAG_S + INTERVAL_S + 0.5, f"closed lags by {lag} s"
        assert seconds_between(replica.state.closed, now) > 20, "the log alone would be far behind"
        answer = await store.execute(read(range_id, a, add_seconds(now, -LAG_S - INTERVAL_S - 0.5)))
        assert (answer.by_follower, answer.served_by) == (True, N2)
        assert isinstance(answer.results[0], requests.Value)
        assert answer.results[0].value == b"1"

    play(story, settings=SETTINGS)


def test_a_write_after_idling_lies_above_everything_that_was_promised() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.settle(20)
        promised = store.replicas[range_id].closing.closed()
        await c.kv.put(a, b"2")
        await c.settle(3)
        old = await store.execute(read(range_id, a, promised))
        assert isinstance(old.results[0], requests.Value)
        assert old.results[0].value == b"1", "a read at a closed timestamp must not change"
        await c.settle(3)
        new = await store.execute(read(range_id, a, store.replicas[range_id].closing.closed()))
        assert isinstance(new.results[0], requests.Value)
        assert new.results[0].value == b"2"

    play(story, settings=SETTINGS)


def test_a_follower_read_waits_for_its_timestamp_within_its_budget() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.settle(5)
        now = c.clock.now()
        answer = await store.execute(read(range_id, a, now, wait_ms=5_000))
        assert answer.by_follower
        waited = seconds_between(now, c.clock.now())
        assert LAG_S / 2 <= waited <= LAG_S + 2 * INTERVAL_S + 0.5
        with pytest.raises(NotLeaseholder):
            await store.execute(read(range_id, a, c.clock.now(), wait_ms=100))

    world = play(story, settings=SETTINGS)
    assert world.probes["closedts.follower_read_waits"] == 2
    assert world.probes["closedts.follower_read_waited_in_vain"] == 1


def test_close_makes_the_present_readable_on_followers() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.kv.put(a, b"2")
        now = c.clock.now()
        closed = await c.sender.send([requests.CloseNow(a, a + b"\x00", now)], requests.Header(RangeId(0)))
        (result,) = closed.results
        assert isinstance(result, requests.ClosedResult)
        assert result.closed >= now
        answer = await store.execute(read(range_id, a, now, wait_ms=1_000))
        assert answer.by_follower
        assert isinstance(answer.results[0], requests.Value)
        assert answer.results[0].value == b"2"
        position = store.replicas[range_id].state.position
        again = await c.sender.send([requests.CloseNow(a, a + b"\x00", now)], requests.Header(RangeId(0)))
        assert isinstance(again.results[0], requests.ClosedResult)
        assert again.results[0].closed >= now
        await c.settle(1)
        assert store.replicas[range_id].state.position == position, "closing what is closed costs no entry"

    play(story, settings={**QUEUES_OFF, "closed_timestamp.target_duration": 600.0})


def test_close_works_while_closing_is_off_and_over_several_ranges() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        await c.kv.put(c.key(b"a"), b"1")
        await c.kv.put(c.key(b"p"), b"2")
        now = c.clock.now()
        spans = [(b"a", b"c"), (b"b", b"z"), (b"p", b"q")]  # several in one range, one over both
        asked = [requests.CloseNow(c.key(start), c.key(end), now) for start, end in spans]
        answer = await c.sender.send(asked, requests.Header(RangeId(0)))
        assert len(answer.results) == len(spans)
        for result in answer.results:
            assert isinstance(result, requests.ClosedResult)
            assert result.closed >= now, "the least of all ranges"

    play(story, settings={**QUEUES_OFF, "closed_timestamp.target_duration": 0.0})


def test_a_read_at_the_resolved_timestamp_never_meets_an_intent() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        ask = requests.Batch(requests.Header(range_id), [requests.QueryResolved(a, b + b"\x00")])
        await c.settle(5)
        (free,) = (await store.execute(ask)).results
        assert isinstance(free, requests.ResolvedResult)
        assert free.ts == free.closed
        txn = c.kv.begin()
        await txn.put(b, b"2")
        await c.settle(5)
        (held,) = (await store.execute(ask)).results
        assert isinstance(held, requests.ResolvedResult)
        assert held.held_by is not None
        assert (held.held_by.key, held.ts) == (b, held.held_by.ts - 1)
        assert held.ts < held.closed, "closed goes on; resolved waits for the transaction"
        answer = await store.execute(
            requests.Batch(requests.Header(range_id, ts=held.ts, follower_ok=True), [requests.Scan(a, b + b"\x00")])
        )
        assert answer.by_follower
        await txn.rollback()

    play(story, settings={**SETTINGS, "txn.buffer_bytes_max": 0})


def test_resolved_is_asked_alone() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        with pytest.raises(UsageError):
            await store.execute(
                requests.Batch(requests.Header(range_id), [requests.QueryResolved(a, a + b"\x00"), requests.Get(a)])
            )

    play(story, settings=SETTINGS)


def test_followers_follow_whoever_holds_the_lease() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.settle(3)
        await c.transfer(b"a", N2)
        await c.kv.put(a, b"2")
        await c.settle(10)
        first = c.node.store
        assert first is not None
        lag = seconds_between(first.replicas[range_id].closing.closed(), c.clock.now())
        assert lag <= LAG_S + INTERVAL_S + 0.5, "n1 follows now"
        await c.transfer(b"a", N1)
        await c.settle(10)
        lag = seconds_between(store.replicas[range_id].closing.closed(), c.clock.now())
        assert lag <= LAG_S + INTERVAL_S + 0.5, "n2 follows again"

    play(story, settings=SETTINGS)


def test_bounded_staleness_takes_the_freshest_timestamp_that_all_spans_can_serve() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        await c.kv.put(c.key(b"a"), b"1")
        await c.kv.put(c.key(b"p"), b"2")
        await c.settle(6)
        spans = [(c.key(b"a"), c.key(b"z"))]
        session = Staleness(sender=c.sender, clock=c.clock, settings=c.settings)
        now = c.clock.now()
        chosen = await session.with_max_staleness(10.0, spans)
        assert chosen.by_followers
        assert seconds_between(chosen.ts, now) <= LAG_S + INTERVAL_S + 0.5
        each = await session.resolved([(c.key(b"a"), c.key(b"b")), (c.key(b"p"), c.key(b"q"))])
        assert chosen.ts <= min(r.ts for r in each)
        assert [await c.kv.get(c.key(k), ts=chosen.ts, follower_ok=True) for k in (b"a", b"p")] == [b"1", b"2"]
        assert session.follower_read_timestamp() <= c.clock.now()
        await c.settle(2)
        assert (await session.with_max_staleness(10.0, spans)).ts > chosen.ts, "a session goes forward"

    play(story, settings=SETTINGS)


def test_a_bound_too_fresh_goes_to_the_leaseholder_or_fails() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        await c.settle(3)
        session = Staleness(sender=c.sender, clock=c.clock, settings=c.settings)
        with pytest.raises(TooStale, match="accept an older one"):
            await session.with_max_staleness(0.1, [(a, a + b"\x00")], nearest_only=True)
        chosen = await session.with_max_staleness(0.1, [(a, a + b"\x00")])
        assert not chosen.by_followers
        assert session.seen == chosen.ts
        assert await c.kv.get(a, ts=chosen.ts, follower_ok=True) == b"1"
        with pytest.raises(UsageError):
            await session.with_min_timestamp(add_seconds(c.clock.now(), 60), [(a, a + b"\x00")])

    play(story, settings=SETTINGS)


def test_a_read_that_insists_on_the_nearest_replica_waits_or_fails_and_is_never_sent_on() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, second = await follower(c, b"a")
        first = c.nodes["n1"].store
        assert first is not None
        batch = read(range_id, a, c.clock.now())

        def insisting(wait_ms: int) -> requests.Batch:
            return structs.replace(
                batch, header=structs.replace(batch.header, ts=c.clock.now(), wait_ms=wait_ms, nearest_only=True)
            )

        with pytest.raises(TooStale, match="not closed on the follower; read an older") as failed:
            await second.execute(insisting(0))
        assert failed.value.facts["behind_s"] == pytest.approx(LAG_S, abs=2 * INTERVAL_S)
        with pytest.raises(TooStale, match="within the wait"):
            await second.execute(insisting(100))
        assert (await second.execute(insisting(5_000))).by_follower, "its time came"
        assert not (await first.execute(insisting(0))).by_follower, "the nearest replica may hold the lease"
        header = structs.replace(insisting(0).header, range_id=RangeId(0))
        near = c.nodes["n2"].sender
        with pytest.raises(TooStale):
            await near.send([requests.Get(a)], header)
        assert (await near.send([requests.Get(a)], structs.replace(header, nearest_only=False))).served[0].node_id == N1

    play(story, settings=SETTINGS)


def test_an_intent_is_too_much_for_a_read_that_insists() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, second = await follower(c, b"a")
        txn = c.kv.begin()
        await txn.put(a, b"2")
        assert await txn.get(a) == b"2", "the read takes the write with it"
        await c.settle(5)
        header = requests.Header(
            range_id, ts=second.replicas[range_id].closing.closed(), follower_ok=True, nearest_only=True
        )
        with pytest.raises(TooStale, match="an intent is in the way"):
            await second.execute(requests.Batch(header, [requests.Get(a)]))
        await txn.rollback()

    play(story, settings=SETTINGS)


def test_close_over_spans_and_in_the_future() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        await c.kv.put(c.key(b"a"), b"1")
        session = Staleness(sender=c.sender, clock=c.clock, settings=c.settings)
        spans = [(c.key(b"a"), c.key(b"z"))]
        at = await session.close(spans)
        assert await session.close(spans, at=at) == at
        resolved = await session.resolved(spans)
        assert all(r.ts >= at for r in resolved)
        with pytest.raises(UnavailableError):
            await session.close(spans, at=add_seconds(c.clock.now(), 3600))

    play(story, settings={**QUEUES_OFF, "closed_timestamp.target_duration": 600.0})


def test_a_slow_request_in_one_range_holds_back_no_other() -> None:
    """One range's write does not get into the log for a minute: the others close as if nothing were, and one can see why."""

    async def story(c: Cluster) -> None:
        a, p = c.key(b"a"), c.key(b"p")
        await c.split(b"m")
        await c.kv.put(a, b"1")
        await c.kv.put(p, b"1")
        slow, fast = c.node.store.holding(a), c.node.store.holding(p)
        assert slow is not None
        assert fast is not None
        await c.settle(5)
        log, go_on = c.node.store.context.log, Event()
        append = log.append

        async def late(range_id: RangeId, payloads: Any) -> Any:
            if range_id == slow.state.descriptor.range_id:
                await go_on.wait()
            return await append(range_id, payloads)

        log.append = late  # type: ignore[method-assign]
        write = c.scope.spawn(c.node.kv.put(a, b"2", timeout=120.0), name="slow write")
        for _ in range(60):
            await c.settle(1)
            assert seconds_between(fast.closing.closed(), c.clock.now()) < LAG_S + 2 * INTERVAL_S
        await c.kv.put(p, b"2")  # busy or idle
        await c.settle(3)
        assert seconds_between(fast.closing.closed(), c.clock.now()) < LAG_S + 2 * INTERVAL_S
        assert seconds_between(slow.closing.closed(), c.clock.now()) > 60
        assert slow.closing.explain().holding().kind.value == "request"
        assert fast.closing.explain().holding().kind.value == ""
        go_on.set()
        ts = await write
        await c.settle(3)
        assert slow.closing.closed() > ts

    play(story, settings=SETTINGS)


def test_a_broken_stream_is_opened_again() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.settle(5)
        before = store.replicas[range_id].closing.closed()
        for connection in c.world.net.open_connections():
            connection.break_now()
        await c.settle(10)
        closed = store.replicas[range_id].closing.closed()
        assert closed > before
        assert seconds_between(closed, c.clock.now()) <= LAG_S + INTERVAL_S + 0.5

    world = play(story, settings=SETTINGS)
    assert world.probes["closedts.stream_broke"] >= 1
    assert world.probes["closedts.full_update"] >= 3


@pytest.mark.parametrize("bug", ["", "M06"])
def test_a_promise_believed_before_its_index_is_noticed_when_the_write_arrives(bug: str) -> None:
    """A follower applies late: the write of index n lies below what was promised for n (I-12, seen by I-10)."""

    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, store = await follower(c, b"a")
        await c.settle(5)
        replica, go_on = store.replicas[range_id], Event()
        apply = replica._apply

        async def late(entries: list[Entry]) -> None:
            await go_on.wait()
            await apply(entries)

        replica._apply = late  # type: ignore[method-assign]
        wrote = await c.kv.put(a, b"2")
        await c.settle(5)
        assert (replica.closing.closed() < wrote) is not bool(bug)
        go_on.set()
        await c.settle(2)
        if bug:
            assert isinstance(replica.failure, InvariantViolation)
            assert replica.failure.rule == "I-10"
        else:
            assert replica.failure is None
            assert replica.closing.closed() > wrote

    play(story, settings=SETTINGS, bugs=frozenset({bug} if bug else ()))


def test_the_frontier_is_explained_over_rpc() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        range_id, _ = await follower(c, b"a")
        await c.settle(5)
        txn = c.kv.begin()
        await txn.put(a, b"2")
        await c.settle(5)
        for address in ("n1:7400", "n2:7400"):
            reply = await c.node.dialer.call(address, FRONTIER, ReplicaFrontiersRequest([range_id]), timeout=5.0)
            (found,) = reply.replicas
            assert found.leaseholder == N1
            assert found.held_by is not None
            assert "has had an intent on" in found.status(c.clock.now())
            assert found.resolved < found.held_by.ts <= found.closed
        await txn.rollback()
        first = c.node.store
        assert first is not None
        everything = await c.node.dialer.call("n1:7400", FRONTIER, ReplicaFrontiersRequest(), timeout=5.0)
        assert [r.range_id for r in everything.replicas] == sorted(first.replicas)

    play(story, settings={**SETTINGS, "txn.buffer_bytes_max": 0})


def test_a_read_of_the_past_does_not_wait_for_a_transaction_that_idles() -> None:
    """It is given a moment to end, then moved above the read; it commits all the same."""

    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"1")
        txn = c.kv.begin(timeout=200.0)
        await txn.put(a, b"2")
        assert await txn.get(a) == b"2"
        await c.settle(5)
        ts = add_seconds(c.clock.now(), -2)
        began = c.world.seconds
        assert await c.kv.get(a, ts=ts, follower_ok=True, timeout=100.0) == b"1"
        assert c.world.seconds - began < 5
        assert await txn.commit() > ts
        assert await c.kv.get(a) == b"2"
        assert await c.kv.get(a, ts=ts) == b"1", "what was read of the past stays"

    play(story, settings=SETTINGS)
