"""The NATS log under TLS with passwords: a real server, a server that leaves TLS out, and what a node says of its URL."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time

import pytest

pytest.importorskip("nats")

from slackwater.errors import ConnectionLost
from slackwater.log import open_log
from slackwater.log.nats_server import find_binary
from slackwater.model.ids import RangeId
from slackwater.runtime.certs import create_ca, create_client, create_node
from slackwater.runtime.clock import RealClock
from slackwater.runtime.ports import free_ports
from slackwater.runtime.rng import RealRng
from slackwater.runtime.tasks import Scope
from slackwater.settings import Settings

pytestmark = pytest.mark.integration
SECRET = "hunter2"
READY_S = 60.0


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """One server that demands TLS, a client certificate and a password."""
    home = tmp_path_factory.mktemp("nats")
    create_ca(home)
    create_node(home, ["127.0.0.1"])
    create_client(home, "log")
    (port,) = free_ports(1)
    (home / "server.conf").write_text(
        f"""
listen: "127.0.0.1:{port}"
jetstream {{ store_dir: "{home / "data"}", sync_interval: always }}
tls {{ cert_file: "{home}/node.crt", key_file: "{home}/node.key", ca_file: "{home}/ca.crt", verify: true }}
authorization {{ user: ann, password: "{SECRET}" }}
"""
    )
    with (home / "log").open("wb") as out:
        process = subprocess.Popen([find_binary(), "-c", home / "server.conf"], stdout=out, stderr=out)
    deadline = time.monotonic() + READY_S
    while "Server is ready" not in (home / "log").read_text():
        assert time.monotonic() < deadline, (home / "log").read_text()
        assert process.poll() is None, (home / "log").read_text()
        time.sleep(0.05)
    (home / "auth").write_text(f"ann:{SECRET}\n")
    (home / "auth").chmod(0o600)
    yield home, f"127.0.0.1:{port}"
    process.kill()
    process.wait()


def options(home, *, cert=True, stream="s"):
    pair = f"&cert={home}/client.log.crt&key={home}/client.log.key" if cert else ""
    return f"?stream={stream}&replicas=1&sync_always=1&ca={home}/ca.crt{pair}"


@contextlib.asynccontextmanager
async def opened(url, patience=3.0):
    scope = Scope("test")
    settings = Settings({"log.append_timeout": patience})
    log = await open_log(url, clock=RealClock(), rng=RealRng(), scope=scope, settings=settings)
    try:
        yield log
    finally:
        await log.close()
        await scope.close()


@pytest.mark.parametrize("way", ["file", "url"])
def test_a_log_under_tls(server, way):
    home, address = server

    async def main():
        user = f"ann:{SECRET}@" if way == "url" else ""
        url = f"nats+tls://{user}{address}/{options(home)}" + ("" if user else f"&auth={home}/auth")
        async with opened(url) as log:
            before = await log.head(RangeId(1))
            assert await log.append(RangeId(1), [b"x"]) > before
            assert SECRET not in f"{log.status()} {log.identity()}"

    asyncio.run(main())


@pytest.mark.parametrize("wrong", ["password", "plain", "no certificate", "another authority"])
def test_what_the_server_or_the_client_refuses(server, wrong, tmp_path):
    home, address = server
    create_ca(tmp_path)
    url = {
        "password": f"nats+tls://ann:{SECRET}x@{address}/{options(home)}",
        "plain": f"nats://ann:{SECRET}@{address}/?stream=s&replicas=1&sync_always=1",
        "no certificate": f"nats+tls://ann:{SECRET}@{address}/{options(home, cert=False)}",
        "another authority": f"nats+tls://ann:{SECRET}@{address}/{options(home)}".replace(
            f"ca={home}", f"ca={tmp_path}"
        ),
    }[wrong]

    async def main():
        with pytest.raises(ConnectionLost) as raised:
            async with opened(url, patience=2.0):
                pass
        assert SECRET not in str(raised.value)

    asyncio.run(main())


def test_a_server_in_between_that_leaves_tls_out_hears_no_password():
    heard = bytearray()

    async def answer(reader, writer):
        writer.write(b'INFO {"server_id":"x","version":"2.11","max_payload":1048576,"auth_required":true}\r\n')
        with contextlib.suppress(OSError):
            heard.extend(await reader.read())
        writer.close()

    async def main():
        fake = await asyncio.start_server(answer, "127.0.0.1", 0)
        port = fake.sockets[0].getsockname()[1]
        with pytest.raises(ConnectionLost, match="does not ask for TLS"):
            async with opened(f"nats+tls://ann:{SECRET}@127.0.0.1:{port}/?stream=s&sync_always=1", patience=1.0):
                pass
        fake.close()
        assert SECRET.encode() not in heard
        assert b"CONNECT" not in heard

    asyncio.run(main())


def test_a_node_never_tells_the_password(server, tmp_path):
    """Over a log that works and over ones that do not: journal, errors, usage."""
    home, address = server
    (port,) = free_ports(1)
    common = ["--store", "n1", "--listen", f"127.0.0.1:{port}", "--insecure", "--http", "none"]
    command = [sys.executable, "-m", "slackwater.cli.main", "start"]
    for words in (
        [*common, "--log", f"nats+tls://ann:{SECRET}@{address}/{options(home)}&colour=red"],
        [*common, "--log", f"nats+tls://ann:{SECRET}@127.0.0.1:1/{options(home)}", "--set", "log.append_timeout=1"],
        [*common, f"nats://ann:{SECRET}@{address}/?stream=s"],
        [*common, f"--lgo=nats://ann:{SECRET}@{address}/?stream=s"],
    ):
        done = subprocess.run([*command, *words], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode in (1, 2), done
        assert SECRET not in done.stdout + done.stderr
        assert done.stderr
    log = f"nats+tls://ann:{SECRET}@{address}/{options(home, stream='node')}"
    with (tmp_path / "journal").open("wb") as out:
        node = subprocess.Popen([*command, *common, "--log", log], cwd=tmp_path, stdout=out, stderr=out)
    try:
        deadline = time.monotonic() + READY_S
        while "listening" not in (tmp_path / "journal").read_text():
            assert node.poll() is None, (tmp_path / "journal").read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        host = f"127.0.0.1:{port}"
        for words in (["init"], ["status"], ["status", "--json"], ["ranges"]):
            told = subprocess.run(
                [*command[:-1], *words, "--host", host],
                cwd=tmp_path,
                capture_output=True,
                text=True,
                timeout=60,
                check=True,
            )
            assert SECRET not in told.stdout + told.stderr
        node.send_signal(10)  # SIGUSR1: its state goes to the journal
        node.terminate()
        assert node.wait(60) == 0
        assert SECRET not in (tmp_path / "journal").read_text()
    finally:
        node.kill()
        node.wait()
