"""Staged writes: invisible until published, published once, whatever is repeated, lost or left over."""

from __future__ import annotations

import asyncio
import datetime as dt
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MAX, us_of
from slackwater.codec.keys import escape
from slackwater.codec.layout import SYSTEM, prefix_span, schema_span
from slackwater.codec.rows import RowCodec
from slackwater.errors import ConditionFailed, SchemaChanged, SlackwaterError, UsageError
from slackwater.gateway.staged_jobs import job_name
from slackwater.jobs import transitions as to
from slackwater.model import kinds
from slackwater.model.jobs import Status
from slackwater.protocol.client import calls, staging
from slackwater.protocol.client.staging import StagedKind
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

STAGED = prefix_span(SYSTEM + escape(b"staging"))
COLUMNS = (calls.ColumnSpec("id", kinds.INT, nullable=False), calls.ColumnSpec("v", kinds.STRING))


class World:
    """A node, a table, and a client that stages."""

    def __init__(self, cluster: Cluster) -> None:
        self.node = cluster.nodes[0]

    async def call(self, method, request):
        return await self.node.dialer.call(self.node.address, method, request, timeout=20.0)

    async def create(self, name: str = "t") -> None:
        made = await self.call(calls.CREATE_TABLE, calls.CreateTable(name, COLUMNS, (calls.KeySpec("id"),)))
        self.table = made.table.latest
        self.codec = RowCodec(self.table.schema)

    async def stage(
        self, *chunks: dict[int, str], age_s: float = 0.0, job: staging.StagingJob | None = None
    ) -> staging.PartRef:
        now_us = us_of(self.node.clock.now()) - int(age_s * 1e6)
        part = staging.part_id(now_us, self.node.runtime.rng.bytes(8))
        encoded = []
        for chunk in chunks:
            pairs = sorted(self.codec.encode({"id": key, "v": value}) for key, value in chunk.items())
            encoded.append(staging.encode_chunk(staging.Chunk([k for k, _ in pairs], [v for _, v in pairs])))
        await self.call(staging.STAGE, staging.StageChunks(part, 0, encoded, sum(map(len, chunks)), job))
        if age_s:
            await self.age(part, age_s)
        return staging.PartRef(part, len(chunks), sum(map(len, chunks)), job.job if job else b"")

    async def age(self, name: bytes, age_s: float) -> None:
        """Let a write look as if its client had been silent for so long."""
        store = self.node.jobs.store

        async def work(txn):
            job = await store.named(txn, job_name(name))
            await store.write(txn, to.renewed(job, job.claim_expires - dt.timedelta(seconds=age_s)), before=job)

        await self.node.kv.run(work)
        self.node.jobs.ring()

    async def publish(
        self,
        *parts: staging.PartRef,
        app: str = "app",
        version: int = 0,
        kind: StagedKind = StagedKind.UPSERT,
        lasting: bool = True,
        owner: str = "",
        keep: tuple[str, ...] = (),
    ) -> staging.Published:
        ids = [self.table.schema.column(name).id for name in keep]
        table_id, schema_version = self.table.table_id, self.table.version
        request = staging.Publish(table_id, schema_version, kind, list(parts), app, version, lasting, owner, ids)
        return await self.call(staging.PUBLISH, request)

    async def rows(self) -> dict[int, str]:
        span = schema_span(self.table.schema)
        found = await self.node.kv.scan(span.start, span.end)
        return {row["id"]: row["v"] for row in map(self.codec.decode, found.values)}

    async def staged(self) -> int:
        return len((await self.node.kv.scan(STAGED.start, STAGED.end)).keys)


def in_world(test: Callable[[World], Awaitable[None]], **settings: float) -> None:
    async def run() -> None:
        async with Cluster(1, **settings) as cluster:
            world = World(cluster)
            await world.create()
            await test(world)

    asyncio.run(run())


