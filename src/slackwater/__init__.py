"""Slackwater: a replicated, transactional, multi-version table store that answers questions about time.

Slack water is the moment between tides when nothing moves. A closed timestamp is exactly that: the time at and
below which nothing in a range will ever move again. Everything here is built on knowing which times are finished.

The layers, lowest first; each imports only what stands below it (checked by import-linter):

    runtime   the only door to the world: clocks, network, tasks, randomness, disk
    clock     64-bit timestamps and the hybrid logical clock
    model     shared nouns: values, schemas, spans, ranges, transactions
    codec     keys, rows and Arrow: a row as bytes and as columns
    config    zones, and settings of the cluster as records
    protocol  every message that crosses a wire or the log
    storage   engines (RocksDB and its in-memory twin) and multi-version reads and writes on them
    log       ordered logs: memory, SQLite, NATS JetStream
    closedts  which timestamps are finished
    replica   one range: evaluate, propose, apply
    routing   which replica gets a request
    txn       serializable transactions
    jobs      durable jobs
    protect   protected timestamps; feeds: change feeds of ranges; catalog: tables over time
    gateway   what a node does for clients
    server    one node, put together
    cli       the commands people type
    sim       the simulator

Beside them stand `client`, `spark`, `changefeed` and `demo`. docs/architecture.md has the drawing.

For applications: `connect` (a running cluster), `open` (a whole node in this process), `aconnect` (the same as `connect`, to
be awaited). Both import what they need when they are called: `import slackwater` alone costs next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager
    from pathlib import Path

    from slackwater.client import AsyncDatabase, Database

__version__ = "0.1.0"
__all__ = ["__version__", "aconnect", "connect", "open"]


def connect(
    url: str,
    *,
    certs: str | Path | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    locality: str | None = None,
    session_floor: int | None = None,
) -> Database:
    """A session with a cluster: `connect("slackwater://h1:7400,h2:7400")`. Close it, or use it in a `with`.

    Args:
        url: one or more nodes; options may follow, as in `?user=ada&certs=DIR&timeout=10s&locality=region=eu`.
        certs: the directory of certificates (`slackwater cert`); without it only loopback addresses are dialed.
        user: whose certificate to present; default root.
        timeout: how long one operation may take as a whole, in seconds or as "500ms"; default 30 s. (docs/client.md)
        locality: where this client is, e.g. "region=eu,zone=a"; parallel reads prefer what is near.
        session_floor: `session_floor` of another session: reads of the present see everything up to there.
    """
    from slackwater.client import connect as connect_to

    return connect_to(url, certs=certs, user=user, timeout=timeout, locality=locality, session_floor=session_floor)


def aconnect(
    url: str,
    *,
    certs: str | Path | None = None,
    user: str | None = None,
    timeout: float | str | None = None,
    locality: str | None = None,
    session_floor: int | None = None,
) -> AbstractAsyncContextManager[AsyncDatabase]:
    """`connect` for asynchronous programs: `async with slackwater.aconnect(url) as db`."""
    from slackwater.client import aconnect as connect_to

    return connect_to(url, certs=certs, user=user, timeout=timeout, locality=locality, session_floor=session_floor)


def open(path: str | Path, *, listen: str = "", timeout: float | str | None = None) -> Database:  # noqa: A001 - as in sqlite and shelve
    """A whole node in this process, its data in a directory that is made if it is not there.

    Args:
        path: the data directory. One process at a time may have it open.
        listen: a loopback address such as "127.0.0.1:7400" to serve as well; without it no port is opened.
        timeout: how long one operation may take as a whole, in seconds or as "500ms"; default 30 s. (docs/client.md)
    """
    from slackwater.server.embedded import open_database

    return open_database(path, listen=listen, timeout=timeout)
