"""Applying the log: one function decides, once per command, on every replica alike.

    entry ──► decode ──► for each command: verdict(state, command) ──► ACCEPTED: effects + state
                                                                └────► otherwise: nothing, and the reason is counted

Rules, in this order
    I-08  the command's lease sequence is the current lease's
    I-05  its lease applied index is above the applied one: this alone makes duplicates and late re-proposals harmless
    I-09  what is closed never moves back: closed = max(closed, command's), and a frozen range closes nothing
    I-10  its lowest new timestamp is above what is closed (a last line of defence: the proposer already made sure)

A lease request has no index: its proposer need not hold the lease. The sequence it replaces guards it, and applying it
raises the sequence. Its start acts as a closed timestamp, unless the range is frozen by a merge (pitfall 4).
An adoption, by which a node adds itself to the replicas of a lost range, has no index either: the generation guards it.

Everything here is a pure function of (state, entry). Effects on the store beyond the batch itself (a replica appears or
disappears) are returned as `Aftermath` values for the driver.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from slackwater.clock.timestamp import MIN
from slackwater.errors import InvariantViolation, invariant
from slackwater.hooks import probe
from slackwater.model.descriptors import REPLICAS_MAX, Generation, RangeDescriptor
from slackwater.model.ids import Position
from slackwater.model.retention import Retained, clip, joined, still_there
from slackwater.protocol.log.commands import (
    NO_LAI,
    AdoptTrigger,
    ChecksumTrigger,
    Command,
    ComplaintTrigger,
    DescriptorTrigger,
    FreezeTrigger,
    GcTrigger,
    LeaseExtension,
    LeaseTrigger,
    MergeTrigger,
    Packet,
    SplitTrigger,
    ThawTrigger,
)
from slackwater.replica.state import RangeState, add_stats, encode_state, state_key
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from slackwater.protocol.range.requests import SubsumeResult


class ApplyVerdict(enum.Enum):
    """Whether a command applies, and if not, why."""

    ACCEPTED = "accepted"
    WRONG_LEASE = "wrong lease"
    STALE_INDEX = "stale index"
    FROZEN = "frozen"
    STALE_GENERATION = "stale generation"
    BELOW_CLOSED = "below closed"
    BAD_LEASE = "bad lease"
    BAD_ADOPTION = "bad adoption"
    NOTED = "noted"
    """A complaint: it changes nothing, and applies under any lease."""


class ApplyOutcome(NamedTuple):
    """What became of one command."""

    command: Command
    verdict: ApplyVerdict


class Created(msgspec.Struct, frozen=True):
    """A split made this range; its state is already in the batch."""

    state: RangeState


class Absorbed(msgspec.Struct, frozen=True):
    """A merge took this range over; its state is already gone from the batch."""

    descriptor: RangeDescriptor
    position: Position
    """Of its freeze: what the absorbed replica must have applied before."""


class LeaseChanged(msgspec.Struct, frozen=True):
    """Another lease is in force."""

    before: int
    after: int


class Digested(msgspec.Struct, frozen=True):
    """A checksum was asked for at this point."""

    checksum_id: bytes


Aftermath = Created | Absorbed | LeaseChanged | Digested


class Applied(NamedTuple):
    """The result of applying one log entry."""

    state: RangeState
    batch: WriteBatch
    outcomes: list[ApplyOutcome]
    aftermath: list[Aftermath]


def verdict(state: RangeState, command: Command) -> ApplyVerdict:
    """The single acceptance rule (pitfall 53: copies of a fence check drift apart)."""
    if isinstance(command.trigger, ComplaintTrigger):
        return ApplyVerdict.NOTED
    if command.lease_sequence != state.lease.sequence:
        return ApplyVerdict.WRONG_LEASE
    if isinstance(command.trigger, AdoptTrigger):
        return _adoption_verdict(state, command, command.trigger)
    if command.lai == NO_LAI:
        return _lease_request_verdict(state, command)
    if command.lai <= state.lai:
        return ApplyVerdict.STALE_INDEX
    if state.frozen is not None and not isinstance(command.trigger, ThawTrigger | LeaseTrigger | LeaseExtension):
        return ApplyVerdict.FROZEN
    if command.generation and command.generation != state.descriptor.generation:
        return ApplyVerdict.STALE_GENERATION
    if command.min_write_ts and command.min_write_ts <= state.closed:
        return ApplyVerdict.BELOW_CLOSED
    return ApplyVerdict.ACCEPTED


def _lease_request_verdict(state: RangeState, command: Command) -> ApplyVerdict:
    trigger = command.trigger
    if not isinstance(trigger, LeaseTrigger) or command.effects:
        return ApplyVerdict.BAD_LEASE
    lease, held = trigger.lease, state.lease
    if lease.sequence != held.sequence + 1 or lease.holder not in state.descriptor.replicas:
        return ApplyVerdict.BAD_LEASE
    # An expiration-based lease ends by itself; the next one starts only after that (I-07). The end of an epoch-based
    # one is not in the log: the requesting node has ended the epoch in the liveness record first.
    # Two lives of one node are two holders: the other one may be a process that still runs, from a copy of the store.
    same = (lease.holder, lease.life) == (held.holder, held.life)
    if held.holder and not held.by_epoch and lease.start <= held.expiration and not same:
        return ApplyVerdict.BAD_LEASE
    return ApplyVerdict.ACCEPTED


def _adoption_verdict(state: RangeState, command: Command, trigger: AdoptTrigger) -> ApplyVerdict:
    """A frozen range is left alone: whether it still is a range is for its left neighbour's log to say."""
    if state.frozen is not None:
        return ApplyVerdict.FROZEN
    replicas, bare = state.descriptor.replicas, command.lai == NO_LAI and not (command.effects or command.stats)
    bare = bare and command.closed == command.min_write_ts == MIN
    if not bare or trigger.node in replicas or len(replicas) >= REPLICAS_MAX:
        return ApplyVerdict.BAD_ADOPTION
    return ApplyVerdict.ACCEPTED if command.generation == state.descriptor.generation else ApplyVerdict.STALE_GENERATION


