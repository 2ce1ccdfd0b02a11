"""A disk that gives less than it holds: bit rot and short reads, as RocksDB would show them.

    rot      the block of some keys does not match its checksum: a point read there raises, a stream ends in front of it and
             says nothing; only a look behind its last key raises. It stays until the keys are cleared, as by a snapshot.
    short    a stream ends somewhere, although everything could be read: a look behind its last key finds the next one

The cursors here end their streams with the same proof as those of RocksDB (`storage.whole`), and show the oracle of I-34,
which knows the truth, every end that they pass on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.errors import DamageError
from slackwater.hooks import probe, tap
from slackwater.storage.whole import prove_end

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.runtime.seam import Cursor, Family, Reader
    from slackwater.storage.batch import WriteBatch
    from slackwater.storage.memory import MemorySnapshot

SHORT_PAIRS_MAX = 40


class Rotten(NamedTuple):
    """A damaged block: low <= key < high in the engine's order."""

    family: Family
    low: bytes
    high: bytes

    def holds(self, family: Family, key: bytes) -> bool:
        """Whether a key lies in it."""
        return family == self.family and self.low <= key < self.high

    def without(self, family: Family, start: bytes, end: bytes) -> list[Rotten]:
        """What is left of it when [start, end) is cleared."""
        if family != self.family or end <= self.low or self.high <= start:
            return [self]
        sides = ((self.low, min(self.high, start)), (max(self.low, end), self.high))
        return [Rotten(self.family, low, high) for low, high in sides if low < high]


def cleared(rot: tuple[Rotten, ...], batch: WriteBatch) -> tuple[Rotten, ...]:
    """The damage that is left after a batch that clears spans."""
    for family, ranges in enumerate(batch.ranges):
        for start, end in ranges:
            rot = tuple(piece for rotten in rot for piece in rotten.without(family, start, end))  # type: ignore[arg-type]
    return rot


class RottenReader:
    """`seam.Reader` over an engine or a snapshot whose disk is damaged."""

    def __init__(self, disk: str, reader: Reader, rot: tuple[Rotten, ...], short: Callable[[], int | None]) -> None:
        self._disk = disk
        self._reader = reader
        self._rot = rot
        self._short = short

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None; raises in a damaged block."""
        self._check(family, key)
        return self._reader.get(family, key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        for key in keys:
            self._check(family, key)
        return self._reader.multi_get(family, keys)

    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> Cursor:
        """A cursor whose stream may end early."""
        inner = self._reader.cursor(family, start=start, end=end, reverse=reverse)
        rot = tuple(r for r in self._rot if r.family == family)
        return RottenCursor(self._disk, family, inner, rot, self._short())

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end."""
        keys, values = self.cursor(family, start=start, end=end).chunk(1)
        return (keys[0], values[0]) if keys else None

    def _check(self, family: Family, key: bytes) -> None:
        if any(rotten.holds(family, key) for rotten in self._rot):
            raise damage(self._disk)


class RottenSnapshot(RottenReader):
    """A frozen state, read from a damaged disk."""

    def __init__(
        self, disk: str, frozen: MemorySnapshot, rot: tuple[Rotten, ...], short: Callable[[], int | None]
    ) -> None:
        super().__init__(disk, frozen, rot, short)
        self.close = frozen.close

    def __enter__(self) -> RottenSnapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class RottenCursor:
    """A cursor whose stream ends in front of damage, or after a drawn number of pairs."""

    def __init__(
        self, disk: str, family: Family, inner: Cursor, rot: tuple[Rotten, ...], short_after: int | None
    ) -> None:
        self._disk = disk
        self._family = family
        self._inner = inner
        self._rot = rot
        self._left = short_after
        self._next: bytes | None = None  # what the stream withholds
        self._ended = False

    def seek(self, key: bytes) -> None:
        """Move to the first key >= key (forward) or the last key <= key (reverse), inside the bounds."""
        self._inner.seek(key)
        self._next, self._ended = None, False

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` keys and values from here on; a short block is the proven end."""
        if self._ended:
            return [], []
        keys, values = self._stream(limit)
        if len(keys) < limit:
            prove_end(self._look)
            self._ended = True
            tap("storage.stream_ended", self._disk, self._family, self._next)
        return keys, values

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values."""
        return self.chunk(limit)[0]

    def _stream(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """What the stream gives: all there is, up to where it ends."""
        if self._next is not None:
            return [], []
        keys, values = self._inner.chunk(limit)
        upto = next((i for i, key in enumerate(keys) if self._rotten(key)), len(keys))
        if self._left is not None:
            upto = min(upto, self._left)
            self._left -= upto
        if upto < len(keys):
            self._next = keys[upto]
        return keys[:upto], values[:upto]

    def _look(self) -> bytes | None:
        if self._next is not None and self._rotten(self._next):
            raise damage(self._disk)
        if self._next is not None:
            probe("sim.disk.short_stream")
        return self._next

    def _rotten(self, key: bytes) -> bool:
        return any(rotten.holds(self._family, key) for rotten in self._rot)


def damage(disk: str) -> DamageError:
    """What RocksDB would say of such a block."""
    probe("sim.disk.rot")
    return DamageError("a block does not match its checksum; the replica is fetched anew", disk=disk)
