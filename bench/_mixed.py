"""The rows of `bench codec` in any number, as Arrow: what tables of benchmarks are loaded with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow

from bench.codec import MIXED, mixed_rows
from slackwater.codec.arrow import arrow_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

pa: Any = pyarrow
BLOCK_ROWS = 100_000


def mixed_blocks(rows: int) -> Iterator[Any]:
    """The rows, block by block; ids go on from block to block."""
    block = pa.Table.from_pylist(mixed_rows(min(rows, BLOCK_ROWS)), schema=arrow_schema(MIXED))
    for low in range(0, rows, BLOCK_ROWS):
        part = block.slice(0, min(BLOCK_ROWS, rows - low))
        ids = pa.array(range(low, low + part.num_rows), pa.int64())
        yield part.set_column(0, part.schema.field(0), ids)
