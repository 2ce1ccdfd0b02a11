"""What a broken or hostile peer sends on a raw socket; a healthy peer on the same server notices nothing."""

import asyncio
import contextlib
import struct

import msgspec
import pytest

from slackwater.errors import ProtocolError
from slackwater.runtime import run
from slackwater.runtime.framing import FrameParser
from slackwater.runtime.rpc import faults, serving, wire
from slackwater.runtime.rpc.versions import SUPPORTED
from tests.unit.runtime.world import COUNT, ECHO, Answer, Ask, turns, world

HELLO = wire.encode(wire.Hello(wire.MAGIC, SUPPORTED.newest, "c1", 0, 6000))
DEEP = b"\x94\x04\x01" + b"\x91" * 100_000


def framed(*frames):
    return b"".join(struct.pack(">I", len(frame)) + frame for frame in frames)


def message(kind, *fields):
    return msgspec.msgpack.encode([kind, *fields])


class Raw:
    """A client made of bytes."""

    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer
        self.parser = FrameParser(frame_bytes_max=1 << 24)
        self.waiting = []

    def send(self, *frames):
        self.writer.write(framed(*frames))

    async def receive(self):
        while not self.waiting:
            data = await self.reader.read(1 << 16)
            if not data:
                return None
            self.waiting += self.parser.feed(data)
        return wire.decode_from_server(self.waiting.pop(0))

    async def until_closed(self):
        """Everything the server still says; returns only when it hangs up."""
        said = []
        with contextlib.suppress(ConnectionError):
            while (m := await self.receive()) is not None:
                said.append(m)
        return said


@contextlib.asynccontextmanager
async def raw_client(w):
    host, port = w.address.split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        yield Raw(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


def check(attack, **settings):
    """Run an attack beside a healthy peer with a call in flight."""

    async def main():
        async with world("tcp", **settings) as w:
            healthy = await w.peer()
            stream = healthy.stream(COUNT, Ask(10**9))
            await stream.__anext__()
            async with raw_client(w) as raw:
                await attack(w, raw)
            assert await healthy.call(ECHO, Ask(3)) == Answer(3)
            assert (await stream.__anext__()).n == 1
            await turns()
            assert w.crashes == []
            await stream.aclose()

    run(main())


def goodbye(said):
    assert said, "the server hung up without a word"
    assert isinstance(said[-1], wire.Goodbye)
    return said[-1]


@pytest.mark.parametrize(
    "junk", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\xff" * 64, b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" * 30]
)
def test_bytes_of_another_protocol_are_hung_up_on(junk):
    async def attack(w, raw):
        raw.writer.write(junk)
        assert await raw.until_closed() == []
        await turns()
        assert w.server.connections == 1

    check(attack)


@pytest.mark.parametrize(
    "first", [b"", b"\xc1", b"hello", DEEP, message(99, 1), message(4, 1, "echo", 0, 0, [1]), message(0)]
)
def test_a_first_frame_that_is_no_greeting_is_told_so(first):
    async def attack(w, raw):
        raw.send(first)
        assert goodbye(await raw.until_closed()).error == "ProtocolError"

    check(attack)


@pytest.mark.parametrize(
    "frame", [b"", b"\xc1", b"\x00" * 100, DEEP, message(99, 1), message(8, 1, 0, 1), message(4, "x"), HELLO]
)
def test_garbage_after_the_greeting_ends_that_connection(frame):
    async def attack(w, raw):
        raw.send(HELLO, frame)
        said = await raw.until_closed()
        assert isinstance(said[0], wire.Hello)
        assert goodbye(said).error == "ProtocolError"

    check(attack)


def test_a_peer_that_is_ended_for_garbage_hears_of_it_later_and_what_it_had_begun_ends_at_once(monkeypatch):
    async def attack(w, raw):
        healthy = await w.peer()
        w.gone.clear()
        w.arrived.clear()
        raw.send(HELLO, message(4, 1, "hang", 0, 0, {"n": 1}))
        assert isinstance(await raw.receive(), wire.Hello)
        await w.arrived.wait()
        with monkeypatch.context() as patched:
            patched.setattr(serving, "REFUSED_S", 3600.0)
            raw.send(b"\xc1", message(4, 2, "echo", 0, 0, {"n": 5}))
            await w.gone.wait()
            session = next(s for s in w.server.roster if s.ended)
        assert await healthy.call(ECHO, Ask(4)) == Answer(4)
        await turns()
        assert not raw.reader._buffer, "nothing was said to it yet"
        assert w.server.connections == 1, "it takes no place of others"
        session._hang_up(faults.goodbye(ProtocolError("that was no message")))
        assert goodbye(await raw.until_closed()).error == "ProtocolError"

    check(attack)