def test_parts_are_unseen_until_one_publish_shows_all_of_them_at_one_timestamp() -> None:
    async def test(world: World) -> None:
        a = await world.stage({1: "a", 2: "b"}, {0: "z"})
        b = await world.stage({3: "c"})
        loser = await world.stage({1: "lost", 9: "lost"})
        assert await world.rows() == {}
        done = await world.publish(a, b)
        assert (done.rows, done.already) == (4, False)
        assert await world.rows() == {0: "z", 1: "a", 2: "b", 3: "c"}
        span = schema_span(world.table.schema)
        before = await world.node.kv.scan(span.start, span.end, ts=done.ts - 1)
        at = await world.node.kv.scan(span.start, span.end, ts=done.ts)
        assert (len(before.keys), len(at.keys)) == (0, 4)
        assert await world.staged() == 1, "only the attempt that lost is left"
        await world.call(staging.DROP_PARTS, staging.DropParts([loser.part, a.part]))
        assert await world.staged() == 0
        assert len(await world.rows()) == 4

    in_world(test)


def test_a_version_is_published_once_and_older_ones_never_again() -> None:
    async def test(world: World) -> None:
        assert not (await world.publish(await world.stage({1: "a"}), version=5)).already
        again = await world.publish(await world.stage({1: "b", 2: "b"}), version=5)
        older = await world.publish(await world.stage({1: "c"}), version=4)
        other = await world.publish(await world.stage({7: "o"}), app="other", version=1)
        assert (again.already, again.rows, older.already, other.already) == (True, 1, True, False)
        assert await world.rows() == {1: "a", 7: "o"}
        assert not (await world.publish(await world.stage({1: "d"}), version=6)).already
        assert await world.rows() == {1: "d", 7: "o"}
        assert await world.staged() == 0

    in_world(test)


def test_a_name_is_bound_to_the_table_its_life_and_the_operation() -> None:
    async def test(world: World) -> None:
        first = await world.publish(await world.stage({1: "a", 2: "b"}), version=5)
        other = World.__new__(World)
        other.node = world.node
        await other.create("other")
        assert not (await other.publish(await other.stage({1: "o"}), version=5)).already, "another table"
        gone = await world.publish(await world.stage({2: ""}), version=5, kind=StagedKind.DELETE)
        assert not gone.already, "another operation"
        assert (await world.rows(), await other.rows()) == ({1: "a"}, {1: "o"})
        for kind in (StagedKind.UPSERT, StagedKind.DELETE):
            again = await world.publish(await world.stage({1: "x"}), version=5, kind=kind)
            assert again.already
            assert again.ts >= max(first.ts, gone.ts), "a repeat tells when the rows are certainly there"
        await world.call(calls.DROP_TABLE, calls.DropTableByName("t"))
        await world.create("t")
        assert not (await world.publish(await world.stage({9: "anew"}), version=5)).already, "the table was made anew"
        assert await world.rows() == {9: "anew"}

    in_world(test)


def test_batches_of_a_new_checkpoint_are_refused_instead_of_taken_for_old_ones() -> None:
    async def test(world: World) -> None:
        for number in range(3):
            await world.publish(await world.stage({number: "a"}), version=number, owner="query a")
        assert (await world.publish(await world.stage({2: "again"}), version=2, owner="query a")).already
        assert (await world.publish(await world.stage({2: "by hand"}), version=2)).already
        with pytest.raises(UsageError, match="another query has written up to version 2 under the name app"):
            await world.publish(await world.stage({7: "b"}), version=0, owner="query b")
        assert await world.rows() == {0: "a", 1: "a", 2: "a"}
        assert not (await world.publish(await world.stage({7: "b"}), version=3, owner="query b")).already

    in_world(test)


def test_an_upsert_may_leave_columns_as_they_are() -> None:
    async def test(world: World) -> None:
        await world.publish(await world.stage({1: "old", 2: "old"}), app="before")
        ref = await world.stage({1: "not given", 3: "its default"})
        with pytest.raises(UsageError, match="no such column outside of its key"):
            await world.publish(ref, keep=("id",))
        await world.publish(ref, keep=("v",))
        assert await world.rows() == {1: "old", 2: "old", 3: "its default"}

    in_world(test)


