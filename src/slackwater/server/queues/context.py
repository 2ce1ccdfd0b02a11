"""What every queue has at hand, what one sweep knows of the cluster, and what one visit knows of a range.

    Desk       the handles of the node                                     for its whole life
    Picture    nodes, their states and counts, span configurations         one per sweep
    Visit      one range here, and where its replicas stand                one per range and sweep

A node that does not answer when it is counted is UNKNOWN for this sweep, whatever its liveness record says: it is given
nothing, and nothing is taken from it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from slackwater.config.zones import ZoneConfig, config_of, factor_of
from slackwater.errors import NotLeaseholder, SlackwaterError
from slackwater.protocol.node.services import CapacityReply, ReplicaStatus
from slackwater.replica.allocator import NodeInfo, NodeState, node_state
from slackwater.routing.parallel import in_parallel
from slackwater.server.peers import ASKED_AT_ONCE_MAX

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from typing import Protocol

    from slackwater.clock import HybridClock
    from slackwater.clock.timestamp import Timestamp
    from slackwater.log.contract import OrderedLog
    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.model.ids import NodeId, RangeId
    from slackwater.model.tables import TableHistory
    from slackwater.replica.driver import NodeLiveness, Replica, Store, SystemKv
    from slackwater.runtime.seam import Runtime, TaskScope
    from slackwater.server.addresses import AddressBook
    from slackwater.server.admin import Admin
    from slackwater.server.peers import Peers
    from slackwater.server.retention import NodeRetention
    from slackwater.settings import Settings
    from slackwater.txn.kv import KV

    class Queue(Protocol):
        """One concern of a range's upkeep."""

        name: str

        async def process(self, visit: Visit) -> bool:
            """Look at a range and do what is needed; whether the range changed, so that others should look anew."""
            ...


@dataclass
class QueueContext:
    """The handles of one node."""

    node_id: NodeId
    store: Store
    admin: Admin
    peers: Peers
    kv: KV
    system: SystemKv
    liveness: NodeLiveness
    book: AddressBook
    log: OrderedLog
    clock: HybridClock
    runtime: Runtime
    settings: Settings
    scope: TaskScope
    configs: Callable[[], Awaitable[list[ZoneConfig]]]
    """The span configuration, as this node knows it; read if it never was."""
    tables: Callable[[int], Awaitable[TableHistory]]
    """Every version of a table, by its id."""
    retention: NodeRetention
    """What may be collected, as this node knows it."""
    refresh_retention: Callable[[Timestamp], Awaitable[None]]
    """Reads zones, and then protections, anew: above the given timestamp."""
    findings: list[str] = field(default_factory=list)
    """What an operator should know; the newest FINDINGS_MAX."""

    questions: dict[RangeId, str] = field(default_factory=dict)
    """Ranges led here whose replicas differ in a way that only an operator can judge; at most one for each range."""

    lost: dict[RangeId, str] = field(default_factory=dict)
    """Ranges that no node which answers has, and why they were not made again from the log; see `lost.py`."""

    def ask(self, range_id: RangeId, question: str) -> None:
        """Leave a range alone and have an operator decide; `slackwater status` and the journal show it until it is settled."""
        if self.questions.get(range_id) != question:
            self.report(question)
        self.questions[range_id] = question

    def open_questions(self) -> dict[RangeId, str]:
        """The questions about ranges that this node leads; another leaseholder asks its own."""
        led = {r for r, replica in self.store.replicas.items() if replica.state.lease.holder == self.node_id}
        return {range_id: question for range_id, question in self.questions.items() if range_id in led}

    def report(self, finding: str) -> None:
        """Note something for an operator."""
        self.findings.append(finding)
        del self.findings[:-FINDINGS_MAX]

    def now_ns(self) -> int:
        """Monotonic time."""
        return self.runtime.clock.monotonic_ns()


FINDINGS_MAX = 100
STANDING_NS_MAX = 2_000_000_000
"""How old what a node said of its replicas may be: a sweep over many ranges takes longer."""
STANDINGS_MAX = 1_000
"""Ranges asked for together."""


class _Standing(NamedTuple):
    """What a node said of its replicas."""

    asked_ns: int
    replicas: dict[RangeId, ReplicaStatus]


