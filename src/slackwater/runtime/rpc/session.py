"""What the two ends of an RPC connection have in common: the handshake, the silence timer, the last word.

    new ──Hello sent──> greeting ──Hello accepted──> ready ──> ended
                           └──refused: Goodbye────────────────────┘

A session ends exactly once, by `_end(error)`, whichever comes first: the peer closed, we closed, the peer broke the
protocol, the peer was silent for too long. Everything that waits on the session hears of it there.

Rules
    - Before the handshake is done nothing but `Hello` and `Goodbye` is accepted.
    - Clusters do not mix: two non-empty cluster ids must be equal. Version and magic must be equal.
    - What a peer is follows from its certificate (`runtime.access`): it may not claim to be another node, or a node at all.
    - Each side says in `Hello` how long it waits in silence; the caller pings often enough for that.
    - Silence is counted in checks during which nothing came, not read off a clock: after a stall of *this* process (a
      suspended machine, a long collection) one check has passed, and what waits in the socket is read before the next.
"""

from __future__ import annotations

import abc
import asyncio
import contextlib
from typing import TYPE_CHECKING

from slackwater.errors import ConnectionLost, ProtocolError, SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime import sync
from slackwater.runtime.access import NO_ROLE, roles_of
from slackwater.runtime.rpc.faults import goodbye
from slackwater.runtime.rpc.versions import ProtocolVersions, agree
from slackwater.runtime.rpc.wire import MAGIC, Hello, encode

if TYPE_CHECKING:
    from slackwater.runtime.rpc.method import ClockHook, Identity
    from slackwater.runtime.seam import Connection, Runtime
    from slackwater.settings import Settings

LEAVE_S_MAX = 10.0  # longer than a network lingers over the last frames
SILENCE_CHECKS = 3  # heartbeats per timeout: one may be lost or late without harm


class RpcSession(abc.ABC):
    """One end of one connection."""

    _own_name, _peer_name = "this side", "the other side"
    """What the two ends are called in messages while they have no node id."""

    def __init__(
        self,
        runtime: Runtime,
        connection: Connection,
        *,
        identity: Identity,
        settings: Settings,
        hook: ClockHook | None,
        roster: dict[RpcSession, None],
    ) -> None:
        self._clock = runtime.clock
        self._connection = connection
        self._send = connection.send
        self._identity = identity
        self._settings = settings
        self._hook = hook
        self._roster = roster  # the owner's sessions whose connection is not gone yet
        self._roster[self] = None
        self._leaver: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._in_flight_max = int(settings["rpc.requests_in_flight_max"])
        self._frame_bytes_max = int(settings["rpc.frame_bytes_max"])
        self._silent_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._greeted = False
        self._error: SlackwaterError | None = None
        self.node_id = 0  # the peer's, once greeted
        self.cluster_id = ""
        self.version = 0  # of the protocol, agreed by the greetings
        self.certificate = connection.certificate
        self.roles = NO_ROLE  # the peer's, once greeted
        self._tick_s = self._timeout_s() / SILENCE_CHECKS

    @property
    def peer(self) -> str:
        """The name of the other end: `n3` for a node, else its address."""
        return f"n{self.node_id}" if self.node_id else self._connection.peer

    @property
    def address(self) -> str:
        """Where the other end is."""
        return self._connection.peer

    @property
    def ended(self) -> bool:
        """Whether nothing can be sent or received any more."""
        return self._error is not None

    def close(self) -> None:
        """End the connection from this side."""
        self._end(ConnectionLost("the connection was closed by this side", peer=self.peer))

    def closed(self, reason: str) -> None:
        """The connection ended (`seam.FrameHandler`)."""
        self._end(ConnectionLost(f"the connection to {self.peer} was lost: {reason}", peer=self.peer))
        self._roster.pop(self, None)
        if self._leaver is not None and not self._leaver.done():
            self._leaver.set_result(None)

    async def _wait_gone(self) -> None:
        if self in self._roster:
            self._leaver = self._leaver or self._loop.create_future()
            await self._leaver

    # --- handshake

    def _hello(self) -> bytes:
        identity = self._identity
        timeout_ms = max(1, round(self._timeout_s() * 1000))
        oldest, newest = identity.versions
        return encode(Hello(MAGIC, newest, identity.cluster_id, identity.node_id, timeout_ms, oldest))

    def _check_hello(self, hello: Hello) -> None:
        """Raise `ProtocolError` or `AccessDenied` unless the two ends may talk."""
        ours = self._identity
        if hello.magic != MAGIC:
            raise ProtocolError("the peer does not speak Slackwater RPC; check the port", magic=hello.magic[:32])
        self.version = agree(
            ours.versions,
            ProtocolVersions(hello.oldest or hello.newest, hello.newest),
            own_name=f"n{ours.node_id}" if ours.node_id else self._own_name,
            peer_name=f"n{hello.node_id}" if hello.node_id else self._peer_name,
        )
        if hello.cluster_id and ours.cluster_id and hello.cluster_id != ours.cluster_id:
            raise ProtocolError(
                "the peer belongs to another cluster; check the address", ours=ours.cluster_id, theirs=hello.cluster_id
            )
        self.roles = roles_of(self.certificate, node_id=hello.node_id)

    def _greet(self, hello: Hello) -> None:
        self._greeted = True
        self._connection.trust()
        self.node_id = hello.node_id
        self.cluster_id = hello.cluster_id

    # --- silence

    def _timeout_s(self) -> float:
        return self._settings["rpc.heartbeat_timeout"]

    def _start_timer(self) -> None:
        if self._error is None:
            self._timer = self._loop.call_later(self._tick_s, self._on_timer)

    def _on_timer(self) -> None:
        self._silent_s += self._tick_s
        if self._silent_s >= self._timeout_s() * 0.999:
            probe("rpc.silence")
            error = ConnectionLost(
                f"the connection to {self.peer} was silent for longer than rpc.heartbeat_timeout", peer=self.peer
            )
            self._end(error, say=goodbye(error))
            return
        self._tick()
        self._start_timer()

    @abc.abstractmethod
    def _tick(self) -> None:
        """What this side does at every check of the silence."""

    # --- the end

    def _refuse(self, error: SlackwaterError) -> None:
        """End the connection because of something the peer did, and tell it."""
        self._end(error, say=goodbye(error))

    def _end(self, error: SlackwaterError, *, say: object = None) -> None:
        if self._error is not None:
            return
        self._error = error
        if self._timer is not None:
            self._timer.cancel()
        self._hang_up(say)
        self._on_end(error)

    def _hang_up(self, say: object) -> None:
        """Close the connection, after a last word."""
        if say is not None:
            self._send(encode(say))
        self._connection.close()

    @abc.abstractmethod
    def _on_end(self, error: SlackwaterError) -> None:
        """Fail or cancel everything that waits on this session."""


def end_revoked(roster: dict[RpcSession, None], serials: frozenset[int], error: SlackwaterError) -> int:
    """End the connections whose peer showed a certificate that is revoked by now; how many."""
    found = [s for s in roster if not s.ended and s.certificate is not None and s.certificate.serial in serials]
    for session in found:
        session._refuse(error)
    return len(found)


async def leave(roster: dict[RpcSession, None]) -> None:
    """Close sessions and wait until their connections are gone, which under TLS takes a farewell of its own.

    A program that ended its loop in the middle of one would leave an open socket behind. The wait is bounded: a network
    that never reports the end must not hold up a shutdown.
    """
    for session in list(roster):
        session.close()
    with contextlib.suppress(TimeoutError):
        async with sync.timeout(LEAVE_S_MAX):
            for session in list(roster):
                await session._wait_gone()
