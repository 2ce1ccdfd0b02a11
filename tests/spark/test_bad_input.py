"""What users get wrong is one clear error, and nothing is half-written.

Most cases go to the source as Spark would call it, against the cluster but without Spark: it is the same code, and a Spark
worker that raised is thrown away, which makes every such case cost the start of a process. Two go all the way.
"""

from __future__ import annotations

import pyarrow as pa
import pytest
from pyspark.sql import types as st

from slackwater.errors import SlackwaterError
from slackwater.spark.source import Source
from slackwater.spark.types import spark_schema

TYPES = {"bigint": st.LongType(), "string": st.StringType(), "double": st.DoubleType()}


@pytest.fixture(scope="module")
def table(db):
    db.create_table("plain", {"id": "int8", "v": "text not null", "n": "int8"}, primary_key=["id"])
    db.upsert("plain", [{"id": 1, "v": "a"}])
    return db.table("plain")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"versionAsOff": "1"}, "there is no option 'versionasoff'; did you mean versionAsOf"),
        ({"versionAsOf": "1", "timestampAsOf": "2026-01-01"}, "versionAsOf and timestampAsOf exclude each other"),
        ({"timestampAsOf": "2200-01-01"}, "the future cannot be read"),
        ({"versionAsOf": "1024"}, "plain"),
        ({"columns": "id,nope"}, "has no column 'nope'"),
        ({"operation": "upsert"}, "the option operation is for a write"),
        ({"endpoint": "http://x"}, "begins with slackwater://"),
        ({"endpoint": "slackwater://127.0.0.1:9"}, "no node of the cluster answers"),
        ({"endpoint": "slackwater://db.example:7400"}, "is reached with certificates"),
        ({"certs": "/nowhere"}, "is no directory of certificates"),
        ({"path": "nothing"}, "nothing"),
        ({"filters": '[["id", "~", 1]]'}, "unknown operator '~'"),
        ({"filters": '[["nope", "=", 1]]'}, "has no column 'nope'"),
        ({"filters": '[["id", "=", "x"]]'}, "cannot read 'x' as int for column id"),
        ({"readChangeFeed": "true"}, "a batch of changes needs a start"),
        ({"readChangeFeed": "true", "startingTimestamp": "2200-01-01"}, "is the start in the future"),
    ],
)
def test_reads(url, table, options, said):
    with pytest.raises(SlackwaterError) as error:
        read_all({"endpoint": url, "path": "plain", **options})
    assert said in str(error.value)


def read_all(options):
    """What Spark does, in one process."""
    source = Source(options)
    reader = source.reader(source.schema())
    return [batch for part in reader.partitions() for batch in reader.read(part)]


@pytest.mark.parametrize(
    ("columns", "options", "said"),
    [
        ("v string", {}, "the frame has no column id, which table plain needs for upsert"),
        ("id bigint", {}, "the frame has no column v, which table plain needs for upsert"),
        ("id bigint, v string, nope string", {}, "has no column 'nope'"),
        ("id string, v string", {}, "does not take string; cast it in Spark, to bigint"),
        ("id bigint, v string, n double", {}, "does not take double"),
        ("id bigint, v string", {"versionAsOf": "1"}, "future cannot be read|did not exist|is for a snapshot read"),
        ("id bigint, v string", {"operation": "replace"}, "is none of upsert, insert, insertIgnore, delete"),
        ("id bigint, v string", {"txnAppId": "x"}, "belong together"),
        ("id bigint, v string", {"atomic": "false", "txnAppId": "x", "txnVersion": "1"}, "needs atomic=true"),
    ],
)
def test_writes(db, url, table, columns, options, said):
    pairs = [pair.split() for pair in columns.split(", ")]
    schema = st.StructType([st.StructField(name, TYPES[kind]) for name, kind in pairs])
    with pytest.raises(SlackwaterError, match=said):
        Source({"endpoint": url, "path": "plain", **options}).writer(schema, overwrite=False)
    assert db.scan("plain").num_rows == 1


def test_rows_that_do_not_fit_are_refused_in_the_task(db, url, table):
    writer = Source({"endpoint": url, "path": "plain"}).writer(spark_schema(table), overwrite=False)
    for rows, said in [
        ({"id": [5, 5], "v": ["a", "b"]}, "same primary key"),
        ({"id": [5, None], "v": ["a", "b"]}, "NOT NULL"),
        ({"id": [5], "v": pa.array([None], pa.string())}, "NOT NULL"),
    ]:
        with pytest.raises(SlackwaterError, match=said):
            writer.write(iter([pa.record_batch(rows)]))
    assert db.scan("plain").num_rows == 1


def test_spark_shows_the_error_as_it_is(load, save, spark, url, table):
    with pytest.raises(Exception, match="there is no option 'versionasoff'; did you mean versionAsOf"):
        load("plain", versionAsOff="1")
    with pytest.raises(Exception, match="this source has no overwrite"):
        spark.range(1).write.format("slackwater").option("endpoint", url).mode("overwrite").save("plain")