def apply_packet(state: RangeState, position: Position, packet: Packet) -> Applied:
    """Apply one log entry: all accepted commands, their triggers, and the new state, in one batch."""
    if (
        packet.range_id != state.descriptor.range_id or position <= state.position
    ):  # spelled out: called for every entry
        facts: dict[str, object] = {"packet": packet.range_id, "range": state.descriptor.range_id}
        raise InvariantViolation("I-04", facts | {"position": position, "applied": state.position})
    before = state
    batch: WriteBatch | None = None
    effects: list[bytes] = []
    outcomes: list[ApplyOutcome] = []
    aftermath: list[Aftermath] = []
    for command in packet.commands:
        judged = verdict(state, command)
        outcomes.append(ApplyOutcome(command, judged))
        if judged is not ApplyVerdict.ACCEPTED:
            probe(f"apply.{judged.name.lower()}")
            continue
        # Asserted apart from the rule that decides: a breach would be written on every replica.
        if command.lease_sequence != state.lease.sequence:
            held = state.lease.sequence
            raise InvariantViolation("I-08", {"command": command.lease_sequence, "lease": held, "at": position})
        if command.lai <= state.lai and command.lai != NO_LAI:
            raise InvariantViolation("I-05", {"lai": command.lai, "applied": state.lai, "at": position})
        if command.min_write_ts and command.min_write_ts <= state.closed:
            raise InvariantViolation("I-10", {"write": command.min_write_ts, "closed": state.closed, "at": position})
        if command.effects:
            effects.append(command.effects)
        state = _advance(state, command)
        if command.trigger is not None:  # what it writes comes after the effects of its command, and before later ones
            batch = WriteBatch() if batch is None else batch
            batch.extend_encoded(effects)
            effects = []
            state = _pull(state, command, batch, aftermath)
    state = msgspec.structs.replace(state, position=position)
    if state.closed < before.closed or state.lai < before.lai:
        raise InvariantViolation(
            "I-09", {"closed": state.closed, "before": before.closed, "lai": state.lai, "at": position}
        )
    assert len(outcomes) == len(packet.commands), "every command is judged once"
    assert state.gc_threshold >= before.gc_threshold, "what was collected stays collected (I-26)"
    assert state.lease.sequence >= before.lease.sequence, "leases follow each other (I-07)"
    assert state.read_floor >= before.read_floor, "nothing is forgotten of what was read"
    assert state.descriptor.generation >= before.descriptor.generation, "generations only move up"
    assert state.txn_floor >= before.txn_floor, "records that were collected stay collected (I-20)"
    encoded = encode_state(state)
    batch = WriteBatch() if batch is None else batch
    batch.extend_encoded(effects)
    batch.put(Family.LOCAL, state_key(state.descriptor.range_id), encoded)
    return Applied(state, batch, outcomes, aftermath)


