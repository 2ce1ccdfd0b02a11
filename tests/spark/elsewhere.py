"""A small job for a Spark that is not the test's own: `python -m tests.spark.elsewhere KIND URL TABLE CHECKPOINT`.

Kinds: `cluster` (two executors in processes of their own), `connect` (a Spark Connect server). Prints one JSON object.
"""

from __future__ import annotations

import json
import sys

import slackwater.spark
from slackwater.spark.java import find_java
from tests.spark.running import run

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
    total = frame.selectExpr("count(*)", "sum(v)").first()
    copy = frame.selectExpr("id + 1000 as id", "v").where("id >= 1000 and id < 1010")
    copy.write.format("slackwater").option("endpoint", url).mode("append").save(table)
    sink = feed.selectExpr("id", "v").writeStream.format("slackwater").option("endpoint", url)
    run(sink.option("checkpointLocation", checkpoint), f"{table}_copy")
    partitions = spark.sparkContext.defaultParallelism if kind == "cluster" else 0
    print(json.dumps({"java": java, "total": list(total), "parallelism": partitions}))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
