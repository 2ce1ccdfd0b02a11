"""The side transport as a whole: senders, ring, streams and receiver, against the twin that keeps every promise.

Two nodes hand ranges to each other, write, tick and stream to one follower that applies late. After every step:

    the receiver never believes more than was promised for an applied index     (I-12)
    what it believes never moves back                                           (I-09)
    it equals the twin, unless it gave up a promise between two others
    no write is at or below what any follower could believe at its index        (I-10)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts.closable import Closed, NodeLease
from slackwater.closedts.log_driven.receiver import Receiver
from slackwater.closedts.log_driven.sender import Sender
from slackwater.closedts.policy import ClosingPolicy, Terms
from slackwater.config.zones import PolicyKind
from slackwater.model.descriptors import Epoch, LeaseAppliedIndex
from slackwater.model.ids import NodeId, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.sim.mutants import applied
from tests.closables import LogDriven
from tests.twins.receiver import NaiveReceiver

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.protocol.closedts.update import Update

NODES = (NodeId(1), NodeId(2))
RANGES = tuple(RangeId(n) for n in range(1, 4))
EPOCH = Epoch(1)
TERMS = Terms(target_duration_s=2.0, lead_override_s=1.0)
POLICIES = (
    ClosingPolicy(),
    ClosingPolicy(duration_ms=500),
    ClosingPolicy(PolicyKind.LEAD),
    ClosingPolicy(PolicyKind.OFF),
)


class RangeOnNode(LogDriven):
    """One node's replica of a range, which closes if it holds the lease."""

    def __init__(self, world: World, node: NodeId, range_id: RangeId) -> None:
        self.world, self.node, self.range_id = world, node, range_id
        self.closed = MIN

    def policy(self) -> ClosingPolicy:
        return self.world.policies[self.range_id]

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        if self.world.holders[self.range_id] != self.node:
            return CannotClose.NO_VALID_LEASE
        if self.range_id in self.world.busy:
            return CannotClose.PROPOSALS_IN_FLIGHT
        self.closed = max(self.closed, ts)
        return Closed(LeaseAppliedIndex(len(self.world.logs[self.range_id])), EPOCH)

    def forward(self, ts: Timestamp) -> None:
        self.closed = max(self.closed, ts)


