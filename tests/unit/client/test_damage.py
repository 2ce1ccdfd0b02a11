"""A row that cannot be decoded: every way of reading names it, none leaves it out, and it can be deleted by its key."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from slackwater.codec.damage import first_damaged
from slackwater.errors import DamagedRow, DecodeError
from slackwater.runtime import run
from tests.unit.client.world import ACCOUNTS, accounts, session
from tests.unit.server.cluster import Cluster

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.client.database import AsyncDatabase
    from slackwater.clock.timestamp import Timestamp

ROWS, BAD = 3000, 1234
NAMED = rf"^row \{{'id': {BAD}\}} of table accounts cannot be decoded: .*delete\('accounts', \[\{{'id': {BAD}\}}\]\)"
RUBBISH = (b"\x01", b"\x01\x01\x00\x00\x00\xff", b"\x07" + bytes(40), b"\x01\x63\x00\x00\x00" + bytes(40))
"""Too short, not long enough, of another format, of a version that there is not."""


def play(story: Callable[[Cluster, AsyncDatabase, bytes], Awaitable[None]]) -> None:
    async def main() -> None:
        async with Cluster(1, **{"closed_timestamp.target_duration": 0.2}) as cluster, session(cluster) as db:
            await db.create_table("accounts", ACCOUNTS, primary_key=["id"])
            await db.upsert("accounts", accounts(ROWS))
            codec = db._tables.codec(await db.history("accounts"))
            await story(cluster, db, codec.key([BAD]))

    run(main())


async def in_txn(db: AsyncDatabase, what: Callable[[Any], Awaitable[Any]]) -> None:
    async with db.transaction() as tx:
        await what(tx)


async def follow(db: AsyncDatabase, **options: Any) -> int:
    batches = [batch async for batch in db.changes("accounts", until=db.now(), resolved=0.05, **options)]
    return sum(batch.data.num_rows for batch in batches if batch.kind == "rows")


async def exported(db: AsyncDatabase, after: Timestamp) -> int:
    upto = await db.close_now("accounts")
    parts = await db.partitions("accounts")
    return sum([batch.num_rows for p in parts async for batch in db.read_changes(p, after=after, upto=upto)])


@pytest.mark.parametrize("rubbish", RUBBISH)
def test_every_way_of_reading_names_the_row_and_a_delete_mends_the_table(rubbish: bytes) -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, key: bytes) -> None:
        before = db.now()
        await cluster.nodes[0].kv.put(key, rubbish)
        snap = await db.snapshot(as_of=db.now())
        reads: list[Callable[[], Awaitable[Any]]] = [
            lambda: db.get("accounts", BAD),
            lambda: db.scan("accounts"),
            lambda: db.scan("accounts", columns=["balance"], where=[("balance", "=", 100)]),
            lambda: snap.get("accounts", BAD),
            lambda: snap.scan("accounts"),
            lambda: in_txn(db, lambda tx: tx.get("accounts", BAD)),
            lambda: in_txn(db, lambda tx: tx.scan("accounts")),
            lambda: follow(db),
            lambda: follow(db, after=before),
            lambda: exported(db, before),
        ]
        for number, read in enumerate(reads):
            with pytest.raises(DamagedRow, match=NAMED) as told:
                await read()
            assert told.value.facts["table"] == "accounts", number
        assert (await db.get("accounts", BAD + 1))["id"] == BAD + 1  # type: ignore[index]
        assert (await db.scan("accounts", where=[("id", ">", BAD)])).num_rows == ROWS - BAD - 1, "beside it all is well"
        await db.delete("accounts", [BAD])
        assert (await db.scan("accounts")).num_rows == ROWS - 1
        mended = db.now()
        await db.upsert("accounts", accounts(1, first=BAD))
        assert await follow(db, after=mended) == 1
        with pytest.raises(
            DamagedRow, match=r"it was committed at .*, and history keeps it: read or follow from after"
        ):
            await follow(db, after=before)

    play(story)


def test_a_row_may_also_be_written_anew() -> None:
    async def story(cluster: Cluster, db: AsyncDatabase, key: bytes) -> None:
        await cluster.nodes[0].kv.put(key, RUBBISH[0])
        await db.upsert("accounts", accounts(1, first=BAD, balance=7))
        assert (await db.scan("accounts")).num_rows == ROWS
        assert (await db.get("accounts", BAD))["balance"] == 7  # type: ignore[index]

    play(story)


@pytest.mark.parametrize("bad", [(), (0,), (9,), (3, 4), (0, 1, 2, 9), tuple(range(10))])
def test_the_first_damaged_value_is_found_by_halving(bad: tuple[int, ...]) -> None:
    def decode(values: list[bytes]) -> None:
        for value in values:
            if value[0] in bad:
                raise DecodeError(f"value {value[0]}")

    found = first_damaged(decode, [bytes([n]) for n in range(10)])
    if not bad:
        assert found is None
    else:
        assert found is not None
        assert (found[0], found[1].message) == (bad[0], f"value {bad[0]}")
