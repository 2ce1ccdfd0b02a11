"""The pure core as a whole, on two nodes, under any scheme: proposal buffers, apply, streams; no clock, no network, no tasks.

    n1, n2     replicas of r1 = [a, z); after a split also of r2 = [m, z)
    log        one list of packets per range; each node applies at its own pace
    streams    each node's updates or heartbeats reach the other when `deliver` says so; `lose` loses what is under way

Writes are as hostile as allowed: at the lowest timestamp above the leaseholder's floor. The judge is the one property
that follower reads stand on (I-10, I-15): a node never applies a write to a key at or below a timestamp at which it could
have served a read of that key before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts import BucketTracker
from slackwater.closedts.closable import Closed, NodeLease
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import ClosingPolicy, Terms
from slackwater.closedts.store_wide.mpt import CountedTracker
from slackwater.model.descriptors import Epoch, Generation, Lease, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.log.commands import (
    FreezeTrigger,
    LeaseTrigger,
    MergeTrigger,
    SplitTrigger,
    ThawTrigger,
    decode_packet,
)
from slackwater.protocol.range.requests import SubsumeResult
from slackwater.replica.apply import Absorbed, ApplyVerdict, Created, LeaseChanged, apply_packet, pauses_in
from slackwater.replica.closing import try_close
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState
from tests.unit.closedts.core_schemes import core_scheme

if TYPE_CHECKING:
    from slackwater.closedts.closable import CountedBy
    from slackwater.protocol.log.commands import Trigger
    from slackwater.replica.apply import Aftermath

N1, N2 = NodeId(1), NodeId(2)
R1, R2 = RangeId(1), RangeId(2)
EPOCH = Epoch(1)
KEYS = (b"b", b"p")
FOREVER = from_us(1 << 50)


class Broken(AssertionError):
    """A node applied a write below what it may have served."""


class CoreReplica:
    """One replica; closable for its node's scheme."""

    def __init__(self, node: CoreNode, state: RangeState) -> None:
        self.node = node
        self.state = state
        self.transferring = False
        self.triggers: set[bytes] = set()
        self.believed = MIN
        self.buffer: ProposalBuffer[object] = ProposalBuffer(
            state.descriptor.range_id, BucketTracker(), entry_bytes_max=1 << 20
        )
        self.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)

    @property
    def leads(self) -> bool:
        return self.state.lease.holder == self.node.id and not self.transferring

    @property
    def latched(self) -> bool:
        return bool(self.triggers)

    def policy(self) -> ClosingPolicy:
        return ClosingPolicy()

    def closes_by(self, scheme: Scheme) -> bool:
        return scheme is self.node.closing.scheme

    def count_by(self, counted: CountedBy | None) -> None:
        if isinstance(self.buffer.tracker, CountedTracker):
            self.buffer.tracker = self.buffer.tracker.release()
        if counted is not None:
            self.buffer.tracker = counted(self.buffer.tracker)

    def lease_start(self) -> Timestamp:
        return self.state.lease.start

    def propose_empty(self) -> CannotClose | None:
        raise AssertionError("the world proposes empty commands by itself")

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        hindered = None if self.state.lease.holder == self.node.id else CannotClose.NO_VALID_LEASE
        if self.transferring:
            hindered = CannotClose.LEASE_MOVING
        return try_close(ts, state=self.state, buffer=self.buffer, hindered=hindered, upto=FOREVER, in_flight=in_flight)

    def forward(self, ts: Timestamp) -> None:
        self.buffer.close(target=ts, limit=ts)

    def closed(self) -> Timestamp:
        """What a follower read may be served at."""
        told = self.node.closing.closed_for(self.state.descriptor.range_id, self.state.lai, self.state.lease)
        return max(self.state.closed, told)


