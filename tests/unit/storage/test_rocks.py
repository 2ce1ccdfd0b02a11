import asyncio
import random
import sys
import threading

import pytest

from slackwater.errors import StorageError, UsageError
from slackwater.runtime.seam import Family
from slackwater.settings import Settings
from slackwater.storage.batch import WriteBatch
from slackwater.storage.memory import MemoryEngine
from slackwater.storage.overlay import Overlay
from slackwater.storage.rocks import RocksDisk

DATA, LOCK = Family.DATA, Family.LOCK


@pytest.fixture
def disk(tmp_path):
    return RocksDisk(tmp_path, sleep=asyncio.sleep, settings=Settings({"storage.block_cache_bytes": 8 << 20}))


def fill(engine, count, value=b"v"):
    batch = engine.batch()
    batch.put_many(DATA, [b"%05d" % n for n in range(count)], [value] * count)
    engine.write(batch)


def test_a_second_handle_is_refused_with_advice(disk):
    engine = disk.open("s")
    with pytest.raises(StorageError, match="already open; close the other handle"):
        disk.open("s")
    engine.close()
    disk.open("s").close()


def test_a_closed_engine_says_so_and_lets_go_of_its_files(disk):
    engine = disk.open("s")
    fill(engine, 100)
    cursor = engine.cursor(DATA, start=b"", end=b"\xff")
    assert len(cursor.chunk(50)[0]) == 50
    snapshot = engine.snapshot()
    short = snapshot.cursor(DATA, start=b"", end=b"\xff")
    short.chunk(1)
    engine.close()
    engine.close()
    for use in (
        lambda: fill(engine, 1),
        lambda: engine.get(DATA, b"a"),
        engine.snapshot,
        lambda: snapshot.get(DATA, b"a"),
    ):
        with pytest.raises(StorageError, match="closed"):
            use()
    again = disk.open("s")  # the open cursors above do not keep the lock
    assert again.get(DATA, b"00099") == b"v"
    assert again.status().startswith("rocks data~100 lock~0 local~0 files=")
    again.close()


def test_a_pinned_snapshot_shows_its_state_whatever_is_written(disk):
    engine = disk.open("s")
    fill(engine, 3000, b"old")
    snapshot = engine.snapshot()
    early = snapshot.cursor(DATA, start=b"", end=b"\xff")
    first = early.chunk(10)[0]
    fill(engine, 4000, b"new")
    late = snapshot.cursor(DATA, start=b"", end=b"\xff")
    backward = snapshot.cursor(DATA, start=b"00100", end=b"\xff", reverse=True)
    keys, values = late.chunk(10_000)
    assert first + early.chunk(10_000)[0] == keys == [b"%05d" % n for n in range(3000)]
    assert set(values) == {b"old"}
    assert backward.chunk(10_000)[0] == keys[:99:-1]
    assert snapshot.get(DATA, b"03500") is None
    assert snapshot.multi_get(DATA, [b"03500", b"00001"]) == [None, b"old"]
    snapshot.close()
    assert engine.get(DATA, b"00001") == b"new"
    engine.close()


def test_an_engine_cursor_ends_with_the_next_write(disk):
    engine = disk.open("s")
    fill(engine, 10)
    cursor = engine.cursor(DATA, start=b"", end=b"\xff")
    fill(engine, 11)
    with pytest.raises(UsageError, match="read a snapshot"):
        cursor.chunk(1)
    engine.close()


def test_writes_during_a_flush_are_not_lost(disk):
    async def main():
        engine = disk.open("s")
        fill(engine, 2000, b"x" * 500)
        flush = asyncio.ensure_future(engine.flush())
        await asyncio.sleep(0)
        fill(engine, 2001, b"y" * 500)
        await flush
        assert engine.get(DATA, b"02000") == b"y" * 500
        assert engine.approximate_bytes(DATA, b"", b"\xff") > 0
        await engine.checkpoint(disk.root / "copy")
        with pytest.raises(StorageError, match="there already"):
            await engine.checkpoint(disk.root / "copy")
        engine.close()

    asyncio.run(main())
    copy = disk.open("copy")
    assert copy.get(DATA, b"02000") == b"y" * 500
    copy.close()


def test_what_is_written_beside_several_flushes_is_durable_when_the_engine_is_closed(disk):
    """Flushes overlap: a snapshot is installed while another is. Each counts what was written before it began, once."""

    async def main():
        engine = disk.open("s")
        fill(engine, 2000, b"x" * 500)
        flushes = [asyncio.ensure_future(engine.flush()) for _ in range(3)]
        await asyncio.sleep(0)
        fill(engine, 2001, b"y" * 500)
        await asyncio.gather(*flushes)
        engine.close()

    asyncio.run(main())
    again = disk.open("s")
    assert again.get(DATA, b"02000") == b"y" * 500
    again.close()


