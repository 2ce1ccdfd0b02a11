"""What a seed decides about a cluster, and what its programs share.

    Plan        how many ranges and copies, which workloads, how often operators act: drawn before the first event
    Cluster     the meeting point of programs and oracles: nodes that run, the recorder, programs that are done

Keys of each workload lie together, and range boundaries are drawn among all keys, so that some transactions stay inside
one range and others cross several:

    04 bnk/…   04 frk/…   04 lst/…   04 reg/…   04 rng/…
    |-- r3 --|--- r7 ---|-- r5 --------|--- r4 --- …
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from slackwater.codec.layout import KV, VERSION_BYTES, kv, prefix_end
from slackwater.runtime.seam import Family
from slackwater.sim.handles import NS

if TYPE_CHECKING:
    from collections.abc import Callable

    from slackwater.model.descriptors import RangeDescriptor
    from slackwater.runtime.sync import Event
    from slackwater.server.node import Node
    from slackwater.sim.checkers import Recorder
    from slackwater.sim.tape import Tape, TapeStream
    from slackwater.sim.world import World

PORT = 7400
COPIES_MAX = 3
SYSTEM_RANGES = 2
"""The first ranges of a cluster hold its own records; the plan divides what lies above them."""
TRAFFIC_END_NS = 6 * NS
"""Clients begin nothing new in the last seconds: the healed world has to come to rest."""
KV_SPAN = (KV, prefix_end(KV))

REGISTERS, ACCOUNTS, RING, LISTS, FORKS = 6, 5, 6, 5, 8
FORK_KEYS = 2
OPENING_BALANCE = 100
GOOD_COPIES_MIN = 1
SHORTEST_TTL = "shortest gc ttl"
"""A fact of the world: the shortest time, in seconds, for which the operator had history kept; without it, he never said."""


def register_keys() -> list[bytes]:
    """Keys of the register workload."""
    return [kv(b"reg/%02d" % i) for i in range(REGISTERS)]


def account_keys() -> list[bytes]:
    """Keys of the bank."""
    return [kv(b"bnk/%02d" % i) for i in range(ACCOUNTS)]


def ring_keys() -> list[bytes]:
    """Keys of the ring."""
    return [kv(b"rng/%02d" % i) for i in range(RING)]


def list_keys() -> list[bytes]:
    """Keys of the list-append workload."""
    return [kv(b"lst/%02d" % i) for i in range(LISTS)]


def fork_groups() -> list[list[bytes]]:
    """Groups of keys of the long-fork workload, each key written once."""
    return [[kv(b"frk/%02d/%d" % (g, i)) for i in range(FORK_KEYS)] for g in range(FORKS)]


def all_keys() -> list[bytes]:
    """Every key that a workload uses, in order."""
    groups = [key for group in fork_groups() for key in group]
    return sorted([*register_keys(), *account_keys(), *ring_keys(), *list_keys(), *groups])


WORKLOADS = ("register", "bank", "ring", "list", "fork", "audit", "follow")


@dataclass(frozen=True, kw_only=True)
class ClusterPlan:
    """The drawn shape of one cluster."""

    ranges: int
    copies: int
    splits: tuple[bytes, ...]
    workloads: tuple[str, ...]
    think_mean_ns: int
    operator_mean_ns: int
    """Mean time between two acts of the operator on the whole cluster."""
    merges: bool
    moves: bool
    severs: bool = False
    unheard: bool = False
    """Whether nodes end their epochs while another hears of it by the log alone (`cluster_unheard`)."""
    """Whether holders are cut off together with some of their clients (`cluster_sever`)."""
    grays: bool = False
    """Whether leaseholders fail without dying, for longer than any lease lasts (`cluster_gray`)."""
    rough: bool = False
    """Whether faults begin with the first event: nodes are born, join and get their first ranges under fire."""
    late: tuple[tuple[str, int], ...] = ()
    """Nodes that are switched on only after so many ns."""
    rolling: bool = False
    """Whether all nodes are restarted, one after the other, once the world is well (`cluster_stops`)."""
    clones: bool = False
    """Whether a node's store is copied, and a second process started from it (`cluster_clone`)."""
    retires: tuple[str, int] | None = None
    """A node that is decommissioned, and when."""
    gc_ttl_s: float = 0.0
    """For how long history is kept, at first; 0: as long as by default, which is longer than any run."""


