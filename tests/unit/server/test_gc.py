"""The collector: when a range is due, how its work is divided, and whole nodes that collect by zones and protections."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

import msgspec
import pytest

from slackwater.clock.timestamp import MAX, MIN, Timestamp, add_seconds, from_us
from slackwater.codec.layout import kv, table_span
from slackwater.config.zones import GC_TTL_S_MIN
from slackwater.errors import BelowGcThreshold, RetryableError, UsageError
from slackwater.model.protection import Mode
from slackwater.model.spans import Span
from slackwater.protect.zone_changes import change_zone
from slackwater.protocol.range import requests
from slackwater.replica.driver.duty import PAUSE_S_MAX, Duty
from slackwater.server.queues.gc import (
    COMPACT_SHARE,
    COMPACT_VERSIONS_MIN,
    GcProgress,
    batches,
    is_due,
    score,
    wants_compaction,
)
from slackwater.storage.gc import GcPoint, keys_of
from slackwater.storage.stats import Stats
from tests.unit.catalog.test_driver import COLUMNS, KEY
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import DEADLINE_S, Cluster

if TYPE_CHECKING:
    from slackwater.runtime.seam import Family
    from slackwater.server.member import Member

NOW = from_us(1_000_000_000_000)
HOUR_S = 3600.0


def garbage(count: int, *, age_s: float) -> Stats:
    """So many bytes of garbage of one age, and as much that lives."""
    second = 1_000_000 - int(age_s)
    return Stats(live_bytes=count, total_bytes=2 * count, versions=20, garbage_weight=count * second)


def due(last: GcProgress, stats: Stats) -> bool:
    return is_due(last, stats, now=NOW, ttl_s=HOUR_S, interval_s=30, slack=0.05, urgent=2.0)


def test_the_score_is_bytes_times_age_in_live_bytes_times_the_ttl() -> None:
    assert score(garbage(1 << 24, age_s=HOUR_S), now=NOW, ttl_s=HOUR_S) == pytest.approx(1.0)
    assert score(garbage(1 << 24, age_s=4 * HOUR_S), now=NOW, ttl_s=HOUR_S) == pytest.approx(4.0)
    assert score(garbage(1 << 10, age_s=HOUR_S), now=NOW, ttl_s=HOUR_S) < 0.01
    assert score(Stats(5, 1, 5, 1, 1), now=NOW, ttl_s=HOUR_S) == 0


def test_a_range_is_due_when_what_was_left_is_old_enough_and_at_most_so_often() -> None:
    small, heavy = garbage(1 << 12, age_s=HOUR_S), garbage(1 << 24, age_s=5 * HOUR_S)
    assert due(GcProgress(), small), "never looked at"
    assert not due(GcProgress(), Stats(5, 1, 5, 1, 1)), "no garbage"
    ago = {s: add_seconds(NOW, -s) for s in (10, 60, 200, 3000, 4000)}
    assert not due(GcProgress(ago[3000], ago[3000]), heavy), "nothing that is left is old enough"
    assert due(GcProgress(ago[200], ago[4000]), small)
    assert not due(GcProgress(ago[60], ago[4000]), small), "a twentieth of the ttl has not passed"
    assert due(GcProgress(ago[60], ago[4000]), heavy), "too heavy to wait"
    assert due(GcProgress(ago[200], MIN, why_not="x"), small), "the last try failed"


def test_batches_are_bounded_and_a_key_loses_its_oldest_versions_first() -> None:
    times = tuple(map(Timestamp, range(9, 0, -1)))
    points = [GcPoint(b"a", times), GcPoint(b"b", times[:4], vanishing=True), GcPoint(b"c", times[:1])]
    made = list(batches(points, limit=5))
    for one in made:
        assert sum(len(t) for _, t in (*one.keys, *one.vanishing)) <= 5
    assert made[0] == requests.GcVersions(((b"a", (5, 4, 3, 2, 1)),))
    assert made[1].keys[0] == (b"a", (9, 8, 7, 6))
    gone = [key for one in made for key, _ in one.vanishing]
    assert gone == [b"b"], "it vanishes with its last batch only"
    for point in points:
        found = [t for one in made for key, ts in (*one.keys, *one.vanishing) if key == point.key for t in reversed(ts)]
        assert found == sorted(point.timestamps)


def test_files_are_compacted_when_much_was_deleted_or_much_beside_what_is_left() -> None:
    stats = Stats(versions=2_000)
    assert not wants_compaction(500, stats, limit=50_000)
    assert wants_compaction(2_500, stats, limit=50_000)
    assert not wants_compaction(2_500, Stats(versions=100_000), limit=50_000)
    assert not wants_compaction(2_500, Stats(versions=2_500 * COMPACT_SHARE), limit=50_000)
    assert wants_compaction(2_501, Stats(versions=2_500 * COMPACT_SHARE), limit=50_000), "scans pass what is gone"
    assert wants_compaction(50_000, Stats(versions=100_000), limit=50_000)
    assert not wants_compaction(50_000, stats, limit=0)


def test_every_piece_of_work_is_paid_for_in_full_however_long_it_took() -> None:
    for worked_s in (0.001, 0.2, 7.0):
        duty = Duty()
        duty.worked(worked_s, share=0.1)
        duty.worked(worked_s, share=0.1)
        pauses = list(iter(duty.pause_s, 0.0))
        assert sum(pauses) == pytest.approx(18 * worked_s)
        assert max(pauses) <= PAUSE_S_MAX, "a longer pause looks in between whether it is still wanted"
    duty.worked(1.0, share=0.5)
    duty.forgive()
    assert duty.pause_s() == 0
    duty.worked(5.0, share=1.0)
    assert duty.pause_s() == 0, "all of the time is its share"


# --- whole nodes ---------------------------------------------------------------------------------------------------


async def set_ttl(node: Member, seconds: float, span: Span | None = None) -> None:
    await change_zone(node.kv, span.start if span else b"", span.end if span else b"", gc_ttl_s=seconds)


async def collect(node: Member) -> None:
    """Collect whatever may be collected of the ranges led here."""
    for replica in list(node.store.replicas.values()):
        if replica.state.lease.holder == node.node_id:
            await node.queues.gc.collect(node.queues.context, replica)


def times_of(node: Member, key: bytes) -> list[int]:
    found = [versions for _, versions in keys_of(node.engine, key, key + b"\x00")]
    return [ts for versions in found for ts, _ in versions]


async def history(node: Member, key: bytes, count: int) -> list[Timestamp]:
    return [await node.kv.put(key, b"%d" % i) for i in range(count)]


async def old_enough(node: Member, ts: Timestamp, ttl_s: float) -> None:
    """Until everything at or below `ts` may be collected."""
    await node.kv.context.wait_past(add_seconds(ts, ttl_s + 2 * node.settings["clock.max_offset"]))


def test_a_node_collects_what_is_older_than_its_zone_allows_and_reads_say_from_when_on_they_work() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            key = kv(b"k")
            await set_ttl(node, GC_TTL_S_MIN)
            times = await history(node, key, 20)
            await collect(node)
            assert len(times_of(node, key)) == 20, "nothing is old enough"
            await old_enough(node, times[-1], GC_TTL_S_MIN)
            await collect(node)
            assert times_of(node, key) == [times[-1]]
            with pytest.raises(BelowGcThreshold, match="earliest readable time is 20") as told:
                await node.kv.get(key, ts=times[3])
            earliest = told.value.facts["earliest"]
            assert isinstance(earliest, int)
            assert await node.kv.get(key, ts=Timestamp(earliest)) == b"19"

    asyncio.run(main())


def test_a_protected_instant_stays_readable_below_the_threshold_until_it_is_released() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            inside, outside = kv(b"k"), kv(b"z")
            await set_ttl(node, GC_TTL_S_MIN)
            times = await history(node, inside, 6)
            await history(node, outside, 6)
            span = Span(kv(b"a"), kv(b"m"))
            record = await node.protections.protect(times[2], Mode.AT, "test", b"", spans=[span])
            await old_enough(node, node.clock.now(), GC_TTL_S_MIN)
            await collect(node)
            assert times_of(node, inside) == [times[5], times[2]]
            assert len(times_of(node, outside)) == 1, "a range that is covered in part collects the rest"
            assert await node.kv.get(inside, ts=times[2]) == b"2"
            with pytest.raises(BelowGcThreshold):
                await node.kv.get(inside, ts=times[3])
            with pytest.raises(BelowGcThreshold):
                await node.kv.get(outside, ts=times[2])
            left, _ = await node.admin.split(kv(b"c"))
            assert await node.kv.get(inside, ts=times[2]) == b"2", "the right half knows what is kept"
            await node.admin.merge(left.start)
            assert await node.kv.get(inside, ts=times[2]) == b"2"
            await node.protections.release(record)
            await node.queues.context.refresh_retention(node.clock.now())
            await collect(node)
            assert times_of(node, inside) == [times[5]]
            with pytest.raises(BelowGcThreshold):
                await node.kv.get(inside, ts=times[2])

    asyncio.run(main())


def test_a_threshold_that_the_rules_do_not_allow_is_refused_by_the_leaseholder() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            key = kv(b"k")
            await history(node, key, 3)
            await node.queues.context.refresh_retention(node.clock.now())
            for threshold in (MAX, add_seconds(node.clock.now(), 3600), node.clock.now()):
                with pytest.raises((UsageError, RetryableError)):
                    await node.admin.ask(requests.RaiseGcThreshold(threshold), at=key)
            assert await node.kv.get(key) == b"2"
            await set_ttl(node, GC_TTL_S_MIN)  # known here, but written after the protections were read
            await node.zone_follower.read()
            with pytest.raises(RetryableError, match="the zone was written"):
                await node.admin.ask(requests.RaiseGcThreshold(Timestamp(1)), at=key)

    asyncio.run(main())


def test_a_permit_is_of_the_older_copy_less_ttl_and_offset_and_needs_protections_read_in_the_lease() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await set_ttl(node, 600.0)
            await node.queues.context.refresh_retention(node.clock.now())
            (state,) = [r.state for r in node.store.replicas.values() if r.state.descriptor.contains(kv(b"k"))]
            rules, read_at = node.queues.context.retention, node.protection_tracker.state.read_at
            older = min(read_at, rules.zones().read_at)
            offset_s = node.settings["clock.max_offset"]
            assert rules.permit(state).target == add_seconds(Timestamp(older), -600.0 - offset_s)
            taken = msgspec.structs.replace(state, lease=msgspec.structs.replace(state.lease, start=read_at))
            with pytest.raises(RetryableError, match="before the lease began"):
                rules.permit(taken)  # the former leaseholder may have let something be protected that was not seen

    asyncio.run(main())


def test_unknown_zones_or_protections_or_two_zones_in_one_range_collect_nothing() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            key = kv(b"k")
            await set_ttl(node, GC_TTL_S_MIN)
            times = await history(node, key, 3)
            await set_ttl(node, GC_TTL_S_MIN, Span(kv(b"m"), kv(b"n")))
            await old_enough(node, times[-1], GC_TTL_S_MIN)
            await collect(node)
            assert len(times_of(node, key)) == 3
            found = node.queues.gc.progress.values()
            assert any("several zones" in progress.why_not for progress in found)
            await node.queues.sweep("split")
            await node.queues.sweep("split")
            await collect(node)
            assert len(times_of(node, key)) == 1

    asyncio.run(main())


def test_rows_of_a_dropped_table_and_long_runs_of_deleted_rows_go_by_range_tombstone() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await set_ttl(node, GC_TTL_S_MIN)
            gone = await node.catalog.create("gone", COLUMNS, KEY)
            span = table_span(gone.table_id)
            keys = [span.start + b"\x00\x01" + i.to_bytes(4, "big") for i in range(3000)]
            await node.kv.put_rows(keys, [b"\x01v"] * len(keys))
            await cluster.fill(2500)
            await node.kv.delete_range(kv(b"k"), kv(b"l"))
            dropped = await node.catalog.drop("gone")
            await old_enough(node, Timestamp(max(dropped.modified, node.clock.now())), GC_TTL_S_MIN)
            await collect(node)
            assert list(keys_of(node.engine, span.start, span.end)) == []
            assert list(keys_of(node.engine, kv(b"k"), kv(b"l"))) == []
            assert node.queues.gc.counts.spans >= 2
            for replica in node.store.replicas.values():
                stats = Stats(*replica.state.stats)
                assert stats.total_bytes >= stats.live_bytes >= 0

    asyncio.run(main())


def test_entries_of_dropped_indexes_and_rows_of_emptied_tables_go_when_no_read_can_reach_them() -> None:
    async def main() -> None:
        async with Cluster(1, jobs__poll_interval=0.05, catalog__poll_interval=0.05) as cluster, session(cluster) as db:
            (node,) = cluster.nodes
            await set_ttl(node, GC_TTL_S_MIN)
            made = await db.create_table("accounts", ACCOUNTS, primary_key="id")
            await db.upsert("accounts", accounts(50))
            await db.create_index("accounts", "by_owner", "owner")
            await db.create_index("accounts", "by_balance", "balance")
            (first, second) = (await db.history("accounts")).latest.indexes
            await db.drop_index("accounts", "by_owner")

            def kept(index_id: int) -> int:
                span = table_span(made.table_id, index_id)
                return len(list(keys_of(node.engine, span.start, span.end)))

            assert kept(first.id) == 50, "its entries are there for reads of the past"
            await db.truncate_table("accounts")
            await db.upsert("accounts", accounts(7))
            latest = (await db.history("accounts")).latest
            assert sorted(latest_ids := {latest.schema.index_id, latest.indexes[0].id}) != [made.index_id, second.id]
            await old_enough(node, node.clock.now(), GC_TTL_S_MIN)
            await collect(node)
            assert [kept(index_id) for index_id in (first.id, second.id, made.index_id)] == [0, 0, 0]
            assert [kept(index_id) for index_id in sorted(latest_ids)] == [7, 7]
            assert (await db.scan("accounts", index="by_balance")).num_rows == 7

    asyncio.run(main())


def test_sweeps_put_due_ranges_in_line_and_the_worker_collects_them() -> None:
    async def main() -> None:
        async with Cluster(2, gc__interval=0.2, queue__interval=0.2) as cluster:
            node = cluster.nodes[0]
            key = kv(b"k")
            await set_ttl(node, GC_TTL_S_MIN)
            await history(node, key, 20)
            await cluster.until(lambda: len(times_of(node, key)) == 1)
            counts = [n.queues.gc.counts for n in cluster.nodes]
            assert sum(c.versions for c in counts) >= 19
            assert sum(c.raised for c in counts) >= 1

    asyncio.run(main())


def test_collecting_is_no_load_for_which_it_would_pause_itself() -> None:
    async def main() -> None:
        async with Cluster(1, gc__batch_versions=1, range__max_requests=0) as cluster:
            (node,) = cluster.nodes
            key, gate, seen = kv(b"k"), node.store.context.bulk_gate, 0
            await set_ttl(node, GC_TTL_S_MIN)
            times = await history(node, key, 300)
            await old_enough(node, times[-1], GC_TTL_S_MIN)
            real = gate.point

            def counted() -> None:
                nonlocal seen
                seen += 1
                real()

            gate.point = counted  # type: ignore[method-assign]
            loads = [r.load for r in node.store.replicas.values() if r.state.descriptor.contains(key)]
            before = loads[0].counted
            await collect(node)
            assert len(times_of(node, key)) == 1
            assert node.queues.gc.counts.versions >= 299, "each by a command of its own"
            assert seen < 100, "neither asking for a deletion nor applying it is point work"
            assert loads[0].counted - before < 100, "nor is it load of the range"

    asyncio.run(main())


async def much_garbage(node: Member) -> list[bytes]:
    """Keys with so many versions to collect that their files are compacted after it."""
    await set_ttl(node, GC_TTL_S_MIN)
    keys = [kv(b"k%03d" % i) for i in range(200)]
    for _ in range(2 + COMPACT_VERSIONS_MIN // len(keys)):
        await node.kv.put_rows(keys, [b"v"] * len(keys))
    await old_enough(node, node.clock.now(), GC_TTL_S_MIN)
    return keys


def test_files_are_compacted_as_soon_as_most_of_a_range_was_collected() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await much_garbage(node)
            await collect(node)
            assert node.queues.gc.counts.compactions == 1, "by the run itself: no sweep has been here"
            assert max(r.deleted for r in node.store.replicas.values()) < COMPACT_VERSIONS_MIN

    asyncio.run(main())


def test_a_range_that_was_collected_while_another_is_compacted_waits_for_its_turn() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            keys = await much_garbage(node)
            gate, real, compacting = threading.Event(), node.engine.compact, 0

            def slow(family: Family, start: bytes, end: bytes) -> None:
                nonlocal compacting
                compacting += 1
                gate.wait(DEADLINE_S)
                real(family, start, end)

            node.engine.compact = slow  # type: ignore[method-assign]
            replica = next(r for r in node.store.replicas.values() if r.state.descriptor.contains(keys[0]))
            other = next(r for r in node.store.replicas.values() if r is not replica)
            queue, context = node.queues.gc, node.queues.context
            other.deleted = COMPACT_VERSIONS_MIN * 100
            first = asyncio.ensure_future(queue.compact(context, other))
            await cluster.until(lambda: compacting == 1)
            second = asyncio.ensure_future(queue.collect(context, replica))
            await cluster.until(lambda: len(times_of(node, keys[-1])) == 1)
            gate.set()
            await asyncio.gather(first, second)
            assert queue.counts.compactions == 2, "it was not passed over because another one was under way"

    asyncio.run(main())
