"""Slackwater tables in Spark.

    spark = slackwater.spark.session()                                    a session, with no Java on the machine
    spark.read.format("slackwater").option("endpoint", url).load("accounts")                    a table at one timestamp
    slackwater.spark.snapshot(spark, url, tables=["accounts", "ledger"])["ledger"]              several at the same one
    spark.readStream.format("slackwater").option("endpoint", url).option("readChangeFeed", True).load("accounts")
    df.write.format("slackwater").option("endpoint", url).mode("append").save("accounts")       one commit, exactly once

    java, session, threads     a JVM from the machine or from pip, and a session that every thread can use
    options, names, types, offsets   what users write, what Spark demands, where batches end: pure
    floors            what this application wrote, for what it reads next
    plan, reading, streaming, writing, snapshots, source   the format

Importing this package imports no Spark; `session()` does.
"""

from slackwater.spark.session import session
from slackwater.spark.snapshots import SparkSnapshot, snapshot
from slackwater.spark.threads import prepare

__all__ = ["SparkSnapshot", "prepare", "session", "snapshot"]
