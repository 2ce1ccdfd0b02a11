"""Writes: one commit for a job, once for a name, nothing of a job that fails; and what each operation means."""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import functions as f

from slackwater.errors import UsageError
from slackwater.spark.source import Source
from slackwater.spark.writing import Staged
from tests.spark.test_reads import fail_once


@pytest.fixture
def table(db, name):
    db.create_table(name, {"id": "int8", "v": "text"}, primary_key=["id"])
    return name


def rows(db, table):
    return {row["id"]: row["v"] for row in db.scan(table).to_pylist()}


def test_a_job_is_one_commit_and_operations_do_what_they_say(db, save, spark, table):
    frame = spark.range(0, 2000, numPartitions=4).select("id", f.lit("a").alias("v"))
    # a task that fails after it was sent rows is tried again; what its first attempt staged is never seen
    save(frame.select(fail_once(2)("id").alias("id"), "v"), table)
    found = db.scan(table)
    assert found.num_rows == 2000
    part = db.partitions(table, 1)[0]
    upto = db.close_now(table)
    changes = pa.Table.from_batches(list(db.read_changes(part, after=1, upto=upto)))
    assert len(changes["_commit_ts"].unique()) == 1, "all tasks' rows have one commit version"
    assert changes.num_rows == 2000
    save(spark.createDataFrame([(1, "new"), (5000, "new")], "id bigint, v string"), table)
    assert [rows(db, table)[k] for k in (1, 2, 5000)] == ["new", "a", "new"]
    with pytest.raises(Exception, match=r"is in table .* already; nothing was written"):
        save(spark.createDataFrame([(6000, "x"), (1, "x")], "id bigint, v string"), table, operation="insert")
    assert 6000 not in rows(db, table)
    save(spark.createDataFrame([(6000, "x"), (1, "x")], "id bigint, v string"), table, operation="insertIgnore")
    assert [rows(db, table)[k] for k in (1, 6000)] == ["new", "x"]
    save(spark.range(1, 2000), table, operation="delete")
    assert set(rows(db, table)) == {0, 5000, 6000}


def test_a_named_job_happens_once_and_a_failed_one_not_at_all(db, save, spark, table):
    def job(value: str, version: int) -> None:
        frame = spark.createDataFrame([(1, value)], "id bigint, v string")
        save(frame, table, txnAppId=f"nightly-{table}", txnVersion=version)

    job("first", 7)
    job("second", 7)
    job("third", 3)
    assert rows(db, table) == {1: "first"}
    job("fourth", 8)
    assert rows(db, table) == {1: "fourth"}

    @f.udf("long", useArrow=False)
    def broken(value):
        raise RuntimeError("planned failure of every attempt")

    with pytest.raises(Exception, match="planned failure"):
        save(spark.range(100).select(broken("id").alias("id"), f.lit("x").alias("v")), table)
    twice = spark.createDataFrame([(2, "a"), (2, "b")], "id bigint, v string").repartition(2, "v")
    with pytest.raises(Exception, match="same primary key"):
        save(twice, table)
    assert rows(db, table) == {1: "fourth"}
    save(spark.createDataFrame([(3, "through")], "id bigint, v string"), table, atomic="false")
    assert rows(db, table) == {1: "fourth", 3: "through"}


def test_abort_after_commit_keeps_what_was_committed(db, url, table):
    from pyspark.sql.types import _parse_datatype_json_string

    schema = _parse_datatype_json_string(
        '{"type":"struct","fields":[{"name":"id","type":"long","nullable":true,"metadata":{}}]}'
    )

    def writer(**options: str):
        return Source({"endpoint": url, "path": table, "missingColumns": "null", **options}).writer(
            schema, overwrite=False
        )

    batch = pa.record_batch({"id": [1, 2, 3]})
    one = writer()
    message = one.write(iter([batch, batch.slice(0, 0)]))
    one.commit([message])
    one.abort([message, None])
    assert set(rows(db, table)) == {1, 2, 3}
    # the same name again, after the commit's answer was lost: nothing happens, and nothing fails
    named = writer(txnAppId=f"lost-{table}", txnVersion="1", operation="delete")
    message = named.write(iter([batch]))
    named.commit([message])
    db.upsert(table, [{"id": 1, "v": "since"}])
    named.commit([message])
    named.abort([message])
    assert rows(db, table) == {1: "since"}
    aborted = writer()
    message = aborted.write(iter([pa.record_batch({"id": [9]})]))
    aborted.abort([message])
    with pytest.raises(UsageError, match="staged rows are gone"):
        aborted.commit([message])
    assert rows(db, table) == {1: "since"}
    writer().commit([Staged(None, ""), None])
