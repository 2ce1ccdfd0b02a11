"""Schema changes as jobs on real nodes in one process: climbed, queued, cancelled, refused, resumed."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import msgspec
import pytest

from slackwater.catalog.bulk_fill import BulkBackfill
from slackwater.catalog.schema_changes import SchemaChanger
from slackwater.codec.index_entries import IndexCodec
from slackwater.codec.layout import schema_span, table_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import SlackwaterError, UsageError
from slackwater.model.indexes import ElementState, index_schema
from slackwater.model.jobs import Status
from slackwater.model.protection import Mode
from slackwater.protect.zone_changes import change_zone
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

    from slackwater.catalog.filling import FillTask, ReadRun
    from slackwater.client.database import AsyncDatabase
    from slackwater.model.spans import Span
    from slackwater.model.tables import TableDescriptor, TableHistory
    from slackwater.runtime.seam import Clock

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}


async def check_index(cluster: Cluster, db: AsyncDatabase, table: str, name: str) -> int:
    """The index equals the table at one timestamp; returns how many entries it has."""
    history: TableHistory = await db.history(table)
    latest = history.latest
    (index,) = [i for i in latest.indexes if i.name == name]
    codec = IndexCodec(latest.schema, index, history.schemas())
    rows = RowCodec(latest.schema, history.by_version())
    kv, at = cluster.nodes[0].kv, db.now()
    span, entries = schema_span(latest.schema), schema_span(index_schema(latest.schema, index))
    found = await kv.scan(span.start, span.end, ts=at)
    kept = await kv.scan(entries.start, entries.end, ts=at)
    expected = dict(codec.entry(rows.decode(value)) for value in found.values)
    assert kept.keys == sorted(expected)
    assert [codec.codec.decode(v) for v in kept.values] == [codec.codec.decode(expected[k]) for k in kept.keys]
    return len(kept.keys)


def test_an_index_is_built_and_dropped() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.upsert("accounts", accounts(2_500))
            change = await db.create_index("accounts", "by_balance", ["balance desc"], storing=["owner"])
            (job,) = change.jobs
            assert job.status is Status.SUCCEEDED
            assert job.fraction == 1.0
            assert await check_index(cluster, db, "accounts", "by_balance") == 2_500
            latest = (await db.history("accounts")).latest
            assert latest.mutations == ()
            assert latest.indexes[0].state is ElementState.PUBLIC
            await db.drop_index("accounts", "by_balance")
            assert (await db.history("accounts")).latest.indexes == ()
            assert not (await db.protections())  # what the job protected is released with it

    asyncio.run(main())


def test_an_index_is_filled_run_by_run_while_the_next_is_read_and_behind_point_work(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The next run is read before one is written; blocks wait in the gate; columns are not made for a reader that comes once."""
    happened: list[str] = []

    async def main() -> None:
        async with Cluster(1, **FAST, schema__backfill_chunk=500) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.upsert("accounts", accounts(2_000))
            context = cluster.nodes[0].store.context
            gate, begun = context.bulk_gate, 0
            admit = gate.filling

            def counted(clock: Clock) -> AbstractAsyncContextManager[None]:
                nonlocal begun
                begun += 1
                return admit(clock)

            monkeypatch.setattr(gate, "busy", lambda now_ns: True)
            monkeypatch.setattr(gate, "filling", counted)
            context.columns.wanted.clear()
            await db.create_index("accounts", "by_balance", "balance")
            assert await check_index(cluster, db, "accounts", "by_balance") == 2_000
            assert begun == happened.count("written"), "a block of each run"
            assert not context.columns.wanted

    read, write = BulkBackfill.read, BulkBackfill.write

    async def reading(self: BulkBackfill, task: FillTask, span: Span, *, rows: int) -> ReadRun:
        happened.append("read")
        return await read(self, task, span, rows=rows)

    async def writing(self: BulkBackfill, run: ReadRun) -> None:
        await asyncio.sleep(0)
        await write(self, run)
        happened.append("written")

    monkeypatch.setattr(BulkBackfill, "read", reading)
    monkeypatch.setattr(BulkBackfill, "write", writing)
    asyncio.run(main())
    assert happened[:3] == ["read", "read", "written"]
    assert happened.count("read") == happened.count("written") > 2, "what was read ahead is written"


