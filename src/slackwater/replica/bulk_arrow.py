"""Doing bulk reads: blocks of storage to Arrow IPC messages, on a snapshot, off the loop.

    storage.arrow.scan_arrow / storage.changes.scan_changes ──► RecordBatch ──pack──► Blocks
    storage.columns.reading.read_segment ──► the stored message, or a merged RecordBatch ──► Blocks

Decoders are kept by the bytes of their plan, which is the same for every chunk and range of one read: binding predicates
and laying out columns is done once per node and plan. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN
from slackwater.codec.bulk_arrow import pack
from slackwater.codec.changes_arrow import ChangeDecoder
from slackwater.codec.damage import damaged_row, first_damaged
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import ConflictError, DecodeError, SegmentDamaged, UsageError
from slackwater.hooks import probe, tap
from slackwater.model.scan_plan import decode_plan
from slackwater.protocol.range import requests
from slackwater.protocol.range.bulk import Blocks
from slackwater.replica.evaluate_bulk import counts
from slackwater.replica.fates import through
from slackwater.storage.arrow import count_rows, refuse_conflicts, scan_arrow
from slackwater.storage.changes import scan_changes
from slackwater.storage.columns.build import INTENTS_MAX
from slackwater.storage.columns.reading import PlanReader, read_segment
from slackwater.storage.versions import Version, ts_of, visible
from slackwater.storage.window import Window, in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.patches import Patch
    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import ArrowBlock
    from slackwater.storage.columns.delta import DeltaView
    from slackwater.storage.columns.shelf import SegmentPart
    from slackwater.storage.through import Through

PLANS_KEPT_MAX = 64
SOFT = 2
"""How many times the limit of an answer its first batch of a segment may have."""
assert SOFT >= 1, "a batch that fits an answer is one"
LOOKED_AT_ONCE = 1024
"""Rows decoded together when one that cannot be is looked for."""


@lru_cache(maxsize=PLANS_KEPT_MAX)
def _row_decoder(plan: bytes) -> BlockDecoder:
    found = decode_plan(plan)
    return BlockDecoder(found.schema(), {s.version: s for s in found.schemas}, found.columns, found.predicates)


@lru_cache(maxsize=PLANS_KEPT_MAX)
def _plan_reader(plan: bytes) -> PlanReader:
    return PlanReader(decode_plan(plan))


@lru_cache(maxsize=PLANS_KEPT_MAX)
def _change_decoder(plan: bytes, *, befores: bool) -> ChangeDecoder:
    found = decode_plan(plan)
    if found.predicates:
        raise UsageError("changes are read whole; filter them afterwards")
    return ChangeDecoder(found.schema(), {s.version: s for s in found.schemas}, columns=found.columns, befores=befores)


def read_all(bulk: BulkReads, reader: Reader) -> list[Result]:
    """The answers, in order; a read for which no limit is left says that it has to begin anew."""
    results: list[Result] = []
    rows, size = bulk.max_rows, bulk.max_bytes
    for number, read in enumerate(bulk.reads):
        if size <= 0 or (bulk.max_rows and rows <= 0):
            results.append(Blocks([], resume=read.request.start))
            continue
        try:
            done = _answer(read, bulk, number, reader, locked=bulk.locked, max_rows=rows, max_bytes=size)
        except ConflictError:
            if bulk.locked:
                raise
            done = _answer(read, bulk, number, reader, locked=True, max_rows=rows, max_bytes=size)
        results.append(done)
        rows, size = rows - done.rows_read, size - done.bytes_read
    assert len(results) == len(bulk.reads), "an answer for every read"
    return results


def _answer(
    read: BulkRead, bulk: BulkReads, number: int, reader: Reader, *, locked: bool, max_rows: int, max_bytes: int
) -> Blocks:
    """One answer: of a segment where there is one, up to the next one where there is not; through decided intents."""
    shown = through(reader, bulk.decided, bound=read.bound) if locked else None
    seen: Reader = reader if shown is None else shown
    start, until = read.request.start, read.request.end
    for part in bulk.parts.get(number, ()):
        if part.end <= start or part.kept.broken:
            continue
        if part.start > start:
            until = part.start
            break
        found = _from_segment(read, part, seen, shown, max_rows=max_rows, max_bytes=max_bytes)
        if found is not None:
            answer, remade = found
            bulk.segment_pages.append((part.kept, remade))
            tap("columns.read", read, seen, answer)
            return answer
        break
    answer = _read(read, until, seen, max_rows=max_rows, max_bytes=max_bytes)
    if isinstance(read.request, requests.ScanArrow):
        bulk.row_pages.append((read.request, answer.rows_read))
    return answer


def _from_segment(
    read: BulkRead, part: SegmentPart, reader: Reader, shown: Through | None, *, max_rows: int, max_bytes: int
) -> tuple[Blocks, int] | None:
    """An answer of a segment and its changes, and of how many rows batches were merged anew; None: it is made of rows, slower."""
    start, plan = read.request.start, _plan_reader(read.request.plan)
    packed: list[memoryview] = []
    patches: list[Patch] = []
    rows = rows_read = size = remade = 0
    upto = start
    try:
        segment = part.kept.opened()
        places = plan.fit(segment)
        changes = part.changes if shown is None else _with_shown(part, start, shown)
        if places is None or changes is None:
            probe("columns.not_for_this_read")
            return None
        for piece in read_segment(
            segment,
            changes,
            reader,
            plan,
            places,
            start=start,
            end=part.end,
            ts=read.ts,
            bound=read.bound,
            patches=isinstance(read.request, requests.ScanArrow) and read.request.patches,
        ):
            if not packed and (piece.bytes_read > SOFT * max_bytes or 0 < SOFT * max_rows < piece.rows_read):
                probe("columns.batch_too_large")
                return None
            refuse_conflicts(reader, upto, piece.upto, bound=read.bound)
            assert upto <= piece.upto <= part.end, "pieces follow each other inside the segment"
            upto = piece.upto
            rows += piece.rows
            rows_read += piece.rows_read
            size += piece.bytes_read
            remade += piece.remade
            if piece.rows:
                if piece.patch is not None:
                    patches.append(structs.replace(piece.patch, block=len(packed)))
                packed.append(piece.message)
            if size >= max_bytes or 0 < max_rows <= rows_read:
                break
    except SegmentDamaged as error:
        probe("columns.damaged")
        part.kept.broken = str(error)
    except DecodeError:  # a changed row: read with its key, it is named
        probe("columns.damaged_row")
    if upto == start:
        return None
    assert start < upto <= part.end, "an answer goes on inside the segment"
    assert rows <= rows_read, "a filter adds no rows"
    return Blocks(packed, rows, rows_read, size, upto if upto < read.request.end else None, patches), remade


def _with_shown(part: SegmentPart, start: bytes, shown: Through) -> DeltaView | None:
    """The changes of a part, and the intents there that count as versions; None: there are too many."""
    versions = shown.shown_in(start, part.end, limit=INTENTS_MAX)
    return None if versions is None else part.changes.also(versions) if versions else part.changes


def _read(read: BulkRead, until: bytes, reader: Reader, *, max_rows: int, max_bytes: int) -> Blocks:
    """An answer read from rows, up to where a segment begins."""
    if counts(read.request):
        return _count(read, until, reader, max_rows=max_rows, max_bytes=max_bytes)
    packed: list[memoryview] = []
    rows = rows_read = bytes_read = made = 0
    resume: bytes | None = None
    for block in _decodable(read, until, reader, max_rows=max_rows, max_bytes=max_bytes):
        rows_read += block.rows_read
        bytes_read += block.bytes_read
        resume = block.resume
        if block.batch.num_rows:
            rows += block.batch.num_rows
            packed.append(pack(block.batch))
            made += len(packed[-1])
            if made >= max_bytes:  # columns can be larger than what is stored: defaults of added ones are not
                break
    if resume is None and until < read.request.end:
        resume = until
    assert rows <= rows_read, "a filter adds no rows"
    assert resume is None or read.request.start < resume <= read.request.end, "an answer gets further, inside the span"
    return Blocks(packed, rows, rows_read, bytes_read, resume)


def _count(read: BulkRead, until: bytes, reader: Reader, *, max_rows: int, max_bytes: int) -> Blocks:
    """How many rows there are, as an answer without blocks."""
    start, end = read.request.start, read.request.end
    found = count_rows(
        reader,
        start,
        until,
        ts=read.ts,
        max_rows=max_rows,
        max_bytes=max_bytes,
        uncertain_upto=read.uncertain_upto,
    )
    resume = until if found.resume is None and until < end else found.resume
    assert resume is None or start < resume <= end, "a count gets further, inside the span"
    return Blocks([], found.rows, found.rows, found.size, resume)


def _decodable(read: BulkRead, until: bytes, reader: Reader, *, max_rows: int, max_bytes: int) -> Iterator[ArrowBlock]:
    """The blocks of a read. A row that cannot be decoded ends it with its key: blocks are decoded without keys."""
    start = read.request.start
    try:
        for block in _blocks(read, until, reader, max_rows=max_rows, max_bytes=max_bytes):
            yield block
            start = block.resume or until
    except DecodeError as error:
        raise _named(error, read, start, until, reader) from error


def _named(error: DecodeError, read: BulkRead, start: bytes, end: bytes, reader: Reader) -> DecodeError:
    """The error with the table and key of the first row in [start, end) that cannot be decoded."""
    probe("replica.damaged_row")
    decode, schema = _row_decoder(read.request.plan).decode, decode_plan(read.request.plan).schema()
    rows = _rows_of(read, start, end, reader)
    while chunk := list(islice(rows, LOOKED_AT_ONCE)):
        found = first_damaged(decode, [row.value for row in chunk])
        if found is not None:
            row, past = chunk[found[0]], isinstance(read.request, requests.ExportArrow)
            return damaged_row(schema, row.key, found[1], committed=row.ts if past else MIN)
    return error


def _rows_of(read: BulkRead, start: bytes, end: bytes, reader: Reader) -> Iterator[Version]:
    """What a read decodes, one by one, with keys."""
    if isinstance(read.request, requests.ScanArrow):
        yield from (version for version in visible(reader, start, end, ts=read.ts) if version.value)
        return
    window = Window(start, end, read.request.after, read.request.upto)
    for whole in in_window(reader, window, below=True):
        for stored, value in zip(whole.keys, whole.values, strict=True):
            if value:
                yield Version(stored[:-8], ts_of(stored), value)


def _blocks(read: BulkRead, until: bytes, reader: Reader, *, max_rows: int, max_bytes: int) -> Iterator[ArrowBlock]:
    request = read.request
    if isinstance(request, requests.ScanArrow):
        return scan_arrow(
            reader,
            request.start,
            until,
            ts=read.ts,
            decoder=_row_decoder(request.plan),
            max_rows=max_rows,
            max_bytes=max_bytes,
            uncertain_upto=read.uncertain_upto,
        )
    return scan_changes(
        reader,
        request.start,
        request.end,
        after=request.after,
        upto=request.upto,
        decoder=_change_decoder(request.plan, befores=request.before),
        before=request.before,
        max_rows=max_rows,
        max_bytes=max_bytes,
    )
