"""The engine on RocksDB: three column families, no write-ahead log, one atomic flush.

The replicated log is the write-ahead log, so RocksDB's own is switched off and nothing is fsynced twice. What is lost
in a crash is replayed from the log, from the applied position that the store itself remembers. That only works if all
families fall back to the *same* batch:

    batch    1   2   3   4   5   6        LOCAL says "applied 4"  =>  DATA and LOCK must hold exactly 1 … 4
    DATA     █   █   █   █   ·   ·
    LOCK     █   █   █   █   ·   ·        memtables of all families are switched at one sequence number
    LOCAL    █   █   █   █   ·   ·        and their files enter the manifest in one edit (`atomic_flush`)

Flush. RocksDB's `Flush` of one family flushes that family alone even with `atomic_flush` on (tried: after a kill -9 the
other two were empty), and taking a checkpoint, which flushes all, holds Python's lock for as long as it takes. What
flushes everything together in the background is a full *write buffer manager*. So `flush` makes its limit tiny for the
length of one empty write, which switches every memtable (0.2 ms), and then waits, polling, until no immutable memtable
is left. Batches written meanwhile go to the new memtables. `tests/integration/test_rocks_kill.py` kills it with -9.

Snapshots. `rocksdict` 0.3.29 has snapshots, but their iterators show later writes all the same (tried; only `[]` is
frozen). An iterator, on the other hand, is frozen from its making. So a snapshot is *live* as long as nothing was
written since it was taken, and reads the engine itself; just before the next write, the engine makes every open
snapshot create its iterators (`pin`), through which it reads from then on. A snapshot that is closed before the next
write, as that of most requests, costs nothing.

Cursors and how they are fed: `rocks_cursor.py`. A point read of a version is a short range read, so Bloom filters do
not help DATA; LOCK and LOCAL have them.
"""

from __future__ import annotations

import shutil
from collections import deque
from contextlib import suppress
from itertools import pairwise
from threading import Lock
from typing import TYPE_CHECKING, Any, cast
from weakref import WeakSet

import rocksdict
from rocksdict import Rdict

from slackwater.errors import DamageError, StorageError, UsageError
from slackwater.runtime.seam import Family
from slackwater.settings import Settings, describe
from slackwater.storage.batch import FAMILIES, WriteBatch, own
from slackwater.storage.files import DirectoryFiles
from slackwater.storage.flushed import flushed_upto, note_flushed
from slackwater.storage.rocks_cursor import RocksReader, failure

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Sequence
    from pathlib import Path

    from slackwater.runtime.seam import EngineBatch, Files

FAMILY_NAMES = {Family.DATA: "default", Family.LOCK: "lock", Family.LOCAL: "local"}
assert set(FAMILY_NAMES) == set(FAMILIES), "every family has a name on disk"
MEMTABLES_PER_FAMILY_MAX = 4
FLUSH_POLL_SECONDS = 0.002
assert MEMTABLES_PER_FAMILY_MAX >= 2, "one table is filled while another is flushed"
BLOCK_BYTES = 16 << 10
STOPPED = "Shutdown in progress"
"""What RocksDB answers once its background work was canceled."""
BLOOM_BITS_PER_KEY = 10
assert describe("storage.memtable_bytes").safe[0] > 2 * BLOCK_BYTES, "a memtable is flushed into more than one block"
FILES = "columns"
"""The directory, in the engine's, of files that are derived from it."""
_WRITTEN_BY_READERS = frozenset({"rocksdict-config.json", "LOCK"})
DAMAGED_FILE = "DAMAGED"
"""In the engine's directory once a read or a compaction has met damage (`server/rebuild.py`)."""


