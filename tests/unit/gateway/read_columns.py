"""Bulk reads in chunks: any span, any number of ranges, one timestamp.

    read_columns(kv, ScanArrow(start, end, plan), ts=t)
      │ chunk 1  [start, …)   ──► answer with Blocks, resume k
      │ chunk 2  [k, …)       ──► …                           each chunk ends at a limit, or with the span
      ▼

Each chunk is a batch of its own: it may be served by another range, another replica, the leaseholder. What they have in
common is the timestamp. A caller that names one reads exactly there.

Otherwise the read must see everything that was acknowledged anywhere before it began, although clocks differ by up to
`clock.max_offset`. One answer can do what every read does: read now, and once more just above any value that is so near
that nobody can tell (`ReadWithinUncertainty`). For many answers that would never end while others write. So when the
first answer was not the last, the read begins again at now + max_offset, once that time has come: nothing acknowledged
before it began lies above, and nothing new can appear below. A small read pays nothing for this, a large one a moment.

Limits count what is stored. Columns can be larger, when long defaults of added columns are not stored at all: an answer
that does not fit an RPC frame is asked for again in smaller pieces.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import LOGICAL_BITS, MIN, Timestamp
from slackwater.errors import EntryTooLarge
from slackwater.hooks import probe
from slackwater.protocol.range.bulk import BULK_BYTES_DEFAULT
from slackwater.protocol.range.requests import Header
from slackwater.routing.merge import resume_of
from slackwater.routing.sender import NO_RANGE

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from slackwater.protocol.range.bulk import ExportArrow, ScanArrow
    from slackwater.protocol.range.requests import BatchResult
    from slackwater.txn.kv import KV

CHUNK_BYTES_MIN = 1024
"""Below this, an answer that is still too large is one row that is."""


async def read_columns(
    kv: KV,
    request: ScanArrow | ExportArrow,
    *,
    ts: Timestamp = MIN,
    follower_ok: bool = False,
    wait_ms: int = 0,
    chunk_rows: int = 0,
    chunk_bytes: int = BULK_BYTES_DEFAULT,
    timeout: float | None = None,
) -> AsyncIterator[BatchResult]:
    """Answers whose one result is `Blocks`, in key order. `timeout` bounds each chunk; limits are soft.

    The header's timestamp of an export must be its `upto`. An answer without rows can come at any place.
    """
    header = Header(
        NO_RANGE, ts=ts, follower_ok=follower_ok, wait_ms=wait_ms, max_keys=chunk_rows, max_bytes=chunk_bytes
    )
    if ts == MIN:
        began = kv.context.clock.now()
        limit = Timestamp(began + (kv.context.clock.max_offset_us << LOGICAL_BITS))
        soon = structs.replace(header, ts=began, uncertainty_limit=limit)
        answer, soon = await _chunk(kv, request, soon, timeout=timeout, movable=True)
        if resume_of(answer.results[0]) is None:
            yield answer
            return
        probe("columns.waited_out_uncertainty")
        await kv.context.wait_past(limit)
        header = structs.replace(header, ts=limit, max_bytes=soon.max_bytes)
    while True:
        answer, header = await _chunk(kv, request, header, timeout=timeout)
        yield answer
        resume = resume_of(answer.results[0])
        if resume is None or resume >= request.end:
            return
        request = structs.replace(request, start=resume)


async def _chunk(
    kv: KV, request: ScanArrow | ExportArrow, header: Header, *, timeout: float | None, movable: bool = False
) -> tuple[BatchResult, Header]:
    """One answer, and the header to go on with: its limit is lower when an answer was too large."""
    while True:
        try:
            return await kv.read([request], header, timeout=timeout, movable=movable), header
        except EntryTooLarge:
            size = header.max_bytes or BULK_BYTES_DEFAULT
            if size <= CHUNK_BYTES_MIN:
                raise
            probe("columns.smaller_chunk")
            header = structs.replace(header, max_bytes=size // 4)
