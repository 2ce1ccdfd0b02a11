"""The proposal buffer: the one place where a command gets its index and its closed timestamp.

    evaluate ──► insert(proposal) ──► flush() ──► one log entry ──► tail ──► apply ──► the waiter is told
                 tracked               LAI and closed assigned together, then untracked

A proposal that was evaluated is *tracked*: nothing at or above its lowest write may be closed. `flush` sequences everything
buffered: each command gets the next lease applied index; the last one also carries the closed timestamp

    assigned = max(assigned, min(policy target, lowest tracked - 1, end of the lease - gap))

computed after the members of this flush have left the tracker: they all stand at or before that command, so it may close
above their own writes (rules I-09, I-11; a member that untracked before it had its index would be planted bug M07).

One append is under way at a time. If its outcome is unknown, the *same bytes* are appended again until they are seen in
the log or the lease has changed: same index, same closed timestamp, so at most one copy applies (I-05) and nothing ever
needs a new index after evaluation (pitfall 1).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.closedts.tracker import TRACKED_MAX
from slackwater.errors import EntryTooLarge, InvariantViolation, Overloaded
from slackwater.hooks import buggify, level
from slackwater.model.descriptors import LeaseAppliedIndex, LeaseSequence
from slackwater.protocol.log.commands import (
    COMMANDS_PER_PACKET_MAX,
    Command,
    Packet,
    Trigger,
    encode_packet,
)
from slackwater.replica.latches import REQUESTS_MAX
from slackwater.settings import describe

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.closedts.tracker import Token, Tracker
    from slackwater.model.ids import RangeId

PROPOSALS_MAX = 8192
"""Proposals buffered or in flight on one range."""
OVERHEAD_BYTES = 256
"""Room for a command's fields besides its effects, when entries are cut to size."""
assert PROPOSALS_MAX <= TRACKED_MAX, "every proposal that waits can be tracked"
assert PROPOSALS_MAX <= REQUESTS_MAX, "every request whose command waits can hold its latches"
assert describe("log.entry_bytes_max").hostile[0] > OVERHEAD_BYTES, "the smallest entry has room for a command"
assert PROPOSALS_MAX >= COMMANDS_PER_PACKET_MAX, "one entry's worth of commands fits the buffer"

W = TypeVar("W")


class Proposal(Generic[W]):
    """An evaluated command on its way to the log, and the waiter that is told its outcome."""

    __slots__ = (
        "command_id",
        "effects",
        "generation",
        "lai",
        "lease_sequence",
        "min_write_ts",
        "stats",
        "token",
        "trigger",
        "waiter",
    )

    def __init__(
        self,
        *,
        command_id: bytes,
        lease_sequence: LeaseSequence,
        min_write_ts: Timestamp,
        effects: bytes,
        stats: tuple[int, ...],
        trigger: Trigger | None,
        generation: int,
        waiter: W,
    ) -> None:
        self.command_id = command_id
        self.lease_sequence = lease_sequence
        self.min_write_ts = min_write_ts
        self.effects = effects
        self.stats = stats
        self.trigger = trigger
        self.generation = generation
        self.waiter = waiter
        self.lai = LeaseAppliedIndex(0)
        self.token: Token | None = None


class Flight(Generic[W]):
    """One log entry under way."""

    __slots__ = ("closed", "last_lai", "lease_sequence", "payload", "proposals")

    def __init__(
        self,
        payload: bytes,
        proposals: list[Proposal[W]],
        *,
        lease_sequence: LeaseSequence,
        last_lai: LeaseAppliedIndex,
        closed: Timestamp,
    ) -> None:
        assert proposals, "an entry holds at least one command"
        assert payload, "an entry holds at least one command"
        assert proposals[-1].lai == last_lai, "commands are numbered in their order"
        assert proposals[0].lai + len(proposals) - 1 == last_lai, "indexes have no gaps (I-05)"
        self.payload = payload
        self.proposals = proposals
        self.lease_sequence = lease_sequence
        self.last_lai = last_lai
        self.closed = closed


