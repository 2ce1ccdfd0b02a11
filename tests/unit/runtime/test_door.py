"""What a stranger may cost before it has greeted: few sockets, small frames, little time; on real loopback sockets."""

import asyncio
import contextlib
import struct

import pytest

from slackwater.runtime import TcpNet, run
from slackwater.runtime.certs import create_ca, create_client, create_node
from slackwater.runtime.http import Answer as HttpAnswer
from slackwater.runtime.http import HttpServer
from slackwater.runtime.receiving import LARGE_BYTES, ReceiveBudget
from slackwater.runtime.rpc import Dialer, Identity, RpcServer
from slackwater.runtime.tcp import GREETING_BYTES_MAX
from slackwater.runtime.tls import client_context, client_files, node_files, server_context
from tests.unit.runtime.test_rpc_hostile import HELLO, framed, message, raw_client
from tests.unit.runtime.world import ECHO, Answer, Ask, world


@pytest.fixture(scope="module")
def certs(tmp_path_factory):
    directory = tmp_path_factory.mktemp("certs")
    create_ca(directory)
    create_node(directory, ["127.0.0.1"])
    create_client(directory, "ann")
    return directory


def door_of(server):
    return server._listeners[0].door


@contextlib.asynccontextmanager
async def silent(address, count):
    """Sockets that are opened and say nothing."""
    host, port = address.split(":")
    held = [await asyncio.open_connection(host, int(port)) for _ in range(count)]
    try:
        yield held
    finally:
        for _, writer in held:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()


async def until(condition):
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.005)


def test_silent_sockets_give_way_to_a_peer_that_greets():
    async def main():
        async with world("tcp", unproven_max=16, connect_timeout=60) as w:
            known = await w.peer()
            async with silent(w.address, 200) as held:
                door = door_of(w.server)
                await until(lambda: door.ended >= 184)
                assert door.unproven == 16
                async with raw_client(w) as raw:  # a newcomer, while the door is full of strangers
                    raw.send(HELLO, message(4, 1, "echo", 0, 0, {"n": 5}))
                    await raw.receive()
                    assert (await raw.receive()).id == 1
                assert await held[0][0].read() == b"", "the oldest was ended"
            assert await known.call(ECHO, Ask(3)) == Answer(3)
            assert w.crashes == []

    run(main())


def test_sockets_that_never_begin_tls_give_way_too(certs):
    async def main():
        async with world("tcp", unproven_max=16, connect_timeout=60) as w:
            w.runtime.net = TcpNet(
                w.settings,
                server_tls=server_context(node_files(certs)),
                client_tls=client_context(client_files(certs, "ann")),
            )
            server = RpcServer(w.runtime, w.scope, identity=Identity(cluster_id="c1", node_id=1), settings=w.settings)
            server.handle_sync(ECHO, lambda request, _: Answer(request.n))
            address = await server.listen("127.0.0.1:0")
            async with silent(address, 200):
                await until(lambda: door_of(server).ended >= 184)
                dialer = Dialer(w.runtime, w.scope, identity=Identity(), settings=w.settings)
                peer = await dialer.peer(address)
                assert await peer.call(ECHO, Ask(7)) == Answer(7)
                assert door_of(server).unproven <= 16
                await dialer.close()
            await server.close()
            assert door_of(w.server).sockets == 0
            assert w.crashes == []

    run(main())


def test_a_server_closes_while_handshakes_have_not_begun(certs):
    async def main():
        async with world("tcp", connect_timeout=60) as w:
            w.runtime.net = TcpNet(w.settings, server_tls=server_context(node_files(certs)))
            for pause in (0, 1, 3):
                server = RpcServer(w.runtime, w.scope, identity=Identity(), settings=w.settings)
                address = await server.listen("127.0.0.1:0")
                async with silent(address, 5) as held:
                    for _ in range(pause):
                        await asyncio.sleep(0)
                    await server.close()
                    for reader, _ in held:
                        with contextlib.suppress(ConnectionError):
                            assert await asyncio.wait_for(reader.read(), 30) == b""
            assert w.crashes == []

    run(main())


def test_a_stranger_that_takes_its_time_is_ended():
    async def main():
        async with world("tcp", connect_timeout=0.2) as w, silent(w.address, 3) as held:
            for reader, _ in held:
                assert await asyncio.wait_for(reader.read(), 30) == b""
            assert door_of(w.server).sockets == 0

    run(main())


