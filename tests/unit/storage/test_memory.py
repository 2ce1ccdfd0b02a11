import asyncio
import random
from pathlib import Path

import pytest

from slackwater.errors import DecodeError, StorageError, UsageError
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch, decode_batch
from slackwater.storage.cow import CowTable
from slackwater.storage.memory import UNFLUSHED_BATCHES_MAX, MemoryDisk, MemoryEngine

DATA, LOCK, LOCAL = Family.DATA, Family.LOCK, Family.LOCAL


def put(engine, key, value=b"v", family=DATA):
    batch = engine.batch()
    batch.put(family, key, value)
    engine.write(batch)


def pairs(reader, family=DATA, start=b"", end=b"\xff", reverse=False, limit=3):
    cursor = reader.cursor(family, start=start, end=end, reverse=reverse)
    out = []
    while True:
        keys, values = cursor.chunk(limit)
        if not keys:
            return out
        assert len(keys) == len(values) <= limit
        out += zip(keys, values, strict=True)


def test_cow_table_equals_a_dict_and_forks_stay_frozen():
    draw = random.Random(7)
    table, oracle, forks = CowTable(), {}, []
    for step in range(6000):
        key = draw.randbytes(draw.choice([1, 2, 2, 2]))
        match draw.randrange(20):
            case 0 | 1 | 2 | 3 | 4:
                table.update([(key, None)])
                oracle.pop(key, None)
            case 5 if step % 50 == 0:
                end = max(key, draw.randbytes(2))
                table.delete_range(key, end)
                oracle = {k: v for k, v in oracle.items() if not key <= k < end}
            case 6:
                forks.append((table.fork(), dict(oracle)))
                if draw.randrange(2):  # go on with the fork and keep the original frozen: both sides must be safe
                    fork = table.fork()
                    forks.append((table, dict(oracle)))
                    table = fork
            case _:
                table.update([(key, draw.randbytes(3))])
                oracle[key] = table.get(key)
    forks.append((table, oracle))
    for frozen, expected in draw.sample(forks, 40) + forks[-1:]:
        whole = frozen.place(b""), frozen.place(b"\xff" * 3)
        keys, values, _ = frozen.forward(*whole, 1 << 20)
        assert dict(zip(keys, values, strict=True)) == expected
        assert keys == sorted(expected)
        assert frozen.size == len(expected)
        assert frozen.backward(*whole, 1 << 20)[0] == keys[::-1]


def test_cursor_respects_bounds_and_seeks_in_both_directions():
    engine = MemoryEngine()
    for n in range(0, 2000, 2):
        put(engine, b"%04d" % n)
    assert [k for k, _ in pairs(engine, start=b"0010", end=b"0016")] == [b"0010", b"0012", b"0014"]
    assert [k for k, _ in pairs(engine, start=b"0010", end=b"0016", reverse=True)] == [b"0014", b"0012", b"0010"]
    assert len(pairs(engine, limit=100)) == len(pairs(engine, reverse=True, limit=100)) == 1000
    cursor = engine.cursor(DATA, start=b"0010", end=b"0100")
    cursor.seek(b"0051")
    assert cursor.chunk(1)[0] == [b"0052"]
    cursor.seek(b"0000")
    assert cursor.chunk(1)[0] == [b"0010"]
    cursor.seek(b"0100")
    assert cursor.chunk(1)[0] == []
    cursor = engine.cursor(DATA, start=b"0010", end=b"0100", reverse=True)
    cursor.seek(b"0051")
    assert cursor.chunk(1)[0] == [b"0050"]
    cursor.seek(b"0050")
    assert cursor.chunk(1)[0] == [b"0050"]
    cursor.seek(b"0001")
    assert cursor.chunk(1)[0] == []
    assert pairs(engine, start=b"5", end=b"4") == []


def test_snapshots_do_not_see_later_writes_and_cursors_end_with_them():
    engine = MemoryEngine()
    put(engine, b"a")
    cursor = engine.cursor(DATA, start=b"", end=b"z")
    with engine.snapshot() as snapshot:
        put(engine, b"b")
        assert pairs(snapshot) == [(b"a", b"v")]
        assert snapshot.get(DATA, b"b") is None
    with pytest.raises(UsageError, match="read a snapshot"):
        cursor.chunk(9)
    assert engine.multi_get(DATA, [b"b", b"x", b"a"]) == [b"v", None, b"v"]
    with pytest.raises(StorageError, match="closed"):
        snapshot.get(DATA, b"a")