def test_a_unique_violation_names_the_rows_and_leaves_nothing_behind() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.upsert("accounts", [*accounts(50), {"id": 77, "owner": "o7", "balance": 1}])
            with pytest.raises(UsageError, match="two rows have the same values, id=7 and id=77"):
                await db.create_index("accounts", "by_owner", "owner", unique=True)
            latest = (await db.history("accounts")).latest
            assert (latest.indexes, latest.mutations) == ((), ())
            await db.delete("accounts", [77])
            await db.create_index("accounts", "by_owner", "owner", unique=True)
            assert await check_index(cluster, db, "accounts", "by_owner") == 50

    asyncio.run(main())


def test_columns_are_added_dropped_renamed_and_widened() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster) as db, session(cluster, 1) as other:
            await db.create_table("t", {"id": "int8", "a": "int4", "b": "text not null"}, primary_key=["id"])
            await db.upsert("t", [{"id": 1, "a": 5, "b": "x"}])
            before = db.now()
            await other.get("t", 1)
            await db.alter_table("t", add_column={"c": "int8 not null default 7"}, rename_column={"a": "z"})
            assert await db.get("t", 1) == {"id": 1, "z": 5, "b": "x", "c": 7}
            await db.alter_table("t", set_type={"z": "int8"})
            await db.upsert("t", [{"id": 2, "z": 1 << 40, "b": "y"}])
            assert await other.get("t", 2) == {"id": 2, "z": 1 << 40, "b": "y", "c": 7}
            await db.alter_table("t", drop_column="b")
            assert await db.get("t", 1) == {"id": 1, "z": 5, "c": 7}
            await other.upsert("t", [{"id": 3, "z": 1}])
            past = await db.snapshot(as_of=before)
            assert await past.get("t", 1) == {"id": 1, "a": 5, "b": "x"}  # the schema as of then
            jobs = await db.jobs.list(kind="schema-change")
            assert [job.status for job in jobs] == [Status.SUCCEEDED] * 4

    asyncio.run(main())


def test_not_null_and_checks_are_validated() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": 1, "a": 5}, {"id": 2}, {"id": 3, "a": -1}])
            with pytest.raises(UsageError, match="row id=2 of table t does not satisfy"):
                await db.alter_table("t", set_not_null="a")
            with pytest.raises(UsageError, match=r"row id=3 of table t does not satisfy a >= 0 \(a=-1\)"):
                await db.alter_table("t", add_check={"positive": "a >= 0"})
            latest = (await db.history("t")).latest
            assert (latest.checks, latest.mutations) == ((), ())
            assert latest.schema.column("a").nullable
            await db.upsert("t", [{"id": 2, "a": 0}, {"id": 3, "a": 0}])
            await db.alter_table("t", set_not_null="a", add_check={"positive": "a >= 0"})
            latest = (await db.history("t")).latest
            assert not latest.schema.column("a").nullable
            assert [check.name for check in latest.checks] == ["positive"]
            await db.alter_table("t", drop_not_null="a", drop_check="positive")
            latest = (await db.history("t")).latest
            assert (latest.checks, latest.schema.column("a").nullable) == ((), True)

    asyncio.run(main())


def test_a_table_is_renamed_and_its_old_name_is_free() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster) as db, session(cluster, 1) as other:
            await db.create_table("t", {"id": "int8"}, primary_key=["id"])
            await db.create_table("taken", {"id": "int8"}, primary_key=["id"])
            await other.upsert("t", [{"id": 1}])
            with pytest.raises(UsageError, match="there is a table 'taken' already"):
                await db.rename_table("t", "taken")
            await db.rename_table("t", "u")
            assert await other.get("u", 1) == {"id": 1}
            await db.create_table("t", {"id": "int8", "x": "int8"}, primary_key=["id"])
            assert await db.get("t", 1) is None
            with pytest.raises(UsageError, match="no table 'gone'"):
                await db.rename_table("gone", "v")

    asyncio.run(main())


