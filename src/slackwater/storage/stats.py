"""What a span holds, in numbers that every write can update without looking at anything else.

    versions of a key, newest first          live               garbage since
    d @ 40   tombstone                       -                  40   (its own time)
    c @ 30   value                           -                  40   (when it was superseded)
    b @ 20   value                           -                  30
    or, without d:  c @ 30                   c                  b since 30

A version counts `len(key) + 8 + len(value)` bytes. The newest version is live unless it is a tombstone; everything else
is garbage, since the time at which the version above it was written (a tombstone since its own). Intents are counted
apart, by their stored bytes: until they commit they change neither what is live nor what is garbage.

Age. `garbage_age` is byte-seconds: how many bytes have been garbage for how long, which is what decides whether
collecting pays. It is linear in the present time, so it is kept as one sum, `garbage_weight` = Σ bytes · second, and

    age(now) = garbage_bytes · now − garbage_weight

Deltas are the same type and add up; `recompute` walks the span and must find the same numbers (property test).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import groupby, pairwise
from operator import eq
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import LOGICAL_BITS, Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.runtime.seam import Family
from slackwater.storage.versions import AFTER_VERSIONS, BLOCK_MAX, tail_key, ts_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from slackwater.runtime.seam import Engine, Reader
    from slackwater.storage.versions import Version


class Stats(NamedTuple):
    """Numbers about a span, or a change of them."""

    live_bytes: int = 0
    live_keys: int = 0
    total_bytes: int = 0
    total_keys: int = 0
    versions: int = 0
    garbage_weight: int = 0
    intents: int = 0
    intent_bytes: int = 0

    def plus(self, other: Stats) -> Stats:
        """The sum, field by field."""
        a, b, c, d, e, f, g, h = self  # spelled out: this runs once per write
        i, j, k, m, n, o, p, q = other
        return Stats(a + i, b + j, c + k, d + m, e + n, f + o, g + p, h + q)

    def minus(self, other: Stats) -> Stats:
        """The difference, field by field."""
        return Stats(*(a - b for a, b in zip(self, other, strict=True)))

    @property
    def garbage_bytes(self) -> int:
        """Bytes of versions that no read at the present can see."""
        return self.total_bytes - self.live_bytes

    def garbage_age(self, now: Timestamp) -> int:
        """Byte-seconds of garbage at `now`."""
        return self.garbage_bytes * _second(now) - self.garbage_weight


ZERO = Stats()
_SECOND = 1_000_000 << LOGICAL_BITS


def _second(ts: Timestamp) -> int:
    return ts // _SECOND


def version_bytes(key: bytes, value: bytes) -> int:
    """What one version counts."""
    return len(key) + VERSION_BYTES + len(value)


def added(prior: Version | None, key: bytes, ts: Timestamp, value: bytes) -> Stats:
    """The change when a version is written above `prior`, the newest until now."""
    assert prior is None or prior.ts < ts, "a version is added above the newest (I-10)"
    size = version_bytes(key, value)
    live = 1 if value else 0
    weight = 0 if value else size * _second(ts)
    live_bytes, live_keys = size * live, live
    if prior is not None and prior.value:
        old = version_bytes(key, prior.value)
        live_bytes -= old
        live_keys -= 1
        weight += old * _second(ts)
    return Stats(live_bytes, live_keys, size, int(prior is None), 1, weight)


def intent_changed(key: bytes, *, before: bytes | None, after: bytes | None) -> Stats:
    """The change when a stored intent comes, changes or goes."""
    assert before is not None or after is not None, "an intent was there, or is now"
    count = (after is not None) - (before is not None)
    size = (len(key) + len(after) if after is not None else 0) - (len(key) + len(before) if before is not None else 0)
    assert -1 <= count <= 1, "one intent comes, goes, or changes"
    return Stats(intents=count, intent_bytes=size)


def of_versions(key: bytes, versions: list[tuple[Timestamp, bytes]]) -> Stats:
    """The numbers of one key with these versions, newest first."""
    if not versions:
        return ZERO
    assert versions[0][0] >= versions[-1][0], "versions come newest first"
    live = version_bytes(key, versions[0][1]) if versions[0][1] else 0
    size = weight = 0
    above: Timestamp | None = None
    for ts, value in versions:
        one = version_bytes(key, value)
        size += one
        if not value:
            weight += one * _second(ts)
        elif above is not None:
            weight += one * _second(above)
        above = ts
    assert size >= live, "what is live is a part of all"
    return Stats(live, int(live > 0), size, 1, len(versions), weight)


def without_oldest(key: bytes, times: Sequence[Timestamp], values: Sequence[bytes], count: int) -> tuple[int, int]:
    """Bytes and garbage weight of the `count` oldest versions of a key, of which the newest is not live.

    `times` and `values` run in parallel, newest first.
    """
    assert 0 < count <= len(times) == len(values), "some versions go"
    first = len(times) - count
    each = len(key) + VERSION_BYTES
    size = weight = 0
    above = times[first - 1] if first else None
    for ts, value in zip(times[first:], values[first:], strict=True):
        one = each + len(value)
        size += one
        since = above if value else ts
        if since is not None:
            weight += one * (since // _SECOND)
        above = ts
    assert size > 0, "versions that go have bytes"
    return size, weight


def recompute(reader: Reader, start: bytes, end: bytes, *, wanted: Callable[[], bool] = lambda: True) -> Stats:
    """The numbers of [start, end), from scratch; of a part of it once they are no longer `wanted`."""
    assert start < end, "a span is not empty"
    total = ZERO
    last: list[bytes] = []  # stored keys and values of the last key seen: the next block may go on with it
    last_values: list[bytes] = []
    for keys, values in _blocks(reader, start, end):
        if not wanted():
            break
        bare = _bare(keys)
        begin = bisect_right(bare, last[0][:-VERSION_BYTES]) if last else 0
        last += keys[:begin]
        last_values += values[:begin]
        if begin < len(keys):
            upto = bisect_left(bare, bare[-1])
            alone = _of_rows(keys[begin:upto], values[begin:upto], bare[begin:upto])
            total = total.plus(_of_rows(last, last_values, _bare(last))).plus(alone)
            last, last_values = keys[upto:], values[upto:]
    total = total.plus(_of_rows(last, last_values, _bare(last)))
    assert total.live_bytes <= total.total_bytes, "what is live is a part of all"
    assert total.live_keys <= total.total_keys <= total.versions, "a key has a version"
    cursor = reader.cursor(Family.LOCK, start=start, end=end)
    while True:
        keys, values = cursor.chunk(BLOCK_MAX)
        if not keys:
            return total
        total = total.plus(Stats(intents=len(keys), intent_bytes=sum(map(len, keys)) + sum(map(len, values))))


def recompute_now(engine: Engine, start: bytes, end: bytes) -> Stats:
    """The numbers of [start, end), from scratch, on a snapshot of the present."""
    with engine.snapshot(once=True) as frozen:
        return recompute(frozen, start, end)


def _bare(stored_keys: list[bytes]) -> list[bytes]:
    return [stored[:-VERSION_BYTES] for stored in stored_keys]


def _of_rows(keys: list[bytes], values: list[bytes], bare: list[bytes]) -> Stats:
    """The numbers of all versions of some keys, in their order; `bare` are the keys without their versions."""
    alone = not any(map(eq, bare, bare[1:])) and all(values)  # sorted, and one live version each: mostly so
    counted: set[bytes] = set()
    if not alone:
        counted = {key for key, value in zip(bare, values, strict=True) if not value}
        counted |= {key for before, key in pairwise(bare) if before == key}
    total = ZERO
    if counted:
        pairs = [pair for key, *pair in zip(bare, keys, values, strict=True) if key in counted]
        for key, group in groupby(pairs, key=lambda pair: pair[0][:-VERSION_BYTES]):
            total = total.plus(of_versions(key, [(ts_of(stored), value) for stored, value in group]))
        keys = [stored for key, stored in zip(bare, keys, strict=True) if key not in counted]
        values = [value for key, value in zip(bare, values, strict=True) if key not in counted]
    size, count = sum(map(len, keys)) + sum(map(len, values)), len(keys)
    return total.plus(Stats(size, count, size, count, count))


def _blocks(reader: Reader, start: bytes, end: bytes) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Every version in [start, end), keys in order, newest first; no block is empty."""
    tail = tail_key(start, end)
    spans = [(start, end)]
    if tail is not None and tail >= start:
        spans.append((tail + b"\x80", tail + AFTER_VERSIONS))
    for low, high in spans:
        cursor = reader.cursor(Family.DATA, start=low, end=high)
        while True:
            keys, values = cursor.chunk(BLOCK_MAX)
            if not keys:
                break
            # A bound that extends a key has that key's versions on the wrong side: see `versions`.
            if keys[0][:-VERSION_BYTES] < start or keys[-1][:-VERSION_BYTES] >= end:
                inside = [i for i, stored in enumerate(keys) if start <= stored[:-VERSION_BYTES] < end]
                keys, values = [keys[i] for i in inside], [values[i] for i in inside]
            if keys:
                yield keys, values
