"""The serving end of a connection: one task per handler that waits, none for one that can answer at once.

    frame ─envelope─> handler? ─> access ─> clock ─> room? ─> decode body ─┬─ at once: answer now, or a `Later`: no task
              │          │           │         │        │           │      ├─ sync:    answer now
              │          │           │         │        │           │      ├─ async:   answer now, or one task once it waits
           garbage    unknown     denied    too far  Overloaded  DecodeErr └─ stream:  the same, with credit
           Goodbye     Fault       Fault     Fault     Fault       Fault

Everything left of the split costs no task, nor does a handler that never waits (`Scope.start`). What is wrong with one call
is a `Fault` to that call; only bytes that are no message, and identifiers used twice, end the connection, and only this one.

Rules
    - This is the one place where access is checked: the roles of the peer (`runtime.access`) against those that the method
      declares. A handler may rely on it.
    - A call is in `_running` from where it first waits until its task has ended or its `Later` is told, so
      `rpc.requests_in_flight_max` bounds both: a cancelled call that lingers still counts.
    - A peer whose calls are refused for what they are, or weigh much, is held for a while (`rpc.patience`): what it sends next
      waits, and it is not read. No call of it is dropped.
    - A greeted peer whose connection is ended for what it sent hears of it after `REFUSED_S`, unread until then: one that begins
      anew at once, with fresh patience, gets no further by it. Its handlers are cancelled at once.
    - A call gets at most one last word (Response, End or Fault), and none once its caller cancelled it.
    - When the connection ends every running handler is cancelled, in order of arrival.
    - A handler that raises anything but a `SlackwaterError` has a bug: its caller gets a `SlackwaterError` saying so,
      and the loop's exception handler gets the exception itself.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from slackwater.errors import (
    ClockError,
    ConnectionLost,
    DeadlineExceeded,
    EntryTooLarge,
    InvariantViolation,
    Overloaded,
    ProtocolError,
    SlackwaterError,
    UnavailableError,
    UsageError,
)
from slackwater.hooks import level, probe, tap
from slackwater.runtime.access import denied, said_of
from slackwater.runtime.later import Later
from slackwater.runtime.rpc.deadlines import Deadlines
from slackwater.runtime.rpc.faults import fault, unpack, without_facts
from slackwater.runtime.rpc.method import Context
from slackwater.runtime.rpc.patience import is_misuse
from slackwater.runtime.rpc.session import RpcSession
from slackwater.runtime.rpc.wire import (
    WINDOW_MAX,
    Cancel,
    Credit,
    End,
    FromCaller,
    Goodbye,
    Hello,
    Item,
    OpenStream,
    Ping,
    Pong,
    Request,
    Response,
    decode_from_caller,
    encode,
    raw,
)

if TYPE_CHECKING:
    from slackwater.runtime.rpc.server import Handler, RpcServer
    from slackwater.runtime.seam import Connection

SYNC, ASYNC, STREAM = "sync", "async", "stream"
REFUSED_S = 0.1
"""How long a connection is kept, unread, that is ended for what its peer sent."""


class ServerSession(RpcSession):
    """One accepted connection."""

    _own_name, _peer_name = "the server", "the caller"

    def __init__(self, server: RpcServer, connection: Connection) -> None:
        super().__init__(
            server.runtime,
            connection,
            identity=server.identity,
            settings=server.settings,
            hook=server.hook,
            roster=server.roster,
        )
        self._server = server
        self._scope = server.scope
        self._handlers = server.handlers
        self._allowed = 0  # the bits of `roles`, to compare quickly
        self._running: dict[int, Context] = {}
        self._running_bytes = 0  # of the requests in it
        self._bytes_max = int(server.settings["rpc.requests_bytes_max"])
        self._patience = server.peers.of(self.certificate)
        self._held: list[bytes] | None = None
        """Frames that came while the peer is held; None while it is not."""
        self._release: asyncio.TimerHandle | None = None
        self._refusing = False
        """Whether the connection ends for what its peer sent, which takes `REFUSED_S`."""
        self._deadlines = Deadlines(self._clock, self._loop, living=self._running, expired=self._on_deadline)
        self._start_timer()

    @property
    def in_flight(self) -> int:
        """Handlers that have not ended."""
        return len(self._running)

    def turn_away(self, error: SlackwaterError) -> None:
        """Refuse the connection before it has said anything."""
        self._refuse(error)

    # --- what the connection calls

    def frames(self, frames: list[bytes]) -> None:
        """Frames arrived (`seam.FrameHandler`)."""
        self._silent_s = 0.0
        for at, frame in enumerate(frames):
            if self._error is not None:
                return
            if self._held is not None:
                self._held += frames[at:]
                return
            try:
                message = decode_from_caller(frame)
            except SlackwaterError as error:
                self._refuse(ProtocolError(error.message))
                return
            if message.__class__ is Request and self._greeted:
                self._on_call(message)  # checked by identity, for speed
            else:
                self._on_message(message)

    def writable(self) -> None:
        """The send buffer drained: streams go on (`seam.FrameHandler`)."""
        for context in list(self._running.values()):
            _wake(context)

    def _on_message(self, message: FromCaller) -> None:
        if not self._greeted and not isinstance(message, Hello | Goodbye):
            self._refuse(ProtocolError("the first frame must be a greeting"))
            return
        match message:
            case OpenStream() | Request():
                self._on_call(message)
            case Cancel():
                self._cancel(message.id)
            case Credit():
                self._on_credit(message)
            case Ping():
                self._on_ping(message)
            case Hello():
                self._on_hello(message)
            case Goodbye():
                error = unpack(message.error, message.message, message.facts)
                if not isinstance(error, ConnectionLost):  # the caller refuses us: the operator should know
                    self._server.refused(self._connection.peer, error)
                self._end(error)

    def _on_hello(self, hello: Hello) -> None:
        if self._greeted:
            self._refuse(ProtocolError("greeted twice"))
            return
        try:
            self._check_hello(hello)
            if hello.node_id:
                self._server.check_node(hello.node_id, self.certificate)
        except UsageError as error:
            self._server.refused(self._connection.peer, error)
            self._refuse(error)
            return
        self._allowed = self.roles.value
        self._greet(hello)
        self._send(self._hello())

    def _on_ping(self, ping: Ping) -> None:
        if self._hook is not None and ping.ts:
            try:
                self._hook.update(ping.ts)
            except ClockError as error:
                self._server.refused(self.peer, error)
        ts = self._hook.stamp() if self._hook is not None else 0
        self._send(encode(Pong(ts, ping.sent_ns, self._clock.wall_ns())))

    # --- a peer that is held

    def _spend(self, weight: float) -> None:
        """Count what a call costs, and hold its peer when it has nothing left."""
        hold_s = self._patience.spend(weight, self._clock.monotonic_ns())
        if not hold_s or self._error is not None or self._held is not None:
            return
        probe("rpc.held")
        self._server.held_s += hold_s
        self._held = []
        self._connection.hold(held=True)
        self._release = self._loop.call_later(hold_s, self._go_on)

    def _go_on(self) -> None:
        """The peer has been held for long enough: read it again, and take what came meanwhile."""
        frames, self._held, self._release = self._held or [], None, None
        self._connection.hold(held=False)
        self.frames(frames)

    def _refuse(self, error: SlackwaterError) -> None:
        """End the connection because of something the peer did, and tell it."""
        self._refusing = self._greeted  # strangers are few (`door`), and each takes a place
        super()._refuse(error)

    def _hang_up(self, say: object) -> None:
        if not self._refusing:
            super()._hang_up(say)
            return
        self._refusing = False
        probe("rpc.refused_later")
        self._connection.hold(held=True)
        self._loop.call_later(REFUSED_S, self._hang_up, say)

    # --- admission

    def _on_call(self, message: Request | OpenStream) -> None:
        call_id = message.id
        if call_id in self._running:
            self._refuse(ProtocolError("a call identifier was used twice", id=call_id))
            return
        try:
            handler = self._admit(message)
            request = handler.method.decode_request(message.body)
            context = self._context(message)
            if handler.kind is SYNC:
                self._respond(call_id, handler.function(request, context))
                return
            answer = None if handler.at_once is None else handler.at_once(request, context)
            if isinstance(answer, Later):
                self._answer_later(message, context, handler, request, answer)
            elif answer is not None:
                self._respond(call_id, answer)
            else:
                self._start(message, context, handler, request)
        except Exception as error:
            self._fault(call_id, message.method, error)

    def _admit(self, message: Request | OpenStream) -> Handler:
        """The handler that may serve this call, or the error that it may not."""
        handler = self._handlers.get(message.method)
        if handler is None:
            if (why := self._server.why_unserved()) is not None:
                raise why
            raise ProtocolError(f"there is no method {message.method[:80]!r} here; is the peer older than the caller?")
        if (handler.kind is STREAM) != (message.__class__ is OpenStream):
            raise ProtocolError(f"{message.method} is {'a stream' if handler.kind is STREAM else 'not a stream'}")
        if not handler.callers & self._allowed:
            who = said_of(self.certificate, node_id=self.node_id)
            error = denied(message.method, handler.method.callers, who=who)
            self._server.refused(self._connection.peer, error)
            raise error
        if self._hook is not None and message.ts:
            try:
                self._hook.update(message.ts)
            except ClockError:
                if not handler.method.timeless:
                    raise
                probe("rpc.timeless")
        if len(self._running) >= self._in_flight_max:
            raise Overloaded("too many requests of this connection are running; back off", limit=self._in_flight_max)
        if self._running_bytes and self._running_bytes + len(message.body) > self._bytes_max:
            limit = self._bytes_max
            raise Overloaded("the running requests of this connection take too much memory; back off", limit=limit)
        if handler.method.weight:
            self._spend(handler.method.weight)
        return handler

    def _context(self, message: Request | OpenStream) -> Context:
        timeout_us = message.timeout_us
        deadline_ns = self._deadlines.after(timeout_us / 1e6) if timeout_us > 0 else 0
        size = len(message.body)
        return Context(message.id, message.method, self, self._clock, size=size, deadline_ns=deadline_ns)

    def _start(self, message: Request | OpenStream, context: Context, handler: Handler, request: object) -> None:
        if isinstance(message, OpenStream):
            if not 1 <= message.window <= WINDOW_MAX:
                raise ProtocolError(f"a stream window is between 1 and {WINDOW_MAX}", window=message.window)
            context.credit = context.window = message.window
            work = self._serve_stream(context, handler, request)
        else:
            work = self._serve(context, handler, request)
        try:
            context.task = self._scope.start(work, name=message.method)
        except SlackwaterError:  # the server is closing
            raise UnavailableError("the server is shutting down") from None
        if context.task is not None:
            self._went_on(context)

    def _answer_later(
        self, message: Request | OpenStream, context: Context, handler: Handler, request: object, later: Later[Any]
    ) -> None:
        """What was asked for is under way and needs no task: it is answered when that is told."""
        context.started = True
        self._went_on(context)
        later.then(partial(self._told, message, context, handler, request))

    def _told(
        self,
        message: Request | OpenStream,
        context: Context,
        handler: Handler,
        request: object,
        answer: object,
        error: SlackwaterError | None,
    ) -> None:
        self._forget(context)
        if context.cancelled:  # by the caller, its deadline, or the end of the session
            return
        if error is not None:
            self._fault(context.id, context.method, error)
            return
        try:
            if answer is not None:
                self._respond(context.id, answer)
            else:  # nothing was done: it has to wait for something
                context.started = False
                self._start(message, context, handler, request)
        except Exception as failed:
            self._fault(context.id, context.method, failed)

    def _went_on(self, context: Context) -> None:
        """A handler waits for something: from now on others may meet it."""
        self._running[context.id] = context
        self._running_bytes += context.size
        level("rpc.serving", len(self._running), self._in_flight_max)
        if self._error is not None:  # its first step ended the session
            self._cancel(context.id)
        elif context.deadline_ns:
            self._deadlines.add(context.id, context.deadline_ns)

    def _forget(self, context: Context) -> None:
        """A handler has ended, or never began to wait."""
        if self._running.pop(context.id, None) is not None:
            self._running_bytes -= context.size

    # --- the work itself

    async def _serve(self, context: Context, handler: Handler, request: object) -> None:
        context.started = True
        try:
            response = await handler.function(request, context)
            if not context.cancelled:
                self._respond(context.id, response)
        except asyncio.CancelledError:
            self._on_handler_cancelled(context)
            raise
        except Exception as error:
            self._on_handler_error(context, error)
        finally:
            self._forget(context)

    async def _serve_stream(self, context: Context, handler: Handler, request: object) -> None:
        context.started = True
        try:
            items = handler.function(request, context)
            try:
                async for item in items:
                    while context.credit == 0 or self._connection.congested:
                        await self._wait(context)
                    context.credit -= 1
                    self._send_item(context, item)
            finally:
                await items.aclose()
            if not context.cancelled:
                ts = self._hook.stamp() if self._hook is not None else 0
                self._send(encode(End(context.id, ts)))
        except asyncio.CancelledError:
            self._on_handler_cancelled(context)
            raise
        except Exception as error:
            self._on_handler_error(context, error)
        finally:
            self._forget(context)

    def _send_item(self, context: Context, item: object) -> None:
        ts = self._hook.stamp() if self._hook is not None else 0
        frame = encode(Item(context.id, ts, raw(item)))
        if len(frame) > self._frame_bytes_max:
            raise self._too_large(context.method, frame)
        self._send(frame)

    async def _wait(self, context: Context) -> None:
        """Wait for credit, or for room in the send buffer; the caller checks again."""
        context.waiter = self._loop.create_future()
        try:
            await context.waiter
        finally:
            context.waiter = None

    def _respond(self, call_id: int, response: object) -> None:
        hook = self._hook
        frame = encode(Response(call_id, hook.stamp() if hook is not None else 0, raw(response)))
        if len(frame) > self._frame_bytes_max:
            raise self._too_large("response", frame)
        self._send(frame)

    def _too_large(self, what: str, frame: bytes) -> EntryTooLarge:
        limit = self._frame_bytes_max
        return EntryTooLarge(f"the {what} is over rpc.frame_bytes_max; ask for less", size=len(frame), limit=limit)

    def _fault(self, call_id: int, method: str, error: BaseException) -> None:
        tap("rpc.failed", method, error)
        if is_misuse(error, of_node=self.node_id != 0):
            self._spend(1.0)
        if not isinstance(error, SlackwaterError) or (isinstance(error, InvariantViolation) and not error.remote):
            self._server.crashed(method, error)
        if not isinstance(error, SlackwaterError):
            error = SlackwaterError(f"the handler of {method} crashed: {type(error).__name__}: {error}")
        ts = self._hook.stamp() if self._hook is not None else 0
        frame = encode(fault(call_id, ts, error))
        if len(frame) > self._frame_bytes_max:  # the class is what the caller acts on; the facts are a courtesy
            frame = encode(fault(call_id, ts, without_facts(error)))
        self._send(frame)

    def _on_handler_error(self, context: Context, error: Exception) -> None:
        if not context.cancelled:
            self._fault(context.id, context.method, error)
        elif not isinstance(error, SlackwaterError):
            self._server.crashed(context.method, error)  # no caller waits for the answer, but a bug is a bug

    def _on_handler_cancelled(self, context: Context) -> None:
        """Answers a caller whose task was cancelled, but not by that caller."""
        if not context.cancelled and self._error is None:
            context.cancelled = True
            lost = ConnectionLost("the server ended before the request did; it may have been executed", sent=True)
            self._fault(context.id, context.method, lost)

    # --- early ends

    def _on_credit(self, message: Credit) -> None:
        context = self._running.get(message.id)
        if context is None or not context.window:
            return
        context.credit += message.count
        if message.count < 1 or context.credit > context.window:
            self._refuse(ProtocolError("more stream credit than was used", id=message.id, count=message.count))
            return
        _wake(context)

    def _on_deadline(self, call_id: int) -> None:
        context = self._running[call_id]
        if not context.cancelled:
            error = DeadlineExceeded(f"{context.method} did not end before its deadline; it was cancelled", sent=True)
            self._fault(call_id, context.method, error)
            self._cancel(call_id)

    def _cancel(self, call_id: int) -> None:
        context = self._running.get(call_id)
        if context is None or context.cancelled:
            return
        context.cancelled = True
        if not context.started:  # its coroutine will never run, so neither will its `finally`
            self._forget(context)
        # A cancelled task remembers where it was, frames and request and all: it must not be found from there.
        task, context.task = context.task, None
        if task is not None:  # a `Later` has none: what it is told in time is dropped
            task.cancel()

    def _tick(self) -> None:
        """The caller pings; this side only listens, unless it has stopped to."""
        if self._held is not None:
            self._silent_s = 0.0

    def _on_end(self, error: SlackwaterError) -> None:
        self._deadlines.close()
        if self._release is not None:
            self._release.cancel()
            self._held = None
        for call_id in list(self._running):
            self._cancel(call_id)
        self._server.forget(self)


def _wake(context: Any) -> None:
    if context.waiter is not None and not context.waiter.done():
        context.waiter.set_result(None)
