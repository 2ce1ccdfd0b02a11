"""One connection to a cluster for each process that works for Spark.

A Spark job is many processes: the driver's planner, a worker for every running task, forked from a daemon and used again for
the next task. Each opens a connection when it first needs one and keeps it, so that a hundred small tasks in a row cost one
handshake. A connection belongs to the process that opened it: after a fork the child opens its own.

Nothing is closed on purpose: a worker is killed when Spark has no more use for it, and the cluster forgets it.

Spark's Python daemon collects garbage after every task of a worker that it will use again, and walks through every object
there is: with Spark's own imports, Arrow and numpy loaded that takes about 60 ms a task, more than reading a small partition.
What was imported is not garbage. So the first of our work in a worker takes it out of the collector's sight (`freeze_heap`).
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING

from slackwater.client import connect
from slackwater.spark import floors

if TYPE_CHECKING:
    from slackwater.client import Database
    from slackwater.clock.timestamp import Timestamp
    from slackwater.spark.options import Options

CONNECTIONS_MAX = 8
"""Clusters (or users) that one process stays connected to."""

_open: dict[tuple[int, str, str | None, str | None, float, str | None], Database] = {}

_settled: set[int] = set()


def freeze_heap() -> None:
    """Once per worker: nothing that lives by now is looked at by later collections. Not for the user's own process."""
    if os.getpid() not in _settled:
        _settled.clear()
        _settled.add(os.getpid())
        gc.collect()
        gc.freeze()


def database(options: Options) -> Database:
    """The connection that these options name; it sees what this application wrote."""
    found = _connected(options)
    written = floors.floor(found.cluster_id)
    if written > found.session_floor:
        found.raise_session_floor(written)
    return found


def wrote(db: Database, ts: Timestamp) -> None:
    """Let every later read of this application see what was written at `ts`."""
    floors.told(db.cluster_id, ts)


def _connected(options: Options) -> Database:
    key = (os.getpid(), options.endpoint, options.certs, options.user, options.timeout, options.locality)
    found = _open.get(key)
    if found is None:
        for old in [k for k in _open if k[0] != key[0]]:
            del _open[old]  # the parent's: its loop did not come along
        while len(_open) >= CONNECTIONS_MAX:
            _open.pop(next(iter(_open))).close()
        found = connect(
            options.endpoint,
            certs=options.certs,
            user=options.user,
            timeout=options.timeout,
            locality=options.locality,
        )
        _open[key] = found
    return found
