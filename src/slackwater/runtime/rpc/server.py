"""The RPC server: a table of methods behind a listener.

    server = RpcServer(runtime, scope, identity=identity, settings=settings, hook=hook)
    server.handle(READ, read)                # async def read(request, context) -> response
    server.handle_sync(PING, ping)           # def ping(request, context) -> response: no task, no suspension
    server.handle_stream(FEED, feed)         # async def feed(request, context): yield item
    await server.listen("0.0.0.0:7400")

The server owns a child of the scope it is given. Handlers run in it, but cannot crash it: what they raise goes to their
caller. Closing the server closes the listeners, the connections and the handlers, in that order.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from slackwater.errors import Overloaded, SlackwaterError, UsageError
from slackwater.hooks import level
from slackwater.runtime.rpc.method import ClockHook, Context, Identity, Method, StreamMethod
from slackwater.runtime.rpc.patience import PatienceByPeer
from slackwater.runtime.rpc.serving import ASYNC, STREAM, SYNC, ServerSession
from slackwater.runtime.rpc.session import RpcSession, end_revoked, leave

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable

    from slackwater.runtime.access import Certificate
    from slackwater.runtime.later import Later
    from slackwater.runtime.seam import Address, Connection, Listener, Runtime, TaskScope
    from slackwater.settings import Settings

Req = TypeVar("Req")
Res = TypeVar("Res")

REFUSALS_KEPT_MAX = 64
METHOD_NAME_CHARS_MAX = 80


class Handler(NamedTuple):
    """A method and what serves it."""

    method: Method[Any, Any] | StreamMethod[Any, Any]
    kind: str
    function: Callable[[Any, Context], Any]
    callers: int
    """The bits of the roles that the method declares."""
    at_once: Callable[[Any, Context], Any] | None = None
    """Tried first: the answer, a `Later` of it, or None when the request has to wait for something (`RpcServer.handle`)."""


class RpcServer:
    """Serves methods to every connection it accepts."""

    def __init__(
        self,
        runtime: Runtime,
        scope: TaskScope,
        *,
        identity: Identity,
        settings: Settings,
        hook: ClockHook | None = None,
        check_node: Callable[[int, Certificate | None], None] = lambda _node_id, _certificate: None,
    ) -> None:
        self.runtime = runtime
        self.scope = scope.child("rpc")
        self.identity = identity
        self.settings = settings
        self.hook = hook
        self.check_node = check_node
        """Raises `AccessDenied` when a certificate is not that of the node that its bearer says it is."""
        self.handlers: dict[str, Handler] = {}
        self.why_unserved: Callable[[], SlackwaterError | None] = lambda: None
        """Why a method without a handler has none, where its owner knows better than that it does not exist."""
        self.refusals: deque[tuple[str, SlackwaterError]] = deque(maxlen=REFUSALS_KEPT_MAX)
        self.refused_total: Counter[str] = Counter()
        """How often each kind of error was a refusal, for as long as the server lives."""
        self.peers = PatienceByPeer(float(settings["rpc.refused_per_s"]))
        self.held_s = 0.0
        """For how long peers were not read because of what they sent, all together."""
        self.crashes = 0
        self.roster: dict[RpcSession, None] = {}  # connections not gone yet, ended or not
        self._sessions: dict[ServerSession, None] = {}
        self._listeners: list[Listener] = []

    def handle(
        self,
        method: Method[Req, Res],
        function: Callable[[Req, Context], Awaitable[Res]],
        *,
        at_once: Callable[[Req, Context], Res | Later[Res] | None] | None = None,
    ) -> None:
        """Serve a method with a coroutine function: one task per call that waits.

        `at_once` is tried first, in the step in which the frame arrives. It answers, or begins what needs no task to be ended
        (`Later`), or raises what is the answer; None, at once or told later, says that it has done nothing because something has
        to be waited for, and the coroutine function serves the call.
        """
        self._register(Handler(method, ASYNC, function, method.callers.value, at_once))

    def handle_sync(self, method: Method[Req, Res], function: Callable[[Req, Context], Res]) -> None:
        """Serve a method with a plain function that returns at once: no task at all."""
        self._register(Handler(method, SYNC, function, method.callers.value))

    def handle_stream(
        self, method: StreamMethod[Req, Res], function: Callable[[Req, Context], AsyncGenerator[Res, None]]
    ) -> None:
        """Serve a stream with an asynchronous generator; it is closed when the caller goes."""
        self._register(Handler(method, STREAM, function, method.callers.value))

    async def listen(self, address: Address) -> Address:
        """Accept connections; returns the address with the real port."""
        listener = await self.runtime.net.listen(address, self.accept)
        self._listeners.append(listener)
        return listener.address

    def accept(self, connection: Connection) -> ServerSession:
        """Serve a connection that the network has accepted (`seam.Net.listen`)."""
        session = ServerSession(self, connection)
        limit = int(self.settings["rpc.connections_max"])
        if len(self._sessions) >= limit:
            error = Overloaded("too many connections; close some or raise rpc.connections_max", limit=limit)
            self.refused(connection.peer, error)
            session.turn_away(error)
        else:
            self._sessions[session] = None
            level("rpc.accepted", len(self._sessions), limit)
        return session

    async def close(self) -> None:
        """Accept nothing more, end every connection and cancel every handler."""
        for listener in self._listeners:
            await listener.close()
        self._listeners.clear()
        for session in list(self._sessions):
            session.close()
        await self.scope.close()
        await leave(self.roster)

    def end_revoked(self, serials: frozenset[int], error: SlackwaterError) -> int:
        """End the connections of peers whose certificate is revoked; how many."""
        return end_revoked(self.roster, serials, error)

    @property
    def connections(self) -> int:
        """Connections that have not ended."""
        return len(self._sessions)

    def status(self) -> str:
        """One line for logs and scripts."""
        running = sum(session.in_flight for session in self._sessions)
        served = f"methods={len(self.handlers)} crashes={self.crashes}"
        return f"rpc connections={len(self._sessions)} running={running} {served}"

    # --- what sessions call

    def refused(self, peer: str, error: SlackwaterError) -> None:
        """Remember why a peer was refused; the journal and the metrics read it from here."""
        self.refusals.append((peer, error))
        self.refused_total[type(error).__name__] += 1

    def crashed(self, method: str, error: BaseException) -> None:
        """Report a bug in a handler."""
        self.crashes += 1
        message = f"the RPC handler of {method} crashed"
        asyncio.get_running_loop().call_exception_handler({"message": message, "exception": error})

    def forget(self, session: ServerSession) -> None:
        """A connection ended."""
        self._sessions.pop(session, None)

    def _register(self, handler: Handler) -> None:
        name = handler.method.name
        if isinstance(handler.method, StreamMethod) != (handler.kind is STREAM):
            raise UsageError(f"{handler.method!r} cannot be served by a {handler.kind} handler")
        if name in self.handlers:
            raise UsageError(f"{name} has a handler already")
        if not 0 < len(name) <= METHOD_NAME_CHARS_MAX:
            raise UsageError(f"a method name has 1 to {METHOD_NAME_CHARS_MAX} characters", name=name)
        self.handlers[name] = handler
