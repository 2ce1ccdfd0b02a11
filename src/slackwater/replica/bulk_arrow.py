"""Doing bulk reads: blocks of storage to Arrow IPC messages, on a snapshot, off the loop.

    storage.arrow.scan_arrow / storage.changes.scan_changes ──► RecordBatch ──pack──► Blocks

Decoders are kept by the bytes of their plan, which is the same for every chunk and range of one read: binding predicates
and laying out columns is done once per node and plan. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import islice
from typing import TYPE_CHECKING

from slackwater.clock.timestamp import MIN
from slackwater.codec.bulk_arrow import pack
from slackwater.codec.changes_arrow import ChangeDecoder
from slackwater.codec.damage import damaged_row, first_damaged
from slackwater.codec.rows_arrow import BlockDecoder
from slackwater.errors import ConflictError, DecodeError
from slackwater.hooks import probe
from slackwater.protocol.range import requests as rq
from slackwater.protocol.range.bulk import Blocks, decode_plan
from slackwater.replica.fates import through
from slackwater.storage.arrow import refuse_conflicts, scan_arrow
from slackwater.storage.changes import scan_changes
from slackwater.storage.column_cache import KeptBlock
from slackwater.storage.versions import Version, ts_of, visible
from slackwater.storage.window import Window, in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.protocol.range.requests import Result
    from slackwater.replica.evaluate_bulk import BulkRead, BulkReads, Filling
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import ArrowBlock
    from slackwater.storage.through import Through

PLANS_KEPT_MAX = 64
LOOKED_AT_ONCE = 1024
"""Rows decoded together when one that cannot be is looked for."""


@lru_cache(maxsize=PLANS_KEPT_MAX)
def _row_decoder(plan: bytes) -> BlockDecoder:
    found = decode_plan(plan)
    return BlockDecoder(found.schema(), {s.version: s for s in found.schemas}, found.columns, found.predicates)


@lru_cache(maxsize=PLANS_KEPT_MAX)
def _change_decoder(plan: bytes) -> ChangeDecoder:
    return ChangeDecoder(decode_plan(plan))


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
    return results


def _answer(
    read: BulkRead, bulk: BulkReads, number: int, reader: Reader, *, locked: bool, max_rows: int, max_bytes: int
) -> Blocks:
    """One answer: of kept blocks where there are any, and through the intents of decided transactions.

    What is read through intents is not kept: they become versions soon, and are written anew then.
    """
    filling = bulk.fillings.get(number)
    shown = through(reader, bulk.decided, bound=read.bound) if locked else None
    seen: Reader = reader if shown is None else shown
    if filling is not None and filling.found.blocks:
        done = _reuse(read, filling.found.blocks, seen, shown, max_rows=max_rows)
        if done is not None:
            return done
        filling = None
    answer = _read(read, filling, seen, max_rows=max_rows, max_bytes=max_bytes)
    if shown is not None and shown.shown and filling is not None:
        filling.made.clear()
    return answer


def _reuse(
    read: BulkRead, kept: list[KeptBlock], reader: Reader, shown: Through | None, *, max_rows: int
) -> Blocks | None:
    """An answer made of blocks that are kept. They hold no intents: whether there are any has to be looked up.

    None when an intent in their span counts as a version: then they are not all there is.
    """
    used: list[KeptBlock] = []
    rows_read = bytes_read = 0
    for block in kept:
        used.append(block)
        rows_read += block.rows_read
        bytes_read += block.bytes_read
        if max_rows and rows_read >= max_rows:
            break
    upto = used[-1].end
    if shown is not None and shown.shows_any(read.request.start, upto):
        return None
    refuse_conflicts(reader, read.request.start, upto, bound=read.bound)
    rows = sum(block.rows for block in used)
    resume = upto if upto < read.request.end else None
    return Blocks([block.message for block in used], rows, rows_read, bytes_read, resume)


def _read(read: BulkRead, filling: Filling | None, reader: Reader, *, max_rows: int, max_bytes: int) -> Blocks:
    """An answer read from the store, up to where the next block is kept; notes what may be kept of it."""
    packed: list[memoryview] = []
    rows = rows_read = bytes_read = made = 0
    resume: bytes | None = None
    start, end = read.request.start, read.request.end
    until = end if filling is None else filling.found.until
    for block in _decodable(read, until, reader, max_rows=max_rows, max_bytes=max_bytes):
        rows_read += block.rows_read
        bytes_read += block.bytes_read
        resume = block.resume
        if block.batch.num_rows:
            rows += block.batch.num_rows
            packed.append(pack(block.batch))
            made += len(packed[-1])
            if filling is not None and block.newest <= read.ts:
                upto = resume or until
                filling.made.append(
                    KeptBlock(
                        start, upto, packed[-1], block.batch.num_rows, block.rows_read, block.bytes_read, block.newest
                    )
                )
            if made >= max_bytes:  # columns can be larger than what is stored: defaults of added ones are not
                break
        start = resume or until
    if resume is None and until < end:
        resume = until
    return Blocks(packed, rows, rows_read, bytes_read, resume)


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
            row, past = chunk[found[0]], isinstance(read.request, rq.ExportArrow)
            return damaged_row(schema, row.key, found[1], committed=row.ts if past else MIN)
    return error


def _rows_of(read: BulkRead, start: bytes, end: bytes, reader: Reader) -> Iterator[Version]:
    """What a read decodes, one by one, with keys."""
    if isinstance(read.request, rq.ScanArrow):
        yield from (version for version in visible(reader, start, end, ts=read.ts) if version.value)
        return
    window = Window(start, end, read.request.after, read.request.upto)
    for whole in in_window(reader, window, below=True):
        for stored, value in zip(whole.keys, whole.values, strict=True):
            if value:
                yield Version(stored[:-8], ts_of(stored), value)


def _blocks(read: BulkRead, until: bytes, reader: Reader, *, max_rows: int, max_bytes: int) -> Iterator[ArrowBlock]:
    request = read.request
    if isinstance(request, rq.ScanArrow):
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
        decoder=_change_decoder(request.plan),
        before=request.before,
        max_rows=max_rows,
        max_bytes=max_bytes,
    )
