"""The way to a node that serves feeds: over RPC, or straight into this node's own.

Links            what a feed client needs: a stream of a node's messages, registrations, and their end
RpcLinks         over the dialer; `resolve` knows the addresses
LocalLinks       this node's `NodeFeeds` without a detour; all others over `remote`
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from slackwater.errors import ConnectionLost
from slackwater.protocol.feeds.messages import DROP, FEED, REGISTER

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from slackwater.feeds.driver import NodeFeeds
    from slackwater.model.ids import NodeId
    from slackwater.protocol.feeds.messages import DropFeed, FeedItems, OpenFeed, RegisterFeed
    from slackwater.runtime.rpc.dialer import Dialer
    from slackwater.runtime.seam import Address

CALL_TIMEOUT_S = 5.0


class Links(Protocol):
    """Reaches the feeds of nodes."""

    def stream(self, node_id: NodeId, request: OpenFeed) -> AsyncGenerator[FeedItems, None]:
        """What a node has to say to one consumer; raises when it cannot be reached any more."""
        ...

    async def register(self, node_id: NodeId, request: RegisterFeed) -> None:
        """Ask for a part of a range."""
        ...

    async def drop(self, node_id: NodeId, request: DropFeed) -> None:
        """Ask for no more of some."""
        ...


class RpcLinks:
    """Feeds over RPC."""

    def __init__(self, dialer: Dialer, resolve: Callable[[NodeId], Address | None]) -> None:
        self._dialer = dialer
        self._resolve = resolve

    async def stream(self, node_id: NodeId, request: OpenFeed) -> AsyncGenerator[FeedItems, None]:
        """Call `store.feed`."""
        stream = await self._dialer.stream(self._address(node_id), FEED, request, node_id=node_id)
        async with stream:
            async for items in stream:
                items.check()
                yield items

    async def register(self, node_id: NodeId, request: RegisterFeed) -> None:
        """Call `store.feed_register`."""
        address = self._address(node_id)
        await self._dialer.call(address, REGISTER, request, timeout=CALL_TIMEOUT_S, node_id=node_id)

    async def drop(self, node_id: NodeId, request: DropFeed) -> None:
        """Call `store.feed_drop`."""
        address = self._address(node_id)
        await self._dialer.call(address, DROP, request, timeout=CALL_TIMEOUT_S, node_id=node_id)

    def _address(self, node_id: NodeId) -> Address:
        address = self._resolve(node_id)
        if address is None:
            raise ConnectionLost(f"the address of n{node_id} is not known", node_id=node_id, sent=False)
        return address


class LocalLinks:
    """Links to feeds: this node's directly, those of others through `remote`."""

    def __init__(self, node_id: NodeId, local: NodeFeeds, remote: Links) -> None:
        self._node_id = node_id
        self._local = local
        self._remote = remote

    def stream(self, node_id: NodeId, request: OpenFeed) -> AsyncGenerator[FeedItems, None]:
        """The events of a registration on this node or on another."""
        return self._local.events(request) if node_id == self._node_id else self._remote.stream(node_id, request)

    async def register(self, node_id: NodeId, request: RegisterFeed) -> None:
        """Register here or there."""
        if node_id == self._node_id:
            self._local.register(request)
        else:
            await self._remote.register(node_id, request)

    async def drop(self, node_id: NodeId, request: DropFeed) -> None:
        """Drop here or there."""
        if node_id == self._node_id:
            self._local.drop(request)
        else:
            await self._remote.drop(node_id, request)
