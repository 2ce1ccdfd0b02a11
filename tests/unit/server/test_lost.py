"""Ranges whose every replica is gone for good: made again from the log, or refused with the reason."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import pytest

from slackwater.codec.layout import KEY_MIN, KV, META, kv
from slackwater.errors import HistoryIncomplete
from slackwater.model.descriptors import Generation, Genesis, RangeDescriptor
from slackwater.model.ids import NodeId, RangeId
from slackwater.replica.allocator import NodeState
from slackwater.replica.driver.history import RangeHistory
from slackwater.replica.snapshot import range_digest
from slackwater.server.bootstrap import begin_again
from slackwater.server.identity import read_identity
from slackwater.server.queues.lost import may_rebuild
from slackwater.server.reports import report
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from slackwater.replica.state import RangeState
    from slackwater.server.member import Member

N1, N2, N3 = NodeId(1), NodeId(2), NodeId(3)
DEAD_SOON = {"liveness__dead_after": 1.0}


def history(node: Member, start: bytes) -> RangeHistory:
    born = read_identity(node.engine).born
    return RangeHistory(begin_again(born), node.log, node.runtime, start=start, bytes_max=1 << 30)


async def replayed(node: Member, born: Genesis | None, start: bytes, *, bytes_max: int) -> RangeState:
    return await RangeHistory(begin_again(born), node.log, node.runtime, start=start, bytes_max=bytes_max).advance()


async def lose_first(cluster: Cluster) -> None:
    """n1 and its store are gone for good; n2 and n3 have range 1 and nothing else."""
    first = cluster.nodes[0]
    await first.admin.change_replicas(KEY_MIN, [N1, N2, N3])
    await cluster.kill(first)
    second = cluster.nodes[1]
    await cluster.until(lambda: dead(second, N1))


def dead(node: Member, other: NodeId) -> bool:
    record = node.liveness.get(other)
    if record is None or node.liveness.own() is None:
        return False
    return (node.liveness.refreshed_at - record.expiration) > (1_100_000 << 10)


async def sweep(*nodes: Member) -> None:
    for node in nodes:
        await node.queues.sweep("lost", "nudge")


def test_ranges_of_a_node_that_is_gone_for_good_are_made_again_with_every_acknowledged_write():
    async def main():
        async with Cluster(3, **DEAD_SOON) as cluster:
            first, second, third = cluster.nodes
            await cluster.fill(50)
            await first.admin.split(kv(b"k000020"))
            await first.admin.split(kv(b"k000040"))
            await first.kv.put_rows([kv(b"k000030"), kv(b"k000045")], [b"after the split"] * 2)
            lost = set(first.store.replicas) - {1}
            assert len(lost) == 4
            states = {r: first.store.replicas[r].state for r in lost}
            for r in lost:
                made = await history(first, states[r].descriptor.start).advance()
                assert made == states[r]
            await lose_first(cluster)
            await cluster.until(
                lambda: lost <= set(second.store.replicas) | set(third.store.replicas),
                poke=lambda: sweep(second, third),
            )
            rows = await third.kv.scan(kv(b""), b"\x05")
            assert len(rows.keys) == 50
            values = dict(zip(rows.keys, rows.values, strict=True))
            assert values[kv(b"k000030")] == values[kv(b"k000045")] == b"after the split"
            await third.kv.put_rows([kv(b"new")], [b"written"])
            again = {r: replica.state for n in (second, third) for r, replica in n.store.replicas.items()}
            assert all(N1 in again[r].descriptor.replicas and again[r].lease.holder != N1 for r in lost)

    asyncio.run(main())


def test_a_node_that_was_thought_dead_and_comes_back_finds_one_more_replica_and_is_the_same():
    async def main():
        async with Cluster(3, **DEAD_SOON) as cluster:
            first, second, third = cluster.nodes
            await cluster.fill(10)
            await lose_first(cluster)
            await cluster.until(lambda: made_again(second, third), poke=lambda: sweep(second, third))
            await third.kv.put_rows([kv(b"meanwhile")], [b"written"])
            again = await cluster.add(first.engine, 0)
            newer = made_again(second, third)
            await cluster.until(
                lambda: all(again.store.replicas[r].state == one.store.replicas[r].state for r, one in newer.items())
            )
            for range_id, one in newer.items():
                state = one.store.replicas[range_id].state
                assert set(state.descriptor.replicas) == {N1, one.node_id}
                assert range_digest(one.engine, state) == range_digest(again.engine, state)

    asyncio.run(main())


def made_again(*nodes: Member) -> dict[RangeId, Member]:
    """Where r2 and r3 are now; nothing unless both are somewhere."""
    found = {r: node for node in nodes for r in node.store.replicas if r != 1}
    return found if set(found) == {2, 3} else {}


def test_what_the_log_makes_is_byte_for_byte_what_the_replica_holds():
    async def main():
        async with Cluster(1) as cluster:
            first = cluster.nodes[0]
            await cluster.fill(30)
            await first.admin.split(kv(b"k000010"))
            await cluster.fill(30, size=20)
            for range_id, replica in first.store.replicas.items():
                again = history(first, replica.state.descriptor.start)
                state = await again.advance()
                if range_id == 1:
                    continue  # its node goes on writing there
                assert state == replica.state
                assert range_digest(again._engine, state) == range_digest(first.engine, replica.state)

    asyncio.run(main())


def test_a_replica_that_is_named_and_was_never_filled_makes_itself_from_the_log():
    async def main():
        async with Cluster(2, **DEAD_SOON) as cluster:
            first, second = cluster.nodes
            await cluster.fill(10)
            await first.admin.change_replicas(KEY_MIN, [N1, N2])
            for range_id in (2, 3):
                old = first.store.replicas[RangeId(range_id)].state.descriptor
                await first.admin._set_replicas(old, (N1, N2))
            assert set(second.store.replicas) == {1}
            await cluster.kill(first)
            await cluster.until(lambda: {2, 3} <= set(second.store.replicas), poke=lambda: sweep(second))
            assert len(await cluster.keys()) == 10

    asyncio.run(main())


@pytest.mark.parametrize("how", ["trimmed", "merged", "older", "other version", "too long"])
def test_what_cannot_be_made_for_certain_is_refused(how: str):
    async def main():
        async with Cluster(1) as cluster:
            first = cluster.nodes[0]
            await cluster.fill(10)
            born, limit = read_identity(first.engine).born, 1 << 30
            state = first.store.replicas[RangeId(3)].state
            match how:
                case "trimmed":
                    await first.log.trim(RangeId(3), upto=state.position)
                case "merged":
                    await first.admin.split(kv(b"m"))
                    await first.admin.merge(kv(b"a"))
                case "older":
                    born = None
                case "other version":
                    born = Genesis(born.at, b"?")
                case "too long":
                    limit = 100
            why = {
                "trimmed": "trimmed",
                "merged": "merge",
                "older": "older than the record",
                "other version": "another version",
                "too long": "rebuild_log_bytes",
            }
            with pytest.raises(HistoryIncomplete, match=why[how]):
                await replayed(first, born, state.descriptor.start, bytes_max=limit)

    asyncio.run(main())


def test_a_lost_range_whose_log_was_trimmed_is_left_alone_and_reported():
    async def main():
        async with Cluster(3, **DEAD_SOON) as cluster:
            first, second, _ = cluster.nodes
            await cluster.fill(10)
            head = await first.log.head(RangeId(3))
            await lose_first(cluster)
            await second.log.trim(RangeId(3), upto=head)
            await cluster.until(
                lambda: "the log was trimmed" in second.queues.context.lost.get(RangeId(3), ""),
                poke=lambda: sweep(second),
            )
            assert "start n1 again, or restore a backup" in "".join(report(second.node).warnings), "status says so"
            assert RangeId(3) not in second.store.replicas
            assert await second.log.head(RangeId(3)) == head, "nothing was proposed either"

    asyncio.run(main())


def test_the_log_of_a_range_that_waits_for_its_second_replica_is_kept():
    async def main():
        async with Cluster(2) as cluster:
            first = cluster.nodes[0]
            await cluster.fill(10)
            await first.engine.flush()
            await cluster.until(lambda: first.store.durable.get(RangeId(3), 0) > 0)
            await first.queues.sweep("trim")
            assert await history(first, KV).advance()
            await first.admin.change_replicas(kv(b""), [N1, N2])
            trimmed = first.queues.queues[7].trimmed  # type: ignore[attr-defined]
            await cluster.until(lambda: trimmed.get(3, 0) > 0, poke=lambda: first.queues.sweep("trim"))

    asyncio.run(main())


def test_the_log_is_kept_for_the_second_replica_while_its_node_is_dead():
    """Found by seed 701484142: the log went past a dead node's replica, and then the only other one could not be read."""

    async def main():
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            for key in (META, kv(b"")):
                await first.admin.change_replicas(key, [N1, N2])
            trimmed = first.queues.queues[7].trimmed  # type: ignore[attr-defined]
            await cluster.fill(10)
            await cluster.until(lambda: trimmed.get(3, 0) > 0, poke=lambda: first.queues.sweep("trim"))
            behind = second.store.replicas[RangeId(3)].state.position
            await cluster.kill(second)
            await cluster.fill(10, prefix=b"m")
            first.settings.set("liveness.dead_after", 1.0)
            await cluster.until(lambda: dead(first, N2))
            await cluster.until(lambda: first.store.durable[RangeId(3)] > behind, poke=first.engine.flush)
            await first.queues.sweep("trim")
            assert trimmed[3] <= behind

    asyncio.run(main())


def test_who_makes_a_range_again():
    def states(**by_node: NodeState):
        return lambda node: by_node[f"n{node}"]

    def among(*replicas: NodeId) -> RangeDescriptor:
        return RangeDescriptor(RangeId(7), b"a", b"b", replicas, Generation(1))

    live, dead_, unknown = NodeState.LIVE, NodeState.DEAD, NodeState.UNKNOWN
    assert may_rebuild(among(N1), N2, states(n1=dead_))
    assert not may_rebuild(among(N1), N2, states(n1=unknown)), "it may only be away"
    assert not may_rebuild(among(N1, N3), N2, states(n1=dead_, n3=live))
    assert may_rebuild(among(N1, N2), N2, states(n1=unknown)), "it is named: nothing has to be changed for it"
    assert not may_rebuild(among(N1, N2), N2, states(n1=live)), "it can be fetched"
