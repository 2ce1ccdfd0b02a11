"""Doing bulk reads: blocks of storage to Arrow IPC messages, on a snapshot, off the loop.

    storage.arrow.scan_arrow / storage.changes.scan_changes ──► RecordBatch ──pack──► Blocks

Decoders are kept by the bytes of their plan, which is the same for every chunk and range of one read: binding predicates
and laying out columns is done once per node and plan. Pure.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from slackwater.model import requests as rq
from slackwater.model.bulk import Blocks, decode_plan
from slackwater.model.bulk_arrow import pack
from slackwater.model.changes_arrow import ChangeDecoder
from slackwater.model.rows_arrow import BlockDecoder
from slackwater.storage.arrow import scan_arrow
from slackwater.storage.changes import scan_changes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.model.requests import Result
    from slackwater.replica.evaluate_bulk import BulkRead, BulkReads
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import ArrowBlock

PLANS_KEPT_MAX = 64


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
    for read in bulk.reads:
        if size <= 0 or (bulk.max_rows and rows <= 0):
            results.append(Blocks([], resume=read.request.start))
            continue
        done = _read(read, reader, max_rows=rows, max_bytes=size)
        results.append(done)
        rows, size = rows - done.rows_read, size - done.bytes_read
    return results


def _read(read: BulkRead, reader: Reader, *, max_rows: int, max_bytes: int) -> Blocks:
    packed: list[memoryview] = []
    rows = rows_read = bytes_read = made = 0
    resume: bytes | None = None
    for block in _blocks(read, reader, max_rows=max_rows, max_bytes=max_bytes):
        rows_read += block.rows_read
        bytes_read += block.bytes_read
        resume = block.resume
        if block.batch.num_rows:
            rows += block.batch.num_rows
            packed.append(pack(block.batch))
            made += len(packed[-1])
            if made >= max_bytes:  # columns can be larger than what is stored: defaults of added ones are not
                break
    return Blocks(packed, rows, rows_read, bytes_read, resume)


def _blocks(read: BulkRead, reader: Reader, *, max_rows: int, max_bytes: int) -> Iterator[ArrowBlock]:
    request = read.request
    if isinstance(request, rq.ScanArrow):
        return scan_arrow(
            reader,
            request.start,
            request.end,
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
