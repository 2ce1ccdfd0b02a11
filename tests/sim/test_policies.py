"""Closing policies on real nodes in virtual time: the present read on followers, commit wait, switching, leases that move."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import kv, prefix_end
from slackwater.config.zones import PolicyKind, ZoneConfig
from slackwater.errors import ConditionFailed, StorageError, UsageError
from slackwater.model.ids import NodeId
from slackwater.protect.zone_changes import change_zone, read_zones, unset_zone, write_zone
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.sim.run import SimJob, run_job
from slackwater.sim.scenario import load
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.replica.driver import Replica
    from slackwater.txn.coordinator import Transaction

load()
N1, N2 = NodeId(1), NodeId(2)
SPAN = (kv(b"g"), kv(b"h"))
SETTINGS = {"queue.interval": 0.0, "closed_timestamp.target_duration": 1.0}
A, B = kv(b"ga"), kv(b"gb")


async def global_span(c: Cluster) -> tuple[Replica, Replica]:
    """A span of its own range on both nodes, leading; the lease is on n1."""
    await c.kv.put(A, b"0")
    await c.node.admin.split(SPAN[0])
    await c.node.admin.split(SPAN[1])
    await c.second_node(b"ga")
    await write_zone(c.kv, ZoneConfig(*SPAN, policy=PolicyKind.LEAD))
    await c.settle(5)
    return replicas(c)


def replicas(c: Cluster) -> tuple[Replica, Replica]:
    """The leading range on n1 and on n2."""
    found = [c.nodes[name].store.holding(A) for name in ("n1", "n2")]
    assert found[0] is not None
    assert found[1] is not None
    return found[0], found[1]


async def present(c: Cluster, key: bytes, *, node: str) -> requests.BatchResult:
    """A read of the present by a client on that very node."""
    client = c.nodes[node].kv
    now = client.context.clock.now()
    header = requests.Header(NO_RANGE, ts=now, uncertainty_limit=client.uncertain_upto(now), follower_ok=True)
    return await client.read([requests.Get(key)], header, movable=True)


def test_every_replica_reads_the_present_and_writers_wait_for_their_time() -> None:
    async def story(c: Cluster) -> None:
        await global_span(c)
        for round_ in range(5):
            before = c.world.seconds
            ts = await c.kv.put(A, b"%d" % round_)
            assert c.clock.now() > ts, "acknowledged before its time"
            assert 0.5 < c.world.seconds - before < 1.5
            for node, node_id in (("n1", N1), ("n2", N2)):
                answer = await present(c, A, node=node)
                assert (answer.served_by, answer.by_follower) == (node_id, True), "no message to anybody"
                assert isinstance(answer.results[0], requests.Value)
                assert answer.results[0].value == b"%d" % round_
            assert await c.kv.get(A, nearest=True) == b"%d" % round_
        assert await c.kv.get(A) == b"4"

    world = play(story, settings=SETTINGS)
    assert world.probes["txn.commit_wait"] >= 5


def test_transactions_over_leading_and_lagging_spans_commit_in_the_future_and_wait() -> None:
    async def story(c: Cluster) -> None:
        await global_span(c)
        plain = kv(b"a")

        async def both(txn: Transaction) -> None:
            count = int(await txn.get(A) or b"0")
            await txn.put(A, b"%d" % (count + 1))
            await txn.put(plain, b"%d" % (count + 1))

        for round_ in range(3):
            txn = c.kv.begin()
            await both(txn)
            ts = await txn.commit()
            assert c.clock.now() > ts
            assert await c.kv.get(A) == await c.kv.get(plain) == b"%d" % (round_ + 1)
            assert await c.kv.get(plain, nearest=True) == b"%d" % (round_ + 1)
        await c.settle()
        assert c.intents() == 0

    play(story, settings=SETTINGS)


def test_nobody_sees_a_value_before_its_time_and_everybody_sees_it_then() -> None:
    """Readers run while a write waits: once one of them has returned the new value, all later ones do."""

    async def story(c: Cluster) -> None:
        await global_span(c)
        _, slow = c.new_client(behind_s=0.4)
        seen: list[tuple[float, float, bytes | None]] = []
        ended: list[float] = []

        async def write() -> None:
            await c.kv.put(A, b"new")
            ended.append(c.world.seconds)

        async def read(which: int) -> None:
            reader = (c.kv, slow)[which % 2]
            began = c.world.seconds
            value = await reader.get(A, nearest=which % 3 > 0)
            seen.append((began, c.world.seconds, value))

        writing = c.scope.spawn(write(), name="write")
        reading = []
        for which in range(60):
            reading.append(c.scope.spawn(read(which), name="read"))
            await c.settle(0.03)
        for task in [writing, *reading]:
            await task
        first = min(end for _, end, value in seen if value == b"new")
        told = min([first, *ended])
        assert any(value == b"0" for _, _, value in seen)
        assert all(value == b"new" for began, _, value in seen if began > told), (told, seen)

    play(story, settings=SETTINGS)


def test_a_condition_that_fails_on_a_value_of_the_future_says_so_when_its_time_has_come() -> None:
    async def story(c: Cluster) -> None:
        await global_span(c)
        _, other = c.new_client()
        writing = c.scope.spawn(c.kv.put(A, b"new"), name="write")
        await c.settle(0.2)
        with pytest.raises(ConditionFailed) as failed:
            await other.cput(A, b"x", expected=b"0")
        assert failed.value.facts["actual"] == b"new"
        assert other.context.clock.now() > max(
            v.ts for v in (await c.kv.read([requests.Get(A)], requests.Header(NO_RANGE))).results
        )
        await writing

    play(story, settings=SETTINGS)


def test_what_was_closed_ahead_survives_a_transfer_a_stop_and_a_restart() -> None:
    async def story(c: Cluster) -> None:
        _, follower = await global_span(c)
        for to in (N2, N1):
            ahead = follower.closing.closed()
            assert ahead > c.clock.now()
            await c.transfer(b"ga", to)
            assert follower.closing.closed() >= ahead
            assert await c.kv.put(A, b"to n%d" % to) > ahead
        await c.transfer(b"ga", N2)
        await c.settle(2)
        ahead = follower.closing.closed()
        # n2 holds the lease and leaves: its epoch ends early, and what it closed ahead must bind whoever comes next.
        await c.nodes["n2"].liveness.leave(horizon=c.nodes["n2"].store.horizon)
        assert c.clock.now() > ahead
        assert await c.kv.put(A, b"after", timeout=30) > ahead
        assert replicas(c)[0].state.lease.holder == N1

    world = play(story, settings=SETTINGS)
    assert world.probes["liveness.leave_waits"] >= 1


def test_policies_are_switched_online_and_nothing_closed_moves_back() -> None:
    async def story(c: Cluster) -> None:
        leader, follower = await global_span(c)
        highest = [MIN]
        stop = []

        async def watch() -> None:
            while not stop:
                closed = Timestamp(follower.closing.closed())
                assert closed >= highest[-1]
                highest.append(closed)
                await c.settle(0.01)

        async def write() -> None:
            while not stop:
                await c.kv.put(A, b"%d" % len(highest))

        tasks = [c.scope.spawn(watch(), name="watch"), c.scope.spawn(write(), name="write")]
        expected = {PolicyKind.LEAD: (-2.0, -0.3), PolicyKind.LAG: (0.5, 2.0)}
        for kind in (PolicyKind.LAG, PolicyKind.LEAD, PolicyKind.LAG, PolicyKind.OFF, PolicyKind.LEAD):
            await change_zone(c.kv, *SPAN, policy=kind)
            await c.settle(6)
            assert leader.closing.policy().kind is kind
            behind = seconds_between(follower.closing.closed(), c.clock.now())
            if kind is PolicyKind.OFF:
                assert behind > 3, "nothing may be closed any more"
            else:
                low, high = expected[kind]
                assert low < behind < high, (kind, behind)
        stop.append(True)
        for task in tasks:
            await task
        assert await unset_zone(c.kv, *SPAN)
        await c.settle(3)
        assert leader.closing.policy().kind is PolicyKind.LAG

    play(story, settings=SETTINGS)


def test_the_cluster_and_a_span_may_close_nothing_or_at_another_pace() -> None:
    async def story(c: Cluster) -> None:
        leader, _ = await global_span(c)
        await change_zone(c.kv, *SPAN, policy=PolicyKind.LAG, duration_ms=250)
        await write_zone(c.kv, ZoneConfig(policy=PolicyKind.OFF))
        other = c.node.store.holding(kv(b"z"))
        assert other is not None
        await c.settle(4)
        before = other.closing.closed()
        await c.settle(4)
        assert other.closing.closed() == before, "off is off"
        for key in (b"\x02", b"\x03z"):  # the system's own ranges
            system = c.node.store.holding(key)
            assert system is not None
            assert seconds_between(system.closing.closed(), c.clock.now()) < 1.0 + 0.2 + 0.5, "they lag as ever"
        behind = seconds_between(leader.closing.closed(), c.clock.now())
        assert 0.2 < behind < 0.25 + 0.2 + 0.3

    play(story, settings=SETTINGS)


def test_ranges_are_split_at_the_bounds_of_spans_and_never_merge_across_one() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(A, b"0")
        await write_zone(c.kv, ZoneConfig(*SPAN, policy=PolicyKind.LEAD))
        await c.settle(1)
        for _ in range(3):
            await c.node.queues.sweep("split")
        held = c.node.store.holding(A)
        assert held is not None
        assert (held.state.descriptor.start, held.state.descriptor.end) == SPAN
        with pytest.raises(UsageError, match="span configuration"):
            await c.node.admin.merge(A)
        await unset_zone(c.kv, *SPAN)
        merged = await c.node.admin.merge(A)
        assert merged.end > SPAN[1]

    play(story, settings=SETTINGS)


def test_the_left_side_of_a_merge_writes_above_what_its_right_side_had_closed_ahead() -> None:
    async def story(c: Cluster) -> None:
        _, follower = await global_span(c)
        await change_zone(c.kv, *SPAN, policy=PolicyKind.LEAD)
        await c.node.admin.split(B)
        await c.settle(2)
        right = c.nodes["n2"].store.holding(B)
        assert right is not None
        ahead = right.closing.closed()
        assert ahead > c.clock.now()
        merged = await c.node.admin.merge(A)
        assert merged.contains(B)
        assert await c.kv.put(B, b"1") > ahead
        assert follower.closing.closed() > MIN

    play(story, settings=SETTINGS)


@pytest.mark.parametrize(
    "config",
    [
        ZoneConfig(policy=PolicyKind.LEAD),
        ZoneConfig(b"\x03", b"\x04", policy=PolicyKind.LEAD),
        ZoneConfig(b"\x03p", b"\x04", policy=PolicyKind.OFF),
        ZoneConfig(b"\x03p", kv(b"f"), policy=PolicyKind.LAG, duration_ms=100),
        ZoneConfig(*SPAN, policy=PolicyKind.LEAD, duration_ms=5),
        ZoneConfig(*SPAN, replication_factor=10),
        ZoneConfig(SPAN[1], SPAN[0]),
        ZoneConfig(kv(b"ga"), kv(b"z")),
    ],
)
def test_configurations_that_cannot_be(config: ZoneConfig) -> None:
    async def story(c: Cluster) -> None:
        await write_zone(c.kv, ZoneConfig(*SPAN, replication_factor=1))
        with pytest.raises(UsageError):
            await write_zone(c.kv, config)
        assert [z.config for z in (await read_zones(c.kv)).records] == [ZoneConfig(*SPAN, replication_factor=1)]

    play(story, settings=SETTINGS)


def test_two_operators_do_not_both_set_overlapping_spans() -> None:
    async def story(c: Cluster) -> None:
        done: list[bool] = []

        async def operate(span: tuple[bytes, bytes]) -> None:
            try:
                await write_zone(c.new_client()[1], ZoneConfig(*span, policy=PolicyKind.LAG, duration_ms=100))
            except UsageError:
                done.append(False)
            else:
                done.append(True)

        spans = [(kv(b"a"), kv(b"c")), (kv(b"b"), kv(b"d")), (kv(b"b"), prefix_end(kv(b"d")))]
        tasks = [c.scope.spawn(operate(span), name="operator") for span in spans]
        for task in tasks:
            await task
        assert sorted(done) == [False, False, True]

    play(story, settings=SETTINGS)


def test_a_transaction_reads_nearby_until_it_writes() -> None:
    async def story(c: Cluster) -> None:
        await global_span(c)
        client = c.nodes["n2"].kv
        await client.put(A, b"1")
        sent: list[bool] = []
        inner = client.context.sender._transport

        class Watching:
            async def batch(self, node_id: NodeId, batch: requests.Batch) -> requests.BatchResult:
                answer = await inner.batch(node_id, batch)
                sent.extend(
                    answer.by_follower for r in batch.requests if isinstance(r, requests.Get) and r.key in (A, B)
                )
                return answer

        client.context.sender._transport = Watching()

        async def work(txn: Transaction) -> None:
            assert await txn.get(A) == b"1"
            await txn.put(B, b"2")
            assert await txn.get(B) == b"2", "its own write"
            assert await txn.get(A) == b"1"

        await client.run(work, nearest=True)
        assert sent[0], "the first read needs nobody else"
        assert not any(sent[1:]), "what has written reads at the leaseholder"
        assert await c.kv.get(B) == b"2"

    play(story, settings=SETTINGS)


@pytest.mark.parametrize("how", ["transfer", "merge", "leave", "replace"])
def test_what_was_read_in_the_future_binds_whoever_leads_next(how: str) -> None:
    """A transaction over a lagging and a leading span commits ahead of time: its reads hold up to there, on both."""

    async def story(c: Cluster) -> None:
        await global_span(c)
        x = kv(b"x")
        await c.node.admin.change_replicas(x, [N1, N2])
        await c.node.admin.split(kv(b"w"))
        await c.node.admin.split(kv(b"y"))
        await c.kv.put(x, b"old")
        txn = c.kv.begin()
        assert await txn.get(x) == b"old"
        await txn.put(A, b"because x was old")
        committing = c.scope.spawn(txn.commit(), name="commit")
        await c.settle(0.2)
        assert txn.commit_ts > c.clock.now(), "its time has not come yet"
        if how == "transfer":
            await c.transfer(b"x", N2)
        elif how == "merge":
            await c.node.admin.merge(kv(b"i"))
        elif how == "replace":
            held = c.node.store.holding(x)
            held.quarantine("for this test")
            with suppress(StorageError):  # the node may be fetching it by itself already
                await c.node.fetch(held.state.descriptor.range_id, N2)
        else:
            await c.node.liveness.leave(horizon=c.node.store.horizon)
        _, other = c.new_client()
        written = await other.put(x, b"new", timeout=60)
        assert written > txn.commit_ts, "it would change what the transaction has read"
        await committing

    play(story, settings=SETTINGS)


def test_a_leaseholder_whose_clock_is_behind_sees_what_a_faster_one_has_acknowledged() -> None:
    async def story(c: Cluster) -> None:
        await global_span(c)
        _, fast = c.new_client(behind_s=-0.4)
        _, other = c.new_client()
        await other.get(A)
        for round_ in range(3):
            await c.settle(1)
            ts = await fast.put(A, b"%d" % round_)
            assert ts > c.node.clock.peek(), "the leaseholder's clock has not come that far"
            assert await other.get(A) == b"%d" % round_

    world = play(story, settings=SETTINGS)
    assert world.probes["replica.read_waits_for_future"] == 3


def test_a_replica_that_was_replaced_leads_again_above_what_it_had_closed_ahead() -> None:
    async def story(c: Cluster) -> None:
        leader, follower = await global_span(c)
        await c.settle(2)
        ahead = follower.closing.closed()
        assert ahead > add_seconds(c.clock.now(), 0.5)
        leader.quarantine("for this test")  # its store fetches it anew, by itself
        while (fresh := c.node.store.holding(A)) is None or fresh is leader:
            await c.settle(0.001)
        assert fresh.state.closed < ahead, "the log knows nothing of what the side transport has promised"
        assert await c.kv.put(A, b"again", timeout=30) > ahead
        assert fresh.state.lease.holder == N1

    play(story, settings=SETTINGS)


@pytest.mark.parametrize("seed", range(3))
def test_policies_switched_under_load_and_faults_break_no_promise(seed: int) -> None:
    result = run_job(SimJob(seed=seed, play="policies", duration_s=24.0))
    assert result.passed, f"{result.oracle} {result.kind}: {result.summary}\n{result.evidence}"
    assert result.probes.get("span_config.changed", 0) >= 1, "no policy was ever switched"
