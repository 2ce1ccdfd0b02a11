"""What a range feed says: blocks of versions, resolved timestamps, and why it ended.

    Changes   keys, timestamps, values (empty = deletion), and where asked for what each replaced
    Resolved  nothing new at or below this will ever come from this registration
    Ended     the last word, with a reason that says what the consumer does next

    Changes Changes Resolved(10) Changes Resolved(20) Changes Ended(RANGE_SPLIT, resolved=20)
    └───────────── (after, 10] is whole ┘ └─ (after, 20] is whole        └─ go on `after=20`

Versions travel as parallel columns, not as objects: one flush of a busy range is one `Changes`. `ChangedValue` is the view of
one row of it, for validators, scripts and people.

Interval ends: `after` is exclusive everywhere, `resolved` is inclusive. A consumer that resumes passes the resolved
timestamp it saw last as `after`, unchanged; a commit at `resolved + 1` is the first that it gets (pitfall 25).
"""

from __future__ import annotations

import enum
from typing import TypeAlias

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.errors import DecodeError
from slackwater.model.changes import ChangedValue, Changes, FeedItem, changes_of, joined

__all__ = [
    "EVENT_SIZE_MIN",
    "ChangedValue",
    "Changes",
    "EndReason",
    "Ended",
    "Event",
    "Next",
    "Resolved",
    "changes_of",
    "decode_event",
    "encode_event",
    "joined",
    "size_of",
]


class Next(enum.Enum):
    """What a consumer does after a feed has ended."""

    LOOK_UP = "look up the ranges again and register with each"
    AGAIN = "register again here or elsewhere"
    STOP = "resuming cannot help; start from a later timestamp"


class EndReason(enum.Enum):
    """Why a registration ended. All but one can be resumed from the resolved timestamp in `Ended`."""

    RANGE_SPLIT = "range split"
    RANGE_MERGED = "range merged"
    REPLICA_GONE = "replica gone"
    SLOW_CONSUMER = "slow consumer"
    LOG_TRIMMED = "log trimmed"  # the replica jumped ahead by a snapshot: what it skipped is in history only
    TOO_MANY_LOCKS = "too many locks"
    STALLED = "stalled"  # nothing closes here; another replica may know more
    CANCELED = "canceled"
    BELOW_GC_THRESHOLD = "below the GC threshold"

    @property
    def next(self) -> Next:
        """What the consumer does now."""
        if self in (EndReason.RANGE_SPLIT, EndReason.RANGE_MERGED, EndReason.REPLICA_GONE, EndReason.STALLED):
            return Next.LOOK_UP
        if self is EndReason.BELOW_GC_THRESHOLD:
            return Next.STOP
        return Next.AGAIN


class Resolved(FeedItem, frozen=True):
    """Every version with ts <= this in the registration's span has been sent; no new one will be."""

    ts: Timestamp


class Ended(FeedItem, frozen=True):
    """The registration is over."""

    reason: EndReason
    resolved: Timestamp
    """Resume with `after` at this: the last resolved timestamp sent before (or the registration's own `after`)."""
    detail: str = ""
    floor: Timestamp = MIN
    """Of one below the GC threshold: changes are complete above this, and reads too."""


Event: TypeAlias = Changes | Resolved | Ended

EVENT_SIZE_MIN = 16
"""What an event without rows costs in a buffer."""


def size_of(event: Event) -> int:
    """What an event costs in a buffer."""
    return event.size() if isinstance(event, Changes) else EVENT_SIZE_MIN


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """For the wire."""
    return _encoder.encode(event)


def decode_event(data: bytes) -> Event:
    """From the wire; anything else is a `DecodeError`."""
    try:
        event: Event = _decoder.decode(data)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise DecodeError("these bytes are not a feed event", reason=str(error)) from None
    if isinstance(event, Changes):
        event.check()
    return event
