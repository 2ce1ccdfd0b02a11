"""A Spark session that works on a machine with nothing but pip.

`session()` picks a Java (`java.py`), makes workers use this very Python, keeps a local session on loopback, and leaves
out what a program in a terminal does not want: the web console, the progress bar, the log below errors. Every choice is
a plain Spark setting that `config` overrides. A session that exists already is returned as it is: Spark has one per
process.

The `slackwater` format needs no registration: Spark finds `pyspark_slackwater` by itself on first use.
"""

from __future__ import annotations

import atexit
import os
import shutil
import socket
import sys
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.errors import UsageError
from slackwater.spark.java import find_java
from slackwater.spark.threads import prepare

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import SparkSession

LOOPBACK = "127.0.0.1"
_LOGGING = Path(__file__).with_name("log4j2.properties")
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    # Quiet from the first line on: `spark.log.level` counts only once the JVM has said good morning.
    "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={_LOGGING.as_uri()}",
    "spark.driver.memory": "2g",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
_LOCAL = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.shuffle.partitions": "4",
}
_SOCKET_NAME_BYTES = len("/.00000000-0000-0000-0000-000000000000.sock")
"""What Spark adds to the directory of its sockets."""
_SOCKET_PATH_MAX = 100
"""Systems allow 104 to 108 bytes."""


def session(
    *,
    app: str = "slackwater",
    master: str = "local[*]",
    remote: str | None = None,
    config: Mapping[str, object] | None = None,
) -> SparkSession:
    """A Spark session; `remote` (such as `sc://host:15002` or `local`) makes it a Spark Connect client.

    Args:
        app: Its name in Spark's own records.
        master: Where it runs: `local[4]`, `local-cluster[2,1,1024]`, `spark://host:7077`, …
        remote: A Spark Connect server to use instead of a master.
        config: Spark settings; they override ours.
    """
    try:
        from pyspark.sql import SparkSession as Sessions
    except ImportError:
        raise UsageError("Spark is not installed; run `pip install slackwater[spark]`") from None
    if remote is None or remote.startswith("local"):
        _prepare_process(local=(remote or master).startswith("local"))
    settings = _settings(master=master, remote=remote, config=config or {})
    builder = Sessions.builder.appName(app)
    builder = builder.remote(remote) if remote is not None else builder.master(master)
    for name, value in settings.items():
        builder = builder.config(name, value)
    return prepare(builder.getOrCreate())


def _prepare_process(*, local: bool) -> None:
    """What Spark's launcher reads from the environment; it starts a JVM from this process."""
    os.environ["JAVA_HOME"] = str(find_java().home)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if local:
        os.environ.setdefault("SPARK_LOCAL_IP", LOOPBACK)


def _settings(*, master: str, remote: str | None, config: Mapping[str, object]) -> dict[str, str]:
    """Ours, then the caller's. A server that runs already has its own: a client may only set what is its own."""
    chosen: dict[str, str] = {}
    if remote is None or remote.startswith("local"):
        chosen |= _DEFAULTS
        if (remote or master).startswith("local"):
            chosen |= _LOCAL
            chosen |= _socket_files()
    return chosen | {name: _text(value) for name, value in config.items()}


@cache
def _socket_files() -> dict[str, str]:
    """Settings by which rows pass from Python workers to a JVM on this machine through files that are sockets, not TCP.

    They lie in a directory of this user's own, which goes when the process ends: Spark asks for no password on them.
    """
    if not hasattr(socket, "AF_UNIX"):
        return {}
    directory = tempfile.mkdtemp(prefix="slackwater-spark-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    if len(os.fsencode(directory)) + _SOCKET_NAME_BYTES > _SOCKET_PATH_MAX:
        return {}
    return {
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": directory,
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
