"""Making segments: from the rows of a span, or from the segment that is there and what has changed since.

    from rows      every version of the span is walked once; what is live at the anchor becomes columns
    from columns   the batches of the older segment, with the changes up to the new anchor merged in: no row is walked, and
                   where nothing has changed the stored bytes are copied

Both are generators that yield after every batch, so that the driver can let other work go first, on a snapshot that
stays the same throughout. What they return is the index of what they wrote, and the stored keys of every version above the
anchor that the snapshot has: the delta that the segment begins with.

An anchor must be final: nothing at or below it is written any more, and no intent is at or below it (`anchor_of`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import pyarrow

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.model.scan_plan import ScanPlan
from slackwater.storage.arrow import visible_blocks
from slackwater.storage.columns.reading import BatchMerge, PlanReader
from slackwater.storage.columns.segment import BATCH_ROWS, SegmentWriter
from slackwater.storage.intents import decode_intent, intents_in
from slackwater.storage.window import Window, in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from slackwater.model.schema import TableSchema
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import Block
    from slackwater.storage.columns.delta import DeltaView
    from slackwater.storage.columns.segment import Segment, SegmentIndex

pa: Any = pyarrow
Array = np.ndarray[Any, Any]
BATCH_BYTES = 2 << 20
"""Stored bytes in one batch at most, or one row."""
SEGMENT_ROWS = 1_000_000
"""Rows in one segment, about: a span with more has several."""
INTENTS_MAX = 4096
"""A span with more intents than this is being written: it gets its segment later."""
assert BATCH_ROWS <= SEGMENT_ROWS, "a segment holds at least one batch"


class Shape(NamedTuple):
    """How large batches and segments become."""

    batch_rows: int = BATCH_ROWS
    batch_bytes: int = BATCH_BYTES
    segment_rows: int = SEGMENT_ROWS


class Built(NamedTuple):
    """A segment that was written, and what its snapshot had above the anchor."""

    made: SegmentIndex
    changed: list[bytes]
    size: int
    """Bytes on disk."""


def anchor_of(reader: Reader, start: bytes, end: bytes, *, closed: Timestamp) -> Timestamp | None:
    """The highest timestamp at or below `closed` with no intent at or below it in the span; None: too many to tell."""
    lowest = closed
    for count, (_, raw) in enumerate(intents_in(reader, start, end)):
        if count >= INTENTS_MAX:
            return None
        intent = decode_intent(raw)
        lowest = min(lowest, Timestamp(intent.ts - 1))
    assert lowest <= closed, "an anchor is closed"
    return lowest if lowest > MIN else None


def from_rows(
    reader: Reader,
    schemas: Sequence[TableSchema],
    *,
    start: bytes,
    end: bytes,
    anchor: Timestamp,
    write: Callable[[bytes], object],
    shape: Shape,
) -> Generator[int, None, Built]:
    """Write the rows of [start, end) that are live at the anchor, or of the first part of it that is large enough."""
    newest = max(schemas, key=lambda schema: schema.version)
    decoder = BlockDecoder(newest, {schema.version: schema for schema in schemas})
    writer = SegmentWriter(newest, anchor=anchor, start=start, write=write)
    pending = _Pending(decoder, writer, shape)
    upto, above = end, MIN
    for block in visible_blocks(reader, start, end, ts=anchor, bound=anchor, keyed=True):
        above = max(above, block.newest)
        pending.add(block)
        if block.resume is None:
            break
        if pending.rows > shape.batch_rows or pending.size > shape.batch_bytes:
            yield pending.write()
            if writer.rows >= shape.segment_rows:
                upto = block.resume
                break
    yield pending.write(last=True)
    changed: list[bytes] = []
    if above > anchor:
        for found in in_window(reader, Window(start, upto, anchor, MAX), below=False):
            changed += found.keys
    index = writer.finish(upto)
    assert index.rows == writer.rows, "every row that was read is in the segment (I-38)"
    assert not pending.rows, "no row is left out"
    pa.default_memory_pool().release_unused()  # what batches took is not needed for long
    assert start < index.end <= end, "a segment is of a part of the span that was asked for"
    return Built(index, changed, writer.size)


class _Pending:
    """Rows on their way into a segment, joined block by block while they are in the processor's cache."""

    def __init__(self, decoder: BlockDecoder, writer: SegmentWriter, shape: Shape) -> None:
        self._decoder = decoder
        self._writer = writer
        self._shape = shape
        self.rows = 0
        self.size = 0
        """Bytes of values."""
        self._values: list[bytes | memoryview] = []
        self._lengths: list[Array] = []
        self._keys: list[bytes | memoryview] = []
        self._widths: list[Array] = []

    def add(self, block: Block) -> None:
        """Take a block."""
        count = len(block.values)
        if not count:
            return
        assert len(block.keys) == count, "a key for every row"
        joined = b"".join(block.values)
        self._values.append(joined)
        self._lengths.append(np.fromiter(map(len, block.values), np.int64, count))
        self._keys.append(b"".join(block.keys))
        even = block.width
        widths = np.full(count, even) if even else np.fromiter(map(len, block.keys), np.int64, count)
        self._widths.append(widths)
        self.rows += count
        self.size += len(joined)

    def write(self, *, last: bool = False) -> int:
        """Write full batches, and with `last` what is left; the bytes that took."""
        if not self.rows:
            return 0
        before, shape = self.size, self._shape
        values, ends = memoryview(b"".join(self._values)), _ends(self._lengths)
        keys, marks = memoryview(b"".join(self._keys)), _ends(self._widths)
        at = 0
        while at < self.rows:
            room = int(np.searchsorted(ends, ends[at] + shape.batch_bytes, "left"))
            upto = min(self.rows, at + shape.batch_rows, max(room, at + 1))
            assert at < upto <= self.rows, "a batch holds a row"
            if upto == self.rows and not last:  # there is room for more
                break
            columns = self._decoder.decode_spans(values, ends[at:upto], ends[at + 1 : upto + 1]).columns
            begins, plain = _divided(keys, marks[at : upto + 1])
            self._writer.add(columns, begins, plain, stored_bytes=int(ends[upto] - ends[at]))
            at = upto
        self._values, self._lengths = [values[ends[at] :]], [np.diff(ends[at:])]
        self._keys, self._widths = [keys[marks[at] :]], [np.diff(marks[at:])]
        self.rows, self.size = self.rows - at, int(ends[-1] - ends[at])
        assert not (last and self.rows), "every row was written"
        return before - self.size


