"""One connection per address, dialed when needed, not dialed again too soon.

    peer = await dialer.peer("n2:7400", node_id=2)      # dials, or joins a dial under way, or returns the live one
    await dialer.call("n2:7400", READ, request, timeout=2.0)

       idle ──peer()──> dialing ──ok──> connected ──lost──> idle
         ^                 │ failed
         └──pause over── resting     peer() fails at once with ConnectionLost(sent=False)

A dead peer must cost its callers nothing: after a failed dial every call to it fails at once until a pause is over. The
pause doubles with each failure in a row, up to `rpc.reconnect_pause_max`, with a random quarter taken off so that a
cluster does not dial a returning node in step. Nothing dials in the background: a peer is dialed when a caller asks for it.

A dial is a task of the dialer, not of the first caller, so the cancellation of one caller does not fail the others who
wait for the same dial.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, TypeVar

from slackwater.errors import ConnectionLost, Overloaded, SlackwaterError
from slackwater.hooks import level
from slackwater.runtime import sync
from slackwater.runtime.rpc.peer import Peer
from slackwater.runtime.rpc.session import end_revoked, leave

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from slackwater.runtime.rpc.method import ClockHook, Identity, Method, StreamMethod
    from slackwater.runtime.rpc.session import RpcSession
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.runtime.seam import Address, Connection, Runtime, TaskScope
    from slackwater.settings import Settings

Req = TypeVar("Req")
Res = TypeVar("Res")

UNGREETED = "; a node with certificates requires one signed by its CA and not revoked: pass --certs DIR"
"""Added when a peer hangs up before it has greeted: most often it is that."""
DOUBLINGS_MAX = 16  # of the pause; far beyond the longest one allowed


class _Line:
    """What is known of one address."""

    __slots__ = ("dial", "error", "failures", "peer", "rest_until_ns")

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.dial: asyncio.Future[Peer] | None = None
        self.failures = 0
        self.rest_until_ns = 0
        self.error: SlackwaterError | None = None


class Dialer:
    """A node's or a client's connections to servers."""

    def __init__(
        self,
        runtime: Runtime,
        scope: TaskScope,
        *,
        identity: Identity,
        settings: Settings,
        hook: ClockHook | None = None,
    ) -> None:
        self._runtime = runtime
        self._scope = scope.child("dialer")
        self._identity = identity
        self._settings = settings
        self._hook = hook
        self._lines: dict[Address, _Line] = {}
        self._roster: dict[RpcSession, None] = {}
        self._closed = False

    async def peer(self, address: Address, *, node_id: int = 0) -> Peer:
        """A live connection to the address; with `node_id`, only if that node answers there."""
        line = self._lines.get(address)
        if line is not None and line.peer is not None and node_id and not line.peer.node_id:
            # It belonged to no cluster when it greeted us, and may be a node by now: let it greet again.
            line.peer.close()
        if line is not None and line.peer is not None and line.peer.greeted_as != self._identity.node_id:
            line.peer.close()  # so are we, and what a newcomer may ask is little
        if line is None or line.peer is None or line.peer.ended:
            line = self._line(address)
            if line.dial is None:
                self._start(line, address, node_id)
            peer = await asyncio.shield(line.dial)  # type: ignore[arg-type]  # set by _start
        else:
            peer = line.peer
        if node_id and peer.node_id != node_id:
            raise ConnectionLost(
                f"another node answers at {address}", expected=node_id, actual=peer.node_id, address=address, sent=False
            )
        return peer

    def call(
        self,
        address: Address,
        method: Method[Req, Res],
        request: Req,
        *,
        timeout: float | None = None,
        node_id: int = 0,
    ) -> Coroutine[Any, Any, Res]:
        """Dial if needed, then call; the timeout spans both."""
        peer = self.live(address)
        if peer is not None and node_id in (0, peer.node_id):
            return peer.call(method, request, timeout=timeout)  # most calls: nothing to wait for
        return self._dial_and_call(address, method, request, timeout, node_id)

    async def _dial_and_call(
        self, address: Address, method: Method[Req, Res], request: Req, timeout: float | None, node_id: int
    ) -> Res:
        peer, timeout = await self._reached(address, node_id, timeout)
        return await peer.call(method, request, timeout=timeout)

    async def _reached(self, address: Address, node_id: int, timeout: float | None) -> tuple[Peer, float | None]:
        """A live connection, and what is left of the time."""
        started_ns = self._runtime.clock.monotonic_ns()
        try:
            async with sync.timeout(timeout):
                peer = await self.peer(address, node_id=node_id)
        except TimeoutError:
            raise ConnectionLost(
                f"could not reach {address} before the deadline", address=address, sent=False
            ) from None
        if timeout is not None:
            timeout -= (self._runtime.clock.monotonic_ns() - started_ns) / 1e9
        return peer, timeout

    async def stream(
        self,
        address: Address,
        method: StreamMethod[Req, Res],
        request: Req,
        *,
        timeout: float | None = None,
        dial_timeout: float | None = None,
        node_id: int = 0,
    ) -> Stream[Res]:
        """Dial if needed, then open a stream; the timeout spans both, and the stream's whole life.

        A stream without such an end may still have to be opened in time: `dial_timeout` is for that alone.
        """
        peer = self.live(address)
        if peer is None or node_id not in (0, peer.node_id):
            peer, left = await self._reached(address, node_id, dial_timeout if timeout is None else timeout)
            timeout = None if timeout is None else left
        return peer.stream(method, request, timeout=timeout)

    def live(self, address: Address) -> Peer | None:
        """The connection to the address if there is one now; never dials."""
        line = self._lines.get(address)
        if line is None or (peer := line.peer) is None or peer.ended or peer.greeted_as != self._identity.node_id:
            return None
        return peer

    def end_revoked(self, serials: frozenset[int], error: SlackwaterError) -> int:
        """End the connections to servers whose certificate is revoked; how many."""
        return end_revoked(self._roster, serials, error)

    async def close(self) -> None:
        """End every connection and every dial."""
        self._closed = True
        for session in list(self._roster):
            session.close()
        await self._scope.close()
        await leave(self._roster)
        self._lines.clear()

    def status(self) -> str:
        """One line for logs and scripts."""
        live = sum(1 for line in self._lines.values() if line.peer is not None and not line.peer.ended)
        dialing = sum(1 for line in self._lines.values() if line.dial is not None)
        return f"dialer addresses={len(self._lines)} live={live} dialing={dialing}"

    # --- inside

    def _line(self, address: Address) -> _Line:
        """The line to dial, or the error that it must not be dialed now."""
        if self._closed:
            raise ConnectionLost("the dialer is closed", address=address, sent=False)
        line = self._lines.get(address)
        if line is None:
            self._make_room()
            line = self._lines[address] = _Line()
            level("rpc.dialed", len(self._lines), self._settings["rpc.connections_max"])
        if line.dial is None and self._runtime.clock.monotonic_ns() < line.rest_until_ns:
            raise ConnectionLost(
                f"{address} could not be reached a moment ago: {line.error}", address=address, sent=False
            )
        return line

    def _make_room(self) -> None:
        """Forget the oldest line that is not in use when the pool is full."""
        limit = int(self._settings["rpc.connections_max"])
        if len(self._lines) < limit:
            return
        for address, line in self._lines.items():
            if line.dial is None and (line.peer is None or line.peer.ended or line.peer.in_flight == 0):
                if line.peer is not None:
                    line.peer.close()
                del self._lines[address]
                return
        raise Overloaded("every connection of the pool is in use; back off", limit=limit)

    def _start(self, line: _Line, address: Address, node_id: int) -> None:
        line.dial = asyncio.get_running_loop().create_future()
        line.dial.add_done_callback(_retrieve)
        self._scope.spawn(self._dial(line, line.dial, address, node_id), name=f"dial {address}")

    async def _dial(self, line: _Line, dial: asyncio.Future[Peer], address: Address, node_id: int) -> None:
        """Connect and shake hands; every way out resolves `dial` (but a crash of the node, which ends all)."""
        try:
            line.peer = await self._connect(address, node_id)
            line.failures = 0
            line.rest_until_ns = 0
        except SlackwaterError as error:
            self._rest(line, error)
            dial.set_exception(_as_lost(error, address))
        except asyncio.CancelledError:
            dial.set_exception(ConnectionLost("the dialer was closed", address=address, sent=False))
            raise
        else:
            dial.set_result(line.peer)
        finally:
            line.dial = None

    async def _connect(self, address: Address, node_id: int) -> Peer:
        made: list[Peer] = []

        def make(connection: Connection) -> Peer:
            peer = Peer(
                self._runtime,
                connection,
                identity=self._identity,
                settings=self._settings,
                hook=self._hook,
                roster=self._roster,
                expect_node=node_id,
            )
            made.append(peer)
            return peer

        try:
            async with sync.timeout(self._settings["rpc.connect_timeout"]):
                await self._runtime.net.connect(address, make)
                await made[0].greet()
        except TimeoutError:
            _close_all(made)
            raise ConnectionLost(f"{address} did not answer in time", address=address, sent=False) from None
        except ConnectionLost as error:
            _close_all(made)
            hint = UNGREETED if made else ""
            raise ConnectionLost(error.message + hint, **error.facts) from error
        except BaseException:
            _close_all(made)
            raise
        return made[0]

    def _rest(self, line: _Line, error: SlackwaterError) -> None:
        line.error = error
        longest = self._settings["rpc.reconnect_pause_max"]
        pause = min(longest, self._settings["rpc.reconnect_pause_min"] * 2 ** min(line.failures, DOUBLINGS_MAX))
        pause *= 1 - self._runtime.rng.below(256) / 1024
        line.failures += 1
        line.rest_until_ns = self._runtime.clock.monotonic_ns() + int(pause * 1e9)


def _as_lost(error: SlackwaterError, address: Address) -> SlackwaterError:
    """A lost connection during the dial means that nothing was sent; other errors stay as they are."""
    if isinstance(error, ConnectionLost):
        return ConnectionLost(error.message, **{**error.facts, "address": address, "sent": False})
    return error


def _close_all(peers: list[Peer]) -> None:
    for peer in peers:
        peer.close()


def _retrieve(dial: asyncio.Future[Peer]) -> None:
    """Every waiter may have been cancelled: an error that no waiter asks for is no unhandled one."""
    if not dial.cancelled():
        dial.exception()