def test_two_publishers_of_one_version_write_once() -> None:
    async def test(world: World) -> None:
        parts = [await world.stage({n: f"by {n}"}) for n in range(6)]
        done = await asyncio.gather(*(world.publish(part, version=1) for part in parts))
        assert [d.already for d in done].count(False) == 1
        assert len(await world.rows()) == 1

    in_world(test)


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        (StagedKind.UPSERT, {1: "new", 2: "new"}),
        (StagedKind.INSERT_IGNORE, {1: "old", 2: "new"}),
        (StagedKind.INSERT, None),
        (StagedKind.DELETE, {}),
    ],
)
def test_what_each_kind_does_to_a_row_that_is_there(kind: StagedKind, expected: dict[int, str] | None) -> None:
    async def test(world: World) -> None:
        await world.publish(await world.stage({1: "old"}), app="before")
        ref = await world.stage({1: "new", 2: "new"})
        if expected is None:
            with pytest.raises(ConditionFailed, match="in table t already; nothing was written"):
                await world.publish(ref, kind=kind)
            assert await world.rows() == {1: "old"}
            fresh = await world.publish(await world.stage({2: "new"}), kind=kind)
            assert not fresh.already, "a publish that failed left no mark"
        else:
            await world.publish(ref, kind=kind)
            assert await world.rows() == expected

    in_world(test)


def test_a_job_over_the_bound_is_told_when_the_row_that_is_too_many_is_staged() -> None:
    async def test(world: World) -> None:
        with pytest.raises(UsageError, match=r"11 rows or more are more than one commit takes .* split the job"):
            await world.stage(dict.fromkeys(range(11), "x"))
        job, other = (staging.part_id(us_of(world.node.clock.now()), chance * 8) for chance in (b"1", b"2"))
        first = await world.stage(dict.fromkeys(range(6), "x"), job=staging.StagingJob(job, 0))
        await world.stage(dict.fromkeys(range(10, 13), "x"), job=staging.StagingJob(job, 1))
        again = await world.stage(
            dict.fromkeys(range(10, 14), "x"), job=staging.StagingJob(job, 1)
        )  # another attempt: not added
        await world.stage(dict.fromkeys(range(8), "x"), job=staging.StagingJob(other, 0))
        with pytest.raises(UsageError, match="11 rows or more are more than one commit takes"):
            await world.stage({20: "x"}, job=staging.StagingJob(job, 2))
        with pytest.raises(UsageError, match="more than one commit takes"):
            await world.stage({10: "x"}, job=staging.StagingJob(job, 1))  # a retry does not begin anew
        done = await world.publish(first, again)
        assert done.rows == 10
        with pytest.raises(UsageError, match="16 bytes"):
            await world.stage({1: "x"}, job=staging.StagingJob(b"short", 0))
        with pytest.raises(UsageError, match="numbered from 0"):
            await world.stage({1: "x"}, job=staging.StagingJob(other, -1))

    in_world(test, staging__rows_max=10)


def test_what_is_refused_leaves_nothing_behind() -> None:
    async def test(world: World) -> None:
        twice = [await world.stage({1: "a"}), await world.stage({1: "b"})]
        bad: list[tuple[type[SlackwaterError], str, Awaitable]] = [
            (UsageError, "two rows with the same primary key", world.publish(*twice)),
            (UsageError, "staged rows are gone", world.publish(staging.PartRef(b"x" * 16, 1, 1))),
            (UsageError, "as many as were announced", world.publish(staging.PartRef(twice[0].part, 1, 2))),
            (UsageError, "more than one commit takes", world.publish(staging.PartRef(twice[0].part, 1, 99))),
            (UsageError, "16 bytes", world.publish(staging.PartRef(b"short", 1, 1))),
            (UsageError, "is named by", world.publish(app="")),
            (UsageError, "hexadecimal", world.publish(app="not hex", lasting=False)),
            (UsageError, "stage chunks", world.call(staging.STAGE, staging.StageChunks(b"x" * 16, 0, []))),
            (UsageError, "16 bytes", world.call(staging.STAGE, staging.StageChunks(b"x", 0, [b"y"]))),
        ]
        for kind, said, work in bad:
            with pytest.raises(kind, match=said):
                await work
        foreign = World.__new__(World)
        foreign.node = world.node
        await foreign.create("other")
        with pytest.raises(UsageError, match="does not belong to table"):
            await world.publish(await foreign.stage({1: "x"}))
        await world.call(calls.DROP_TABLE, calls.DropTableByName("t"))
        with pytest.raises(SchemaChanged, match="was dropped"):
            await world.publish(await world.stage({1: "x"}))
        assert await world.rows() == {}

    in_world(test, staging__rows_max=10)


