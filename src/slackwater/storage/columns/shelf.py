"""The segments of one store: which spans they cover, what has changed there since, and how that outlives a crash.

    keys        [──────── 4 ────────)[──── 7 ────)          [──── 9 ────)      disjoint, in order
    anchor       20                   31          rows only   17
    delta        3 keys               none                    88 keys

What is remembered is in the engine itself, in its local family: a record for each segment, and for each batch that writes into
its span the stored keys of what it wrote, *in that batch*. So after a crash, which leaves a prefix of the batches, segments
and deltas are exactly as old as the rows are; and whatever clears the rows of a span, because its replica was removed or
replaced, clears the segment's record in the same batch. The files are beside the engine and durable before they are recorded.

    file without record     the crash came before the record was durable: removed when the store starts
    record without file     the file was deleted: forgotten when the store starts
    damaged file            found by its checksums: forgotten, and made again; rows are read meanwhile

When may a read at T use a segment? When its anchor A is at or below T, and at or above what has been collected: a deletion in
(A, T] must still be told by the delta or the rows. `find` is called in the step in which the read's snapshot is taken; the
delta of that step is all that the snapshot has above the anchor.

Owned by the loop's thread. `Kept.opened` alone may be called on another one.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

import msgspec
from msgspec import structs

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import (
    INDEX_BYTES,
    TABLE,
    VERSION_BYTES,
    column_delta,
    column_deltas_span,
    column_segment,
    column_segments_span,
)
from slackwater.errors import SegmentDamaged, StorageError
from slackwater.hooks import level, probe
from slackwater.runtime.seam import Family
from slackwater.settings import describe
from slackwater.storage.columns.delta import Delta, DeltaView, Room

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from slackwater.runtime.seam import Engine, Files, Reader
    from slackwater.storage.batch import WriteBatch
    from slackwater.storage.columns.build import Built
    from slackwater.storage.columns.segment import Segment

DELTA_MIN = 4096
"""So many changes are always kept track of, however small the segment is."""
DELTA_SHARE = 4
"""A segment of which one row in so many has changed is of no use any more."""
MAKING_MAX = 1 << 17
"""Changes during the making of a segment: with more, the span is being loaded, and the segment comes later."""
assert MAKING_MAX >= DELTA_MIN, "what is always kept track of does not spoil a segment in the making"
assert describe("columns.delta_percent").safe[1] <= 100 / DELTA_SHARE, "a segment can be made anew before it is worn"
LOADED_AT_ONCE = 256
WANTED_MAX = 64
WRITTEN_MAX = 4096
"""Indexes of which it is known when they were last written."""
FINDINGS_MAX = 16


class SegmentRecord(msgspec.Struct, frozen=True, array_like=True):
    """What a store remembers of a segment."""

    number: int
    start: bytes
    end: bytes
    """The span it is used for, which may be smaller than the one it was made of."""
    anchor: int
    rows: int
    size: int
    version: int = 0
    """Of its table; 0: not known."""


_encoder = msgspec.msgpack.Encoder()
_records = msgspec.msgpack.Decoder(SegmentRecord)
_keys = msgspec.msgpack.Decoder(list[bytes])


class KeptSegment:
    """One segment of a store."""

    __slots__ = ("_files", "_segment", "broken", "delta", "parts", "record", "remade_rows", "uses")

    def __init__(self, files: Files, record: SegmentRecord, delta: Delta, *, parts: int) -> None:
        self._files = files
        self.record = record
        self.delta = delta
        self.parts = parts
        """Parts of its delta that were written down."""
        self.broken = ""
        """Why it cannot be used any more."""
        self.uses = 0
        """Pages that came from it since it was made, or since the store began."""
        self.remade_rows = 0
        """Rows of batches into which reads have merged changes that no read before had merged."""
        self._segment: Segment | None = None

    @property
    def anchor(self) -> Timestamp:
        """The timestamp at which the segment shows its rows."""
        return Timestamp(self.record.anchor)

    @property
    def name(self) -> str:
        """The name of the segment's file."""
        return file_name(self.record.number)

    @property
    def worn(self) -> bool:
        """Whether more has changed than is worth keeping track of."""
        return len(self.delta) > self.worn_at

    @property
    def worn_at(self) -> int:
        """How many changes are worth keeping track of."""
        return max(DELTA_MIN, self.record.rows // DELTA_SHARE)

    def opened(self) -> Segment:
        """The segment, opened when it is first wanted; on any thread."""
        from slackwater.storage.columns.segment import Segment

        if self._segment is None:
            try:
                self._segment = Segment(self._files.open(self.name))
            except StorageError as error:
                raise SegmentDamaged(f"a segment cannot be opened: {error}") from error
        return self._segment

    def status(self) -> str:
        """For scripts and logs."""
        r = self.record
        return f"segment {r.number} anchor={r.anchor} rows={r.rows} bytes={r.size} changed={len(self.delta)}"


class SegmentPart(NamedTuple):
    """A segment for a read: where it covers the read's span, and what has changed up to the read's snapshot."""

    kept: KeptSegment
    start: bytes
    end: bytes
    changes: DeltaView


class Making:
    """A span of which a segment is being made, and what was written there meanwhile."""

    __slots__ = ("end", "number", "spoiled", "start", "stored")

    def __init__(self, number: int, start: bytes, end: bytes) -> None:
        self.number = number
        self.start = start
        self.end = end
        self.stored: list[bytes] = []
        self.spoiled = False
        """Whether its rows were cleared, or so much was written that it is of no use."""


class Noted(NamedTuple):
    """What a batch does to segments, once it is written."""

    changed: list[tuple[KeptSegment | Making, list[bytes]]]
    cleared: list[tuple[bytes, bytes]]
    gone: list[KeptSegment]
    cut: list[tuple[KeptSegment, SegmentRecord]]


NOTHING = Noted([], [], [], [])


class Shelf:
    """The segments that one store keeps."""

    def __init__(self, files: Files) -> None:
        self._files = files
        self._starts: list[bytes] = []
        self._kept: list[KeptSegment] = []
        self._makings: list[Making] = []
        self._next = 1
        self._retired: list[KeptSegment] = []
        self._room = Room(files.guard)
        self.wanted: dict[int, int] = {}
        """By table: how many reads would have been cheaper with segments."""
        self.on_want: Callable[[], None] = lambda: None
        """Told when a read had to walk many rows of a table that was not wanted before."""
        self._writes = 0
        self._written: dict[bytes, int] = {}
        """By the first bytes of an index's keys: the number of the last batch that wrote there."""
        self.findings: list[str] = []
        """What an operator should know; the caller that tells takes it."""
        self.pages = 0
        """Pages of scans that came from segments."""
        self.row_pages = 0
        """Pages of scans that were made of rows."""
        self.made = 0
        self.making_s = 0.0
        """How long pieces of work that made segments took, without the pauses between them."""
        self.damaged = 0
        self.damage = ""
        """What was wrong with the last one that was damaged."""

    def __iter__(self) -> Iterator[KeptSegment]:
        return iter(self._kept)

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return sum(kept.record.size for kept in self._kept)

    # --- life ----------------------------------------------------------------------------------------------------------

    def load(self, engine: Engine, batch: WriteBatch) -> None:
        """Take up what is recorded and there; what is only one of the two goes."""
        names = set(self._files.names())
        records = [
            _records.decode(raw) for raw in _values(engine, column_segments_span().start, column_segments_span().end)
        ]
        numbers = [int(name, 16) for name in names]
        self._next = 1 + max([*numbers, *(record.number for record in records)], default=0)
        for record in sorted(records, key=lambda record: record.start):
            if file_name(record.number) not in names:
                probe("columns.file_missing")
                _forget(batch, record.number)
                continue
            names.discard(file_name(record.number))
            span = column_deltas_span(record.number)
            parts = [_keys.decode(raw) for raw in _values(engine, span.start, span.end)]
            self._insert(
                KeptSegment(
                    self._files, record, Delta((k for part in parts for k in part), self._room), parts=len(parts)
                )
            )
        for name in sorted(names):
            probe("columns.file_unrecorded")
            self._files.remove(name)

    def begin(self, start: bytes, end: bytes) -> Making:
        """A segment of this span is about to be made from a snapshot of this moment."""
        assert start < end, "a segment is of a span"
        making = Making(self._next, start, end)
        assert all(kept.record.number < making.number for kept in self._kept), "numbers of files are used once"
        self._next += 1
        self._makings.append(making)
        return making

    def end(self, making: Making) -> None:
        """End the making of a segment."""
        self._makings.remove(making)

    def install(self, making: Making, built: Built, batch: WriteBatch) -> tuple[KeptSegment, Noted]:
        """Put the record of a finished segment into a batch that is written in this step; then `installed`."""
        index = built.made
        record = SegmentRecord(
            making.number, index.start, index.end, index.anchor, index.rows, built.size, index.schema.version
        )
        assert making.start == record.start < record.end <= making.end, "a segment is of what was asked for"
        stored = [s for s in making.stored if index.start <= s[:-VERSION_BYTES] < index.end]
        delta = Delta(dict.fromkeys([*built.changed, *stored]), self._room)
        kept = KeptSegment(self._files, record, delta, parts=int(bool(delta)))
        assert all(index.start <= s[:-VERSION_BYTES] < index.end for s in delta.stored[:1]), (
            "changes are of the segment's span"
        )
        batch.put(Family.LOCAL, column_segment(record.number), _encoder.encode(record))
        if delta:
            batch.put(Family.LOCAL, column_delta(record.number, 0), _encoder.encode(delta.stored))
        replaced = Noted([], [], [], [])
        self._take_out(batch, index.start, index.end, replaced)
        return kept, replaced

    def installed(self, kept: KeptSegment, replaced: Noted) -> None:
        """Put a segment whose record was written in the place of what it covers."""
        assert all(kept.record.number != other.record.number for other in self._kept), "a segment is installed once"
        self._taken_out(replaced)
        self._insert(kept)
        assert all(one.record.end <= other.record.start for one, other in pairwise(self._kept)), (
            "segments do not overlap"
        )
        self.made += 1
        level("columns.segments", len(self._kept), 1 << 20)

    def drop(self, kept: KeptSegment, batch: WriteBatch, reason: str) -> None:
        """Forget a segment; the batch is written in this step."""
        if kept in self._kept:
            probe("columns.dropped")
            _forget(batch, kept.record.number)
            self._remove(kept)
            if kept.broken:
                self.damaged += 1
                self.damage = reason
                self.findings.append(f"a file of columns was dropped and will be made again: {reason}")
                del self.findings[:-FINDINGS_MAX]

    def anchored(self, kept: KeptSegment, anchor: Timestamp, batch: WriteBatch) -> None:
        """Move a segment's anchor up, because nothing has changed since: it is as good as made there."""
        assert anchor >= kept.anchor, "an anchor only moves on"
        assert not kept.delta, "a segment moves on only where nothing has changed"
        kept.record = structs.replace(kept.record, anchor=anchor)
        batch.put(Family.LOCAL, column_segment(kept.record.number), _encoder.encode(kept.record))

    def flushing(self) -> list[KeptSegment]:
        """Segments whose files are not needed once everything written so far is durable."""
        retired, self._retired = self._retired, []
        return retired

    def flushed(self, retired: list[KeptSegment], *, durable: bool) -> None:
        """Remove those files, or try again after the next flush."""
        if not durable:
            self._retired += retired
            return
        for kept in retired:
            self._files.remove(kept.name)

    # --- reading -------------------------------------------------------------------------------------------------------

    def find(self, start: bytes, end: bytes, *, ts: Timestamp, threshold: Timestamp) -> list[SegmentPart]:
        """The segments that a read of [start, end) at `ts` can use, in order."""
        return [
            SegmentPart(kept, max(start, kept.record.start), min(end, kept.record.end), kept.delta.frozen())
            for kept in self.overlapping(start, end)
            if threshold <= kept.anchor <= ts and not kept.broken
        ]

    def want(self, table_id: int) -> None:
        """A read of a table had to walk many rows."""
        before = self.wanted.pop(table_id, 0)
        self.wanted[table_id] = before + 1
        if not before:
            self.on_want()
        while len(self.wanted) > WANTED_MAX:
            del self.wanted[next(iter(self.wanted))]
        assert table_id in self.wanted, "the table that was just wanted is remembered"

    def last_write(self, start: bytes) -> int:
        """The number of the last batch that wrote into the index whose span begins here; 0: none that is known."""
        return self._written.get(start, 0)

    def overlapping(self, start: bytes, end: bytes) -> list[KeptSegment]:
        """Segments with a key in [start, end), in order."""
        first = max(0, bisect_right(self._starts, start) - 1)
        last = bisect_left(self._starts, end)
        return [kept for kept in self._kept[first:last] if kept.record.end > start]

    # --- writing -------------------------------------------------------------------------------------------------------

    def note(self, batch: WriteBatch) -> Noted:
        """Before a batch is written: add to it what is to be remembered of it. Then `noted`, or nothing if it failed."""
        ranges, data = batch.ranges[Family.DATA], batch.writes[Family.DATA]
        if data:
            self._count(data)
        if not self._kept and not self._makings:
            return NOTHING
        if not data and not ranges:
            return NOTHING
        noted = Noted([], list(ranges), [], [])
        for start, end in ranges:
            self._take_out(batch, start, end, noted)
        if data:
            self._change(batch, [stored for stored, value in data.items() if value is not None], noted)
        return noted

    def _count(self, data: dict[bytes, bytes | None]) -> None:
        """Remember which indexes a batch writes: a table beside one that is written all the time may be quiet.

        A batch that begins and ends in one index is taken for one of that index alone: a guess that costs no walk of its keys,
        and at worst a segment that is made earlier than it is worth.
        """
        self._writes += 1
        first, last = next(iter(data))[:INDEX_BYTES], next(reversed(data))[:INDEX_BYTES]
        for index in (first,) if first == last else {stored[:INDEX_BYTES] for stored in data}:
            if index[:1] == TABLE:
                self._written.pop(index, None)
                self._written[index] = self._writes
        while len(self._written) > WRITTEN_MAX:
            del self._written[next(iter(self._written))]

    def noted(self, noted: Noted) -> None:
        """The batch is written."""
        for target, stored in noted.changed:
            if isinstance(target, KeptSegment):
                target.parts += 1
                target.delta.stored += stored
            else:
                target.stored += stored
                target.spoiled |= len(target.stored) > MAKING_MAX
        for start, end in noted.cleared:
            for making in self._makings:
                making.spoiled |= making.start < end and start < making.end
        self._taken_out(noted)

    def _taken_out(self, noted: Noted) -> None:
        """Spans were taken out of segments."""
        for kept, record in noted.cut:
            if kept not in noted.gone:
                self._kept.remove(kept)
                self._starts.remove(kept.record.start)
                kept.record = record
                self._insert(kept)
        for kept in noted.gone:
            self._remove(kept)

    def _change(self, batch: WriteBatch, stored: list[bytes], noted: Noted) -> None:
        """New versions: they go into the deltas of the segments that cover them."""
        if not stored:
            return
        stored.sort()
        keys = [version[:-VERSION_BYTES] for version in stored]  # in the same order: keys are prefix-free
        assert keys[0] <= keys[-1], "keys are in the order of their versions"
        for kept in self.overlapping(keys[0], keys[-1] + b"\x00"):
            if kept in noted.gone:
                continue
            found = stored[bisect_left(keys, kept.record.start) : bisect_left(keys, kept.record.end)]
            if not found:
                continue
            if kept.worn:
                probe("columns.worn")
                _forget(batch, kept.record.number)
                noted.gone.append(kept)
                continue
            batch.put(Family.LOCAL, column_delta(kept.record.number, kept.parts), _encoder.encode(found))
            noted.changed.append((kept, found))
        for making in self._makings:
            found = stored[bisect_left(keys, making.start) : bisect_left(keys, making.end)]
            if found:
                noted.changed.append((making, found))

    def _take_out(self, batch: WriteBatch, start: bytes, end: bytes, noted: Noted) -> None:
        """A span is cleared, or another segment covers it: what is left at one side of it stays in use."""
        for kept in self.overlapping(start, end):
            record = next((cut for other, cut in reversed(noted.cut) if other is kept), kept.record)
            if kept in noted.gone or record.end <= start or end <= record.start:
                continue
            left, right = record.start < start, end < record.end
            if left is not right:
                probe("columns.cut")
                record = structs.replace(record, end=start) if left else structs.replace(record, start=end)
                assert record.start < record.end, "what is left of a segment holds keys"
                batch.put(Family.LOCAL, column_segment(record.number), _encoder.encode(record))
                noted.cut.append((kept, record))
            else:
                probe("columns.taken_out")
                _forget(batch, record.number)
                noted.gone.append(kept)

    def _insert(self, kept: KeptSegment) -> None:
        at = bisect_left(self._starts, kept.record.start)
        self._starts.insert(at, kept.record.start)
        self._kept.insert(at, kept)
        assert at == 0 or self._kept[at - 1].record.end <= kept.record.start, "segments do not overlap"
        assert kept.record.start < kept.record.end, "a segment is of a span"
        assert len(self._starts) == len(self._kept), "a start for every segment"

    def _remove(self, kept: KeptSegment) -> None:
        at = self._kept.index(kept)
        del self._kept[at], self._starts[at]
        assert len(self._starts) == len(self._kept), "a start for every segment"
        assert kept not in self._retired, "a file is removed once"
        self._retired.append(kept)
        kept.delta.close()

    def status(self) -> str:
        """One line for scripts, logs and the console."""
        changed = sum(len(kept.delta) for kept in self._kept)
        held = f"segments={len(self._kept)} bytes={self.size} changed={changed}"
        return f"columns {held} pages={self.pages} of_rows={self.row_pages}"


def file_name(number: int) -> str:
    """The name of a segment's file."""
    return f"{number:016x}"


def _forget(batch: WriteBatch, number: int) -> None:
    batch.delete(Family.LOCAL, column_segment(number))
    span = column_deltas_span(number)
    batch.delete_range(Family.LOCAL, span.start, span.end)


def _values(reader: Reader, start: bytes, end: bytes) -> list[bytes]:
    """Every value of a span of the local family."""
    cursor = reader.cursor(Family.LOCAL, start=start, end=end)
    found: list[bytes] = []
    while True:
        keys, values = cursor.chunk(LOADED_AT_ONCE)
        if not keys:
            return found
        found += values