def test_an_engine_is_closed_while_a_thread_compacts_it(disk):
    """Found by killing real nodes: a node that was stopped while it collected ended with "Already borrowed"."""

    async def main():
        engine = disk.open("s")
        chance = random.Random(1)
        for _ in range(4):
            fill(engine, 60_000, chance.randbytes(400))
            await engine.flush()
        errors: list[BaseException] = []

        def compact() -> None:
            try:
                engine.compact(DATA, b"", b"\xff")
            except StorageError as error:  # it is told to stop
                errors.append(error)

        thread = threading.Thread(target=compact)
        thread.start()
        while thread.is_alive() and not engine._db.property_int_value("rocksdb.num-running-compactions"):
            await asyncio.sleep(0.001)
        assert thread.is_alive(), "it is closed in the middle"
        engine.close()
        thread.join()
        with pytest.raises(StorageError, match="closed"):
            engine.compact(DATA, b"", b"\xff")

    asyncio.run(main())
    again = disk.open("s")
    assert len(again.cursor(DATA, start=b"", end=b"\xff").chunk(100_000)[0]) == 60_000
    again.close()


def test_foreign_batches_and_unsorted_ingests_are_refused(disk):
    engine = disk.open("s")
    with pytest.raises(UsageError):
        engine.write(object())
    with pytest.raises(UsageError):
        engine.ingest(DATA, [b"b", b"a"], [b"", b""])
    engine.close()


def test_overlay_equals_the_engine_after_the_batch():
    draw = random.Random(3)
    for _ in range(150):
        base, batch = MemoryEngine(), WriteBatch()
        before = WriteBatch()
        for _ in range(draw.randrange(30)):
            before.put(DATA, draw.randbytes(1), b"base")
        base.write(before)
        overlay = Overlay(base.snapshot(), batch)
        for _ in range(draw.randrange(90)):
            one, other = sorted([draw.randbytes(1), draw.randbytes(1)])
            match draw.randrange(6):
                case 0 if one < other:
                    batch.delete_range(DATA, one, other)
                case 1 | 2:
                    batch.delete(DATA, one)
                case _:
                    batch.put(DATA, one, draw.randbytes(1))
            if draw.randrange(4) == 0:  # looks in between keep the sorted keys up to date
                overlay.cursor(DATA, start=one, end=other).chunk(1)
        after = MemoryEngine()
        after.write(before)
        after.write(batch)
        low, high = sorted([draw.randbytes(1), draw.randbytes(1)])
        for reverse in (False, True):
            cursors = [r.cursor(DATA, start=low, end=high, reverse=reverse) for r in (overlay, after)]
            for seek in (None, draw.randbytes(1), draw.randbytes(1)):
                for cursor in cursors:
                    cursor.seek(seek) if seek is not None else None
                for limit in (1, 2, 5, 300):
                    assert cursors[0].chunk(limit) == cursors[1].chunk(limit)
        keys = [bytes([n]) for n in range(256)]
        assert overlay.multi_get(DATA, keys) == after.multi_get(DATA, keys)


def test_snapshots_made_and_closed_on_threads_do_not_disturb_the_writer(disk):
    """Found by killing real nodes: a snapshot was closed on an offload thread just as a write was about to pin it."""
    engine = disk.open("s")
    stop = threading.Event()
    errors: list[BaseException] = []

    def reader() -> None:
        try:
            while not stop.is_set():
                with engine.snapshot() as frozen:
                    both = [frozen.get(Family.DATA, b"k"), frozen.get(Family.LOCAL, b"k")]
                    assert both[0] == both[1], "the families' snapshots are of one state"
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=reader) for _ in range(3)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for n in range(2_000):
            batch = WriteBatch()
            batch.put(Family.DATA, b"k", b"%d" % n)
            batch.put(Family.LOCAL, b"k", b"%d" % n)
            engine.write(batch)
    finally:
        stop.set()
        for thread in threads:
            thread.join()
        sys.setswitchinterval(before)
        engine.close()
    assert not errors, errors[0]


def test_intents_that_are_gone_leave_the_files_when_they_are_compacted(disk, tmp_path):
    """Found by a store that kept two tables' worth of resolved intents until others had been flushed four times."""

    async def main():
        engine = disk.open("s")
        chance = random.Random(1)
        keys = [b"k%06d" % n for n in range(10_000)]
        batch = engine.batch()
        batch.put_many(LOCK, keys, [chance.randbytes(300) for _ in keys])
        engine.write(batch)
        await engine.flush()
        full = _table_bytes(tmp_path)
        assert full > 10_000 * 300
        batch = engine.batch()
        batch.delete_many(LOCK, keys)
        engine.write(batch)
        await engine.flush()
        engine.compact(LOCK, b"k", b"l")
        async with asyncio.timeout(60):
            while _table_bytes(tmp_path) > full / 10:
                await asyncio.sleep(0.01)
        assert engine.cursor(LOCK, start=b"", end=b"\xff").chunk(10)[0] == []
        engine.close()

    asyncio.run(main())


def _table_bytes(directory):
    return sum(file.stat().st_size for file in directory.rglob("*.sst"))
