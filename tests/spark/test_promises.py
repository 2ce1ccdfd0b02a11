"""What users of Spark take for granted: a session sees what it wrote, names repeat only repeats, any thread may write."""

from __future__ import annotations

import datetime as dt
import json
import math
import random
import subprocess
import sys
import threading
import time
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql import functions as f
from pyspark.sql import types as st

import slackwater.spark
from slackwater.codec.arrow import arrow_schema
from slackwater.codec.filters_arrow import bind
from slackwater.errors import SlackwaterError
from slackwater.model import kinds
from slackwater.model.predicates import predicate
from slackwater.model.schema import Column, KeyColumn, TableSchema
from slackwater.protocol.client.staging import PartRef
from slackwater.spark.options import parse_options
from slackwater.spark.source import Source
from slackwater.spark.types import where_of
from tests.spark.running import run

CLI = [sys.executable, "-m", "slackwater.cli.main"]
SEED = 20261118
OPS = ["=", "!=", "<", "<=", ">", ">="]


@pytest.fixture
def table(db, name):
    db.create_table(name, {"id": "int8", "v": "text"}, primary_key=["id"])
    return name


def rows(db, table):
    return {row["id"]: row["v"] for row in db.scan(table).to_pylist()}


def test_what_a_session_wrote_is_in_what_it_reads_next(cluster, db, load, save, spark, table, tmp_path, url):
    # followers of this table are half a minute behind: nobody sees by accident what was written a moment ago
    lag = ["--policy", "lag", "--duration-ms", "30000"]
    where = ["--host", cluster.addresses[0]]
    subprocess.run([*CLI, "zone", "set", table, *lag, *where], check=True, capture_output=True)
    written = 0
    for options in ({}, {"readFrom": "any"}, {"readFrom": "leader"}, {"numPartitions": 3}):
        for how in ({}, {"atomic": "false"}):
            save(spark.range(written, written + 1).withColumn("v", f.lit("x")), table, **how)
            written += 1
            assert load(table, **options).count() == written, (options, how)
    assert slackwater.spark.snapshot(spark, url, tables=[table])[table].count() == written
    changes = load(table, readChangeFeed="true", startingVersion="earliest")
    assert changes.count() == written
    reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
    for start in ({}, {"startingVersion": "earliest"}, {"startingVersion": "latest"}):
        name = "s" + "_".join(start.values())
        sink = reader.options(**start).load(table).writeStream.format("memory").queryName(name)
        query = sink.option("checkpointLocation", str(tmp_path / name)).start()
        try:
            query.processAllAvailable()
            before = spark.table(name).count()
            assert before == (0 if "latest" in start.values() else written), start
            save(spark.range(written, written + 1).withColumn("v", f.lit("x")), table)
            written += 1
            query.processAllAvailable()
            assert spark.table(name).count() == before + 1, start
        finally:
            query.stop()


def test_a_name_counts_for_one_table_one_operation_and_one_life_of_the_table(db, save, spark, table, tmp_path, url):
    name = {"txnAppId": "nightly", "txnVersion": 7}
    other = f"{table}_other"
    db.create_table(other, {"id": "int8", "v": "text"}, primary_key=["id"])
    three = spark.range(3).withColumn("v", f.lit("a"))
    save(three, table, **name)
    save(three, other, **name)
    save(spark.range(2), table, **name, operation="delete")
    assert (set(rows(db, table)), set(rows(db, other))) == ({2}, {0, 1, 2})
    for again in (three, spark.range(3).withColumn("v", f.lit("other content"))):
        save(again, table, **name)
    save(spark.range(3), table, **name, operation="delete")
    assert rows(db, table) == {2: "a"}, "repeats, whatever they bring"
    db.drop_table(table)
    db.create_table(table, {"id": "int8", "v": "text"}, primary_key=["id"])
    save(three, table, **name)
    assert set(rows(db, table)) == {0, 1, 2}

    # streams: the same in foreachBatch, and a new checkpoint, which counts from 0, is refused and not taken for a repeat
    reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
    sinks = [f"{table}_each", f"{table}_sink"]
    for made in sinks:
        db.create_table(made, {"id": "int8", "v": "text"}, primary_key=["id"])

    def apply(batch, number: int) -> None:
        named = {"txnAppId": "each", "txnVersion": number}
        save(batch.select("id", "v"), sinks[0], **named)
        save(batch.where("id = 0").select("id"), sinks[0], **named, operation="delete")

    def start(kind: str, checkpoint: str) -> None:
        place = str(tmp_path / checkpoint)
        if kind == "each":
            run(reader.load(table).writeStream.foreachBatch(apply).option("checkpointLocation", place))
        else:
            sink = reader.load(table).select("id", "v").writeStream.format("slackwater").option("endpoint", url)
            run(sink.option("txnAppId", "sink").option("checkpointLocation", place), sinks[1])

    start("each", "each1")
    start("sink", "sink1")
    assert (set(rows(db, sinks[0])), set(rows(db, sinks[1]))) == ({1, 2}, {0, 1, 2})
    for kind in ("each", "sink"):
        with pytest.raises(Exception, match=r"another query has written up to version 0 under the name"):
            start(kind, f"{kind}2")