def test_what_dead_jobs_left_is_swept_and_jobs_marks_too() -> None:
    async def test(world: World) -> None:
        old = await world.stage({1: "dead"}, {2: "dead"}, age_s=7200)
        recent = await world.stage({1: "live"})
        job = (us_of(world.node.clock.now()) - 7_200_000_000).to_bytes(8, "big").hex() + "00" * 8
        await world.publish(await world.stage({5: "x"}), app=job, lasting=False)
        assert (await world.publish(await world.stage({5: "y"}), app="lasting")).rows == 1
        async with asyncio.timeout(20):
            while await world.staged() != 1:
                await asyncio.sleep(0.01)
        assert not (await world.publish(recent, app=job, lasting=False)).already, "its mark was as old as its name says"
        with pytest.raises(UsageError, match="staged rows are gone"):
            await world.publish(old, app="late")
        assert (await world.publish(app="lasting")).already

    in_world(test, staging__ttl=3600.0)


def test_a_chunk_that_is_none_is_refused() -> None:
    async def test(world: World) -> None:
        part = staging.part_id(us_of(MAX) >> 8, b"12345678")
        await world.call(staging.STAGE, staging.StageChunks(part, 0, [b"\x93nonsense"]))
        with pytest.raises(SlackwaterError, match="does not decode"):
            await world.publish(staging.PartRef(part, 1, 1))

    in_world(test)


def test_a_staged_write_is_a_job_that_ends_with_its_rows_published_and_its_staged_rows_gone_at_one_timestamp() -> None:
    async def test(world: World) -> None:
        name = b"j" * 16
        ref = await world.stage({1: "a"}, job=staging.StagingJob(name, 0))
        await world.stage({1: "lost"}, job=staging.StagingJob(name, 0))
        (job,) = await world.node.jobs.store.newest()
        assert (job.type, job.status, job.claimed_by) == ("staged write", Status.RUNNING, "client")
        done = await world.publish(ref, app="00", lasting=False)
        (ended,) = await world.node.jobs.store.newest()
        assert (ended.status, ended.progress, ended.owns) == (Status.SUCCEEDED, "1 rows published", ())
        kv = world.node.kv
        assert len((await kv.scan(STAGED.start, STAGED.end, ts=done.ts - 1)).keys) == 2
        assert len((await kv.scan(STAGED.start, STAGED.end, ts=done.ts)).keys) == 0, "of the attempt that lost, too"
        again = await world.publish(ref, app="00", lasting=False)
        assert (again.already, again.rows) == (True, 1)
        with pytest.raises(UsageError, match="staged rows are gone"):
            await world.publish(ref, app="another")

    in_world(test)


def test_a_staged_write_that_is_cancelled_takes_no_more_rows_and_leaves_none() -> None:
    async def test(world: World) -> None:
        name, other = staging.StagingJob(b"j" * 16, 0), staging.StagingJob(b"k" * 16, 0)
        ref = await world.stage({1: "a"}, job=name)
        (job,) = await world.node.jobs.store.newest()
        with pytest.raises(UsageError, match="cannot be paused"):
            await world.node.jobs.ask(job.id, to.pause)
        await world.node.jobs.ask(job.id, to.cancel)
        with pytest.raises(UsageError, match=r"staged rows are gone|is cancelling|is reverting"):
            await world.publish(ref)
        async with asyncio.timeout(20):
            while await world.staged():
                await asyncio.sleep(0.01)
        known = world.node.gateway.staging.jobs._known
        assert b"j" * 16 in known, "this gateway has not heard of the end"
        with pytest.raises(UsageError, match="staged rows are gone"):
            await world.stage({2: "late"}, job=name)
        assert await world.staged() == 0, "what was staged late is removed at once"
        with pytest.raises(UsageError, match="staged rows are gone"):
            await world.stage({2: "later"}, job=name)
        await world.stage({3: "c"}, job=other)
        assert (await world.staged(), await world.rows()) == (1, {})

    in_world(test)


def test_a_lease_that_is_half_over_is_renewed_by_staging() -> None:
    async def test(world: World) -> None:
        task = staging.StagingJob(b"j" * 16, 0)
        await world.stage({1: "a"}, job=task)
        await world.age(task.job, 3000)
        world.node.gateway.staging.jobs._known.clear()
        (before,) = await world.node.jobs.store.newest()
        await world.stage({2: "b"}, job=task)
        (after,) = await world.node.jobs.store.newest()
        assert after.claim_expires - before.claim_expires > dt.timedelta(seconds=2900)
        assert after.claim_number == before.claim_number

    in_world(test, staging__ttl=3600.0)
