"""Accepts sockets and keeps strangers cheap: few at a time, not for long, and never at the expense of known peers.

    accept ──► unproven ──(TLS, then the greeting)──► proven ──► gone
                  │
                  ├── not proven after `prove_s`            ended
                  ├── more than `unproven_max` of them      the oldest of the address that has most of them is ended
                  └── more than `sockets_max` in all        the same; with no unproven one to end, the newcomer is refused

Sockets are counted from the moment they are accepted, before TLS: a server that counts connections only after their
handshake can be filled with sockets that never begin one. A newcomer is let in and an old stranger ended, not the other way
round, because a real peer proves itself within a round trip while sockets held open for harm only grow old.

asyncio's own servers start TLS out of sight of the protocol, so the door owns the listening sockets and hands each accepted
one to `connect_accepted_socket`. When the process runs out of descriptors the door makes room the same way, and pauses
accepting for a moment when there is nothing to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections import Counter
from typing import TYPE_CHECKING, Any

from slackwater.hooks import level

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

resource: Any = None
with contextlib.suppress(ImportError):  # a client on a system without it opens no doors
    import resource

ACCEPTS_PER_TURN_MAX = 64
BACKLOG = 1024
FULL_PAUSE_S = 0.1
"""How long nothing is accepted when the process has no descriptor left and no stranger to end."""
_EXHAUSTED = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Entrant:
    """One accepted socket. Protocols tell it when their peer has proven itself and when the connection is gone."""

    __slots__ = ("_door", "_sock", "host", "task", "timer", "transport")

    def __init__(self, door: Door, sock: socket.socket, host: str) -> None:
        self._door = door
        self._sock = sock
        self.host = host
        self.task: asyncio.Task[None] | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.transport: asyncio.Transport | None = None

    def made(self, transport: asyncio.Transport) -> None:
        """The transport is open, and under TLS the handshake is done."""
        self.transport = transport

    def proven(self) -> None:
        """The peer is known: no time limit any more."""
        self._door.proven(self)

    def gone(self) -> None:
        """The connection has ended."""
        self._door.gone(self)

    def end(self) -> None:
        """End the connection without ceremony, whatever state it is in."""
        if self.transport is not None:
            self.transport.abort()
            return
        with contextlib.suppress(OSError):  # the handshake sees the end of the stream
            self._sock.shutdown(socket.SHUT_RDWR)
        if self.task is not None:
            self.task.cancel()


class Door:
    """Listening sockets with a bound on what strangers may hold."""

    def __init__(
        self,
        make: Callable[[Entrant], asyncio.BaseProtocol],
        *,
        tls: Callable[[], ssl.SSLContext | None],
        prove_s: float,
        shutdown_s: float,
        unproven_max: int,
        sockets_max: int,
    ) -> None:
        self._make = make
        self._tls = tls
        self._prove_s = prove_s
        self._shutdown_s = shutdown_s
        self._sockets_max = max(1, min(sockets_max, descriptors_max() // 2))
        self._unproven_max = max(1, min(unproven_max, self._sockets_max))
        self._unproven: dict[Entrant, None] = {}  # oldest first
        self._hosts: Counter[str] = Counter()
        self._inside: set[Entrant] = set()
        self._listening: list[socket.socket] = []
        self.ended = 0
        """Strangers that were ended to make room, or because they took too long."""

    async def open(self, host: str, port: int) -> int:
        """Listen; returns the port, which the system chooses when 0 is asked for. Raises `OSError`."""
        loop = asyncio.get_running_loop()
        found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        try:
            for family, _, _, _, address in found:
                self._listening.append(_listen(family, (address[0], port, *address[2:])))
                port = port or self._listening[0].getsockname()[1]
        except OSError:
            await self.close()
            raise
        for sock in self._listening:
            loop.add_reader(sock.fileno(), self._accept, sock)
        return int(self._listening[0].getsockname()[1])

    async def close(self) -> None:
        """Accept nothing more. Strangers are ended; proven connections stay."""
        loop = asyncio.get_running_loop()
        for sock in self._listening:
            loop.remove_reader(sock.fileno())
            sock.close()
        self._listening.clear()
        strangers = list(self._unproven)
        handshakes = [entrant.task for entrant in strangers if entrant.task is not None]
        for entrant in strangers:
            self._end(entrant)
        await asyncio.gather(*handshakes, return_exceptions=True)

    @property
    def sockets(self) -> int:
        """Accepted sockets that are still open."""
        return len(self._inside)

    @property
    def unproven(self) -> int:
        """The open sockets whose peer has not proven itself."""
        return len(self._unproven)

    # --- what entrants call

    def proven(self, entrant: Entrant) -> None:
        """Lift the limits of strangers from a connection."""
        if entrant in self._unproven:
            del self._unproven[entrant]
            self._hosts[entrant.host] -= 1
            if not self._hosts[entrant.host]:
                del self._hosts[entrant.host]
        if entrant.timer is not None:
            entrant.timer.cancel()
            entrant.timer = None

    def gone(self, entrant: Entrant) -> None:
        """Forget a connection."""
        self.proven(entrant)
        self._inside.discard(entrant)

    # --- accepting

    def _accept(self, listening: socket.socket) -> None:
        for _ in range(ACCEPTS_PER_TURN_MAX):
            try:
                sock, address = listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    return  # of this one connection, which is gone
                if not self._make_room():
                    self._pause(listening)
                return
            self._enter(sock, str(address[0]) if isinstance(address, tuple) else "?")

    def _enter(self, sock: socket.socket, host: str) -> None:
        full = len(self._inside) >= self._sockets_max or len(self._unproven) >= self._unproven_max
        if full and not self._make_room():
            self.ended += 1
            sock.close()
            return
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        entrant = Entrant(self, sock, host)
        loop = asyncio.get_running_loop()
        self._inside.add(entrant)
        self._unproven[entrant] = None
        self._hosts[host] += 1
        level("rpc.unproven", len(self._unproven), self._unproven_max)
        entrant.timer = loop.call_later(self._prove_s, self._end, entrant)
        entrant.task = loop.create_task(self._admit(entrant, sock), name="admit")
        entrant.task.add_done_callback(lambda task: self._admitted(task, entrant, sock))

    async def _admit(self, entrant: Entrant, sock: socket.socket) -> None:
        tls = self._tls()
        patience: dict[str, Any] = {}
        if tls is not None:
            patience = {"ssl_handshake_timeout": self._prove_s, "ssl_shutdown_timeout": self._shutdown_s}
        await asyncio.get_running_loop().connect_accepted_socket(lambda: self._make(entrant), sock, ssl=tls, **patience)

    def _admitted(self, task: asyncio.Task[None], entrant: Entrant, sock: socket.socket) -> None:
        """A handshake ended. One that failed, or was ended before it began, is of interest to no one."""
        entrant.task = None
        error = None if task.cancelled() else task.exception()
        if task.cancelled() or error is not None:
            self.gone(entrant)
            sock.close()
        if error is not None and not isinstance(error, OSError | ValueError):
            facts = {"message": "a connection could not be taken over", "exception": error}
            asyncio.get_running_loop().call_exception_handler(facts)

    def _make_room(self) -> bool:
        """End the oldest stranger of the address that has most of them; False: there is none."""
        if not self._unproven:
            return False
        crowded = max(self._hosts, key=self._hosts.__getitem__)
        self._end(next(entrant for entrant in self._unproven if entrant.host == crowded))
        return True

    def _end(self, entrant: Entrant) -> None:
        self.ended += 1
        self.gone(entrant)
        entrant.end()

    def _pause(self, listening: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        loop.remove_reader(listening.fileno())
        loop.call_later(FULL_PAUSE_S, self._go_on, listening)

    def _go_on(self, listening: socket.socket) -> None:
        if listening in self._listening:
            asyncio.get_running_loop().add_reader(listening.fileno(), self._accept, listening)


def _listen(family: int, address: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        sock.setblocking(False)  # noqa: FBT003 - the library's signature
        sock.bind(address)
        sock.listen(BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock


def descriptors_max() -> int:
    """How many descriptors this process may have open."""
    if resource is None:
        return 1 << 20
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return int(soft) if soft != resource.RLIM_INFINITY else 1 << 20


def raise_descriptors_max() -> None:
    """Raise the soft limit of descriptors to the hard one: stores and connections share them."""
    if resource is None:
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
