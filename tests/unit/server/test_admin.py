"""Administration on whole nodes in one process."""

from __future__ import annotations

import pytest

from slackwater.codec.layout import kv
from slackwater.errors import UnavailableError, UsageError
from slackwater.protocol.range import requests
from slackwater.runtime import run
from tests.unit.server.cluster import Cluster


def test_split_and_merge_on_one_node() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            node = cluster.nodes[0]
            await cluster.fill(100)
            left, right = await node.admin.split(kv(b"k000050"))
            assert (left.end, right.start) == (kv(b"k000050"),) * 2
            assert await node.admin.split(kv(b"k000050")) == (left, right), "done already"
            assert [r.descriptor for r in await node.admin.meta.read(left.start, right.end)] == [left, right]
            assert len(await cluster.keys()) == 100
            merged = await node.admin.merge(left.start)
            assert (merged.start, merged.end) == (left.start, right.end)
            assert merged.generation > max(left.generation, right.generation)
            assert right.range_id not in node.store.replicas
            assert [r.descriptor for r in await node.admin.meta.read(left.start, right.end)] == [merged]
            assert len(await cluster.keys()) == 100

    run(main())


def test_what_cannot_be_done_is_refused() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            admin = cluster.nodes[0].admin
            for at in (b"\x02abc", b"\xff", kv(b"m") + b"\x00"):
                with pytest.raises(UsageError):
                    await admin.split(at)
            with pytest.raises(UsageError, match="never split"):
                await admin.split(b"\x03a")
            with pytest.raises(UsageError, match="never merged"):
                await admin.merge(b"\x02")
            with pytest.raises(UsageError, match="no right neighbour"):
                await admin.merge(kv(b"x"))
            with pytest.raises(UsageError, match="holds the lease"):
                await admin.change_replicas(kv(b"x"), [7])
            with pytest.raises(UnavailableError):
                await admin.transfer_lease(kv(b"x"), 7)
            with pytest.raises(UsageError, match="no node"):
                await admin.decommission(99)

    run(main())


def test_replicas_come_and_go_and_leases_move() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = cluster.nodes
            await cluster.fill(300)
            for key in (b"\x02", b"\x03z", kv(b"")):
                now = await second.admin.change_replicas(key, [1, 2, 3])
                assert now.replicas == (1, 2, 3)
            await first.admin.transfer_lease(kv(b""), 3)
            await second.kv.put(kv(b"k000001"), b"new")
            assert third.store.replicas[3].state.lease.holder == 3
            with pytest.raises(UsageError, match="holds the lease"):
                await first.admin.change_replicas(kv(b""), [1, 2])
            await first.admin.transfer_lease(kv(b""), 2)
            await first.admin.change_replicas(kv(b""), [1, 2])
            await cluster.until(lambda: 3 not in third.store.replicas)
            assert len(await cluster.keys()) == 300
            await first.admin.change_replicas(kv(b""), [1, 2, 3])
            assert third.store.replicas[3].state.descriptor.replicas == (1, 2, 3)

    run(main())


def test_split_and_merge_with_three_replicas() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = cluster.nodes
            await cluster.fill(200)
            await first.admin.change_replicas(kv(b""), [1, 2, 3])
            left, right = await third.admin.split(kv(b"k000100"))
            await cluster.until(lambda: all(right.range_id in n.store.replicas for n in cluster.nodes))
            await second.admin.transfer_lease(right.start, 2)
            await second.kv.put(kv(b"k000150"), b"between")
            merged = await third.admin.merge(left.start)
            await cluster.until(lambda: all(right.range_id not in n.store.replicas for n in cluster.nodes))
            assert len(await cluster.keys()) == 200
            assert await third.kv.get(kv(b"k000150")) == b"between"
            states = {n.store.replicas[merged.range_id].state.descriptor for n in cluster.nodes}
            assert states == {merged}
            with pytest.raises(UsageError, match="same replicas"):
                await first.admin.merge(b"\x03z")

    run(main())


def test_a_frozen_range_is_thawed_only_after_the_left_side_has_passed() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.change_replicas(kv(b""), [1, 2])
            left, right = await first.admin.split(kv(b"k000005"))
            frozen = await first.admin.ask(requests.Subsume(left.range_id, left.generation), at=right.start)
            assert isinstance(frozen, requests.SubsumeResult)
            with pytest.raises(UnavailableError):
                await first.kv.get(kv(b"k000007"), timeout=0.2)
            with pytest.raises(UnavailableError):
                await first.sender.send([requests.Thaw()], requests.Header(0), at=right.start, timeout=0.2)
            await second.admin.undo_merge(right, left_generation=left.generation)
            assert await first.kv.get(kv(b"k000007")) is not None
            # The merge, late: refused for ever.
            with pytest.raises(UnavailableError):
                await first.sender.send([requests.Merge(right, frozen)], requests.Header(0), at=left.start, timeout=0.3)
            assert len(await cluster.keys()) == 10

    run(main())


def test_undoing_a_merge_that_succeeded_does_no_harm() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.change_replicas(kv(b""), [1, 2])
            left, right = await first.admin.split(kv(b"k000005"))
            merged = await first.admin.merge(left.start)
            await second.admin.undo_merge(right, left_generation=left.generation)
            assert (await first.admin.describe(kv(b"k000007"))).descriptor == merged
            assert len(await cluster.keys()) == 10

    run(main())