def test_a_peer_that_greeted_has_all_the_time():
    async def main():
        async with world("tcp", connect_timeout=0.2) as w:
            peer = await w.peer()
            await asyncio.sleep(0.6)
            assert await peer.call(ECHO, Ask(1)) == Answer(1)
            assert door_of(w.server).unproven == 0

    run(main())


def test_a_large_frame_before_the_greeting_ends_the_connection():
    async def main():
        async with world("tcp") as w, raw_client(w) as raw:
            raw.writer.write(struct.pack(">I", GREETING_BYTES_MAX + 1) + b"x" * 100)
            await raw.until_closed()
            assert raw.reader.at_eof()

    run(main())


def test_unfinished_frames_of_many_connections_stay_within_the_budget():
    async def main():
        frame = 1 << 20
        async with world("tcp", receive_bytes_max=4 << 20, frame_bytes_max=frame, heartbeat_timeout=60) as w:
            budget = w.runtime.net.budget
            async with contextlib.AsyncExitStack() as stack:
                raws = [await stack.enter_async_context(raw_client(w)) for _ in range(30)]
                body = message(4, 1, "echo", 0, 0, {"n": 5, "data": b"x" * (frame - 100)})
                for raw in raws:
                    raw.send(HELLO)
                    await raw.receive()
                    raw.writer.write(framed(body)[: len(body) - 10])
                await until(lambda: budget.held >= len(body))
                await asyncio.sleep(0.1)
                assert 0 < budget.held <= 4 << 20
                known = await w.peer()
                assert await known.call(ECHO, Ask(3)) == Answer(3), "small frames pass"
                for raw in raws:  # those whose turn comes finish; each makes room for the next
                    raw.writer.write(framed(body)[len(body) - 10 :])
                for raw in raws:
                    assert (await asyncio.wait_for(raw.receive(), 30)).id == 1
            await until(lambda: budget.held == 0)
            assert w.crashes == []

    run(main())


def test_a_connection_that_is_gone_gives_its_reservation_back():
    async def main():
        async with world("tcp", heartbeat_timeout=60) as w:
            budget = w.runtime.net.budget
            async with raw_client(w) as raw:
                raw.send(HELLO)
                await raw.receive()
                raw.writer.write(struct.pack(">I", LARGE_BYTES * 2) + b"x" * 1000)
                await until(lambda: budget.held > 0)
            await until(lambda: budget.held == 0)

    run(main())


def test_one_peer_may_hold_a_quarter_of_the_budget():
    budget = ReceiveBudget(1000, frame_bytes_max=100)
    called = []
    assert budget.take("a", 100, lambda: called.append("a1"))
    assert budget.take("a", 100, lambda: called.append("a2"))
    assert not budget.take("a", 100, lambda: called.append("a3"))
    assert budget.take("b", 100, lambda: called.append("b"))
    assert called == []
    budget.give("b", 100)
    assert called == [], "another peer's bytes are of no use"
    budget.give("a", 100)
    assert called == ["a3"]
    assert budget.held == 100


def test_health_answers_beside_three_hundred_half_open_sockets():
    async def main():
        server = HttpServer(lambda path: HttpAnswer(200, "fine\n"))
        address = await server.listen("127.0.0.1:0")
        host, port = address.split(":")
        async with silent(address, 300):
            for _ in range(5):
                reader, writer = await asyncio.open_connection(host, int(port))
                writer.write(b"GET /health HTTP/1.1\r\n\r\n")
                assert (await asyncio.wait_for(reader.read(), 30)).endswith(b"fine\n")
                writer.close()
                await writer.wait_closed()
        await server.close()

    run(main())


def test_running_requests_of_one_connection_stay_within_their_bytes():
    async def main():
        async with world("tcp", requests_bytes_max=1 << 20, heartbeat_timeout=60) as w, raw_client(w) as raw:
            raw.send(HELLO)
            await raw.receive()
            for call in range(1, 9):
                raw.send(message(4, call, "hang", 0, 0, {"n": 1, "data": b"x" * (1 << 18)}))
            refused = [await raw.receive() for _ in range(5)]
            assert {fault.error for fault in refused} == {"Overloaded"}
            raw.send(message(6, 1), message(6, 2))  # cancelled: there is room again
            await until(lambda: w.hanging == 1)
            raw.send(message(4, 20, "hang", 0, 0, {"n": 1, "data": b"x" * (1 << 18)}))
            await until(lambda: w.hanging == 2)

    run(main())
