"""The replicated state of a range, as one small record.

Everything a replica must remember of its range besides the data lives in one `RangeState`, written in the same engine
batch as the data it describes: applied position and index, lease, closed timestamp, thresholds, statistics. A crash
therefore leaves either all of an entry or nothing of it, and replay starts exactly after `position`.

    applied entry ──► { data writes, RangeState } in ONE batch          DETERMINISTIC: equal on every replica at one LAI
"""

from __future__ import annotations

from functools import lru_cache
from operator import add

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.codec.layout import range_local
from slackwater.errors import InvariantViolation, StorageError
from slackwater.model.descriptors import NO_LEASE, Lease, LeaseAppliedIndex, RangeDescriptor
from slackwater.model.ids import Position
from slackwater.model.protection import Kept
from slackwater.model.retention import Retained
from slackwater.protocol.log.commands import FreezeTrigger
from slackwater.storage.stats import Stats

STATE_NAME = b"state"
VERSIONS = 4
"""Where the statistics count versions (`storage.stats.Stats`)."""
assert Stats._fields[VERSIONS] == "versions", "a command's change of the versions is where replicas look for it (I-34)"


class RangeState(msgspec.Struct, frozen=True, array_like=True):
    """What a replica of a range knows, at one applied position."""

    descriptor: RangeDescriptor
    lease: Lease = NO_LEASE
    lai: LeaseAppliedIndex = LeaseAppliedIndex(0)
    position: Position = Position(0)
    closed: Timestamp = MIN
    read_floor: Timestamp = MIN
    """Reads at or below this may have been served from keys now in this range: a leaseholder writes only above it."""
    gc_threshold: Timestamp = MIN
    txn_floor: Timestamp = MIN
    frozen: FreezeTrigger | None = None
    stats: tuple[int, ...] = ()
    kept: tuple[Kept, ...] = ()
    """History at or below the GC threshold that is there all the same, and readable."""

    @property
    def retained(self) -> Retained:
        """What the range knows of the past."""
        return Retained(self.descriptor.start, self.descriptor.end, self.gc_threshold, self.kept)

    def status(self) -> str:
        """One line for logs, scripts, console and simulator."""
        frozen = f" frozen-by=r{self.frozen.left_id}" if self.frozen else ""
        return (
            f"r{self.descriptor.range_id} lai={self.lai} pos={self.position} closed={self.closed} "
            f"gen={self.descriptor.generation} lease=({self.lease.status()}){frozen}"
        )


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(RangeState)
STATE_KEYS_MAX = 4096
"""Keys of states kept ready: every entry that is applied writes to one."""


@lru_cache(maxsize=STATE_KEYS_MAX)
def state_key(range_id: int) -> bytes:
    """Where a range's state lives in the LOCAL family."""
    return range_local(range_id, STATE_NAME)


def encode_state(state: RangeState) -> bytes:
    """The stored form."""
    assert state.descriptor.start < state.descriptor.end, "an empty range is never written down"
    assert state.lai >= 0, "indexes and positions count up from nothing"
    assert state.position >= 0, "indexes and positions count up from nothing"
    assert state.lease.holder or not state.lease.by_epoch, "an epoch-based lease has a holder"
    return _encoder.encode(state)


def decode_state(data: bytes) -> RangeState:
    """Read a stored state; a store whose state cannot be read must not serve."""
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StorageError("the stored state of a range cannot be read; restore this store from a snapshot") from error


def fewer_versions(before: RangeState, after: RangeState) -> int:
    """How many versions less a range has; 0 when it has as many or more, or has other bounds."""
    if before.descriptor is not after.descriptor or not before.stats or not after.stats:
        return 0
    return max(0, before.stats[VERSIONS] - after.stats[VERSIONS])


def add_stats(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...]:
    """Statistics are plain vectors, so that a command can carry their change."""
    if not right:
        return left
    if not left:
        return right
    if len(left) != len(right):  # spelled out: several times for every command
        raise InvariantViolation("A-stats", {"left": len(left), "right": len(right)})
    return tuple(map(add, left, right))
