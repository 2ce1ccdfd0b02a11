"""Raw writes of callers that are no nodes: a block of rows is looked at as a whole, and refused like its rows one by one."""

from __future__ import annotations

import asyncio

import pytest

from slackwater.codec.layout import kv, table_prefix
from slackwater.codec.rows import RowCodec
from slackwater.errors import UsageError
from slackwater.protocol.range.requests import Batch, Header, PutRows
from slackwater.server.raw_writes import check_raw, known_plain
from tests.unit.client.world import session
from tests.unit.server.cluster import Cluster

ROWS = 40
"""More than are checked one by one."""


def test_a_block_of_rows_is_refused_for_each_thing_that_is_wrong_with_one_of_them() -> None:
    async def main() -> None:
        async with Cluster(1) as cluster, session(cluster) as db:
            await db.create_table("t", {"id": "int8", "name": "text"}, primary_key=["id"])
            gateway = cluster.nodes[0].gateway
            (table,) = await db.tables()
            codec = RowCodec(table)
            encoded = [codec.encode({"id": number, "name": f"row {number}"}) for number in range(ROWS)]
            keys, values = [key for key, _ in encoded], [value for _, value in encoded]

            async def check(keys: list[bytes], values: list[bytes]) -> None:
                await check_raw(gateway, Batch(Header(0), [PutRows(keys, values)]))

            await check(keys, values)
            newer = values[7][:1] + (2).to_bytes(4, "little") + values[7][5:]
            swapped = [*values[:7], values[8], values[7], *values[9:]]
            elsewhere = table_prefix(table.table_id, 9) + keys[7][len(codec.prefix) :]
            wrong = {
                "has no version 2": (keys, [*values[:7], newer, *values[8:]]),
                "does not fit table t": (keys, swapped),
                "is no row of a table": (keys, [*values[:7], b"", *values[8:]]),
                "not that of the row": ([*keys[:7], elsewhere, *keys[8:]], values),
                "plain key is made by": ([b"\x04torn", *keys], [b"", *values]),
            }
            for said, block in wrong.items():
                with pytest.raises(UsageError, match=said):
                    await check(*block)

    asyncio.run(main())


def test_plain_keys_need_no_table_and_are_checked_all_the_same() -> None:
    def rows(*keys: bytes) -> Batch:
        return Batch(Header(0), [PutRows(list(keys), [b"v"] * len(keys))])

    assert known_plain(rows(kv(b"a"), kv(b"b")))
    assert not known_plain(rows(kv(b"a"), b"\x05row"))
    with pytest.raises(UsageError, match="plain key is made by"):
        known_plain(rows(kv(b"a"), b"\x04torn"))
