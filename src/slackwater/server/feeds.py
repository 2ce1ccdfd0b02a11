"""Where a node's change feeds meet the network: what it serves to others, and the client it uses itself.

    store.feed            one stream per consumer, for all ranges it follows here
    store.feed_register   a part of a range, from a timestamp on
    store.feed_drop       no more of it

The node's own client reads its own replicas without a detour and everybody else's over RPC; gateways and the watches of
system records (`server/announcements.py`) use it.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import TYPE_CHECKING

from slackwater.errors import UnavailableError
from slackwater.feeds.client import FeedClient
from slackwater.feeds.driver import NodeFeeds
from slackwater.feeds.links import LocalLinks, RpcLinks
from slackwater.protocol.feeds.messages import DROP, FEED, REGISTER, FeedDone

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from slackwater.protocol.feeds.messages import DropFeed, FeedItems, OpenFeed, RegisterFeed
    from slackwater.replica.driver import Store
    from slackwater.runtime.rpc.method import Context
    from slackwater.server.node import Node


def node_feeds(node: Node, store: Store) -> NodeFeeds:
    """What a node serves."""
    return NodeFeeds(store, node.kv.context, node.scope.child("feeds"))


def feed_client(node: Node, feeds: NodeFeeds) -> FeedClient:
    """What a node reads."""
    return FeedClient(
        sender=node.sender,
        links=LocalLinks(node.node_id, feeds, RpcLinks(node.dialer, node.book.resolve)),
        runtime=node.runtime,
        settings=node.settings,
        scope=node.scope.child("feed client"),
    )


def serve_feeds(node: Node) -> None:
    """Answer consumers, once there is a store."""

    def here() -> NodeFeeds:
        if node.feeds is None:
            raise UnavailableError("this node belongs to no cluster yet")
        return node.feeds

    async def events(request: OpenFeed, context: Context) -> AsyncGenerator[FeedItems, None]:
        async with aclosing(here().events(request)) as stream:
            async for items in stream:
                yield items

    def register(request: RegisterFeed, context: Context) -> FeedDone:
        here().register(request)
        return FeedDone()

    def drop(request: DropFeed, context: Context) -> FeedDone:
        here().drop(request)
        return FeedDone()

    node.server.handle_stream(FEED, events)
    node.server.handle_sync(REGISTER, register)
    node.server.handle_sync(DROP, drop)
