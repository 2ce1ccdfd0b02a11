"""Change feeds of tables as an application sees them, against real nodes in this process."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

import slackwater
from slackwater.catalog import definition
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds
from slackwater.codec.layout import schema_span
from slackwater.errors import BelowGcThreshold, DecodeError, FeedExpired, Overloaded, Retry, UsageError
from slackwater.model.kinds import INT
from slackwater.protocol.client.calls import ColumnSpec
from slackwater.protocol.client.changes import CHANGES, OpenChanges
from slackwater.protocol.range.requests import RaiseGcThreshold
from slackwater.server.metrics import collect as collect_metrics
from slackwater.server.metrics import render
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from slackwater.client.changes import ChangeBatch
    from slackwater.client.database import AsyncDatabase

QUICK = {"closed_timestamp.target_duration": 0.2, "feed.publish_interval": 0.05}


def play(story: Callable[[Cluster, AsyncDatabase], Awaitable[None]], *, size: int = 1, **settings: float) -> None:
    """Run a story against a fresh cluster with two tables."""

    async def main() -> None:
        async with Cluster(size, **QUICK | settings) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.create_table("ledger", {"id": "int8", "amount": "int8"}, primary_key=["id"])
            async with asyncio.timeout(60):
                await story(cluster, db)

    asyncio.run(main())


async def collect(db: AsyncDatabase, tables: Any, **asked: Any) -> list[ChangeBatch]:
    """Everything of a feed that ends."""
    return [batch async for batch in db.changes(tables, **asked)]


def rows_of(batches: list[ChangeBatch], table: str = "accounts") -> list[dict[str, Any]]:
    return [row for b in batches if b.kind == "rows" and b.table == table for row in b.data.to_pylist()]


async def transfer(db: AsyncDatabase, number: int) -> Timestamp:
    """One transaction over both tables."""
    async with db.transaction() as tx:
        await tx.upsert("accounts", [{"id": number % 5, "owner": "x", "balance": number}])
        await tx.upsert("ledger", [{"id": number, "amount": number}])
    return tx.commit_timestamp


def test_scan_then_changes_then_the_end() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        until = add_seconds(db.now(), 1.0)
        batches: list[ChangeBatch] = []
        async for batch in db.changes("accounts", until=until, resolved=0.1, diff=True):
            batches.append(batch)
            if batch.initial:
                await db.upsert(
                    "accounts", [{"id": 1, "owner": "a", "balance": 7}, {"id": 9, "owner": "b", "balance": 8}]
                )
                gone = await db.delete("accounts", [0])
        first = [r for b in batches if b.initial for r in b.data.to_pylist()]
        assert [(r["id"], r["_op"], r["_before"]) for r in first] == [(i, "insert", None) for i in range(3)]
        later = [r for b in batches if b.kind == "rows" and not b.initial for r in b.data.to_pylist()]
        assert {(r["id"], r["_op"]) for r in later} == {(1, "update"), (9, "insert"), (0, "delete")}
        deleted = next(r for r in later if r["_op"] == "delete")
        assert deleted["_commit_ts"] == gone.timestamp
        assert deleted["_before"] == {"id": 0, "owner": "o0", "balance": 100}
        resolved = [b.resolved for b in batches if b.kind == "resolved"]
        assert resolved == sorted(set(resolved))
        assert batches[-1].kind == "resolved"
        assert batches[-1].resolved == until

    play(story)


def test_a_token_goes_on_where_it_was_saved() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        (*_, last) = await collect(db, "accounts", initial_scan="only")
        await db.upsert("accounts", accounts(2, first=10))
        again = await collect(db, "accounts", after=last.token, until=db.now())
        assert sorted(r["id"] for r in rows_of(again)) == [10, 11]
        assert {r["_op"] for r in rows_of(again)} == {"upsert"}
        after = await collect(db, "accounts", after=last.resolved, until=db.now())
        assert sorted(r["id"] for r in rows_of(after)) == [10, 11]
        both = await collect(db, "accounts", after=last.resolved, initial_scan="yes", until=db.now())
        assert sorted(r["id"] for r in rows_of(both)) == [0, 1, 2, 10, 11]

    play(story)


def test_a_token_from_before_what_is_kept_is_refused_for_good_and_told_where_to_begin_anew() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        (node,) = cluster.nodes
        await db.upsert("accounts", accounts(3))
        (*_, last) = await collect(db, "accounts", initial_scan="only")
        await db.delete("accounts", [0])
        threshold = node.clock.now()
        cluster.collect_upto_now()
        await node.admin.ask(RaiseGcThreshold(threshold), at=schema_span(await db.table("accounts")).start)
        for _ in range(2):
            with pytest.raises(BelowGcThreshold, match="the earliest readable time is") as told:
                await collect(db, "accounts", after=last.token, until=db.now())
            assert told.value.retry is Retry.NEVER
            assert told.value.facts["timestamp"] == last.resolved
            assert told.value.facts["earliest"] == threshold + 1
        for asked in ({"after": told.value.facts["earliest"], "initial_scan": "yes"}, {}):
            anew = await collect(db, "accounts", until=db.now(), **asked)
            assert sorted(r["id"] for r in rows_of(anew)) == [1, 2]

    play(story)


def test_the_token_of_an_initial_scan_that_was_broken_off_begins_it_again_at_the_same_time() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        count = 4_001
        await db.upsert("accounts", accounts(count))
        feed, seen, token, began = db.changes("accounts"), 0, "", 0
        async for batch in feed:
            seen += batch.data.num_rows
            token, began = batch.token, batch.data["_commit_ts"][0].as_py()
            assert batch.resolved == MIN, "nothing is resolved yet"
            if seen > count // 2:
                break
        assert seen < count, "a page is not all of it"
        await feed.aclose()
        await db.upsert("accounts", [{"id": 0, "owner": "later", "balance": 1}])
        again = await collect(db, "accounts", after=token, until=db.now())
        rows = rows_of(again)
        scanned = [r for r in rows if r["_commit_ts"] == began]
        assert sorted(r["id"] for r in scanned) == list(range(count)), "also those that came before the token did"
        assert [(r["id"], r["owner"]) for r in rows if r["_commit_ts"] > began] == [(0, "later")]

    play(story, **{"gateway.page_bytes": 1 << 13})


def test_a_feed_that_is_past_its_end_ends_and_does_not_go_back() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        early = db.now()
        await db.upsert("accounts", accounts(3))
        start = db.now()
        (last,) = await collect(db, "accounts", after=start, until=early)
        assert last.resolved == start
        again = await collect(db, "accounts", after=last.token, until=db.now())
        assert not rows_of(again)

    play(story)


def test_a_gateway_runs_so_many_feeds_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        asked = OpenChanges(("accounts",))
        async with aclosing(db.change_items(asked)) as first:
            await anext(first)
            with pytest.raises(Overloaded, match="another one"):
                await anext(aiter((await db._gateways.stream(CHANGES, asked))[1]))

    monkeypatch.setattr("slackwater.gateway.changes.FEEDS_MAX", 1)
    play(story)


def test_below_resolved_transactions_are_whole_and_in_order() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        start = db.now()
        times = [await transfer(db, n) for n in range(1, 30)]
        batches = await collect(db, ["accounts", "ledger"], after=start, until=times[-1], atomic=True, resolved=0.0)
        seen: list[tuple[int, str]] = []
        group: list[tuple[int, str]] = []
        for batch in batches:
            if batch.kind == "rows":
                group += [(r["_commit_ts"], batch.table) for r in batch.data.to_pylist()]
                continue
            assert all(ts <= batch.resolved for ts, _ in group)
            assert {ts for ts, table in group if table == "accounts"} == {ts for ts, t in group if t == "ledger"}
            seen, group = seen + group, []
        for table in ("accounts", "ledger"):
            assert [ts for ts, t in seen if t == table] == times
        assert all(r["_txn"] is None or len(r["_txn"]) for r in rows_of(batches))

    play(story)


@pytest.mark.parametrize("atomic", [False, True])
def test_rows_have_the_schema_as_of_their_commit(atomic: bool) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        start = db.now()
        await db.upsert("accounts", accounts(2))
        changed = await add_column(cluster, db)
        await db.upsert("accounts", [{"id": 5, "owner": "n", "balance": 1, "level": 3}])
        batches = await collect(db, "accounts", after=start, until=db.now(), atomic=atomic)
        old = [r for r in rows_of(batches) if r["_commit_ts"] < changed]
        new = [r for r in rows_of(batches) if r["_commit_ts"] > changed]
        assert len(old) == 2
        assert all("level" not in r and r["_version"] == 1 for r in old)
        assert [(r["id"], r["level"], r["_version"]) for r in new] == [(5, 3, 2)]
        (ddl,) = [b for b in batches if b.kind == "schema"]
        assert (ddl.table, ddl.timestamp, ddl.dropped) == ("accounts", changed, False)
        assert ddl.schema is not None
        assert ddl.schema.version == 2
        if atomic:
            kinds = [(b.kind, b.schema.version) for b in batches if b.schema is not None]
            assert kinds == [("rows", 1), ("schema", 2), ("rows", 2)]

    play(story)


@pytest.mark.parametrize("atomic", [False, True])
def test_a_backfill_sends_the_table_again(atomic: bool) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        await db.upsert("accounts", accounts(3))
        start = db.now()
        changed = await add_column(cluster, db)
        await db.upsert("accounts", [{"id": 1, "owner": "n", "balance": 1, "level": 3}])
        batches = await collect(
            db, "accounts", after=start, until=db.now(), on_schema_change="backfill", atomic=atomic, diff=True
        )
        again = [r for b in batches if b.initial for r in b.data.to_pylist()]
        assert [(r["id"], r["level"], r["_commit_ts"]) for r in again] == [(i, None, changed) for i in range(3)]
        filled = next(i for i, b in enumerate(batches) if b.initial)
        assert all(b.resolved < changed for b in batches[:filled])
        if atomic:
            kinds = [(b.kind, b.initial) for b in batches if b.kind != "resolved"]
            assert kinds == [("schema", False), ("rows", True), ("rows", False)]

    play(story)


def test_stop_ends_behind_the_schema_change_and_resumes_past_it() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        start = db.now()
        await db.upsert("accounts", accounts(2))
        changed = await add_column(cluster, db)
        await db.upsert("accounts", accounts(2, first=7))
        batches = await collect(db, "accounts", after=start, on_schema_change="stop")
        assert sorted(r["id"] for r in rows_of(batches)) == [0, 1]
        assert batches[-1].resolved == changed
        assert [b.timestamp for b in batches if b.kind == "schema"] == [changed]
        rest = await collect(db, "accounts", after=batches[-1].token, on_schema_change="stop", until=db.now())
        assert sorted(r["id"] for r in rows_of(rest)) == [7, 8]
        assert not [b for b in rest if b.kind == "schema"]

    play(story)


def test_a_dropped_table_says_so() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        start = db.now()
        await db.upsert("accounts", accounts(2))
        await db.drop_table("accounts")
        batches = await collect(db, "accounts", after=start, until=db.now())
        assert len(rows_of(batches)) == 2
        assert [b.dropped for b in batches if b.kind == "schema"] == [True]

    play(story)


def test_another_gateway_goes_on_when_one_dies() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        async with session(cluster, 2, 1) as mine:
            await db.upsert("accounts", accounts(3))
            seen: set[int] = set()
            async with aclosing(mine.changes("accounts", resolved=0.1)) as feed:
                async for batch in feed:
                    seen |= {r["id"] for r in batch.data.to_pylist()} if batch.kind == "rows" else set()
                    if seen >= {0, 1, 2} and batch.kind == "resolved":
                        assert len(cluster.nodes[2].feed_client.protections) == 1
                        break
                await cluster.nodes[2].node.stop()
                await db.upsert("accounts", accounts(3, first=20))
                last = batch.resolved
                async for batch in feed:
                    assert batch.resolved >= last
                    last = batch.resolved
                    seen |= {r["id"] for r in batch.data.to_pylist()} if batch.kind == "rows" else set()
                    if seen >= {20, 21, 22}:
                        break

    play(story, size=3)


def test_a_feed_that_lags_for_too_long_fails_when_asked_to() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        protections = cluster.nodes[0].feed_client.protections
        with pytest.raises(FeedExpired, match="start it anew"):
            await collect(db, "accounts", resolved=0.05, expires_after=0.01)
        assert not protections

    play(story)


def test_a_feed_that_lags_raises_an_alarm_and_its_end_ends_that() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        node = cluster.nodes[0]
        long_ago = add_seconds(db.now(), -60.0)
        async with aclosing(db.change_items(OpenChanges(("accounts",), after=long_ago, expires_after_s=100.0))) as feed:
            await anext(feed)
            page = render(collect_metrics(node.node))
            assert "slackwater_feed_protection_alarms 1" in page
            assert 'slackwater_feed_protection_lag_seconds{feed="changes 1"} 6' in page
        while node.feed_client.protections:
            await asyncio.sleep(0.01)
        assert "slackwater_feed_protection_alarms 0" in render(collect_metrics(node.node))

    play(story)


def test_without_awaiting(tmp_path: Path) -> None:
    with slackwater.open(tmp_path / "data") as db:
        db.create_table("accounts", ACCOUNTS, primary_key=["id"])
        db.upsert("accounts", accounts(3))
        token = ""
        for batch in db.changes("accounts", resolved=0.1):
            token = batch.token
            if batch.kind == "resolved":
                break
        db.delete("accounts", [1])
        rest = list(db.changes("accounts", after=token, until=db.now()))
        assert [(r["id"], r["_op"]) for r in rows_of(rest)] == [(1, "delete")]


def test_a_table_that_has_a_feeds_columns_says_so_when_it_is_followed() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        def with_taken(now: Any) -> Any:  # as tables were made before such names were refused
            made = definition.with_column(now, ColumnSpec("innocent", INT))
            *others, last = made.schema.columns
            columns = (*others, msgspec.structs.replace(last, name="_txn"))
            return msgspec.structs.replace(made, schema=msgspec.structs.replace(made.schema, columns=columns))

        schema = await db.table("accounts")
        await cluster.nodes[0].catalog.publish(schema.table_id, with_taken)
        with pytest.raises(UsageError, match="no change feed can follow table accounts: it has _txn"):
            await collect(db, "accounts", until=db.now())
        await db.upsert("accounts", accounts(1))
        assert (await db.scan("accounts")).num_rows == 1, "all else works"

    play(story)


def test_what_is_wrong_is_said_at_once() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase) -> None:
        with pytest.raises(UsageError, match="by name"):
            db.changes([])
        with pytest.raises(UsageError, match="each once"):
            db.changes(["accounts", "accounts"])
        with pytest.raises(UsageError, match="initial_scan"):
            db.changes("accounts", initial_scan="maybe")
        with pytest.raises(UsageError, match="on_schema_change"):
            db.changes("accounts", on_schema_change="panic")
        with pytest.raises(UsageError, match="no table"):
            await collect(db, "nothing")
        with pytest.raises(UsageError, match="past"):
            await collect(db, "accounts", after=add_seconds(db.now(), 60), initial_scan="only")
        with pytest.raises(DecodeError, match="damaged"):
            await collect(db, "accounts", after="sw1.AAAA")

    play(story)


async def add_column(cluster: Cluster, db: AsyncDatabase) -> Timestamp:
    """Publish a version with one more column; returns since when it holds."""
    schema = await db.table("accounts")
    catalog = cluster.nodes[0].catalog
    made = await catalog.publish(schema.table_id, lambda now: definition.with_column(now, ColumnSpec("level", INT)))
    await db.history("accounts")
    return made.modified
