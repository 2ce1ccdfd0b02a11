"""Sends fuzzed frames to the nodes of a cluster, over many connections at once.

Each connection greets as a client or as a node, keeps a window of requests in flight, and counts the answers. Being thrown
out for garbage is an answer too: the connection is made again. A frame is remembered by the number it was sent under, so
that the last ones before a crash can be looked at.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import Counter, deque
from typing import TYPE_CHECKING, Any

import msgspec

from slackwater.runtime.framing import FrameParser
from slackwater.runtime.rpc import wire
from slackwater.runtime.rpc.method import StreamMethod
from slackwater.runtime.rpc.versions import SUPPORTED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from tests.fuzz.shapes import Shapes

WINDOW = 64
NOISY_WINDOW = 4
"""Of a connection that will be thrown out soon in any case."""
RECENT = 2000
TIMEOUT_US = 300_000
ANSWER_S = 20.0
UNSENT = frozenset({"admin.drain"})
"""A node that is told to drain gives up its leases until it is restarted, and the request has no field to get wrong."""
HEAVY = frozenset({"admin.split", "admin.merge", "admin.refetch", "admin.decommission"})
"""Operations that an operator may well ask for, and that stop ranges for a moment when they are done a thousand times."""
HEAVY_ONE_IN = 60
"""Of the turns of such a method; in the others a light one is called."""
LIGHT = "node.report"


class Siege:
    """All connections together, and what they saw."""

    last = ""
    """The method of the latest frame."""

    def __init__(
        self, shapes: Shapes, methods: dict[str, Any], *, avoid: dict[str, frozenset[int]], rate: float = 0
    ) -> None:
        self.shapes = shapes
        self.methods = methods
        self.avoid = avoid
        self.rate = rate
        """Frames a second on each connection; 0: as many as are answered."""
        self.sent = 0
        self.answered = 0
        self.reconnects = 0
        self.errors: Counter[str] = Counter()
        self.samples: dict[str, str] = {}
        self.by_method: Counter[str] = Counter()
        self.recent: deque[bytes] = deque(maxlen=RECENT)
        self._names = [name for name in methods if name not in UNSENT]
        self._heavy: Counter[str] = Counter()
        self._turn = 0

    def frame(self, call: int, *, noisy: bool) -> bytes:
        """The next frame: a request of the method whose turn it is, or on a noisy connection anything at all."""
        self._turn += 1
        if noisy and self._turn % 7 == 0:
            return self.shapes.noise()
        name = self._names[self._turn % len(self._names)]
        if name in HEAVY:
            self._heavy[name] += 1
            if self._heavy[name] % HEAVY_ONE_IN:
                name = LIGHT
        method = self.methods[name]
        body = msgspec.Raw(self.shapes.body(method, avoid=self.avoid.get(name, frozenset()), damage=noisy))
        stamp = self.shapes.number() if self._turn % 31 == 0 else 0
        self.by_method[name] += 1
        self.last = name
        if noisy and self._turn % 5 == 0:  # the envelope itself is odd
            return msgspec.msgpack.encode([4, call, name, stamp, self.shapes.number(), body])
        if isinstance(method, StreamMethod):
            return wire.encode(wire.OpenStream(call, name, stamp, TIMEOUT_US, 8, body))
        return wire.encode(wire.Request(call, name, stamp, TIMEOUT_US, body))

    async def attack(self, address: str, *, node_id: int, noisy: bool, going_on: Callable[[], bool]) -> None:
        """One connection, made again whenever it is lost."""
        while going_on():
            try:
                await self._connection(address, node_id, going_on, noisy=noisy)
            except (OSError, TimeoutError, asyncio.IncompleteReadError):
                await asyncio.sleep(0.05)
            self.reconnects += 1

    async def replay(self, address: str, frames: Iterable[bytes]) -> None:
        """Send kept frames, each on a connection of its own."""
        for frame in frames:
            with contextlib.suppress(OSError):
                line = await _Line.open(address, node_id=0)
                line.send(frame)
                await line.listen(0.05, lambda _: None)
                line.close()

    async def _connection(self, address: str, node_id: int, going_on: Callable[[], bool], *, noisy: bool) -> None:
        line = await _Line.open(address, node_id=node_id)
        open_calls: dict[int, None] = {}
        names: dict[int, str] = {}
        call = 0

        def heard(message: Any) -> None:
            if isinstance(message, wire.Response | wire.Fault | wire.End) and message.id in open_calls:
                del open_calls[message.id]
                self.answered += 1
            if isinstance(message, wire.Fault):
                self.errors[message.error] += 1
                self.samples.setdefault(f"{names.get(message.id)} {message.error}", message.message[:160])
            elif isinstance(message, wire.Item) and message.id in open_calls:
                line.send(wire.encode(wire.Cancel(message.id)))
                del open_calls[message.id]
                self.answered += 1

        try:
            while going_on() and not line.ended:
                sent = call
                while len(open_calls) < (NOISY_WINDOW if noisy else WINDOW) and not line.ended:
                    call += 1
                    frame = self.frame(call, noisy=noisy)
                    self.sent += 1
                    names[call] = self.last
                    self.recent.append(frame)
                    open_calls[call] = None
                    line.send(frame)
                sent = call - sent
                await line.writer.drain()
                if self.rate:
                    await asyncio.sleep(sent / self.rate)
                before = len(open_calls)
                await line.listen(
                    0.05 if noisy else 0.5, heard, until=lambda: len(open_calls) < WINDOW // 2 and not noisy
                )
                if len(open_calls) == before:  # noise and odd envelopes are never answered: forget the oldest
                    for old in list(open_calls)[: WINDOW // 2]:
                        line.send(wire.encode(wire.Cancel(old)))
                        del open_calls[old]
        finally:
            line.close()


class _Line:
    """A greeted connection of plain bytes."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self._parser = FrameParser(frame_bytes_max=1 << 25)
        self.ended = False

    @classmethod
    async def open(cls, address: str, *, node_id: int) -> _Line:
        host, port = address.rsplit(":", 1)
        line = cls(*await asyncio.wait_for(asyncio.open_connection(host, int(port)), ANSWER_S))
        line.send(wire.encode(wire.Hello(wire.MAGIC, SUPPORTED.newest, "", node_id, 60_000)))
        return line

    def send(self, frame: bytes) -> None:
        self.writer.write(struct.pack(">I", len(frame)) + frame)

    async def listen(
        self, seconds: float, heard: Callable[[Any], None], until: Callable[[], bool] = lambda: False
    ) -> None:
        """Take what comes for some time, or until a condition holds, or the other side ends it."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                while not until():
                    data = await self.reader.read(1 << 16)
                    if not data:
                        self.ended = True
                        return
                    for frame in self._parser.feed(data):
                        with contextlib.suppress(Exception):  # what a newer server says is its own business
                            heard(wire.decode_from_server(frame))

    def close(self) -> None:
        self.writer.close()
