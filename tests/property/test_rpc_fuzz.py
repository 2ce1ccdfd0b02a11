"""Arbitrary bytes into the frame parser and both ends of an RPC connection: nothing crashes, nobody else is hurt."""

from __future__ import annotations

import asyncio
import struct

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.errors import DecodeError
from slackwater.runtime.framing import FrameParser
from slackwater.runtime.rpc import wire
from slackwater.runtime.rpc.faults import CLASSES, pack, unpack
from slackwater.runtime.rpc.versions import SUPPORTED
from tests.unit.runtime.world import ECHO, Answer, Ask, turns, world

HELLO = wire.encode(wire.Hello(wire.MAGIC, SUPPORTED.newest, "c1", 0, 6000))

small = st.integers(-2, 12)
values = st.recursive(
    st.none()
    | st.booleans()
    | small
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats()
    | st.binary(max_size=8)
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=4),
    max_leaves=8,
)
names = st.sampled_from(["echo", "double", "hang", "fail", "count", "nope", ""])
asks = st.fixed_dictionaries({"n": small}) | values
shaped = st.one_of(
    st.tuples(st.just(4), small, names, st.integers(0, 5), st.integers(-1, 10**6), asks),
    st.tuples(st.just(5), small, names, st.integers(0, 5), st.integers(-1, 10**6), st.integers(-1, 5), asks),
    st.tuples(st.sampled_from([6]), small),
    st.tuples(st.just(7), small, small),
    st.tuples(st.sampled_from([2, 3]), small, small, small),
    st.tuples(st.sampled_from([8, 9, 10]), small, small, values),
    st.tuples(
        st.just(11),
        small,
        small,
        st.sampled_from([*CLASSES, "Odd"]),
        st.text(max_size=5),
        st.dictionaries(st.text(max_size=9), values),
    ),
    st.tuples(st.just(1), st.text(max_size=5), st.text(max_size=5), st.dictionaries(st.text(max_size=3), values)),
    st.lists(values, max_size=7),
).map(msgspec.msgpack.encode)
frames = st.lists(st.one_of(shaped, st.binary(max_size=64)), max_size=8)


@given(data=st.binary(max_size=400), cuts=st.lists(st.integers(1, 50), max_size=20))
@settings(max_examples=300, deadline=None)
def test_the_parser_gives_the_same_frames_however_the_bytes_are_cut(data, cuts):
    whole = FrameParser(frame_bytes_max=64)
    expected = whole.feed(data)
    pieces = FrameParser(frame_bytes_max=64)
    got, at = [], 0
    for cut in [*cuts, len(data) + 1]:
        got += pieces.feed(data[at : at + cut])
        at += cut
    assert got == expected
    assert pieces.fault == whole.fault
    assert all(len(frame) <= 64 for frame in got)
    assert data.startswith(b"".join(struct.pack(">I", len(f)) + f for f in got))


@given(frame=st.one_of(shaped, st.binary(max_size=200)))
@settings(max_examples=500, deadline=None)
def test_decoders_raise_one_error(frame):
    for decode in (wire.decode_from_caller, wire.decode_from_server):
        try:
            decode(frame)
        except DecodeError:
            continue


@given(batches=st.lists(frames, min_size=1, max_size=4), greet=st.booleans())
@settings(max_examples=150, deadline=None)
def test_no_frames_crash_a_server_or_hurt_another_caller(batches, greet):
    async def main():
        async with world("local") as w:
            healthy = await w.peer()
            ends = []

            class Fuzzer:
                def __init__(self, connection):
                    self.connection, self.reasons = connection, []
                    ends.append(self)

                def frames(self, frames):
                    for frame in frames:
                        wire.decode_from_server(frame)

                def closed(self, reason):
                    self.reasons.append(reason)

                def writable(self):
                    pass

            await w.runtime.net.connect(w.address, Fuzzer)
            if greet:
                ends[0].connection.send(HELLO)
            for batch in batches:
                for frame in batch:
                    ends[0].connection.send(frame)
                await turns(3)
            assert await healthy.call(ECHO, Ask(1)) == Answer(1)
            assert [c for c in w.crashes if "fail" not in c] == [], "FAIL crashes on purpose"
            assert w.server.scope.failure is None
            ends[0].connection.close()
            await turns()
            assert w.server.connections == 1
            assert w.server.status().startswith("rpc connections=1 running=0 ")

    asyncio.run(main())


@given(batch=frames)
@settings(max_examples=150, deadline=None)
def test_no_frames_crash_a_caller(batch):
    async def main():
        async with world("local") as w:
            peer = await w.peer()
            call = asyncio.ensure_future(peer.call(ECHO, Ask(1)))
            await turns(1)
            peer.frames(batch)
            await asyncio.wait([call])
            call.exception()
            other = await w.peer()
            assert await other.call(ECHO, Ask(2)) == Answer(2) or other.ended

    asyncio.run(main())


@given(
    name=st.sampled_from(sorted(CLASSES)),
    message=st.text(max_size=20),
    facts=st.dictionaries(st.text(max_size=6), values | st.builds(object), max_size=5),
)
@settings(max_examples=200, deadline=None)
def test_errors_survive_the_wire(name, message, facts):
    kind = CLASSES[name]
    error = kind("I-1", facts) if name == "InvariantViolation" else kind(message, **facts)
    again = unpack(*msgspec.msgpack.decode(msgspec.msgpack.encode(pack(error))))
    assert type(again) is kind
    assert again.message == error.message
    assert sorted(again.facts) == sorted(k for k in facts if not (name == "InvariantViolation" and k == "rule"))


@pytest.mark.parametrize("depth", [10, 1000, 200_000])
def test_deep_nesting_is_a_decode_error(depth):
    with pytest.raises(DecodeError):
        wire.decode_from_caller(b"\x96\x04\x01\xa4echo\x00\x00" + b"\x91" * depth)
