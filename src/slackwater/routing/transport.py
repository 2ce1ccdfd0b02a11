"""The way to a node: one method, three implementations.

    Transport           what the sender needs: a batch to a node, its result or its typed error
    RpcTransport        over the dialer; `resolve` knows the addresses
    LocalTransport      straight into this node's own replicas, and over `remote` to all others

A transport never retries. A batch's `deadline_ms` bounds the call. `ConnectionLost` and `DeadlineExceeded` carry
`sent=False` when the batch certainly never left; without that fact it may have been executed.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from slackwater.errors import ConnectionLost, DeadlineExceeded
from slackwater.protocol.range.requests import Batch, BatchResult
from slackwater.runtime.access import NODES_AND_OPERATORS
from slackwater.runtime.rpc.method import Method
from slackwater.runtime.sync import timeout

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from slackwater.model.ids import NodeId
    from slackwater.runtime.later import Later
    from slackwater.runtime.rpc.dialer import Dialer
    from slackwater.runtime.seam import Address

KV_BATCH: Method[Batch, BatchResult] = Method("kv.batch", Batch, BatchResult, callers=NODES_AND_OPERATORS)
"""A batch for one range, served by the node that has a replica of it."""


class Transport(Protocol):
    """Delivers batches."""

    async def batch(self, node_id: NodeId, batch: Batch) -> BatchResult:
        """Have the node's replica execute the batch; raises what the replica raised."""
        ...


class RpcTransport:
    """Batches over RPC."""

    def __init__(self, dialer: Dialer, resolve: Callable[[NodeId], Address | None]) -> None:
        self._dialer = dialer
        self._resolve = resolve

    async def batch(self, node_id: NodeId, batch: Batch) -> BatchResult:
        """Call `kv.batch` on the node."""
        address = self._resolve(node_id)
        if address is None:
            raise ConnectionLost(f"the address of n{node_id} is not known", node_id=node_id, sent=False)
        timeout = batch.header.deadline_ms / 1000 if batch.header.deadline_ms else None
        peer = self._dialer.live(address)
        if peer is not None and peer.node_id == node_id:
            return await peer.call(KV_BATCH, batch, timeout=timeout)
        return await self._dialer.call(address, KV_BATCH, batch, timeout=timeout, node_id=node_id)


class LocalTransport:
    """Batches for this node without a detour; all others go `remote`."""

    def __init__(
        self,
        node_id: NodeId,
        local: Callable[[Batch], Awaitable[BatchResult]],
        remote: Transport | None = None,
        *,
        at_once: Callable[[Batch], BatchResult | Later[BatchResult] | None] = lambda _batch: None,
    ) -> None:
        """`at_once` is tried before `local`: see `RpcServer.handle`, where batches of other nodes are served the same way."""
        self._node_id = node_id
        self._local = local
        self._remote = remote
        self._at_once = at_once

    async def batch(self, node_id: NodeId, batch: Batch) -> BatchResult:
        """Call this node's replicas directly, or pass the batch on."""
        if node_id == self._node_id:
            begun = self._at_once(batch)
            if begun is None:
                return await self._in_time(partial(self._local, batch), batch)
            if isinstance(begun, BatchResult):
                return begun
            return await self._in_time(partial(self._waited_for, begun, batch), batch)
        if self._remote is None:
            raise ConnectionLost(f"n{node_id} cannot be reached: this node stands alone", node_id=node_id, sent=False)
        return await self._remote.batch(node_id, batch)

    async def _waited_for(self, begun: Later[Any], batch: Batch) -> BatchResult:
        answer: BatchResult | None = await begun.wait()
        return await self._local(batch) if answer is None else answer

    async def _in_time(self, work: Callable[[], Awaitable[BatchResult]], batch: Batch) -> BatchResult:
        if not batch.header.deadline_ms:
            return await work()
        try:
            async with timeout(batch.header.deadline_ms / 1000):
                return await work()
        except TimeoutError:
            raise DeadlineExceeded("the answer did not come before the deadline", node_id=self._node_id) from None
