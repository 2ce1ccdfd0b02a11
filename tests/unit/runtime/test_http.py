"""The little HTTP server against friendly and unfriendly clients, on loopback."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from slackwater.errors import UsageError
from slackwater.runtime.http import CONNECTIONS_MAX, HEAD_BYTES_MAX, Answer, HttpServer


def page(path: str) -> Answer:
    return Answer(200, f"you asked for {path}\n") if path == "/here" else Answer(404, "no\n")


async def ask(address: str, request: bytes) -> bytes:
    host, port = address.rsplit(":", 1)
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    await writer.wait_closed()
    return answer


def serving(test):
    async def with_server() -> None:
        server = HttpServer(page)
        address = await server.listen("127.0.0.1:0")
        try:
            await test(server, address)
        finally:
            await server.close()

    asyncio.run(with_server())


@pytest.mark.parametrize(
    ("request_", "status", "body"),
    [
        (b"GET /here HTTP/1.1\r\nHost: x\r\n\r\n", b"200 OK", b"you asked for /here\n"),
        (b"GET /here?a=b HTTP/1.0\r\n\r\n", b"200 OK", b"you asked for /here\n"),
        (b"HEAD /here HTTP/1.1\r\n\r\n", b"200 OK", b""),
        (b"GET /there HTTP/1.1\r\n\r\n", b"404 Not Found", b"no\n"),
        (b"POST /here HTTP/1.1\r\n\r\n", b"405 Method Not Allowed", b"only GET and HEAD are served here\n"),
        (b"\x16\x03\x01\x00\r\n\r\n", b"400 Bad Request", b"this is not an HTTP request\n"),
        (b"GET  HTTP/1.1\r\n\r\n", b"400 Bad Request", b"this is not an HTTP request\n"),
        (b"x" * (HEAD_BYTES_MAX + 1), b"400 Bad Request", b"this is not an HTTP request\n"),
    ],
)
def test_one_request_gets_one_answer(request_: bytes, status: bytes, body: bytes) -> None:
    async def test(server: HttpServer, address: str) -> None:
        head, _, found = (await ask(address, request_)).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 " + status + b"\r\n")
        assert b"Connection: close" in head
        assert found == body

    serving(test)


def test_a_request_in_pieces_is_put_together() -> None:
    async def test(server: HttpServer, address: str) -> None:
        host, port = address.rsplit(":", 1)
        reader, writer = await asyncio.open_connection(host, int(port))
        for piece in (b"GET /he", b"re HTTP/1.1\r\n", b"\r\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert (await reader.read()).startswith(b"HTTP/1.1 200 OK")
        writer.close()
        await writer.wait_closed()

    serving(test)


async def ended(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """What came until the other side ended the connection, one way or the other."""
    found = b""
    with contextlib.suppress(ConnectionResetError):
        found = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    with contextlib.suppress(ConnectionResetError):
        await writer.wait_closed()
    return found


def test_beyond_the_bound_the_oldest_connection_gives_way_and_closing_ends_the_rest() -> None:
    async def test(server: HttpServer, address: str) -> None:
        host, port = address.rsplit(":", 1)
        held = []
        for count in range(1, CONNECTIONS_MAX + 1):
            held.append(await asyncio.open_connection(host, int(port)))
            while server.door.sockets < count:
                await asyncio.sleep(0)
        assert (await ask(address, b"GET /here HTTP/1.1\r\n\r\n")).startswith(b"HTTP/1.1 200")
        assert await ended(*held[0]) == b""
        assert server.door.sockets == CONNECTIONS_MAX - 1
        await server.close()
        for pair in held[1:]:
            assert await ended(*pair) == b""

    serving(test)


def test_a_taken_port_is_one_clear_error() -> None:
    async def test(server: HttpServer, address: str) -> None:
        with pytest.raises(UsageError, match="cannot listen for HTTP on"):
            await HttpServer(page).listen(address)

    serving(test)