class RocksSnapshot(RocksReader):
    """A frozen state of all three families. Close it: it pins files."""

    def __init__(self, engine: RocksEngine, sources: tuple[Any, ...], *, once: bool) -> None:
        super().__init__("snapshot")
        self.fills_cache = not once
        self._engine = engine
        self._sources = sources
        self._frozen = tuple(source.snapshot() for source in sources)
        self._taken = engine.version
        assert len(self._frozen) == len(FAMILIES), "every family is frozen"

    def live(self) -> bool:
        """Whether nothing was written since this snapshot was taken."""
        return self._engine.version == self._taken

    def pin(self) -> None:
        """A write is coming: create the iterators that still show the present state."""
        for family in FAMILIES:
            if family not in self._shared:
                self._shared.setdefault(family, self._sources[family].iter(self.read_options()))
        assert len(self._shared) == len(FAMILIES), "every family is pinned"

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        source = self.source(family)
        try:
            if self.live():
                value: bytes | None = source.get(key)
                if self.live():  # nothing was written meanwhile, on another thread
                    return value
            return bytes(self._frozen[family][key])
        except Exception as error:
            if str(error) == "key not found":  # rocksdict has no other way to say so for snapshots
                return None
            raise failure(error, "reading") from error

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        source = self.source(family)
        if self.live():
            try:
                values: list[bytes | None] = source.get(list(keys))
            except Exception as error:
                raise failure(error, "reading") from error
            assert len(values) == len(keys), "a value, or none, for every key"
            if self.live():
                return values
        assert not self.live(), "a snapshot that is read through its iterators is of the past"
        return [self.get(family, key) for key in keys]

    def close(self) -> None:
        """Release the files. Idempotent; on any thread, while nothing reads them."""
        with self._engine.guard:
            if not self._closed:
                self._drop_iterators()
                self._sources = self._frozen = ()
                self._closed = True
                self._engine.forget(self)

    def __enter__(self) -> RocksSnapshot:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _values(source: Any, keys: Sequence[bytes]) -> list[bytes | None]:
    try:
        values: list[bytes | None] = source.get(list(keys))
    except Exception as error:
        raise failure(error, "reading") from error
    assert len(values) == len(keys), "a value for every key"
    return values


class RocksFiles(RocksReader):
    """The engine in a directory whose node does not run, read as its last flush left it. Writes nothing there.

    RocksDB's log file and a note of rocksdict's would be written even by a reader, so it opens a directory of links instead.
    """

    def __init__(self, path: Path, *, scratch: Path) -> None:
        super().__init__("store")
        self.path = path
        for file in path.iterdir():
            if file.is_file() and file.name not in _WRITTEN_BY_READERS and not file.name.startswith("LOG"):
                (scratch / file.name).symlink_to(file.resolve())
        others = {name: rocksdict.Options(raw_mode=True) for f, name in FAMILY_NAMES.items() if f is not Family.DATA}
        access = rocksdict.AccessType.read_only(error_if_log_file_exist=False)
        try:
            self._db = Rdict(str(scratch), rocksdict.Options(raw_mode=True), column_families=others, access_type=access)
        except Exception as error:
            raise failure(error, f"opening {path}") from error
        self._sources = tuple(self._db.get_column_family(FAMILY_NAMES[f]) for f in FAMILIES)
        assert len(self._sources) == len(FAMILIES), "every family is open"

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        return self.multi_get(family, [key])[0]

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        return _values(self.source(family), keys)

    def close(self) -> None:
        """Release the files."""
        self._drop_iterators()
        sources, self._sources, self._closed = self._sources, (), True
        for handle in (*sources, self._db):
            handle.close()


