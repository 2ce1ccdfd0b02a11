"""Nodes, a log and customers as processes on this machine, on loopback, ended by process id whatever happens.

    with LocalCluster(directory, log="sqlite") as cluster:
        cluster.make()                       three nodes, one cluster
        cluster.kill(1)                      kill -9 of the second
        cluster.start(1)                     and back again, with the same store

Everything goes through `slackwater start` and `slackwater init`, as a user would run them. Journals are beside the stores.
Python gets `-P`: a file `nats.py` or `random.py` in the directory where the demo is run is not imported.
Each process has a session of its own: a Ctrl-C in the terminal is heard by the demo alone, which then ends them in order.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from typing import IO, TYPE_CHECKING

from slackwater.demo.shop import REGIONS
from slackwater.errors import UnavailableError
from slackwater.runtime.ports import free_ports

if TYPE_CHECKING:
    from pathlib import Path

READY_S = 60.0
STOP_S = 30.0
POLL_S = 0.1
SETTINGS = ("range.max_bytes=4194304", "range.min_bytes=0", "queue.interval=2")
"""Small ranges, looked at often, so that a small shop soon has several."""


class LocalCluster:
    """One node a region."""

    def __init__(self, directory: Path, *, log: str) -> None:
        self.directory = directory
        self.addresses = [f"127.0.0.1:{port}" for port in free_ports(len(REGIONS))]
        self.url = "slackwater://" + ",".join(self.addresses)
        self._log = log
        self._log_url = f"sqlite://{directory / 'log.db'}"
        self._nodes: list[subprocess.Popen[bytes] | None] = [None] * len(REGIONS)
        self._others: list[subprocess.Popen[bytes]] = []
        self._servers: list[subprocess.Popen[bytes]] = []
        self._files: list[IO[bytes]] = []

    def __enter__(self) -> LocalCluster:
        return self

    def __exit__(self, *exc: object) -> None:
        self.end()

    # --- all of it

    def make(self) -> None:
        """Start the log's servers if it has any, then three nodes, and make them one cluster."""
        if self._log == "nats":
            self._log_url = self._start_nats()
        for index in range(len(self._nodes)):
            self._launch(index)
        self.run("init", "--host", self.addresses[0])
        self.wait_live(len(self._nodes))

    def wait_live(self, count: int) -> None:
        """Return once so many nodes know each other to be live."""
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            with contextlib.suppress(subprocess.CalledProcessError, json.JSONDecodeError):
                nodes = json.loads(self.run("status", "--host", self.addresses[0], "--json"))
                if sum(node["state"] == "live" for node in nodes) >= count:
                    return
            time.sleep(POLL_S)
        raise UnavailableError("the nodes did not come up; their journals say why", directory=str(self.directory))

    def run(self, *arguments: str) -> str:
        """A `slackwater` command; returns what it printed."""
        command = [sys.executable, "-P", "-m", "slackwater.cli.main", *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=self.directory)
        return done.stdout

    def end(self) -> None:
        """End everything gracefully, in this order: who uses nodes, nodes, the log's servers."""
        _stop(self._others)
        _stop([node for node in self._nodes if node is not None])
        _stop(self._servers)
        self._nodes = [None] * len(self._nodes)
        self._others.clear()
        self._servers.clear()
        for file in self._files:
            file.close()

    # --- one process

    def start(self, index: int) -> None:
        """Start a node that was killed; it is serving when this returns."""
        self._launch(index)
        self.wait_live(len(self._nodes))

    def kill(self, index: int) -> None:
        """End a node as a power cut would: `kill -9`."""
        node = self._nodes[index]
        if node is not None:
            os.kill(node.pid, signal.SIGKILL)
            node.wait()
            self._nodes[index] = None

    def spawn(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        """Some other process, ended with the cluster; its output is in `name.journal`."""
        journal = self._journal(name)
        process = subprocess.Popen(
            command, stdout=journal, stderr=journal, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._others.append(process)
        return process

    def forget(self, process: subprocess.Popen[bytes]) -> None:
        """A spawned process has ended by itself."""
        self._others.remove(process)

    def _launch(self, index: int) -> None:
        name = f"n{index + 1}"
        command = [sys.executable, "-P", "-m", "slackwater.cli.main", "start"]
        command += ["--store", str(self.directory / name), "--listen", self.addresses[index], "--insecure"]
        command += ["--join", ",".join(self.addresses), "--log", self._log_url, "--http", "none"]
        command += ["--locality", f"region={REGIONS[index]}"]
        for setting in SETTINGS:
            command += ["--set", setting]
        journal = self._journal(name)
        self._nodes[index] = subprocess.Popen(
            command, stdout=journal, stderr=journal, stdin=subprocess.DEVNULL, start_new_session=True
        )
        deadline = time.monotonic() + READY_S
        host, port = self.addresses[index].split(":")
        while time.monotonic() < deadline:
            with contextlib.suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
                return
            if self._nodes[index].poll() is not None:  # type: ignore[union-attr]  # just made
                break
            time.sleep(POLL_S)
        raise UnavailableError(f"node {name} did not start; see its journal", journal=str(self.directory / name))

    def _start_nats(self) -> str:
        store = self.directory / "nats"
        command = [sys.executable, "-P", "-m", "slackwater.cli.main", "nats", "--servers", "3", "--dir", str(store)]
        process = subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=self._journal("nats"),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._servers.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            text = line.decode().strip()
            if "nats://" in text:
                return text[text.index("nats://") :].split()[0]
        raise UnavailableError("the NATS servers did not start; see nats.journal")

    def _journal(self, name: str) -> IO[bytes]:
        file = (self.directory / f"{name}.journal").open("ab")
        self._files.append(file)
        return file


def _stop(processes: list[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        process.terminate()
    for process in processes:
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
