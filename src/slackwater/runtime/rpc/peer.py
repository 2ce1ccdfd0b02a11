"""The calling end of a connection: many calls at once, a future each, no tasks.

    response = await peer.call(READ, ReadRequest(...), timeout=2.0)
    async with peer.stream(FEED, FeedRequest(...)) as events:
        async for event in events: ...

A call is a future in a table under its identifier; the answer's frame carries the identifier and resolves it. What ends
a call early is decided here and told to the server, which cancels the handler:

    caller cancelled         the awaiting task was cancelled
    deadline                 `DeadlineExceeded`; the server enforces the same deadline on its side
    connection lost          `ConnectionLost` for every call, with the fact `sent=True`: it may have been executed

`ConnectionLost` with `sent=False` means that the request never left, so repeating it is safe.

A node pings its peers at every heartbeat interval. The answer measures the round trip and, as NTP does, the offset
between the clocks: the server read its clock somewhere between sending and receiving, so half the round trip bounds the
error. A client's clock is not measured: it pings only where nothing else was said, and often enough that the server
does not take it for gone. There are more clients than nodes, and a server has better things to do.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.errors import (
    AccessDenied,
    ClockError,
    ConnectionLost,
    DeadlineExceeded,
    EntryTooLarge,
    Overloaded,
    ProtocolError,
    SlackwaterError,
    UsageError,
)
from slackwater.hooks import buggify, level, probe
from slackwater.runtime.access import Role
from slackwater.runtime.deadline import for_callee
from slackwater.runtime.rpc.deadlines import Deadlines
from slackwater.runtime.rpc.faults import unpack
from slackwater.runtime.rpc.method import Measurement, Method, StreamMethod
from slackwater.runtime.rpc.session import SILENCE_CHECKS, RpcSession
from slackwater.runtime.rpc.stream import Stream
from slackwater.runtime.rpc.wire import (
    WINDOW_MAX,
    Cancel,
    Credit,
    End,
    Fault,
    FromServer,
    Goodbye,
    Hello,
    Item,
    OpenStream,
    Ping,
    Pong,
    Request,
    Response,
    decode_from_server,
    encode,
    raw,
)

if TYPE_CHECKING:
    import msgspec

    from slackwater.runtime.rpc.method import ClockHook, Identity
    from slackwater.runtime.seam import Connection, Runtime
    from slackwater.settings import Settings

Req = TypeVar("Req")
Res = TypeVar("Res")

TICK_S_MIN = 0.01  # however impatient the server says it is
OFFSET_RTT_MAX_NS = 60_000_000_000  # an answer later than this measures nothing


class PendingCall:
    """A unary call that waits for its answer."""

    __slots__ = ("future", "method")

    def __init__(self, future: asyncio.Future[Any], method: Method[Any, Any]) -> None:
        self.future = future
        self.method = method

    def respond(self, body: msgspec.Raw) -> None:
        """The answer came."""
        if self.future.done():
            return
        try:
            self.future.set_result(self.method.decode_response(body))
        except SlackwaterError as error:
            self.future.set_exception(error)

    def fail(self, error: SlackwaterError) -> None:
        """End the call with an error: no answer can come any more."""
        if not self.future.done():
            self.future.set_exception(error)


class Peer(RpcSession):
    """A server at the other end of one connection. Made by `Dialer`."""

    _own_name, _peer_name = "the caller", "the server"

    def __init__(
        self,
        runtime: Runtime,
        connection: Connection,
        *,
        identity: Identity,
        settings: Settings,
        hook: ClockHook | None,
        roster: dict[RpcSession, None],
        expect_node: int = 0,
    ) -> None:
        super().__init__(runtime, connection, identity=identity, settings=settings, hook=hook, roster=roster)
        self._expect_node = expect_node
        self.greeted_as = identity.node_id
        """Which node we said we were."""
        self._window = min(WINDOW_MAX, int(settings["rpc.stream_window"]))
        self._calls: dict[int, PendingCall | Stream[Any]] = {}
        self._last_id = 0
        self._deadlines = Deadlines(self._clock, self._loop, living=self._calls, expired=self._on_deadline)
        self._ready: asyncio.Future[None] = self._loop.create_future()
        self._patience_s = self._timeout_s()  # the server's, once it has said it, if that is less
        self._said = 0  # the last call before the last tick
        self._tick_s = self._next_tick_s()
        self.measurement: Measurement | None = None

    async def greet(self) -> None:
        """Shake hands; returns once calls may be made, or raises what was wrong."""
        self.greeted_as = self._identity.node_id
        self._send(self._hello())
        self._start_timer()
        await self._ready

    # --- calls

    async def call(self, method: Method[Req, Res], request: Req, *, timeout: float | None = None) -> Res:
        """Ask and wait for the answer; what the handler raised is raised here."""
        call_id = self._admit(method.name, timeout)
        hook = self._hook
        ts = hook.stamp() if hook is not None else 0
        timeout_us = 0 if timeout is None else max(1, int(for_callee(timeout) * 1e6))
        frame = encode(Request(call_id, method.name, ts, timeout_us, raw(request)))
        if len(frame) > self._frame_bytes_max:
            raise self._too_large(method.name, frame)
        future: asyncio.Future[Res] = self._loop.create_future()
        if timeout is not None:
            self._deadlines.add(call_id, self._deadlines.after(timeout))
        self._calls[call_id] = PendingCall(future, method)
        self._send(frame)
        try:
            return await future
        except asyncio.CancelledError:
            if self._calls.pop(call_id, None) is not None and self._error is None:
                self._send(encode(Cancel(call_id)))
            if future.done() and not future.cancelled():
                future.exception()  # it failed in the very step of the cancellation: seen, and of no use
            raise

    def stream(self, method: StreamMethod[Req, Res], request: Req, *, timeout: float | None = None) -> Stream[Res]:
        """Ask for a stream; `timeout` bounds its whole life."""
        call_id = self._admit(method.name, timeout)
        hook = self._hook
        ts = hook.stamp() if hook is not None else 0
        timeout_us = 0 if timeout is None else max(1, int(for_callee(timeout) * 1e6))
        frame = encode(OpenStream(call_id, method.name, ts, timeout_us, self._window, raw(request)))
        if len(frame) > self._frame_bytes_max:
            raise self._too_large(method.name, frame)
        stream: Stream[Res] = Stream(
            method,  # type: ignore[arg-type]  # the request's type no longer matters here
            window=self._window,
            credit=lambda count: self._credit(call_id, count),
            cancel=lambda: self._cancel(call_id),
        )
        if timeout is not None:
            self._deadlines.add(call_id, self._deadlines.after(timeout))
        self._calls[call_id] = stream
        self._send(frame)
        return stream

    @property
    def in_flight(self) -> int:
        """Calls and streams that have not ended."""
        return len(self._calls)

    def status(self) -> str:
        """One line for logs and scripts."""
        rtt = f"{self.measurement.rtt_ns // 1000}us" if self.measurement else "?"
        state = "ended" if self.ended else "ready" if self._greeted else "greeting"
        return f"peer {self.peer} {state} in_flight={len(self._calls)} rtt={rtt}"

    def _admit(self, method: str, timeout: float | None) -> int:
        """An identifier for a call that may start now."""
        if self._error is not None or not self._greeted:
            reason = str(self._error or "the handshake is not done")
            raise ConnectionLost(f"not connected to {self.peer}: {reason}", peer=self.peer, sent=False)
        if len(self._calls) >= self._in_flight_max:
            raise Overloaded(
                "too many calls in flight to this peer; back off",
                limit=self._in_flight_max,
                peer=self.peer,
                method=method,
            )
        if timeout is not None and not timeout > 0:
            raise DeadlineExceeded(f"no time left for {method}", peer=self.peer, sent=False)
        level("rpc.calls", len(self._calls) + 1, self._in_flight_max)
        self._last_id += 1
        return self._last_id

    def _too_large(self, method: str, frame: bytes) -> EntryTooLarge:
        limit = self._frame_bytes_max
        return EntryTooLarge(
            f"the request of {method} is over rpc.frame_bytes_max; split it", size=len(frame), limit=limit
        )

    def _credit(self, call_id: int, count: int) -> None:
        if self._error is None and call_id in self._calls:
            self._send(encode(Credit(call_id, count)))

    def _cancel(self, call_id: int) -> None:
        if self._calls.pop(call_id, None) is not None and self._error is None:
            self._send(encode(Cancel(call_id)))

    def _on_deadline(self, call_id: int) -> None:
        call = self._calls.pop(call_id)
        self._send(encode(Cancel(call_id)))
        call.fail(DeadlineExceeded("the answer did not come before the deadline", peer=self.peer, sent=True))

    # --- what the connection calls

    def frames(self, frames: list[bytes]) -> None:
        """Frames arrived (`seam.FrameHandler`)."""
        self._silent_s = 0.0
        for frame in frames:
            if self._error is not None:
                return
            try:
                message = decode_from_server(frame)
            except SlackwaterError as error:
                self._refuse(ProtocolError(f"{self.peer} sent garbage: {error.message}"))
                return
            if message.__class__ is Response and self._greeted:
                self._on_response(message)  # checked by identity, for speed
            else:
                self._on_message(message)

    def writable(self) -> None:
        """Calls are bounded by number, not by bytes: nothing waits for this (`seam.FrameHandler`)."""

    def _on_response(self, message: Response) -> None:
        call = self._calls.pop(message.id, None)
        if call is None:
            return  # cancelled or expired a moment ago
        if call.__class__ is not PendingCall:
            self._refuse(ProtocolError(f"{self.peer} answered a stream as a call"))
            call.fail(ProtocolError("a stream was answered as a call"))
            return
        if self._hook is not None and message.ts:
            try:
                self._hook.update(message.ts)
            except ClockError as error:
                call.fail(error)
                return
        call.respond(message.body)

    def _on_message(self, message: FromServer) -> None:
        if not self._greeted and not isinstance(message, Hello | Goodbye):
            self._refuse(ProtocolError(f"{self.peer} did not greet"))
            return
        match message:
            case Item():
                self._on_item(message)
            case End() | Fault():
                self._on_last(message)
            case Pong():
                self._on_pong(message)
            case Hello():
                self._on_hello(message)
            case Goodbye():
                self._on_goodbye(message)

    def _on_item(self, message: Item) -> None:
        stream = self._calls.get(message.id)
        if stream is None:
            return
        if not isinstance(stream, Stream):
            self._refuse(ProtocolError(f"{self.peer} answered a call as a stream"))
            return
        error = self._heed(message.ts)
        if error is not None:
            stream.abort(error)
        else:
            stream.item(message.body)

    def _on_last(self, message: End | Fault) -> None:
        call = self._calls.pop(message.id, None)
        if call is None:
            return
        error = self._heed(message.ts)
        if isinstance(message, Fault):
            call.fail(unpack(message.error, message.message, message.facts))
        elif error is not None or not isinstance(call, Stream):
            call.fail(error or ProtocolError("a call was answered as a stream"))
        else:
            call.end()

    def _heed(self, ts: int) -> ClockError | None:
        """Follow a received timestamp; the error if it must not be followed."""
        if self._hook is not None and ts:
            try:
                self._hook.update(ts)
            except ClockError as error:
                return error
        return None

    # --- handshake, heartbeats, end

    def _on_hello(self, hello: Hello) -> None:
        if self._greeted:
            self._refuse(ProtocolError(f"{self.peer} greeted twice"))
            return
        try:
            self._check_hello(hello)
            self._check_node(hello)
        except UsageError as error:
            self._refuse(error)
            return
        self._greet(hello)
        self._patience_s = min(self._patience_s, hello.heartbeat_timeout_ms / 1000)
        self._tick_s = self._next_tick_s()
        if not self._ready.done():
            self._ready.set_result(None)
        self._tick()

    def _check_node(self, hello: Hello) -> None:
        if self.certificate is not None and not self.roles & (Role.NODE | Role.NEWCOMER):
            raise AccessDenied("the server shows a certificate that is no node's", certificate=self.certificate.name)
        expected = self._expect_node
        if expected and hello.node_id != expected:
            raise ProtocolError("another node answers at this address", expected=expected, actual=hello.node_id)

    def _on_goodbye(self, message: Goodbye) -> None:
        error = unpack(message.error, message.message, message.facts)
        if self._greeted and not isinstance(error, ConnectionLost):
            error = ConnectionLost(f"{self.peer} ended the connection: {error}", peer=self.peer)
        self._end(error)

    def _next_tick_s(self) -> float:
        """How long until the next look whether the server must be heard or told something."""
        if self._identity.node_id:
            tick_s = min(self._patience_s / SILENCE_CHECKS, self._settings["rpc.heartbeat_interval"])
        else:  # what was said right after one look keeps the next one quiet: two of these are less than SILENCE_CHECKS
            tick_s = self._patience_s / (SILENCE_CHECKS + 1)
        return max(TICK_S_MIN, tick_s)

    def _tick(self) -> None:
        said, self._said = self._said != self._last_id, self._last_id
        heard = self._silent_s <= self._tick_s
        self._tick_s = self._next_tick_s()
        if said and heard and not self._identity.node_id:
            return
        if self._greeted and not buggify("rpc.skip_heartbeat"):
            ts = self._hook.stamp() if self._hook is not None else 0
            self._send(encode(Ping(ts, self._clock.monotonic_ns())))

    def _on_pong(self, pong: Pong) -> None:
        now = self._clock.monotonic_ns()
        rtt = now - pong.sent_ns
        if not 0 <= rtt <= OFFSET_RTT_MAX_NS:
            probe("rpc.late_heartbeat")
            return
        offset_ns = pong.wall_ns - (self._clock.wall_ns() - rtt // 2)
        error_us = -(-rtt // 2000)
        self.measurement = Measurement(rtt_ns=rtt, offset_us=offset_ns // 1000, error_us=error_us, measured_at_ns=now)
        if self._hook is not None:
            self._hook.measured(self.peer, self.measurement)
        self._heed(pong.ts)  # a heartbeat from too far ahead is refused; its offset is already reported

    def _on_end(self, error: SlackwaterError) -> None:
        self._deadlines.close()
        calls = list(self._calls.values())
        self._calls.clear()
        for call in calls:
            call.fail(ConnectionLost(str(error), peer=self.peer, sent=True))
        if not self._ready.done():
            self._ready.set_exception(error)
            self._ready.exception()  # the dialing caller may have gone: that is no unhandled error