def _advance(state: RangeState, command: Command) -> RangeState:
    """Index, closed timestamp and statistics after one accepted command."""
    closed = state.closed
    # A frozen range's closed timestamp stands still: the left side may already be writing below anything newer.
    if state.frozen is None:
        closed = max(closed, command.closed)
    return msgspec.structs.replace(
        state, lai=max(state.lai, command.lai), closed=closed, stats=add_stats(state.stats, command.stats)
    )


def _pull(state: RangeState, command: Command, batch: WriteBatch, aftermath: list[Aftermath]) -> RangeState:
    """Carry out a command's trigger."""
    replace = msgspec.structs.replace
    match command.trigger:
        case LeaseTrigger(lease, read_floor):
            assert lease.sequence == state.lease.sequence + 1, "lease sequences count up by one (I-07)"
            assert lease.holder, "a lease is given to a node"
            aftermath.append(LeaseChanged(state.lease.sequence, lease.sequence))
            closed = state.closed if state.frozen else max(state.closed, lease.start)
            assert closed >= state.closed, "closing only moves up (I-09)"
            if command.lai == NO_LAI and lease.holder == state.lease.holder and not state.lease.by_epoch:
                # A holder that asked anew, because its lease was about to end, may have been granted an extension that
                # was still on its way: it serves up to there until it applies this, so the new lease ends no sooner.
                lease = replace(lease, expiration=max(lease.expiration, state.lease.expiration))
            return replace(state, lease=lease, closed=closed, read_floor=max(state.read_floor, read_floor))
        case LeaseExtension(expiration):
            invariant(expiration >= state.lease.expiration, "I-07", new=expiration, old=state.lease.expiration)
            assert not state.lease.by_epoch, "only an expiration-based lease is extended"
            assert state.lease.holder, "a lease that is extended is held"
            return replace(state, lease=replace(state.lease, expiration=expiration))
        case SplitTrigger(left, right, right_stats):
            return _split(state, left, right, right_stats, batch, aftermath)
        case FreezeTrigger() as freeze:
            assert state.frozen is None, "a range is frozen for one merge at a time"
            return replace(state, frozen=freeze)
        case ThawTrigger():
            return replace(state, frozen=None)
        case MergeTrigger(merged, right, frozen):
            assert state.descriptor.end == right.start, "a merge joins neighbors"
            assert merged.end == right.end, "a merge joins neighbors"
            batch.delete(Family.LOCAL, state_key(right.range_id))
            aftermath.append(Absorbed(right, frozen.position))
            return _merge(state, merged, right, frozen)
        case DescriptorTrigger(descriptor):
            assert descriptor.range_id == state.descriptor.range_id, "a range keeps its id"
            assert descriptor.generation > state.descriptor.generation, "every change raises the generation"
            assert (descriptor.start, descriptor.end) == (state.descriptor.start, state.descriptor.end), (
                "only splits and merges move bounds"
            )
            assert descriptor.replicas, "a range has at least one replica"
            assert len(set(descriptor.replicas)) == len(descriptor.replicas), "one replica on a node"
            return replace(state, descriptor=descriptor)
        case AdoptTrigger(node):
            assert node not in state.descriptor.replicas, "only a replica that is not named is adopted"
            named = replace(
                state.descriptor,
                replicas=(*state.descriptor.replicas, node),
                generation=Generation(state.descriptor.generation + 1),
            )
            assert len(named.replicas) <= REPLICAS_MAX, "replicas are bounded"
            assert named.generation > state.descriptor.generation, "every change raises the generation"
            return replace(state, descriptor=named)
        case GcTrigger() as raised:
            return _raise(state, raised)
        case ChecksumTrigger(checksum_id):
            aftermath.append(Digested(checksum_id))
    return state


