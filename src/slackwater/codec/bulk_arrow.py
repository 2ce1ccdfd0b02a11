"""Both ends of a bulk read: the schema its blocks have, and the way into and out of Arrow IPC messages.

    replica   RecordBatch ──pack──► encapsulated message (one copy)  ──► Blocks
    reader    Blocks ──unpack──► RecordBatch over the received bytes (no copy), patches merged in
              Blocks ──stream──► schema message, blocks, end mark: a whole IPC stream, for readers of those

Importing this module imports pyarrow; `bulk.py` does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow

from slackwater.codec.arrow import arrow_fields
from slackwater.codec.patch_arrow import patched, places_of
from slackwater.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from slackwater.model.patches import Patch
    from slackwater.model.scan_plan import ScanPlan
    from slackwater.model.schema import Column

pa: Any = pyarrow  # its stubs know neither buffers nor messages
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
SMALL_BYTES = 256 << 10
"""Blocks up to this size are decompressed on the caller's thread: handing their few buffers to Arrow's threads costs more."""
TOGETHER_BYTES = 512 << 10
"""Small blocks are copied into one stream up to this size: it stays in the processor's cache."""
_HERE = pa.ipc.IpcReadOptions(use_threads=False)


def plan_columns(plan: ScanPlan) -> list[Column]:
    """The columns that a plan asks for, in order."""
    schema = plan.schema()
    return list(schema.columns) if plan.columns is None else [schema.column(name) for name in plan.columns]


def plan_schema(plan: ScanPlan) -> Any:
    """The Arrow schema of the blocks of a `ScanArrow`."""
    return arrow_fields(plan_columns(plan))


def pack(batch: Any) -> memoryview:
    """A record batch as an encapsulated message, without its schema."""
    return memoryview(batch.serialize())


def unpack(blocks: Iterable[memoryview], schema: Any, patches: Sequence[Patch] = ()) -> list[Any]:
    """The record batches in blocks of one schema, over the same memory where there is no patch."""
    try:
        given = list(blocks)
        if not patches:
            return _read(given, schema)
        read = _read([*given, *(patch.fresh for patch in patches)], schema)
        found, fresh = read[: len(given)], read[len(given) :]
        for patch, rows in zip(patches, fresh, strict=True):
            if not 0 <= patch.block < len(found):
                raise DecodeError("a patch is of a block that did not come", block=patch.block)
            found[patch.block] = patched(found[patch.block], rows, places_of(patch))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        raise DecodeError(f"a block is not a record batch of this schema: {error}") from None
    return found


def _read(blocks: Sequence[memoryview], schema: Any) -> list[Any]:
    """The record batch of each block; several small ones are read as one stream."""
    found: list[Any] = []
    small: list[memoryview] = []
    size = 0
    for block in blocks:
        fits = len(block) <= SMALL_BYTES
        if small and (not fits or size + len(block) > TOGETHER_BYTES):
            found += _read_together(small, schema)
            small, size = [], 0
        if fits:
            small.append(block)
            size += len(block)
        else:
            found.append(pa.ipc.read_record_batch(pa.py_buffer(block), schema))
    if small:
        found += _read_together(small, schema)
    for batch in found:
        batch.validate()  # each buffer is as long as the rows it is said to hold: Arrow's reader takes their number as it comes
    assert len(found) == len(blocks), "a record batch for every block"
    return found


def _read_together(blocks: Sequence[memoryview], schema: Any) -> list[Any]:
    """The record batches of small blocks, decompressed on this thread."""
    whole = b"".join([memoryview(schema.serialize()), *blocks])
    found = list(pa.ipc.open_stream(pa.py_buffer(whole), options=_HERE))
    if len(found) != len(blocks):
        raise DecodeError("a block is not one record batch", blocks=len(blocks), batches=len(found))
    return found


def stream(blocks: Iterable[memoryview], schema: Any) -> Iterator[memoryview | bytes]:
    """The pieces of a whole IPC stream around blocks."""
    yield memoryview(schema.serialize())
    yield from blocks
    yield END_OF_STREAM
