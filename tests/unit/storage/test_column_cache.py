"""The column cache: what is found, what goes, what is never kept."""

from slackwater.clock.timestamp import Timestamp
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch
from slackwater.storage.column_cache import PATIENCE, TOUCHED_MAX, ColumnCache, KeptBlock
from slackwater.storage.versions import suffix

PLAN = b"plan"


def block(start, end, *, newest=10, size=100):
    return KeptBlock(start, end, memoryview(bytes(size)), 5, 5, 50, Timestamp(newest))


def cache_of(*blocks, room=1 << 20):
    cache = ColumnCache(room)
    cache.end(cache.begin(b"", b"\xff"), PLAN, blocks)
    return cache


def find(cache, start=b"a", end=b"z", *, ts=20, max_bytes=1 << 20, plan=PLAN):
    found = cache.find(plan, start, end, ts=Timestamp(ts), max_bytes=max_bytes)
    return [b.start + b"-" + b.end for b in found.blocks], found.until


def write(cache, *keys, family=Family.DATA):
    batch = WriteBatch()
    for key in keys:
        batch.put(family, key + suffix(Timestamp(15)), b"v")
    cache.written(batch)


def test_blocks_that_follow_one_another_are_found_together():
    cache = cache_of(block(b"a", b"c"), block(b"c", b"f"), block(b"g", b"k"))
    assert find(cache) == ([b"a-c", b"c-f"], b"f")
    assert find(cache, b"f") == ([], b"g")
    assert find(cache, b"g") == ([b"g-k"], b"k")
    assert find(cache, b"b") == ([], b"c")
    assert find(cache, b"k") == ([], b"z")


def test_limits_and_bounds_end_what_is_found():
    cache = cache_of(block(b"a", b"c"), block(b"c", b"f"))
    assert find(cache, max_bytes=199) == ([b"a-c"], b"c")
    assert find(cache, max_bytes=200) == ([b"a-c", b"c-f"], b"f")
    assert find(cache, max_bytes=50) == ([b"a-c"], b"c")
    assert find(cache, max_bytes=49) == ([], b"c")
    assert find(cache, end=b"e") == ([b"a-c"], b"c")
    assert find(cache, b"c", b"e") == ([], b"e")


def test_a_read_below_the_newest_version_finds_nothing():
    cache = cache_of(block(b"a", b"c", newest=10), block(b"c", b"f", newest=12))
    assert find(cache, ts=9) == ([], b"z")
    assert find(cache, ts=11) == ([b"a-c"], b"c")


def test_another_plan_has_other_blocks():
    cache = cache_of(block(b"a", b"c"))
    assert find(cache, plan=b"other") == ([], b"z")


def test_a_written_key_takes_its_block_along_and_no_other():
    cache = cache_of(block(b"a", b"c"), block(b"c", b"f"), block(b"g", b"k"))
    write(cache, b"f", b"z", b"A")  # all between blocks or beside them
    assert len(cache) == 3
    write(cache, b"d", b"e", b"h")
    assert find(cache) == ([b"a-c"], b"c")
    assert len(cache) == 1
    write(cache, b"a", b"b")
    assert len(cache) == 0
    assert cache.bytes == 0


def test_intents_are_no_versions():
    cache = cache_of(block(b"a", b"c"))
    batch = WriteBatch()
    batch.put(Family.LOCK, b"b", b"intent")
    cache.written(batch)
    assert len(cache) == 1


def test_a_range_deletion_clears_everything():
    cache = cache_of(block(b"a", b"c"))
    fill = cache.begin(b"k", b"m")
    batch = WriteBatch()
    batch.delete_range(Family.DATA, b"x", b"y")
    cache.written(batch)
    assert len(cache) == 0
    cache.end(fill, PLAN, [block(b"k", b"m")])
    assert len(cache) == 0


def test_what_was_written_while_a_block_was_made_is_not_kept():
    cache = ColumnCache(1 << 20)
    fill = cache.begin(b"a", b"z")
    write(cache, b"d")
    cache.end(fill, PLAN, [block(b"a", b"c"), block(b"c", b"f"), block(b"f", b"z")])
    assert find(cache) == ([b"a-c"], b"c")
    assert find(cache, b"f") == ([b"f-z"], b"z")
    fill = cache.begin(b"c", b"f")
    write(cache, *(b"d%d" % n for n in range(TOUCHED_MAX + 1)))
    cache.end(fill, PLAN, [block(b"c", b"d")])
    assert find(cache, b"c") == ([], b"f")


def test_a_new_block_replaces_those_it_overlaps():
    cache = cache_of(block(b"a", b"c"), block(b"c", b"f"), block(b"f", b"h"))
    cache.end(cache.begin(b"b", b"d"), PLAN, [block(b"b", b"d")])
    assert find(cache, b"b") == ([b"b-d"], b"d")
    assert find(cache, b"f") == ([b"f-h"], b"h")
    assert len(cache) == 2


def test_room_is_bounded_and_a_long_scan_does_not_push_out_what_is_used():
    one = block(b"a", b"c").size
    cache = cache_of(block(b"a", b"c"), block(b"c", b"f"), room=2 * one)
    cache.end(cache.begin(b"f", b"h"), PLAN, [block(b"f", b"h")])
    assert find(cache) == ([b"a-c", b"c-f"], b"f")
    for _ in range(PATIENCE * 2 + 1):  # nobody asks for the first one any more
        assert find(cache, b"c")[0] == [b"c-f"]
    cache.end(cache.begin(b"f", b"h"), PLAN, [block(b"f", b"h")])
    assert find(cache, b"c") == ([b"c-f", b"f-h"], b"h")
    assert find(cache)[0] == []
    assert cache.bytes <= cache.bytes_max


def test_without_room_nothing_is_kept():
    cache = cache_of(block(b"a", b"c"), room=0)
    assert len(cache) == 0
    assert cache.status() == "columns blocks=0 plans=0 bytes=0 hits=0 misses=0"
