"""The least HTTP that a scraper and a health check need: one GET, one answer, goodbye.

    GET /metrics HTTP/1.1 ──► answer("/metrics") ──► HTTP/1.1 200 OK … Connection: close

It is not a web server: no bodies, no keep-alive, no pipelining. The answer is made by a plain function on the loop, so it
must be quick. Everything a stranger can send is bounded: the head of a request, the time it may take, and the number of
connections, of which the oldest give way to new ones (`door.py`); what does not parse gets 400 and nothing else. Under TLS
the caller's certificate is checked as on the other port (see `tls.py`).
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, NamedTuple, cast

from slackwater.errors import UsageError
from slackwater.runtime.credentials import Tls, provider
from slackwater.runtime.door import Door
from slackwater.runtime.tcp import format_address, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.door import Entrant
    from slackwater.runtime.seam import Address

HEAD_BYTES_MAX = 8 << 10
CONNECTIONS_MAX = 64
REQUEST_S_MAX = 10.0
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 503: "Service Unavailable"}


class Answer(NamedTuple):
    """What goes back."""

    status: int
    body: str
    content_type: str = "text/plain; charset=utf-8"


class HttpServer:
    """An open port that answers GET requests with `answer(path)`."""

    def __init__(self, answer: Callable[[str], Answer], *, tls: Tls = None) -> None:
        self._answer = answer
        self.door = Door(
            lambda entrant: _HttpConnection(self, entrant),
            tls=provider(tls),
            prove_s=REQUEST_S_MAX,
            shutdown_s=REQUEST_S_MAX,
            unproven_max=CONNECTIONS_MAX,
            sockets_max=CONNECTIONS_MAX,
        )

    async def listen(self, address: Address) -> Address:
        """Accept connections; returns the address with the real port."""
        host, port = parse_address(address)
        try:
            bound = await self.door.open(host, port)
        except OSError as error:
            raise UsageError(f"cannot listen for HTTP on {address}: {error}", address=address) from error
        return format_address(host, bound)

    async def close(self) -> None:
        """Accept nothing more and end what is open."""
        await self.door.close()

    def respond(self, head: bytes) -> bytes:
        """The whole answer to the head of a request."""
        method, answer = self._route(head)
        body = answer.body.encode()
        lines = [
            f"HTTP/1.1 {answer.status} {_REASONS[answer.status]}",
            f"Content-Type: {answer.content_type}",
            f"Content-Length: {len(body)}",
            "Cache-Control: no-store",
            "Connection: close",
        ]
        return ("\r\n".join(lines) + "\r\n\r\n").encode() + (b"" if method == "HEAD" else body)

    def _route(self, head: bytes) -> tuple[str, Answer]:
        words = head.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3 or not words[2].startswith(b"HTTP/1.") or not words[1].startswith(b"/"):
            return "", Answer(400, "this is not an HTTP request\n")
        method = words[0].decode("latin-1")
        if method not in {"GET", "HEAD"}:
            return method, Answer(405, "only GET and HEAD are served here\n")
        return method, self._answer(words[1].partition(b"?")[0].decode("latin-1"))


class _HttpConnection(asyncio.Protocol):
    """One connection, one request."""

    def __init__(self, server: HttpServer, entrant: Entrant) -> None:
        self._server = server
        self._entrant = entrant
        self._head = b""
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._entrant.made(self._transport)

    def data_received(self, data: bytes) -> None:
        if self._answered:
            return
        self._head += data
        complete = b"\r\n\r\n" in self._head
        if not complete and len(self._head) <= HEAD_BYTES_MAX:
            return
        self._answered = True
        self._transport.write(self._server.respond(self._head if complete else b""))
        self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._entrant.gone()
