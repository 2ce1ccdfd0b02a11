"""The network on TCP, optionally under TLS: callbacks, not streams.

asyncio's streams cost a task wake-up per read and copy every byte twice; here the transport calls the connection, the
connection cuts frames, and all frames of one read reach the handler in one call:

    socket ──data_received──> FrameParser ──frames([...])──> FrameHandler
    FrameHandler ──send──> pending list ──once per loop turn──> transport ──> socket

Writes are coalesced: `send` appends to a list which is handed to the transport once per turn of the loop, so a hundred
small responses leave in one system call.

Rules
    - `closed` is called exactly once per handler, whatever happened, with a reason a person can act on.
    - The transport's high-water mark makes `congested` true; its low-water mark calls `writable`. A single turn cannot
      outgrow the mark unseen: pending bytes above it are handed over at once.
    - An *accepted* connection stops reading while its own writes are congested: a client that asks and never reads the
      answers slows itself down instead of filling our memory. Dialed connections always read, so two peers can never
      both wait for the other.
    - A frame above the bound, from either side, never passes: received, it ends the connection; sent, it is the
      caller's error.
    - TLS is decided by the contexts given (see `tls.py`). `certificate_name` is the common name of the peer's
      certificate, "" without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
from typing import TYPE_CHECKING, Any, cast

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError
from slackwater.runtime.framing import FrameParser, header

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.seam import Address, Connection, FrameHandler
    from slackwater.settings import Settings

JOIN_BYTES_MAX = 1 << 16  # below this one copy is cheaper than a vector of buffers
LOW_WATER_DIVISOR = 4
BACKLOG = 1024
LINGER_S = 5.0
NOBODY = "nobody listens there"
_X509_OTHER_NAME = (62, 64)  # the host name, the address, is not in the certificate
_X509_EXPIRED = 10


class TcpConnection(asyncio.Protocol):
    """One `seam.Connection` on a socket."""

    def __init__(
        self, make: Callable[[Connection], FrameHandler], *, frame_bytes_max: int, high_water: int, accepted: bool
    ) -> None:
        self._make = make
        self._parser = FrameParser(frame_bytes_max=frame_bytes_max)
        self._high_water = high_water
        self._accepted = accepted
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._congested = False
        self._closed = False
        self._reason = ""
        self._linger: asyncio.TimerHandle | None = None
        self.peer = "?"
        self.certificate_name = ""

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open (and, under TLS, verified)."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // LOW_WATER_DIVISOR)
        self.peer = _name_of(transport.get_extra_info("peername"))
        self.certificate_name = _common_name(transport.get_extra_info("ssl_object"))
        self._handler = self._make(self)

    def data_received(self, data: bytes) -> None:
        """Bytes came; deliver the frames they complete."""
        if self._closed:
            return
        parser = self._parser
        frames = parser.feed(data)
        if frames:
            self._handler.frames(frames)
        if parser.fault is not None and not self._closed:
            self._abort(parser.fault)

    def eof_received(self) -> None:
        """The peer will send no more; asyncio closes the transport next."""
        self._reason = self._reason or (
            "the peer disconnected in the middle of a frame"
            if self._parser.mid_frame
            else "the peer closed the connection"
        )

    def connection_lost(self, exc: Exception | None) -> None:
        """The socket is gone; tell the handler once."""
        self._closed = True
        self._pending.clear()
        if self._linger is not None:
            self._linger.cancel()
        if not self._reason:
            self._reason = f"the connection broke: {exc}" if exc else "closed by this side"
        self._handler.closed(self._reason)

    def pause_writing(self) -> None:
        """The transport's buffer is over its high-water mark."""
        self._congested = True
        if self._accepted and not self._closed:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._transport.pause_reading()

    def resume_writing(self) -> None:
        """The transport's buffer drained below its low-water mark."""
        self._congested = False
        if self._closed:
            return
        if self._accepted:
            with contextlib.suppress(RuntimeError, NotImplementedError):
                self._transport.resume_reading()
        self._handler.writable()

    # --- what the handler calls

    @property
    def congested(self) -> bool:
        """Whether to stop sending until `writable`."""
        return self._congested

    def send(self, frame: bytes) -> None:
        """Queue a frame for the end of this turn of the loop."""
        if self._closed:
            return
        size = len(frame)
        if size > self._parser.frame_bytes_max:
            raise EntryTooLarge(
                "the frame is over rpc.frame_bytes_max; split it", size=size, limit=self._parser.frame_bytes_max
            )
        pending = self._pending
        if not pending:
            self._loop.call_soon(self._flush)
        pending.append(header(size))
        pending.append(frame)
        self._pending_bytes += size
        if self._pending_bytes > self._high_water:
            self._flush()

    def close(self) -> None:
        """Send what is queued, then end."""
        if self._closed:
            return
        self._flush()
        self._closed = True
        if self._congested:  # the peer does not read: a polite close would wait for it for ever
            self._transport.abort()
        else:
            self._end_politely()

    def _end_politely(self) -> None:
        """Let the last frames leave, but not for longer than a peer deserves that may never read them."""
        self._transport.close()
        self._linger = self._loop.call_later(LINGER_S, self._transport.abort)

    def _flush(self) -> None:
        pending = self._pending
        if not pending or self._closed:
            return
        self._pending = []
        size, self._pending_bytes = self._pending_bytes, 0
        if size <= JOIN_BYTES_MAX:
            self._transport.write(b"".join(pending))
        else:
            self._transport.writelines(pending)

    def _abort(self, reason: str) -> None:
        self._reason = reason
        self._flush()
        self._closed = True
        self._end_politely()