def _raise(state: RangeState, raised: GcTrigger) -> RangeState:
    """Higher thresholds, and what is kept below them. Nothing is promised that is gone already (I-26)."""
    kept = state.kept if raised.kept is None else raised.kept
    for one in raised.kept or ():
        invariant(still_there(state.gc_threshold, state.kept, one), "I-26", kept=repr(one), range=state.status())
    return msgspec.structs.replace(
        state,
        gc_threshold=max(state.gc_threshold, raised.gc_threshold),
        txn_floor=max(state.txn_floor, raised.txn_floor),
        kept=kept,
    )


def _split(
    state: RangeState,
    left: RangeDescriptor,
    right: RangeDescriptor,
    right_stats: tuple[int, ...],
    batch: WriteBatch,
    aftermath: list[Aftermath],
) -> RangeState:
    """Both sides start from the state this command leaves, closed timestamp included (pitfall 2)."""
    whole = state.descriptor
    assert whole.start == left.start < left.end, "the left half begins where the whole did, and holds keys"
    assert left.end == right.start, "a split divides, and loses nothing"
    assert right.start < right.end == whole.end, "the right half ends where the whole did, and holds keys"
    assert left.generation > whole.generation, "both halves are newer than the whole"
    assert left.generation == right.generation, "both halves are of one age"
    assert left.replicas == whole.replicas, "both halves stay where the whole was"
    assert right.replicas == whole.replicas, "both halves stay where the whole was"
    assert left.range_id == whole.range_id, "the left half keeps the id"
    assert right.range_id != whole.range_id, "the right half has an id of its own"
    assert state.frozen is None, "a frozen range is not split"
    right_state = RangeState(
        descriptor=right,
        lease=state.lease,
        closed=state.closed,
        read_floor=state.read_floor,
        gc_threshold=state.gc_threshold,
        txn_floor=state.txn_floor,
        stats=right_stats,
        kept=clip(state.kept, right.start, right.end),
    )
    batch.put(Family.LOCAL, state_key(right.range_id), encode_state(right_state))
    aftermath.append(Created(right_state))
    left_stats = add_stats(state.stats, tuple(-n for n in right_stats))
    kept = clip(state.kept, left.start, left.end)
    return msgspec.structs.replace(state, descriptor=left, stats=left_stats, kept=kept)


def _merge(state: RangeState, merged: RangeDescriptor, right: RangeDescriptor, frozen: SubsumeResult) -> RangeState:
    """Take over the right side. Its closed timestamp becomes a read floor, not a closed timestamp of the whole.

    Followers of the right side may have served reads up to its closed timestamp, so nothing may be written there at or
    below it; but the left side never promised that for its own keys, and commands evaluated earlier may still lie below.

    History that either side had is readable still, whatever the other's threshold.
    """
    assert merged.range_id == state.descriptor.range_id, "the left side keeps its id"
    assert merged.start == state.descriptor.start, "the merged range begins where the left side did"
    assert state.descriptor.end < merged.end, "a merge only adds keys"
    assert merged.generation > state.descriptor.generation, "the merged range is newer than its sides"
    assert state.frozen is None, "a frozen range absorbs nothing"
    assert right.start == state.descriptor.end, "a merge joins neighbors"
    retained = joined(state.retained, Retained(right.start, right.end, frozen.gc_threshold, frozen.kept))
    assert (retained.start, retained.end) == (merged.start, merged.end), "what is kept is kept for the whole"
    return msgspec.structs.replace(
        state,
        descriptor=merged,
        closed=state.closed,
        read_floor=max(state.read_floor, frozen.closed, frozen.read_floor),
        gc_threshold=retained.threshold,
        txn_floor=max(state.txn_floor, frozen.txn_floor),
        stats=add_stats(state.stats, frozen.stats),
        kept=retained.kept,
    )


def pauses_in(packet: Packet) -> tuple[MergeTrigger | None, bool]:
    """What an entry must not be applied together with its neighbors for: the merge in it, and whether it asks for a digest."""
    merge, digest = None, False
    for command in packet.commands:
        if command.trigger is not None:
            merge = command.trigger if isinstance(command.trigger, MergeTrigger) else merge
            digest |= isinstance(command.trigger, ChecksumTrigger)
    return merge, digest
