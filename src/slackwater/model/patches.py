"""A patch: rows of a block of columns that have changed since it was stored, for its reader to merge (`codec.patch_arrow`)."""

from __future__ import annotations

import msgspec


class Patch(msgspec.Struct, frozen=True, array_like=True):
    """What has become of the rows of one block: positions are little-endian 32-bit numbers of rows of the block, ascending.

    The rows in `fresh` replace those at `replaced`, one for one; the rest of them go in before those at `inserted`, where the
    number of the block's rows means behind the last. Rows at `removed` are gone.
    """

    block: int
    """Which of the answer's blocks."""
    removed: bytes
    replaced: bytes
    inserted: bytes
    fresh: memoryview
    """A record batch as an encapsulated message, with the schema of the blocks."""
