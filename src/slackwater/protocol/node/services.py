"""What nodes ask each other besides batches.

node.hello       who are you, which nodes and which first range do you know   (also how a node finds its cluster)
node.init        become the first node of a new cluster
node.join        make me a node of your cluster
node.reach       I can call you; whom I cannot, and whom a majority cannot
node.report      what you know of yourself and of the others, for people
store.status     where your replicas stand: applied and durable positions, for trimming and for the allocator
store.capacity   how much a node holds, for the allocator
store.snapshot   one replica as a stream
store.fetch      take a snapshot of this range from that node
store.checksum   the digest of a replica at one point of its log
store.quarantine stop serving from a replica that differs from the others
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.descriptors import Genesis, Lease, LeaseAppliedIndex, Liveness, NodeDescriptor, RangeDescriptor
from slackwater.model.ids import Natural, NodeId, Position, RangeId
from slackwater.protocol.node.snapshots import Examination, SnapshotBlock, SnapshotHeader, SnapshotTrailer
from slackwater.runtime.access import NEWCOMERS, NODES, NODES_AND_OPERATORS, OPERATORS
from slackwater.runtime.rpc.method import Method, StreamMethod


class HelloRequest(msgspec.Struct, frozen=True):
    """Greets a node: a node names itself, so that both know each other afterwards; a client leaves it out."""

    node: NodeDescriptor | None = None


class HelloReply(msgspec.Struct, frozen=True):
    """What a node knows of its cluster."""

    cluster_id: str
    node: NodeDescriptor
    nodes: list[NodeDescriptor]
    first_range: RangeDescriptor | None


class InitRequest(msgspec.Struct, frozen=True):
    """Make a new cluster; with an empty id the node picks one."""

    cluster_id: str = ""


class InitReply(msgspec.Struct, frozen=True):
    """The cluster that was made."""

    cluster_id: str
    node_id: NodeId
    joins: bool = False
    """Whether the node was started with others to join: then they are likely to come."""


class JoinRequest(msgspec.Struct, frozen=True):
    """A node without a cluster asks for a place. `log` is the identity of the log it would use."""

    address: str
    locality: tuple[tuple[str, str], ...]
    log: tuple[str, str, str]


class JoinReply(msgspec.Struct, frozen=True):
    """Admits a newcomer: its node id, and where the others are."""

    cluster_id: str
    node_id: NodeId
    nodes: list[NodeDescriptor]
    first_range: RangeDescriptor
    born: Genesis | None = None


class StatusRequest(msgspec.Struct, frozen=True):
    """Asks where the replicas of these ranges stand; all when empty."""

    ranges: list[RangeId] = []


class ColumnsStatus(msgspec.Struct, frozen=True):
    """Files of columns in the span of one replica."""

    size: int
    """Their bytes on disk."""
    rows: int
    changed: int
    """Versions written there since they were made."""
    anchor: Timestamp
    """The oldest timestamp that one of them shows."""


class ReplicaStatus(msgspec.Struct, frozen=True):
    """Where one replica stands."""

    descriptor: RangeDescriptor
    lease: Lease
    lai: LeaseAppliedIndex
    position: Position
    durable: Position
    closed: Timestamp
    stats: tuple[int, ...]
    frozen: bool
    failure: str
    load: float = 0.0
    wanted: int = 0
    """Replicas that this range is to have, by what the node knows of the configuration; 0: it does not know yet."""
    columns: ColumnsStatus | None = None
    """What the store has of the range in columns."""
    gc_threshold: Timestamp = MIN
    kept: int = 0
    """Entries of history below the threshold that stay, because something protects them."""
    life: int = 0
    """Of the process that answers (`Liveness.life`): a lease that is to be of use is given to that one."""


class CapacityRequest(msgspec.Struct, frozen=True):
    """Asks how much a node holds."""


class CapacityReply(msgspec.Struct, frozen=True):
    """How much a node holds: replicas, leases, requests per second."""

    node_id: NodeId
    replicas: int
    leases: int
    load: float


class StatusReply(msgspec.Struct, frozen=True):
    """A store's replicas."""

    node_id: NodeId
    replicas: list[ReplicaStatus]


class ReportRequest(msgspec.Struct, frozen=True):
    """Asks a node for its view of itself and of its cluster."""


