"""A small job for a Spark that is not the test's own: `python -m tests.spark.elsewhere KIND URL TABLE CHECKPOINT`.

Kinds: `cluster` (two executors in processes of their own), `connect` (a Spark Connect server). Prints one JSON object.

A task of the read fails at its first attempt; the stream is restarted with its last commit lost, into a table that would
refuse a row that came twice.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from pyspark.sql import functions as f

import slackwater.spark
from slackwater.spark.java import find_java
from tests.spark.running import lose_last_commit, run

SMALL = {"spark.log.level": "OFF", "spark.driver.memory": "1g", "spark.executor.memory": "512m"}


def main(kind: str, url: str, table: str, checkpoint: str) -> None:
    java = find_java().source
    spark = (
        slackwater.spark.session(master="local-cluster[2,1,1024]", config=SMALL)
        if kind == "cluster"
        else slackwater.spark.session(remote="local[2]", config=SMALL)
    )
    feed = spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", "true").load(table)
    frame = spark.read.format("slackwater").option("endpoint", url).option("maxStaleness", "0s")
    frame = frame.option("numPartitions", 4).load(table)
    retried = spark.conf.get("spark.task.maxFailures", "1") if kind == "connect" else "4"

    @f.udf("long", useArrow=False)
    def through(value):
        from pyspark import TaskContext

        context = TaskContext.get()
        if int(retried) > 1 and context.partitionId() == 1 and context.attemptNumber() == 0:
            raise RuntimeError("planned failure of a first attempt")
        return value

    total = frame.select("id", through("v").alias("v")).selectExpr("count(*)", "sum(v)").first()
    copy = frame.selectExpr("id + 1000 as id", "v").where("id >= 1000 and id < 1010")
    copy.write.format("slackwater").option("endpoint", url).mode("append").save(table)
    written = [
        spark.read.format("slackwater").option("endpoint", url).load(table).count(),
        slackwater.spark.snapshot(spark, url, tables=[table])[table].count(),
    ]
    sink = (
        feed.selectExpr("id", "v")
        .writeStream.format("slackwater")
        .option("endpoint", url)
        .option("operation", "insert")
    )
    sink = sink.option("checkpointLocation", checkpoint)
    run(sink, f"{table}_copy")
    more = spark.range(2000, 2010).selectExpr("id", "id as v")
    more.write.format("slackwater").option("endpoint", url).mode("append").save(table)
    lose_last_commit(Path(checkpoint))
    run(sink, f"{table}_copy")
    partitions = spark.sparkContext.defaultParallelism if kind == "cluster" else 0
    print(json.dumps({"java": java, "total": list(total), "parallelism": partitions, "written": written}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
