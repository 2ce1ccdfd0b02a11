"""The simulated disk: the memory engine with slow, failing and full hardware underneath.

    SimDisk (one per node, survives its incarnations)
      └── MemoryDisk ── MemoryEngine per name: batches atomic, durable only after flush
    SimEngine (one per open): the same engine, seen through the faults

A flush takes time: it marks what is written when it begins and hardens that when it ends, so what is written meanwhile
stays at risk. A power cut keeps a drawn prefix of the batches not yet hardened, at a batch boundary.

Faults, switched by the nemesis
    slow      every flush takes 0–5 s
    stall     a flush begun now ends only after the stall does
    full      writes and flushes raise `StorageError`
    read      the next reads raise `StorageError` and succeed when they are tried again
    rot       some stored keys can be read no more, until they are cleared; it survives crashes (`rot.py`)
    short     streams end early now and then, without an error (`rot.py`)

Reads are spoiled on one node at a time, and only where another node has a good copy: the fault atlas never takes the last
one, because nothing could recover from that and finding it out would prove nothing.

Reading costs nothing extra: while no read fault is armed, the engine's own bound methods are called.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from slackwater.errors import StorageError
from slackwater.hooks import probe
from slackwater.sim.handles import NS
from slackwater.sim.rot import SHORT_PAIRS_MAX, RottenReader, RottenSnapshot, cleared
from slackwater.storage.batch import own
from slackwater.storage.memory import MemoryDisk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from slackwater.runtime.seam import Cursor, EngineBatch, EngineSnapshot, Family, Files, FileSink
    from slackwater.sim.loop import SimLoop
    from slackwater.sim.rot import Rotten
    from slackwater.sim.tape import TapeStream
    from slackwater.storage.memory import MemoryEngine

FLUSH_MIN_NS = 50_000
FLUSH_MEAN_NS = 2_000_000
SLOW_FLUSH_MAX_NS = 5 * NS
STORED_MAX = 1 << 20


class SimDisk:
    """The hardware of one node. `open` implements `seam.Disk`."""

    def __init__(self, loop: SimLoop, stream: TapeStream, *, name: str) -> None:
        self.name = name
        self.loop = loop
        self.stream = stream
        self.platter = MemoryDisk()
        self.engines: dict[str, SimEngine] = {}
        self.slow_max_ns = 0
        self.stalled_upto_ns = 0
        self.full = False
        self.bad_reads = 0
        self.short_percent = 0
        self.rot: tuple[Rotten, ...] = ()
        self.crashes_survived: list[tuple[int, int]] = []
        self._busy: dict[Any, None] = {}

    def open(self, name: str) -> SimEngine:
        """Open or create the engine called `name`."""
        engine = SimEngine(self, self.platter.open(name))
        self.engines[name] = engine
        return engine

    def crash(self) -> None:
        """Power cut: each open engine keeps a drawn prefix of what was not yet flushed."""
        self.platter.crash(self._keep)
        self.engines.clear()
        self._busy.clear()

    def _keep(self, unflushed: int) -> int:
        kept = self.stream.below(unflushed + 1)
        self.crashes_survived.append((unflushed, kept))
        return kept

    def at_risk(self) -> int:
        """Writes that a power cut now could take."""
        return sum(len(engine.engine._unflushed) for engine in self.engines.values())

    def flush_ns(self) -> int:
        """How long a flush that begins now takes."""
        took_ns = FLUSH_MIN_NS + self.stream.decay(FLUSH_MEAN_NS)
        if self.slow_max_ns:
            took_ns += self.stream.below(self.slow_max_ns)
        return max(took_ns, self.stalled_upto_ns - self.loop.now_ns)

    def break_reads(self, count: int) -> None:
        """The next `count` reads find a bad checksum."""
        self.bad_reads = count
        for engine in self.engines.values():
            engine.arm()

    @property
    def spoiled(self) -> bool:
        """Whether reads may fail or be short."""
        return bool(self.bad_reads or self.short_percent or self.rot)

    def spoil(self, *, rot: tuple[Rotten, ...] = (), short_percent: int = 0) -> None:
        """Let blocks rot, or streams end early, from now on; with nothing given, all is well again."""
        self.rot, self.short_percent = rot, short_percent
        for engine in self.engines.values():
            engine.arm()

    def stored(self, family: Family) -> list[bytes]:
        """Every key of one family in the engines that are open now."""
        found: list[bytes] = []
        for engine in self.engines.values():
            found += engine.engine.cursor(family, start=b"", end=b"\xff" * 8).chunk(STORED_MAX)[0]
        return found

    def short_after(self) -> int | None:
        """After how many pairs a stream that is opened now ends; None: where it should."""
        if not self.short_percent or not self.stream.chance(self.short_percent, 100):
            return None
        return self.stream.below(SHORT_PAIRS_MAX)

    async def take(self, wait_ns: int) -> None:
        """Return after so long, or as soon as the hardware is well again."""
        waiter = self.loop.create_future()
        self._busy[waiter] = None
        self.loop.call_at_ns(self.loop.now_ns + wait_ns, _done, waiter)
        try:
            await waiter
        finally:
            self._busy.pop(waiter, None)

    def heal(self) -> None:
        """The hardware is well again, and what it was slow with is done."""
        for waiter in list(self._busy):
            _done(waiter)
        self.slow_max_ns = self.stalled_upto_ns = self.bad_reads = 0
        self.full = False
        self.spoil()


class SimEngine:
    """`seam.Engine` through the faults of a `SimDisk`."""

    def __init__(self, disk: SimDisk, engine: MemoryEngine) -> None:
        self._disk = disk
        self._engine = engine
        self.batch = engine.batch
        self.approximate_bytes = engine.approximate_bytes
        self.compact = engine.compact
        self.close = engine.close
        self.note_damage = engine.note_damage
        self.files: Files = _SimFiles(disk, engine.files)
        self.arm()

    def arm(self) -> None:
        """Read through the fault check only while a fault is armed."""
        disk, faulty = self._disk, self._disk.spoiled
        engine = self._engine
        self._damaged = RottenReader(disk.name, engine, disk.rot, disk.short_after)
        self.get = self._get if faulty else engine.get
        self.multi_get = self._multi_get if faulty else engine.multi_get
        self.cursor: Any = self._cursor if faulty else engine.cursor
        self.first: Any = self._first if faulty else engine.first
        self.snapshot: Any = self._snapshot if faulty else engine.snapshot

    @property
    def engine(self) -> MemoryEngine:
        """What is underneath, for oracles."""
        return self._engine

    def write(self, batch: EngineBatch) -> None:
        """Apply atomically, unless the disk is full."""
        if self._disk.full:
            refuse_full(self._disk)
        self._engine.write(batch)
        if self._disk.rot:
            left = cleared(self._disk.rot, own(batch))
            if left != self._disk.rot:
                self._disk.spoil(rot=left, short_percent=self._disk.short_percent)

    async def flush(self) -> None:
        """Return once everything written before the call is durable."""
        if self._disk.full:
            refuse_full(self._disk)
        mark = self._engine.mark()
        await self._disk.take(self._disk.flush_ns())
        self._engine.harden(mark)

    async def checkpoint(self, directory: Path) -> None:
        """A complete copy; takes as long as a flush."""
        await self._disk.take(self._disk.flush_ns())
        await self._engine.checkpoint(directory)

    def ingest(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add many pairs at once, unless the disk is full."""
        if self._disk.full:
            refuse_full(self._disk)
        self._engine.ingest(family, keys, values)

    def status(self) -> str:
        """One line for logs."""
        full = " full" if self._disk.full else ""
        return f"{self._disk.name} {self._engine.status()}{full}"

    # --- reads while a fault is armed ------------------------------------------------------------------------------

    def _check(self) -> None:
        if self._disk.bad_reads > 0:
            self._disk.bad_reads -= 1
            probe("sim.disk.bad_checksum")
            raise StorageError("the disk did not answer; try again", disk=self._disk.name)
        if not self._disk.spoiled:
            self.arm()

    def _get(self, family: Family, key: bytes) -> bytes | None:
        self._check()
        return self._damaged.get(family, key)

    def _multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check()
        return self._damaged.multi_get(family, keys)

    def _cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> Cursor:
        self._check()
        return self._damaged.cursor(family, start=start, end=end, reverse=reverse)

    def _first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        self._check()
        return self._damaged.first(family, start=start, end=end)

    def _snapshot(self, *, once: bool = False) -> EngineSnapshot:
        self._check()
        disk = self._disk
        return RottenSnapshot(disk.name, self._engine.snapshot(once=once), disk.rot, disk.short_after)


class _SimFiles:
    """`seam.Files` on a disk that may be full."""

    def __init__(self, disk: SimDisk, files: Files) -> None:
        self._disk = disk
        self._files = files
        self.guard = files.guard
        self.names = files.names
        self.open = files.open
        self.remove = files.remove

    def create(self, name: str) -> FileSink:
        """A file in the making, unless the disk is full."""
        if self._disk.full:
            refuse_full(self._disk)
        return self._files.create(name)


def refuse_full(disk: SimDisk) -> NoReturn:
    """There is no room."""
    probe("sim.disk.full")
    raise StorageError("the disk is full; free space and retry", disk=disk.name)


def _done(waiter: Any) -> None:
    if not waiter.done():
        waiter.set_result(None)