class RocksEngine(RocksReader):
    """`seam.Engine` on RocksDB. Use it from the loop's thread; snapshots may be read and closed on another one."""

    def __init__(self, path: Path, *, settings: Settings, sleep: Callable[[float], Awaitable[None]]) -> None:
        self.path = path
        self._sleep = sleep
        self._budget = int(settings["storage.memtable_bytes"]) * MEMTABLES_PER_FAMILY_MAX
        self._memory = rocksdict.WriteBufferManager(self._budget, allow_stall=False)
        self._db = self._open(settings)
        self._noted = self._check_whole()
        self.files: Files = DirectoryFiles(path / FILES, Lock())
        super().__init__("engine")
        self._sources = tuple(self._db.get_column_family(FAMILY_NAMES[f]) for f in FAMILIES)
        self._handles = tuple(self._db.get_column_family_handle(FAMILY_NAMES[f]) for f in FAMILIES)
        assert len(self._sources) == len(self._handles) == len(FAMILIES), "every family is open"
        self._no_wal = cast("Any", rocksdict.WriteOptions())  # its type stub calls the property a method
        self._no_wal.disable_wal = True
        self._written = 0
        self._flushed = 0
        """Batches; several flushes may be under way, and each is of what was written before it began."""
        self._snapshots: WeakSet[RocksSnapshot] = WeakSet()
        self.guard = Lock()
        """Held while the state or the set of snapshots changes: snapshots are often closed on the thread that read them."""
        self._compacting = Lock()
        """Held while a thread compacts: the files are not let go of under it."""

    def _open(self, settings: Settings) -> Rdict:
        cache = rocksdict.Cache(int(settings["storage.block_cache_bytes"]))
        options = {f: self._options(f, settings, cache) for f in FAMILIES}
        others = {FAMILY_NAMES[f]: options[f] for f in FAMILIES if f is not Family.DATA}
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        try:
            return Rdict(str(self.path), options[Family.DATA], column_families=others)
        except Exception as error:
            text = str(error)
            if "LOCK" in text or "lock hold" in text:
                raise StorageError(
                    "this store is already open; close the other handle or stop its process", path=str(self.path)
                ) from None
            failed = failure(error, f"opening {self.path}")
            if isinstance(
                failed, DamageError
            ):  # not one replica's: of a store that cannot be opened nothing can be copied
                raise self._lost(**failed.facts) from error
            raise failed from error

    def _check_whole(self) -> int:
        """Raise if an older state was opened than was flushed (`storage.flushed`); the sequence number that was noted."""
        noted, opened = flushed_upto(self.path), self._db.latest_sequence_number()
        if opened < noted:
            self._db.close()
            raise self._lost(reason=f"it ends at {opened}, and was flushed up to {noted}")
        return noted

    def _lost(self, **facts: object) -> DamageError:
        return DamageError(
            f"the store in {self.path} cannot be opened, its own files are damaged; replace the node: start one with an empty "
            "store, then decommission this one",
            **facts,
        )

    def _options(self, family: Family, settings: Settings, cache: Any) -> Any:
        options = rocksdict.Options(raw_mode=True)
        options.create_if_missing(create_if_missing=True)
        options.create_missing_column_families(create_missing_cfs=True)
        options.set_atomic_flush(atomic_flush=True)
        options.set_write_buffer_manager(self._memory)
        options.set_write_buffer_size(int(settings["storage.memtable_bytes"]))
        options.set_max_write_buffer_number(MEMTABLES_PER_FAMILY_MAX)
        options.set_compression_type(rocksdict.DBCompressionType.lz4())
        options.set_level_compaction_dynamic_level_bytes(v=True)
        options.set_keep_log_file_num(4)
        table = rocksdict.BlockBasedOptions()
        table.set_block_cache(cache)
        table.set_block_size(BLOCK_BYTES)
        table.set_cache_index_and_filter_blocks(v=True)
        table.set_pin_l0_filter_and_index_blocks_in_cache(v=True)
        table.set_format_version(5)
        if family is not Family.DATA:
            table.set_bloom_filter(BLOOM_BITS_PER_KEY, block_based=False)
        options.set_block_based_table_factory(table)
        return options

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        try:
            value: bytes | None = self.source(family).get(key)
        except Exception as error:
            raise failure(error, "reading") from error
        return value

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        return _values(self.source(family), keys)

    def batch(self) -> WriteBatch:
        """An empty batch."""
        return WriteBatch()

    def write(self, batch: EngineBatch) -> None:
        """Apply atomically. Visible at once; not yet durable."""
        ours = own(batch)
        self.source(Family.DATA)  # refuses a closed engine
        raw = rocksdict.WriteBatch(raw_mode=True)
        for family, handle in zip(FAMILIES, self._handles, strict=True):
            writes, ranges = ours.writes[family], ours.ranges[family]
            for start, end in ranges:
                raw.delete_range(start, end, handle)
            if not writes:
                continue
            raw.set_default_column_family(handle)
            if None in writes.values():
                for key, value in writes.items():
                    raw.delete(key) if value is None else raw.put(key, value)
            else:
                deque(map(raw.put, writes, writes.values()), maxlen=0)
        with self.guard:
            self._changing()
            self._write_raw(raw)
        self._written += 1
        assert self._flushed < self._written, "what was just written is not durable yet (I-03)"

    def _write_raw(self, raw: Any) -> None:
        try:
            self._db.write(raw, self._no_wal)
        except Exception as error:
            raise failure(error, "writing") from error

    def _changing(self) -> None:
        """The state is about to change: freeze what must not, before anything shows the new state."""
        for snapshot in list(self._snapshots):
            if snapshot.live():
                snapshot.pin()
        self.version += 1
        assert self.guard.locked(), "the state changes under the guard"
        self._drop_shared()

    def forget(self, snapshot: RocksSnapshot) -> None:
        """A snapshot was closed."""
        assert self.guard.locked(), "the set of snapshots changes under the guard"
        self._snapshots.discard(snapshot)

    def snapshot(self, *, once: bool = False) -> RocksSnapshot:
        """The present state of all three families, frozen."""
        self.source(Family.DATA)
        with self.guard:  # the families' snapshots must be of one state
            snapshot = RocksSnapshot(self, self._sources, once=once)
            self._snapshots.add(snapshot)
            assert snapshot.live(), "a snapshot is of the present"
        return snapshot

    async def flush(self) -> None:
        """Return once everything written before the call is durable."""
        self.source(Family.DATA)
        covered, upto = self._written, self._db.latest_sequence_number()
        self._memory.set_buffer_size(1)
        try:
            self._write_raw(rocksdict.WriteBatch(raw_mode=True))
        finally:
            self._memory.set_buffer_size(self._budget)
        while any(s.property_int_value("rocksdb.num-immutable-mem-table") for s in self._sources):
            if self._db.property_int_value("rocksdb.background-errors"):
                self._write_raw(rocksdict.WriteBatch(raw_mode=True))  # after a compaction met damage: says so
                raise StorageError(
                    "RocksDB cannot write its files; look at the disk (full? read-only?) and restart the node",
                    path=str(self.path),
                )
            await self._sleep(FLUSH_POLL_SECONDS)
            self.source(Family.DATA)  # closed meanwhile
        self._flushed = max(self._flushed, covered)  # another one, of more, may have ended first
        assert self._flushed <= self._written, "what is durable was written"
        if upto > self._noted:
            self._noted = upto
            note_flushed(self.path, upto)

    async def checkpoint(self, directory: Path) -> None:
        """Write a complete, openable copy of the present state: hard links, plus a flush of what is in memory."""
        await self.flush()
        self._checkpoint(directory)

    def _checkpoint(self, directory: Path) -> None:
        if directory.exists():
            raise StorageError(
                "something is there already; choose an empty place for the checkpoint", path=str(directory)
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        try:
            rocksdict.Checkpoint(self._db).create_checkpoint(str(directory))
        except Exception as error:
            raise failure(error, f"writing a checkpoint to {directory}") from error

    def _flush_now(self) -> None:
        """Flush without the loop, for `close` and `ingest`: a checkpoint flushes all families in one edit."""
        if self._flushed < self._written:
            scratch = self.path / "flush.tmp"
            shutil.rmtree(scratch, ignore_errors=True)
            self._checkpoint(scratch)
            shutil.rmtree(scratch, ignore_errors=True)
            self._flushed = self._written

    def ingest(self, family: Family, keys: Sequence[bytes], values: Sequence[bytes]) -> None:
        """Add many sorted, unique pairs at once. Durable on return, and so is everything written before."""
        if any(a >= b for a, b in pairwise(keys)):
            raise UsageError("ingest needs sorted, unique keys", family=family.name)
        self.source(family)
        self._flush_now()  # otherwise the file would survive a crash that earlier batches do not
        assert self._flushed == self._written, "what was written before is durable"
        if not keys:
            return
        assert len(keys) == len(values), "a value for every key"
        file = self.path / "ingest.tmp"
        try:
            writer = rocksdict.SstFileWriter(rocksdict.Options(raw_mode=True))
            writer.open(str(file))
            deque(map(writer.__setitem__, keys, values), maxlen=0)
            writer.finish()
            how = rocksdict.IngestExternalFileOptions()
            how.set_move_files(v=True)
            with self.guard:
                self._changing()
                self._sources[family].ingest_external_file([str(file)], how)
        except Exception as error:
            raise failure(error, "ingesting") from error
        finally:
            file.unlink(missing_ok=True)

    def compact(self, family: Family, start: bytes, end: bytes) -> None:
        """Write the files of a span anew without what was deleted, on any thread, one at a time. Reads and writes go on.

        `StorageError` if the engine is closed meanwhile.
        """
        with self._compacting:
            source = self.source(family)
            try:
                source.compact_range(start, end)
            except Exception as error:
                raise failure(error, "compacting") from error

    def note_damage(self, reason: str) -> None:
        """Remember that a file is damaged, in a file beside it; what was noted first stays."""
        with suppress(OSError), (self.path / DAMAGED_FILE).open("x", encoding="utf-8") as file:
            file.write(reason + "\n")

    def approximate_bytes(self, family: Family, start: bytes, end: bytes) -> int:
        """Size on disk of the files in the span, half of those that only overlap it; memtables are not counted.

        rocksdict does not say which family a file is of: LOCK and LOCAL, both small, are counted with DATA.
        """
        total = 0
        for file in self.source(family).live_files():
            if file["start_key"] < end and file["end_key"] >= start:
                inside = start <= file["start_key"] and file["end_key"] < end
                total += file["size"] if inside else file["size"] // 2
        return total

    def status(self) -> str:
        """One line for scripts, logs and the console."""
        if self._closed:
            return "rocks (was closed)"
        sizes = " ".join(
            f"{f.name.lower()}~{self._sources[f].property_int_value('rocksdb.estimate-num-keys')}" for f in FAMILIES
        )
        memory = sum(s.property_int_value("rocksdb.cur-size-all-mem-tables") for s in self._sources)
        unflushed = self._written - self._flushed
        return f"rocks {sizes} files={len(self._db.live_files())} memtable_bytes={memory} unflushed={unflushed}"

    def close(self) -> None:
        """An orderly end: everything becomes durable. Open snapshots and cursors end too. Idempotent.

        A damaged store writes nothing any more once a compaction has met the damage. What it could not make durable is in
        the log, as after a crash: it closes all the same.
        """
        if self._closed:
            return
        with suppress(DamageError):
            self._flush_now()
        for snapshot in list(self._snapshots):
            snapshot.close()
        assert not self._snapshots, "no snapshot outlives the files that it pins"
        self._drop_iterators()
        sources, self._sources, self._handles, self._closed = self._sources, (), (), True
        stopped = self._compacting.locked()
        if stopped:
            self._db.cancel_all_background(True)  # noqa: FBT003 - takes no name; a compaction may take minutes
        with self._compacting:
            for handle in (*sources, self._db):
                try:
                    handle.close()
                except Exception as error:
                    if stopped and STOPPED in str(error):
                        continue  # it would have flushed, and everything is durable
                    if not isinstance(failure(error, "closing"), DamageError):
                        raise failure(error, "closing") from error


class RocksDisk:
    """The engines of one node, each in a directory of its own below `root`."""

    def __init__(
        self, root: Path, *, sleep: Callable[[float], Awaitable[None]], settings: Settings | None = None
    ) -> None:
        self.root = root
        self._sleep = sleep
        self._settings = settings or Settings()

    def open(self, name: str) -> RocksEngine:
        """Open or create the engine called `name`; an absolute path, such as a checkpoint's, is taken as it is."""
        return RocksEngine(self.root / name, settings=self._settings, sleep=self._sleep)