def test_threads_write_and_names_are_found_as_spark_finds_them(db, load, save, spark, url, name):
    db.create_table(name, {"id": "int8", "Note": "text", "n": "int8"}, primary_key=["id"])
    failures = []

    def write(number: int) -> None:
        try:
            frame = spark.range(number, number + 1).selectExpr("id as ID", "'x' as note", "id as N")
            save(frame, name)
            feed = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
            assert feed.load(name).columns[0] == "id"
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=write, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, str(failures[0])[:1000]
    assert db.scan(name).to_pylist() == [{"id": 0, "Note": "x", "n": 0}, {"id": 1, "Note": "x", "n": 1}]
    assert load(name, columns="NOTE,Id", filters='[["ID", "=", 1]]').collect() == [("x", 1)]
    asked = spark.read.format("slackwater").option("endpoint", url).schema("ID bigint, note string").load(name)
    assert (asked.columns, asked.where("Id = 1").collect()) == (["ID", "note"], [(1, "x")])
    spark.conf.set("spark.sql.caseSensitive", "true")
    try:
        with pytest.raises(Exception, match=r"caseSensitive is true, .* no column of these names: ID for id"):
            save(spark.range(5, 6).selectExpr("id as ID", "'x' as note", "id as n"), name)
        with pytest.raises(Exception, match=r"caseSensitive is true, .*: NOTE for Note"):
            load(name, columns="NOTE,id").collect()
        assert load(name, columns="Note", filters='[["id", "=", 1]]').count() == 1
    finally:
        spark.conf.unset("spark.sql.caseSensitive")
    assert db.scan(name).num_rows == 2


def test_an_upsert_without_all_columns_says_what_becomes_of_the_others(db, url, name):
    db.create_table(name, {"id": "int8", "a": "text", "b": "int8"}, primary_key=["id"])
    db.upsert(name, [{"id": 1, "a": "old", "b": 1}])

    def write(columns: str, values: dict, **options: str) -> None:
        kinds_of = {"id": st.LongType(), "a": st.StringType(), "b": st.LongType()}
        schema = st.StructType([st.StructField(c, kinds_of[c]) for c in columns.split()])
        writer = Source({"endpoint": url, "path": name, **options}).writer(schema, overwrite=False)
        writer.commit([writer.write(iter([pa.record_batch(values)]))])

    two = {"id": [1, 2], "a": ["new", "new"]}
    with pytest.raises(SlackwaterError, match=r"has no column b of table .*, and an upsert replaces whole rows"):
        write("id a", two)
    write("id a", two, missingColumns="keep")
    assert db.scan(name).to_pylist() == [{"id": 1, "a": "new", "b": 1}, {"id": 2, "a": "new", "b": None}]
    write("id b", {"id": [1, 3], "b": [7, 7]}, missingColumns="null")
    assert db.get(name, 1) == {"id": 1, "a": None, "b": 7}
    write("id a", {"id": [4], "a": ["inserted"]}, operation="insert")
    assert db.get(name, 4) == {"id": 4, "a": "inserted", "b": None}
    with pytest.raises(SlackwaterError, match="missingColumns=keep needs atomic=true"):
        write("id a", two, missingColumns="keep", atomic="false")


