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

import msgspec
import pytest

import slackwater
from slackwater.runtime.framing import FrameParser
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


REFUSED = 400 + 200
"""What a peer has at once (`patience.BURST_S`), and two seconds' worth."""


def test_a_peer_whose_calls_are_all_refused_hears_so_each_time_and_its_neighbor_is_served_meanwhile(tmp_path):
    call = [wire.encode(wire.Request(n, "no.method", 0, 0, msgspec.Raw(b"\x80"))) for n in range(1, REFUSED + 1)]
    parser, heard = FrameParser(frame_bytes_max=1 << 20), []

    def hear(sock: socket.socket) -> None:
        for frame in parser.feed(sock.recv(1 << 16)):
            message = wire.decode_from_server(frame)
            if not isinstance(message, wire.Hello):
                heard.append((message.id, message.error))

    with node(tmp_path) as (_, rpc, http), slackwater.connect(f"slackwater://127.0.0.1:{rpc}", timeout=30) as db:
        db.create_table("t", {"id": "int8", "n": "int8"}, primary_key=["id"])
        with socket.create_connection(("127.0.0.1", rpc)) as peer:
            peer.sendall(b"".join(struct.pack(">I", len(frame)) + frame for frame in [HELLO, *call]))
            while len(heard) <= 400:
                hear(peer)
            db.upsert("t", [{"id": 1, "n": 1}])
            peer.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                hear(peer)
            assert len(heard) < REFUSED, "the neighbor's write was acknowledged before the last call was refused"
            peer.setblocking(True)
            while len(heard) < REFUSED:
                hear(peer)
        assert heard == [(n, "ProtocolError") for n in range(1, REFUSED + 1)]
        assert db.get("t", 1) == {"id": 1, "n": 1}
        with urllib.request.urlopen(f"http://127.0.0.1:{http}/metrics", timeout=5) as page:
            held = [
                line
                for line in page.read().decode().splitlines()
                if line.startswith("slackwater_rpc_held_seconds_total")
            ]
        assert float(held[0].split()[-1]) > 0
