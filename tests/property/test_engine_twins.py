"""I-32: the memory engine and RocksDB are one engine: same reads after the same writes, and a crash leaves a prefix."""

import asyncio
import shutil
import tempfile
from pathlib import Path

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.batch import decode_batch
from slackwater.storage.memory import MemoryDisk
from slackwater.storage.rocks import RocksDisk

KEYS = st.sampled_from([bytes([a]) + b for a in (1, 2, 0x7F, 0xFE) for b in (b"", b"\x00", b"\x00\x00", b"q", b"\xff")])
FAMILY = st.sampled_from(list(Family))
WRITES = st.lists(st.tuples(FAMILY, KEYS, st.one_of(st.none(), st.binary(max_size=3))), min_size=1, max_size=6)
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None  # memory: this test is about order, not about fsync
SMALL = {"storage.memtable_bytes": 1 << 20, "storage.block_cache_bytes": 8 << 20}


def everything(reader):
    out = []
    for family in Family:
        keys, values = reader.cursor(family, start=b"", end=b"\xff").chunk(1000)
        out.append(list(zip(keys, values, strict=True)))
    return out


def walk(reader, family, start, end, reverse, seeks, limit, bare):
    """Two blocks from each place; `bare` says which of them are keys alone, so that they follow each other in any way."""
    cursor = reader.cursor(family, start=start, end=end, reverse=reverse)
    out = []
    for key in [None, *seeks]:
        if key is not None:
            cursor.seek(key)
        out += [cursor.keys(limit) if keys_only else cursor.chunk(limit) for keys_only in bare]
    return out


def copy_stable(before, after):
    """Copy a store's directory as of one moment: again, if RocksDB's background threads changed it meanwhile."""

    def listing():
        return sorted((p.name, p.stat().st_size) for p in before.iterdir())

    for _ in range(1000):
        shutil.rmtree(after, ignore_errors=True)
        try:
            then = listing()
            shutil.copytree(before, after, ignore=shutil.ignore_patterns("LOCK"))
            if listing() == then:
                return
        except (shutil.Error, FileNotFoundError):
            continue
    raise AssertionError("the directory never came to rest")


class Twins(RuleBasedStateMachine):
    @initialize()
    def begin(self):
        self.root = Path(tempfile.mkdtemp(prefix="slackwater-twins-", dir=SCRATCH))
        self.disks = MemoryDisk(), RocksDisk(self.root, sleep=asyncio.sleep, settings=Settings(SMALL))
        self.generation = self.checkpoints = 0
        self.snapshots = []
        self.open()

    def open(self):
        self.memory, self.rocks = (disk.open(f"s{self.generation}" if i else "s") for i, disk in enumerate(self.disks))
        self.since = [everything(self.memory)]  # the states after each batch since the last flush

    def write(self, fill):
        batch = self.memory.batch()
        fill(batch)
        self.rocks.write(decode_batch(batch.encode()))
        self.memory.write(batch)
        self.since.append(everything(self.memory))

    @rule(writes=WRITES)
    def batch(self, writes):
        def fill(batch):
            for family, key, value in writes:
                batch.delete(family, key) if value is None else batch.put(family, key, value)

        self.write(fill)

    @rule(family=FAMILY, one=KEYS, other=KEYS, after=WRITES)
    def delete_range(self, family, one, other, after):
        def fill(batch):
            batch.put(family, one, b"inside")
            batch.delete_range(family, min(one, other), max(one, other) + b"\x00")
            for family_, key, value in after:
                batch.put(family_, key, value or b"")

        self.write(fill)

    @rule(family=FAMILY, pairs=st.dictionaries(KEYS, st.binary(max_size=3), max_size=5))
    def ingest(self, family, pairs):
        keys = sorted(pairs)
        for engine in (self.memory, self.rocks):
            engine.ingest(family, keys, [pairs[k] for k in keys])
        self.since = [everything(self.memory)]

    @rule()
    def flush(self):
        asyncio.run(self.memory.flush())
        asyncio.run(self.rocks.flush())
        self.since = [everything(self.memory)]

    @rule()
    def snapshot(self):
        self.snapshots.append((self.memory.snapshot(), self.rocks.snapshot(), everything(self.memory)))

    @rule(
        family=FAMILY, one=KEYS, other=KEYS, reverse=st.booleans(), seeks=st.lists(KEYS, max_size=3),
        limit=st.sampled_from([1, 2, 17, 50]), keys=st.lists(KEYS, max_size=4), pick=st.integers(0, 3),
        bare=st.tuples(st.booleans(), st.booleans()),
    )  # fmt: skip
    def read(self, family, one, other, reverse, seeks, limit, keys, pick, bare):
        pair = self.snapshots[pick][:2] if pick < len(self.snapshots) else (self.memory, self.rocks)
        start, end = min(one, other), max(one, other)
        a, b = (walk(reader, family, start, end, reverse, seeks, limit, bare) for reader in pair)
        assert a == b, (a, b)
        assert pair[0].multi_get(family, keys) == pair[1].multi_get(family, keys)
        assert [pair[0].get(family, k) for k in keys] == [pair[1].get(family, k) for k in keys]

    @rule()
    def restart(self):
        self.snapshots.clear()
        self.memory.close(), self.rocks.close()
        self.open()

    @rule()
    def checkpoint(self):
        self.checkpoints += 1
        name = self.root / f"checkpoint{self.checkpoints}"
        asyncio.run(self.memory.checkpoint(name))
        asyncio.run(self.rocks.checkpoint(name))
        copies = [disk.open(str(name)) for disk in self.disks]
        assert everything(copies[0]) == everything(copies[1]) == everything(self.memory)
        copies[1].close()

    @rule()
    def crash(self):
        """A power cut for RocksDB: what is on the disk now, opened elsewhere. The memory twin is told what survived."""
        self.snapshots.clear()
        before = self.root / f"s{self.generation}"
        self.generation += 1
        copy_stable(before, self.root / f"s{self.generation}")
        self.rocks.close()
        self.rocks = self.disks[1].open(f"s{self.generation}")
        survived = everything(self.rocks)
        assert survived in self.since, "after a crash the engine holds a prefix of the batches, all families alike"
        lost = self.since[::-1].index(survived)
        self.memory.crash(lambda unflushed: unflushed - lost)
        self.disks[0].crash(lambda unflushed: 0)
        self.memory = self.disks[0].open("s")
        self.since = [survived]

    @invariant()
    def equal(self):
        if hasattr(self, "rocks"):
            assert everything(self.memory) == everything(self.rocks)
            for memory, rocks, then in self.snapshots:
                assert everything(memory) == everything(rocks) == then

    def teardown(self):
        if hasattr(self, "rocks"):
            self.snapshots.clear()
            self.rocks.close()
            shutil.rmtree(self.root, ignore_errors=True)


Twins.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
TestTwins = Twins.TestCase