def test_a_job_over_the_bound_ends_while_it_stages(cluster, db, save, spark, table):
    where = ["--host", cluster.addresses[0]]
    subprocess.run([*CLI, "settings", "set", "staging.rows_max", "20000", *where], check=True, capture_output=True)
    try:
        deadline = time.monotonic() + 30
        while "20000" not in str(refusal(db, table)):
            assert time.monotonic() < deadline, "no node heard of the setting"
        frame = spark.range(0, 40_000, numPartitions=4).withColumn("v", f.lit("x"))
        with pytest.raises(Exception, match=r"more than one commit takes \(staging.rows_max = 20000\); split the job"):
            save(frame, table)
        assert db.scan(table).num_rows == 0
    finally:
        subprocess.run([*CLI, "settings", "unset", "staging.rows_max", *where], check=True, capture_output=True)


def refusal(db, table):
    """What a publish of too many rows is told, if anything."""
    try:
        return db.publish(table, [PartRef(bytes(16), 1, 30_000)])
    except SlackwaterError as error:
        return error


def test_limited_batches_from_the_beginning(db, spark, table, tmp_path, url):
    for n in range(4):
        db.upsert(table, [{"id": n * 10 + i, "v": "x"} for i in range(3)])
    for start in ({"startingVersion": "earliest"}, {"startingTimestamp": "2020-01-01T00:00:00Z"}):
        reader = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true")
        changes = reader.options(**start).option("maxRowsPerTrigger", 4).load(table)
        sink = changes.writeStream.format("noop").option("checkpointLocation", str(tmp_path / next(iter(start))))
        sizes = [progress["numInputRows"] for progress in run(sink).recentProgress if progress["numInputRows"]]
        assert sizes == [3, 3, 3, 3]


