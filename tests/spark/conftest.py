"""One cluster of three processes and one Spark session for all tests of a process; both are slow to start."""

from __future__ import annotations

import asyncio
import importlib.util
import itertools
import os
from typing import TYPE_CHECKING

import pytest

import slackwater
from tests.integration.cluster import Processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pyspark.sql import SparkSession

collect_ignore_glob = [] if importlib.util.find_spec("pyspark") else ["test_*.py"]
SETTINGS = {
    # Resolved timestamps half a second behind, so that streams move.
    "closed_timestamp.target_duration": 0.5,
    "closed_timestamp.side_transport_interval": 0.1,
    # A machine that also runs a JVM stalls now and then: nothing here is about failover.
    "liveness.duration": 6.0,
    "lease.duration": 6.0,
    "txn.expiration": 6.0,
    "rpc.heartbeat_timeout": 6.0,
    "liveness.dead_after": 60.0,
    "queue.check_interval": 0.0,
    "range.min_bytes": 0,
}


@pytest.hookimpl(tryfirst=True)  # before xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Every test here needs the session, so all of them go to one process."""
    for item in items:
        if "tests/spark/" in str(item.path):
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.integration)
            item.add_marker(pytest.mark.xdist_group("spark"))


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Processes]:
    """A running cluster; whoever kills a node starts it again."""
    directory = tmp_path_factory.mktemp("cluster")
    cluster = Processes(directory, nodes=3, log_url=f"sqlite://{directory}/log.db", settings=SETTINGS)
    try:
        asyncio.run(cluster.make_whole())
        yield cluster
    except BaseException:
        print(cluster.journals())
        raise
    finally:
        cluster.end_all()


@pytest.fixture(scope="session")
def url(cluster: Processes) -> str:
    """Where the cluster is."""
    return "slackwater://" + ",".join(cluster.addresses)


@pytest.fixture(scope="session")
def db(url: str) -> Iterator[slackwater.Database]:
    """A client of the cluster."""
    with slackwater.connect(url) as db:
        yield db


@pytest.fixture(scope="session")
def spark(url: str) -> Iterator[SparkSession]:
    """A session whose tasks may be tried three times."""
    import slackwater.spark

    os.environ.pop("SPARK_HOME", None)
    session = slackwater.spark.session(
        master="local[2,3]",
        config={"spark.log.level": "OFF", "spark.sql.shuffle.partitions": 2, "spark.driver.memory": "1g"},
    )
    yield session
    session.stop()


@pytest.fixture
def name() -> str:
    """A table name that no other test uses."""
    return f"t{next(_numbers)}"


@pytest.fixture
def load(spark: SparkSession, url: str) -> Callable:
    """`load(table, option=value, …)`."""

    def load(table: str, **options: object):
        reader = spark.read.format("slackwater").option("endpoint", url)
        for key, value in options.items():
            reader = reader.option(key, value)
        return reader.load(table)

    return load


@pytest.fixture
def save(url: str) -> Callable:
    """`save(frame, table, option=value, …)`."""

    def save(frame, table: str, **options: object) -> None:
        writer = frame.write.format("slackwater").option("endpoint", url).mode("append")
        for key, value in options.items():
            writer = writer.option(key, value)
        writer.save(table)

    return save


_numbers = itertools.count(1)