class TcpListener:
    """An open TCP port."""

    def __init__(self, server: asyncio.AbstractServer, address: Address) -> None:
        self._server = server
        self._address = address

    @property
    def address(self) -> Address:
        """`host:port` with the real port."""
        return self._address

    async def close(self) -> None:
        """Stop accepting; accepted connections stay."""
        self._server.close()


class TcpNet:
    """`seam.Net` on TCP; with contexts, on mutual TLS."""

    def __init__(
        self, settings: Settings, *, server_tls: ssl.SSLContext | None = None, client_tls: ssl.SSLContext | None = None
    ) -> None:
        self._settings = settings
        self._server_tls = server_tls
        self._client_tls = client_tls

    async def connect(self, address: Address, handler: Callable[[Connection], FrameHandler]) -> TcpConnection:
        """Open a connection or raise `ConnectionLost`."""
        host, port = parse_address(address)
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: self._connection(handler, accepted=False),
                host,
                port,
                ssl=self._client_tls,
                server_hostname=host if self._client_tls else None,
                **self._patience(self._client_tls),
            )
        except (OSError, ssl.CertificateError) as error:
            why = why_not(error, tls=self._client_tls is not None)
            raise ConnectionLost(f"cannot connect to {address}: {why}", address=address, sent=False) from error
        connection.peer = address
        return connection

    async def listen(self, address: Address, accept: Callable[[Connection], FrameHandler]) -> TcpListener:
        """Accept connections; port 0 picks a free one."""
        host, port = parse_address(address)
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._connection(accept, accepted=True),
                host,
                port,
                ssl=self._server_tls,
                backlog=BACKLOG,
                **self._patience(self._server_tls),
            )
        except OSError as error:
            raise UsageError(f"cannot listen on {address}: {error}", address=address) from error
        bound = server.sockets[0].getsockname()[1]
        return TcpListener(server, format_address(host, bound))

    def _patience(self, tls: ssl.SSLContext | None) -> dict[str, Any]:
        """How long a TLS handshake and a TLS farewell may take; a socket that stalls in one must not stay."""
        if tls is None:
            return {}
        return {"ssl_handshake_timeout": self._settings["rpc.connect_timeout"], "ssl_shutdown_timeout": LINGER_S}

    def _connection(self, make: Callable[[Connection], FrameHandler], *, accepted: bool) -> TcpConnection:
        return TcpConnection(
            make,
            frame_bytes_max=int(self._settings["rpc.frame_bytes_max"]),
            high_water=int(self._settings["rpc.send_buffer_bytes"]),
            accepted=accepted,
        )


def parse_address(address: Address) -> tuple[str, int]:
    """Split `host:port`; an IPv6 host is in brackets."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or int(port) > 65535:
        raise UsageError(f"{address!r} is not an address; write host:port", address=address)
    return host.strip("[]"), int(port)


def is_loopback(address: Address) -> bool:
    """Whether only this machine can reach the address."""
    host, _ = parse_address(address)
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def format_address(host: str, port: int) -> Address:
    """The inverse of `parse_address`."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _name_of(peername: Any) -> str:
    if isinstance(peername, tuple) and len(peername) >= 2:
        return format_address(str(peername[0]), int(peername[1]))
    return "?"


def _common_name(tls: ssl.SSLObject | None) -> str:
    certificate = tls.getpeercert() if tls is not None else None
    if not certificate:
        return ""
    subject = cast("tuple[tuple[tuple[str, str], ...], ...]", certificate.get("subject", ()))
    names = [value for part in subject for key, value in part if key == "commonName"]
    return names[0] if names else ""


def why_not(error: Exception, *, tls: bool) -> str:
    """Why a connection could not be made, in words that say what to look at."""
    match error:
        case ssl.SSLCertVerificationError() if error.verify_code in _X509_OTHER_NAME:
            return f"its certificate is not for this address ({error.verify_message}); make one that names it"
        case ssl.SSLCertVerificationError() if error.verify_code == _X509_EXPIRED:
            return "its certificate has expired; renew it with `slackwater cert create-node --replace`"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate cannot be trusted ({error.verify_message}); "
                "is this the right cluster, and the right directory of certificates?"
            )
        case ssl.SSLError():
            return f"no agreement on TLS ({error.reason or error}); are both certificates from the same authority?"
        case ConnectionRefusedError():
            return f"{NOBODY}; is the node running?"
        case socket.gaierror():
            return f"the name is not known ({error.strerror})"
        case ConnectionError() if tls:
            return "it hung up at the beginning of TLS; if the node runs with --insecure, leave the certificates out"
    return str(error) or type(error).__name__
