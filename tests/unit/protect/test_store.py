"""Protecting and releasing in transactions: protected or too late, limits, and what a tracker knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, seconds_between
from slackwater.codec.layout import kv as kv_key
from slackwater.codec.layout import table_span
from slackwater.config.zones import ZoneConfig
from slackwater.errors import AccessDenied, LimitReached, NotFound, RetryableError, TooLate, UsageError
from slackwater.model.protection import Mode
from slackwater.model.spans import Span
from slackwater.model.system_tables import PROTECTED_TS_META, PROTECTED_TS_SPANS, PROTECTED_TS_TIMESTAMPS
from slackwater.protect import ProtectionCatalog, Protections, ProtectionStore
from slackwater.protect.driver import PollingTracker
from slackwater.protect.zone_changes import change_zone, read_zones, write_zone
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.txn.coordinator import Transaction

A_F = Span(kv_key(b"a"), kv_key(b"f"))
G_M = Span(kv_key(b"g"), kv_key(b"m"))
DECODING = Span(b"\x03t", b"\x03u")


def protections(c: Cluster, **limits: int) -> Protections:
    for name, limit in limits.items():
        c.node.settings.set(f"protected_timestamp.{name}_max", limit)
    store = ProtectionStore(
        clock=c.node.clock, settings=c.node.settings, rng=c.runtime.rng, decoding=lambda _table_id: [DECODING]
    )
    return Protections(
        c.node.kv, store, ProtectionCatalog(c.node.settings), PollingTracker(c.node.kv, settings=c.node.settings)
    )


def test_a_protection_is_three_tables_of_rows_and_its_release_leaves_only_the_meta_row() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        now = c.node.clock.now()
        made = await p.protect(now, Mode.AFTER, "job", b"17", spans=[A_F], tables=[104], user="ann")
        state = await p.list()
        (record,) = state.records
        assert record.id == made
        assert (record.ts, record.mode, record.meta_type, record.meta, record.user) == (
            now, Mode.AFTER, "job", b"17", "ann",
        )  # fmt: skip
        assert set(record.spans) == {A_F, DECODING, table_span(104)}, "a table comes with what it takes to decode it"
        assert (state.metadata.version, state.metadata.records, state.metadata.spans) == (1, 1, 3)
        assert (state.metadata.records_max, state.metadata.spans_max) == (512, 4096)
        await p.release(made)
        after = await p.list()
        assert after.records == ()
        assert (after.metadata.version, after.metadata.records, after.metadata.spans) == (2, 0, 0)
        for schema, left in ((PROTECTED_TS_META, 1), (PROTECTED_TS_TIMESTAMPS, 0), (PROTECTED_TS_SPANS, 0)):
            span = table_span(schema.table_id)
            assert len((await c.node.kv.scan(span.start, span.end)).keys) == left, schema.name

    play(story)


def test_what_is_older_than_the_shortest_ttl_is_too_late_and_nothing_is_written() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        began = c.node.clock.now()
        await write_zone(c.node.kv, ZoneConfig(G_M.start, G_M.end, gc_ttl_s=10))
        await c.runtime.clock.sleep(11)
        with pytest.raises(TooLate, match=r"kept for 10 s here; protect a time after") as told:
            await p.protect(began, Mode.AT, "user", b"", spans=[A_F, G_M])
        assert seconds_between(began, Timestamp(int(str(told.value.facts["earliest"])))) > 0
        assert (await p.list()).metadata.version == 0
        await p.protect(began, Mode.AT, "user", b"", spans=[A_F])  # four hours there

    play(story)


def test_what_another_record_keeps_can_be_protected_again_at_any_age_and_nothing_else_can() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        await write_zone(c.node.kv, ZoneConfig(A_F.start, A_F.end, gc_ttl_s=10))
        await write_zone(c.node.kv, ZoneConfig(G_M.start, G_M.end, gc_ttl_s=10))
        early = c.node.clock.now()
        await c.runtime.clock.sleep(1)
        since = c.node.clock.now()
        former = await p.protect(since, Mode.AFTER, "feed", b"", spans=[A_F], expires=add_seconds(since, 60))
        await c.runtime.clock.sleep(30)
        later = add_seconds(since, 5)
        part = Span(kv_key(b"b"), kv_key(b"c"))
        for mode, ts, spans in ((Mode.AFTER, early, [A_F]), (Mode.AT, early, [part]), (Mode.AFTER, later, [A_F, G_M])):
            with pytest.raises(TooLate):
                await p.protect(ts, mode, "feed", b"", spans=spans)
        assert len((await p.list()).records) == 1
        again = await p.protect(later, Mode.AFTER, "feed", b"", spans=[A_F])
        at = await p.protect(later, Mode.AT, "user", b"", spans=[part])
        await p.release(former)
        await p.release(again)
        with pytest.raises(TooLate):
            await p.protect(later, Mode.AFTER, "feed", b"", spans=[part])  # kept is one instant, not what came after it
        await p.protect(later, Mode.AT, "user", b"", spans=[part])
        assert at in {r.id for r in (await p.list()).records}

    play(story)


def test_a_commit_past_the_deadline_is_refused_and_a_retry_says_too_late() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        await write_zone(c.node.kv, ZoneConfig(A_F.start, A_F.end, gc_ttl_s=10))
        ts = c.node.clock.now()
        txn = c.node.kv.begin()
        await p.store.protect(txn, ts, Mode.AT, "user", b"", spans=[A_F])
        assert txn.deadline == add_seconds(ts, 10)
        await c.runtime.clock.sleep(11)
        # as a push would: the transaction may only commit above the time that has come
        await c.node.kv.get(kv_key(b"x"))
        with pytest.raises((RetryableError, TooLate)):
            await _commit_above(c, txn)
        await txn.rollback()
        assert (await p.list()).records == ()

        async def slow(txn: Transaction) -> bytes:
            made = await p.store.protect(txn, ts, Mode.AT, "user", b"", spans=[A_F])
            await _commit_above(c, txn)
            return made

        with pytest.raises(TooLate):
            await c.node.kv.run(slow)

    async def _commit_above(c: Cluster, txn: Transaction) -> None:
        # reading what was written just now moves the transaction's reads, and its commit, to now
        await c.node.kv.put(kv_key(b"x"), b"1")
        await txn.get(kv_key(b"x"))
        txn.state.moved(c.node.clock.now())
        await txn.commit()

    play(story)


def test_a_ttl_that_was_raised_brings_nothing_back() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        await write_zone(c.node.kv, ZoneConfig(A_F.start, A_F.end, gc_ttl_s=10))
        early = c.node.clock.now()
        await c.runtime.clock.sleep(20)
        await change_zone(c.node.kv, A_F.start, A_F.end, gc_ttl_s=3600)
        with pytest.raises(TooLate, match="3600 s"):
            await p.protect(early, Mode.AT, "user", b"", spans=[A_F])
        (zone,) = [z for z in (await read_zones(c.node.kv)).records if z.config.start == A_F.start]
        assert seconds_between(zone.floor, zone.written) == pytest.approx(10)
        await p.protect(Timestamp(zone.floor + 1), Mode.AT, "user", b"", spans=[A_F])

    play(story)


@pytest.mark.parametrize("protect_first", [True, False])
def test_a_zone_and_a_protection_that_meet_are_ordered(protect_first: bool) -> None:
    """One of the two sees the other: a protection that commits after a shorter ttl has its deadline."""

    async def story(c: Cluster) -> None:
        p = protections(c)
        ts = c.node.clock.now()
        await c.runtime.clock.sleep(30)
        txn = c.node.kv.begin()
        await p.store.protect(txn, ts, Mode.AT, "user", b"", spans=[A_F])
        if protect_first:
            await txn.commit()
            await change_zone(c.node.kv, A_F.start, A_F.end, gc_ttl_s=10)
            (zone,) = (await read_zones(c.node.kv)).records
            assert zone.written > txn.commit_ts, "whoever reads protections after the zone sees this one"
            assert [r.ts for r in (await p.list()).records] == [ts]
        else:
            await change_zone(c.node.kv, A_F.start, A_F.end, gc_ttl_s=10)
            with pytest.raises(RetryableError):
                await txn.commit()
            await txn.restart()
            with pytest.raises(TooLate):
                await p.store.protect(txn, ts, Mode.AT, "user", b"", spans=[A_F])
            await txn.rollback()
            assert (await p.list()).records == ()

    play(story)


def test_bad_input_is_told_in_one_line_and_changes_nothing() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c, records=2, spans=4)
        now = c.node.clock.now()
        for wrong, match in (
            ({"ts": add_seconds(now, 60)}, "is in the future"),
            ({"expires": now}, "has expired already"),
            ({"spans": []}, "at least one span"),
            ({"meta_type": ""}, "a type of 1 to"),
            ({"meta": bytes(5000)}, "at most 4096 bytes"),
        ):
            given = {"ts": now, "mode": Mode.AT, "meta_type": "user", "meta": b"", "spans": [A_F]} | wrong
            with pytest.raises(UsageError, match=match):
                await p.protect(**given)  # type: ignore[arg-type]
        mine = await p.protect(now, Mode.AT, "user", b"", spans=[A_F, G_M], user="ann")
        with pytest.raises(LimitReached, match=r"5 protected spans, and there may be 4"):
            await p.protect(now, Mode.AT, "user", b"", spans=[Span(bytes([4, i]), bytes([4, i, 1])) for i in (1, 3, 5)])
        await p.protect(now, Mode.AT, "user", b"", spans=[A_F])
        with pytest.raises(LimitReached, match=r"3 protected records, and there may be 2"):
            await p.protect(now, Mode.AT, "user", b"", spans=[A_F])
        with pytest.raises(AccessDenied, match="belongs to 'ann'"):
            await p.release(mine, by="bob")
        with pytest.raises(UsageError, match="only a protection of all that comes after"):
            await p.move(mine, c.node.clock.now())
        assert (await p.list()).metadata.version == 2
        await p.release(mine, by="ann")

    play(story)


def test_a_record_that_is_not_there_leaves_the_transaction_usable() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)

        async def work(txn: Transaction) -> None:
            with pytest.raises(NotFound):
                await p.store.release(txn, bytes(16))
            with pytest.raises(NotFound):
                await p.store.release(txn, b"short")
            await txn.put(kv_key(b"x"), b"1")

        await c.node.kv.run(work)
        assert await c.node.kv.get(kv_key(b"x")) == b"1"

    play(story)


def test_a_record_moves_forward_and_is_renewed() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        first, made = c.node.clock.now(), MIN
        made = await p.protect(first, Mode.AFTER, "feed", b"f", spans=[A_F], expires=add_seconds(first, 60))
        later = c.node.clock.now()
        await p.move(made, later)
        await p.move(made, first)
        await p.renew(made, expires=MIN)
        state = await p.list()
        (record,) = state.records
        assert (record.ts, record.expires) == (later, MIN)
        assert state.metadata.version == 3, "a move back changes nothing"

    play(story)


def test_a_tracker_reads_everything_once_and_then_only_the_meta_row() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        tracker = p.tracker
        assert isinstance(tracker, PollingTracker)
        assert tracker.protected(A_F) == ([], MIN), "unknown"
        await tracker.refresh(after=MIN)
        made = await p.protect(c.node.clock.now(), Mode.AT, "user", b"", spans=[A_F])
        assert tracker.protected(A_F)[0] == []
        before = c.node.clock.now()
        await tracker.refresh(after=before)
        (record,), read_at = tracker.protected(A_F)
        assert record.id == made
        assert read_at > before
        assert tracker.protected(G_M) == ([], read_at)
        for _ in range(5):
            await tracker.refresh(after=tracker.state.read_at)
        assert (tracker.polls, tracker.full_reads) == (7, 2)
        assert tracker.protected(A_F)[1] > read_at
        await tracker.refresh(after=read_at)
        assert tracker.polls == 7, "the copy was new enough"
        await p.release(made)
        await tracker.refresh(after=c.node.clock.now())
        assert tracker.protected(A_F)[0] == []
        assert tracker.full_reads == 3

    play(story)


def test_many_who_protect_at_once_all_succeed() -> None:
    async def story(c: Cluster) -> None:
        p = protections(c)
        made: list[bytes] = []

        async def one(number: int) -> None:
            made.append(await p.protect(c.node.clock.now(), Mode.AT, "user", bytes([number]), spans=[A_F]))

        tasks = [c.scope.spawn(one(i), name=f"protect {i}") for i in range(12)]
        for task in tasks:
            await task
        state = await p.list()
        assert len(made) == len(state.records) == state.metadata.records == state.metadata.version == 12

    play(story)


def test_one_client_cannot_use_up_all_protections() -> None:
    async def story(c: Cluster) -> None:
        p, now = c.node.protections, c.node.clock.now()
        for _ in range(2):
            await p.protect(now, Mode.AT, "user", b"", spans=[A_F], user="ann")
        for _ in range(2):
            await p.protect(now, Mode.AFTER, "feed", b"", spans=[A_F], user="ann")
        for kind, said in (
            ("user", "ann holds 2 protections,"),
            ("spark", "ann holds 2"),
            ("feed", "2 protections by change feeds"),
        ):
            with pytest.raises(LimitReached, match=rf"{said}.*protected_timestamp\.records_per_owner_max"):
                await p.protect(now, Mode.AT, kind, b"", spans=[A_F], user="ann")
        other = await p.protect(now, Mode.AT, "user", b"", spans=[A_F], user="bob")
        for _ in range(3):
            await p.protect(now, Mode.AT, "user", b"", spans=[A_F])  # an operator, or a job
        await p.release(other, by="bob")
        await p.release((await p.list()).records[0].id, by=None)
        records = (await p.list()).records
        assert len(records) == 6

    play(story, settings={"protected_timestamp.records_per_owner_max": 2.0})


def test_one_client_cannot_use_up_all_protected_spans() -> None:
    async def story(c: Cluster) -> None:
        p, now = c.node.protections, c.node.clock.now()
        spans = [Span(kv_key(b"%d" % i), kv_key(b"%d~" % i)) for i in range(5)]
        await p.protect(now, Mode.AT, "user", b"", spans=spans[:3], user="ann")
        for kind in ("user", "feed", "job"):
            with pytest.raises(
                LimitReached, match=r"make 5 protected spans of ann, and one client may hold 4, half of"
            ):
                await p.protect(now, Mode.AT, kind, b"", spans=spans[:2], user="ann")
        await p.protect(now, Mode.AT, "feed", b"", spans=spans[:1], user="ann")
        await p.protect(now, Mode.AT, "user", b"", spans=spans[:3], user="bob")
        with pytest.raises(LimitReached, match=r"9 protected spans, and there may be 8"):
            await p.protect(now, Mode.AT, "user", b"", spans=spans[:2])
        state = await p.list()
        assert state.metadata.spans == sum(len(record.spans) for record in state.records) == 7

    play(story, settings={"protected_timestamp.spans_max": 8.0})