class ReportReply(msgspec.Struct, frozen=True):
    """A node's view of itself and of its cluster."""

    cluster_id: str
    node: NodeDescriptor
    nodes: list[NodeDescriptor]
    liveness: list[Liveness]
    now: Timestamp
    ranges: int
    leases: int
    quarantined: dict[RangeId, str]
    offsets_us: dict[str, int]
    """The measured clock offset of each peer: its clock minus ours."""
    questions: dict[RangeId, str] = {}
    """Ranges led by this node whose replicas differ, and where an operator has to decide which is right."""
    unfit: list[str] = []
    """Why this node leads nothing now."""
    warnings: list[str] = []
    """What an operator should know of the node itself, such as certificates that are about to end."""


class SnapshotRequest(msgspec.Struct, frozen=True):
    """Asks for one replica as a stream of parts."""

    range_id: RangeId


class FetchRequest(msgspec.Struct, frozen=True):
    """Install a replica of `range_id` from a snapshot that `source` sends."""

    range_id: RangeId
    source: NodeId


class ChecksumRequest(msgspec.Struct, frozen=True):
    """The digest that a replica computed for a `ComputeChecksum` command."""

    range_id: RangeId
    checksum_id: bytes


class ChecksumReply(msgspec.Struct, frozen=True):
    """What a replica found in itself; None: not (or not yet) computed here. A failed replica has no vote, and says why."""

    found: Examination | None
    failure: str = ""


class QuarantineRequest(msgspec.Struct, frozen=True):
    """A replica was found to differ from the others: stop serving from it and fetch it anew."""

    range_id: RangeId
    reason: str


class ReachStatement(msgspec.Struct, frozen=True):
    """What a node says, when it calls and when it is called, of whom it can call (`server.reach`)."""

    node_id: NodeId
    misses: list[NodeId] = []
    cut_off: list[NodeId] = []
    your_life: Natural = 0
    """The life that the liveness record of the node spoken to names, as far as the speaker knows; 0: it knows none."""
    knows_you: bool = True
    """Whether the speaker has an address of the node spoken to; one that has lost it is greeted."""


class Ok(msgspec.Struct, frozen=True):
    """Acknowledges a fetch or a quarantine."""


HELLO: Method[HelloRequest, HelloReply] = Method(
    "node.hello", HelloRequest, HelloReply, callers=NODES_AND_OPERATORS, timeless=True
)
"""Timeless: a node that knows no address cannot find out that its clock is right again, if greetings are refused by it."""
INIT: Method[InitRequest, InitReply] = Method("node.init", InitRequest, InitReply, callers=OPERATORS)
REPORT: Method[ReportRequest, ReportReply] = Method(
    "node.report", ReportRequest, ReportReply, callers=NODES_AND_OPERATORS
)
REACH: Method[ReachStatement, ReachStatement] = Method("node.reach", ReachStatement, ReachStatement, callers=NODES)
JOIN: Method[JoinRequest, JoinReply] = Method("node.join", JoinRequest, JoinReply, callers=NEWCOMERS)
STATUS: Method[StatusRequest, StatusReply] = Method(
    "store.status", StatusRequest, StatusReply, callers=NODES_AND_OPERATORS
)
CAPACITY: Method[CapacityRequest, CapacityReply] = Method(
    "store.capacity", CapacityRequest, CapacityReply, callers=NODES_AND_OPERATORS
)
FETCH: Method[FetchRequest, Ok] = Method("store.fetch", FetchRequest, Ok, callers=NODES_AND_OPERATORS)
CHECKSUM: Method[ChecksumRequest, ChecksumReply] = Method(
    "store.checksum", ChecksumRequest, ChecksumReply, callers=NODES_AND_OPERATORS
)
QUARANTINE: Method[QuarantineRequest, Ok] = Method(
    "store.quarantine", QuarantineRequest, Ok, callers=NODES_AND_OPERATORS
)
SNAPSHOT: StreamMethod[SnapshotRequest, SnapshotHeader | SnapshotBlock | SnapshotTrailer] = StreamMethod(
    "store.snapshot",
    SnapshotRequest,
    SnapshotHeader | SnapshotBlock | SnapshotTrailer,  # type: ignore[arg-type]
    callers=NODES,
)
