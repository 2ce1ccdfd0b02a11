"""Where a node's change feeds meet the network: what it serves to others, and the client it uses itself.

    store.feed            one stream per consumer, for all ranges it follows here
    store.feed_register   a part of a range, from a timestamp on
    store.feed_drop       no more of it

The node's own client reads its own replicas without a detour and other nodes' over RPC; gateways and the watches of
system records (`server/announcements.py`) use it.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from slackwater.feeds.client import FeedClient
from slackwater.feeds.driver import NodeFeeds
from slackwater.feeds.links import LocalLinks, RpcLinks
from slackwater.protocol.feeds.messages import DROP, FEED, REGISTER, FeedDone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from slackwater.protocol.feeds.messages import DropFeed, FeedItems, OpenFeed, RegisterFeed
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.member import Member


def node_feeds(member: Member) -> NodeFeeds:
    """What a node serves."""
    return NodeFeeds(member.store, member.kv.context, member.scope.child("feeds"))


def feed_client(member: Member) -> FeedClient:
    """What a node reads."""
    return FeedClient(
        sender=member.sender,
        links=LocalLinks(member.node_id, member.feeds, RpcLinks(member.dialer, member.book.resolve)),
        runtime=member.runtime,
        settings=member.settings,
        scope=member.scope.child("feed client"),
    )


class FeedService:
    """Answers consumers of change feeds on one node."""

    def __init__(self, member: Member) -> None:
        self._feeds = member.feeds
        member.server.handle_stream(FEED, self._events)
        member.server.handle_sync(REGISTER, self._register)
        member.server.handle_sync(DROP, self._drop)

    async def _events(self, request: OpenFeed, context: Context) -> AsyncGenerator[FeedItems, None]:
        async with aclosing(self._feeds.events(request)) as stream:
            async for items in stream:
                yield items

    def _register(self, request: RegisterFeed, context: Context) -> FeedDone:
        self._feeds.register(request)
        return FeedDone()

    def _drop(self, request: DropFeed, context: Context) -> FeedDone:
        self._feeds.drop(request)
        return FeedDone()
