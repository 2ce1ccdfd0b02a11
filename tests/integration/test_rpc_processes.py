"""RPC against a server in another process that is killed, stopped and restarted."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest

from slackwater.errors import ConnectionLost
from slackwater.runtime import RealRuntime, TcpNet, run
from slackwater.runtime.certs import create_ca, create_client, create_node
from slackwater.runtime.rpc import Dialer, Identity
from slackwater.runtime.tls import client_context, client_files
from tests.integration.rpc_server import COUNT, ECHO, HANG, PID, SETTINGS

pytestmark = pytest.mark.integration


@pytest.fixture(params=["plain", "tls"])
def certs(request, tmp_path):
    if request.param == "plain":
        return None
    create_ca(tmp_path)
    create_node(tmp_path, ["127.0.0.1"])
    create_client(tmp_path, "ann")
    return tmp_path


@pytest.fixture
def start(certs):
    """Start servers; whatever is left of them at the end is killed."""
    processes = []

    def begin(listen="127.0.0.1:0"):
        command = [sys.executable, "-m", "tests.integration.rpc_server", listen, *([str(certs)] if certs else [])]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        processes.append(process)
        return process, process.stdout.readline().strip()

    yield begin
    for process in processes:
        process.kill()
        process.wait()
        process.stdout.close()


def dialing(certs, body):
    async def main():
        tls = client_context(client_files(certs, "ann")) if certs else None
        runtime = RealRuntime(disk=None, net=TcpNet(SETTINGS, client_tls=tls), settings=SETTINGS)
        scope = runtime.scope("test")
        dialer = Dialer(runtime, scope, identity=Identity(cluster_id="c1"), settings=SETTINGS)
        try:
            await body(dialer)
        finally:
            await dialer.close()
            await scope.close()
            runtime.close()

    run(main())


def test_calls_and_streams_cross_processes(start, certs):
    process, address = start()

    async def body(dialer):
        peer = await dialer.peer(address, node_id=1)
        assert await peer.call(PID, 0) == process.pid != os.getpid()
        assert await asyncio.gather(*[peer.call(ECHO, n) for n in range(3000)]) == list(range(3000))
        assert [n async for n in peer.stream(COUNT, 5000)] == list(range(5000))
        while peer.measurement is None:
            await peer.call(ECHO, 1)
        assert abs(peer.measurement.offset_us) <= peer.measurement.error_us + 1000, "one machine has one clock"

    dialing(certs, body)


def test_a_killed_server_fails_its_callers_and_is_found_again(start, certs):
    process, address = start()

    async def body(dialer):
        peer = await dialer.peer(address)
        stream = peer.stream(COUNT, 10**9)
        await stream.__anext__()
        hanging = [asyncio.ensure_future(peer.call(HANG, n)) for n in range(100)]
        await peer.call(ECHO, 1)
        process.kill()
        for error in await asyncio.gather(*hanging, return_exceptions=True):
            assert isinstance(error, ConnectionLost)
            assert error.facts["sent"] is True
        with pytest.raises(ConnectionLost):
            async for _ in stream:
                pass
        process.wait()
        with pytest.raises(ConnectionLost) as caught:
            await dialer.call(address, ECHO, 1)
        assert caught.value.facts["sent"] is False
        again, _ = start(address)
        while True:
            try:
                assert await dialer.call(address, PID, 0) == again.pid
                break
            except ConnectionLost:
                await asyncio.sleep(0.01)

    dialing(certs, body)


def test_a_stopped_server_is_lost_by_its_silence(start, certs):
    process, address = start()

    async def body(dialer):
        peer = await dialer.peer(address)
        process.send_signal(signal.SIGSTOP)
        try:
            with pytest.raises(ConnectionLost, match="silent"):
                await peer.call(ECHO, 1)
        finally:
            process.send_signal(signal.SIGCONT)
        assert await dialer.call(address, ECHO, 2) == 2

    dialing(certs, body)
