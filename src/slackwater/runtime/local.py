"""A network inside one process: the twin of TCP for tests and for embedded nodes.

Same contract, no sockets: frames sent during one turn of the loop are delivered together in the next, in order; a
closed end is seen by the other after everything sent before. All endpoints that share one `LocalNet` can reach each
other; addresses are names such as `n1:7400`, and port 0 picks one that is free.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from slackwater.errors import ConnectionLost, EntryTooLarge, UsageError, invariant
from slackwater.runtime.tcp import format_address, parse_address

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.runtime.access import Certificate
    from slackwater.runtime.seam import Address, Connection, FrameHandler
    from slackwater.settings import Settings

FIRST_FREE_PORT = 40_000


class LocalConnection:
    """One end of an in-process pipe of frames."""

    def __init__(self, peer: str, *, frame_bytes_max: int, high_water: int) -> None:
        self.peer = peer
        self.certificate: Certificate | None = None  # one process: callers need not be told apart
        self._frame_bytes_max = frame_bytes_max
        self._high_water = high_water
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._closed = False
        self._other: LocalConnection | None = None
        self._handler: FrameHandler | None = None

    @property
    def congested(self) -> bool:
        """Whether more is queued than the high-water mark allows."""
        return self._outgoing_bytes > self._high_water

    def trust(self) -> None:
        """Both ends are in this process: there are no strangers."""

    def hold(self, *, held: bool) -> None:
        """What is sent meanwhile waits at the receiving session: there is no socket to leave it in."""

    def send(self, frame: bytes) -> None:
        """Queue a frame for the next turn of the loop."""
        if self._closed:
            return
        if len(frame) > self._frame_bytes_max:
            limit = self._frame_bytes_max
            raise EntryTooLarge("the frame is over rpc.frame_bytes_max; split it", size=len(frame), limit=limit)
        if not self._outgoing:
            asyncio.get_running_loop().call_soon(self._deliver)
        self._outgoing.append(frame)
        self._outgoing_bytes += len(frame)

    def close(self) -> None:
        """End the connection: this end now, the other after what was sent before."""
        if self._closed:
            return
        self._closed = True
        loop = asyncio.get_running_loop()
        loop.call_soon(self._end, "closed by this side")
        if self._other is not None:
            loop.call_soon(self._other._closed_by_peer, self)

    def _deliver(self) -> None:
        frames, self._outgoing = self._outgoing, []
        was_congested, self._outgoing_bytes = self.congested, 0
        other = self._other
        if frames and other is not None and not other._closed and other._handler is not None:
            other._handler.frames(frames)
        if was_congested and not self._closed and self._handler is not None:
            self._handler.writable()

    def _closed_by_peer(self, peer: LocalConnection) -> None:
        if peer._outgoing:  # a simulated loop may run the two callbacks in either order
            peer._deliver()
        if not self._closed:
            self._closed = True
            self._end("the peer closed the connection")

    def _end(self, reason: str) -> None:
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.closed(reason)


class LocalListener:
    """An open port of a `LocalNet`."""

    def __init__(self, net: LocalNet, address: Address) -> None:
        self._net = net
        self._address = address

    @property
    def address(self) -> Address:
        """Where it listens."""
        return self._address

    async def close(self) -> None:
        """Stop accepting."""
        self._net.ports.pop(self._address, None)


class LocalNet:
    """`seam.Net` without sockets."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self.ports: dict[Address, Callable[[Connection], FrameHandler]] = {}
        self._next_port = FIRST_FREE_PORT
        self._dials = 0

    async def connect(self, address: Address, handler: Callable[[Connection], FrameHandler]) -> LocalConnection:
        """Open a connection or raise `ConnectionLost`."""
        parse_address(address)
        accept = self.ports.get(address)
        if accept is None:
            raise ConnectionLost(f"cannot connect to {address}: no process listens there", address=address, sent=False)
        self._dials += 1
        near, far = self._end(address), self._end(f"local:{self._dials}")
        near._other, far._other = far, near
        far._handler = accept(far)
        near._handler = handler(near)
        return near

    async def listen(self, address: Address, accept: Callable[[Connection], FrameHandler]) -> LocalListener:
        """Accept connections at a free name."""
        host, port = parse_address(address)
        if port == 0:
            port, self._next_port = self._next_port, self._next_port + 1
        address = format_address(host, port)
        if address in self.ports:
            raise UsageError(f"cannot listen on {address}: it is taken", address=address)
        self.ports[address] = accept
        return LocalListener(self, address)

    def _end(self, peer: str) -> LocalConnection:
        frame_bytes_max = int(self._settings["rpc.frame_bytes_max"])
        high_water = int(self._settings["rpc.send_buffer_bytes"])
        invariant(frame_bytes_max > 0, "A-frame-bound", bound=frame_bytes_max)
        return LocalConnection(peer, frame_bytes_max=frame_bytes_max, high_water=high_water)