class CoreNode:
    """A node: its replicas, its end of the scheme, and what it may have served."""

    def __init__(self, node_id: NodeId, state: RangeState, scheme: Scheme) -> None:
        self.id = node_id
        self.closing = core_scheme(scheme, node_id)
        self.replicas: dict[RangeId, CoreReplica] = {}
        self.served = dict.fromkeys(KEYS, MIN)
        self.add(state)

    def add(self, state: RangeState) -> None:
        replica = CoreReplica(self, state)
        range_id = state.descriptor.range_id
        self.replicas[range_id] = replica
        self.closing.add(range_id, replica)

    def drop(self, range_id: RangeId) -> None:
        del self.replicas[range_id]
        self.closing.remove(range_id)

    def holding(self, key: bytes) -> CoreReplica:
        return next(r for r in self.replicas.values() if r.state.descriptor.contains(key))

    def look(self) -> None:
        """Serve a read of every key at the highest timestamp that is allowed here."""
        for range_id, replica in self.replicas.items():
            closed = replica.closed()
            if closed < replica.believed:
                message = f"I-09: n{self.id} r{range_id} closed {replica.believed} -> {closed}"
                raise Broken(message)
            replica.believed = closed
        for key in KEYS:
            # A merge may lower this for the keys it takes over: the right side's closed timestamp becomes a read floor.
            self.served[key] = max(self.served[key], self.holding(key).believed)


