"""The engine's twin in memory: the simulator's disk, and the reference that RocksDB is compared with (I-32).

It keeps the contract of `runtime.seam.Engine` to the letter, crashes included. Batches are atomic and visible at once;
they are durable only after `flush`. A crash is a power cut: what was flushed stays, and of the batches written since,
some *prefix* stays, at a batch boundary that the caller draws:

    written   b1 b2 b3 | b4 b5 b6 b7
                 flush ^      ^ crash(keep=lambda unflushed: 2) leaves b1 … b5

Real RocksDB has the same choice, because it flushes memtables on its own between the flushes that we ask for.

    engine.write(batch) --> tables (present)          durable (a fork) + unflushed [b4 b5 b6 b7]
                                                         ^--- flush: durable = fork(tables); unflushed = []

The tables are copy-on-write (`cow.py`), so a snapshot or a flush costs O(1) and the next writes copy only what they
touch. A handle that has crashed or was closed raises `StorageError` on every use: a zombie task of a dead node can
neither read nor write. `MemoryDisk` outlives its engines, as a platter does.

The simulator spreads a slow flush over time with `mark` and `harden`: `mark` when the flush begins, `harden` when it is
done; batches written between the two stay unflushed.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from slackwater.errors import StorageError, UsageError, invariant
from slackwater.runtime.seam import Family
from slackwater.storage.batch import FAMILIES, WriteBatch, own
from slackwater.storage.cow import CowTable, Place
from slackwater.storage.files import MemoryFiles

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from slackwater.runtime.seam import EngineBatch, Files

UNFLUSHED_BATCHES_MAX = 4096
"""After this many unflushed batches the oldest half hardens by itself, as RocksDB's full memtables do."""
assert UNFLUSHED_BATCHES_MAX >= 2, "half of the batches can harden"

Tables = tuple[CowTable, ...]


def _fork(tables: Tables) -> Tables:
    return tuple(table.fork() for table in tables)


def _apply(tables: Tables, batch: WriteBatch) -> None:
    assert len(tables) == len(FAMILIES), "a table for each family"
    for table, ranges, writes in zip(tables, batch.ranges, batch.writes, strict=True):
        for start, end in ranges:
            table.delete_range(start, end)
        if writes:
            table.update(writes.items())