def test_an_oversized_frame_ends_that_connection_after_the_frames_before_it():
    async def attack(w, raw):
        raw.writer.write(
            framed(HELLO, message(4, 1, "echo", 0, 0, {"n": 5})) + struct.pack(">I", (1 << 16) + 1) + b"x" * 100
        )
        said = await raw.until_closed()
        assert isinstance(said[0], wire.Hello)
        assert w.server.connections == 1

    check(attack, frame_bytes_max=1 << 16)


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 20])
def test_a_disconnect_in_the_middle_of_a_frame_hurts_nobody(cut):
    async def attack(w, raw):
        raw.writer.write(framed(HELLO))
        assert isinstance(await raw.receive(), wire.Hello)
        raw.writer.write(framed(message(4, 1, "echo", 0, 0, {"n": 5, "data": b"x" * 40}))[:cut])
        raw.writer.write_eof()
        assert await raw.until_closed() == []
        await turns()
        assert w.server.connections == 1

    check(attack)


def test_a_reset_while_handlers_run_cancels_them():
    async def attack(w, raw):
        w.gone.clear()
        w.arrived.clear()
        raw.send(HELLO, *[message(4, n, "hang", 0, 0, {"n": 1}) for n in range(1, 11)])
        await w.arrived.wait()
        await turns()
        assert w.hanging == 11, "ten here and the healthy stream"
        raw.writer.transport.abort()
        await w.gone.wait()
        while w.hanging > 1:
            await turns(1)

    check(attack)


def test_faults_of_single_calls_keep_the_connection():
    async def attack(w, raw):
        raw.send(
            HELLO,
            message(4, 1, "nope", 0, 0, {}),
            message(4, 2, "echo", 0, 0, "not an Ask"),
            message(4, 3, "echo", 0, 0, {"n": "not a number"}),
            message(4, 4, "count", 0, 0, {"n": 1}),
            message(5, 5, "echo", 0, 0, 4, {"n": 1}),
            message(5, 6, "count", 0, 0, 0, {"n": 1}),
            message(5, 7, "count", 0, 0, 1 << 40, {"n": 1}),
            message(6, 12345),
            message(7, 12345, 1),
            message(4, 8, "x" * 1000, 0, 0, {}),
            message(4, 2**63, "echo", 0, 2**63, {"n": 1}),
            message(4, -1, "echo", 0, -5, {"n": 2}),
        )
        answers = {}
        while len(answers) < 10:
            m = await raw.receive()
            if not isinstance(m, wire.Hello):
                answers[m.id] = m
        faults = {i: a.error for i, a in answers.items() if isinstance(a, wire.Fault)}
        assert faults == {
            1: "ProtocolError", 2: "DecodeError", 3: "DecodeError", 4: "ProtocolError", 5: "ProtocolError",
            6: "ProtocolError", 7: "ProtocolError", 8: "ProtocolError",
        }  # fmt: skip
        assert set(answers) - set(faults) == {2**63, -1}

    check(attack)


def test_an_identifier_used_twice_ends_the_connection():
    async def attack(w, raw):
        raw.send(HELLO, message(4, 1, "hang", 0, 0, {"n": 1}), message(4, 1, "hang", 0, 0, {"n": 1}))
        assert "twice" in goodbye(await raw.until_closed()).message

    check(attack)


def test_a_client_that_never_reads_slows_only_itself():
    async def attack(w, raw):
        raw.reader._transport.pause_reading()
        raw.send(HELLO)
        while w.server.connections < 2:
            await turns(1)
        connection = list(w.server._sessions)[1]._connection
        for n in range(1, 2000):
            raw.send(message(4, n, "double", 0, 0, {"n": n, "data": b"x" * (1 << 15)}))
            raw.send(message(4, n + 10_000, "echo", 0, 0, {"n": n, "data": b"x" * (1 << 15)}))
        while not connection.congested:
            await turns(1)
        await turns(300)
        queued = connection._transport.get_write_buffer_size()
        assert queued < 1 << 24, "it stopped reading long before the 64 MiB that were asked for"
        raw.writer.transport.abort()

    check(attack, send_buffer_bytes=1 << 16)
