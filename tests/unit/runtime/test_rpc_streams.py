import asyncio

import pytest

from slackwater.errors import (
    BelowGcThreshold,
    ConnectionLost,
    DeadlineExceeded,
    DecodeError,
    ProtocolError,
    SlackwaterError,
)
from slackwater.runtime import run
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import StreamMethod
from slackwater.runtime.rpc.wire import Credit, Item, encode, raw
from tests.unit.runtime.world import COUNT, ECHO, NETS, Answer, Ask, turns, world

both_nets = pytest.mark.parametrize("net", NETS)


@both_nets
@pytest.mark.parametrize("window", [1, 2, 3, 64])
def test_a_stream_delivers_everything_in_order(net, window):
    async def main():
        async with world(net, stream_window=window) as w:
            peer = await w.peer()
            assert [item.n async for item in peer.stream(COUNT, Ask(500))] == list(range(500))
            assert [item async for item in peer.stream(COUNT, Ask(0))] == []
            assert peer.in_flight == 0
            await turns()
            assert "running=0" in w.server.status()

    run(main())


@both_nets
@pytest.mark.parametrize("window", [1, 4, 16])
def test_a_slow_consumer_stops_the_producer_and_nobody_else(net, window):
    async def main():
        async with world(net, stream_window=window) as w:
            peer = await w.peer()
            stream = peer.stream(COUNT, Ask(10_000))
            for taken in range(1, 40):
                await stream.__anext__()
                assert await peer.call(ECHO, Ask(taken)) == Answer(taken), "calls pass a blocked stream"
                await turns()
                assert stream.buffered <= window
                assert w.produced <= taken + window + 1, "one item may wait in the server for credit"
            await stream.aclose()
            await w.gone.wait()
            assert w.hanging == 0

    run(main())


def test_a_full_send_buffer_stops_the_producer():
    async def main():
        async with world("tcp", stream_window=4096, send_buffer_bytes=1 << 12) as w:
            peer = await w.peer()
            peer._connection._transport.pause_reading()
            stream = peer.stream(COUNT, Ask(4000, bytes(1 << 14)))
            await w.arrived.wait()
            stuck = -1
            while stuck != w.produced:  # the socket's own buffers fill up first
                stuck = w.produced
                await asyncio.sleep(0.02)
            assert w.produced < 4000
            peer._connection._transport.resume_reading()
            assert sum([1 async for _ in stream]) == 4000

    run(main())


@both_nets
def test_many_streams_share_a_connection(net):
    async def main():
        async with world(net, stream_window=3) as w:
            peer = await w.peer()

            async def total(n):
                return sum([item.n async for item in peer.stream(COUNT, Ask(n))])

            totals = await asyncio.gather(*[total(n) for n in range(100)])
            assert totals == [n * (n - 1) // 2 for n in range(100)]

    run(main())


@both_nets
def test_leaving_a_stream_early_stops_the_server(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            async with peer.stream(COUNT, Ask(10**9)) as stream:
                async for item in stream:
                    if item.n == 100:
                        break
            await w.gone.wait()
            assert w.hanging == 0
            assert peer.in_flight == 0
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()

    run(main())


@both_nets
def test_cancelling_the_consumer_stops_the_server(net):
    async def main():
        async with world(net) as w:
            peer = await w.peer()
            never = StreamMethod("never", Ask, Answer, callers=ANYBODY)

            async def silent(request, context):
                w._enter()
                try:
                    await asyncio.get_running_loop().create_future()
                    yield Answer(1)
                finally:
                    w._leave()

            w.server.handle_stream(never, silent)
            task = w.scope.spawn(peer.stream(never, Ask(1)).__anext__(), name="consume")
            await w.arrived.wait()
            task.cancel()
            await w.gone.wait()
            assert peer.in_flight == 0

    run(main())


def test_an_error_comes_after_the_items_before_it():
    async def main():
        async with world() as w:
            broken = StreamMethod("broken", Ask, Answer, callers=ANYBODY)

            async def some(request, context):
                yield Answer(1)
                yield Answer(2)
                raise BelowGcThreshold("too old", threshold=5)

            w.server.handle_stream(broken, some)
            peer = await w.peer()
            stream = peer.stream(broken, Ask(1))
            await turns()
            assert [(await stream.__anext__()).n, (await stream.__anext__()).n] == [1, 2]
            with pytest.raises(BelowGcThreshold, match="too old"):
                await stream.__anext__()
            with pytest.raises(StopAsyncIteration):
                await stream.__anext__()
            assert w.crashes == []

    run(main())


def test_a_crash_in_a_stream_is_reported_on_both_sides():
    async def main():
        async with world() as w:
            bad = StreamMethod("bad", Ask, Answer, callers=ANYBODY)

            async def crash(request, context):
                yield object()

            w.server.handle_stream(bad, crash)
            peer = await w.peer()
            with pytest.raises(SlackwaterError, match="handler of bad crashed"):
                await peer.stream(bad, Ask(1)).__anext__()
            assert w.crashes == ["the RPC handler of bad crashed"]

    run(main())


def test_a_deadline_bounds_the_life_of_a_stream():
    async def main():
        async with world(stream_window=1) as w:
            stream = (await w.peer()).stream(COUNT, Ask(100), timeout=0.05)
            assert (await stream.__anext__()).n == 0
            await w.gone.wait()
            with pytest.raises(DeadlineExceeded):
                async for _ in stream:
                    pass

    run(main())


@both_nets
def test_a_lost_connection_ends_streams_on_both_sides(net):
    async def main():
        async with world(net, stream_window=2) as w:
            peer = await w.peer()
            stream = peer.stream(COUNT, Ask(100))
            assert (await stream.__anext__()).n == 0
            peer._connection.close()
            with pytest.raises(ConnectionLost):
                async for _ in stream:
                    pass
            await w.gone.wait()
            assert w.hanging == 0

    run(main())


def test_an_item_of_the_wrong_type_fails_the_stream_and_stops_the_server():
    async def main():
        async with world() as w:
            peer = await w.peer()
            with pytest.raises(DecodeError):
                await peer.stream(StreamMethod("count", Ask, list[str], callers=ANYBODY), Ask(10**9)).__anext__()
            await w.gone.wait()
            assert await peer.call(ECHO, Ask(1)) == Answer(1)

    run(main())


def test_a_server_that_ignores_the_window_fails_its_stream():
    async def main():
        async with world(stream_window=2) as w:
            peer = await w.peer()
            stream = peer.stream(COUNT, Ask(2))
            peer.frames([encode(Item(1, 0, raw(Answer(n)))) for n in range(3)])
            with pytest.raises(ProtocolError, match="window"):
                async for _ in stream:
                    pass

    run(main())


async def exhaust(stream):
    async for _ in stream:
        await turns(5)


def test_a_caller_that_invents_credit_is_disconnected():
    async def main():
        async with world(stream_window=2) as w:
            peer = await w.peer()
            stream = peer.stream(COUNT, Ask(100))
            await stream.__anext__()
            peer._send(encode(Credit(1, 50)))
            with pytest.raises(ConnectionLost, match="more stream credit"):
                await exhaust(stream)

    run(main())
