"""Columns on the disk of a real node: made when it is quiet, read with what has changed since, whole after a restart."""

import asyncio
import io
from contextlib import asynccontextmanager

import pyarrow as pa
import pytest

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import split_table_key
from slackwater.server import embedded as em
from slackwater.server.journal import Journal
from slackwater.server.queues.columns import live_rows, tables_in
from slackwater.server.reports import report
from slackwater.server.watch import JournalWatch
from slackwater.settings import Settings
from slackwater.storage.versions import suffix

ROWS = 5_000
HASTY = {
    "columns.rows_min": 100,
    "columns.quiet_period": 0.0,
    "queue.interval": 0.1,
    "closed_timestamp.target_duration": 0.1,
    "closed_timestamp.side_transport_interval": 0.05,
    "store.flush_interval": 0.2,
}


@asynccontextmanager
async def opened(path, monkeypatch, *, nodes=None, **settings):
    """A node in this process, and a session with it; `nodes` is told of the node."""
    nodes = [] if nodes is None else nodes

    class Shown(em.Node):
        def __init__(self, *args, **named):
            super().__init__(*args, **named)
            nodes.append(self)

    monkeypatch.setattr(em, "Node", Shown)
    async with em.embedded(path, settings=Settings(HASTY | settings)) as db:
        member = nodes[-1].here()
        yield db, member.store.context.columns, member


def table(count, *, of=1, value="old"):
    ids = range(0, count * of, of)
    return pa.table({"id": pa.array(ids, pa.int64()), "v": [f"{value} {n}" for n in ids]})


async def until(what):
    async with asyncio.timeout(30):
        while not what():
            await asyncio.sleep(0.05)


def settled(columns):
    """Whether the whole table is in columns, and nothing has changed since."""
    return sum(kept.record.rows for kept in columns) >= ROWS and not any(len(kept.delta) for kept in columns)


async def filled(db):
    await db.create_table("t", {"id": "int8", "v": "string"}, primary_key=["id"])
    await db.upsert("t", table(ROWS, of=2))


async def all_rows(db, **how):
    found = await db.scan("t", **how)
    return dict(zip(found["id"].to_pylist(), found["v"].to_pylist(), strict=True)), found["id"].to_pylist()


def test_columns_are_made_read_and_kept_over_a_restart(tmp_path, monkeypatch):
    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
            expected = {n: f"old {n}" for n in range(0, 2 * ROWS, 2)}
            pages = columns.pages
            assert (await all_rows(db))[0] == expected
            assert columns.pages > pages
            await db.upsert("t", table(5, of=4, value="new"))
            await db.upsert("t", pa.table({"id": pa.array([3, 5], pa.int64()), "v": ["odd", "odd"]}))
            await db.delete("t", [{"id": 100}])
            expected |= {n: f"new {n}" for n in range(0, 20, 4)} | {3: "odd", 5: "odd"}
            del expected[100]
            pages, of_rows = columns.pages, columns.row_pages
            found, order = await all_rows(db)
            assert found == expected
            assert order == sorted(expected)
            assert columns.pages > pages
            some = await db.scan("t", where=[("id", ">=", 96), ("id", "<", 104)], columns=["id"])
            assert some["id"].to_pylist() == [96, 98, 102]
        async with opened(tmp_path, monkeypatch, **{"columns.quiet_period": 1e4}) as (db, columns, _):
            assert sum(kept.record.rows for kept in columns) >= ROWS
            assert (await all_rows(db))[0] == expected
            assert columns.pages > 0
            assert columns.row_pages <= of_rows

    asyncio.run(work())


def test_feeds_begin_with_columns(tmp_path, monkeypatch):
    """The initial scan of a feed is what a scan at its time is, and comes from columns, with what has changed since."""

    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
            await db.upsert("t", table(5, of=4, value="new"))
            await db.delete("t", [{"id": 100}])
            for asked in ({}, {"diff": True}, {"atomic": True}):
                pages, of_rows, at = columns.pages, columns.row_pages, db.now()
                batches = [batch async for batch in db.changes("t", after=at, initial_scan="only", **asked)]
                assert columns.pages > pages
                assert columns.row_pages == of_rows
                found = [row for batch in batches if batch.kind == "rows" for row in batch.data.to_pylist()]
                expected = (await (await db.snapshot(tables=["t"], as_of=at)).scan("t")).to_pylist()
                assert [{name: row[name] for name in ("id", "v")} for row in found] == expected
                assert {row["_commit_ts"] for row in found} == {at}
                assert {row["_op"] for row in found} == {"insert" if "diff" in asked else "upsert"}
                assert batches[-1].resolved == at
                assert all(batch.initial for batch in batches if batch.kind == "rows")

    asyncio.run(work())


