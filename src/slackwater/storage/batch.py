"""A write batch that both engines take, that can be read back, and that travels in a log entry.

A leaseholder evaluates a request into a batch; every replica, whatever its engine, applies that same batch. So a batch
is plain data, not a handle into one engine. It is kept in *canonical form*: per family, first the range deletions,
then at most one write per key:

    DATA   ranges: [a, f) [m, p)      writes: {b: 1, c: None (delete), n: 2}
    LOCK   ...
    LOCAL  ...

A later `delete_range` takes the earlier writes inside it out of the dictionary; a later write on a key replaces the
earlier one. Hence order inside a batch never matters any more, `put_many` is one `dict.update`, reading one's own batch
(`slackwater.storage.overlay`) is a dictionary lookup, and the encoding is a function of the content and the order of
first writes alone, the same on every machine.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.errors import DecodeError, UsageError
from slackwater.runtime.seam import EngineBatch, Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

FAMILIES = tuple(Family)
assert [int(family) for family in FAMILIES] == [0, 1, 2], "a batch has one table for each family, found by its number"


class _Wire(msgspec.Struct, frozen=True, array_like=True):
    """One family's part of an encoded batch."""

    family: int
    ranges: list[tuple[bytes, bytes]]
    keys: list[bytes]
    values: list[bytes | None]


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[_Wire])


class WriteBatch:
    """Writes that become visible, and durable, together. See the module docstring for the canonical form."""

    __slots__ = ("ranges", "writes")

    def __init__(self) -> None:
        # One literal per family: a batch is made for every request.
        self.writes: tuple[dict[bytes, bytes | None], ...] = ({}, {}, {})
        self.ranges: tuple[list[tuple[bytes, bytes]], ...] = ([], [], [])

    def put(self, family: Family, key: bytes, value: bytes) -> None:
        """Write one pair."""
        self.writes[family][key] = value

    def delete(self, family: Family, key: bytes) -> None:
        """Delete one key, present or not."""
        self.writes[family][key] = None

    def delete_range(self, family: Family, start: bytes, end: bytes) -> None:
        """Delete every key with start <= key < end, also those written earlier in this batch."""
        if start >= end:
            raise UsageError("a range deletion needs start < end", start=start, end=end)
        writes = self.writes[family]
        for key in [k for k in writes if start <= k < end]:
            del writes[key]
        self.ranges[family].append((start, end))

    def put_many(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Write many pairs at once; `keys` and `values` run in parallel."""
        assert len(keys) == len(values), "a value for every key"
        self.writes[family].update(zip(keys, values, strict=True))

    def delete_many(self, family: Family, keys: Sequence[bytes]) -> None:
        """Delete many keys at once, present or not."""
        self.writes[family].update(dict.fromkeys(keys))

    def has(self, family: Family, key: bytes) -> bool:
        """Whether the batch writes or deletes this key by name."""
        return key in self.writes[family]

    def extend(self, other: WriteBatch) -> None:
        """Add another batch's writes after this one's."""
        for family in FAMILIES:
            for start, end in other.ranges[family]:
                self.delete_range(family, start, end)
            self.writes[family].update(other.writes[family])

    def __len__(self) -> int:
        return sum(map(len, self.writes)) + sum(map(len, self.ranges))

    def encode(self) -> bytes:
        """The batch as bytes, for a log entry or a snapshot stream."""
        parts = []  # plain tuples, which encode like `_Wire`
        for family, writes in enumerate(self.writes):
            ranges = self.ranges[family]
            if writes or ranges:
                parts.append((family, ranges, list(writes), list(writes.values())))
        assert len(parts) <= len(FAMILIES), "one part for each family"
        return _encoder.encode(parts)

    def extend_encoded(self, batches: Iterable[bytes]) -> None:
        """Add the writes of batches that `encode` wrote after this one's, in turn; anything else is a `DecodeError`."""
        try:
            for data in batches:
                for part in _decoder.decode(data):
                    family = Family(part.family)
                    for start, end in part.ranges:
                        self.delete_range(family, start, end)
                    self.writes[family].update(zip(part.keys, part.values, strict=True))
        except (msgspec.MsgspecError, ValueError, UsageError) as error:
            raise DecodeError("these bytes are not a write batch", reason=str(error)) from None


assert len(WriteBatch().writes) == len(WriteBatch().ranges) == len(FAMILIES), "a batch has one table for each family"


def decode_batch(data: bytes) -> WriteBatch:
    """Read what `WriteBatch.encode` wrote; anything else is a `DecodeError`."""
    batch = WriteBatch()
    batch.extend_encoded((data,))
    return batch


def own(batch: EngineBatch) -> WriteBatch:
    """The concrete batch behind the Protocol; engines take no other kind."""
    if not isinstance(batch, WriteBatch):
        raise UsageError("make batches with engine.batch() or storage.WriteBatch()", got=type(batch).__name__)
    return batch
