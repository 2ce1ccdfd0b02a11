"""The change feed as a stream: whole commits, in order, once, across restarts; and as a batch between two versions."""

from __future__ import annotations

import itertools

import pytest
from pyspark.sql import functions as f

from tests.spark.running import lose_last_commit, run

CHANGE = ["_change_type", "_commit_version", "_commit_timestamp"]


@pytest.fixture
def source(spark, url, name, db):
    """A table, and a stream of its changes with options."""
    db.create_table(name, {"id": "int8", "v": "text"}, primary_key=["id"])

    def stream(**options):
        reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
        return reader.options(**options).load(name)

    return name, stream


def table_rows(db, table):
    return {row["id"]: row["v"] for row in db.scan(table).to_pylist()}


def test_a_mirror_stays_equal_across_restarts_with_the_last_commit_lost(db, url, source, tmp_path):
    table, stream = source
    mirror, journal = f"{table}_mirror", f"{table}_journal"
    db.create_table(mirror, {"id": "int8", "v": "text"}, primary_key=["id"])
    db.create_table(journal, {"id": "int8", "version": "int8", "kind": "text"}, primary_key=["id", "version"])
    checkpoint, other = tmp_path / "mirror", tmp_path / "journal"
    batches = []

    def apply(batch, number: int) -> None:
        """Newest change of each key, as an upsert or a delete; both under the batch's number."""
        batches.append((number, batch.agg(f.min("_commit_timestamp"), f.max("_commit_timestamp")).first()))
        newest = batch.groupBy("id").agg(
            f.max_by("v", "_commit_version").alias("v"), f.max_by("_change_type", "_commit_version").alias("t")
        )
        for kind, rows in (
            ("upsert", newest.where("t <> 'delete'").select("id", "v")),
            ("delete", newest.where("t = 'delete'").select("id")),
        ):
            writer = rows.write.format("slackwater").option("endpoint", url).option("operation", kind)
            writer.option("txnAppId", f"{mirror}-{kind}").option("txnVersion", number).mode("append").save(mirror)

    def mirror_now() -> None:
        run(stream().writeStream.foreachBatch(apply).option("checkpointLocation", str(checkpoint)))

    def journal_now() -> None:
        # inserts: a change that came twice would be refused
        changes = stream().selectExpr("id", "_commit_version as version", "_change_type as kind")
        sink = changes.writeStream.format("slackwater").option("endpoint", url).option("operation", "insert")
        run(sink.option("checkpointLocation", str(other)), journal)

    db.upsert(table, [{"id": i, "v": "first"} for i in range(50)])
    mirror_now()
    journal_now()
    assert table_rows(db, mirror) == table_rows(db, table)
    assert db.scan(journal).num_rows == 50
    db.upsert(table, [{"id": i, "v": "second"} for i in range(40, 60)])
    db.delete(table, [{"id": i} for i in range(10)])
    db.upsert(table, [{"id": 5, "v": "back"}])
    mirror_now()
    journal_now()
    lose_last_commit(checkpoint)
    lose_last_commit(other)
    db.upsert(table, [{"id": 1000, "v": "third"}])
    mirror_now()
    journal_now()
    assert table_rows(db, mirror) == table_rows(db, table)
    kinds = db.scan(journal)["kind"].to_pylist()
    counts = {kind: kinds.count(kind) for kind in set(kinds)}
    assert counts == {"insert": 50 + 10 + 1 + 1, "update_postimage": 10, "delete": 10}
    spans = {number: span for number, span in batches if span[0] is not None}
    assert len(batches) > len({number for number, _ in batches}), "a batch was replayed"
    ordered = [spans[number] for number in sorted(spans)]
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ordered)), "batches overlap in commit time"


def test_limited_batches_keep_commits_whole_and_changes_can_be_read_as_a_batch(db, load, source, spark, tmp_path):
    table, stream = source
    commits = [db.upsert(table, [{"id": c * 10 + i, "v": str(c)} for i in range(4)]).timestamp for c in range(6)]
    db.delete(table, [{"id": 0}])
    changes = stream(startingVersion=str(int(commits[1])), maxRowsPerTrigger="5")
    sink = changes.writeStream.format("memory").queryName("limited")
    query = run(sink.option("checkpointLocation", str(tmp_path / "limited")))
    sizes = [progress["numInputRows"] for progress in query.recentProgress if progress["numInputRows"]]
    assert sum(sizes) == 5 * 4 + 1
    assert max(sizes) <= 5, "commits of four rows, at most five rows a batch"
    assert len(sizes) >= 5
    found = spark.table("limited").select("id", *CHANGE[:2]).collect()
    assert sorted({row._commit_version for row in found})[:5] == sorted(int(c) for c in commits[1:])
    feed = {"readChangeFeed": "true", "columns": "id"}
    third = load(table, **feed, startingVersion=str(int(commits[2])), endingVersion=str(int(commits[2])))
    assert third.columns == ["id", *CHANGE]
    assert sorted(row.id for row in third.collect()) == [20, 21, 22, 23]
    assert third.select("_commit_version").distinct().collect() == [(int(commits[2]),)]
    everything = load(table, **feed, startingVersion="earliest", endingVersion=str(int(commits[5])))
    assert everything.count() == 24
    bounds = {"startingVersion": "earliest", "endingVersion": str(int(db.close_now(table)))}
    net = load(table, **feed, **bounds, deduplicationMode="netChanges", waitForTimestamp="20s")
    kinds = {row.id: row._change_type for row in net.collect()}
    assert kinds == {c * 10 + i: "insert" for c in range(6) for i in range(4) if (c, i) != (0, 0)}, "0 came and went"
    marked = load(table, columns="v", includeMetadata="true", maxStaleness="0s")
    assert marked.columns == ["v", *CHANGE[1:]]
    found = {(row.v, row._commit_version) for row in marked.collect()}
    assert found == {(str(c), int(commit)) for c, commit in enumerate(commits)}
    assert marked.count() == 23


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"readChangeFeed": "false"}, "a stream reads changes; say so"),
        ({"endingVersion": "10"}, "a stream has no end"),
        ({"startingVersion": "soon"}, "is not a version"),
    ],
)
def test_bad_streams_are_one_clear_error(source, tmp_path, options, said):
    _, stream = source
    with pytest.raises(Exception, match=r".") as error:
        run(stream(**options).writeStream.format("noop").option("checkpointLocation", str(tmp_path)))
    assert said in str(error.value), str(error.value)[-2000:]
