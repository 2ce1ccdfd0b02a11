"""What an application can do, against real nodes in this process."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

from slackwater.catalog import definition
from slackwater.clock.timestamp import Timestamp, add_seconds
from slackwater.codec.rows import RowCodec, row_bytes_max
from slackwater.errors import (
    ConditionFailed,
    ConnectionLost,
    EntryTooLarge,
    RetryableError,
    SlackwaterError,
    UnavailableError,
    UsageError,
)
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import (
    COMMIT,
    GET_ROWS,
    WRITE,
    ColumnSpec,
    EndClientTxn,
    GetRows,
    Write,
    WriteKind,
)
from tests.table_helpers import without_column
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase
    from slackwater.client.transaction import AsyncTransaction


def play(story: Callable[[Cluster, AsyncDatabase], Awaitable[None]], *, size: int = 1, **settings: float) -> None:
    """Run a story against a fresh cluster with a table `accounts`."""

    async def main() -> None:
        async with Cluster(size, **settings) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await story(cluster, db)

    asyncio.run(main())


def test_rows_may_be_as_large_as_the_log_allows_on_every_way_in_and_larger_ones_are_refused_before_anything_is_written() -> (
    None
):
    limit = row_bytes_max(1 << 20)
    assert limit == 983_040

    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.create_table("b", {"id": "int8", "v": "text"}, primary_key="id")
        codec = RowCodec(await db.table("b"))
        beside = [{"id": n, "v": "y" * 2_000} for n in range(2, 130)]

        def large(key: int, over: int) -> dict[str, Any]:
            bare = sum(map(len, codec.encode({"id": key, "v": ""})))
            return {"id": key, "v": "x" * (limit + over - bare)}

        async def upsert(row: dict[str, Any]) -> None:
            await db.upsert("b", [*beside, row])

        async def insert(row: dict[str, Any]) -> None:
            await db.insert("b", [row])

        async def transact(row: dict[str, Any]) -> None:
            async with db.transaction() as tx:
                await tx.upsert("b", beside)
                await tx.upsert("b", [row])
                await tx.upsert("b", [{**row, "id": row["id"] + 1}])

        async def stage(row: dict[str, Any]) -> None:
            part = await db.staging("b")
            await part.add([*beside, row])
            await db.publish("b", [await part.finish()])

        async def load(row: dict[str, Any]) -> None:
            await db.upsert("b", [*({"id": 1_000_000 + n, "v": "z"} for n in range(10_000)), row])

        async def load_arrow(row: dict[str, Any]) -> None:
            many = [{"id": 2_000_000 + n, "v": "z"} for n in range(10_000)]
            await db.upsert("b", pa.Table.from_pylist([*many, row]))

        for number, way in enumerate((upsert, insert, transact, stage, load, load_arrow)):
            key = 1_000 + 10 * number
            before = (await db.scan("b", columns=["id"])).num_rows
            over = 8_192 if way is load_arrow else 1
            with pytest.raises(EntryTooLarge, match="keep large objects in pieces"):
                await way(large(key, over))
            assert (await db.scan("b", columns=["id"])).num_rows == before, "nothing was written"
            await way(large(key, 0))
            assert len((await db.get("b", key))["v"]) > 980_000

    play(story)


def test_tables_come_and_go() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        schema = await db.create_table("t.2", pa.schema([("a", pa.string()), ("b", pa.int32())]), primary_key="a")
        assert [t.name for t in await db.tables()] == ["accounts", "t.2"]
        assert await db.table("t.2") == schema
        with pytest.raises(UsageError, match="already"):
            await db.create_table("t.2", ACCOUNTS, primary_key="id")
        await db.upsert("t.2", [{"a": "x", "b": 1}])
        before = await db.snapshot(as_of=db.now())
        await db.drop_table("t.2")
        assert [t.name for t in await db.tables()] == ["accounts"]
        for work in (db.table("t.2"), db.scan("t.2"), db.get("t.2", "x"), db.upsert("t.2", []), db.drop_table("t.2")):
            with pytest.raises(UsageError, match="no table"):
                await work
        again = await db.create_table("t.2", {"a": "text"}, primary_key="a")
        assert again.table_id > schema.table_id
        assert (await db.scan("t.2")).num_rows == 0
        assert (await before.scan("t.2")).to_pylist() == [{"a": "x", "b": 1}]
        assert [v.dropped for v in (await db.history("t.2")).versions] == [False]

    play(story)


def test_rows_in_and_out() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        assert (await db.upsert("accounts", accounts(5))).rows == 5
        assert await db.get("accounts", 3) == {"id": 3, "owner": "o3", "balance": 100}
        assert await db.get("accounts", {"id": 99}) is None
        await db.upsert("accounts", pa.table({"id": [3, 4], "balance": [1, 2]}))
        assert await db.get("accounts", (3,)) == {"id": 3, "owner": None, "balance": 1}
        with pytest.raises(ConditionFailed, match="already") as caught:
            await db.insert("accounts", accounts(3, first=4))
        assert caught.value.facts["key"] == {"id": 4}
        assert await db.get("accounts", 5) is None  # nothing half-written
        await db.insert("accounts", accounts(1, first=5))
        await db.delete("accounts", [0, 1, 77])
        found = await db.scan("accounts", columns=["balance", "id"], where=[("id", "<=", 4)])
        assert found.to_pydict() == {"balance": [100, 1, 2], "id": [2, 3, 4]}
        assert (await db.scan("accounts", limit=2)).column("id").to_pylist() == [2, 3]
        assert (await db.scan("accounts", limit=0)).num_rows == 0
        assert (await db.upsert("accounts", [])).rows == 0

    play(story)


def test_bad_input_is_one_error_and_writes_nothing() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        good = accounts(3)
        works: list[tuple[Any, str]] = [
            (lambda: db.upsert("nope", good), "no table 'nope'"),
            (lambda: db.upsert("accounts", [*good, {"id": 9}]), "balance"),
            (lambda: db.upsert("accounts", [*good, {"id": 9, "balance": "x"}]), "column balance"),
            (lambda: db.upsert("accounts", [*good, {"id": 9, "balance": 1, "x": 1}]), "no column 'x'"),
            (lambda: db.upsert("accounts", [*good, good[0]]), "same primary key"),
            (lambda: db.get("accounts", "x"), "key of accounts"),
            (lambda: db.scan("accounts", columns=["x"]), "no column 'x'"),
            (lambda: db.scan("accounts", columns="id"), "list of names"),
            (lambda: db.scan("accounts", where=[("x", "=", 1)]), "no column 'x'"),
            (lambda: db.scan("accounts", where=[("id", "~", 1)]), "unknown operator"),
            (lambda: db.scan("accounts", where=[("id", "=", "x")]), "column id"),
            (lambda: db.scan("accounts", where=["id"]), "condition is"),
            (lambda: db.scan("accounts", limit=-1), "limit"),
            (lambda: db.snapshot(as_of=db.now(), max_staleness=1), "not several"),
            (lambda: db.snapshot(as_of=add_seconds(db.now(), 60)), "future"),
            (lambda: db.snapshot(as_of="yesterday"), "timestamp"),
            (lambda: db.snapshot(as_of=3.5), "a time is"),
            (lambda: db.snapshot(max_staleness=-1), "staleness"),
            (lambda: db.snapshot(tables=["nope"]), "no table 'nope'"),
            (lambda: db.snapshot(read_from="nobody"), "read_from"),
            (lambda: db.resolved("nope"), "no table 'nope'"),
            (lambda: db.frontier("nope"), "no table 'nope'"),
            (lambda: db.partitions("accounts", -1), "partitions"),
            (lambda: db.create_table("x", {"_commit_x": "int8"}, primary_key="_commit_x"), "reserved"),
            (lambda: db.create_table("x", {"a": "int8"}, primary_key="b"), "none of its columns"),
            (lambda: db.create_table("x y", {"a": "int8"}, primary_key="a"), "name"),
        ]
        for work, says in works:
            with pytest.raises(UsageError, match=says):
                await work()
        assert (await db.scan("accounts")).num_rows == 0
        assert len(await db.tables()) == 1

    play(story)


def test_gateways_trust_no_client() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        history = await db.history("accounts")
        table = history.latest
        (key, value), (other, _) = (RowCodec(table.schema).encode(row) for row in accounts(2))
        alien = key[:4] + b"\x99" + key[5:]
        write, call = WriteKind.UPSERT, db._gateways.call
        bad = [
            Write(table.table_id, 1, write, [other, key], [value, value], txn_id=b"x" * 16),
            Write(table.table_id, 1, write, [key], [], txn_id=b"x" * 16),
            Write(table.table_id, 1, write, [alien], [value], txn_id=b"x" * 16),
            Write(table.table_id, 1, write, [key], [b"\x01\x02" + value[2:]], txn_id=b"x" * 16),
            Write(table.table_id, 1, write, [key], [value], txn_id=b"short"),
            Write(77, 1, write, [key], [value], txn_id=b"x" * 16),
        ]
        for request in bad:
            with pytest.raises(UsageError):
                await call(WRITE, request, deadline=db._gateways.deadline())
        with pytest.raises(UsageError, match="does not lie inside"):
            await call(GET_ROWS, GetRows(table.table_id, [b"\x03x"]), deadline=db._gateways.deadline())
        assert (await db.scan("accounts")).num_rows == 0

    play(story)


def test_a_new_version_is_learned_and_old_rows_get_its_default() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(2))
        table = await db.table("accounts")
        old = await db.snapshot(as_of=db.now())
        catalog = cluster.nodes[0].catalog
        spec = ColumnSpec("limit", INT, default=7)
        await catalog.publish(table.table_id, lambda now: definition.with_column(now, spec))
        await db.upsert("accounts", [{"id": 1, "balance": 5, "limit": 9}])  # the client finds out by itself
        assert (await db.scan("accounts")).to_pylist() == [
            {"id": 0, "owner": "o0", "balance": 100, "limit": 7},
            {"id": 1, "owner": None, "balance": 5, "limit": 9},
        ]
        assert await db.get("accounts", 0) == {"id": 0, "owner": "o0", "balance": 100, "limit": 7}
        assert (await old.scan("accounts")).column_names == ["id", "owner", "balance"]
        await catalog.publish(table.table_id, lambda now: without_column(now, "owner"))
        assert (await db.scan("accounts")).column_names == ["id", "balance", "limit"]
        assert [v.version for v in (await db.history("accounts")).versions] == [1, 2, 3]

    play(story)


def test_transactions_commit_roll_back_and_see_their_own_writes() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        async with db.transaction() as tx:
            await tx.upsert("accounts", [{"id": 0, "balance": 1}])
            await tx.delete("accounts", [1])
            await tx.insert("accounts", accounts(1, first=3))
            assert (await tx.scan("accounts", columns=["id", "balance"])).to_pydict() == {
                "id": [0, 2, 3],
                "balance": [1, 100, 100],
            }
            assert await tx.get("accounts", 1) is None
            assert (await tx.scan("accounts", where=[("id", ">", 1)], limit=1)).num_rows == 1
        assert tx.commit_timestamp > 0
        assert (await db.scan("accounts")).num_rows == 3
        tx = await _broken_transaction(db)
        assert await db.get("accounts", 0) is not None
        with pytest.raises(UsageError, match="ended"):
            await tx.get("accounts", 0)
        async with db.transaction() as tx:
            with pytest.raises(ConditionFailed):
                await tx.insert("accounts", accounts(1))
        assert len(cluster.nodes[0].gateway.txns) == 0

    play(story)


def test_run_again_until_nobody_is_in_the_way() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(1, balance=0))
        calls = 0

        async def add(tx: AsyncTransaction) -> None:
            nonlocal calls
            calls += 1
            row = await tx.get("accounts", 0)
            await asyncio.sleep(0)
            await tx.upsert("accounts", [{**row, "balance": row["balance"] + 1}])

        await asyncio.gather(*(db.run(add) for _ in range(12)))
        assert (await db.get("accounts", 0))["balance"] == 12
        assert calls >= 12
        with pytest.raises(ZeroDivisionError):
            await db.run(_divides)

    play(story)


async def _broken_transaction(db: AsyncDatabase) -> AsyncTransaction:
    with pytest.raises(ZeroDivisionError):  # noqa: PT012 - the block is what is tested
        async with db.transaction() as tx:
            await tx.delete("accounts", [0])
            raise ZeroDivisionError
    return tx


async def _divides(tx: AsyncTransaction) -> None:
    await tx.delete("accounts", [0])
    raise ZeroDivisionError


def test_open_transactions_are_bounded_and_idle_ones_end() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        txns = cluster.nodes[0].gateway.txns
        first, second = db.attempts(), db.attempts()
        await first.tx.upsert("accounts", accounts(1))
        for opening in (first, second):
            assert await opening.tx.get("accounts", 7) is None
        assert len(txns) == 2
        with pytest.raises(SlackwaterError, match="as many open transactions"):
            await db._gateways.call(COMMIT, EndClientTxn(b"3" * 16, opens=True), deadline=db._gateways.deadline(0.2))
        await cluster.until(lambda: len(txns) == 0)
        with pytest.raises(RetryableError, match="idle"):
            await first.tx.get("accounts", 0)
        assert await db.get("accounts", 0) is None

    play(story, gateway__txns_max=2, gateway__txn_idle_timeout=1.0)


def test_snapshots_in_every_form() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        written = await db.upsert("accounts", accounts(3))
        await db.upsert("accounts", accounts(3, first=3))
        exact = await db.snapshot(as_of=written.timestamp)
        assert exact.timestamp == written.timestamp
        assert (await exact.scan("accounts")).num_rows == 3
        assert await exact.get("accounts", 3) is None
        latest = await db.snapshot(tables=["accounts"])
        assert (await latest.scan("accounts")).num_rows == 6  # never behind what this session wrote
        closed = await db.close_now(["accounts"])
        bounded = await db.snapshot(max_staleness=30, tables=["accounts"])
        assert bounded.timestamp >= latest.timestamp
        fresh = await db.snapshot(min_timestamp=closed, tables=["accounts"], nearest_only=True)
        assert fresh.timestamp >= closed
        assert fresh.by_followers
        assert (await db.resolved("accounts")) >= closed
        assert [r.node for r in latest.reads] == [1]
        with pytest.raises(UsageError, match="did not exist yet"):
            await (await db.snapshot(as_of="2020-01-01T00:00:00Z")).scan("accounts")

    play(story, closed_timestamp__target_duration=0.2)


def test_partitions_cover_the_table_across_splits_and_changes_are_complete() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        start = db.now()
        await db.upsert("accounts", accounts(300))
        table = await db.table("accounts")
        codec = RowCodec(table)
        for at in (100, 200):
            await cluster.nodes[0].admin.split(codec.key([at]))
        ts = db.now()
        snap = await db.snapshot(as_of=ts)
        for count in (None, 1, 2, 3, 7):
            parts = await snap.partitions("accounts", count)
            assert all(a.end == b.start for a, b in pairwise(parts))
            if count is not None:
                assert len(parts) == count
            ids: list[int] = []
            for part in parts:
                async for batch in db.read_partition(part, at=ts, columns=["id"], read_from="any"):
                    ids += batch.column("id").to_pylist()
            assert ids == list(range(300))
        await cluster.nodes[0].admin.split(codec.key([50]))  # after the partitions were made
        await db.delete("accounts", [7])
        upto = db.now()
        kinds: dict[str, int] = {}
        for part in await snap.partitions("accounts", 4):
            async for batch in db.read_changes(part, after=start, upto=upto):
                for kind in batch.column("_op").to_pylist():
                    kinds[kind] = kinds.get(kind, 0) + 1
        assert kinds == {"insert": 300, "delete": 1}
        assert len(snap.reads) == 0
        await snap.scan("accounts")
        assert len(snap.reads) == 4

    play(story, gateway__page_bytes=4096)


def test_a_bulk_load_writes_everything() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        count = 25_000
        table = pa.table({"id": list(reversed(range(count))), "balance": [1] * count})
        done = await db.upsert("accounts", table)
        assert done.rows == count
        found = await db.scan("accounts", columns=["id"])
        assert found.column("id").to_pylist() == list(range(count))
        twice = pa.concat_tables([table, table.slice(0, 1)])
        with pytest.raises(UsageError, match="same primary key"):
            await db.upsert("accounts", twice)
        bad = table.set_column(1, "balance", pa.array([*([1] * (count - 1)), None]))
        with pytest.raises(UsageError, match="balance"):
            await db.upsert("accounts", bad.slice(10))
        removed = await db.delete("accounts", table.select(["id"]).slice(0, 12_000))
        assert removed.rows == 12_000
        assert (await db.scan("accounts", columns=["id"])).num_rows == count - 12_000

    play(story)


def test_large_rows_go_in_several_messages() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.create_table("notes", {"id": "int8", "text": "text"}, primary_key="id")
        rows = [{"id": i, "text": "x" * 200_000} for i in range(100)]
        assert (await db.upsert("notes", rows)).rows == 100
        async with db.transaction() as tx:
            assert (await tx.upsert("notes", [{**row, "text": "y" * 200_000} for row in rows])).rows == 100
        lengths = {len(row["text"]) for row in (await db.scan("notes", where=[("text", ">", "y")])).to_pylist()}
        assert lengths == {200_000}
        with pytest.raises(SlackwaterError, match=r"large|entry"):
            await db.upsert("notes", [{"id": 1, "text": "x" * 3_000_000}])

    play(story)


def test_another_gateway_takes_over() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        async with session(cluster, 2, 1) as other:
            await other.upsert("accounts", accounts(3))
            tx = other.attempts().tx
            assert await tx.get("accounts", 9) is None
            await tx.upsert("accounts", accounts(1, first=9))
            await cluster.kill(cluster.nodes[2])
            assert (await other.scan("accounts")).num_rows == 3
            with pytest.raises(RetryableError, match="gateway was lost"):
                await tx.get("accounts", 9)
            await other.upsert("accounts", accounts(1, first=3))
            assert await other.get("accounts", 9) is None
            assert (await db.scan("accounts")).num_rows == 4

    play(story, size=3)


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_write_whose_answer_is_lost_is_settled(when: str) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(1))
        inner, lost = db._gateways._dialer.call, []

        async def call(address: str, method: Any, request: Any, **options: Any) -> Any:
            last = method is COMMIT or (method is WRITE and not request.txn)
            if last and len(lost) < 2:
                lost.append(method.name)
                if when == "after":
                    await inner(address, method, request, **options)
                raise ConnectionLost("the line went dead", sent=True)
            return await inner(address, method, request, **options)

        db._gateways._dialer.call = call
        done = await db.upsert("accounts", accounts(1, first=1, balance=7))
        assert await db.get("accounts", 1) == {"id": 1, "owner": "o1", "balance": 7}
        versions = []
        for part in await db.partitions("accounts"):
            async for batch in db.read_changes(part, after=Timestamp(done.timestamp - 1), upto=db.now()):
                versions += batch.column("_commit_ts").to_pylist()
        assert versions == [done.timestamp]  # once

        async def add(tx: AsyncTransaction) -> None:
            row = await tx.get("accounts", 0)
            await tx.upsert("accounts", [{**row, "balance": row["balance"] + 1}])

        await db.run(add)
        assert (await db.get("accounts", 0))["balance"] == 101
        assert len(lost) == 2

    play(story)


def test_no_cluster_is_one_clear_error() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster:
            await cluster.kill(cluster.nodes[0])
            with pytest.raises(UnavailableError, match="no node of the cluster answers; n1:7400: "):
                async with session(cluster):
                    pass

    asyncio.run(main())