def test_filters_answer_what_sparks_own_do(db, load, spark, name):
    columns = {
        "id": kinds.INT, "i": kinds.INT4, "m": kinds.decimal_type(12, 2), "w": kinds.decimal_type(38, 18), "f": kinds.FLOAT,
        "s": kinds.STRING, "d": kinds.DATE, "t": kinds.TIMESTAMP, "z": kinds.TIMESTAMPTZ, "y": kinds.BYTES, "o": kinds.BOOL,
    }  # fmt: skip
    schema = TableSchema(
        104,
        name,
        1,
        tuple(Column(n, c, kind, nullable=c != "id") for n, (c, kind) in enumerate(columns.items(), 1)),
        (KeyColumn(1),),
    )
    day, moment = dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4, 5, 678901)
    wide = Decimal("0.100000000000000001")
    values = [
        (1, 5, Decimal("0.05"), wide, 0.05, "a", day, moment, moment.replace(tzinfo=dt.UTC), b"abcd", True),
        (2, -5, Decimal("0.06"), Decimal("0.1"), math.nan, "é", day + dt.timedelta(1), moment, None, b"", False),
        (3, None, None, None, None, None, None, None, None, None, None),
        (2**53 + 1, 2**31 - 1, Decimal("-9.99"), -wide, -0.0, "", day, None, moment.replace(tzinfo=dt.UTC), b"\x00", True),
        (2**53, 0, Decimal("1234567890.12"), Decimal(12345678901234567890), math.inf, "B", None, moment, None, b"ab", None),
    ]  # fmt: skip
    data = pa.table([list(column) for column in zip(*values, strict=True)], schema=arrow_schema(schema))
    frame = spark.createDataFrame(data)
    numbers = [
        "0.05",
        "0.055",
        "5",
        "-5",
        "2.5",
        "9007199254740992",
        "0.100000000000000001",
        "0.1",
        "1234567890.12",
        "1e2",
    ]
    cases = [(c, op, text, text) for c in ("id", "i", "m", "w", "f") for op in OPS for text in numbers]
    draw = random.Random(SEED)
    for _ in range(300):  # at, beside and far from what is there, with many digits and few
        c = draw.choice(["id", "i", "m", "w", "f"])
        value = draw.choice([v for v in data[c].to_pylist() if v is not None and math.isfinite(v)])
        beside = [0, 1, -1, Decimal("0.5"), Decimal("1e-17"), Decimal("-1e-18"), Decimal(draw.randrange(10**9)) / 10**6]
        number = Decimal(repr(value) if isinstance(value, float) else value) + draw.choice(beside)
        cases.append((c, draw.choice(OPS), f"{number:f}", f"{number:f}"))
    cases += [
        ("f", op, f'"{word}"', f"double('{word}')") for op in OPS for word in ("NaN", "Infinity", "-Infinity", "0.0")
    ]
    cases += [("m", op, f'"{text}"', text) for op in OPS for text in ("0.05", "0.055", "-9.99")]
    cases += [("s", op, json.dumps(text), f"'{text}'") for op in OPS for text in ("a", "é", "", "b")]
    cases += [
        ("d", op, f'"{text}"', f"DATE'{text}'") for op in OPS for text in ("2026-01-02", "2026-01-03", "1970-01-01")
    ]
    stamps = ("2026-01-02T03:04:05.678901", "2026-01-02T03:04:05.678902")
    cases += [("t", op, f'"{text}"', f"TIMESTAMP_NTZ'{text}'") for op in OPS for text in stamps]
    cases += [("z", op, f'"{text}+00:00"', f"TIMESTAMP'{text}+00:00'") for op in OPS for text in stamps]
    cases += [("y", op, f'{{"hex": "{text}"}}', f"X'{text}'") for op in OPS for text in ("61626364", "00", "")]
    cases += [("o", op, text, text) for op in OPS for text in ("true", "false")]
    cases += [(c, op, "null", "null") for c in columns for op in OPS]
    lists = [("m", "0.05, null, 7"), ("f", "0.05, 1"), ("id", "1, 2.5, null"), ("s", '"a", null'), ("i", "null")]
    cases += [(c, "in", f"[{items}]", "(" + items.replace('"', "'") + ")") for c, items in lists]
    cases += [(c, op, "null", "") for c in columns for op in ("is null", "is not null")]
    spark_says = frame.select(*(f.expr(f"coalesce({c} {op} {sql}, false)") for c, op, _, sql in cases)).toArrow()
    for (c, op, text, sql), theirs in zip(cases, spark_says.columns, strict=True):
        options = parse_options({"endpoint": "x", "table": "t", "filters": f'[["{c}", "{op}", {text}]]'})
        ((_, _, literal),) = where_of(schema, options.filters)
        ours = bind(predicate(c, op, literal), schema.column(c))(data[c].combine_chunks())
        assert list(ours) == theirs.to_pylist(), (c, op, text, sql)
    # the native client's literals: Python floats are doubles, as they are in Spark
    floats = [0.05, 0.055, 0.1, 2.5, float(2**53), 1234567890.12, -0.0, math.nan, math.inf]
    pairs = [(c, op, number) for c in ("id", "i", "m", "w", "f") for op in OPS for number in floats]
    words = {"=": "__eq__", "!=": "__ne__", "<": "__lt__", "<=": "__le__", ">": "__gt__", ">=": "__ge__"}
    tests = [f.coalesce(getattr(f.col(c), words[op])(f.lit(number)), f.lit(False)) for c, op, number in pairs]
    for (c, op, number), theirs in zip(pairs, frame.select(*tests).toArrow().columns, strict=True):
        ours = bind(predicate(c, op, number), schema.column(c))(data[c].combine_chunks())
        assert list(ours) == theirs.to_pylist(), (c, op, number)
    # and through a cluster
    db.create_table(name, {"id": "int8", "l_discount": "decimal(12,2)"}, primary_key="id")
    db.upsert(name, [{"id": n, "l_discount": Decimal(n) / 100} for n in range(10)])
    for literal in (0.05, "0.05"):
        found = load(name, filters=json.dumps([["l_discount", "=", literal]]), maxStaleness="0s")
        assert [row.id for row in found.collect()] == [5]
    assert db.scan(name, where=[("l_discount", "=", 0.05)]).num_rows == 1
