"""Bulk reads through whole nodes: ranges, chunks, followers, transactions in the way."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.bulk_arrow import plan_schema, unpack
from slackwater.codec.changes_arrow import change_schema
from slackwater.codec.layout import schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import BelowGcThreshold, ConflictError, UsageError
from slackwater.model.kinds import ColumnKind, ColumnType
from slackwater.model.scan_plan import ScanPlan
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.model.txns import Txn
from slackwater.protocol.range.bulk import Blocks, ExportArrow, ScanArrow
from slackwater.protocol.range.requests import GcTxnRecords, Get, Header, RaiseGcThreshold
from slackwater.protocol.range.served import Why
from slackwater.replica.driver.columns import make, shape_of
from slackwater.routing.sender import NO_RANGE
from slackwater.storage.stats import Stats
from tests.unit.gateway.read_columns import read_columns
from tests.unit.server.cluster import Cluster

SCHEMA = TableSchema(
    9,
    "t",
    1,
    (Column(1, "id", ColumnType(ColumnKind.INT), nullable=False), Column(2, "name", ColumnType(ColumnKind.STRING))),
    (KeyColumn(1),),
)
CODEC = RowCodec(SCHEMA)
SPAN = schema_span(SCHEMA)
PLAN = ScanPlan((SCHEMA,), 1)
SCAN = ScanArrow(SPAN.start, SPAN.end, PLAN.encode())


def row(n, name="x"):
    return {"id": n, "name": name}


def key(n):
    return CODEC.encode(row(n))[0]


async def fill(node, numbers, name="x"):
    pairs = [CODEC.encode(row(n, name)) for n in numbers]
    await node.kv.put_rows([k for k, _ in pairs], [v for _, v in pairs])


async def rows(node, request=SCAN, *, schema=None, **options):
    """(rows, answers) of a bulk read through one node."""
    found, answers = [], []
    async for answer in read_columns(node.kv, request, **options):
        (blocks,) = answer.results
        assert isinstance(blocks, Blocks)
        found += [r for batch in unpack(blocks.blocks, schema or plan_schema(PLAN)) for r in batch.to_pylist()]
        answers.append(answer)
    return found, answers


def run(test):
    asyncio.run(test)


def test_a_scan_crosses_ranges_in_chunks_at_one_timestamp():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(3000))
            for at in (500, 900, 2100):
                await node.admin.split(key(at))
            whole, _ = await rows(node)
            assert whole == [row(n) for n in range(3000)]
            first: list[dict[str, object]] = []
            answers = []
            async for answer in read_columns(node.kv, SCAN, chunk_rows=100):
                if not answers:  # what is written meanwhile belongs to a later time
                    await fill(node, range(2900, 3100), "later")
                answers.append(answer)
                first += [r for b in unpack(answer.results[0].blocks, plan_schema(PLAN)) for r in b.to_pylist()]
            assert first == [row(n) for n in range(3000)]
            assert len(answers) > 5
            assert len({answer.ts for answer in answers}) == 1

    run(test())


def test_without_a_limit_one_answer_is_bounded_and_says_where_to_go_on():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(400), "y" * 50_000)  # 20 MB
            answer = await node.kv.read([SCAN], Header(NO_RANGE))
            (blocks,) = answer.results
            assert blocks.resume is not None
            assert blocks.bytes_read < 12 << 20
            await node.admin.split(key(50))
            answer = await node.kv.read([SCAN], Header(NO_RANGE))
            assert answer.results[0].resume is not None

    run(test())


def test_changes_come_with_what_was_there_before():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(10), "a")
            after = node.clock.now()
            await fill(node, [3, 12], "b")
            await node.kv.delete(key(5))
            await node.kv.delete(key(77))
            upto = node.clock.now()
            await fill(node, [1], "too late")
            await node.admin.split(key(4))
            request = ExportArrow(SPAN.start, SPAN.end, after, upto, PLAN.encode())
            got, _ = await rows(node, request, schema=change_schema(PLAN.schema()), ts=upto)
            assert [(r["id"], r["name"], r["_op"]) for r in got] == [
                (3, "b", "update"),
                (5, None, "delete"),
                (12, "b", "insert"),
            ]
            assert all(after < r["_commit_ts"] <= upto for r in got)
            request = ExportArrow(SPAN.start, SPAN.end, after, upto, PLAN.encode(), before=True)
            got, _ = await rows(node, request, schema=change_schema(PLAN.schema(), befores=True), ts=upto)
            assert [(r["id"], r["name"], r["_op"], r["_before"] and r["_before"]["name"]) for r in got] == [
                (3, "b", "update", "a"),
                (5, None, "delete", "a"),
                (12, "b", "insert", None),
            ]

    run(test())


def test_a_follower_serves_columns_once_the_timestamp_is_closed_there():
    async def test():
        async with Cluster(3, closed_timestamp__target_duration=0.2) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await fill(leader, range(200))
            await leader.admin.change_replicas(key(0), [n.node_id for n in cluster.nodes])
            ts = leader.clock.now()
            follower.sender.cache.clear()
            got, answers = await rows(follower, ts=ts, follower_ok=True, wait_ms=10_000)
            assert got == [row(n) for n in range(200)]
            assert all(a.by_follower and a.served_by == follower.node_id for a in answers)
            (served,) = answers[0].served
            assert (served.node_id, served.ts, served.by_follower, served.why) == (
                follower.node_id,
                ts,
                True,
                Why.FOLLOWER,
            )
            assert served.closed >= ts
            assert served.now >= served.closed

    run(test())


def test_an_answer_says_why_no_follower_served_it():
    async def test():
        async with Cluster(3, closed_timestamp__target_duration=300.0) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await fill(leader, range(20))
            await leader.admin.change_replicas(key(0), [n.node_id for n in cluster.nodes])
            await leader.admin.transfer_lease(key(0), leader.node_id)
            follower.sender.cache.clear()
            ts = leader.clock.now()

            async def why(node, **options):
                _, answers = await rows(node, ts=ts, **options)
                assert all(a.served[0].node_id == leader.node_id and a.served[0].ts == ts for a in answers)
                (reason,) = {served.why for a in answers for served in a.served}
                return reason

            assert await why(follower) is Why.NOT_ALLOWED
            assert await why(follower, follower_ok=True) is Why.NOT_CLOSED
            assert await why(follower, follower_ok=True, wait_ms=20) is Why.WAITED
            assert await why(leader, follower_ok=True) is Why.LEADS
            answer = await follower.kv.read([Get(key(1))], Header(NO_RANGE, ts=ts, follower_ok=True))
            assert [served.why for served in answer.served] == [Why.NOT_CLOSED]
            assert "not closed" in answer.served[0].status()

    run(test())


def test_on_an_intent_a_point_read_leaves_the_follower_and_a_bulk_read_pushes_and_stays():
    async def test():
        async with Cluster(3, closed_timestamp__target_duration=0.2) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await fill(leader, range(20))
            await leader.admin.change_replicas(key(0), [n.node_id for n in cluster.nodes])
            await leader.admin.transfer_lease(key(0), leader.node_id)
            txn = leader.kv.begin()
            await txn.put(*CODEC.encode(row(3, "unfinished")))
            await txn.get(key(3))  # the write is an intent now
            await fill(leader, [30])
            follower.sender.cache.clear()
            ts = leader.clock.now()
            replica = follower.store.replicas[(await leader.sender.range_of(key(0))).range_id]
            await cluster.until(lambda: replica.closing.closed() >= ts)
            header = Header(NO_RANGE, ts=ts, follower_ok=True)
            answer = await follower.sender.send([Get(key(4))], header)
            assert answer.served[0].by_follower
            with pytest.raises(ConflictError) as conflict:  # the leaseholder's word, not the follower's
                await follower.sender.send([Get(key(3))], header)
            assert "by_follower" not in conflict.value.facts
            with pytest.raises(ConflictError) as conflict:
                await follower.sender.send([SCAN], header)
            assert conflict.value.facts["by_follower"]
            got, answers = await rows(follower, ts=ts, follower_ok=True)
            assert got == [row(n) for n in [*range(20), 30]]
            assert all(served.by_follower for a in answers for served in a.served)
            # The writer was moved above the read, not aborted.
            await txn.commit()
            assert (await rows(leader))[0] == [row(n, "unfinished" if n == 3 else "x") for n in [*range(20), 30]]

    run(test())


def test_what_is_refused():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(10))
            now = node.clock.now()
            txn = Txn(b"t" * 16, key(1), now, 0, now, now, MIN, 1)
            for header, requests in [
                (Header(NO_RANGE, txn=txn), [SCAN]),
                (Header(NO_RANGE, ts=now), [SCAN, Get(key(1))]),
                (Header(NO_RANGE, ts=Timestamp(now - 1)), [ExportArrow(SPAN.start, SPAN.end, MIN, now, SCAN.plan)]),
            ]:
                with pytest.raises(UsageError):
                    await node.sender.send(requests, header)
            cluster.collect_upto_now()
            await node.admin.ask(RaiseGcThreshold(now), at=key(1))
            with pytest.raises(BelowGcThreshold):
                await rows(node, ts=now)
            later = node.clock.now()
            request = ExportArrow(SPAN.start, SPAN.end, Timestamp(now - 1), later, SCAN.plan)
            with pytest.raises(BelowGcThreshold):
                await rows(node, request, ts=later)

    run(test())


def test_an_abandoned_transaction_in_the_way_is_pushed():
    async def test():
        async with Cluster(1, txn__expiration=0.5) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(10))
            txn = node.kv.begin()
            await txn.put(*CODEC.encode(row(3, "never")))
            await txn.get(key(3))  # the write is an intent now
            txn.abandon()
            got, _ = await rows(node)
            assert got == [row(n) for n in range(10)]

    run(test())


def test_a_bulk_read_stays_on_a_follower_that_never_hears_of_the_resolution():
    async def test():
        async with Cluster(3, closed_timestamp__target_duration=0.2, txn__expiration=0.5) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await fill(leader, range(20))
            await leader.admin.change_replicas(key(0), [n.node_id for n in cluster.nodes])
            await leader.admin.transfer_lease(key(0), leader.node_id)
            txn = leader.kv.begin()
            await txn.put(*CODEC.encode(row(3, "never")))
            await txn.get(key(3))  # the write is an intent now
            ts = leader.clock.now()
            replica = follower.store.replicas[(await leader.sender.range_of(key(0))).range_id]
            await cluster.until(lambda: replica.closing.closed() >= ts and replica.state.lai > 0)
            never = asyncio.Event()

            async def deaf(entries):
                await never.wait()

            replica._apply = deaf
            txn.abandon()
            follower.sender.cache.clear()
            got, answers = await rows(follower, ts=ts, follower_ok=True)
            assert got == [row(n) for n in range(20)]
            # The reader learns that the transaction is aborted, tells the follower, and that one passes the intent by.
            assert {served.why for a in answers for served in a.served} == {Why.FOLLOWER}
            assert {served.node_id for a in answers for served in a.served} == {follower.node_id}
            never.set()

    run(test())


def test_a_collected_record_is_no_abort_to_a_follower_that_still_shows_the_intent():
    """The transaction committed, was resolved and forgotten; only this follower has not heard of it (M11)."""

    async def test():
        async with Cluster(3, closed_timestamp__target_duration=0.2, txn__record_retention=1.0) as cluster:
            leader, follower = cluster.nodes[0], cluster.nodes[2]
            await fill(leader, range(20))
            await leader.admin.change_replicas(key(0), [n.node_id for n in cluster.nodes])
            await leader.admin.transfer_lease(key(0), leader.node_id)
            txn = leader.kv.begin()
            await txn.put(*CODEC.encode(row(3, "new")))
            await txn.get(key(3))  # the write is an intent now
            range_id = (await leader.sender.range_of(key(0))).range_id
            replica = follower.store.replicas[range_id]
            written = leader.clock.now()
            await cluster.until(lambda: replica.closing.closed() >= written and replica.state.lai > 0)
            never = asyncio.Event()

            async def deaf(entries):
                await never.wait()

            replica._apply = deaf
            await txn.commit()
            here = leader.store.replicas[range_id]
            await cluster.until(lambda: Stats(*here.state.stats).intents == 0)
            await asyncio.sleep(1.2)
            await leader.admin.ask(GcTxnRecords(leader.clock.now()), at=key(0))
            assert here.state.txn_floor > written
            follower.sender.cache.clear()
            # The commit timestamp is below what the follower has closed: it must not pass the intent by.
            assert txn.commit_ts <= written
            got, _ = await rows(follower, ts=written, follower_ok=True)
            assert got == [row(n, "new") if n == 3 else row(n) for n in range(20)]
            never.set()

    run(test())


def test_an_answer_that_does_not_fit_a_frame_is_asked_for_in_smaller_pieces():
    async def test():
        async with Cluster(2, rpc__frame_bytes_max=1 << 16) as cluster:
            here, there = cluster.nodes
            await fill(here, range(1000))
            wide = TableSchema(
                9,
                "t",
                2,
                (*SCHEMA.columns, Column(3, "added", ColumnType(ColumnKind.STRING), default="d" * 500)),
                SCHEMA.primary_key,
            )
            plan = ScanPlan((SCHEMA, wide), 2)
            request = ScanArrow(SPAN.start, SPAN.end, plan.encode())
            got, answers = await rows(there, request, schema=plan_schema(plan), ts=here.clock.now())
            assert [(r["id"], r["added"]) for r in got] == [(n, "d" * 500) for n in range(1000)]
            assert len(answers) > 8

    run(test())


async def columns_of(cluster, node):
    """A segment of the whole table, made as soon as what was written is closed."""
    written = node.clock.now()
    replica = node.store.holding(SPAN.start)
    await cluster.until(lambda: replica.closing.closed() >= written)
    return await make(replica, SPAN.start, SPAN.end, [SCHEMA], shape_of(node.settings))


def test_rows_that_were_not_written_come_from_columns_and_those_written_are_read():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(3000))
            columns = node.store.context.columns
            limits = {"chunk_bytes": 2_000}
            first, answers = await rows(node, ts=node.clock.now(), **limits)
            assert len(answers) > 3
            assert columns.pages == 0
            assert await columns_of(cluster, node) is not None
            past, of_rows = node.clock.now(), columns.row_pages
            again, _ = await rows(node, ts=past)
            assert again == first
            assert columns.pages > 0, "it came from columns"
            assert columns.row_pages <= of_rows + 1  # what is behind the last row
            await fill(node, [1500], "new")
            assert (await rows(node, ts=node.clock.now(), **limits))[0][1500] == row(1500, "new")
            assert (await rows(node, ts=past, **limits))[0] == first, "the past stays what it was"
            await node.admin.split(key(700))
            await node.kv.delete(key(0))
            assert (await rows(node, ts=node.clock.now(), **limits))[0][0] == row(1)

    run(test())


def test_an_intent_in_the_span_of_columns_is_still_in_the_way():
    async def test():
        async with Cluster(1) as cluster:
            (node,) = cluster.nodes
            await fill(node, range(300))
            assert await columns_of(cluster, node) is not None
            txn = node.kv.begin()
            await txn.put(*CODEC.encode(row(7, "mine")))
            between = node.clock.now()
            assert (await rows(node, ts=between))[0][7] == row(7), "the transaction is moved up, out of the way"
            await txn.commit()
            assert (await rows(node, ts=between))[0][7] == row(7)
            assert (await rows(node, ts=node.clock.now()))[0][7] == row(7, "mine")
            assert node.store.context.columns.pages >= 3, "all three came from columns"

    run(test())
