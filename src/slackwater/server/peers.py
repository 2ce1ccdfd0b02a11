"""What administration asks of other nodes, one method per question. A node asks itself in the same way.

Every call is bounded. An answer that does not come is an error like any other: its caller must treat the node
as unknown, which is neither live nor dead.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from slackwater.errors import SlackwaterError, UnavailableError
from slackwater.protocol.node import services
from slackwater.routing.parallel import in_parallel

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.model.ids import NodeId, RangeId
    from slackwater.runtime.rpc.dialer import Dialer
    from slackwater.runtime.seam import Address, TaskScope

STATUS_TIMEOUT_S = 2.0
FETCH_TIMEOUT_S = 120.0
ASKED_AT_ONCE_MAX = 16


class Peers:
    """Questions to the nodes of a cluster."""

    def __init__(self, dialer: Dialer, resolve: Callable[[NodeId], Address | None], scope: TaskScope) -> None:
        self._dialer = dialer
        self._resolve = resolve
        self._scope = scope

    async def status(self, node: NodeId, ranges: Sequence[RangeId] = ()) -> services.StatusReply:
        """The status of a node's replicas; of all ranges when none is named."""
        request = services.StatusRequest(list(ranges))
        return await self._dialer.call(
            self._address(node), services.STATUS, request, timeout=STATUS_TIMEOUT_S, node_id=node
        )

    async def capacity(self, node: NodeId) -> services.CapacityReply:
        """How much a node holds."""
        request = services.CapacityRequest()
        return await self._dialer.call(
            self._address(node), services.CAPACITY, request, timeout=STATUS_TIMEOUT_S, node_id=node
        )

    async def replica(self, node: NodeId, range_id: RangeId) -> services.ReplicaStatus | None:
        """The status of one replica; None when the node has none."""
        found = (await self.status(node, [range_id])).replicas
        return found[0] if found else None

    async def replicas(
        self, nodes: Sequence[NodeId], range_id: RangeId
    ) -> dict[NodeId, services.ReplicaStatus | SlackwaterError | None]:
        """One range on many nodes at once: its status, None where there is no replica, or why that is not known."""
        works = [partial(self.replica, node, range_id) for node in nodes]
        answers = await in_parallel(self._scope, works, limit=ASKED_AT_ONCE_MAX, name="status")
        return dict(zip(nodes, answers, strict=True))

    async def fetch(self, node: NodeId, range_id: RangeId, *, source: NodeId) -> None:
        """Have `node` install a replica from a snapshot that `source` sends."""
        request = services.FetchRequest(range_id, source)
        await self._dialer.call(self._address(node), services.FETCH, request, timeout=FETCH_TIMEOUT_S, node_id=node)

    async def checksum(self, node: NodeId, range_id: RangeId, checksum_id: bytes) -> services.ChecksumReply:
        """What a replica found in itself at one point of its log, if it is that far."""
        request = services.ChecksumRequest(range_id, checksum_id)
        return await self._dialer.call(
            self._address(node), services.CHECKSUM, request, timeout=STATUS_TIMEOUT_S, node_id=node
        )

    async def quarantine(self, node: NodeId, range_id: RangeId, *, reason: str) -> None:
        """Have `node` stop serving from a replica that differs from the others, and fetch it anew."""
        request = services.QuarantineRequest(range_id, reason)
        await self._dialer.call(
            self._address(node), services.QUARANTINE, request, timeout=STATUS_TIMEOUT_S, node_id=node
        )

    def _address(self, node: NodeId) -> Address:
        address = self._resolve(node)
        if address is None:
            raise UnavailableError(f"the address of n{node} is not known")
        return address
