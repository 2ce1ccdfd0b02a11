"""RPC round trips per second between two processes on one connection, beside grpc.aio doing the same.

Each contestant has a server in a process of its own and one connection (for gRPC: one channel). The client, in this
process, keeps a number of calls in flight; a call carries 128 bytes and gets 128 back. Contestants run in turns, so
that a noisy neighbor hits both alike, and the figure is the ratio of the medians.

    ours        uvloop, an `async def` handler (one task per call, as drivers do), msgspec structs as bodies
    grpc.aio    on uvloop too, generic bytes handlers, so nothing is spent on protobuf

gRPC was measured on both loops: uvloop's was the faster at 32 in flight, the figure with a goal, so it gets that one.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import sys
from typing import TYPE_CHECKING, Any, cast

import msgspec

from bench.harness import Figure, figure, interleaved
from slackwater.runtime import RealRuntime
from slackwater.runtime import run as run_main
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Context, Dialer, Identity, Method, RpcServer, StreamMethod
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
    from multiprocessing.connection import Connection as Pipe

    from slackwater.runtime.seam import Disk

PAYLOAD = b"x" * 128
STREAM_MESSAGES = 20_000
SETTINGS = Settings({"rpc.heartbeat_timeout": 120})  # a contestant stands still while it is not its turn


class Body(msgspec.Struct, frozen=True):
    """What travels both ways."""

    data: bytes


ECHO = Method("echo", Body, Body, callers=ANYBODY)
FEED = StreamMethod("feed", Body, Body, callers=ANYBODY)
GRPC_ECHO, GRPC_FEED = "/bench/echo", "/bench/feed"


# --- servers, one process each


def _serve_ours(pipe: Pipe) -> None:
    async def echo(request: Body, context: Context) -> Body:
        return request

    async def feed(request: Body, context: Context) -> AsyncIterator[Body]:
        for _ in range(STREAM_MESSAGES):
            yield request

    async def main() -> None:
        runtime = RealRuntime(disk=cast("Disk", None))
        scope = runtime.scope("bench")
        server = RpcServer(runtime, scope, identity=Identity(node_id=1), settings=SETTINGS)
        server.handle(ECHO, echo)
        server.handle_stream(FEED, feed)  # type: ignore[arg-type]  # an async generator is annotated as an iterator
        pipe.send(await server.listen("127.0.0.1:0"))
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await server.close()

    run_main(main())


def _serve_grpc(pipe: Pipe) -> None:
    import grpc

    async def echo(request: bytes, context: Any) -> bytes:
        return request

    async def feed(request: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(STREAM_MESSAGES):
            yield request

    class Handlers(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types here
        def service(self, details: Any) -> Any:
            if details.method == GRPC_ECHO:
                return grpc.unary_unary_rpc_method_handler(echo)
            return grpc.unary_stream_rpc_method_handler(feed)

    async def main() -> None:
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((Handlers(),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        pipe.send(f"127.0.0.1:{port}")
        await asyncio.get_running_loop().run_in_executor(None, pipe.recv)
        await server.stop(None)

    run_main(main())


# --- clients, both in this process, each on a loop of its own


class Client:
    """A loop, and functions that make one call or read one stream on it."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.call: Callable[[], Awaitable[Any]]
        self.drain: Callable[[], Awaitable[int]]
        self.close: Callable[[], Awaitable[None]]

    def round_trips(self, count: int, in_flight: int) -> int:
        """Make `count` calls, `in_flight` at a time."""
        return self.loop.run_until_complete(self._round_trips(count, in_flight))

    def messages(self) -> int:
        """Read one stream to its end."""
        return self.loop.run_until_complete(self.drain())

    async def _round_trips(self, count: int, in_flight: int) -> int:
        call = self.call

        async def worker() -> None:
            for _ in range(count // in_flight):
                await call()

        await asyncio.gather(*[worker() for _ in range(in_flight)])
        return count // in_flight * in_flight


def _connect_ours(address: str) -> Client:
    import uvloop

    client = Client(uvloop.new_event_loop())

    async def connect() -> None:
        runtime = RealRuntime(disk=cast("Disk", None))
        scope = runtime.scope("bench")
        dialer = Dialer(runtime, scope, identity=Identity(), settings=SETTINGS)
        peer = await dialer.peer(address)
        body = Body(PAYLOAD)

        async def drain() -> int:
            count = 0
            async for _ in peer.stream(FEED, body):
                count += 1
            return count

        client.call = lambda: peer.call(ECHO, body, timeout=30.0)
        client.drain = drain
        client.close = dialer.close

    client.loop.run_until_complete(connect())
    return client


def _connect_grpc(address: str) -> Client:
    import grpc
    import uvloop

    client = Client(uvloop.new_event_loop())

    async def connect() -> None:
        channel = grpc.aio.insecure_channel(address)
        echo = channel.unary_unary(GRPC_ECHO)
        feed = channel.unary_stream(GRPC_FEED)

        async def drain() -> int:
            count = 0
            async for _ in feed(PAYLOAD):
                count += 1
            return count

        await echo(PAYLOAD)
        client.call = lambda: echo(PAYLOAD, timeout=30.0)
        client.drain = drain
        client.close = channel.close

    client.loop.run_until_complete(connect())
    return client


def run(*, quick: bool) -> Iterator[Figure]:
    """Round trips at 32 and 1 in flight, and streamed messages, as ratios to grpc.aio."""
    spawn = multiprocessing.get_context("spawn")
    servers, clients = [], []
    for serve, connect in ((_serve_ours, _connect_ours), (_serve_grpc, _connect_grpc)):
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs,))
        process.start()
        servers.append((process, ours))
        clients.append(connect(ours.recv()))
    mine, peer = clients
    scale, rounds = (1, 3) if quick else (5, 5)
    try:
        for in_flight, goal in ((32, 5.0), (1, None)):
            many, few = 6400 * scale, 1600 * scale
            if in_flight == 1:
                many, few = many // 4, few // 4
            rates = interleaved(
                {
                    "ours": lambda: mine.round_trips(many, in_flight),  # noqa: B023 - called before the next turn
                    "grpc": lambda: peer.round_trips(few, in_flight),  # noqa: B023
                },
                rounds=rounds,
            )
            name = f"round trips, {in_flight} in flight"
            yield figure("rpc", name, rates["ours"], "calls/s", peer="grpc.aio", peer_value=rates["grpc"], goal=goal)
        rates = interleaved({"ours": mine.messages, "grpc": peer.messages}, rounds=rounds)
        yield figure("rpc", "streamed", rates["ours"], "messages/s", peer="grpc.aio", peer_value=rates["grpc"])
    finally:
        for client in clients:
            client.loop.run_until_complete(client.close())
            client.loop.close()
        for process, pipe in servers:
            pipe.send("stop")
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


if __name__ == "__main__":
    for measured in run(quick="--quick" in sys.argv):
        print(msgspec.json.encode(measured).decode())
