"""Golden scripts of the max-write-age scheme: `tests/scripts/closedts/max_write_age_*.txt`, seed 001's rules with numbers.

Real parts: the ages of writes, a leaseholder's proposal buffer, entries of the log and the state of a follower that applies them.
Times are in seconds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from slackwater.clock.timestamp import MIN, Timestamp, from_us
from slackwater.closedts import BucketTracker
from slackwater.closedts.max_write_age.ages import WriteAges
from slackwater.model.descriptors import Epoch, Generation, Lease, LeaseSequence, RangeDescriptor
from slackwater.model.ids import NodeId, Position, RangeId
from slackwater.protocol.log.commands import COMMAND_ID_BYTES, LeaseTrigger, decode_packet
from slackwater.replica.apply import apply_packet
from slackwater.replica.propose import Proposal, ProposalBuffer
from slackwater.replica.state import RangeState
from tests import golden
from tests.unit.closedts.test_side_transport_scripts import number, seconds
from tests.unit.closedts.transport_world import at, shown

if TYPE_CHECKING:
    from pathlib import Path

    from slackwater.protocol.log.commands import Trigger

R1 = RangeId(1)
FOREVER = from_us(1 << 50)


class Runner:
    """A leaseholder of r1, and a follower n2 that applies what is in the log."""

    def __init__(self) -> None:
        descriptor = RangeDescriptor(R1, b"a", b"z", (NodeId(1), NodeId(2)), Generation(1))
        self.follower = RangeState(descriptor, Lease(NodeId(1), LeaseSequence(1), MIN, Epoch(1)))
        self.commands = 0
        self.late: dict[str, bytes] = {}
        self._lead()

    def _lead(self) -> None:
        """A leaseholder begins: it remembers nothing of what was proposed before."""
        state = self.follower
        self.ages = WriteAges()
        self.buffer: ProposalBuffer[None] = ProposalBuffer(R1, BucketTracker(), entry_bytes_max=1 << 20)
        self.buffer.start_lease(sequence=state.lease.sequence, lai=state.lai, closed=state.closed)

    def do_age(self, max_write_age: str) -> None:
        self.age_s = float(max_write_age)

    def _bound(self, now: str) -> Timestamp:
        return self.ages.bound(R1, lease_start=self.follower.lease.start, now=at(float(now)), age_s=self.age_s)

    def _propose(self, now: str, ts: Timestamp = MIN, trigger: Trigger | None = None) -> bytes:
        self.ages.proposed(R1, ts or at(float(now)))
        self.commands += 1
        self.buffer.insert(
            Proposal(
                command_id=self.commands.to_bytes(COMMAND_ID_BYTES, "big"),
                lease_sequence=self.follower.lease.sequence,
                min_write_ts=ts,
                effects=b"",
                stats=(),
                trigger=trigger,
                generation=0,
                waiter=None,
            )
        )
        flight = self.buffer.flush(close_target=self._bound(now), close_limit=FOREVER)
        assert flight is not None
        return flight.payload

    def _append(self, payload: bytes) -> str:
        applied = apply_packet(self.follower, Position(self.follower.position + 1), decode_packet(payload))
        self.follower = applied.state
        lines = []
        for command, verdict in applied.outcomes:
            self.buffer.take_decided(command.command_id)
            lines.append(f"  log: index {command.lai} {verdict.value}")
        return seconds("\n".join([*lines, f"  n2 serves up to {shown(self.follower.closed)}"]))

    def do_write(self, now: str, delayed: str = "", **more: str) -> str:
        wanted = at(float(more["at"]))
        ts = Timestamp(max(wanted, self._bound(now) + 1, self.buffer.floor))
        payload = self._propose(now, ts)
        (command,) = decode_packet(payload).commands
        moved = "" if ts == wanted else f", moved up from {more['at']}"
        line = f"write at {shown(ts)}{moved}: index {command.lai}, carries {shown(command.closed)}"
        if delayed:
            self.late[delayed] = payload
            return f"{line}; it is delayed on its way to the log"
        return f"{line}\n{self._append(payload)}"

    def do_due(self, now: str, interval: str) -> str:
        return "an empty command is due" if self.ages.due(R1, at(float(now)), float(interval)) else "nothing is due"

    def do_empty(self, now: str) -> str:
        payload = self._propose(now)
        (command,) = decode_packet(payload).commands
        return f"empty command: index {command.lai}, carries {shown(command.closed)}\n{self._append(payload)}"

    def do_push_out(self) -> str:
        payload = self.buffer.push_out(b"e" * COMMAND_ID_BYTES)
        (command,) = decode_packet(payload).commands
        return f"empty command: index {command.lai}, carries {shown(command.closed)}\n{self._append(payload)}"

    def do_arrives(self, name: str) -> str:
        return f"{name} is appended at last\n{self._append(self.late.pop(name))}"

    def do_lease(self, to: str, start: str) -> str:
        """The former lease has ended; the next one begins after it."""
        lease = Lease(NodeId(number(to)), LeaseSequence(self.follower.lease.sequence + 1), at(float(start)), Epoch(1))
        payload = self._propose(start, trigger=LeaseTrigger(lease, read_floor=at(float(start))))
        told = self._append(payload)
        self._lead()
        return f"{to} holds the lease from {start} on\n{told}\n  nothing is written at or below {shown(self._bound(start))}"


SCRIPTS = [path for path in golden.scripts("closedts") if path.stem.startswith("max_write_age_")]


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda p: p.stem)
def test_script(path: Path) -> None:
    golden.check(path, Runner())
