"""What a node says of itself when it is asked: for people, for the allocator, and for trimming."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.model.descriptors import NodeDescriptor
from slackwater.protocol.node import services

if TYPE_CHECKING:
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.replica.driver import Replica, Store
    from slackwater.server.member import Member
    from slackwater.server.node import Node
    from slackwater.server.zone_follower import ZoneFollower


def report(node: Node) -> services.ReportReply:
    """What a node knows of itself and of the others."""
    own, member = NodeDescriptor(node.node_id, node.address, node.locality), node.member
    replicas = [] if member is None else list(member.store.replicas.values())
    return services.ReportReply(
        cluster_id=node.identity.cluster_id,
        node=node.book.nodes.get(node.node_id, own),
        nodes=list(node.book.nodes.values()),
        liveness=[] if member is None else member.liveness.all(),
        now=node.clock.peek(),
        ranges=len(replicas),
        leases=sum(1 for r in replicas if r.state.lease.holder == node.node_id),
        quarantined={} if member is None else dict(member.store.quarantined),
        offsets_us=node.offsets.latest(),
        questions={} if member is None else member.queues.context.open_questions(),
        unfit=node.why_unfit(),
        warnings=[*certificate_warnings(node), *(() if member is None else _store_warnings(member))],
    )


def _store_warnings(member: Member) -> list[str]:
    columns = member.store.context.columns
    found = [*member.queues.context.lost.values(), *member.pinned.warnings()]
    if columns.damaged:
        many = f"{columns.damaged} files of columns were damaged since it started"
        found.append(f"{many}, the last because {columns.damage}; they are made again, look at the disk")
    return found


def certificate_warnings(node: Node) -> list[str]:
    """What an operator should know of the certificates of a node."""
    if node.credentials is None:
        return []
    now_s = node.runtime.clock.wall_ns() / 1e9
    return node.credentials.warnings(now_s, within_days=node.settings["tls.expiry_warning"])


def replica_status(store: Store, range_id: RangeId, configuration: ZoneFollower) -> services.ReplicaStatus:
    """The status of one replica of a store."""
    replica = store.replicas[range_id]
    state = replica.state
    return services.ReplicaStatus(
        descriptor=state.descriptor,
        lease=state.lease,
        lai=state.lai,
        position=state.position,
        durable=store.durable.get(range_id, state.position.__class__(0)),
        closed=replica.closing.closed(),
        stats=state.stats,
        frozen=state.frozen is not None,
        failure=str(replica.failure) if replica.failure else "",
        load=replica.load.rate(now_ns=store.context.runtime.clock.monotonic_ns()),
        gc_threshold=state.gc_threshold,
        kept=len(state.kept),
        wanted=configuration.factor(state.descriptor),
        columns=_columns(store, state.descriptor),
        life=store.context.life,
    )


def _columns(store: Store, descriptor: RangeDescriptor) -> services.ColumnsStatus | None:
    """What a store has of a range in columns; a file that covers more of the keys counts whole."""
    held = store.context.columns.overlapping(descriptor.start, descriptor.end)
    if not held:
        return None
    return services.ColumnsStatus(
        size=sum(kept.record.size for kept in held),
        rows=sum(kept.record.rows for kept in held),
        changed=sum(len(kept.delta) for kept in held),
        anchor=min(kept.anchor for kept in held),
    )


def checksum(replica: Replica, checksum_id: bytes) -> services.ChecksumReply:
    """What a replica found in itself; one that has failed has no vote (I-34)."""
    if replica.failure is not None:
        return services.ChecksumReply(None, str(replica.failure))
    return services.ChecksumReply(replica.checksums.get(checksum_id))


def capacity(store: Store, node_id: NodeId) -> services.CapacityReply:
    """How much a store holds."""
    now_ns = store.context.runtime.clock.monotonic_ns()
    replicas = list(store.replicas.values())
    led = [r for r in replicas if r.state.lease.holder == node_id]
    return services.CapacityReply(node_id, len(replicas), len(led), sum(r.load.rate(now_ns=now_ns) for r in replicas))
