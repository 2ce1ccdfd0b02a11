"""How feeds travel between nodes.

    consumer                                    serving node
    OpenFeed(session) ─── store.feed ─────────► one stream per consumer and node, for all its ranges there
                      ◄── FeedItems([])         the session is open: registrations may come
    RegisterFeed(session, 7, r12, [a, f), 40) ► store.feed_register
                      ◄── FeedItems([(7, Changes), (7, Resolved 52), (9, Changes)])
    DropFeed(session, [7]) ───────────────────► store.feed_drop

One consumer has one stream to each node, however many ranges it follows there; all streams of a pair of nodes share one
connection, as all RPC does. A stream per consumer, not one for all consumers of a node: flow control is the stream's window,
so a consumer that takes nothing holds up no other consumer, and what waits for it waits at the serving node, where
its budget ends it (pitfall 33).

Numbers of registrations are the consumer's own. Events of one registration come in order; an `Ended` is its last.
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.model.ids import Natural, RangeId
from slackwater.protocol.feeds.events import Changes, Ended, Resolved
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method, StreamMethod

SESSION_BYTES = 16


class OpenFeed(msgspec.Struct, frozen=True, array_like=True):
    """Open a session: a random name that registrations will give."""

    session: bytes
    consumer: str = ""
    """Who this is, for people."""


class RegisterFeed(msgspec.Struct, frozen=True, array_like=True):
    """Send every version of `[start, end)`, a part of one range, with ts > after, and resolved timestamps."""

    session: bytes
    registration: Natural
    range_id: RangeId
    start: bytes
    end: bytes
    after: Timestamp
    befores: bool = False
    quiet: bool = False
    """Events matter, resolved timestamps hardly: they come now and then, so that resuming need not go back far."""


class DropFeed(msgspec.Struct, frozen=True, array_like=True):
    """Ends registrations that are not wanted any more."""

    session: bytes
    registrations: list[Natural]


class FeedDone(msgspec.Struct, frozen=True, array_like=True):
    """Acknowledges a register or drop request."""


class FeedItems(msgspec.Struct, frozen=True, array_like=True):
    """What some registrations have to say, in order."""

    events: list[tuple[int, Changes | Resolved | Ended]]

    def check(self) -> None:
        """Columns of one length, as they must be when they arrive."""
        for _, event in self.events:
            if isinstance(event, Changes):
                event.check()


FEED: StreamMethod[OpenFeed, FeedItems] = StreamMethod("store.feed", OpenFeed, FeedItems, callers=NODES_AND_OPERATORS)
REGISTER: Method[RegisterFeed, FeedDone] = Method(
    "store.feed_register", RegisterFeed, FeedDone, callers=NODES_AND_OPERATORS
)
DROP: Method[DropFeed, FeedDone] = Method("store.feed_drop", DropFeed, FeedDone, callers=NODES_AND_OPERATORS)
