"""Readers whose client, or gateway, has not heard of a schema change read rightly or are told, and never by what is gone."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from slackwater.catalog import ladder
from slackwater.catalog.ladder import Rung
from slackwater.clock.timestamp import add_seconds
from slackwater.codec.damage import decode_row
from slackwater.codec.rows import RowCodec
from slackwater.errors import LeasesInTheWay, RetryableError, UsageError, VersionUnknown
from slackwater.gateway.changes import TableFeed
from slackwater.protocol.client.schema import DropIndex
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

FAST = {"jobs__poll_interval": 0.05, "jobs__retry_pause_min": 0.01, "catalog__poll_interval": 0.05}
SLOW = {"catalog__poll_interval": 60.0}


async def in_transaction(db: Any, read: Callable[[Any], Awaitable[Any]]) -> Any:
    async with db.transaction() as tx:
        return await read(tx)


def test_rows_that_were_truncated_or_dropped_are_not_read_by_a_client_that_knew_them() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            for name in ("emptied", "gone", "emptied_in", "gone_in"):
                await db.create_table(name, ACCOUNTS, primary_key="id")
                await db.upsert(name, accounts(3))
                assert (await other.get(name, 1))["owner"] == "o1"
            for name in ("emptied", "emptied_in"):
                await db.truncate_table(name)
            for name in ("gone", "gone_in"):
                await db.drop_table(name)
            assert await other.get("emptied", 1) is None
            assert await in_transaction(other, lambda tx: tx.get("emptied_in", 1)) is None
            with pytest.raises(UsageError, match="there is no table 'gone'"):
                await other.get("gone", 1)
            with pytest.raises(UsageError, match="there is no table 'gone_in'"):
                await in_transaction(other, lambda tx: tx.scan("gone_in"))

    asyncio.run(main())


def test_a_dropped_index_is_not_read_by_a_client_that_knew_it() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            names = ("now", "transaction", "snapshot", "by")
            for name in names:
                await db.create_table(name, ACCOUNTS, primary_key="id")
                await db.create_index(name, "by_owner", "owner", unique=True)
                await db.upsert(name, accounts(3))
                assert (await other.scan(name, where=[("owner", "=", "o2")])).num_rows == 1
            for name in names:
                await db.drop_index(name, "by_owner")
                await db.upsert(name, accounts(5))  # its entries are not written any more
            where = [("owner", "=", "o4")]
            assert (await other.scan("now", where=where)).num_rows == 1
            found = await in_transaction(other, lambda tx: tx.scan("transaction", where=where))
            assert found.num_rows == 1
            then = await other.snapshot(as_of=db.now(), tables=["now"])
            assert (await then.scan("snapshot", where=where)).num_rows == 1
            with pytest.raises(UsageError, match="has no unique index 'by_owner'"):
                await in_transaction(other, lambda tx: tx.get("by", "o4", by="by_owner"))

    asyncio.run(main())


def test_a_row_of_a_newer_version_means_to_scan_again() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.upsert("t", accounts(3))
            known = await other.history("t")
            await other.get("t", 1)
            await db.alter_table("t", add_column={"note": "text default '-'"})
            await db.upsert("t", [{**accounts(1)[0], "note": "new"}])
            with pytest.raises(RetryableError, match="scan again"):
                [batch async for batch in other.scan_batches("t")]
            found = [row async for batch in other.scan_batches("t") for row in batch.to_pylist()]
            assert len(found) == 3
            key, value = RowCodec((await db.history("t")).latest.schema).encode({**accounts(1)[0], "note": "new"})
            with pytest.raises(
                VersionUnknown, match="if its table was just changed, read again; if that says the same"
            ):
                decode_row(RowCodec(known.latest.schema), key, value)

    asyncio.run(main())


async def _published(cluster: Cluster, table_id: int, rung: Rung, *, timeout: float | None = None) -> None:
    change = DropIndex("by_owner")
    await cluster.nodes[0].catalog.publish(table_id, partial(ladder.next_record, change, rung), timeout=timeout)


@pytest.mark.parametrize("how", ["scan", "join", "get"])
def test_an_index_that_a_gateway_reads_is_kept_until_it_has_heard_of_the_change(how: str) -> None:
    async def main() -> None:
        async with Cluster(2, **SLOW) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            made = await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.create_index("t", "by_owner", "owner", unique=True)
            await db.upsert("t", accounts(3))
            deaf = cluster.nodes[1].catalog
            await deaf.refresh()

            async def read() -> Any:
                if how == "get":
                    return (await other.get("t", "o2", by="by_owner"))["id"]
                columns = ["id", "owner"] if how == "scan" else None
                found = await other.scan("t", index="by_owner", where=[("owner", "=", "o2")], columns=columns)
                return found.to_pylist()[0]["id"]

            assert await read() == 2
            learn, deaf._learn_upto = deaf._learn_upto, _never  # type: ignore[method-assign]
            await _published(cluster, made.table_id, Rung.WRITE_ONLY)
            with pytest.raises(LeasesInTheWay, match=r"is still used by .*n2 \(version"):
                await _published(cluster, made.table_id, Rung.DELETE_ONLY, timeout=0.3)
            assert await read() == 2, "it reads by the version that it has leased"
            deaf._learn_upto = learn  # type: ignore[method-assign]
            await deaf.refresh()
            await _published(cluster, made.table_id, Rung.DELETE_ONLY)
            await db.upsert("t", accounts(5))
            assert (await other.scan("t", where=[("owner", "=", "o4")])).num_rows == 1

    asyncio.run(main())


async def _never(upto: object) -> None:
    """A catalog that hears of nothing."""


def test_a_transaction_reads_every_table_by_one_version_throughout() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.create_table("u", ACCOUNTS, primary_key="id")
            await db.upsert("t", accounts(3))

            async def read_twice(tx: Any, between: Callable[[], Awaitable[Any]]) -> Any:
                await tx.scan("t")
                await between()
                return await tx.scan("t")

            async with other.transaction() as tx:
                before = await read_twice(tx, lambda: db.alter_table("t", rename_column={"owner": "holder"}))
                assert before.column_names == ["id", "owner", "balance"], "one version for the whole transaction"
            tried = []

            async def apart(tx: Any) -> Any:
                tried.append(len(tried))
                await tx.get("t", 1)
                if len(tried) == 1:
                    await db.alter_table("u", add_column={"note": "text"})
                    other._tables.forget("u")
                return await tx.get("u", 1)

            assert await other.run(apart) is None
            assert len(tried) == 2, "tables as of two times are not used in one transaction"

    asyncio.run(main())


def test_a_row_of_a_newer_version_makes_a_transaction_run_again() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("t", ACCOUNTS, primary_key="id")
            await db.upsert("t", accounts(3))
            lease = await cluster.nodes[1].catalog.leases.take((await other.table("t")).table_id, 1)
            await db.alter_table("t", add_column={"note": "text"})
            await db.upsert("t", [{"id": 1, "owner": "x", "balance": 1, "note": "n"}])
            lease.give_back()
            assert (await other.run(lambda tx: tx.get("t", 1)))["note"] == "n"
            assert issubclass(LeasesInTheWay, RetryableError)

    asyncio.run(main())


@pytest.mark.parametrize("atomic", [False, True])
def test_a_feed_learns_a_version_that_its_gateway_does_not_tell(monkeypatch: pytest.MonkeyPatch, atomic: bool) -> None:
    async def untold(feed: object, upto: object) -> Any:
        for item in ():
            yield item

    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            feed = other.changes("accounts", after=other.now(), atomic=atomic, resolved=0.1)
            await anext(feed)  # its gateway has said what it knows
            monkeypatch.setattr(TableFeed, "_news", untold)
            await db.alter_table("accounts", add_column={"city": "text not null default 'Rome'"})
            written = await db.upsert("accounts", [{"id": 1, "owner": "o", "balance": 5, "city": "Oslo"}])
            found: list[Any] = []
            async for batch in feed:
                found += batch.data.column("city").to_pylist() if batch.kind == "rows" else []
                if batch.kind == "resolved" and batch.resolved >= written.timestamp:
                    break
            await feed.aclose()
            assert found == ["Oslo"]

    asyncio.run(main())


def test_a_catalog_is_complete_up_to_a_time_that_is_ahead_of_its_clock() -> None:
    async def main() -> None:
        async with Cluster(1, **SLOW) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key="id")
            catalog, clock = cluster.nodes[0].catalog, cluster.nodes[0].clock
            ahead = add_seconds(clock.physical(), clock.max_offset_us / 2e6)  # a row of a node whose clock is ahead
            await catalog.complete_upto(ahead)
            assert catalog.tables.upto >= ahead, "every version that such a row may name is known"

    asyncio.run(main())


def test_a_transaction_runs_again_when_what_it_read_does_not_fit_its_table_any_more() -> None:
    async def main() -> None:
        async with Cluster(2, **FAST) as cluster, session(cluster, 0) as db, session(cluster, 1) as other:
            await db.create_table("t", ACCOUNTS | {"note": "text"}, primary_key="id")
            await db.upsert("t", [row | {"note": "n"} for row in accounts(3)])
            tries = 0

            async def transfer(tx: Any) -> None:
                nonlocal tries
                tries += 1
                row = await tx.get("t", 1)
                if tries == 1:
                    await other.alter_table("t", drop_column="note")
                    await db.history("t")  # another task of this session learns of it
                await tx.upsert("t", [row | {"balance": 7}])

            await db.run(transfer)
            assert tries == 2
            assert (await other.get("t", 1))["balance"] == 7

    asyncio.run(main())