class ClusterView:
    """The cluster as one sweep sees it. Counts are corrected as the sweep moves things."""

    def __init__(self, nodes: dict[NodeId, NodeInfo], configs: list[ZoneConfig], settings: Settings) -> None:
        self.nodes = nodes
        self.configs = configs
        self._settings = settings
        self._standings: dict[NodeId, _Standing] = {}

    def factor(self, descriptor: RangeDescriptor) -> int:
        """Wanted replicas of a range."""
        return factor_of(self.configs, descriptor, default=int(self._settings["range.replication_factor"]))

    def alike(self, left: RangeDescriptor, right: RangeDescriptor) -> bool:
        """Whether two ranges are configured in the same way, so that they could be one."""
        return config_of(self.configs, left) == config_of(self.configs, right)

    def state(self, node: NodeId) -> NodeState:
        """What may be assumed of a node."""
        known = self.nodes.get(node)
        return NodeState.UNKNOWN if known is None else known.state

    async def standing(self, context: QueueContext, node: NodeId, range_id: RangeId) -> ReplicaStatus | None:
        """The status of a node's replica of a range; None when it has none.

        One question brings the answers for all ranges that are led here, which the sweep is about to visit. An answer
        that is old by now, or says that there is nothing, is not taken for the range's: it is asked for by itself.
        """
        known = self._standings.get(node)
        if known is not None and context.now_ns() - known.asked_ns < STANDING_NS_MAX:
            return known.replicas.get(range_id) or await context.peers.replica(node, range_id)
        asked_ns, wanted = context.now_ns(), [range_id, *_led_with(context, node, but=range_id)]
        found = {s.descriptor.range_id: s for s in (await context.peers.status(node, wanted)).replicas}
        self._standings[node] = _Standing(asked_ns, found)
        return found.get(range_id)

    def moved_replica(self, *, away: NodeId | None = None, to: NodeId | None = None) -> None:
        """Count a replica that was moved."""
        self._count(away, replicas=-1)
        self._count(to, replicas=1)

    def moved_lease(self, *, away: NodeId, to: NodeId) -> None:
        """Count a lease that was moved."""
        self._count(away, leases=-1)
        self._count(to, leases=1)

    def _count(self, node: NodeId | None, *, replicas: int = 0, leases: int = 0) -> None:
        known = self.nodes.get(node) if node is not None else None
        if known is not None:
            self.nodes[known.node_id] = known._replace(replicas=known.replicas + replicas, leases=known.leases + leases)


def view_from_liveness(context: QueueContext) -> ClusterView:
    """What the liveness records say, without a call to any node: nodes and their states, no counts, no configurations."""
    nodes = {n: NodeInfo(n, state, context.book.locality(n)) for n, state in _states(context).items()}
    return ClusterView(nodes, [], context.settings)


async def view_cluster(context: QueueContext) -> ClusterView:
    """Ask every node that seems alive what it holds."""
    states = _states(context)
    asked = [n for n, s in states.items() if s in _ANSWERING]
    works = [partial(context.peers.capacity, n) for n in asked]
    answers = dict(
        zip(asked, await in_parallel(context.scope, works, limit=ASKED_AT_ONCE_MAX, name="capacity"), strict=True)
    )
    nodes = {}
    for node, state in states.items():
        answer = answers.get(node)
        if isinstance(answer, CapacityReply):
            counts = (answer.replicas, answer.leases, answer.load)
            nodes[node] = NodeInfo(node, state, context.book.locality(node), *counts)
        else:
            unseen = NodeState.UNKNOWN if state is NodeState.LIVE else state
            nodes[node] = NodeInfo(node, unseen, context.book.locality(node))
    return ClusterView(nodes, await context.configs(), context.settings)


def _states(context: QueueContext) -> dict[NodeId, NodeState]:
    seen_at, dead_after = context.liveness.refreshed_at, context.settings["liveness.dead_after"]
    return {r.node_id: node_state(r, seen_at=seen_at, dead_after_s=dead_after) for r in context.liveness.all()}


def _led_with(context: QueueContext, node: NodeId, *, but: RangeId) -> list[RangeId]:
    """Ranges that are led here and have a replica on `node`."""
    led = (
        range_id
        for range_id, replica in context.store.replicas.items()
        if range_id != but
        and replica.state.lease.holder == context.node_id
        and node in replica.state.descriptor.replicas
    )
    return list(islice(led, STANDINGS_MAX))


class Visit:
    """One range, looked at once."""

    def __init__(self, context: QueueContext, replica: Replica, view: ClusterView) -> None:
        self.context = context
        self.replica = replica
        self.view = view
        self.again = False
        """Set by a queue that knows of a next step for this range: the next sweep comes early."""
        self.waits_its_turn = False
        """Set by a queue that leaves a step to another node for now: the next sweep comes within a turn."""
        self._members: dict[NodeId, ReplicaStatus | SlackwaterError | None] | None = None

    @property
    def descriptor(self) -> RangeDescriptor:
        """The range as applied here."""
        return self.replica.state.descriptor

    @property
    def leading(self) -> bool:
        """Whether this node holds the range's lease and may use it now."""
        if self.replica.failure is not None or self.replica.retired:
            return False
        try:
            self.replica.leasing.check(self.context.clock.now())
        except NotLeaseholder:
            return False
        return True

    async def members(self) -> dict[NodeId, ReplicaStatus | SlackwaterError | None]:
        """The status of each replica, None when its node has none, or why that is not known. Asked once."""
        if self._members is None:
            nodes, range_id = self.descriptor.replicas, self.descriptor.range_id
            works = [partial(self.view.standing, self.context, node, range_id) for node in nodes]
            answers = await in_parallel(self.context.scope, works, limit=ASKED_AT_ONCE_MAX, name="status")
            self._members = dict(zip(nodes, answers, strict=True))
        return self._members


_ANSWERING = frozenset({NodeState.LIVE, NodeState.DRAINING, NodeState.LEAVING})