def test_columns_follow_changes_of_their_table(tmp_path, monkeypatch):
    """Columns added, widened, renamed, dropped; an index; truncated and dropped: a read gives what rows are."""

    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await db.create_table("t", {"id": "int8", "n": "int4", "v": "string"}, primary_key=["id"])
            ids = range(0, 2 * ROWS, 2)
            await db.upsert("t", pa.table({"id": ids, "n": pa.array(ids, pa.int32()), "v": [f"old {n}" for n in ids]}))
            await until(lambda: settled(columns))
            before = db.now()
            await db.alter_table("t", add_column={"state": "string not null default 'fresh'"})
            await db.alter_table("t", set_type={"n": "int8"}, rename_column={"v": "text"})
            await db.create_index("t", "by_text", "text")
            await db.upsert("t", [{"id": 3, "n": 1 << 40, "text": "odd", "state": "put"}])
            expected = [{"id": n, "n": n, "text": f"old {n}", "state": "fresh"} for n in ids]
            expected.insert(2, {"id": 3, "n": 1 << 40, "text": "odd", "state": "put"})
            assert (await db.scan("t")).to_pylist() == expected
            widened = {(column.name, column.type) for column in (await db.table("t")).columns}
            await until(lambda: all(shape(kept) == widened for kept in columns) and list(columns))
            pages, of_rows = columns.pages, columns.row_pages
            assert (await db.scan("t")).to_pylist() == expected
            assert columns.pages > pages
            assert columns.row_pages == of_rows
            old = (await (await db.snapshot(tables=["t"], as_of=before)).scan("t")).to_pylist()
            assert old == [{"id": n, "n": n, "v": f"old {n}"} for n in ids]
            await db.alter_table("t", drop_column="n")
            assert (await db.scan("t", columns=["id", "text"])).to_pylist()[2] == {"id": 3, "text": "odd"}
            assert of_index(columns) == {(await db.table("t")).index_id}, "no entries of an index"
            await db.truncate_table("t")
            truncated = db.now()
            assert not (await db.scan("t")).num_rows
            await db.upsert("t", [{"id": n, "text": "again", "state": "x"} for n in ids])
            assert (await (await db.snapshot(tables=["t"], as_of=truncated)).scan("t")).num_rows == 0
            assert (await (await db.snapshot(tables=["t"], as_of=before)).scan("t")).to_pylist() == old
            primary = (await db.table("t")).index_id
            await until(lambda: primary in of_index(columns))
            assert (await db.scan("t"))["text"].to_pylist() == ["again"] * ROWS
            await db.drop_table("t")
            files = tmp_path / "engine" / "columns"
            await until(lambda: not list(columns) and not list(files.iterdir()))

    asyncio.run(work())


def shape(kept):
    return {(column.name, column.type) for column in kept.opened().index.schema.columns}


def of_index(columns):
    return {split_table_key(kept.record.start)[1] for kept in columns}


