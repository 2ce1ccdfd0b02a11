"""What stands in a range's log.

A leaseholder evaluates requests into *effects* (an encoded write batch) and an optional *trigger* (a change of the range
itself). A `Command` carries them with what every replica needs to decide, by one rule, whether it applies
(`slackwater.replica.apply:verdict`). Replicas never evaluate: they apply bytes, so they stay byte-identical (I-06).

    log entry = crc32 ++ msgpack( Packet{ range, commands: [ Command, … ] } )

One flush of the proposal buffer is one entry: its commands apply in one engine batch. Change feeds need no extra payload:
new versions, intents and their resolution can be read off the effects when, and only when, a listener asks.
"""

from __future__ import annotations

from typing import TypeAlias
from zlib import crc32

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import DecodeError
from slackwater.model.descriptors import Lease, LeaseAppliedIndex, LeaseSequence, RangeDescriptor
from slackwater.model.ids import Natural, NodeId, RangeId
from slackwater.model.protection import Kept
from slackwater.protocol.range.requests import SubsumeResult

COMMAND_ID_BYTES = 12
COMMANDS_PER_PACKET_MAX = 4096
NO_LAI = LeaseAppliedIndex(0)
"""Lease requests carry no index: their proposer need not hold the lease. The lease sequence alone guards them."""


class _Trigger(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Base of the changes a command can make to its range."""


class LeaseTrigger(_Trigger, frozen=True):
    """A new lease. A transfer brings the read summary of the old holder."""

    lease: Lease
    read_floor: Timestamp = MIN
    """Nothing may be written at or below this by the new holder: what the old one may have served."""


class LeaseExtension(_Trigger, frozen=True):
    """The holder of an expiration-based lease prolongs it; the sequence stays."""

    expiration: Timestamp


class SplitTrigger(_Trigger, frozen=True):
    """The range divides. The right side starts with *this command's* closed timestamp (pitfall 2)."""

    left: RangeDescriptor
    right: RangeDescriptor
    right_stats: tuple[int, ...]


class FreezeTrigger(_Trigger, frozen=True):
    """The range stops, to be taken over by its left neighbour."""

    left_id: RangeId
    left_generation: Natural


class ThawTrigger(_Trigger, frozen=True):
    """The freeze ends without a merge."""


class MergeTrigger(_Trigger, frozen=True):
    """The range takes over its frozen right neighbour, applied at least to `frozen.position`."""

    merged: RangeDescriptor
    right: RangeDescriptor
    frozen: SubsumeResult


class DescriptorTrigger(_Trigger, frozen=True):
    """Other replicas, or only a higher generation (which fences a merge proposed under the old one)."""

    descriptor: RangeDescriptor


class GcTrigger(_Trigger, frozen=True):
    """Raised thresholds: reads at or below `gc_threshold` fail; transaction records older than `txn_floor` are gone."""

    gc_threshold: Timestamp = MIN
    txn_floor: Timestamp = MIN
    kept: tuple[Kept, ...] | None = None
    """What stays readable below the threshold from now on, instead of what did until now; None: as it is."""


class ChecksumTrigger(_Trigger, frozen=True):
    """Every replica digests its state here."""

    checksum_id: bytes


class ComplaintTrigger(_Trigger, frozen=True):
    """A node says that a majority cannot reach the leaseholder. It changes nothing: the holder reads it and steps down.

    Where the holder of range 1 cannot be reached, the log is the only way to tell it anything.
    """

    by: NodeId
    holder: NodeId
    missed_by: tuple[NodeId, ...]
    at: Timestamp


class AdoptTrigger(_Trigger, frozen=True):
    """A node without a replica adds itself to the range's replicas, without the lease: every node named there is dead.

    It takes nothing from any node, so it needs no lease; the generation it was proposed under guards it. The node fills its
    replica from the log and then asks for the lease like any replica.
    """

    node: NodeId


Trigger: TypeAlias = (
    LeaseTrigger | LeaseExtension | SplitTrigger | FreezeTrigger | ThawTrigger | MergeTrigger | DescriptorTrigger | GcTrigger
    | ChecksumTrigger | ComplaintTrigger | AdoptTrigger
)  # fmt: skip


class Command(msgspec.Struct, frozen=True, array_like=True):
    """One replicated change of one range."""

    command_id: bytes
    lease_sequence: LeaseSequence
    lai: LeaseAppliedIndex
    closed: Timestamp
    """Given that this command applies, no later one writes at or below this."""
    min_write_ts: Timestamp
    """The lowest timestamp of a new version or intent in the effects; MIN: there is none."""
    effects: bytes = b""
    stats: tuple[int, ...] = ()
    trigger: Trigger | None = None
    generation: Natural = 0
    """For triggers that change the descriptor: the generation they were evaluated under. It must still hold."""


class Packet(msgspec.Struct, frozen=True, array_like=True):
    """One log entry."""

    range_id: RangeId
    commands: list[Command]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Packet)


def encode_packet(packet: Packet) -> bytes:
    """The log entry's payload."""
    assert 0 < len(packet.commands) <= COMMANDS_PER_PACKET_MAX, "a decoder accepts what is encoded"
    body = _encoder.encode(packet)
    return crc32(body).to_bytes(4, "big") + body


def decode_packet(payload: bytes) -> Packet:
    """Read a log entry; anything wrong with it is a `DecodeError`."""
    body = memoryview(payload)[4:]
    if len(payload) < 4 or crc32(body) != int.from_bytes(payload[:4], "big"):
        raise DecodeError("a log entry fails its checksum", bytes=len(payload))
    try:
        packet = _decoder.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError(f"a log entry cannot be read: {error}") from error
    if len(packet.commands) > COMMANDS_PER_PACKET_MAX:
        raise DecodeError(
            "a log entry has too many commands", count=len(packet.commands), limit=COMMANDS_PER_PACKET_MAX
        )
    return packet
