"""Protected timestamps as every layer sees them: records, what they keep readable, and the one question about a span.

A record says: of these spans, keep what is live *at* this timestamp, or everything live at it or *after* it.

    history of k      1: put   2: delete   3: ── protected ──   4: put   5: put        now = 6, everything may go
    mode AT                                2 stays               4 goes   5 is live     k is readable at 3 and from 5 on
    mode AFTER                             2 stays               4 stays  5 is live     k is readable from 3 on

(The deletion at 2 shows nothing, so it goes too when nothing older is left to be hidden.)

`Record.spans` are exact: a range that they cover in part keeps that part and collects the rest (`kept_in`). What a range keeps
below its threshold is therefore a list of `Kept`, and a read there is served exactly if `retention.readable` says so.

`State` is all of it, as of one MVCC timestamp. `State.read_at` is what makes it useful: a protection that is not in it commits
later than that, with a deadline, and so cannot need what is older than `read_at − ttl`.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.model.spans import Span

if TYPE_CHECKING:
    from collections.abc import Iterable

RECORD_ID_BYTES = 16
OWNED = "protection"
"""The kind under which a job owns a protection; its `ref` is the id in hexadecimal digits."""
OWNED_BY_JOB = "job"
OWNED_BY_FEED = "feed"
"""The `meta_type` of a job's protection; its `meta` is the job's number."""


class Mode(enum.Enum):
    """Which versions a record keeps."""

    AT = "at"
    AFTER = "after"


class Record(msgspec.Struct, frozen=True):
    """One protected timestamp."""

    id: bytes
    ts: Timestamp
    mode: Mode
    meta_type: str
    """Which kind of owner it has: `job`, `feed`, `spark`, `user`; reconcilers know some kinds and leave the others alone."""
    meta: bytes
    """What identifies the owner, in a form that its reconciler reads."""
    spans: tuple[Span, ...]
    expires: Timestamp = MIN
    """Released at this time unless it was renewed; MIN: never."""
    created: Timestamp = MIN
    user: str = ""
    """The client that asked for it, by the name in its certificate; "" for one of the cluster's own or of an operator."""

    def overlaps(self, span: Span) -> bool:
        """Whether it keeps anything in `span`."""
        return any(s.overlaps(span) for s in self.spans)


class Metadata(msgspec.Struct, frozen=True):
    """The one row that every change of protections reads and writes."""

    version: int = 0
    """Raised by every change: an equal version means an equal list."""
    records: int = 0
    spans: int = 0
    records_max: int = 0
    """Limits: settings, not part of the row."""
    spans_max: int = 0


class State(msgspec.Struct, frozen=True):
    """All protections as of `read_at`."""

    metadata: Metadata
    records: tuple[Record, ...]
    read_at: Timestamp

    def over(self, span: Span) -> list[Record]:
        """The records that need history in this span."""
        return [record for record in self.records if record.overlaps(span)]


UNKNOWN = State(Metadata(), (), MIN)
"""Nothing has been read: unknown means no garbage collection."""


class Kept(msgspec.Struct, frozen=True, array_like=True, order=True):
    """A part of a range that stays readable below the threshold: at exactly `ts`, or from `ts` on."""

    start: bytes
    end: bytes
    ts: Timestamp
    after: bool = False

    def serves(self, ts: Timestamp) -> bool:
        """Whether a read at `ts` finds everything it needs."""
        return ts >= self.ts if self.after else ts == self.ts


def kept_in(records: Iterable[Record], span: Span) -> tuple[Kept, ...]:
    """What the records keep of a span, clipped to it; each once, in order."""
    found = {
        Kept(part.start, part.end, record.ts, record.mode is Mode.AFTER)
        for record in records
        for s in record.spans
        if (part := s.intersect(span)) is not None
    }
    return tuple(sorted(found))
