"""Snapshot reads: types, columns, filters; one timestamp for all tasks, retries and tables, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
import datetime as dt
import time
import uuid
from decimal import Decimal

from pyspark import TaskContext
from pyspark.sql import functions as f

from slackwater.clock.timestamp import from_us, show
from slackwater.codec.layout import table_prefix
from slackwater.protocol.node.admin import SPLIT, KeyRequest
from tests.integration.cluster import dialing
from tests.spark.transfers import START, Transfers, make_accounts

COLUMNS = {
    "k": "int8 not null",
    "i2": "int2",
    "i4": "int4",
    "flag": "bool",
    "f": "float8",
    "price": "decimal(10,2)",
    "s": "text",
    "j": "json",
    "b": "bytes",
    "d": "date",
    "t": "timestamp",
    "z": "timestamptz",
    "u": "uuid",
}
ROWS = [
    {
        "k": 1,
        "i2": -2,
        "i4": 1 << 30,
        "flag": True,
        "f": 1.5,
        "price": Decimal("12345678.90"),
        "s": "ä x",
        "j": '{"a":1}',
        "b": b"\x00\xff",
        "d": dt.date(2026, 11, 15),
        "t": dt.datetime(2026, 11, 15, 1, 2, 3, 456789),
        "z": dt.datetime(2026, 11, 15, 1, 2, 3, 456789, tzinfo=dt.UTC),
        "u": uuid.UUID(int=5).bytes,
    },
    dict.fromkeys(COLUMNS) | {"k": 2},
]


def test_every_type_column_and_filter_comes_through(db, load, name, spark, url):
    db.create_table(name, COLUMNS, primary_key=["k"])
    db.upsert(name, ROWS)
    frame = load(name, maxStaleness="0s")
    assert frame.dtypes == [
        ("k", "bigint"),
        ("i2", "smallint"),
        ("i4", "int"),
        ("flag", "boolean"),
        ("f", "double"),
        ("price", "decimal(10,2)"),
        ("s", "string"),
        ("j", "string"),
        ("b", "binary"),
        ("d", "date"),
        ("t", "timestamp_ntz"),
        ("z", "timestamp"),
        ("u", "binary"),
    ]
    assert not frame.schema["k"].nullable
    found = frame.orderBy("k").toArrow().to_pylist()
    assert found == ROWS
    filters = '[["price", ">", "1.00"], ["d", "in", ["2026-11-15"]], ["k", "<", 10]]'
    assert load(name, maxStaleness="0s", columns="s,k", filters=filters).collect() == [("ä x", 1)]
    reader = spark.read.format("slackwater").option("endpoint", url).option("maxStaleness", "0s")
    assert reader.schema("s string, k bigint").load(name).where("k = 2").collect() == [(None, 2)]


def fail_once(partition: int):
    """A column function that fails in the first attempt of the task of one partition."""

    @f.udf("long", useArrow=False)
    def through(value):
        context = TaskContext.get()
        if context.partitionId() == partition and context.attemptNumber() == 0:
            raise RuntimeError("planned failure of a first attempt")
        return value

    return through


def test_one_load_is_one_timestamp_whatever_is_done_with_it(db, load, url, name):
    """Re-executed, joined with itself, and with a task that fails and is tried again, while its rows change."""
    other, accounts = f"{name}_other", 200
    make_accounts(db, name, other, accounts=accounts)
    with Transfers(url, name, other, accounts=accounts, workers=4) as moving:
        one = load(name, numPartitions=4, maxStaleness="0s")
        first = {row.id: row.balance for row in one.collect()}
        moved = moving.done
        while moving.done < moved + 20:
            time.sleep(0.05)
        assert {row.id: row.balance for row in one.collect()} == first
        assert one.alias("a").join(one.alias("b"), "id").where("a.balance <> b.balance").count() == 0
        again = one.select("id", fail_once(1)("balance").alias("balance")).agg(f.sum("balance")).first()[0]
        assert again == sum(first.values())
        assert {row.id: row.balance for row in load(name, maxStaleness="0s").collect()} != first


def test_the_past_is_read_by_version_or_time_and_across_a_split(db, load, name):
    db.create_table(name, {"id": "int8", "balance": "int8"}, primary_key=["id"])
    first = db.upsert(name, [{"id": i, "balance": START} for i in range(100)]).timestamp
    second = db.upsert(name, [{"id": i, "balance": 0} for i in range(0, 100, 2)]).timestamp
    old = load(name, versionAsOf=str(int(first)))
    new = load(name, versionAsOf=str(int(second)))
    after = load(name, timestampAsOf=show(from_us((second >> 10) + 1)), waitForTimestamp="20s")
    asyncio.run(split(db, name))
    assert [frame.agg(f.sum("balance")).first()[0] for frame in (old, new, after)] == [
        100 * START,
        50 * START,
        50 * START,
    ]
    assert load(name, versionAsOf=str(int(first))).agg(f.count("*"), f.sum("balance")).first() == (100, 100 * START)


async def split(db, name: str) -> None:
    """Divide the table's range in its middle."""
    middle = table_prefix(db.table(name).table_id) + (1 << 63 | 50).to_bytes(8, "big")
    async with dialing() as dialer:
        await dialer.call(db.nodes()[0].address, SPLIT, KeyRequest(_row_key(db, name, middle)), timeout=30.0)


def _row_key(db, name: str, fallback: bytes) -> bytes:
    keys = [part.start for part in db.partitions(name, 4)]
    return keys[2] if len(keys) > 2 else fallback