def test_changes_of_one_table_queue_up_and_cancelled_ones_leave_nothing() -> None:
    async def main() -> None:
        async with (
            Cluster(1, **FAST, schema__backfill_rate=10, schema__backfill_chunk=5) as cluster,
            session(cluster, timeout_s=20.0) as db,
        ):
            await db.create_table("t", {"id": "int8", "a": "int8", "b": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": i, "b": i} for i in range(2_000)])
            first = (await db.create_index("t", "by_a", "a", wait=False)).jobs[0]
            second = (await db.alter_table("t", add_column={"c": "int8"}, wait=False)).jobs[0]
            third = (await db.create_index("t", "by_c", "c", wait=False)).jobs[0]  # of a column that is yet to come
            with pytest.raises(UsageError, match=rf"index by_a of t is part of a change .*job {first.id}"):
                await db.drop_index("t", "by_a")
            with pytest.raises(UsageError, match="column c of t is part of a change"):
                await db.alter_table("t", drop_column="c")
            plan = (await db.alter_table("t", set_not_null="b", dry_run=True)).plan
            assert plan is not None
            assert [step.says for step in plan.changes[0].steps] == ["write-only", "backfilling", "public"]
            jobs = [line for line in plan.blocked_by if line.startswith("job ")]
            assert len(jobs) == 3, "beside nodes that have not let the version before go yet"
            await cluster.until(lambda: cluster.nodes[0].jobs.running == [first.id])
            await db.jobs.cancel(first.id)
            cluster.settings.set("schema.backfill_rate", 1_000_000)
            for node in cluster.nodes:
                node.settings.set("schema.backfill_rate", 1_000_000)
            assert (await db.jobs.wait(first.id, timeout=20)).status is Status.CANCELLED
            assert (await db.jobs.wait(second.id, timeout=20)).status is Status.SUCCEEDED
            assert (await db.jobs.wait(third.id, timeout=20)).status is Status.SUCCEEDED
            assert await check_index(cluster, db, "t", "by_c") == 2_000
            latest = (await db.history("t")).latest
            assert [index.name for index in latest.indexes] == ["by_c"]
            assert latest.mutations == ()

    asyncio.run(main())


def test_a_change_whose_turn_comes_while_it_is_parked_is_not_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks at the table; the change before it ends, and wakes a job that is not parked yet; then it would park."""
    present, looks = SchemaChanger._present, 0

    async def stale(self: SchemaChanger, table_id: int) -> TableDescriptor | None:
        nonlocal looks
        looks += 1
        now = await present(self, table_id)
        if looks > 1 or now is None:
            return now
        before = msgspec.structs.replace(now.mutations[0], job=now.mutations[0].job - 1)
        return msgspec.structs.replace(now, mutations=(before, *now.mutations))

    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            monkeypatch.setattr(SchemaChanger, "_present", stale)
            async with asyncio.timeout(20):
                await db.create_index("accounts", "by_owner", "owner")
            assert looks >= 2

    asyncio.run(main())


def test_a_table_is_emptied() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster) as db, session(cluster, 1) as other:
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await other.upsert("t", [{"id": i, "a": i} for i in range(10)])
            await db.create_index("t", "by_a", "a")
            before = db.now()
            await db.truncate_table("t")
            assert (await db.scan("t")).num_rows == 0
            await other.upsert("t", [{"id": 1, "a": 5}])
            assert await db.get("t", 1) == {"id": 1, "a": 5}
            assert await other.get("t", 2) is None
            past = await db.snapshot(as_of=before)
            assert (await past.scan("t")).num_rows == 10

    asyncio.run(main())


def test_a_dropped_table_ends_its_changes() -> None:
    async def main() -> None:
        async with (
            Cluster(1, **FAST, schema__backfill_rate=10) as cluster,
            session(cluster) as db,
        ):
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": i} for i in range(2_000)])
            job = (await db.create_index("t", "by_a", "a", wait=False)).jobs[0]
            waiting = (await db.create_index("t", "by_a_down", "a desc", wait=False)).jobs[0]
            await cluster.until(lambda: cluster.nodes[0].jobs.running == [job.id])
            await db.drop_table("t")
            for each in (job, waiting):
                ended = await db.jobs.wait(each.id, timeout=20)
                assert ended.status is Status.FAILED
                assert "dropped" in ended.error

    asyncio.run(main())


def test_an_index_equals_its_table_whatever_is_written_while_it_is_built() -> None:
    """Inserts, updates and deletes all the way up, twice, with a cancelled build in between."""

    async def write(db: AsyncDatabase, stop: asyncio.Event, first: int) -> int:
        rounds = 0
        while not stop.is_set():
            number = first + 3 * (rounds % 200)
            await db.upsert("t", [{"id": number, "a": rounds}, {"id": number + 3_000, "a": -rounds}])
            await db.delete("t", [first + 3 * ((rounds * 7) % 200)])
            rounds += 1
        return rounds

    async def main() -> None:
        async with Cluster(1, **FAST, schema__backfill_chunk=20) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": i % 17} for i in range(600)])
            stop = asyncio.Event()
            writers = [asyncio.create_task(write(db, stop, n)) for n in range(3)]
            doomed = (await db.create_index("t", "by_a", "a", wait=False)).jobs[0]
            await db.jobs.cancel(doomed.id)
            await db.jobs.wait(doomed.id, timeout=30)
            await db.create_index("t", "by_a", "a", timeout=30)
            await check_index(cluster, db, "t", "by_a")
            await db.drop_index("t", "by_a", timeout=30)
            await db.create_index("t", "by_a", "a", timeout=30)
            stop.set()
            assert all(await asyncio.gather(*writers))
            assert await check_index(cluster, db, "t", "by_a") == (await db.scan("t")).num_rows

    asyncio.run(main())


def test_a_check_of_rows_holds_one_protection_for_as_long_as_its_job_lasts() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST, schema__backfill_rate=100) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": i} for i in range(400)])
            job = (await db.alter_table("t", set_not_null="a", wait=False)).jobs[0]
            async with asyncio.timeout(20):
                while not (found := await db.protections()):
                    await asyncio.sleep(0.01)
            (protection,) = found
            assert protection.tables == ("t",)
            assert str(job.id) in protection.about
            assert not (await db.jobs.get(job.id)).status.ended, "it pauses after its only page of rows"
            with pytest.raises(SlackwaterError):
                await db.release(protection.id)
            for node in cluster.nodes:
                node.settings.set("schema.backfill_rate", 1_000_000)
            assert (await db.jobs.wait(job.id, timeout=20)).status is Status.SUCCEEDED
            assert not await db.protections()

    asyncio.run(main())


def test_a_check_of_rows_reads_at_a_time_that_can_still_be_protected() -> None:
    async def main() -> None:
        async with Cluster(1, **FAST) as cluster, session(cluster) as db:
            (node,) = cluster.nodes
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": 1, "a": 1}])
            span = table_span((await db.history("t")).latest.table_id)
            await change_zone(node.kv, span.start, span.end, gc_ttl_s=1.0)
            other = node.kv.begin()
            await node.protections.store.protect(other, node.clock.now(), Mode.AT, "user", b"", tables=[100])
            await node.protections.catalog.get_metadata(other)  # what it has written is sent with this
            change = asyncio.create_task(db.alter_table("t", set_not_null="a"))
            await asyncio.sleep(2.5)  # it waits for the other, for longer than history is kept
            assert not change.done()
            await other.rollback()
            await change
            assert not (await db.history("t")).latest.schema.column("a").nullable
            assert not await db.protections()

    asyncio.run(main())


def test_another_node_goes_on_with_a_change_whose_node_gives_it_up() -> None:
    async def main() -> None:
        async with (
            Cluster(2, **FAST, schema__backfill_rate=100, schema__backfill_chunk=10) as cluster,
            session(cluster) as db,
        ):
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": i} for i in range(400)])
            job = (await db.create_index("t", "by_a", "a", wait=False)).jobs[0]
            await cluster.until(lambda: any(node.jobs.running for node in cluster.nodes))
            async with asyncio.timeout(20):
                while "rows" not in (await db.jobs.get(job.id)).progress:
                    await asyncio.sleep(0.01)
            (claimant,) = [node for node in cluster.nodes if node.jobs.running]
            claimant.settings.set("jobs.running_max", 0)
            await claimant.jobs.stop()
            for node in cluster.nodes:
                node.settings.set("schema.backfill_rate", 100_000)
            assert (await db.jobs.wait(job.id, timeout=30)).status is Status.SUCCEEDED
            assert await check_index(cluster, db, "t", "by_a") == 400

    asyncio.run(main())


def test_a_unique_index_is_filled_in_runs_and_blocks_while_rows_exchange_their_values() -> None:
    """Keys that a writer has touched since the rows were read are left out by blocks, and settled."""

    async def write(db: AsyncDatabase, stop: asyncio.Event) -> int:
        rounds = 0
        while not stop.is_set():
            one, other = rounds * 7 % 1_000, 1_000 + rounds * 11 % 1_000
            rows = [await db.get("t", one), await db.get("t", other)]
            assert rows[0] is not None
            assert rows[1] is not None
            await db.upsert("t", [{"id": one, "a": rows[1]["a"]}, {"id": other, "a": rows[0]["a"]}])
            rounds += 1
        return rounds

    async def main() -> None:
        async with (
            Cluster(1, **FAST, schema__backfill_chunk=700, schema__backfill_block=2_000) as cluster,
            session(cluster, timeout_s=60.0) as db,
        ):
            await db.create_table("t", {"id": "int8", "a": "int8"}, primary_key=["id"])
            await db.upsert("t", [{"id": i, "a": -i} for i in range(2_000)])
            stop = asyncio.Event()
            writer = asyncio.create_task(write(db, stop))
            await db.create_index("t", "by_a", "a", unique=True)
            stop.set()
            assert await writer
            assert await check_index(cluster, db, "t", "by_a") == 2_000

    asyncio.run(main())
