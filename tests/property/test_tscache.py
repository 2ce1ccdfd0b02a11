"""The timestamp cache against a list of every read: equal while nothing was forgotten, never below it afterwards."""

from __future__ import annotations

from typing import TypeAlias

from hypothesis import given, settings
from hypothesis import strategies as st

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.errors import DecodeError
from slackwater.replica.read_summary import SUMMARY_BYTES_MIN, ReadSummary, collapse, decode, encode
from slackwater.replica.tscache import TimestampCache
from tests.twins.timestamp_cache import NaiveTimestampCache

Where: TypeAlias = tuple[bytes, bytes | None]
Add: TypeAlias = tuple[Where, int, bytes | None]

LETTERS = [bytes([97 + n]) for n in range(10)]
SMALL = 700
"""Room for two points or five segment boundaries: nearly every script forgets."""


@st.composite
def places(draw: st.DrawFn) -> Where:
    low = draw(st.integers(0, 9))
    high = draw(st.none() | st.integers(low + 1, 10))
    return LETTERS[low], None if high is None else (LETTERS[high] if high < 10 else b"z")


adds = st.tuples(places(), st.integers(1, 12), st.sampled_from([None, b"A", b"B", b"C"]))
scripts = st.lists(adds | st.integers(1, 8), max_size=40)
everywhere: list[Where] = [(k, None) for k in LETTERS] + [
    (a, b) for i, a in enumerate(LETTERS) for b in [*LETTERS[i + 1 :], b"z"]
]


def run(script: list[Add | int], cache: TimestampCache) -> NaiveTimestampCache:
    """Feed both; an integer raises the floor."""
    twin = NaiveTimestampCache()
    for step in script:
        if isinstance(step, int):
            cache.raise_floor(Timestamp(step))
            twin.raise_floor(Timestamp(step))
        else:
            (start, end), ts, txn = step
            cache.add(start, end, ts=Timestamp(ts), txn=txn)
            twin.add(start, end, ts=Timestamp(ts), txn=txn)
    return twin


def never_below(cache: TimestampCache, twin: NaiveTimestampCache, where: Where) -> None:
    """At or above the truth; an owner is only named when it is the true one."""
    ts, txn = cache.get(*where)
    true_ts, true_txn = twin.get(*where)
    assert ts >= true_ts
    if txn is not None:
        assert (ts, txn) == (true_ts, true_txn)
    for writer in (None, b"A", b"B"):
        lowest = true_ts if writer is not None and writer == true_txn else true_ts + 1
        assert cache.first_writable(*where, txn=writer) >= lowest


@settings(deadline=None, max_examples=250)
@given(scripts)
def test_equal_to_the_twin_while_nothing_is_forgotten(script: list[Add | int]) -> None:
    cache = TimestampCache()
    twin = run(script, cache)
    for where in everywhere:
        assert cache.get(*where) == twin.get(*where)
    assert cache.evictions == 0
    assert cache.low_water == twin.low_water


@settings(deadline=None, max_examples=250)
@given(scripts)
def test_never_below_the_twin_and_never_over_the_bound_when_full(script: list[Add | int]) -> None:
    cache = TimestampCache(bytes_max=SMALL)
    twin = NaiveTimestampCache()
    low_water = 0
    for step in script:
        part = run([step], cache)
        twin._reads += part._reads
        twin.raise_floor(part.low_water)
        assert cache.bytes_used <= SMALL
        assert cache.low_water >= low_water, "low water never falls"
        low_water = cache.low_water
    for where in everywhere:
        never_below(cache, twin, where)
        if twin.get(*where)[0] > cache.low_water:
            assert cache.get(*where) == twin.get(*where), "above the low-water mark it is exact"


@settings(deadline=None, max_examples=200)
@given(scripts, st.integers(SUMMARY_BYTES_MIN, 400), places(), scripts)
def test_a_successor_never_knows_less(
    script: list[Add | int], bytes_max: int, part: Where, own: list[Add | int]
) -> None:
    """Through bytes of any size, into an empty cache (lease transfer) or one span of a used one (merge)."""
    cache = TimestampCache()
    twin = run(script, cache)
    data = encode(cache.summary(bytes_max=bytes_max))
    assert len(data) <= bytes_max
    successor = TimestampCache()
    successor.apply_summary(decode(data))
    for where in everywhere:
        never_below(successor, twin, where)

    start, end = part[0], part[1] or part[0] + b"\x00"
    merged = TimestampCache()
    before = run(own, merged)
    merged.apply_summary(cache.summary(bytes_max=bytes_max, start=start, end=end), within=(start, end))
    assert merged.low_water == before.low_water, "the right side's floor is not the left side's business"
    both = before
    both.add(start, end, ts=twin.low_water)
    for low, high, ts, txn in twin._reads:
        if max(low, start) < min(high, end):
            both.add(max(low, start), min(high, end), ts=ts, txn=txn)
    for where in everywhere:
        never_below(merged, both, where)


@settings(deadline=None, max_examples=150)
@given(scripts)
def test_a_summary_with_room_loses_nothing(script: list[Add | int]) -> None:
    cache = TimestampCache()
    run(script, cache)
    summary = cache.summary(bytes_max=1 << 20)
    successor = TimestampCache()
    successor.apply_summary(decode(encode(summary)))
    assert [successor.get(*where) for where in everywhere] == [cache.get(*where) for where in everywhere]
    assert successor.summary(bytes_max=1 << 20) == summary
    smallest = collapse(summary, bytes_max=SUMMARY_BYTES_MIN)
    assert smallest == ReadSummary(max([cache.get(b"", b"zz")[0], cache.low_water]))


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 60), st.integers(0, 255))
def test_a_fuzzed_summary_is_decoded_or_refused(noise: bytes, position: int, value: int) -> None:
    cache = TimestampCache()
    cache.add(b"a", b"m", ts=Timestamp(9), txn=b"A")
    cache.add(b"k", ts=Timestamp(int(MAX)), txn=None)
    damaged = bytearray(encode(cache.summary(bytes_max=200)))
    damaged[position % len(damaged)] = value
    for data in (noise, bytes(damaged), bytes(damaged[:position])):
        try:
            summary = decode(data)
        except DecodeError:
            continue
        TimestampCache().apply_summary(summary)
