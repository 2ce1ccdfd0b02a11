"""Upkeep of ranges on whole nodes in one process: each queue does its work, and settles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.codec.layout import anchored_span, kv
from slackwater.config.zones import ZoneConfig
from slackwater.errors import LogTrimmed
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import write_zone
from slackwater.protocol.range import requests
from slackwater.runtime import run
from slackwater.runtime.seam import Family
from slackwater.server.queues.check import CheckQueue
from slackwater.server.queues.context import Visit, view_cluster
from slackwater.storage.batch import WriteBatch
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.server.member import Member
    from slackwater.txn.coordinator import Transaction


async def sweep_all(cluster: Cluster, *only: str) -> None:
    """One sweep on every node."""
    for node in cluster.nodes:
        await node.queues.sweep(*only)


def replicas_of(cluster: Cluster, range_id: int) -> set[int]:
    """The nodes that really have a replica."""
    return {n.node_id for n in cluster.nodes if n.store and range_id in n.store.replicas}


def test_ranges_are_replicated_over_zones_and_follow_their_configuration() -> None:
    async def main() -> None:
        async with Cluster(4, locality=("a", "a", "b", "c")) as cluster:
            await cluster.fill(50)
            await cluster.until(
                lambda: all(replicas_of(cluster, r) == {1, 3, 4} for r in (1, 2, 3)),
                poke=lambda: sweep_all(cluster, "nudge", "replicate"),
            )
            first = cluster.nodes[0]
            await write_zone(first.kv, ZoneConfig(kv(b"k000010"), kv(b"k000020"), 4))
            await cluster.until(
                lambda: any(
                    r.state.descriptor.start == kv(b"k000010")
                    and r.state.descriptor.end == kv(b"k000020")
                    and len(r.state.descriptor.replicas) == 4
                    for r in first.store.replicas.values()
                ),
                poke=lambda: sweep_all(cluster, "split", "replicate"),
            )
            assert len(await cluster.keys()) == 50
            for node in cluster.nodes:
                assert not node.queues.failures["replicate"], node.queues.context.findings

    run(main())


def test_a_dead_node_is_replaced_and_an_unknown_one_is_not() -> None:
    async def main() -> None:
        async with Cluster(4) as cluster:
            first, last = cluster.nodes[0], cluster.nodes[2]
            for key in (b"\x02", b"\x03z", kv(b"")):
                await first.admin.change_replicas(key, [1, 2, 3])
            await cluster.fill(20)
            cluster.nodes.remove(last)
            await cluster.kill(last)
            await cluster.until(lambda: not first.liveness.get(3).live_at(first.clock.peek()))
            for _ in range(3):
                await sweep_all(cluster, "replicate")
            assert replicas_of(cluster, 3) == {1, 2}, "expired, but not dead"
            for node in cluster.nodes:
                node.settings.set("liveness.dead_after", 1.0)
            await cluster.until(
                lambda: all(
                    first.store.replicas[r].state.descriptor.replicas == (1, 2, 4) and 4 in replicas_of(cluster, r)
                    for r in (1, 2, 3)
                ),
                poke=lambda: sweep_all(cluster, "nudge", "replicate"),
            )

    run(main())


def test_decommissioning_empties_a_node_and_draining_moves_its_leases() -> None:
    async def main() -> None:
        async with Cluster(4) as cluster:
            first, second = cluster.nodes[0], cluster.nodes[1]
            for key in (b"\x02", b"\x03z", kv(b"")):
                await first.admin.change_replicas(key, [1, 2, 3])
            await first.admin.transfer_lease(kv(b""), 2)
            progress = await first.admin.decommission(2)
            assert (progress.replicas_left, progress.leases_left, progress.done) == ([1, 2, 3], 1, False)
            await cluster.until(
                lambda: not second.store.replicas,
                poke=lambda: sweep_all(cluster, "nudge", "lease", "replicate"),
            )
            done = await cluster.nodes[3].admin.decommission(2)
            assert done.done
            assert done.leases_left == 0
            assert await first.drain() == 0
            assert not any(r.state.lease.holder == 1 for r in cluster.nodes[2].store.replicas.values())
            await cluster.fill(10)

    run(main())


def test_large_ranges_split_and_small_ones_merge() -> None:
    async def main() -> None:
        async with Cluster(1, range__max_bytes=20_000, range__min_bytes=4_000) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(600, size=100)

            def largest() -> int:
                return max(r.state.stats[2] for r in node.store.replicas.values() if r.state.stats)

            await cluster.until(lambda: largest() <= 20_000, poke=lambda: sweep_all(cluster, "split"))
            assert len(node.store.replicas) >= 6
            for replica in list(node.store.replicas.values()):
                here = replica.state.descriptor
                keys, _ = node.engine.cursor(Family.DATA, start=here.start, end=here.end).chunk(10_000)
                assert all(here.contains(k[:-8]) for k in keys)
            assert len(await cluster.keys()) == 600
            await node.kv.delete_range(kv(b""), b"\x05")
            node.settings.override({"range.min_bytes": 1 << 20, "range.max_bytes": 16 << 20})
            await cluster.until(
                lambda: len(node.store.replicas) == 3, poke=lambda: sweep_all(cluster, "nudge", "merge")
            )
            assert await cluster.keys() == []

    run(main())


def test_a_busy_range_splits_where_it_is_busy() -> None:
    async def main() -> None:
        async with Cluster(1, range__max_requests=10) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(1000)

            async def load() -> None:
                for i in range(0, 1000, 5):
                    await node.kv.get(kv(b"k%06d" % i))
                await sweep_all(cluster, "split")

            await cluster.until(lambda: len(node.store.replicas) > 3, poke=load)
            starts = sorted(r.state.descriptor.start for r in node.store.replicas.values())
            assert starts[-1] > kv(b"k000100")

    run(main())


def test_a_range_left_frozen_is_thawed_and_leases_are_taken_up() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.change_replicas(kv(b""), [1, 2])
            await first.admin.change_replicas(b"\x02", [1, 2])
            left, right = await first.admin.split(kv(b"k000005"))
            await first.admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
            cluster.nodes.remove(first)
            await cluster.kill(first)
            await cluster.until(
                lambda: second.store.replicas[right.range_id].state.frozen is None,
                poke=lambda: sweep_all(cluster, "nudge", "frozen"),
            )
            assert len(await cluster.keys()) == 10

    run(main())


def test_logs_are_trimmed_and_a_replica_that_missed_too_much_takes_a_snapshot() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, third = cluster.nodes[0], cluster.nodes[2]
            for key in (b"\x02", kv(b"")):
                await first.admin.change_replicas(key, [1, 2, 3])
            await cluster.fill(50)
            trimmed = first.queues.queues[7].trimmed  # type: ignore[attr-defined]
            await cluster.until(lambda: trimmed.get(3, 0) > 0, poke=lambda: sweep_all(cluster, "trim"))
            durable = [n.store.durable[3] for n in cluster.nodes]
            assert trimmed[3] <= min(durable)
            engine = third.engine
            cluster.nodes.remove(third)
            await cluster.kill(third)
            await cluster.fill(50, prefix=b"m")
            before = trimmed[3]
            await sweep_all(cluster, "trim")
            assert trimmed[3] == before, "a node that is only away still needs its log"
            await cluster.until(lambda: not first.liveness.get(3).live_at(first.clock.peek()))
            for node in cluster.nodes:
                node.settings.set("liveness.dead_after", 1.0)
            await cluster.until(lambda: trimmed[3] > before, poke=lambda: sweep_all(cluster, "nudge", "trim"))
            again = await cluster.add(engine, 2)  # type: ignore[arg-type]
            await cluster.until(
                lambda: (
                    3 in again.store.replicas
                    and again.store.replicas[3].failure is None
                    and again.store.replicas[3].state.position >= first.store.replicas[3].state.position
                )
            )
            assert len(await cluster.keys()) == 100

    run(main())


def test_the_logs_of_absorbed_ranges_are_trimmed_even_after_a_restart() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(30)
            ranges = [(await node.admin.split(kv(b"k%06d" % at)))[1].range_id for at in (5, 10, 20)]
            await node.kv.put(kv(b"k000015"), b"again")
            await node.admin.merge(kv(b"k000012"))  # the second absorbs the third, and then is absorbed itself
            await node.admin.merge(kv(b"k000007"))
            left = node.store.holding(kv(b"k000007")).state.descriptor.range_id
            assert [node.store.merged.of(r) for r in (left, *ranges[1:])] == [True, False, False]
            await node.store.flush()
            await cluster.kill(node)
            again = await cluster.add(node.engine, 0)  # type: ignore[arg-type]
            assert again.store.merged.of(left), "it is in the engine"
            assert [await again.log.head(r) > 0 for r in ranges[1:]] == [True, True]
            await cluster.until(
                lambda: not again.store.merged.of(left), poke=lambda: sweep_all(cluster, "nudge", "trim")
            )
            for absorbed in ranges[1:]:
                with pytest.raises(LogTrimmed):
                    await anext(aiter(again.log.tail(absorbed, after=0)))
            assert len(await cluster.keys()) == 30

    run(main())


def test_a_replica_that_differs_is_found_and_replaced() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, third = cluster.nodes[0], cluster.nodes[2]
            await first.admin.change_replicas(kv(b""), [1, 2, 3])
            await cluster.fill(50)

            async def check() -> dict[int, bytes]:
                queue = CheckQueue()
                return dict(
                    await queue.check(
                        Visit(first.queues.context, first.store.replicas[3], await view_cluster(first.queues.context))
                    )
                )

            assert len(set((await check()).values())) == 1
            bad = WriteBatch()
            bad.put(Family.DATA, kv(b"k000007") + b"\x80" + b"\x00" * 7, b"rot")
            third.engine.write(bad)
            wrong = third.store.replicas[3]
            assert len(set((await check()).values())) == 2
            assert "differ" in first.queues.context.findings[-1]
            await cluster.until(
                lambda: third.store.replicas.get(3) not in (None, wrong) and third.store.replicas[3].failure is None
            )
            assert len(set((await check()).values())) == 1

    run(main())


def test_nothing_stays_behind_a_dead_coordinator() -> None:
    async def main() -> None:
        async with Cluster(2, txn__expiration=0.5, txn__record_retention=1) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.split(kv(b"k000005"))
            await second.kv.run(lambda txn: _write_both(txn, b"committed"))
            lost = second.kv.begin()
            await _write_both(lost, b"never")
            await lost.get(kv(b"k000001"))  # so that its writes are not held back
            assert _left(first, Family.LOCK) == 2
            cluster.nodes.remove(second)
            await cluster.kill(second)
            await cluster.until(
                lambda: not _left(first, Family.LOCK) and not _left(first, Family.LOCAL),
                poke=lambda: sweep_all(cluster, "txns"),
            )
            assert await first.kv.get(kv(b"k000001")) == b"committed"
            assert await first.kv.get(kv(b"k000007")) == b"committed"

    run(main())


async def _write_both(txn: Transaction, value: bytes) -> None:
    await txn.put(kv(b"k000001"), value)
    await txn.put(kv(b"k000007"), value)


def _left(node: Member, family: Family) -> int:
    """Intents, or transaction records, in the plain key space."""
    span = Span(kv(b""), b"\x05")
    if family is Family.LOCAL:
        span = anchored_span(span)
    return len(node.engine.cursor(family, start=span.start, end=span.end).chunk(100)[0])


def test_the_index_is_repaired() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(10)
            # A split whose coordinator died before it could publish.
            here = node.store.replicas[3].state.descriptor
            await node.admin.ask(requests.Split(kv(b"k000005"), await node.new_range_id()), at=kv(b"k000005"))
            assert [r.descriptor for r in await node.admin.meta.read(here.start, here.end)] == [here]
            await sweep_all(cluster, "index")
            records = await node.admin.meta.read(here.start, here.end)
            assert [r.descriptor.end for r in records] == [kv(b"k000005"), here.end]

    run(main())