@pytest.mark.parametrize("kept", range(4))
def test_a_crash_keeps_what_was_flushed_and_a_prefix_of_the_rest(kept):
    engine = MemoryEngine()
    put(engine, b"0")
    asyncio.run(engine.flush())
    for n in b"123":
        batch = engine.batch()
        for family in Family:
            batch.put(family, bytes([n]), b"v")
        engine.write(batch)
    drawn = []
    after = engine.crash(lambda unflushed: drawn.append(unflushed) or kept)
    assert drawn == [3]
    assert [k for k, _ in pairs(after)] == [b"%d" % n for n in range(kept + 1)]
    assert [k for k, _ in pairs(after, LOCK)] == [b"%d" % n for n in range(1, kept + 1)]
    with pytest.raises(StorageError, match="lost power"):
        put(engine, b"zombie")
    with pytest.raises(StorageError, match="lost power"):
        engine.get(DATA, b"0")


def test_a_slow_flush_hardens_only_what_was_written_before_it_began():
    engine = MemoryEngine()
    put(engine, b"a")
    mark = engine.mark()
    put(engine, b"b")
    engine.harden(mark)
    engine.harden(mark)
    put(engine, b"c")
    assert [k for k, _ in pairs(engine)] == [b"a", b"b", b"c"]
    assert [k for k, _ in pairs(engine.crash(lambda unflushed: unflushed - 1))] == [b"a", b"b"]


def test_unflushed_batches_are_bounded():
    engine = MemoryEngine()
    for n in range(UNFLUSHED_BATCHES_MAX + 10):
        put(engine, b"%05d" % n)
    assert len(pairs(engine.crash(lambda unflushed: 0), limit=1000)) == UNFLUSHED_BATCHES_MAX // 2


def test_disk_reopens_after_close_and_crash_and_refuses_two_handles():
    disk = MemoryDisk()
    engine = disk.open("n1")
    put(engine, b"a")
    with pytest.raises(StorageError, match="already open"):
        disk.open("n1")
    engine.close()
    engine = disk.open("n1")
    put(engine, b"b")
    asyncio.run(engine.checkpoint(Path("/backup/1")))
    disk.crash(lambda unflushed: 0)
    assert [k for k, _ in pairs(disk.open("n1"))] == [b"a"]
    assert [k for k, _ in pairs(disk.open("/backup/1"))] == [b"a", b"b"]
    disk.crash(lambda unflushed: 0)
    assert [k for k, _ in pairs(disk.open("/backup/1"))] == [b"a", b"b"]
    with pytest.raises(StorageError, match="there already"):
        asyncio.run(disk.open("n1").checkpoint(Path("/backup/1")))


def test_ingest_is_durable_with_everything_before_it():
    engine = MemoryEngine()
    put(engine, b"a")
    engine.ingest(DATA, [b"b", b"c"], [b"1", b"2"])
    with pytest.raises(UsageError):
        engine.ingest(DATA, [b"c", b"b"], [b"1", b"2"])
    assert [k for k, _ in pairs(engine.crash(lambda unflushed: 0))] == [b"a", b"b", b"c"]


def test_a_batch_is_canonical_and_travels():
    batch = WriteBatch()
    batch.put(DATA, b"a", b"1")
    batch.put(DATA, b"m", b"2")
    batch.delete_range(DATA, b"a", b"c")
    batch.put(DATA, b"b", b"3")
    batch.delete(LOCK, b"x")
    engine = MemoryEngine()
    put(engine, b"a"), put(engine, b"c"), put(engine, b"x", family=LOCK)
    again = decode_batch(batch.encode())
    assert again.encode() == batch.encode()
    assert len(again) == 4
    engine.write(again)
    assert pairs(engine) == [(b"b", b"3"), (b"c", b"v"), (b"m", b"2")]
    assert pairs(engine, LOCK) == []
    assert engine.approximate_bytes(DATA, b"b", b"d") == 4
    assert engine.status() == "memory data=3 lock=0 local=0 unflushed=4"
    for broken in (
        b"",
        b"\xc1",
        batch.encode()[:-1],
        b"\x91\x94\x07\x90\x90\x90",
        b"\x91\x94\x00\x90\x91\xc4\x01a\x90",
    ):
        with pytest.raises(DecodeError):
            decode_batch(broken)