def draw_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """One draw per line, from a stream of its own."""
    draw = tape.stream("cluster")
    ranges = draw.between(SYSTEM_RANGES + 1, 10)
    chosen = tuple(w for w in WORKLOADS if draw.chance(2, 3)) or WORKLOADS
    return ClusterPlan(
        ranges=ranges,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(draw, ranges),
        workloads=chosen,
        think_mean_ns=draw.between(NS // 20, NS),
        operator_mean_ns=draw.between(2 * NS, 20 * NS) // ranges,
        merges=draw.chance(1, 2),
        moves=draw.chance(1, 2),
        rough=tape.stream("cluster/rough").chance(1, 4),
        rolling=tape.stream("cluster/rolling").chance(1, 4),
        clones=tape.stream("cluster/clones").chance(1, 6),
        late=_late(tape.stream("cluster/late"), nodes),
        retires=_retires(tape.stream("cluster/retires"), nodes),
        gc_ttl_s=_gc_ttl_s(tape.stream("cluster/gc")),
    )


def _gc_ttl_s(draw: TapeStream) -> float:
    """In two thirds of the runs history is collected while the run lasts."""
    return (0.0, 2.0, 5.0)[draw.below(3)]


def _late(draw: TapeStream, nodes: int) -> tuple[tuple[str, int], ...]:
    """In a third of the runs some nodes come later; the founder and one more are there from the start."""
    if nodes < 3 or not draw.chance(1, 3):
        return ()
    some = sorted(draw.shuffled(list(range(3, nodes + 1)))[: draw.between(1, nodes - 2)])
    return tuple((f"n{i}", draw.between(2 * NS, 25 * NS)) for i in some)


def _retires(draw: TapeStream, nodes: int) -> tuple[str, int] | None:
    """In a third of the runs with a node to spare, one leaves for good: any but the founder, whom others join through."""
    if nodes <= COPIES_MAX or not draw.chance(1, 3):
        return None
    return f"n{draw.between(2, nodes)}", draw.between(5 * NS, 30 * NS)


def standard_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """The measure of speed: 8 ranges, every workload; six clients that think 0.3 s are about 20 operations a second."""
    splits = _splits(tape.stream("cluster"), 8)
    return ClusterPlan(
        ranges=8,
        copies=min(COPIES_MAX, nodes),
        splits=splits,
        workloads=WORKLOADS,
        think_mean_ns=NS * 3 // 10,
        operator_mean_ns=NS,
        merges=True,
        moves=False,
    )


def leases_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """Few ranges, impatient clients, and leases that hardly ever stay where they are."""
    splits = _splits(tape.stream("cluster"), 4)
    return ClusterPlan(
        ranges=4,
        copies=min(COPIES_MAX, nodes),
        splits=splits,
        workloads=("register", "bank", "ring", "list"),
        think_mean_ns=NS // 20,
        operator_mean_ns=NS // 4,
        merges=False,
        moves=False,
        severs=True,
        clones=tape.stream("cluster/clones").chance(1, 3),
    )


def unheard_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """As `leases_plan`; what cuts nodes off leaves them the log."""
    return replace(leases_plan(tape, nodes=nodes), severs=False, clones=False, operator_mean_ns=2 * NS, unheard=True)


def gray_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """A cluster at rest but for its clients; only leaseholders fail, and without dying."""
    return ClusterPlan(
        ranges=6,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(tape.stream("cluster"), 6),
        workloads=("register", "bank", "ring", "list"),
        think_mean_ns=NS // 4,
        operator_mean_ns=10 * NS,
        merges=False,
        moves=False,
        grays=True,
    )


def late_plan(tape: Tape, *, nodes: int) -> ClusterPlan:
    """Many ranges with little traffic each: a new holder is slow to use the index that an old one had given out."""
    return ClusterPlan(
        ranges=10,
        copies=min(COPIES_MAX, nodes),
        splits=_splits(tape.stream("cluster"), 10),
        workloads=("bank", "ring", "list", "fork"),
        think_mean_ns=NS // 2,
        operator_mean_ns=5 * NS,
        merges=False,
        moves=False,
    )


def _splits(draw: TapeStream, ranges: int) -> tuple[bytes, ...]:
    return tuple(sorted(draw.shuffled(all_keys()[1:])[: ranges - SYSTEM_RANGES - 1]))


@dataclass
class Cluster:
    """Everything programs and oracles of one run share. It knows all; no node ever asks it."""

    world: World
    plan: ClusterPlan
    addresses: dict[str, str]
    recorder: Recorder
    traffic_upto_ns: int
    nodes: dict[str, Node] = field(default_factory=dict)
    """The latest incarnation of each."""
    on_node: list[Callable[[Node], None]] = field(default_factory=list)
    """What a play adds to every node before it starts."""
    parked: list[Event] = field(default_factory=list)
    ready: bool = False
    """Set up: faults and traffic may begin."""
    loaded_ts: int = 0
    """When the accounts were opened."""
    busy: dict[str, str] = field(default_factory=dict)
    """What each client is still doing; empty when all are done."""
    begun: dict[str, int] = field(default_factory=dict)
    """How many operations each client has begun, over all its lives."""
    trouble: str = ""
    """What the operator met last."""

    @property
    def early(self) -> int:
        """How many nodes are there from the start."""
        return len(self.addresses) - len(self.plan.late)

    def next_operation(self, actor: str) -> int:
        """The number of the next operation of a client."""
        self.begun[actor] = self.begun.get(actor, 0) + 1
        return self.begun[actor]

    @property
    def traffic(self) -> bool:
        """Whether clients may begin something new."""
        return self.world.loop.now_ns < self.traffic_upto_ns

    def up(self) -> list[tuple[str, Node]]:
        """Nodes that run, by name."""
        running = [(m.name, self.nodes.get(m.name)) for m in self.world.nodes if m.up]
        return [(name, node) for name, node in running if node is not None]


def spare(cluster: Cluster, name: str, family: Family, key: bytes | None) -> bool:
    """Whether a node's copy of a stored key may be damaged: another node has a healthy one. None: of all it holds."""
    nodes = dict(cluster.up())
    node = nodes.pop(name, None)
    if node is None or node.member is None:
        return False
    if key is None:
        held = list(node.member.store.replicas.values())
    else:
        found = node.member.store.holding(key[:-VERSION_BYTES] if family is Family.DATA else key)
        held = [] if found is None else [found]
    return bool(held) and all(_copies(nodes, replica.state.descriptor) >= GOOD_COPIES_MIN for replica in held)


def _copies(nodes: dict[str, Node], descriptor: RangeDescriptor) -> int:
    stores = [node.member.store for node in nodes.values() if node.member is not None]
    found = [store.replicas.get(descriptor.range_id) for store in stores]
    return sum(1 for replica in found if replica is not None and replica.failure is None)


def cluster_of(world: World) -> Cluster:
    """The cluster of a run."""
    cluster: Cluster = world.facts["cluster"]
    return cluster