def _ends(lengths: list[Array]) -> Array:
    """Where things of these lengths lie, one after the other."""
    whole = np.concatenate(lengths)
    found = np.zeros(len(whole) + 1, np.int64)
    np.cumsum(whole, out=found[1:])
    return found


def _divided(stored: memoryview, bounds: Array) -> tuple[Any, Any]:
    """When each version was written, and its key, as Arrow arrays: of stored keys that lie between these bounds."""
    data = np.frombuffer(stored, np.uint8)
    widths = np.diff(bounds)
    assert int(widths.min()) >= 8, "a stored key ends with its timestamp"
    count, width = len(widths), int(widths[0])
    if (widths == width).all():  # the rule in a table: no need to cut them one by one
        joined = data[bounds[0] : bounds[-1]].reshape(-1, width)
        marks = np.ascontiguousarray(joined[:, -8:]).view(">u8").ravel().astype(np.uint64)
        offsets = np.arange(count + 1, dtype=np.int32) * (width - 8)
        keys = np.ascontiguousarray(joined[:, :-8])
        plain = pa.Array.from_buffers(pa.binary(), count, [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
    else:
        marks = data[(bounds[1:] - 8)[:, None] + np.arange(8)].view(">u8").ravel().astype(np.uint64)
        cut = zip(bounds[:-1].tolist(), (bounds[1:] - 8).tolist(), strict=True)
        plain = pa.array([bytes(stored[low:high]) for low, high in cut], pa.binary())
    assert len(plain) == len(marks) == count, "a key and a time for every row"
    return pa.array((~marks).astype(np.int64), pa.int64()), plain


def from_columns(
    segment: Segment,
    changes: DeltaView,
    reader: Reader,
    schemas: Sequence[TableSchema],
    *,
    start: bytes,
    end: bytes,
    anchor: Timestamp,
    write: Callable[[bytes], object],
    shape: Shape,
) -> Generator[int, None, Built] | None:
    """Write the rows of [start, end), a part of the segment's span, at a later anchor; None: rows have to be walked."""
    newest = max(schemas, key=lambda schema: schema.version)
    plan = PlanReader(ScanPlan(tuple(schemas), newest.version))
    assert segment.anchor <= anchor, "a segment is made anew at a later anchor"
    assert segment.index.start <= start, "a segment is made anew of a part of its span"
    assert end <= segment.index.end, "a segment is made anew of a part of its span"
    places = plan.fit(segment)
    if places is None or segment.index.rows > 2 * shape.segment_rows:
        return None
    writer = SegmentWriter(newest, anchor=anchor, start=start, write=write)
    return _merged_batches(segment, changes, reader, plan, places, writer, Window(start, end, anchor, MAX), shape)


def _merged_batches(
    segment: Segment,
    changes: DeltaView,
    reader: Reader,
    plan: PlanReader,
    places: Sequence[int | None],
    writer: SegmentWriter,
    window: Window,
    shape: Shape,
) -> Generator[int, None, Built]:
    """Batch by batch; one of which nothing has changed goes over as it is, one that has nothing left is left out."""
    firsts, anchor = segment.firsts, window.after
    for number in range(segment.batch_of(window.start), max(1, len(firsts))):
        low = max(window.start, firsts[number]) if number else window.start
        high = min(segment.end_of(number), window.end)
        assert low <= high, "a batch lies inside the span"
        picked = changes.visible(firsts, number, low, high, ts=anchor, bound=anchor)
        size = segment.index.batches[number].stored_bytes if firsts else 0
        if not picked and writer.takes(segment, number, low, high, rows=shape.batch_rows, size=2 * shape.batch_bytes):
            writer.add_stored(segment, number)
        else:
            values = changes.values(reader, picked)
            merge = BatchMerge(segment, number if firsts else None, picked, values, low=low, end=high)
            _add_merged(writer, merge, plan, places, shape, size)
        yield size
        if high >= window.end:
            break
    changed = changes.above(anchor, window.start, window.end)
    index = writer.finish(window.end)
    pa.default_memory_pool().release_unused()
    assert index.start == window.start, "a segment that is made anew is of the same span"
    return Built(index, changed, writer.size)


def _add_merged(
    writer: SegmentWriter, merge: BatchMerge, plan: PlanReader, places: Sequence[int | None], shape: Shape, size: int
) -> None:
    """Add what has become of a batch of so many stored bytes; one that has grown is divided."""
    columns, begins, keys = merge.columns(plan, places), merge.begins(), merge.keys()
    parts = max(1, -(-merge.rows // shape.batch_rows), -(-size // (2 * shape.batch_bytes)))
    rows = max(1, -(-merge.rows // parts))
    for at in range(0, merge.rows, rows):
        cut = [array.slice(at, rows) for array in (*columns, begins, keys)]
        writer.add(cut[:-2], cut[-2], cut[-1], stored_bytes=size // parts)
