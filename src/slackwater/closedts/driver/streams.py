"""Streams of closed timestamps between nodes, the same for every scheme that has any: numbered messages, one way.

sender     `Outgoing` yields to every subscriber what the scheme says comes after what that subscriber has had. After a
tick streams are woken a few at a time: a hundred streams that all wake in the same instant would hold up
everything else on the loop (pitfall 13)
follower   `Following` subscribes to every node it shares ranges with. A stream that breaks is opened again after a pause

Nodes believe each other about the ranges they lead. What no sound node would say is refused all the same, before any of it is
kept, and the stream ends: a message in another node's name, one that closes what is still far ahead, one that names groups it
does not define. A closed timestamp that was kept cannot be taken back (I-09).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

from slackwater.errors import ProtocolError, SlackwaterError
from slackwater.hooks import probe
from slackwater.runtime.sync import Event

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable

    from slackwater.clock.timestamp import Timestamp
    from slackwater.closedts.publisher import NodeParts
    from slackwater.model.ids import NodeId
    from slackwater.runtime.rpc.stream import Stream
    from slackwater.runtime.seam import Runtime

STREAMS_PER_STEP = 8
"""Streams woken together after a tick."""
STEP_S = 0.001
"""Pause between two groups of streams."""
RECONNECT_S = 0.5
"""Pause before a broken stream is opened again."""
PEERS_INTERVAL_S = 1.0
"""How often the set of peers to follow is looked up."""
assert STEP_S < RECONNECT_S <= PEERS_INTERVAL_S, "a broken stream is opened again before its peer is looked for again"


class Numbered(Protocol):
    """A message of a stream."""

    @property
    def sender(self) -> NodeId:
        """The node that says it."""
        ...

    @property
    def seq(self) -> int:
        """Counts up by one with every message of that node."""
        ...

    def problem(self, upto: Timestamp) -> str:
        """Why no sound node says this at a time when nothing above `upto` can be closed; empty: it may be believed."""
        ...


M = TypeVar("M", bound=Numbered)
Taken = TypeVar("Taken", contravariant=True)


class Outgoing(Generic[M]):
    """One node's subscribers to one kind of message."""

    def __init__(self, runtime: Runtime, *, after: Callable[[int | None], list[M]]) -> None:
        """`after` gives what a subscriber that has had everything up to a number (None: nothing yet) is sent now."""
        self._runtime = runtime
        self._after = after
        self._streams: dict[int, Event] = {}
        self._opened = 0

    def __len__(self) -> int:
        return len(self._streams)

    async def serve(self, seq: int | None = None) -> AsyncGenerator[M, None]:
        """Serve one subscriber that has had everything up to `seq`, for as long as it listens."""
        self._opened += 1
        number, event = self._opened, Event()
        assert number not in self._streams, "streams are numbered once"
        self._streams[number] = event
        sent: int | None = None
        try:
            while True:
                # One at a time: a slow subscriber falls behind and then gets one message for all that it missed, not fifty.
                messages = self._after(seq)[:1]
                for message in messages:
                    assert sent is None or message.seq > sent, "a subscriber hears what is newer than what it has heard"
                    yield message
                    seq = sent = message.seq
                if not messages:
                    event.clear()
                    await event.wait()
        finally:
            del self._streams[number]

    async def wake(self) -> None:
        """Tell every subscriber that there is a new message."""
        streams = list(self._streams.values())
        assert len(streams) <= self._opened, "streams that are served were opened"
        for first in range(0, len(streams), STREAMS_PER_STEP):
            if first:
                await self._runtime.clock.sleep(STEP_S)
            for event in streams[first : first + STREAMS_PER_STEP]:
                event.set()


class Incoming(Protocol[Taken]):
    """What takes the messages of a scheme's streams."""

    def attach(self, node: NodeId) -> int:
        """A connection begins; the token that its messages come with."""
        ...

    def receive(self, token: int, message: Taken, /) -> bool:
        """Take a message; False: end this connection and attach again."""
        ...

    def detach(self, node: NodeId, token: int) -> None:
        """The connection ended. What it said stays true."""
        ...


class Following(Generic[M]):
    """One node's subscriptions to one kind of message."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        name: str,
        incoming: Incoming[M],
        subscribe: Callable[[NodeId], Awaitable[Stream[M]]],
        peers: Callable[[], Iterable[NodeId]],
        took: Callable[[M], None],
    ) -> None:
        self._parts = parts
        self._runtime = parts.runtime
        self._scope = parts.scope
        self._name = name
        self._incoming = incoming
        self._subscribe = subscribe
        self._peers = peers
        self._took = took
        self._following: set[NodeId] = set()

    def __len__(self) -> int:
        return len(self._following)

    async def run(self) -> None:
        """Follow every peer there is, for ever."""
        while True:
            for peer in sorted(set(self._peers()) - self._following):
                assert peer != self._parts.node_id, "a node hears itself without a stream"
                self._following.add(peer)
                self._scope.spawn(self._follow(peer), name=f"{self._name} from n{peer}")
            await self._runtime.clock.sleep(PEERS_INTERVAL_S)

    async def _follow(self, peer: NodeId) -> None:
        """Take a peer's messages until it is no peer any more."""
        assert peer in self._following, "a peer is followed once"
        try:
            while peer in set(self._peers()):
                await self._follow_once(peer)
                await self._runtime.clock.sleep(RECONNECT_S)
        finally:
            self._following.discard(peer)

    async def _follow_once(self, peer: NodeId) -> None:
        token = self._incoming.attach(peer)
        assert token > 0, "0 means no connection"
        try:
            async with await self._subscribe(peer) as stream:
                async for message in stream:
                    self._check(peer, message)
                    if not self._incoming.receive(token, message):
                        probe("closedts.stream_refused")
                        return
                    self._took(message)
        except ProtocolError as error:
            probe("closedts.not_believed")
            self._parts.refused(peer, error)
        except SlackwaterError:
            probe("closedts.stream_broke")
        finally:
            self._incoming.detach(peer, token)

    def _check(self, peer: NodeId, message: M) -> None:
        """Refuse what no sound node says; the operator is told."""
        problem = message.problem(self._parts.believable_upto())
        if message.sender != peer:
            problem = f"speaks for n{message.sender}"
        if problem:
            raise ProtocolError(f"n{peer} {problem}: what it says of closed timestamps is not believed", node_id=peer)
