"""A server and a dialer in one loop, on TCP or in process: what the RPC tests share."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, cast

import msgspec

from slackwater.runtime import LocalNet, RealRuntime, Scope, TcpNet
from slackwater.runtime.access import ANYBODY
from slackwater.runtime.rpc import Context, Dialer, Identity, Method, Peer, RpcServer, StreamMethod
from slackwater.runtime.sync import Event, Future, get_running_loop
from slackwater.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.runtime.rpc import ClockHook
    from slackwater.runtime.seam import Disk

NETS = ["tcp", "local"]


class Ask(msgspec.Struct, frozen=True):
    n: int
    data: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    n: int
    data: bytes = b""


ECHO = Method("echo", Ask, Answer, callers=ANYBODY)
DOUBLE = Method("double", Ask, Answer, callers=ANYBODY)
HANG = Method("hang", Ask, Answer, callers=ANYBODY)
FAIL = Method("fail", Ask, Answer, callers=ANYBODY)
COUNT = StreamMethod("count", Ask, Answer, callers=ANYBODY)


class World:
    """Everything a test may want to look at."""

    def __init__(self, net: str, settings: Settings, hook: ClockHook | None, identity: Identity | None) -> None:
        self.settings = settings
        self.runtime = RealRuntime(disk=cast("Disk", None), settings=settings)
        self.runtime.net = LocalNet(settings) if net == "local" else TcpNet(settings)
        self.scope: Scope = self.runtime.scope("test")
        self.identity = identity or Identity(cluster_id="c1", node_id=1)
        self.server = RpcServer(self.runtime, self.scope, identity=self.identity, settings=settings, hook=hook)
        self.dialer = Dialer(self.runtime, self.scope, identity=Identity(cluster_id="c1"), settings=settings, hook=hook)
        self.address = ""
        self.hanging = 0  # handlers of HANG and COUNT that are running
        self.produced = 0  # items COUNT has yielded
        self.cancelled = 0
        self.arrived: Event = Event()
        self.gone: Event = Event()
        self.error: BaseException = RuntimeError("unset")
        self.crashes: list[str] = []

    async def hang(self, request: Ask, context: Context) -> Answer:
        self._enter()
        try:
            await cast("Future[None]", get_running_loop().create_future())
        finally:
            self._leave()
        raise AssertionError("unreachable")

    async def fail(self, request: Ask, context: Context) -> Answer:
        raise self.error

    async def count(self, request: Ask, context: Context) -> AsyncIterator[Answer]:
        self._enter()
        try:
            for n in range(request.n):
                self.produced += 1
                yield Answer(n, request.data)
        finally:
            self._leave()

    def _enter(self) -> None:
        self.hanging += 1
        self.arrived.set()

    def _leave(self) -> None:
        self.hanging -= 1
        self.cancelled += 1
        self.gone.set()

    async def peer(self) -> Peer:
        return await self.dialer.peer(self.address)


async def echo(request: Ask, context: Context) -> Answer:
    return Answer(request.n, request.data)


@contextlib.asynccontextmanager
async def world(
    net: str = "local",
    *,
    hook: ClockHook | None = None,
    identity: Identity | None = None,
    **settings: float,
) -> AsyncIterator[World]:
    """A running world; settings are given as `stream_window=4` for `rpc.stream_window`."""
    w = World(net, Settings({f"rpc.{k}": v for k, v in settings.items()}), hook, identity)
    get_running_loop().set_exception_handler(lambda _, context: w.crashes.append(str(context["message"])))
    w.server.handle(ECHO, echo)
    w.server.handle_sync(DOUBLE, lambda request, _: Answer(2 * request.n))
    w.server.handle(HANG, w.hang)
    w.server.handle(FAIL, w.fail)
    w.server.handle_stream(COUNT, w.count)
    w.address = await w.server.listen("127.0.0.1:0")
    try:
        yield w
    finally:
        await w.dialer.close()
        await w.server.close()
        await w.scope.close()
        w.runtime.close()
        assert w.hanging == 0, "a handler outlived its server"


async def turns(count: int = 20) -> None:
    """Let the loop turn a few times."""
    for _ in range(count):
        turn: Future[None] = get_running_loop().create_future()
        get_running_loop().call_soon(turn.set_result, None)
        await turn
