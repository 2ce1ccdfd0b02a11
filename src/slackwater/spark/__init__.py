"""Slackwater tables in Spark.

spark = slackwater.spark.session()                          a session, with no Java on the machine
spark.read.format("slackwater").option("endpoint", "slackwater://h1:7400").load("accounts")
"""

from slackwater.spark.session import session

__all__ = ["session"]