class World:
    """Ranges, the two nodes that may lease them, and one follower."""

    def __init__(self) -> None:
        self.now = 10.0
        self.policies = dict.fromkeys(RANGES, POLICIES[0])
        self.holders = dict.fromkeys(RANGES, NODES[0])
        self.busy: set[RangeId] = set()
        self.logs: dict[RangeId, list[Timestamp]] = {r: [] for r in RANGES}
        self.applied = dict.fromkeys(RANGES, 0)
        self.believed = dict.fromkeys(RANGES, MIN)
        self.senders = {n: Sender(n, incarnation=1) for n in NODES}
        self.replicas = {(n, r): RangeOnNode(self, n, r) for n in NODES for r in RANGES}
        for (node, range_id), replica in self.replicas.items():
            self.senders[node].add(range_id, replica)
        self.receiver, self.twin = Receiver(), NaiveReceiver()
        for range_id in RANGES:
            self.receiver.records.watch(range_id)
        self.streams: dict[NodeId, tuple[int, int | None]] = {}
        self.zombies: list[tuple[int, Update]] = []

    def touch(self, range_id: RangeId) -> RangeOnNode:
        node = self.holders[range_id]
        replica = self.replicas[node, range_id]
        replica.forward(self.senders[node].touch(range_id))
        return replica

    # --- steps -------------------------------------------------------------------------------------------------------

    def do_time(self, number: int) -> None:
        self.now += number / 2

    def do_tick(self, number: int) -> None:
        self.now += 0.2
        node = NODES[number % 2]
        self.senders[node].tick(_at(self.now), TERMS, None if number == 7 else NodeLease(EPOCH, _at(1e6)))

    def do_write(self, number: int) -> None:
        """At the lowest timestamp that the leaseholder's floor allows: the most hostile write there is."""
        range_id = RANGES[number % 3]
        self.logs[range_id].append(Timestamp(self.touch(range_id).closed + 1))

    def do_busy(self, number: int) -> None:
        range_id = RANGES[number % 3]
        self.touch(range_id)
        self.busy ^= {range_id}

    def do_policy(self, number: int) -> None:
        self.policies[RANGES[number % 3]] = POLICIES[number % 4]
        for sender in self.senders.values():
            sender.touch_all()

    def do_transfer(self, number: int) -> None:
        """A command with the next lease in it; the new holder starts from what the old one had closed."""
        range_id = RANGES[number % 3]
        old = self.touch(range_id)
        self.logs[range_id].append(Timestamp(old.closed + 1))
        new = NODES[1 - NODES.index(self.holders[range_id])]
        self.holders[range_id] = new
        self.replicas[new, range_id].forward(old.closed)
        self.senders[new].touch(range_id)

    def do_stream(self, number: int) -> None:
        """Deliver some of what a sender has; a broken stream begins again."""
        node = NODES[number % 2]
        token, seq = self.streams.get(node) or (self.receiver.attach(node), None)
        for update in self.senders[node].after(seq)[: number // 2 + 1]:
            assert self.receiver.receive(token, update)
            self.twin.receive(update)
            seq = update.seq
            self.zombies.append((token, update))
        self.streams[node] = (token, seq)

    def do_break(self, number: int) -> None:
        """Lose a connection; sometimes the old one lives on and repeats itself."""
        node = NODES[number % 2]
        if node not in self.streams:
            return
        token, _ = self.streams.pop(node)
        if number >= 4:
            self.receiver.detach(node, token)
        else:
            self.streams[node] = (self.receiver.attach(node), None)
            for old, update in self.zombies[-3:]:
                if old != self.streams.get(update.sender, (0, 0))[0]:
                    assert not self.receiver.receive(old, update), "a zombie was believed"

    def do_gap(self, number: int) -> None:
        """A message is lost: the receiver must notice."""
        node = NODES[number % 2]
        token, seq = self.streams.get(node, (0, None))
        missing = [] if seq is None else self.senders[node].after(seq)
        if len(missing) > 1 and not missing[1].full:
            assert not self.receiver.receive(token, missing[1])
            del self.streams[node]

    def do_apply(self, number: int) -> None:
        range_id = RANGES[number % 3]
        if self.applied[range_id] < len(self.logs[range_id]):
            write = self.logs[range_id][self.applied[range_id]]
            assert write > self.believed[range_id], "I-10: a write below what a follower may have served"
            self.applied[range_id] += 1

    # --- what must hold ----------------------------------------------------------------------------------------------

    def check(self, *, only: RangeId | None = None) -> None:
        for range_id in RANGES if only is None else (only,):
            applied = LeaseAppliedIndex(self.applied[range_id])
            believed = self.receiver.closed_for(range_id, applied)
            promised = self.twin.closed_for(range_id, applied)
            assert believed <= promised, "I-12: more than was promised for an applied index"
            assert believed >= self.believed[range_id], "I-09: moved back"
            assert believed == promised or self.receiver.dropped(range_id), "a usable promise was forgotten"
            self.believed[range_id] = believed


def _at(seconds: float) -> Timestamp:
    return from_us(round(seconds * 1_000_000))


STEPS = ("time", "tick", "tick", "write", "busy", "policy", "transfer", "stream", "stream", "break", "gap", "apply")
PROGRAMS = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 7)), max_size=60)


def run(program: list[tuple[str, int]], *, check_rarely: bool) -> None:
    world = World()
    for position, (step, number) in enumerate(program):
        getattr(world, "do_" + step)(number)
        if not check_rarely or position % 7 == 6:
            world.check()
        elif position % 3 == 0:
            world.check(only=RANGES[0])
    world.check()


@settings(max_examples=400)
@given(PROGRAMS)
def test_the_receiver_equals_its_twin(program: list[tuple[str, int]]) -> None:
    run(program, check_rarely=False)


@settings(max_examples=400)
@given(PROGRAMS)
def test_the_receiver_equals_its_twin_when_it_is_seldom_asked(program: list[tuple[str, int]]) -> None:
    run(program, check_rarely=True)


@pytest.fixture
def planted(request: pytest.FixtureRequest) -> Iterator[None]:
    with applied([request.param]):
        yield


KILLERS = {
    "M04": [("write", 0), ("stream", 0), ("tick", 0), ("tick", 0), ("stream", 2), ("transfer", 0), ("apply", 0),
            ("apply", 0), ("tick", 1), ("stream", 1), ("transfer", 0), ("apply", 0), ("time", 4), ("tick", 0),
            ("stream", 6), ("break", 5), ("stream", 1)],
    "M06": [("write", 0), ("stream", 0), ("tick", 0), ("stream", 2)],
}  # fmt: skip


@pytest.mark.parametrize(("planted", "rule"), [("M04", "I-09"), ("M06", "I-12")], indirect=["planted"])
@pytest.mark.usefixtures("planted")
def test_planted_bugs_are_killed_by_their_oracle(request: pytest.FixtureRequest, rule: str) -> None:
    bug = request.node.callspec.params["planted"]
    with pytest.raises(AssertionError, match=rule):
        run(KILLERS[bug], check_rarely=False)


@pytest.mark.parametrize("bug", sorted(KILLERS))
def test_without_the_bug_the_same_program_passes(bug: str) -> None:
    run(KILLERS[bug], check_rarely=False)