class CoreWorld:
    """Two nodes and the log. Every step returns False when it is not possible now."""

    def __init__(self, *, lag_s: float = 0.5, scheme: Scheme = Scheme.LOG_DRIVEN) -> None:
        self.now = 10
        self.terms = Terms(target_duration_s=lag_s)
        self.commands = 0
        self.writes: dict[bytes, tuple[bytes, Timestamp]] = {}
        self.logs: dict[RangeId, list[bytes]] = {R1: [], R2: []}
        descriptor = RangeDescriptor(R1, b"a", b"z", (N1, N2), Generation(1))
        state = RangeState(descriptor, Lease(N1, LeaseSequence(1), MIN, EPOCH))
        self.nodes = {n: CoreNode(n, state, scheme) for n in (N1, N2)}
        self.frozen: SubsumeResult | None = None

    def clock(self) -> Timestamp:
        return from_us(self.now * 1_000_000)

    # --- leaseholders ------------------------------------------------------------------------------------------------

    def leaseholder(self, range_id: RangeId) -> CoreReplica | None:
        for node in self.nodes.values():
            replica = node.replicas.get(range_id)
            if replica is not None and replica.leads:
                return replica
        return None

    def propose(self, replica: CoreReplica, *, write: bytes | None = None, trigger: Trigger | None = None) -> bool:
        """Touch, evaluate, insert and flush in one step, as the driver does."""
        self.insert(replica, write=write, trigger=trigger)
        return self.flush(replica)

    def insert(self, replica: CoreReplica, *, write: bytes | None = None, trigger: Trigger | None = None) -> None:
        """Touch, evaluate and insert: the command has no index yet."""
        range_id, closing = replica.state.descriptor.range_id, replica.node.closing
        replica.forward(closing.touch(range_id))
        floor = max(
            replica.buffer.floor,
            Timestamp(replica.state.read_floor + 1),
            Timestamp(closing.floor(range_id, self.clock(), self.terms) + 1),
        )
        self.commands += 1
        command_id = self.commands.to_bytes(16, "big")
        if write is not None:
            self.writes[command_id] = (write, floor)
        if trigger is not None:
            replica.triggers.add(command_id)
        replica.buffer.insert(
            Proposal(
                command_id=command_id,
                lease_sequence=replica.state.lease.sequence,
                min_write_ts=floor if write is not None else MIN,
                effects=b"",
                stats=(),
                trigger=trigger,
                generation=0,
                waiter=None,
            )
        )
        closing.proposed(range_id, floor if write is not None else self.clock())

    def flush(self, replica: CoreReplica) -> bool:
        """Give everything inserted its index."""
        range_id = replica.state.descriptor.range_id
        wanted = replica.node.closing.carried(range_id, self.clock(), self.terms)
        target = MIN if replica.state.frozen else wanted
        flight = replica.buffer.flush(close_target=target, close_limit=FOREVER)
        if flight is None:
            return False
        self.logs[range_id].append(flight.payload)
        return True

    def evaluate(self) -> bool:
        """A write to the first range is evaluated, and waits for its index."""
        replica = self.leaseholder(R1)
        if replica is None or replica.state.frozen or replica.latched or replica.buffer.in_flight:
            return False
        self.insert(replica, write=KEYS[0])
        return True

    def index(self) -> bool:
        """What was evaluated gets its index."""
        replica = self.leaseholder(R1)
        return replica is not None and self.flush(replica)

    def empty(self) -> bool:
        """An empty command on every range that has nothing under way."""
        led = [r for node in self.nodes.values() for r in node.replicas.values() if r.leads and not r.state.frozen]
        idle = [replica for replica in led if not replica.buffer.in_flight]
        for replica in idle:
            self.propose(replica)
        return bool(idle)

    def write(self) -> bool:
        """One write to each range."""
        done = False
        for range_id, key in ((R1, KEYS[0]), (R2, KEYS[1])):
            replica = self.leaseholder(range_id)
            # The latches of a command that changes the range keep every write out until it is decided.
            if replica is not None and replica.state.frozen is None and not replica.latched:
                done = self.propose(replica, write=key)
                if range_id == R1 and replica.state.descriptor.contains(KEYS[1]):
                    self.propose(replica, write=KEYS[1])
        return done

    def transfer(self, *, range_id: RangeId = R1) -> bool:
        replica = self.leaseholder(range_id)
        if replica is None or replica.buffer.in_flight:
            return False
        lease, to = replica.state.lease, N1 if replica.node.id == N2 else N2
        now = self.clock()
        following = Lease(to, LeaseSequence(lease.sequence + 1), now, EPOCH)
        self.propose(replica, trigger=LeaseTrigger(following, read_floor=now))
        replica.transferring = True
        return True

    def move_right(self) -> bool:
        return self.transfer(range_id=R2)

    def apply_all(self) -> bool:
        done = [self.apply(node, everything=True) for node in self.nodes]
        return any(done)

    def split(self) -> bool:
        replica = self.leaseholder(R1)
        if (
            replica is None
            or self.logs[R2]
            or not replica.state.descriptor.contains(KEYS[1])
            or replica.buffer.in_flight
        ):
            return False
        old = replica.state.descriptor
        generation = Generation(old.generation + 1)
        left = RangeDescriptor(R1, old.start, b"m", old.replicas, generation)
        right = RangeDescriptor(R2, b"m", old.end, old.replicas, generation)
        return self.propose(replica, trigger=SplitTrigger(left, right, ()))

    def freeze(self) -> bool:
        right, left = self.leaseholder(R2), self.leaseholder(R1)
        if right is None or left is None or right.state.frozen or right.buffer.in_flight:
            return False
        generation = left.state.descriptor.generation
        return self.propose(right, trigger=FreezeTrigger(R1, generation))

    def thaw(self) -> bool:
        right = self.leaseholder(R2)
        if right is None or not right.state.frozen or right.buffer.in_flight or self.merge_proposed():
            return False
        return self.propose(right, trigger=ThawTrigger())

    def merge_proposed(self) -> bool:
        return any(pauses_in(decode_packet(p))[0] for p in self.logs[R1])

    def merge(self) -> bool:
        """With the right side as it was frozen, wherever its lease is now."""
        left = self.leaseholder(R1)
        if left is None or self.merge_proposed() or left.buffer.in_flight or R2 not in left.node.replicas:
            return False
        right = left.node.replicas[R2]
        if right.state.frozen is None or left.state.descriptor.contains(KEYS[1]):
            return False
        s, frozen = right.state, self.frozen
        assert frozen is not None
        generation = Generation(s.descriptor.generation + 1)
        merged = RangeDescriptor(R1, b"a", b"z", s.descriptor.replicas, generation)
        return self.propose(left, trigger=MergeTrigger(merged, s.descriptor, frozen))

    # --- applying ----------------------------------------------------------------------------------------------------

    def apply(self, node_id: NodeId, *, everything: bool = False) -> bool:
        """Apply the next entry of every range here, or all of them."""
        done = False
        while self._apply_next(self.nodes[node_id]):
            done = True
            if not everything:
                break
        return done

    def _apply_next(self, node: CoreNode) -> bool:
        progress = False
        for range_id in list(node.replicas):
            replica = node.replicas.get(range_id)
            if replica is None or replica.state.position >= len(self.logs[range_id]):
                continue
            packet = decode_packet(self.logs[range_id][replica.state.position])
            merging, _ = pauses_in(packet)
            right = node.replicas.get(merging.right.range_id) if merging is not None else None
            if merging is not None and right is not None and right.state.position < merging.frozen.position:
                continue
            applied = apply_packet(replica.state, Position(replica.state.position + 1), packet)
            for command, verdict in applied.outcomes:
                replica.buffer.take_decided(command.command_id)
                replica.triggers.discard(command.command_id)
                if verdict is ApplyVerdict.ACCEPTED and command.command_id in self.writes:
                    self._judge(node, *self.writes[command.command_id])
            if applied.state.frozen and not replica.state.frozen:
                self._note_frozen(applied.state)
            replica.state = applied.state
            self._follow(node, replica, applied.aftermath)
            progress = True
        return progress

    def _note_frozen(self, s: RangeState) -> None:
        """What the leaseholder answers to Subsume: the state right after the freeze, on whichever node that is."""
        frozen = SubsumeResult(s.position, s.lai, s.closed, s.read_floor, 0, s.gc_threshold, s.txn_floor, s.stats)
        assert self.frozen is None or self.frozen.position != s.position or self.frozen == frozen
        if self.frozen is None or self.frozen.position < s.position:
            self.frozen = frozen

    def _follow(self, node: CoreNode, replica: CoreReplica, aftermath: list[Aftermath]) -> None:
        for event in aftermath:
            match event:
                case LeaseChanged():
                    state = replica.state
                    replica.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
                    replica.transferring = False
                    replica.triggers.clear()
                    node.closing.touch(state.descriptor.range_id)
                case Created(state):
                    node.add(state)
                case Absorbed(descriptor):
                    node.drop(descriptor.range_id)

    def _judge(self, node: CoreNode, key: bytes, ts: Timestamp) -> None:
        if ts <= node.served[key]:
            message = f"I-10: n{node.id} applied {key!r} at {ts}, served {node.served[key]}"
            raise Broken(message)

    # --- what nodes tell each other --------------------------------------------------------------------------------

    def tick(self) -> bool:
        for node in self.nodes.values():
            node.closing.tick(self.clock(), self.terms, NodeLease(EPOCH, FOREVER))
        return True

    def deliver(self) -> bool:
        """Everything both have for each other."""
        one, other = self.nodes.values()
        return any([one.closing.tell(other.closing), other.closing.tell(one.closing)])

    def lose(self) -> bool:
        """What both had for each other never arrives, and neither notices."""
        one, other = self.nodes.values()
        return any([one.closing.lose(), other.closing.lose()])

    def step(self, name: str) -> bool:
        """One step by name, followed by a read of everything everywhere."""
        self.now += 1
        done = self.apply(N1) if name == "apply1" else self.apply(N2) if name == "apply2" else getattr(self, name)()
        for node in self.nodes.values():
            node.look()
        return bool(done)

    def drain(self) -> None:
        """Everything arrives everywhere."""
        for _ in range(4):
            self.now += 1
            for node_id in self.nodes:
                self.apply(node_id, everything=True)
            self.tick()
            self.deliver()
            for node in self.nodes.values():
                node.look()
