"""Making segments: from the rows of a span, or from the segment that is there and what has changed since.

    from rows      every version of the span is walked once; what is live at the anchor becomes columns
    from columns   the batches of the older segment, with the changes up to the new anchor merged in: no row is walked

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
from slackwater.storage.columns.reading import Merge, PlanReader
from slackwater.storage.columns.segment import BATCH_ROWS, SegmentWriter
from slackwater.storage.intents import decode_intent, intents_in
from slackwater.storage.versions import suffix
from slackwater.storage.window import Window, in_window

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from slackwater.model.schema import TableSchema
    from slackwater.runtime.seam import Reader
    from slackwater.storage.columns.delta import Changes
    from slackwater.storage.columns.segment import Index, Segment

pa: Any = pyarrow
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

    made: Index
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
    keys: list[bytes] = []
    values: list[bytes] = []
    size = 0
    upto, above = end, MIN
    for block in visible_blocks(reader, start, end, ts=anchor, bound=anchor, keyed=True):
        above = max(above, block.newest)
        keys += block.keys
        values += block.values
        size += sum(map(len, block.values))
        if block.resume is None:
            break
        if len(keys) >= shape.batch_rows or size >= shape.batch_bytes:
            done = _add_rows(writer, decoder, keys, values, shape)
            yield size
            keys, values = keys[done:], values[done:]
            size = sum(map(len, values))
            if writer.rows >= shape.segment_rows:
                upto = block.resume
                break
    while keys:
        done = _add_rows(writer, decoder, keys, values, shape, last=True)
        keys, values = keys[done:], values[done:]
    yield size
    changed: list[bytes] = []
    if above > anchor:
        for found in in_window(reader, Window(start, upto, anchor, MAX), below=False):
            changed += found.keys
    assert not keys, "every row was written"
    index = writer.finish(upto)
    return Built(index, changed, writer.size)


def _add_rows(
    writer: SegmentWriter,
    decoder: BlockDecoder,
    keys: list[bytes],
    values: list[bytes],
    shape: Shape,
    *,
    last: bool = False,
) -> int:
    """Write one full batch, or the `last` one; how many rows that took."""
    sizes = np.cumsum(np.fromiter(map(len, values[: shape.batch_rows]), np.int64))
    count = min(len(sizes), int(np.searchsorted(sizes, shape.batch_bytes)) + 1)
    if count == len(keys) and not last:  # there is room for more
        return 0
    begins, plain = _divided(keys[:count])
    writer.add(decoder.decode(values[:count]).columns, begins, plain, stored_bytes=int(sizes[count - 1]))
    return count


def _divided(stored: list[bytes]) -> tuple[Any, Any]:
    """When each version was written, and its key, as Arrow arrays."""
    width = len(stored[0])
    if list(map(len, stored)).count(width) == len(stored):  # the rule in a table: no need to cut them one by one
        joined = np.frombuffer(b"".join(stored), np.uint8).reshape(-1, width)
        marks = np.ascontiguousarray(joined[:, -8:]).view(">u8").ravel().astype(np.uint64)
        offsets = np.arange(len(stored) + 1, dtype=np.int32) * (width - 8)
        keys = np.ascontiguousarray(joined[:, :-8])
        plain = pa.Array.from_buffers(pa.binary(), len(stored), [None, pa.py_buffer(offsets), pa.py_buffer(keys)])
    else:
        marks = np.frombuffer(b"".join([key[-8:] for key in stored]), ">u8").astype(np.uint64)
        plain = pa.array([key[:-8] for key in stored], pa.binary())
    return pa.array((~marks).astype(np.int64), pa.int64()), plain


def from_columns(
    segment: Segment,
    changes: Changes,
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
    places = plan.fit(segment)
    if places is None or segment.index.rows > 2 * shape.segment_rows:
        return None
    writer = SegmentWriter(newest, anchor=anchor, start=start, write=write)
    return _merged_batches(segment, changes, reader, plan, places, writer, Window(start, end, anchor, MAX), shape)


def _merged_batches(
    segment: Segment,
    changes: Changes,
    reader: Reader,
    plan: PlanReader,
    places: Sequence[int | None],
    writer: SegmentWriter,
    window: Window,
    shape: Shape,
) -> Generator[int, None, Built]:
    """Batch by batch; a batch that has grown is divided, one that has nothing left is left out."""
    firsts, anchor = segment.firsts, window.after
    for number in range(segment.batch_of(window.start), max(1, len(firsts))):
        behind = firsts[number + 1] if number + 1 < len(firsts) else segment.index.end
        low = max(window.start, firsts[number]) if number else window.start
        high = min(behind, window.end)
        picked = changes.visible(low, high, ts=anchor, bound=anchor)
        values = changes.values(reader, picked)
        merge = Merge(segment, number if firsts else None, picked, values, low=low, end=high)
        size = segment.index.batches[number].stored_bytes if firsts else 0
        columns, begins, keys = merge.columns(plan, places), merge.begins(), merge.keys()
        parts = max(1, -(-merge.rows // shape.batch_rows), -(-size // (2 * shape.batch_bytes)))
        rows = max(1, -(-merge.rows // parts))
        for at in range(0, merge.rows, rows):
            cut = [array.slice(at, rows) for array in (*columns, begins, keys)]
            writer.add(cut[:-2], cut[-2], cut[-1], stored_bytes=size // parts)
        yield size
        if high >= window.end:
            break
    above = suffix(anchor)
    changed = [stored for stored in changes.between(window.start, window.end) if stored[-8:] < above]
    index = writer.finish(window.end)
    return Built(index, changed, writer.size)
