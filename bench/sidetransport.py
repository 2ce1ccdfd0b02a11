"""What idle ranges cost: one node closes 1 000, 10 000 and 50 000 of them.

    bytes      one idle tick's message as it is encoded, times ticks per second; the peer is the naive transport, which
               names every range at every tick. And: the message for 50 000 ranges beside the one for 1 000 (goal: 1)
    tick       CPU of one tick when nothing happened, when 1 % of the ranges were written to, and when every range was
               (the worst tick there is: asking is bounded). The peer asks and names every range, as CockroachDB's does;
               the limit is 50 ms
    receive    CPU of one idle message at a follower; the peer spells it out for every range
    ask        closed_for() of one replica, four streams; the peer is one dict lookup

Only the pure sender and receiver run here. A range answers `try_close` as a leaseholder's replica does, in shape: a few
comparisons, no I/O. All times are CPU of one thread in one process; lower is better.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from bench.harness import Figure, figure, interleaved
from slackwater.clock.timestamp import MIN, Timestamp, add_seconds, from_us
from slackwater.closedts.closable import Closed, CountedBy, NodeLease
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.log_driven.sender import ASKED_PER_TICK_MAX, Sender
from slackwater.closedts.policy import ClosingPolicy, Terms, target
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.closedts.update import Update

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

SIZES = (1_000, 10_000, 50_000)
INTERVAL_S = 0.2
TICK_MS_MAX = 50.0
EPOCH = Epoch(1)
TERMS = Terms(interval_s=INTERVAL_S)
LEASE = NodeLease(EPOCH, from_us(1 << 52))
POLICY = ClosingPolicy()

_encode = msgspec.msgpack.Encoder().encode


class IdleRange:
    """A leased range with nothing to do; answers like a replica."""

    __slots__ = ("closed", "frozen", "holder", "in_flight", "lai", "lowest", "upto")

    def __init__(self) -> None:
        self.closed = MIN
        self.lai = LeaseAppliedIndex(7)
        self.holder = True
        self.frozen = False
        self.in_flight = 0
        self.lowest: Timestamp | None = None
        self.upto = LEASE.upto

    def policy(self) -> ClosingPolicy:
        """The cluster's lag."""
        return POLICY

    def closes_by(self, scheme: Scheme) -> bool:
        """Only the log-driven scheme runs."""
        return scheme is Scheme.LOG_DRIVEN

    def count_by(self, counted: CountedBy | None) -> None:
        """Nothing is counted for the store."""

    def lease_start(self) -> Timestamp:
        """Of no interest to the side transport."""
        return MIN

    def propose_empty(self) -> CannotClose | None:
        """The side transport needs no commands."""
        return CannotClose.OTHER_SCHEME

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        """The checks of a leaseholder."""
        if not self.holder:
            return CannotClose.NO_VALID_LEASE
        if self.frozen:
            return CannotClose.MERGE_IN_PROGRESS
        if ts > self.upto:
            return CannotClose.OVER_LEASE_END
        if self.in_flight:
            return CannotClose.PROPOSALS_IN_FLIGHT
        if self.lowest is not None and self.lowest <= ts:
            return CannotClose.EVALUATING_BELOW
        self.closed = max(self.closed, ts)
        return Closed(self.lai, EPOCH)

    def forward(self, ts: Timestamp) -> None:
        """Follow what was promised."""
        self.closed = max(self.closed, ts)


class Node:
    """A sender over many idle ranges, its clock, and the naive transport over the same ranges."""

    def __init__(self, size: int) -> None:
        self.now = from_us(1_700_000_000_000_000)
        self.ranges = {RangeId(n): IdleRange() for n in range(1, size + 1)}
        self.sender = Sender(NodeId(1), incarnation=1)
        for range_id, idle in self.ranges.items():
            self.sender.add(range_id, idle)
        while self.sender.status().split("dirty=")[1] != "0":
            self.tick()

    def tick(self) -> Update:
        """One tick."""
        self.now = add_seconds(self.now, INTERVAL_S)
        return self.sender.tick(self.now, TERMS, LEASE)

    def write_to(self, share: float) -> None:
        """A write to the first share of the ranges, already applied."""
        for range_id in list(self.ranges)[: int(len(self.ranges) * share)]:
            idle = self.ranges[range_id]
            idle.forward(self.sender.touch(range_id))
            idle.lai = LeaseAppliedIndex(idle.lai + 1)

    def naive(self) -> Update:
        """Ask and name every range."""
        self.now = add_seconds(self.now, INTERVAL_S)
        wanted = target(POLICY, self.now, TERMS) or MIN
        members = []
        for range_id, idle in self.ranges.items():
            closed = idle.try_close(wanted)
            if isinstance(closed, Closed):
                members.append((range_id, closed.lai, 1))
        return Update(NodeId(1), 1, 1, full=True, groups=[(1, wanted)], members=members)


