"""Golden scripts of the store-wide scheme: `tests/scripts/closedts/store_wide_*.txt`, the table of seed 002 row by row.

Real parts: minimum proposal timestamps, heartbeats, receivers, proposal buffers, applied states and the rule whether a range may
be closed. The script decides which node applies what, which heartbeat is lost, and when an epoch ends. Times are in seconds; the
lag is 3. A heartbeat closes what the one before it aimed at, so closed timestamps trail by one heartbeat more.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts import BucketTracker
from slackwater.closedts.closable import Closed, NodeLease
from slackwater.closedts.kinds import Scheme
from slackwater.closedts.policy import ClosingPolicy, Terms
from slackwater.closedts.records import Promise, Records
from slackwater.closedts.store_wide.mpt import CountedTracker, MinProposal
from slackwater.closedts.store_wide.receiver import HeartbeatReceiver
from slackwater.closedts.store_wide.sender import Sender
from slackwater.model.descriptors import Epoch, Generation, Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.protocol.closedts.frontier import CannotClose
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, LeaseTrigger, SplitTrigger, decode_packet
from slackwater.replica.apply import Created, LeaseChanged, apply_packet
from slackwater.replica.closing import try_close
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState
from tests import golden
from tests.unit.closedts.test_side_transport_scripts import number, seconds
from tests.unit.closedts.transport_world import at, shown

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.closedts.closable import CountedBy
    from slackwater.protocol.closedts.heartbeat import Heartbeat
    from slackwater.protocol.log.commands import Trigger

TERMS = Terms(target_duration_s=3.0)
FOREVER = from_us(1 << 50)


class ScriptReplica:
    """One replica. Satisfies `Closable`."""

    def __init__(self, node: ScriptNode, state: RangeState) -> None:
        self.node, self.state, self.transferring = node, state, False
        self.buffer: ProposalBuffer[None] = ProposalBuffer(
            state.descriptor.range_id, BucketTracker(), entry_bytes_max=1 << 20
        )
        self.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)

    @property
    def leads(self) -> bool:
        lease = self.state.lease
        return lease.holder == self.node.id and lease.epoch == self.node.epoch and self.node.live

    def policy(self) -> ClosingPolicy:
        return ClosingPolicy()

    def closes_by(self, scheme: Scheme) -> bool:
        return scheme is Scheme.STORE_WIDE

    def count_by(self, counted: CountedBy | None) -> None:
        if isinstance(self.buffer.tracker, CountedTracker):
            self.buffer.tracker = self.buffer.tracker.release()
        if counted is not None:
            self.buffer.tracker = counted(self.buffer.tracker)

    def lease_start(self) -> Timestamp:
        return self.state.lease.start

    def propose_empty(self) -> CannotClose | None:
        raise AssertionError("no range of this scheme proposes empty commands")

    def try_close(self, ts: Timestamp, *, in_flight: bool = False) -> Closed | CannotClose:
        hindered = None if self.leads else CannotClose.NO_VALID_LEASE
        hindered = CannotClose.LEASE_MOVING if self.transferring else hindered
        return try_close(ts, state=self.state, buffer=self.buffer, hindered=hindered, upto=FOREVER, in_flight=in_flight)

    def forward(self, ts: Timestamp) -> None:
        self.buffer.close(target=ts, limit=ts)


class ScriptNode:
    """A node with one store."""

    def __init__(self, runner: Runner, node_id: int) -> None:
        self.runner, self.id = runner, NodeId(node_id)
        self.epoch, self.live, self.life = Epoch(3), True, 0
        self.replicas: dict[RangeId, ScriptReplica] = {}
        self.start()

    def start(self) -> None:
        """A new process: what it was told by heartbeats is gone, what it applied is not."""
        states = [replica.state for replica in self.replicas.values()]
        self.sender = Sender(self.id, incarnation=100 * self.life)
        self.sender.start()
        self.records = Records()
        self.receiver = HeartbeatReceiver(self.records, live_epoch=self.runner.live_epoch)
        for state in states:
            self.add(state)

    def add(self, state: RangeState) -> None:
        replica = self.replicas[state.descriptor.range_id] = ScriptReplica(self, state)
        self.records.watch(state.descriptor.range_id)
        self.sender.add(state.descriptor.range_id, replica)


class Runner:
    """Three nodes, the log of each range, and the document's minimum proposal timestamp on its own."""

    def __init__(self) -> None:
        self.nodes: dict[str, ScriptNode] = {}
        self.logs: dict[RangeId, list[bytes]] = {}
        self.commands = 0
        self.mpt = MinProposal()
        self.inside: dict[str, tuple[int, object]] = {}

    def live_epoch(self, node: NodeId) -> Epoch:
        found = self.nodes[f"n{node}"]
        return found.epoch if found.live else Epoch(0)

    # --- a cluster ---------------------------------------------------------------------------------------------------

    def do_cluster(self, nodes: str, range: str, lease: str) -> None:  # noqa: A002 - the script's word
        ids = tuple(NodeId(n + 1) for n in range_(int(nodes)))
        descriptor = RangeDescriptor(RangeId(number(range)), b"a", b"z", ids, Generation(1))
        state = RangeState(descriptor, Lease(NodeId(number(lease)), LeaseSequence(1), MIN, Epoch(3)))
        self.logs[descriptor.range_id] = []
        for node_id in ids:
            made = self.nodes[f"n{node_id}"] = ScriptNode(self, node_id)
            made.add(state)

    def _leader(self, name: str) -> ScriptReplica:
        return next(
            node.replicas[RangeId(number(name))]
            for node in self.nodes.values()
            if node.replicas[RangeId(number(name))].leads
        )

    def _insert(self, replica: ScriptReplica, ts: Timestamp = MIN, trigger: Trigger | None = None) -> Timestamp:
        """Touch, evaluate above every floor and insert, in one step, as the driver does."""
        range_id, sender = replica.state.descriptor.range_id, replica.node.sender
        promised = sender.touch(range_id)
        if promised > replica.buffer.assigned_closed:
            replica.forward(promised)
        lowest = max(replica.buffer.floor, replica.state.read_floor + 1, sender.floor(range_id) + 1)
        ts = Timestamp(max(ts, lowest)) if ts else MIN
        self.commands += 1
        replica.buffer.insert(
            Proposal(
                command_id=self.commands.to_bytes(COMMAND_ID_BYTES, "big"),
                lease_sequence=replica.state.lease.sequence,
                min_write_ts=ts,
                effects=b"",
                stats=(),
                trigger=trigger,
                generation=0,
                waiter=None,
            )
        )
        return ts

    def _flush(self, replica: ScriptReplica) -> LeaseAppliedIndex:
        range_id = replica.state.descriptor.range_id
        flight = replica.buffer.flush(close_target=replica.node.sender.promised(range_id), close_limit=FOREVER)
        assert flight is not None
        self.logs[range_id].append(flight.payload)
        return flight.last_lai

    def do_put(self, name: str, behind: str = "", **more: str) -> str:
        replica = self._leader(name)
        ts = self._insert(replica, at(float(more["at"])))
        lai = self._flush(replica)
        self._apply(behind)
        return seconds(f"n{replica.node.id} writes {name} at {shown(ts)}, index {lai}")

    def do_evaluate(self, name: str, **more: str) -> str:
        replica = self._leader(name)
        return seconds(
            f"n{replica.node.id} evaluates a write of {name} at {shown(self._insert(replica, at(float(more['at']))))}"
        )

    def do_index(self, name: str, behind: str = "") -> str:
        replica = self._leader(name)
        lai = self._flush(replica)
        self._apply(behind)
        return f"n{replica.node.id} hands it to the log, index {lai}"

    def do_catch_up(self, node: str) -> None:
        self._apply(",".join(set(self.nodes) - {node}))

    def _apply(self, behind: str = "") -> None:
        """Every node applies all there is, but those behind."""
        for name, node in self.nodes.items():
            if name not in behind.split(","):
                for replica in list(node.replicas.values()):
                    self._apply_one(node, replica)

    def _apply_one(self, node: ScriptNode, replica: ScriptReplica) -> None:
        log = self.logs[replica.state.descriptor.range_id]
        while replica.state.position < len(log):
            packet = decode_packet(log[replica.state.position])
            applied = apply_packet(replica.state, Position(replica.state.position + 1), packet)
            for command, _ in applied.outcomes:
                replica.buffer.take_decided(command.command_id)
            replica.state = applied.state
            for event in applied.aftermath:
                if isinstance(event, LeaseChanged):
                    state = replica.state
                    replica.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)
                    replica.transferring = False
                    node.sender.touch(state.descriptor.range_id)
                elif isinstance(event, Created):
                    left, right = replica.state.descriptor.range_id, event.state.descriptor.range_id
                    self.logs.setdefault(right, [])
                    node.add(event.state)
                    node.records.keep(right, Promise(LeaseAppliedIndex(0), node.records[left].served))

    def do_transfer(self, name: str, to: str, now: str) -> str:
        replica = self._leader(name)
        start = at(float(now))
        lease = Lease(NodeId(number(to)), LeaseSequence(replica.state.lease.sequence + 1), start, self.nodes[to].epoch)
        self._insert(replica, trigger=LeaseTrigger(lease, read_floor=start))
        replica.transferring = True
        lai = self._flush(replica)
        self._apply()
        return f"n{replica.node.id} proposes the transfer of {name} to {to}, index {lai}"

    def do_acquire(self, name: str, by: str, now: str, behind: str = "") -> str:
        """A node takes a lease that is not valid any more; its start lies above all that was closed under the former one."""
        node = self.nodes[by]
        replica = node.replicas[RangeId(number(name))]
        former = replica.state.lease
        assert self.live_epoch(former.holder) != former.epoch, "the former lease is valid"
        lease = Lease(node.id, LeaseSequence(former.sequence + 1), at(float(now)), node.epoch)
        replica.buffer.start_lease(sequence=former.sequence, lai=replica.state.lai, closed=replica.state.closed)
        self._insert(replica, trigger=LeaseTrigger(lease, read_floor=at(float(now))))
        self._flush(replica)
        self._apply(behind)
        return f"{by} holds the lease of {name} in epoch {node.epoch}"

    def do_dies(self, name: str) -> None:
        """A node's liveness ends, and another one increments its epoch."""
        self.nodes[name].live = False
        self.nodes[name].epoch = Epoch(self.nodes[name].epoch + 1)

    def do_lives(self, name: str) -> str:
        self.nodes[name].live = True
        return f"{name} lives in epoch {self.nodes[name].epoch}"

    def do_restart(self, name: str) -> str:
        node = self.nodes[name]
        node.life, node.live, node.epoch = node.life + 1, True, Epoch(node.epoch + 1)
        node.start()
        return f"{name} lives in epoch {node.epoch}"

    def do_split(self, name: str, right: str) -> str:
        replica = self._leader(name)
        old = replica.state.descriptor
        generation = Generation(old.generation + 1)
        one = RangeDescriptor(old.range_id, old.start, b"m", old.replicas, generation)
        other = RangeDescriptor(RangeId(number(right)), b"m", old.end, old.replicas, generation)
        self._insert(replica, trigger=SplitTrigger(one, other, ()))
        lai = self._flush(replica)
        self._apply()
        return f"n{replica.node.id} splits {name}, index {lai}"

    # --- heartbeats --------------------------------------------------------------------------------------------------

    def do_beat(self, name: str, now: str, lost: str = "") -> str:
        node = self.nodes[name]
        lease = NodeLease(node.epoch, FOREVER) if node.live else None
        beat = node.sender.heartbeat(at(float(now)), TERMS, lease)
        if beat is None:
            return f"{name} sends no heartbeat"
        for other, follower in self.nodes.items():
            if other not in lost.split(","):
                follower.receiver.take(beat)
        return self._beat(beat)

    def do_stream(self, name: str, **more: str) -> str:
        """A follower comes back to a sender and says what it has had: it is sent one heartbeat for all that it missed."""
        follower, sender = self.nodes[name], self.nodes[more["from"]].sender
        beats = sender.after(follower.receiver.had(sender.node_id)[1] or None)
        for beat in beats:
            follower.receiver.take(beat)
        return "\n".join(self._beat(beat) for beat in beats) or "nothing to send"

    def _beat(self, beat: Heartbeat) -> str:
        return seconds(beat.status())

    def do_store(self, name: str, of: str) -> str:
        return seconds(f"{name} knows {self.nodes[name].receiver.status(NodeId(number(of)))}")

    def do_wake(self, name: str) -> str:
        """A follower that was asked and knew too little wakes leaseholders."""
        node = self.nodes[name]
        lacking, node.receiver.lacking = node.receiver.lacking, {}
        for range_id in lacking:
            self._leader(f"r{range_id}").node.sender.touch(range_id)
        return "\n".join(f"{name} wakes n{self._leader(f'r{r}').node.id} for r{r}" for r in lacking) or "nothing lacks"

    # --- reads -------------------------------------------------------------------------------------------------------

    def do_read(self, name: str, range: str, **more: str) -> str:  # noqa: A002 - the script's word
        """The three steps, in the document's order."""
        node, range_id, ts = self.nodes[name], RangeId(number(range)), at(float(more["at"]))
        state, record = node.replicas[range_id].state, node.records[range_id]
        serves = f"{name} serves {range} at {more['at']}:"
        if ts <= record.served:
            return f"{serves} confirmed"
        if ts <= record.use(state.lai):
            return f"{serves} told with an index that is applied"
        closed = node.receiver.closed_for(range_id, state.lai, state.lease)
        if ts <= closed:
            return f"{serves} quiesced under the live lease of n{state.lease.holder} in epoch {state.lease.epoch}"
        if ts <= state.closed:
            return f"{serves} closed by a command it has applied"
        known = Timestamp(max(closed, state.closed))
        waiting = node.receiver.waiting_for(range_id, state.lai)
        then = f", {waiting.ts} once index {waiting.lai} is applied" if waiting else ""
        lacks = "; it lacks information" if range_id in node.receiver.lacking else ""
        return seconds(
            f"{name} sends the read of {range} at {more['at']} on: closed here is {shown(known)}{then}{lacks}"
        )

    # --- the minimum proposal timestamp on its own -------------------------------------------------------------------

    def do_commands(self, *names: str, **more: str) -> str:
        for name in names:
            ts = max(int(more["at"]), self.mpt.cur + 1 if self.mpt.cur else 0)
            self.inside[name] = (ts, self.mpt.enter())
        return self._mpt()

    def do_proposed(self, *names: str) -> str:
        for name in names:
            self.mpt.leave(self.inside.pop(name)[1])  # type: ignore[arg-type]
        return self._mpt()

    def do_heartbeat(self, target: str) -> str:
        return f"sends {self.mpt.heartbeat(Timestamp(int(target)))}\n{self._mpt()}"

    def _mpt(self) -> str:
        inside = " ".join(f"{name}@{ts}" for name, (ts, _) in self.inside.items())
        return f"  {self.mpt.status()}  in process: {inside or '-'}"


def range_(count: int) -> range:
    """The builtin, in methods where the script's word hides it."""
    return range(count)


SCRIPTS = [path for path in golden.scripts("closedts") if path.stem.startswith("store_wide_")]
ROWS = 10
"""Of the document's table of state transitions."""


def test_every_row_of_the_table_of_state_transitions_has_its_script() -> None:
    rows = {int(found.group(1)) for path in SCRIPTS if (found := re.match(r"store_wide_(\d+)_", path.stem))}
    assert rows == set(range(1, ROWS + 1))


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