@pytest.mark.parametrize("how", ["flipped", "cut", "gone"])
def test_a_damaged_file_means_a_slower_read_and_is_made_again(tmp_path, monkeypatch, how):
    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
        for file in (tmp_path / "engine" / "columns").iterdir():
            data = bytearray(file.read_bytes())
            data[len(data) // 3] ^= 16
            match how:
                case "flipped":
                    file.write_bytes(data)
                case "cut":
                    file.write_bytes(data[: len(data) // 2])
                case "gone":
                    file.unlink()
        nodes, said = [], io.StringIO()
        async with opened(tmp_path, monkeypatch, nodes=nodes) as (db, columns, node):
            assert not [w for w in report(nodes[-1]).warnings if "columns" in w]
            found, _ = await all_rows(db)
            assert found == {n: f"old {n}" for n in range(0, 2 * ROWS, 2)}
            await until(lambda: settled(columns))
            pages = columns.pages
            assert (await all_rows(db))[0] == found
            assert columns.pages > pages
            if how != "gone":
                assert columns.damaged >= 1
                await until(lambda: any("columns" in finding for finding in node.queues.context.findings))
                watch = JournalWatch(nodes[-1], Journal(nodes[-1].runtime.clock, to=said))
                watch.look()
                watch.look()
                assert said.getvalue().count("columns.damaged") == 1, said.getvalue()
                (warning,) = [w for w in report(nodes[-1]).warnings if "columns" in w]
                assert columns.damage in warning

    asyncio.run(work())


def test_much_change_makes_them_anew_and_files_that_are_replaced_go(tmp_path, monkeypatch):
    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
            numbers = {kept.record.number for kept in columns}
            await db.upsert("t", table(ROWS // 2, of=4, value="new"))
            await until(lambda: settled(columns) and {kept.record.number for kept in columns} != numbers)
            expected = {n: f"old {n}" for n in range(0, 2 * ROWS, 2)} | {n: f"new {n}" for n in range(0, 2 * ROWS, 4)}
            pages = columns.pages
            assert (await all_rows(db))[0] == expected
            assert columns.pages > pages
            names = {kept.name for kept in columns}
            files = tmp_path / "engine" / "columns"
            await until(lambda: {file.name for file in files.iterdir()} == names)
            await db.drop_table("t")
            await until(lambda: not list(files.iterdir()))

    asyncio.run(work())


def test_what_readers_pay_for_changes_is_counted_once_for_each_change(tmp_path, monkeypatch):
    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
            await all_rows(db)
            assert not any(kept.remade_rows for kept in columns), "nothing has changed"
            await db.upsert("t", table(1, value="new"))
            counts = []
            for _ in range(2):
                assert (await all_rows(db))[0][0] == "new 0"
                counts.append(sum(kept.remade_rows for kept in columns))
            assert 0 < counts[0] <= sum(kept.record.rows for kept in columns) + 1
            assert counts[1] == counts[0], "the second read took what the first had made"

    asyncio.run(work())


def test_a_table_beside_one_that_is_written_all_the_time_gets_columns_and_a_small_one_none(tmp_path, monkeypatch):
    """Rows and quiet are those of a table, not of the range that it shares: leases of descriptors tick in the first one."""

    async def work():
        async with opened(tmp_path, monkeypatch, **{"columns.quiet_period": 1.0}) as (db, columns, member):
            await filled(db)
            await db.create_table("busy", {"id": "int8"}, primary_key=["id"])
            number = 0
            async with asyncio.timeout(30):
                while not settled(columns):
                    await db.upsert("busy", pa.table({"id": pa.array([number % 50], pa.int64())}))
                    number += 1
                    await asyncio.sleep(0.02)
            assert len({replica.state.descriptor.range_id for replica in holders(member)}) == 1, "they share a range"
            large = (await db.table("t")).table_id
            assert {split_table_key(kept.record.start)[0] for kept in columns} == {large}

    asyncio.run(work())


def test_a_segment_that_exceeds_the_disk_budget_is_dropped_and_not_made_again(tmp_path, monkeypatch):
    """It was made and dropped with every sweep, for as long as the node ran."""

    async def work():
        async with opened(tmp_path, monkeypatch) as (db, columns, _):
            await filled(db)
            await until(lambda: settled(columns))
            whole = columns.size
        little = {"columns.disk_bytes": whole - 1, "queue.interval": 0.0}
        async with opened(tmp_path, monkeypatch, **little) as (db, columns, node):
            for _ in range(5):
                await node.queues.columns.sweep()
            assert columns.made <= 1
            assert not columns.size
            assert len((await all_rows(db))[1]) == ROWS
        async with opened(tmp_path, monkeypatch, **{"columns.disk_bytes": 2 * whole}) as (db, columns, _):
            await until(lambda: settled(columns))

    asyncio.run(work())


def holders(member):
    """The replicas that hold rows of tables."""
    engine = member.store.context.engine
    return [r for r in member.store.replicas.values() if list(tables_in(engine, r.state.descriptor))]


def test_rows_are_counted_among_their_versions():
    keys = [b"a" + suffix(Timestamp(ts)) for ts in (9, 7)] + [b"b" + suffix(Timestamp(8))]
    assert live_rows(keys, [b"1", b"2", b""])[0] == 1
    assert live_rows(keys, [b"", b"2", b"3"])[0] == 1
    rows, behind = live_rows(keys, [b"1", b"", b"3"])
    assert rows == 2
    assert keys[-1] < behind
    assert b"b" + suffix(Timestamp(0)) < behind < b"c"
