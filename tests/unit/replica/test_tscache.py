"""The timestamp cache by hand: owners, forgetting, misuse."""

from __future__ import annotations

import pytest

from slackwater import hooks
from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.errors import DecodeError, UsageError
from slackwater.replica.read_summary import ReadEntry, ReadSummary, collapse, decode, encode, entry_bytes
from slackwater.replica.tscache import POINT_BYTES, TimestampCache


def at(ts: int) -> Timestamp:
    return Timestamp(ts)


def test_an_unread_key_may_be_written_right_above_low_water() -> None:
    cache = TimestampCache(low_water=at(5))
    assert cache.get(b"k") == (5, None)
    assert cache.first_writable(b"k", txn=b"A") == 6


def test_a_transaction_does_not_stand_in_its_own_way() -> None:
    cache = TimestampCache()
    cache.add(b"k", ts=at(10), txn=b"A")
    assert cache.first_writable(b"k", txn=b"A") == 10
    assert cache.first_writable(b"k", txn=b"B") == 11
    assert cache.first_writable(b"k") == 11
    cache.add(b"a", b"z", ts=at(10), txn=b"B")
    assert cache.get(b"k") == (10, None), "a tie forgets the owner"
    assert cache.get(b"b") == (10, b"B")
    assert cache.first_writable(b"k", txn=b"A") == 11


def test_a_write_of_nobody_never_counts_as_the_owner() -> None:
    cache = TimestampCache()
    cache.add(b"k", ts=at(10), txn=None)
    assert cache.first_writable(b"k", txn=None) == 11


def test_a_floor_at_the_same_timestamp_forgets_the_owner() -> None:
    cache = TimestampCache()
    cache.add(b"k", ts=at(10), txn=b"A")
    cache.add(b"a", b"c", ts=at(10), txn=b"A")
    cache.raise_floor(at(10))
    assert cache.get(b"k") == cache.get(b"a", b"c") == (10, None)
    assert cache.bytes_used == 0
    cache.raise_floor(at(3))
    assert cache.low_water == 10


def test_forgetting_raises_the_floor_and_frees_half() -> None:
    room = 100 * (POINT_BYTES + 4)
    cache = TimestampCache(bytes_max=room)
    for n in range(1000):
        cache.add(b"%04d" % n, ts=at(n + 1), txn=b"A")
        assert cache.bytes_used <= room
    assert cache.evictions > 10
    assert cache.get(b"0000") == (cache.low_water, None)
    assert cache.get(b"0999") == (1000, b"A")
    assert 900 <= cache.low_water < 1000


def test_one_key_larger_than_the_cache_becomes_the_floor() -> None:
    cache = TimestampCache(bytes_max=1000)
    cache.add(b"k" * 2000, ts=at(7), txn=b"A")
    assert cache.get(b"k" * 2000) == (7, None)
    assert cache.bytes_used == 0


def test_eviction_can_be_provoked_by_the_simulator() -> None:
    seen: list[str] = []
    hooks.install(probe=seen.append, buggify=lambda site: site == "tscache.evict_early")
    try:
        cache = TimestampCache()
        cache.add(b"k", ts=at(7), txn=b"A")
    finally:
        hooks.install()
    assert cache.get(b"k") == cache.get(b"other") == (7, None)
    assert seen == ["tscache.evicted"]


@pytest.mark.parametrize("call", ["add", "get"])
def test_an_empty_span_is_refused_and_leaves_no_trace(call: str) -> None:
    cache = TimestampCache()
    with pytest.raises(UsageError):
        cache.add(b"b", b"b", ts=at(5)) if call == "add" else cache.get(b"b", b"a")
    assert cache.status() == "low_water=0 points=0 segments=0 evictions=0"


def test_a_cache_without_memory_is_refused() -> None:
    with pytest.raises(UsageError):
        TimestampCache(bytes_max=0)


def test_a_summary_keeps_the_newest_that_fit() -> None:
    entries = tuple(ReadEntry(b"k%d" % n, None, at(n), b"A") for n in (7, 12, 9))
    full = ReadSummary(at(5), entries)
    one = collapse(full, bytes_max=16 + entry_bytes(entries[1]))
    assert one == ReadSummary(at(9), (entries[1],))
    with pytest.raises(UsageError):
        collapse(full, bytes_max=15)


def test_the_largest_encoding_is_within_the_estimate() -> None:
    entry = ReadEntry(b"s" * 70_000, b"t" * 70_000, MAX, b"x" * 70_000)
    summary = ReadSummary(MAX, (entry,))
    assert len(encode(summary)) <= 16 + entry_bytes(entry)
    assert len(encode(ReadSummary(MAX, ()))) <= 16


@pytest.mark.parametrize(
    "bad",
    [
        (-1, []),
        (1 << 63, []),
        (5, [(b"a", b"a", 7, None)]),
        (5, [(b"a", None, -7, None)]),
        (5, [(b"a", None, "x", None)]),
        (5, 5),
    ],
)
def test_a_summary_that_cannot_be_is_refused(bad: object) -> None:
    import msgspec

    with pytest.raises(DecodeError):
        decode(msgspec.msgpack.encode(bad))


def test_the_highest_read_is_remembered_whatever_is_forgotten() -> None:
    cache = TimestampCache(low_water=Timestamp(5), bytes_max=4 * (POINT_BYTES + 1))
    assert cache.highest == 5
    cache.add(b"a", ts=Timestamp(90))
    cache.add(b"b", b"c", ts=Timestamp(70))
    for n in range(20):
        cache.add(b"k%d" % n, ts=Timestamp(10 + n))
    assert cache.evictions
    assert cache.highest == 90
    cache.raise_floor(Timestamp(200))
    assert cache.highest == 200
