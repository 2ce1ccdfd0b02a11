"""Read your writes within a Spark application: what its driver was told of, for the process that reads next.

A `save()` ends in one process of the driver (the one that commits), and a `load()` begins in another (the one that plans), each
with a session of its own with the cluster. So that the second sees what the first wrote, the timestamp of the commit is
kept where every Python process of the driver finds it: in a small file per cluster, in the directory that Spark makes for
the application and removes with it. The process that reads raises its session's floor to it (`client.session`).

    save()  ─► commit process ── told(cluster, ts) ──► <Spark's local directory>/slackwater/<cluster>
    load()  ─► plan process   ── floor(cluster) ◄──────────┘        snapshot at or above it

Executors on other machines have other directories and need no floor: a task is told the timestamp to read at. A process
that Spark did not start (a test, a tool) keeps the floor for itself.
"""

from __future__ import annotations

import fcntl
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MAX, MIN, Timestamp

if TYPE_CHECKING:
    from pyspark.sql import DataFrameReader

QUESTION = "sessionFloor"
"""The option that asks for the floor instead of a table."""
LOCAL_DIRECTORIES = "SPARK_LOCAL_DIRS"
"""What Spark tells every Python process that it starts, separated by commas."""
CLUSTERS_MAX = 64
"""Clusters whose floors a process remembers that has no directory."""
_NUMBER = re.compile(rb"\d{1,19}")

_own: dict[str, Timestamp] = {}


def told(cluster: str, ts: Timestamp) -> None:
    """Remember that this application wrote up to `ts`; a lower timestamp changes nothing."""
    home = directory()
    if home is None:
        if cluster in _own or len(_own) < CLUSTERS_MAX:
            _own[cluster] = max(ts, _own.get(cluster, MIN))
        return
    home.mkdir(mode=0o700, exist_ok=True)
    with (home / _file(cluster)).open("a+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.seek(0)
        if ts > _parsed(file.read()):
            file.truncate(0)
            file.write(b"%d" % ts)


def floor(cluster: str) -> Timestamp:
    """The highest timestamp that this application was told of; `MIN` if none."""
    home = directory()
    if home is None:
        return _own.get(cluster, MIN)
    try:
        with (home / _file(cluster)).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH)
            return _parsed(file.read())
    except FileNotFoundError:
        return MIN


def asked_of(reader: DataFrameReader) -> Timestamp:
    """The floor of the application that a reader with our format and its connection options belongs to.

    The user's own process does not know the directory, and with Spark Connect it may be on another machine. So it asks a
    process that plans: the answer is the name of the only column of a frame that is never read.
    """
    (name,) = reader.option(QUESTION, "true").load("any").columns
    return Timestamp(int(name))


def directory() -> Path | None:
    """The directory of floors of this process, if Spark started it and the directory is there."""
    first = os.environ.get(LOCAL_DIRECTORIES, "").split(",")[0]
    return Path(first) / "slackwater" if first and Path(first).is_dir() else None


def _file(cluster: str) -> str:
    return re.sub(r"[^A-Za-z0-9-]", "_", cluster) + ".floor"


def _parsed(text: bytes) -> Timestamp:
    return Timestamp(min(MAX, int(text))) if _NUMBER.fullmatch(text) else MIN
