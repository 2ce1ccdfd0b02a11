"""Transactions against a real node: what is sent, what is seen, and how contention is settled."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.errors import (
    AmbiguousResult,
    ConditionFailed,
    ConnectionLost,
    RetryableError,
    TransactionAborted,
    UsageError,
)
from slackwater.model.txns import TXN_ID_BYTES, Intent, TxnStatus, by_name
from slackwater.protocol.range import requests
from slackwater.routing.sender import NO_RANGE
from slackwater.txn.at_once import write_at_once
from slackwater.txn.settle import settle
from tests.sim.cluster import Cluster, play

if TYPE_CHECKING:
    from slackwater.txn import Transaction

ID = by_name(b"i" * TXN_ID_BYTES)


def number(value: bytes | None) -> int:
    return int(value or b"0")


async def add(txn: Transaction, key: bytes, by: int) -> int:
    """Read and write back: the transaction that lost updates are made of."""
    now = number(await txn.get(key)) + by
    await txn.put(key, b"%d" % now)
    return now


# --- plain operations


def test_plain_operations() -> None:
    async def story(c: Cluster) -> None:
        a, b, z = c.key(b"a"), c.key(b"b"), c.key(b"z")
        assert await c.kv.get(a) is None
        wrote = await c.kv.put(a, b"1")
        assert await c.kv.get(a) == b"1"
        assert await c.kv.get(a, ts=wrote - 1) is None
        assert await c.kv.increment(b, 5) == 5
        assert await c.kv.increment(b, -7) == -2
        assert (await c.kv.scan(a, z)).keys == [a, b]
        assert (await c.kv.reverse_scan(a, z)).keys == [b, a]
        await c.kv.cput(a, b"2", expected=b"1")
        with pytest.raises(ConditionFailed) as failed:
            await c.kv.cput(a, b"3", expected=b"1")
        assert failed.value.facts["actual"] == b"2"
        await c.kv.init_put(a, b"2")
        with pytest.raises(ConditionFailed):
            await c.kv.init_put(a, b"9")
        assert await c.kv.delete_range(a, z) == 2
        assert (await c.kv.scan(a, z)).keys == []
        assert await c.kv.get(a, ts=wrote) == b"1"
        await c.kv.delete(a)

    play(story)


def test_scans_over_several_ranges_with_and_without_limits() -> None:
    async def story(c: Cluster) -> None:
        names = [c.key(bytes([n])) for n in range(ord("a"), ord("k"))]
        await c.kv.put_rows(names, [b"v%d" % i for i in range(len(names))])
        for at in (b"c", b"f", b"h"):
            await c.split(at)
        start, end = c.key(b"a"), c.key(b"z")
        assert (await c.kv.scan(start, end)).keys == names
        assert (await c.kv.reverse_scan(start, end)).keys == names[::-1]
        for limit in (1, 2, 3, 5, 9, 10, 11):
            for reverse in (False, True):
                assert await pages(c, start, end, limit, reverse=reverse) == (names[::-1] if reverse else names)
        by_bytes = await c.kv.scan(start, end, max_bytes=1)
        assert by_bytes.keys == names[:1]
        assert by_bytes.resume == names[1]

    async def pages(c: Cluster, start: bytes, end: bytes, limit: int, *, reverse: bool) -> list[bytes]:
        found: list[bytes] = []
        while True:
            scan = c.kv.reverse_scan if reverse else c.kv.scan
            rows = await scan(start, end, max_keys=limit)
            assert len(rows.keys) <= limit
            found += rows.keys
            if rows.resume is None:
                return found
            assert len(rows.keys) == limit
            start, end = (start, rows.resume) if reverse else (rows.resume, end)

    play(story)


def test_plain_writes_over_several_ranges_become_a_transaction() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        a, z = c.key(b"a"), c.key(b"z")
        await c.kv.batch([requests.Put(a, b"1"), requests.Put(z, b"2")])
        assert (await c.kv.scan(a, c.key(b"zz"))).values == [b"1", b"2"]
        assert "EndTxn" in c.tap.kinds()
        assert await c.kv.delete_range(a, c.key(b"zz")) == 2
        await c.kv.put(a, b"1")
        with pytest.raises(ConditionFailed):
            await c.kv.put_rows([a, z], [b"x", b"y"], must_be_new=True)
        assert await c.kv.get(z) is None, "all or none"

    play(story)


def test_a_bulk_load_is_cut_into_blocks_and_ranges() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"0500")
        keys = [c.key(b"%04d" % n) for n in range(1000)]
        await c.kv.put_rows(keys, [b"x" * 50] * 1000)
        assert (await c.kv.scan(keys[0], c.key(b"9"))).keys == keys
        assert c.tap.kinds().count("PutRows") > 10

    play(story, settings={"log.entry_bytes_max": 16 << 10})


# --- how transactions are sent


def test_one_range_and_no_reads_of_its_own_writes_is_one_message() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.get(a)  # so that the range is known
        del c.tap.sent[:]

        async def move(txn: Transaction) -> Transaction:
            await txn.put(a, b"1")
            await txn.put(b, b"2")
            return txn

        txn = await c.kv.run(move)
        assert c.tap.batches() == [["PutRows", "EndTxn"]]
        assert c.intents() == 0
        assert await c.kv.get(a, ts=txn.commit_ts) == b"1"
        assert await c.kv.get(b, ts=txn.commit_ts - 1) is None

    play(story)


def test_a_read_only_transaction_commits_without_a_message() -> None:
    async def story(c: Cluster) -> None:
        await c.kv.put(c.key(b"a"), b"1")
        del c.tap.sent[:]
        assert await c.kv.run(lambda txn: txn.get(c.key(b"a"))) == b"1"
        assert c.tap.batches() == [["Get"]]

    play(story)


def test_several_ranges_need_intents_which_are_resolved_in_the_background() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        a, z = c.key(b"a"), c.key(b"z")

        async def both(txn: Transaction) -> None:
            await txn.put(a, b"1")
            await txn.put(z, b"2")

        await c.kv.run(both)
        assert (await c.kv.scan(a, c.key(b"zz"))).values == [b"1", b"2"]
        await c.settle()
        assert c.intents() == 0
        kinds = c.tap.kinds()
        assert kinds.count("EndTxn") == 1
        assert "ResolveIntents" in kinds
        assert "ForgetLocks" in kinds

    play(story)


def test_the_range_of_the_record_gets_its_writes_with_the_commit() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        a, b, z = c.key(b"a"), c.key(b"b"), c.key(b"z")
        await c.kv.put_rows([a, b, z], [b"0"] * 3)
        del c.tap.sent[:]

        async def all_three(txn: Transaction) -> None:
            assert await txn.get(b) == b"0"
            await txn.put(a, b"1")
            await txn.delete(b)
            await txn.put(z, b"2")

        await c.kv.run(all_three)
        assert c.tap.batches()[:3] == [["Get"], ["Put"], ["Put", "Delete", "EndTxn"]]
        await c.settle()
        assert (await c.kv.scan(a, c.key(b"zz"))).values == [b"1", b"2"]
        assert c.intents() == 0

    play(story)


def test_the_range_of_the_record_may_be_divided_before_the_commit() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        a, b, z = c.key(b"a"), c.key(b"b"), c.key(b"z")
        await c.kv.put_rows([a, b, z], [b"0"] * 3)
        txn = c.kv.begin()
        for key in (a, b, z):
            await txn.put(key, b"1")
        await c.split(b"b")
        await txn.commit()
        await c.settle()
        assert (await c.kv.scan(a, c.key(b"zz"))).values == [b"1"] * 3
        assert c.intents() == 0

    play(story)


def test_intents_of_many_transactions_are_resolved_together() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")

        async def both(n: int) -> None:
            async def work(txn: Transaction) -> None:
                await txn.put(c.key(b"a%03d" % n), b"1")
                await txn.put(c.key(b"z%03d" % n), b"1")

            await c.kv.run(work)

        for work in [c.scope.spawn(both(n), name="both") for n in range(40)]:
            await work
        await c.settle()
        assert c.intents() == 0
        assert (await c.kv.scan(c.key(b"a"), c.key(b"zz"))).values == [b"1"] * 80
        kinds, batches = c.tap.kinds(), c.tap.batches()
        assert kinds.count("EndTxn") == kinds.count("ForgetLocks") == kinds.count("ResolveIntents") == 40
        assert sum("ResolveIntents" in batch or "ForgetLocks" in batch for batch in batches) < 40
        ended = [batch.header.txn for _, batch in c.tap.sent if isinstance(batch.requests[-1], requests.EndTxn)]
        asked = [requests.QueryTxn(txn.txn_id, txn.anchor) for txn in ended if txn is not None]
        answer = await c.sender.send(asked, requests.Header(NO_RANGE))
        assert all(
            isinstance(r, requests.TxnResult) and r.record is not None and r.record.resolved for r in answer.results
        )

    play(story)


def test_rows_written_at_once_are_one_command_with_a_record() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        a, b, z = c.key(b"a"), c.key(b"b"), c.key(b"z")
        kernel = c.kv.context
        assert await write_at_once(kernel, ID, [a], [b"0"], timeout=5.0) is None, "its range is not known yet"
        assert await c.kv.get(a) is None
        del c.tap.sent[:]
        done = await write_at_once(kernel, ID, [a, b], [b"1", b"2"], timeout=5.0)
        assert done is not None
        assert c.tap.batches() == [["PutRows", "EndTxn"]]
        assert c.intents() == 0
        assert await c.kv.get(b, ts=done) == b"2"
        assert await c.kv.get(b, ts=done - 1) is None
        settled = await settle(kernel, Intent(a, ID, a, done, 0, done), deadline=kernel.deadline(5.0))
        assert settled is not None
        assert (settled.resolution.status, settled.resolution.ts) == (TxnStatus.COMMITTED, done)
        assert await write_at_once(kernel, ID, [a, z], [b"x", b"x"], timeout=5.0) is None, "two ranges"

    play(story)


def test_rows_are_not_written_at_once_where_somebody_is_in_the_way_or_it_was_ruled_out() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.put(a, b"0")
        kernel = c.kv.context
        txn = c.kv.begin()
        await txn.put(a, b"mine")
        assert await txn.get(a) == b"mine"  # now there is an intent
        assert await write_at_once(kernel, ID, [a, b], [b"x", b"x"], timeout=5.0) is None
        await txn.rollback()
        await c.settle()
        now = c.clock.now()
        ruled_out = await settle(kernel, Intent(a, ID, a, now, 0, now), deadline=kernel.deadline(5.0))
        assert ruled_out is not None
        assert ruled_out.resolution.status is TxnStatus.ABORTED
        assert await write_at_once(kernel, ID, [a, b], [b"x", b"x"], timeout=5.0) is None
        assert (await c.kv.scan(a, c.key(b"z"))).values == [b"0"]

    play(story)


def test_rows_written_at_once_whose_answer_is_lost_are_in_doubt_and_their_record_knows() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        await c.kv.put(a, b"0")
        kernel = c.kv.context

        async def lose(_: object, batch: requests.Batch, result: requests.BatchResult) -> None:
            if isinstance(batch.requests[-1], requests.EndTxn):
                raise ConnectionLost("told to lose the answer", sent=True)

        c.tap.after = lose
        start = c.clock.now()
        with pytest.raises(AmbiguousResult):
            await write_at_once(kernel, ID, [a], [b"1"], timeout=5.0)
        settled = await settle(kernel, Intent(a, ID, a, start, 0, start), deadline=kernel.deadline(5.0))
        assert settled is not None
        assert settled.resolution.status is TxnStatus.COMMITTED
        assert await c.kv.get(a) == b"1"

    play(story)


def test_a_transaction_sees_its_own_writes_and_nobody_else_does() -> None:
    async def story(c: Cluster) -> None:
        a, b, end = c.key(b"a"), c.key(b"b"), c.key(b"z")
        await c.kv.put(a, b"old")
        txn = c.kv.begin()
        await txn.put(a, b"new")
        await txn.delete(b)
        assert await txn.get(a) == b"new"
        await txn.put(b, b"1")
        assert (await txn.scan(a, end)).values == [b"new", b"1"]
        await txn.delete(a)
        assert (await txn.scan(a, end)).keys == [b]
        assert await txn.increment(c.key(b"n"), 2) == 2
        assert await txn.increment(c.key(b"n"), 2) == 4
        await txn.cput(b, b"2", expected=b"1")
        assert await txn.delete_range(a, b + b"\x00") == 1
        await txn.rollback()
        assert (await c.kv.scan(a, end)).values == [b"old"]
        await c.settle()
        assert c.intents() == 0

    play(story)


def test_use_after_the_end_is_refused() -> None:
    async def story(c: Cluster) -> None:
        for finish in ("commit", "rollback"):
            txn = c.kv.begin()
            await txn.put(c.key(b"a"), b"1")
            await getattr(txn, finish)()
            for use in (txn.commit(), txn.rollback(), txn.get(c.key(b"a")), txn.put(c.key(b"a"), b"2"), txn.restart()):
                with pytest.raises(UsageError):
                    await use

    play(story)


def test_bad_keys_are_refused_before_anything_is_sent() -> None:
    async def story(c: Cluster) -> None:
        txn = c.kv.begin()
        for use in (
            c.kv.get(b""),
            c.kv.put(b"\x01x", b""),
            c.kv.scan(b"\x04b", b"\x04a"),
            txn.get(b"\xff"),
            txn.delete(b""),
        ):
            with pytest.raises(UsageError):
                await use
        assert c.tap.sent == []

    play(story)


def test_an_error_in_the_function_rolls_back() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")

        async def fail(txn: Transaction) -> None:
            await txn.put(a, b"1")
            assert await txn.get(a) == b"1"
            raise ValueError("no")

        with pytest.raises(ValueError, match="no"):
            await c.kv.run(fail)
        assert await c.kv.get(a) is None
        await c.settle()
        assert c.intents() == 0

    play(story)


def test_a_failed_condition_is_part_of_the_reads() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.put(a, b"1")
        txn = c.kv.begin()
        await txn.get(b)
        await c.kv.put(a, b"2")  # above the transaction's read timestamp
        with pytest.raises(ConditionFailed) as failed:
            await txn.cput(a, b"3", expected=b"1")
        assert failed.value.facts["actual"] == b"2"
        assert await txn.get(a) == b"2", "what the condition told is what it reads"
        await c.kv.put(a, b"4")
        await txn.put(b, b"x")
        await c.kv.get(b)  # moves the write up, so that the reads must be refreshed
        with pytest.raises(RetryableError):
            await txn.commit()

    play(story)


# --- contention


def test_updates_are_not_lost() -> None:
    async def story(c: Cluster) -> None:
        key = c.key(b"n")
        works = [c.scope.spawn(c.kv.run(lambda txn: add(txn, key, 1)), name="add") for _ in range(10)]
        seen = [await work for work in works]
        assert sorted(seen) == list(range(1, 11))
        assert number(await c.kv.get(key)) == 10
        await c.settle()
        assert c.intents() == 0

    for seed in range(3):
        play(story, seed=seed)


def test_write_skew_is_impossible() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        x, y = c.key(b"a"), c.key(b"z")
        for _ in range(5):
            await c.kv.batch([requests.Put(x, b"1"), requests.Put(y, b"1")])

            async def leave(txn: Transaction, mine: bytes) -> None:
                on_call = number(await txn.get(x)) + number(await txn.get(y))
                await c.runtime.clock.sleep(0.01)
                if on_call == 2:
                    await txn.put(mine, b"0")

            both = [c.scope.spawn(c.kv.run(lambda t, m=m: leave(t, m)), name="leave") for m in (x, y)]
            for work in both:
                await work
            assert number(await c.kv.get(x)) + number(await c.kv.get(y)) == 1

    for seed in range(3):
        play(story, seed=seed)


def test_locks_taken_in_opposite_order_do_not_deadlock() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"m")
        keys = [c.key(b"a"), c.key(b"z")]

        async def both(txn: Transaction, order: list[bytes]) -> None:
            for key in order:
                await txn.increment(key)
                await c.runtime.clock.sleep(0.02)

        orders = [keys, keys[::-1]] * 3
        works = [c.scope.spawn(c.kv.run(lambda t, o=o: both(t, o)), name="both") for o in orders]
        for work in works:
            await work
        assert await c.kv.increment(keys[0], 0) == 6
        assert await c.kv.increment(keys[1], 0) == 6

    world = play(story)
    assert world.probes["records.push_abort"] + world.probes["txn.wait"] > 0


def test_an_older_writer_wounds_a_younger_one_which_starts_over() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        old, young = c.kv.begin(), c.kv.begin()
        await young.increment(a)
        assert await old.increment(a) == 1
        await old.commit()
        with pytest.raises(TransactionAborted):
            await young.commit()
        age = young.state.start
        await young.restart()
        assert young.state.start == age
        assert await young.increment(a) == 2
        await young.commit()
        assert await c.kv.increment(a, 0) == 2

    play(story)


def test_a_younger_writer_waits_for_an_older_one() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        old = c.kv.begin()
        await old.increment(a)
        young = c.scope.spawn(c.kv.run(lambda txn: txn.increment(a)), name="young")
        await c.settle(2)
        assert not young.done()
        await old.commit()
        assert await young == 2

    play(story)


def test_a_heartbeat_keeps_a_long_transaction_alive_and_its_absence_ends_it() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        long = c.kv.begin()
        await long.increment(a)
        other = c.scope.spawn(c.kv.run(lambda txn: txn.increment(a)), name="other")
        await c.settle(12)
        assert not other.done(), "longer than the expiration, but it has a heart"
        long._heart.stop()
        assert await other == 1
        with pytest.raises(TransactionAborted):
            await long.commit()

    play(story)


def test_a_wounded_transaction_learns_of_it_from_its_heartbeat() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        old, young = c.kv.begin(), c.kv.begin()
        await young.increment(a)
        await old.increment(a)
        await c.settle(2)
        with pytest.raises(TransactionAborted):
            await young.get(c.key(b"unrelated"))
        await old.commit()

    world = play(story)
    assert world.probes["txn.found_aborted"] == 1


def test_an_old_transaction_is_not_taken_for_dead_when_it_first_writes() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        txn = c.kv.begin()
        await txn.get(a)
        await c.settle(8)
        await txn.increment(a)
        other = c.scope.spawn(c.kv.run(lambda t: t.increment(a)), name="other")
        await c.settle(0.5)
        assert not other.done()
        await txn.commit()
        assert await other == 2

    world = play(story)
    assert world.probes["txn.heartbeat_first"] == 1


def test_a_reader_waits_for_a_decision_and_sees_it() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        for finish, expected in (("commit", b"1"), ("rollback", b"1")):
            txn = c.kv.begin()
            await txn.put(a, b"1" if finish == "commit" else b"2")
            await txn.get(a)  # the intent is there now
            reader = c.scope.spawn(c.kv.get(a), name="reader")
            await c.settle(0.3)
            assert not reader.done()
            await getattr(txn, finish)()
            assert await reader == expected

    play(story)


def test_an_older_reader_without_locks_waits_for_a_writer_and_then_sees_it() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        reader, writer = c.kv.begin(), c.kv.begin()
        await writer.increment(a)
        read = c.scope.spawn(reader.get(a), name="read")
        await c.settle(0.3)
        assert not read.done()
        await writer.commit()
        assert await read is not None, "it may have been first in real time, so the reader goes above it"
        await reader.commit()
        assert reader.commit_ts > writer.commit_ts

    play(story)


def test_an_older_reader_with_locks_wounds_a_writer() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        reader, writer = c.kv.begin(), c.kv.begin()
        await reader.increment(c.key(b"mine"))
        await writer.increment(a)
        assert await reader.get(a) is None
        with pytest.raises(TransactionAborted):
            await writer.commit()
        await reader.commit()

    play(story)


def test_an_older_reader_that_is_sure_of_its_time_moves_a_writer_up() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        reader, writer = c.kv.begin(), c.kv.begin()
        await writer.increment(a)
        reader.state.refreshed(writer.state.write_ts)  # it has read nothing yet: that holds anywhere
        assert await reader.get(a) is None
        await writer.commit()
        assert writer.commit_ts > reader.state.read_ts
        assert await reader.get(a) is None
        await reader.commit()
        assert reader.commit_ts < writer.commit_ts

    world = play(story, bugs=frozenset({"X-NO-UNCERTAINTY"}))
    assert world.probes["records.push_up"] >= 1


def test_a_transaction_older_than_the_ranges_memory_goes_on_as_a_young_one() -> None:
    async def story(c: Cluster) -> None:
        a = c.key(b"a")
        done = c.kv.begin()
        await done.increment(a)
        await done.commit()  # a finished record, to be collected
        old = c.kv.begin()
        await c.settle(1)
        await c.sender.send([requests.GcTxnRecords(c.clock.now())], requests.Header(NO_RANGE), at=a)
        runs = 0
        age = old.state.start
        while True:
            runs += 1
            try:
                await old.increment(a)
                await old.commit()
                break
            except TransactionAborted:
                await old.restart()
        assert runs == 2
        assert old.state.start > age
        assert await c.kv.increment(a, 0) == 2

    world = play(story)
    assert world.probes["records.commit_below_floor"] == 1


# --- refresh and restart


def test_a_moved_write_refreshes_reads_that_still_hold() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.put(a, b"1")
        runs = 0

        async def copy(txn: Transaction) -> Transaction:
            nonlocal runs
            runs += 1
            value = await txn.get(a)
            await c.kv.get(b)  # somebody reads b later than the transaction does
            await txn.put(b, value or b"")
            return txn

        txn = await c.kv.run(copy)
        assert runs == 1
        assert await c.kv.get(b, ts=txn.commit_ts) == b"1"

    world = play(story)
    assert world.probes["txn.refreshed"] >= 1


def test_a_refresh_pushes_a_younger_writer_aside_and_needs_no_second_run() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.increment(a)
        runs = 0
        younger: list[Transaction] = []

        async def copy(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            value = await txn.get(a)
            if runs == 1:
                younger.append(c.kv.begin())
                await younger[0].increment(a)  # an intent on what was read, above the read
                await c.kv.get(b)  # and the write of b has to move above that
            await txn.put(b, value or b"")

        await c.kv.run(copy)
        assert runs == 1, "the intent was no reason to begin again"
        await younger[0].rollback()
        assert await c.kv.get(b) == await c.kv.get(a)

    world = play(story)
    assert world.probes["evaluate.refresh_met_intent"] >= 1
    assert world.probes["txn.restart"] == 0


def test_a_read_that_no_longer_holds_runs_the_function_again() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        await c.kv.put(a, b"1")
        runs = 0

        async def copy(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            value = await txn.get(a)
            if runs == 1:
                await c.kv.put(a, b"2")
                await c.kv.get(b)
            await txn.put(b, value or b"")

        await c.kv.run(copy)
        assert runs == 2
        assert await c.kv.get(b) == b"2"

    world = play(story)
    assert world.probes["txn.refresh_failed"] >= 1
    assert world.probes["txn.restart"] == 1


def test_swallowing_a_retryable_error_does_not_commit_half() -> None:
    async def story(c: Cluster) -> None:
        a, b = c.key(b"a"), c.key(b"b")
        old, txn = c.kv.begin(), c.kv.begin()
        await txn.increment(a)
        await old.increment(a)
        await old.commit()
        await c.settle(2)
        for use in (txn.put(b, b"x"), txn.get(b), txn.commit()):
            with pytest.raises(TransactionAborted):
                await use
        await txn.rollback()
        assert await c.kv.get(b) is None

    play(story)


def test_a_transaction_that_outlives_the_closed_timestamp_commits() -> None:
    """Pitfall 14: every write is moved above what is closed; refreshes keep it going, restarts would not end."""

    async def story(c: Cluster) -> None:
        keys = [c.key(b"%d" % n) for n in range(6)]
        runs = 0

        async def slow(txn: Transaction) -> None:
            nonlocal runs
            runs += 1
            for key in keys:
                await txn.get(key)
                await c.runtime.clock.sleep(0.5)
                await txn.increment(key)

        async def churn() -> None:
            for n in range(100):
                await c.kv.put(c.key(b"churn%d" % n), b"x")
                await c.runtime.clock.sleep(0.05)

        noise = c.scope.spawn(churn(), name="churn")
        await c.kv.run(slow)
        noise.cancel()
        assert runs == 1
        assert [await c.kv.increment(key, 0) for key in keys] == [1] * 6

    world = play(story, settings={"closed_timestamp.target_duration": 0.05})
    assert world.probes["txn.refreshed"] >= 1


def test_few_refresh_spans_and_locks_are_enough() -> None:
    async def story(c: Cluster) -> None:
        await c.split(b"5")
        keys = [c.key(b"%d" % n) for n in range(10)]

        async def touch(txn: Transaction) -> None:
            for key, later in zip(keys, [*keys[1:], c.key(b"x")], strict=True):
                await c.kv.get(later)  # moves the write of it up
                await add(txn, key, 1)

        await c.kv.run(touch)
        assert [number(await c.kv.get(key)) for key in keys] == [1] * 10
        await c.settle()
        assert c.intents() == 0

    play(story, settings={"txn.refresh_spans_max": 2, "txn.lock_keys_max": 2, "txn.buffer_bytes_max": 0})


def test_commit_wait_ends_when_the_clock_has_passed() -> None:
    async def story(c: Cluster) -> None:
        from slackwater.clock import add_seconds

        future = add_seconds(c.clock.now(), 2.0)
        before = c.world.seconds
        await c.kv.context.wait_past(future)
        assert c.clock.now() > future
        assert c.world.seconds - before > 1.5
        await c.kv.context.wait_past(c.clock.now())

    world = play(story)
    assert world.probes["txn.commit_wait"] >= 1