class ProposalBuffer(Generic[W]):
    """Proposals of one leaseholder, under one lease at a time."""

    def __init__(self, range_id: RangeId, tracker: Tracker, *, entry_bytes_max: int) -> None:
        assert entry_bytes_max >= OVERHEAD_BYTES, "an entry has room for a command"
        self.range_id = range_id
        self.tracker = tracker
        self.entry_bytes_max = entry_bytes_max
        self.sequence = LeaseSequence(0)
        self.assigned_lai = LeaseAppliedIndex(0)
        self.assigned_closed = MIN
        self._buffered: list[Proposal[W]] = []
        self._waiting: dict[bytes, Proposal[W]] = {}

    def start_lease(self, *, sequence: LeaseSequence, lai: LeaseAppliedIndex, closed: Timestamp) -> list[Proposal[W]]:
        """Begin under a new lease, from the applied state. Returns proposals of the old one: they can never apply now."""
        assert sequence >= self.sequence, "leases follow each other (I-07)"
        assert sequence > self.sequence or lai >= self.assigned_lai, "indexes of one lease only move up (I-05)"
        dead = list(self._waiting.values())
        self.tracker.leave([proposal.token for proposal in dead if proposal.token is not None])
        for proposal in dead:
            proposal.token = None
        self._buffered.clear()
        self._waiting.clear()
        assert self.tracker.count == 0, "nothing of the former lease holds closing back (pitfall 6)"
        self.sequence, self.assigned_lai = sequence, lai
        self.assigned_closed = Timestamp(max(self.assigned_closed, closed))
        return dead

    @property
    def floor(self) -> Timestamp:
        """The lowest timestamp a new write may use."""
        return Timestamp(self.assigned_closed + 1)

    @property
    def in_flight(self) -> int:
        """Proposals inserted and not yet decided."""
        return len(self._waiting)

    def proposes(self, trigger: type[Trigger]) -> bool:
        """Whether a command with such a trigger is inserted and not yet decided."""
        return any(isinstance(proposal.trigger, trigger) for proposal in self._waiting.values())

    @property
    def buffered(self) -> int:
        """Proposals waiting for the next flush."""
        return len(self._buffered)

    def insert(self, proposal: Proposal[W]) -> None:
        """Take an evaluated proposal; its writes hold closing back until it is sequenced."""
        size = len(proposal.effects) + OVERHEAD_BYTES
        if size > self.entry_bytes_max:
            raise EntryTooLarge(
                "one command is larger than a log entry may be; split the batch", size=size, limit=self.entry_bytes_max
            )
        if len(self._waiting) >= PROPOSALS_MAX:
            raise Overloaded("too many proposals are waiting on this range", limit=PROPOSALS_MAX)
        assert proposal.command_id not in self._waiting, "a command is proposed once"
        assert proposal.lai == 0, "it has its index from the flush, not before"
        assert proposal.token is None, "it has its index from the flush, not before"
        if proposal.min_write_ts:
            if proposal.min_write_ts <= self.assigned_closed:  # spelled out: for every write
                raise InvariantViolation("I-10", {"write": proposal.min_write_ts, "closed": self.assigned_closed})
            proposal.token = self.tracker.track(proposal.min_write_ts)
        self._buffered.append(proposal)
        self._waiting[proposal.command_id] = proposal
        level("replica.proposals", len(self._waiting), PROPOSALS_MAX)

    def flush(self, *, close_target: Timestamp, close_limit: Timestamp) -> Flight[W] | None:
        """Sequence what is buffered, as much as fits one entry. `close_limit` is the end of the lease less the gap."""
        chosen = self._take()
        if not chosen:
            return None
        before, lai = self.assigned_closed, self.assigned_lai
        leaving: list[Token] = []
        for proposal in chosen:
            lai = LeaseAppliedIndex(lai + 1)
            proposal.lai = lai
            if proposal.token is not None:
                leaving.append(proposal.token)
                proposal.token = None
        self.assigned_lai = lai
        self.close(target=close_target, limit=close_limit, leaving=leaving)
        assert self.assigned_closed >= before, "closing only moves up (I-09)"
        assert chosen[-1].lai == self.assigned_lai, "the last command has the last index"
        commands = [self._command(p, before) for p in chosen[:-1]]
        commands.append(self._command(chosen[-1], self.assigned_closed))
        payload = encode_packet(Packet(self.range_id, commands))
        return Flight(
            payload, chosen, lease_sequence=self.sequence, last_lai=self.assigned_lai, closed=self.assigned_closed
        )

    def push_out(self, command_id: bytes) -> bytes:
        """An entry with one empty command and the next index: once it applies, no entry made before it can any more."""
        before = self.assigned_lai
        self.assigned_lai = LeaseAppliedIndex(self.assigned_lai + 1)
        assert self.assigned_lai > before, "an empty command takes the next index (I-05)"
        empty = Command(
            command_id=command_id,
            lease_sequence=self.sequence,
            lai=self.assigned_lai,
            closed=self.assigned_closed,
            min_write_ts=MIN,
        )
        return encode_packet(Packet(self.range_id, [empty]))

    def close(self, *, target: Timestamp, limit: Timestamp, leaving: Sequence[Token] = ()) -> Timestamp:
        """Raise the assigned closed timestamp as far as the policy, the tracker and the lease allow (I-11).

        `leaving` are the places of proposals that have just got their indexes: they hold closing back no more.
        """
        lowest = self.tracker.leave(leaving)
        if lowest is not None and lowest <= self.assigned_closed:
            raise InvariantViolation("I-10", {"tracked": lowest, "closed": self.assigned_closed})
        target = Timestamp(min(target, limit))
        if lowest is not None:
            target = Timestamp(min(target, lowest - 1))
        self.assigned_closed = Timestamp(max(self.assigned_closed, target))
        assert lowest is None or self.assigned_closed < lowest, "closing stays below what is being written (I-11)"
        return self.assigned_closed

    def take_decided(self, command_id: bytes) -> Proposal[W] | None:
        """The proposal that a command in the log belongs to; None when it is not ours, or was settled before."""
        return self._waiting.pop(command_id, None)

    def withdraw(self, flight: Flight[W]) -> list[Proposal[W]]:
        """The log refused the entry for good: its proposals, which never apply."""
        assert all(p.token is None for p in flight.proposals), "what was sent holds closing back no more"
        return [p for p in flight.proposals if self._waiting.pop(p.command_id, None) is not None]

    def _take(self) -> list[Proposal[W]]:
        limit = 1 if buggify("propose.one_command_per_entry") else COMMANDS_PER_PACKET_MAX
        size = count = 0
        for proposal in self._buffered:
            size += len(proposal.effects) + OVERHEAD_BYTES
            if count and (size > self.entry_bytes_max or count >= limit):
                break
            count += 1
        assert count <= COMMANDS_PER_PACKET_MAX, "an entry holds what a decoder accepts"
        assert count or not self._buffered, "what is buffered gets its turn"
        chosen, self._buffered = self._buffered[:count], self._buffered[count:]
        return chosen

    def _command(self, proposal: Proposal[W], closed: Timestamp) -> Command:
        assert proposal.lai > 0, "a command has its index before it is sent"
        assert proposal.token is None, "it no longer holds closing back"
        return Command(
            command_id=proposal.command_id,
            lease_sequence=proposal.lease_sequence,
            lai=proposal.lai,
            closed=closed,
            min_write_ts=proposal.min_write_ts,
            effects=proposal.effects,
            stats=proposal.stats,
            trigger=proposal.trigger,
            generation=proposal.generation,
        )

    def status(self) -> str:
        """One line for logs and scripts."""
        return (
            f"propose seq={self.sequence} lai={self.assigned_lai} closed={self.assigned_closed} "
            f"buffered={len(self._buffered)} waiting={len(self._waiting)} tracked={self.tracker.count}"
        )
