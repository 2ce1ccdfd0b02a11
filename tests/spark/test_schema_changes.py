"""Spark across schema changes: streams that stop or go on, batches with the schema as of their time, defaults in writes."""

from __future__ import annotations

import uuid

import pytest

from tests.spark.running import run


@pytest.fixture
def source(spark, url, name, db):
    """A table, and readers of it."""
    db.create_table(name, {"id": "int8", "v": "text"}, primary_key=["id"])

    def stream(**options):
        reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
        return reader.options(**options).load(name)

    def batch(**options):
        return spark.read.format("slackwater").option("endpoint", url).options(**options).load(name)

    return name, stream, batch


def collected(stream, checkpoint):
    """What one run of a stream delivers; and how it failed, if it did."""
    found = []

    def keep(batch, _):
        found.extend(row.asDict() for row in batch.drop("_commit_timestamp", "_commit_version").collect())

    try:
        run(stream.writeStream.foreachBatch(keep).option("checkpointLocation", str(checkpoint)))
    except Exception as error:
        return found, str(error)
    return found, ""


def test_a_stream_stops_before_a_change_and_goes_on_when_it_is_started_again(db, source, tmp_path):
    table, stream, _ = source
    db.upsert(table, [{"id": 1, "v": "a"}])
    assert collected(stream(), tmp_path / "c")[0] == [{"id": 1, "v": "a", "_change_type": "insert"}]
    running = stream()  # analysed for version 1
    other = stream(schemaEvolution="additive")
    assert collected(stream(schemaEvolution="additive"), tmp_path / "d")[1] == ""
    db.upsert(table, [{"id": 2, "v": "b"}])
    db.alter_table(table, add_column={"n": "int8 not null default 5"})
    db.upsert(table, [{"id": 3, "v": "c", "n": 6}])
    found, error = collected(running, tmp_path / "c")
    assert [row["id"] for row in found] == [2], "all that was before the change, and nothing after it"
    assert "start the query again, with the same checkpoint" in error
    found, error = collected(stream(), tmp_path / "c")
    assert error == ""
    assert [(row["id"], row["v"], row["n"]) for row in found] == [(3, "c", 6)]
    found, error = collected(other, tmp_path / "d")
    assert error == ""
    assert [(row["id"], row["v"]) for row in found] == [(2, "b"), (3, "c")], "additive goes on with the columns it has"
    running = stream(schemaEvolution="additive")
    db.alter_table(table, drop_column="v")
    db.upsert(table, [{"id": 4, "n": 1}])
    found, error = collected(running, tmp_path / "d")
    assert found == []
    assert "has other columns" in error
    assert [row["id"] for row in collected(stream(), tmp_path / "d")[0]] == [4]


def test_batches_have_the_schema_of_their_time_and_changes_that_of_now(db, source):
    table, _, batch = source
    db.upsert(table, [{"id": 1, "v": "a"}])
    first = db.now()
    db.alter_table(table, rename_column={"v": "w"})
    db.alter_table(table, add_column={"n": "int8"})
    db.upsert(table, [{"id": 2, "w": "b", "n": 2}])
    second = db.now()
    db.truncate_table(table)
    db.upsert(table, [{"id": 3, "w": "c", "n": 3}])
    third = db.now()
    assert [row.asDict() for row in batch(versionAsOf=first).collect()] == [{"id": 1, "v": "a"}]
    assert [row.asDict() for row in batch(versionAsOf=second).orderBy("id").collect()] == [
        {"id": 1, "w": "a", "n": None},
        {"id": 2, "w": "b", "n": 2},
    ]
    assert [row.id for row in batch(versionAsOf=third).collect()] == [3]
    changes = batch(readChangeFeed="true", startingVersion="earliest", endingVersion=third)
    assert [(row.id, row.w, row.n) for row in changes.orderBy("id").collect()] == [
        (1, "a", None),
        (2, "b", 2),
        (3, "c", 3),
    ], "also what was written before the table was emptied"


def test_a_write_leaves_columns_with_defaults_out_and_checks_hold(spark, db, save, name):
    columns = {
        "id": "uuid default gen_random_uuid()",
        "n": "int8 not null",
        "made": "timestamptz not null default now()",
    }
    db.create_table(name, columns, primary_key="id")
    db.alter_table(name, add_check={"positive": "n > 0"})
    save(spark.range(1, 51, numPartitions=3).withColumnRenamed("id", "n"), name, operation="insert")
    found = db.scan(name).to_pylist()
    assert sorted(row["n"] for row in found) == list(range(1, 51))
    assert len({bytes(row["id"]) for row in found}) == 50
    assert all(uuid.UUID(bytes=bytes(row["id"])).version == 4 and row["made"] is not None for row in found)
    with pytest.raises(Exception, match="positive"):
        save(spark.range(0, 3).withColumnRenamed("id", "n"), name, operation="insert")
    assert db.scan(name).num_rows == 50
