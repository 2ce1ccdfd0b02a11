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
    - An accepted peer that sends much at once gets a *slice* of every turn of the loop, not all of it: after `SLICE_S` its other
      frames wait for the next turn, in order, and nothing more of it is read until they are delivered. Peers with little to
      ask are answered in between. What a peer that was held (`rpc.patience`) had sent before is delivered in slices too.
    - A frame above the bound, from either side, never passes: received, it ends the connection; sent, it is the
      caller's error.
    - A stranger costs little: until its greeting was accepted (`trust`) a peer may send only small frames, and its socket is
      one of few and has little time (`door.py`). Later, large frames are received within a budget (`receiving.py`).
    - TLS is decided by the contexts given (see `tls.py`). `certificate` is what the peer's says, None without TLS.
"""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import socket
import ssl
import time
from typing import TYPE_CHECKING, Any, cast

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError
from slackwater.runtime.access import certificate_of
from slackwater.runtime.credentials import Tls, provider
from slackwater.runtime.door import Door
from slackwater.runtime.framing import FrameParser, header
from slackwater.runtime.receiving import LARGE_BYTES, ReceiveBudget
from slackwater.runtime.turns import Turns

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.access import Certificate
    from slackwater.runtime.door import Entrant
    from slackwater.runtime.seam import Address, Connection, FrameHandler
    from slackwater.settings import Settings

JOIN_BYTES_MAX = 1 << 16  # below this one copy is cheaper than a vector of buffers
LOW_WATER_DIVISOR = 4
GREETING_BYTES_MAX = 1 << 17
"""The largest frame of a caller that has not greeted: room for nonsense that deserves an answer."""
REFUSAL_BYTES_MAX = 1 << 18
"""The largest frame of a server that has not: it may refuse, with its reasons."""
LINGER_S = 5.0
NO_LISTENER = "no process listens there"
SLICE_S = 0.0005
"""How long frames of accepted peers that sent many are delivered in one turn of the loop: a handful of small writes."""
SLICE_FRAMES = 8
"""Frames between two looks at the clock."""
_X509_OTHER_NAME = (62, 64)  # the host name, the address, is not in the certificate
_X509_EXPIRED = 10
_X509_REVOKED = 23


class TcpConnection(asyncio.Protocol):
    """One `seam.Connection` on a socket."""

    def __init__(
        self,
        make: Callable[[Connection], FrameHandler],
        *,
        frame_bytes_max: int,
        high_water: int,
        budget: ReceiveBudget,
        turns: Turns,
        entrant: Entrant | None = None,
    ) -> None:
        self._make = make
        self._turns = turns
        self._frame_bytes_max = frame_bytes_max
        first = REFUSAL_BYTES_MAX if entrant is None else GREETING_BYTES_MAX
        self._parser = FrameParser(frame_bytes_max=min(first, frame_bytes_max))
        self._high_water = high_water
        self._entrant = entrant
        self._budget = budget
        self._reserved = 0
        self._budget_key = ""
        self._out_of_budget = False
        self._held = False
        self._waiting: list[bytes] = []
        """Frames that were received and are delivered in this connection's next turn, or once its peer is held no more."""
        self._in_line = False
        """Whether a turn is waited for."""
        self._pending: list[bytes] = []
        self._pending_bytes = 0
        self._congested = False
        self._closed = False
        self._reason = ""
        self._linger: asyncio.TimerHandle | None = None
        self.peer = "?"
        self.certificate: Certificate | None = None

    # --- what the transport calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """The socket is open (and, under TLS, verified)."""
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(self._high_water, self._high_water // LOW_WATER_DIVISOR)
        self.peer = _name_of(transport.get_extra_info("peername"))
        self._budget_key = self.peer.rpartition(":")[0]
        if self._entrant is not None:
            self._entrant.made(self._transport)
        tls = transport.get_extra_info("ssl_object")
        self.certificate = None if tls is None else certificate_of(tls.getpeercert())
        self._handler = self._make(self)

    def trust(self) -> None:
        """The peer has greeted: it may send large frames, and take its time."""
        self._parser.frame_bytes_max = self._frame_bytes_max
        if self._entrant is not None:
            self._entrant.proven()

    def data_received(self, data: bytes) -> None:
        """Bytes came; deliver the frames they complete."""
        if self._closed:
            return
        parser = self._parser
        frames = parser.feed(data)
        if frames:
            if self._reserved:
                self._give_back()
            if self._waiting or self._held:  # what a transport had in hand when it was paused
                self._waiting += frames
            elif self._entrant is None or len(frames) <= SLICE_FRAMES:
                self._handler.frames(frames)
            else:
                self._deliver(frames)
        if parser.wanted > LARGE_BYTES and not self._reserved and not self._closed:
            self._reserve()
        if parser.fault is not None and not self._waiting and not self._closed:
            self._abort(parser.fault)

    def _deliver(self, frames: list[bytes]) -> None:
        """Deliver frames for one slice; what is left waits for this connection's next turn."""
        end = time.perf_counter() + SLICE_S
        for first in range(0, len(frames), SLICE_FRAMES):
            if self._held or (first and time.perf_counter() > end):
                self._waiting = frames[first:]
                self._line_up()
                self._read_or_pause()
                return
            self._handler.frames(frames[first : first + SLICE_FRAMES])
            if self._closed:
                return

    def _line_up(self) -> None:
        """Wait for a turn, once; a peer that is held waits for its release first."""
        if not self._in_line and not self._held:
            self._in_line = True
            self._turns.join(self._deliver_on)

    def _deliver_on(self) -> None:
        self._in_line = False
        if self._closed or self._held:
            return
        frames, self._waiting = self._waiting, []
        self._deliver(frames)
        if not self._waiting and not self._closed:
            self._read_or_pause()
            if self._parser.fault is not None:
                self._abort(self._parser.fault)

    def _reserve(self) -> None:
        """Take a large frame's bytes from the budget, or stop reading until that is possible."""
        if self._closed or self._reserved:
            return
        size = self._parser.wanted
        self._out_of_budget = not self._budget.take(self._budget_key, size, self._reserve)
        if not self._out_of_budget:
            self._reserved = size
        self._read_or_pause()

    def _give_back(self) -> None:
        size, self._reserved = self._reserved, 0
        self._budget.give(self._budget_key, size)

    def _read_or_pause(self) -> None:
        """Read on, unless the budget is used up, frames wait, or an accepted peer is held or does not take its answers."""
        deaf = self._entrant is not None and self._congested
        pause = self._out_of_budget or self._held or bool(self._waiting) or deaf
        with contextlib.suppress(RuntimeError, NotImplementedError):
            if pause:
                self._transport.pause_reading()
            else:
                self._transport.resume_reading()

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
        self._waiting.clear()
        if self._entrant is not None:
            self._entrant.gone()
        self._budget.forget(self._reserve)
        if self._reserved:
            self._give_back()
        if self._linger is not None:
            self._linger.cancel()
        if not self._reason:
            self._reason = f"the connection broke: {exc}" if exc else "closed by this side"
        self._handler.closed(self._reason)

    def pause_writing(self) -> None:
        """The transport's buffer is over its high-water mark."""
        self._congested = True
        if self._entrant is not None and not self._closed:
            self._read_or_pause()

    def resume_writing(self) -> None:
        """The transport's buffer drained below its low-water mark."""
        self._congested = False
        if self._closed:
            return
        if self._entrant is not None:
            self._read_or_pause()
        self._handler.writable()

    # --- what the handler calls

    def hold(self, *, held: bool) -> None:
        """Leave what the peer sends in its socket, or read it again."""
        self._held = held
        if self._closed:
            return
        if self._waiting:
            self._line_up()
        self._read_or_pause()

    @property
    def congested(self) -> bool:
        """Whether to stop sending until `writable`."""
        return self._congested

    def send(self, frame: bytes) -> None:
        """Queue a frame for the end of this turn of the loop."""
        if self._closed:
            return
        size = len(frame)
        if size > self._frame_bytes_max:
            raise EntryTooLarge(
                "the frame is over rpc.frame_bytes_max; split it", size=size, limit=self._frame_bytes_max
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

    def __init__(self, door: Door, address: Address) -> None:
        self.door = door
        self._address = address

    @property
    def address(self) -> Address:
        """`host:port` with the real port."""
        return self._address

    async def close(self) -> None:
        """Stop accepting; accepted connections stay."""
        await self.door.close()


class TcpNet:
    """`seam.Net` on TCP; with contexts, or with functions that yield the present one, on mutual TLS."""

    def __init__(self, settings: Settings, *, server_tls: Tls = None, client_tls: Tls = None) -> None:
        self._settings = settings
        self._server_tls = provider(server_tls)
        self._client_tls = provider(client_tls)
        self.budget = ReceiveBudget(
            int(settings["rpc.receive_bytes_max"]), frame_bytes_max=int(settings["rpc.frame_bytes_max"])
        )
        self._turns = Turns()

    async def connect(self, address: Address, handler: Callable[[Connection], FrameHandler]) -> TcpConnection:
        """Open a connection or raise `ConnectionLost`."""
        host, port = parse_address(address)
        tls = self._client_tls()
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: self._connection(handler),
                host,
                port,
                ssl=tls,
                server_hostname=host if tls else None,
                **self._patience(tls),
            )
        except (OSError, ssl.CertificateError) as error:
            why = why_not(error, tls=tls is not None)
            raise ConnectionLost(f"cannot connect to {address}: {why}", address=address, sent=False) from error
        connection.peer = address
        return connection

    async def listen(self, address: Address, accept: Callable[[Connection], FrameHandler]) -> TcpListener:
        """Accept connections; port 0 picks a free one."""
        host, port = parse_address(address)
        settings = self._settings
        door = Door(
            lambda entrant: self._connection(accept, entrant),
            tls=self._server_tls,
            prove_s=settings["rpc.connect_timeout"],
            shutdown_s=LINGER_S,
            unproven_max=int(settings["rpc.unproven_max"]),
            sockets_max=int(settings["rpc.connections_max"]) + int(settings["rpc.unproven_max"]),
        )
        try:
            bound = await door.open(host, port)
        except OSError as error:
            raise UsageError(
                f"cannot listen on {address}: {error.strerror or error}; stop what listens there, or choose another address",
                address=address,
            ) from error
        return TcpListener(door, format_address(host, bound))

    def _patience(self, tls: ssl.SSLContext | None) -> dict[str, Any]:
        """How long a TLS handshake and a TLS farewell may take; a socket that stalls in one must not stay."""
        if tls is None:
            return {}
        return {"ssl_handshake_timeout": self._settings["rpc.connect_timeout"], "ssl_shutdown_timeout": LINGER_S}

    def _connection(self, make: Callable[[Connection], FrameHandler], entrant: Entrant | None = None) -> TcpConnection:
        return TcpConnection(
            make,
            frame_bytes_max=int(self._settings["rpc.frame_bytes_max"]),
            high_water=int(self._settings["rpc.send_buffer_bytes"]),
            budget=self.budget,
            turns=self._turns,
            entrant=entrant,
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


def why_not(error: Exception, *, tls: bool) -> str:
    """Why a connection could not be made, in words that say what to look at."""
    match error:
        case ssl.SSLCertVerificationError() if error.verify_code in _X509_OTHER_NAME:
            return f"its certificate is not for this address ({error.verify_message}); make one that names it"
        case ssl.SSLCertVerificationError() if error.verify_code == _X509_EXPIRED:
            return "its certificate has expired; renew it with `slackwater cert create-node --replace`"
        case ssl.SSLCertVerificationError() if error.verify_code == _X509_REVOKED:
            return "its certificate was revoked; do not trust what answers there"
        case ssl.SSLCertVerificationError():
            return (
                f"its certificate cannot be trusted ({error.verify_message}); "
                "is this the right cluster, and the right directory of certificates?"
            )
        case ssl.SSLError():
            return f"no agreement on TLS ({error.reason or error}); are both certificates from the same authority?"
        case ConnectionRefusedError():
            return f"{NO_LISTENER}; is the node running?"
        case socket.gaierror():
            return f"the name is not known ({error.strerror})"
        case ConnectionError() if tls:
            return "it hung up at the beginning of TLS; if the node runs with --insecure, leave the certificates out"
    return str(error) or type(error).__name__
