"""A node with few descriptors, besieged by silent sockets and by frames that never end: it serves on, in bounded memory."""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
import subprocess
import sys
import time
import urllib.request
from typing import TYPE_CHECKING

import pytest

import slackwater
from slackwater.runtime.ports import free_ports
from slackwater.runtime.rpc import wire
from slackwater.runtime.rpc.versions import SUPPORTED
from tests.fuzz.judge import resident_mb

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.integration]

DESCRIPTORS = 256
SOCKETS = 600
HELLO = wire.encode(wire.Hello(wire.MAGIC, SUPPORTED.newest, "", 0, 6000))


@contextlib.contextmanager
def node(directory: Path):
    rpc, http = free_ports(2)
    command = [sys.executable, "-m", "slackwater.cli.main", "start", "--store", str(directory / "n1"), "--insecure"]
    command += ["--listen", f"127.0.0.1:{rpc}", "--http", f"127.0.0.1:{http}"]

    def few() -> None:
        resource.setrlimit(resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))

    with (directory / "journal").open("wb") as journal:
        process = subprocess.Popen(command, stdout=journal, stderr=journal, preexec_fn=few)
    try:
        wait_until(lambda: answers(http))
        init = [sys.executable, "-m", "slackwater.cli.main", "init", "--host", f"127.0.0.1:{rpc}"]
        subprocess.run(init, check=True, capture_output=True)
        yield process.pid, rpc, http
    finally:
        process.kill()
        process.wait()
    assert "Traceback" not in (directory / "journal").read_text()


def answers(http: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/health/live", timeout=5) as answer:
            return answer.status == 200
    except OSError:
        return False


def wait_until(condition) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it did not come to pass"
        time.sleep(0.1)


def push(sock: socket.socket, size: int) -> None:
    """Send as much of an unfinished frame as the node takes, for a moment."""
    patience = time.monotonic() + 0.3
    while size and time.monotonic() < patience:
        try:
            size -= sock.send(b"x" * min(size, 1 << 20))
        except BlockingIOError:
            time.sleep(0.002)
        except OSError:
            return


def test_silent_sockets_beyond_the_descriptors_keep_nobody_out(tmp_path):
    with node(tmp_path) as (_, rpc, http), contextlib.ExitStack() as stack:
        db = stack.enter_context(slackwater.connect(f"slackwater://127.0.0.1:{rpc}"))
        db.create_table("t", {"id": "int8"}, primary_key=["id"])
        for port in (rpc, http):
            for _ in range(SOCKETS // 2):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=30))
        db.upsert("t", [{"id": 1}])
        with slackwater.connect(f"slackwater://127.0.0.1:{rpc}") as newcomer:
            newcomer.upsert("t", [{"id": 2}])
            assert len(newcomer.scan("t")) == 2
        assert answers(http)


def test_unfinished_frames_take_no_more_than_their_budget(tmp_path):
    with node(tmp_path) as (pid, rpc, _), contextlib.ExitStack() as stack:
        with slackwater.connect(f"slackwater://127.0.0.1:{rpc}") as db:
            db.create_table("t", {"id": "int8"}, primary_key=["id"])
        before = resident_mb(pid)
        for greet in (False, True):
            for _ in range(40):
                sock = stack.enter_context(socket.create_connection(("127.0.0.1", rpc), timeout=30))
                sock.setblocking(False)
                with contextlib.suppress(OSError):
                    sock.send(struct.pack(">I", len(HELLO)) + HELLO if greet else b"")
                    sock.send(struct.pack(">I", 16 << 20))
                push(sock, (16 << 20) - 1)
        assert resident_mb(pid) - before < 200, "40 × 16 MiB were held"
        with slackwater.connect(f"slackwater://127.0.0.1:{rpc}") as db:
            db.upsert("t", [{"id": 1}])