def run(*, quick: bool) -> Iterator[Figure]:
    """All figures."""
    nodes = {size: Node(size) for size in SIZES}
    for size, node in nodes.items():
        yield from idle_bytes(size, node)
    small, large = (len(_encode(nodes[size].tick())) for size in (SIZES[0], SIZES[-1]))
    yield figure(
        "sidetransport", "idle message, 50 000 ranges", large, "bytes",
        peer="idle message, 1 000 ranges", peer_value=small, goal=1.0, better="lower",
    )  # fmt: skip
    for size, node in nodes.items():
        yield from tick_cost(size, node, quick=quick)
    yield from receiver_cost(nodes[SIZES[-1]], quick=quick)


def idle_bytes(size: int, node: Node) -> Iterator[Figure]:
    """Bytes per second and peer when nothing happens."""
    ours, naive = (len(_encode(update)) / INTERVAL_S for update in (node.tick(), node.naive()))
    yield figure(
        "sidetransport", f"idle bytes, {size} ranges", ours, "bytes/s",
        peer="every range named", peer_value=naive, goal=0.01, better="lower",
    )  # fmt: skip


def _cpu_ms(work: Callable[[], object], prepare: Callable[[], None], rounds: int) -> float:
    """The median CPU time of `work`, each time after an untimed `prepare`."""
    spent = []
    for _ in range(rounds):
        prepare()
        begin = time.process_time_ns()
        work()
        spent.append(time.process_time_ns() - begin)
    return sorted(spent)[rounds // 2] / 1e6


def tick_cost(size: int, node: Node, *, quick: bool) -> Iterator[Figure]:
    """CPU of a tick: idle, 1 % written, everything written; encoding included."""
    rounds = 5 if quick else 15
    naive = _cpu_ms(lambda: _encode(node.naive()), lambda: None, rounds)
    idle = _cpu_ms(lambda: _encode(node.tick()), lambda: None, rounds)
    yield figure(
        "sidetransport", f"idle tick, {size} ranges", idle, "ms CPU",
        peer="every range asked and named", peer_value=naive, goal=0.05, better="lower",
    )  # fmt: skip
    for share, name in ((0.01, "1 % written"), (1.0, "all written")):
        spent = _cpu_ms(lambda: _encode(node.tick()), lambda s=share: node.write_to(s), rounds)  # type: ignore[misc]
        yield figure(
            "sidetransport", f"tick, {name}, {size} ranges, {ASKED_PER_TICK_MAX} asked at most", spent, "ms CPU",
            peer="50 ms", peer_value=TICK_MS_MAX, goal=1.0, better="lower",
        )  # fmt: skip
    while node.sender.status().split("dirty=")[1] != "0":
        node.tick()


def receiver_cost(node: Node, *, quick: bool) -> Iterator[Figure]:
    """CPU of one idle message, and of one question."""
    rounds = 3 if quick else 7
    receiver = Receiver()
    for range_id in node.ranges:
        receiver.records.watch(range_id)
    seqs: dict[int, int] = {}
    full = node.sender.full()
    for peer in range(1, 5):
        token = receiver.attach(NodeId(peer))
        receiver.receive(token, msgspec.structs.replace(full, sender=NodeId(peer)))
        seqs[peer] = token
    table: dict[RangeId, Timestamp] = {}

    def ours() -> int:
        for _ in range(100):
            receiver.receive(seqs[1], node.tick())
        return 100

    def spelled_out() -> int:
        (_, ts), *_ = full.groups
        for range_id, _, _ in full.members:
            table[range_id] = ts
        return 1

    rates = interleaved({"ours": ours, "naive": spelled_out}, rounds=rounds)
    yield figure(
        "sidetransport", "tick and idle message received, 50000 ranges", 1e6 / rates["ours"], "µs",
        peer="spelled out", peer_value=1e6 / rates["naive"], goal=0.05, better="lower",
    )  # fmt: skip

    applied = LeaseAppliedIndex(1 << 30)
    asked = list(node.ranges)[:1_000] * 10

    def closed_for() -> int:
        for range_id in asked:
            receiver.closed_for(range_id, applied)
        return len(asked)

    def lookup() -> int:
        for range_id in asked:
            table.get(range_id)
        return len(asked)

    rates = interleaved({"ours": closed_for, "dict": lookup}, rounds=rounds)
    yield figure(
        "sidetransport", "closed_for, four streams", 1e9 / rates["ours"], "ns",
        peer="one dict lookup", peer_value=1e9 / rates["dict"], goal=100.0, better="lower",
    )  # fmt: skip
