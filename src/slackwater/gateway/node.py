"""What a gateway needs of the node it runs on, handed over when it is made; it imports nothing of `server/`.

The parts that belong to lower layers come as they are. Those of `server/` come as Protocols that say what is used of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from slackwater.catalog import TableCatalog
    from slackwater.clock import HybridClock
    from slackwater.closedts.policy import PolicyBook
    from slackwater.config.zones import ZoneConfig
    from slackwater.feeds.client import FeedClient
    from slackwater.feeds.protection import Protector
    from slackwater.jobs import Jobs, JobTypes
    from slackwater.model.descriptors import NodeDescriptor
    from slackwater.model.ids import NodeId
    from slackwater.model.protection import Record
    from slackwater.protect import Protections
    from slackwater.replica.driver import Store
    from slackwater.routing.sender import RangeSender
    from slackwater.runtime.rpc.dialer import Dialer
    from slackwater.runtime.seam import Address, Runtime, TaskScope
    from slackwater.settings import Settings
    from slackwater.txn.kv import KV


class KnownNodes(Protocol):
    """The nodes of the cluster and where they are."""

    @property
    def own(self) -> NodeDescriptor | None:
        """The descriptor of this node, once it has told the others where it is."""
        ...

    @property
    def nodes(self) -> Mapping[NodeId, NodeDescriptor]:
        """Every node that this one knows of."""
        ...

    def resolve(self, node_id: NodeId, /) -> Address | None:
        """The descriptor of a node; None: not known."""
        ...


class ZoneCopy(Protocol):
    """This node's copy of the zone configuration."""

    @property
    def configs(self) -> Sequence[ZoneConfig]:
        """The records of the copy."""
        ...

    async def read(self) -> None:
        """Read the configuration again."""
        ...


class PinnedBytes(Protocol):
    """How much history protections pin."""

    async def of(self, records: Sequence[Record]) -> dict[bytes, int]:
        """Bytes by record, over the whole cluster."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewayNode:
    """The handles of one node that a gateway uses."""

    cluster_id: str
    descriptor: NodeDescriptor
    runtime: Runtime
    scope: TaskScope
    settings: Settings
    clock: HybridClock
    kv: KV
    sender: RangeSender
    dialer: Dialer
    store: Store
    book: KnownNodes
    catalog: TableCatalog
    policies: PolicyBook
    zone_follower: ZoneCopy
    feed_client: FeedClient
    feed_protector: Protector
    jobs: Jobs
    job_types: JobTypes
    protections: Protections
    pinned: PinnedBytes
