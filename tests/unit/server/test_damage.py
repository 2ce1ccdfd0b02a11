"""Replicas that lost rows: who is believed, who is fetched anew, what is sent and what is refused (I-34)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NoReturn

import msgspec
import pytest

from slackwater.codec.layout import kv
from slackwater.errors import DamageError, StorageError, UnavailableError, UsageError
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.node.snapshots import SnapshotBlock
from slackwater.replica.rebuild import copy_whole
from slackwater.replica.snapshot import check_whole, send_parts
from slackwater.replica.state import encode_state, state_key
from slackwater.runtime import run
from slackwater.runtime.seam import Family
from slackwater.runtime.sync import Event
from slackwater.server.damage import refetch_replica
from slackwater.server.health import health
from slackwater.server.queues.check import CheckQueue
from slackwater.server.queues.context import Visit, view_cluster
from slackwater.server.reports import report
from slackwater.sim.rot import Rotten, RottenReader
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.protocol.node.snapshots import SnapshotPart
    from slackwater.server.member import Member

ROWS = 50
R3 = RangeId(3)


def lose(node: Member, first: int, last: int) -> None:
    """Take rows out of a node's engine, behind the back of its replica."""
    batch = WriteBatch()
    batch.delete_range(Family.DATA, kv(b"k%06d" % first), kv(b"k%06d" % last))
    node.engine.write(batch)


def whole(node: Member) -> bool:
    replica = node.store.replicas.get(R3)
    if replica is None or replica.failure is not None:
        return False
    try:
        check_whole(node.engine, replica.state)
    except DamageError:
        return False
    return True


async def check(node: Member) -> None:
    await CheckQueue().check(
        Visit(node.queues.context, node.store.replicas[R3], await view_cluster(node.queues.context))
    )


async def filled(cluster: Cluster) -> list[Member]:
    await cluster.nodes[0].admin.change_replicas(kv(b""), [1, 2, 3])
    await cluster.fill(ROWS)
    return list(cluster.nodes)


def test_two_copies_that_lost_the_same_rows_do_not_outvote_the_one_that_has_them() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = await filled(cluster)
            for node in (first, second):
                lose(node, 10, 30)
            await check(first)
            await cluster.until(lambda: all(map(whole, (first, second, third))))
            assert len(await cluster.keys()) == ROWS

    run(main())


def test_where_nobody_can_tell_nothing_is_touched_and_an_operator_is_asked() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = await filled(cluster)
            for node, rows in ((first, 10), (second, 20), (third, 30)):
                lose(node, rows, rows + 5)
            before = [node.store.replicas[R3] for node in (first, second, third)]
            await check(first)
            assert [node.store.replicas[R3] for node in (first, second, third)] == before
            assert all(replica.failure is None for replica in before)
            question = first.queues.context.open_questions()[R3]
            assert "none holds what its statistics say" in question
            assert f"n1: {ROWS - 5} of {ROWS} versions" in question
            assert report(first.node).questions == {R3: question}
            assert question in health(first.node).warnings

    run(main())


def test_an_operator_has_a_replica_fetched_anew_only_if_another_is_healthy() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, second, third = await filled(cluster)
            lose(first, 10, 15)
            old = first.store.replicas[R3]
            await refetch_replica(second, R3, NodeId(1))
            await cluster.until(lambda: first.store.replicas.get(R3) is not old and whole(first))
            for node in (second, third):
                node.store.replicas[R3].suspend(DamageError("for a test"))
            with pytest.raises(UsageError, match="no other node"):
                await refetch_replica(second, R3, NodeId(1))

    run(main())


def test_a_replica_that_lost_rows_is_not_sent_and_is_fetched_anew() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            _first, second, third = await filled(cluster)
            lose(second, 10, 30)
            third.store.replicas[R3].quarantine("for a test")
            with pytest.raises(UnavailableError, match="could not be read"):
                await third.fetch(R3, NodeId(2))
            assert second.store.damage.refused == 1
            assert second.store.damage.incidents[-1].damage
            await cluster.until(lambda: whole(second) and whole(third))

    run(main())


def test_a_snapshot_of_which_a_part_is_missing_is_not_installed() -> None:
    async def main() -> None:
        async with Cluster(2) as cluster:
            first, second = cluster.nodes
            await cluster.fill(ROWS)
            await first.admin.change_replicas(kv(b""), [1, 2])
            replica = first.store.replicas[R3]
            second.store.replicas[R3].quarantine("for a test")

            async def truncated() -> AsyncIterator[SnapshotPart]:
                lost = MemoryEngine()
                for part in send_parts(first.engine, replica.state):
                    if isinstance(part, SnapshotBlock):
                        batch = WriteBatch()
                        half = len(part.keys) // 2 if part.family == Family.DATA else len(part.keys)
                        batch.put_many(Family(part.family), part.keys[:half], part.values[:half])
                        lost.write(batch)
                for part in send_parts(lost, replica.state):  # its digest is right: that of what is sent
                    yield part

            with pytest.raises(DamageError, match="statistics"):
                await second.store.install_snapshot(truncated())
            assert second.store.damage.refused == 1
            await cluster.until(lambda: whole(second))

    run(main())


def test_a_damaged_store_is_rebuilt_without_what_is_not_whole() -> None:
    async def main() -> None:
        async with Cluster(3) as cluster:
            first, *_ = await filled(cluster)
            replica, key = first.store.replicas[R3], kv(b"k000020")
            rot = (Rotten(Family.DATA, key, key + b"\xff"),)
            new = MemoryEngine()
            done = copy_whole(RottenReader("n1", first.engine, rot, lambda: None), new)
            assert set(done.left_out) == {R3}
            assert set(done.kept) == set(first.store.replicas) - {R3}
            for range_id in done.kept:
                check_whole(new, first.store.replicas[range_id].state)
            assert new.cursor(Family.DATA, start=replica.state.descriptor.start, end=b"\xff").chunk(9)[0] == []

            alone = msgspec.structs.replace(
                replica.state, descriptor=msgspec.structs.replace(replica.state.descriptor, replicas=(NodeId(1),))
            )
            batch = WriteBatch()
            batch.put(Family.LOCAL, state_key(R3), encode_state(alone))
            first.engine.write(batch)
            with pytest.raises(StorageError):
                copy_whole(RottenReader("n1", first.engine, rot, lambda: None), MemoryEngine())

    run(main())


def test_a_replica_is_fetched_anew_although_its_leaseholder_never_answers() -> None:
    """Found by seed 326866011: two of three replicas had failed, the holder's too, and both asked it how the range went on."""

    async def main() -> None:
        async with Cluster(3) as cluster:
            *_, third = await filled(cluster)
            fetch, tries = third.fetch, []

            async def refused_once(range_id: RangeId, source: NodeId) -> None:
                tries.append(source)
                if len(tries) <= 2:
                    raise UnavailableError("not yet")
                await fetch(range_id, source)

            async def never(_key: bytes) -> NoReturn:
                await Event().wait()
                raise AssertionError("nothing sets it")

            third.fetch, third.admin.describe = refused_once, never  # type: ignore[method-assign]
            third.store.replicas[R3].quarantine("for a test")
            await cluster.until(lambda: len(tries) > 2 and whole(third))

    run(main())
