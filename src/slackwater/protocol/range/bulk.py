"""Bulk reads: what is asked of a range when columns are wanted, and the answer.

    ScanArrow     the rows of a span at the header's timestamp
    ExportArrow   what happened to the rows of a span in (after, upto]: one row per change
    Blocks        record batches as Arrow IPC messages, and the key to go on from
    Patch         rows of a block that have changed since it was stored, for the reader to merge

The reader knows the table; a range does not. So the request brings a `model.scan_plan.ScanPlan`: every schema version that may
have written a value, the version to read as, the columns wanted, and predicates to push into the decode. It travels as *bytes*:
encoded once where the read is planned, sent with every piece of it, and used by replicas as the name of the decoder they keep.

    plan ──encode──► bytes ──► ScanArrow ──► r1 ─► Blocks      one plan, many ranges and chunks
                                        └──► r2 ─► Blocks

Blocks are *encapsulated messages* without their schema: `bulk_arrow.plan_schema(plan)` is the schema of all of them. The
schema message, then the messages of any number of `Blocks`, then the end mark, are a valid IPC stream; so a node that passes
them on neither decodes nor copies. The views point into the frame they came in, or into Arrow's own memory.

A replica that keeps a span in columns has blocks as they were stored, compressed. Where a few rows of one have changed, a reader
that says so (`ScanArrow.patches`) gets the block as it is and a `Patch` beside it: merging at the reader, who decompresses the
block anyway, costs a fifth of merging in the node. Other readers get merged blocks.

Limits (`Header.max_keys`, `max_bytes`) are soft: they count stored rows and bytes before predicates, and cut between blocks.
A batch without limits gets `BULK_BYTES_DEFAULT`. An answer with `resume` continues there, at the same timestamp.
"""

from __future__ import annotations

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.model.patches import Patch

BULK_BYTES_DEFAULT = 4 << 20
"""Stored bytes one answer covers when the batch sets no limit."""
BULK_BYTES_MAX = 8 << 20
"""Stored bytes one answer covers at most: it has to fit an RPC frame."""


class _BulkMessage(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The base of bulk messages, which are part of the unions in `requests`."""


class ScanArrow(_BulkMessage, frozen=True):
    """The rows of `[start, end)` as Arrow; not inside a transaction, whose own writes would be missing."""

    start: bytes
    end: bytes
    plan: bytes
    patches: bool = False
    """Whether the reader merges changes itself (`codec.patch_arrow`)."""
    once: bool = False
    """Whether it is not worth making columns for this reader: it comes once. Older nodes do not know this, and make them."""


class ExportArrow(_BulkMessage, frozen=True):
    """Every change in `[start, end)` with after < ts <= upto as Arrow, in key order, oldest first within a key.

    Each row has the columns of `codec.changes_arrow`; `_op` says insert, update or delete, by whether a row was there before.
    A delete has its primary key only; with `before`, `_before` has the row that was deleted or replaced.
    """

    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp
    plan: bytes
    before: bool = False


class Blocks(_BulkMessage, frozen=True):
    """Record batches as encapsulated Arrow IPC messages; `resume` is where to go on when a limit ended the read early."""

    blocks: list[memoryview]
    rows: int = 0
    """In the blocks, patches applied."""
    rows_read: int = 0
    bytes_read: int = 0
    """Of the store, before predicates: what limits count."""
    resume: bytes | None = None
    patches: list[Patch] = []
    """In the order of the blocks; at most one for each."""


BULK = (ScanArrow, ExportArrow)
