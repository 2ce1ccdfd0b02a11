"""A replica as a stream of parts, and what a replica finds when it reads all it holds.

    SnapshotHeader{ state }   SnapshotBlock{ family, keys, values } …   SnapshotTrailer{ blocks, digest }

`replica/snapshot.py` makes and checks them.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec


class SnapshotHeader(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The replicated state that the blocks belong to."""

    state: bytes


class SnapshotBlock(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Pairs of one family, in key order."""

    family: int
    keys: list[bytes]
    values: list[bytes]


class SnapshotTrailer(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """How many blocks there were, and their digest."""

    blocks: int
    digest: bytes


SnapshotPart: TypeAlias = SnapshotHeader | SnapshotBlock | SnapshotTrailer


class Examination(msgspec.Struct, frozen=True):
    """What a replica found when it read all it holds: the digest, and whether that is what its statistics say."""

    digest: bytes
    versions: int
    expected: int
    """Versions that the replicated statistics count."""
    whole: bool