class MemoryCursor:
    """A position in one table of a reader."""

    __slots__ = ("_first", "_last", "_reader", "_reverse", "_table", "_version", "_whole")

    def __init__(self, reader: _MemoryReader, table: CowTable, start: bytes, end: bytes, *, reverse: bool) -> None:
        self._reader = reader
        self._version = reader.version
        self._table = table
        self._reverse = reverse
        self._whole: tuple[Place, Place] = (table.place(start), table.place(max(start, end)))
        self._first, self._last = self._whole

    def seek(self, key: bytes) -> None:
        """Move to the first key >= key (forward) or the last key <= key (reverse), inside the bounds."""
        first, last = self._whole
        if self._reverse:
            self._last = max(first, min(last, self._table.place(key + b"\x00")))  # key ++ 00 is the successor of key
        else:
            self._first = min(last, max(first, self._table.place(key)))
        assert first <= self._first <= self._last <= last, "a cursor stays inside its bounds"

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` keys and values from here on, as two lists; advances."""
        self._reader.check_cursor(self._version)
        if self._reverse:
            keys, values, self._last = self._table.backward(self._first, self._last, limit)
        else:
            keys, values, self._first = self._table.forward(self._first, self._last, limit)
        assert len(keys) == len(values) <= limit, "a value for every key, and no more than was asked for"
        return keys, values

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values; they cost nothing here."""
        return self.chunk(limit)[0]


class _MemoryReader:
    """What an engine and a snapshot share: reading tables until closed."""

    def __init__(self, tables: Tables, what: str) -> None:
        self._tables = tables
        self._what = what
        self._ended = ""
        self.version = 0  # counts the writes of an engine; a snapshot has none

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        return self._table(family).get(key)

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        return list(map(self._table(family).get, keys))

    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> MemoryCursor:
        """A cursor over start <= key < end. An engine's ends with the next write; a snapshot's does not."""
        return MemoryCursor(self, self._table(family), start, end, reverse=reverse)

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end."""
        keys, values = self.cursor(family, start=start, end=end).chunk(1)
        return (keys[0], values[0]) if keys else None

    def check_cursor(self, version: int) -> None:
        """Refuse a cursor whose reader has ended or was written to."""
        self._table(Family.DATA)
        if version != self.version:
            raise UsageError("the engine was written to since this cursor was made; read a snapshot instead")

    def _table(self, family: Family) -> CowTable:
        if self._ended:
            raise StorageError(f"this {self._what} {self._ended}; open it again", family=family.name)
        return self._tables[family]


class MemorySnapshot(_MemoryReader):
    """A frozen state of a memory engine."""

    def close(self) -> None:
        """Reads after this are mistakes and raise, as they must on RocksDB, where a snapshot pins files."""
        self._ended = "was closed"

    def __enter__(self) -> MemorySnapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


class MemoryEngine(_MemoryReader):
    """An engine in memory with the durability of a disk: see the module docstring."""

    def __init__(
        self, tables: Tables | None = None, *, disk: MemoryDisk | None = None, files: MemoryFiles | None = None
    ) -> None:
        super().__init__(tables or tuple(CowTable() for _ in FAMILIES), "engine")
        self._disk = disk
        self._files = files or MemoryFiles()
        self.files: Files = self._files
        self._durable = _fork(self._tables)
        self._unflushed: list[WriteBatch] = []
        self._hardened = 0  # batches ever written that are durable; `mark` counts from the same zero

    def batch(self) -> WriteBatch:
        """An empty batch."""
        return WriteBatch()

    def write(self, batch: EngineBatch) -> None:
        """Apply atomically. Visible at once; not yet durable. The batch belongs to the engine from here on."""
        self._table(Family.DATA)  # refuses a dead handle
        ours = own(batch)
        _apply(self._tables, ours)
        self.version += 1
        self._unflushed.append(ours)
        if len(self._unflushed) >= UNFLUSHED_BATCHES_MAX:
            self.harden(self._hardened + UNFLUSHED_BATCHES_MAX // 2)
        assert len(self._unflushed) <= UNFLUSHED_BATCHES_MAX, "batches that are not durable are bounded"

    def snapshot(self, *, once: bool = False) -> MemorySnapshot:
        """The present state, frozen. O(1)."""
        self._table(Family.DATA)
        return MemorySnapshot(_fork(self._tables), "snapshot")

    async def flush(self) -> None:
        """Return once everything written before the call is durable."""
        self.harden(self.mark())

    def mark(self) -> int:
        """How many batches were ever written: what a flush that begins now has to make durable."""
        self._table(Family.DATA)
        return self._hardened + len(self._unflushed)

    def harden(self, mark: int) -> None:
        """Make the first `mark` batches durable; a no-op for those that already are."""
        self._table(Family.DATA)
        count = mark - self._hardened
        invariant(count <= len(self._unflushed), "A-flush-of-unwritten", mark=mark, written=self.mark())
        if count <= 0:
            return
        if count == len(self._unflushed):
            self._durable = _fork(self._tables)
        else:
            for batch in self._unflushed[:count]:
                _apply(self._durable, batch)
        del self._unflushed[:count]
        self._hardened = mark
        assert self.mark() >= self._hardened, "what is durable was written"

    def crash(self, keep: Callable[[int], int]) -> MemoryEngine:
        """Power cut. Ends this handle and returns what the next incarnation finds.

        `keep` is given the number of unflushed batches and answers how many of them, from the oldest on, survive.
        """
        self._table(Family.DATA)
        kept = keep(len(self._unflushed))
        invariant(0 <= kept <= len(self._unflushed), "A-crash-keeps-a-prefix", kept=kept)
        lost = len(self._unflushed) - kept
        self.harden(self._hardened + kept)
        assert len(self._unflushed) == lost, (
            "a power cut takes what came after the kept batches, and nothing before (I-32)"
        )
        self._ended = "lost power"
        return MemoryEngine(self._durable, disk=self._disk, files=self._files)

    async def checkpoint(self, directory: Path) -> None:
        """Write a complete, openable copy of the present state: `disk.open(str(directory))` opens it."""
        self._table(Family.DATA)
        if self._disk is None:
            raise UsageError("this engine stands alone; open it through a MemoryDisk to take checkpoints")
        self._disk.add(str(directory), MemoryEngine(_fork(self._tables), disk=self._disk))

    def ingest(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add many sorted, unique pairs at once. Durable on return, and so is everything written before."""
        if any(a >= b for a, b in pairwise(keys)):
            raise UsageError("ingest needs sorted, unique keys", family=family.name)
        batch = WriteBatch()
        batch.put_many(family, keys, values)
        self.write(batch)
        self.harden(self.mark())
        assert not self._unflushed, "what is ingested is durable, and so is all before it"

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Do nothing: deletions leave nothing behind in memory."""

    def note_damage(self, reason: str) -> None:
        """Do nothing: memory holds no file that stays damaged."""

    def approximate_bytes(self, family: Family, start: bytes, end: bytes) -> int:
        """Bytes of keys and values in the span; exact here."""
        table = self._table(family)
        keys, values, _ = table.forward(table.place(start), table.place(max(start, end)), table.size)
        return sum(map(len, keys)) + sum(map(len, values))

    def status(self) -> str:
        """One line for scripts, logs and the console."""
        sizes = " ".join(f"{f.name.lower()}={self._tables[f].size}" for f in FAMILIES)
        return f"memory {sizes} unflushed={len(self._unflushed)}" + (f" ({self._ended})" if self._ended else "")

    def close(self) -> None:
        """An orderly end: everything becomes durable; the disk can open the engine again. Idempotent."""
        if not self._ended:
            self.harden(self.mark())
            assert not self._unflushed, "an engine that is closed in good order loses nothing"
            self._ended = "was closed"

    @property
    def ended(self) -> bool:
        """Whether this handle was closed or lost power."""
        return bool(self._ended)

    def reopened(self) -> MemoryEngine:
        """A new handle on the durable state of this closed one."""
        invariant(self.ended, "A-one-handle", status=self.status())
        return MemoryEngine(self._durable, disk=self._disk, files=self._files)


class MemoryDisk:
    """The engines of one node, by name. Survives the node: `crash`, then `open` again."""

    def __init__(self) -> None:
        self._engines: dict[str, MemoryEngine] = {}
        self._open: set[str] = set()

    def open(self, name: str) -> MemoryEngine:
        """Open or create the engine called `name`; like RocksDB's lock file, refuses a second handle."""
        engine = self._engines.get(name)
        if engine is None:
            engine = MemoryEngine(disk=self)
        elif engine.ended:
            engine = engine.reopened()
        elif name in self._open:
            raise StorageError("this store is already open; close the other handle or stop its process", name=name)
        assert not engine.ended, "an open engine can be used"
        self._engines[name] = engine
        self._open.add(name)
        return engine

    def add(self, name: str, engine: MemoryEngine) -> None:
        """Put a checkpoint on the disk under a name of its own."""
        if name in self._engines:
            raise StorageError("something is there already; choose an empty place for the checkpoint", name=name)
        self._engines[name] = engine

    def engines(self) -> list[MemoryEngine]:
        """What is on the disk, by name."""
        return [self._engines[name] for name in sorted(self._engines)]

    def copied(self) -> MemoryDisk:
        """Another disk that holds what is durable on this one, as if its files had been copied."""
        copy = MemoryDisk()
        for name, engine in self._engines.items():
            copy.add(name, MemoryEngine(_fork(engine._durable), disk=copy))
        return copy

    def crash(self, keep: Callable[[int], int]) -> None:
        """Power cut for every open engine, in order of name, so that the draws of `keep` can be replayed."""
        for name in sorted(self._open):
            if not self._engines[name].ended:
                self._engines[name] = self._engines[name].crash(keep)
        self._open.clear()
