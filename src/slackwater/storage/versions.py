r"""Versions of keys: how they lie in the DATA family, and how to find them with few steps.

    DATA   key ++ 8-byte big-endian ~ts  ->  value          empty value = tombstone
           04 'a' 00 01 | ff ff ff ff ff ff ff e0           a @ 31   newest first
           04 'a' 00 01 | ff ff ff ff ff ff ff eb           a @ 20
           04 'b' 00 01 | ff ff ff ff ff ff ff f5           b @ 10

Keys are prefix-free, so versions of one key are adjacent and keys keep their order. A stored value is never empty: rows
begin with the row codec's format byte 01, plain values of applications with 00 (`raw_value`), counters with 02.

*Bounds* of spans, unlike keys, may extend a key. Versions of `k` sort after `k ++ 00`, although `k < k ++ 00`:

    engine order      k++00 (a bound)   k@31   k@20   m@10
    logical order     k   k++00   m

So a scan that starts at `k ++ 00` meets versions of `k` and must skip them, and one that ends there must look for `k`
beyond its end. `tail_key` names that one key. A bound may be a key, a key ++ 00, or any prefix, such as a table's; it
may not extend a stored key in another way (`codec.layout` builds none).

Cost. Forward walks read blocks. When a key has many versions that the walk does not want (newer than it may see, or
superseded), it seeks past them: after `SKIP_AFTER` unwanted versions, and from then on at once (*deep mode*), because
neighbors of a deep key tend to be deep. A seek costs 6 to 20 steps (measured), so the cost per key grows only up
to there. Every `DEEP_KEYS` keys the walk tries blocks again.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import DecodeError, ReadWithinUncertainty, UsageError
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.runtime.seam import Cursor, Reader

TOMBSTONE = b""
RAW_TAG = b"\x00"
COUNTER_TAG = b"\x02"
assert RAW_TAG != COUNTER_TAG, "a counter is no plain value"

BLOCK_MIN = 16
BLOCK_MAX = 1024
SKIP_AFTER = 16
DEEP_KEYS = 64
WALK_BLOCK_MAX = 16
assert BLOCK_MIN <= BLOCK_MAX, "blocks grow up to the largest"
assert WALK_BLOCK_MAX <= BLOCK_MAX, "blocks grow up to the largest"

_MASK = (1 << 64) - 1
AFTER_VERSIONS = b"\xff" * VERSION_BYTES + b"\x00"
"""key ++ this is above every version of the key and below every version of the next."""


class Version(NamedTuple):
    """One version of a key; a tombstone has an empty value."""

    key: bytes
    ts: Timestamp
    value: bytes


def suffix(ts: Timestamp) -> bytes:
    """The last 8 bytes of a version's key: descending in time."""
    return (~ts & _MASK).to_bytes(VERSION_BYTES, "big")


def ts_of(stored_key: bytes) -> Timestamp:
    """The timestamp in a version's key."""
    return Timestamp(~int.from_bytes(stored_key[-VERSION_BYTES:], "big") & _MASK)


assert suffix(MIN) < AFTER_VERSIONS, "the oldest version of a key lies below what follows its versions"
assert suffix(MAX) >= b"\x80", "the newest version of a key lies at or above what walks over it begin with"
assert ts_of(suffix(MAX)) == MAX, "the latest timestamp is read from a key as it is written"
assert ts_of(suffix(MIN)) == MIN, "the earliest timestamp is read from a key as it is written"
assert suffix(MAX) < suffix(Timestamp(MAX - 1)) < suffix(MIN), "newer versions of a key come first"


def raw_value(value: bytes) -> bytes:
    """A plain value of an application as it is stored: never empty."""
    return RAW_TAG + value


def raw_of(stored: bytes) -> bytes:
    """The plain value behind a stored one."""
    if stored[:1] != RAW_TAG:
        raise DecodeError("not a plain value", tag=stored[:1])
    return stored[1:]


def check_value(value: bytes) -> None:
    """Refuse the empty value: it would be a deletion."""
    if not value:
        raise UsageError("a stored value is not empty; wrap plain values with raw_value, or delete the key")


def tail_key(start: bytes, end: bytes) -> bytes | None:
    """The key inside [start, end) whose versions all sort at or after `end`, if a key can be there."""
    return end[:-1] if end[-1:] == b"\x00" and start < end else None


def newest(reader: Reader, key: bytes, *, upto: Timestamp = MAX) -> Version | None:
    """The newest version at or below `upto`, tombstones included."""
    found = reader.first(Family.DATA, start=key + suffix(upto), end=key + AFTER_VERSIONS)
    if found is None or len(found[0]) != len(key) + VERSION_BYTES:
        return None
    assert found[0].startswith(key), "a version of the key that was asked for"
    return Version(key, ts_of(found[0]), found[1])


def newest_in(cursor: Cursor, key: bytes, *, upto: Timestamp) -> Version | None:
    """Like `newest`, on a cursor whose bounds hold the key: for many keys in order."""
    cursor.seek(key + suffix(upto))
    keys, values = cursor.chunk(1)
    if not keys or keys[0][:-VERSION_BYTES] != key:
        return None
    return Version(key, ts_of(keys[0]), values[0])


class Walk:
    """The newest versions of ascending keys, with as few seeks as the engine's contents allow.

    It reads ahead by blocks that grow while they answer for several keys and shrink while they do not: neighbors with
    few versions cost steps, scattered or deep keys cost one seek each, and a gap in the engine costs one look.
    """

    __slots__ = ("_block", "_cursor", "_ended", "_keys", "_served", "_values")

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor
        self._keys: list[bytes] = []
        self._values: list[bytes] = []
        self._ended = False
        self._served = 0
        self._block = 1

    def at(self, key: bytes) -> Version | None:
        """The newest version of `key`, which is above all asked for before."""
        at = bisect_left(self._keys, key)
        if at == len(self._keys):
            if self._ended:
                return None
            self._refill(key)
            at = 0
            if not self._keys:
                return None
        self._served += 1
        stored = self._keys[at]
        return Version(key, ts_of(stored), self._values[at]) if stored[:-8] == key else None

    def nothing_from(self, key: bytes) -> bool:
        """Whether no key at or above `key`, the first that is asked for, has a version."""
        assert not self._served, "it is asked before any key"
        if not self._keys and not self._ended:
            self._refill(key)
        return self._ended and not self._keys

    def _refill(self, key: bytes) -> None:
        if self._served * 8 >= self._block:  # a seek costs more steps than a block of this size has
            self._block = min(2 * self._block, WALK_BLOCK_MAX)
        else:
            self._block = max(1, self._block // 2)
        self._served = 0
        self._cursor.seek(key)
        self._keys, self._values = self._cursor.chunk(self._block)
        assert len(self._keys) == len(self._values), "a value for every key"
        self._ended = len(self._keys) < self._block  # nothing beyond these


def visible(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    ts: Timestamp,
    uncertain_upto: Timestamp = MIN,
    reverse: bool = False,
    block: int = BLOCK_MIN,
) -> Iterator[Version]:
    """For each key of [start, end) the newest version at or below `ts`, tombstones included, in order or reversed.

    A version in (ts, uncertain_upto] raises `ReadWithinUncertainty` when the walk comes to it.
    """
    bound = Timestamp(max(ts, uncertain_upto))
    tail = tail_key(start, end)
    extra = None if tail is None or tail < start else newest(reader, tail, upto=bound)
    if extra is not None and extra.ts > ts:
        raise uncertain(extra.key, extra.ts, ts, bound)
    if not reverse:
        yield from _forward(reader, start, end, ts, bound, block)
    if extra is not None:
        yield extra
    if reverse:
        yield from _backward(reader, start, end, ts, bound, block)


def uncertain(key: bytes, existing: Timestamp, ts: Timestamp, limit: Timestamp) -> ReadWithinUncertainty:
    """The error of a read that cannot know whether a version came before it."""
    return ReadWithinUncertainty(
        "a value may have been written before this read began; retry above it",
        key=key,
        existing=existing,
        read_ts=ts,
        limit=limit,
    )


def _forward(
    reader: Reader, start: bytes, end: bytes, ts: Timestamp, bound: Timestamp, block: int
) -> Iterator[Version]:
    cursor = reader.cursor(Family.DATA, start=start, end=end)
    wanted, first_wanted = suffix(ts), suffix(bound)
    done: bytes | None = None  # the key whose visible version was found
    unwanted, deep = 0, 0
    while True:
        keys, values = cursor.chunk(1 if deep else block)
        if not keys:
            return
        block = min(2 * block, BLOCK_MAX)
        for at, stored in enumerate(keys):
            key = stored[:-8]
            if key == done:
                unwanted += 1
                if unwanted > SKIP_AFTER:
                    deep = DEEP_KEYS
                    cursor.seek(key + AFTER_VERSIONS)
                    break
                continue
            mark = stored[-8:]
            if mark < wanted:
                if mark >= first_wanted and key >= start:
                    raise uncertain(key, ts_of(stored), ts, bound)
                unwanted += 1
                if unwanted > SKIP_AFTER or deep:
                    deep = DEEP_KEYS
                    # In between only below the start, where nothing is uncertain: go on to what may be seen.
                    cursor.seek(key + (first_wanted if mark < first_wanted else wanted))
                    unwanted = SKIP_AFTER
                    break
                continue
            done = key
            unwanted = 0
            if key >= start:
                yield Version(key, ts_of(stored), values[at])
            if deep:
                deep -= 1
                block = BLOCK_MIN
                cursor.seek(key + AFTER_VERSIONS)
                break


def _backward(
    reader: Reader, start: bytes, end: bytes, ts: Timestamp, bound: Timestamp, block: int
) -> Iterator[Version]:
    """Backwards, versions come oldest first: the visible one is known when the key ends or a newer one shows."""
    cursor = reader.cursor(Family.DATA, start=start, end=end, reverse=True)
    wanted, first_wanted = suffix(ts), suffix(bound)
    current: bytes | None = None
    found: Version | None = None
    seen = 0
    while True:
        keys, values = cursor.chunk(block)
        if not keys:
            break
        block = min(2 * block, BLOCK_MAX)
        for at, stored in enumerate(keys):
            key, mark = stored[:-8], stored[-8:]
            if key < start:
                continue
            if key != current:
                if found is not None:
                    yield found
                current, found, seen = key, None, 0
            seen += 1
            if seen > SKIP_AFTER:
                found = newest(reader, key, upto=bound)
                if found is not None and found.ts > ts:
                    raise uncertain(key, found.ts, ts, bound)
                block = BLOCK_MIN
                cursor.seek(key)  # no version equals the bare key: this is the key before
                break
            if mark >= wanted:
                found = Version(key, ts_of(stored), values[at])
            elif mark >= first_wanted:
                raise uncertain(key, ts_of(stored), ts, bound)
    if found is not None:
        yield found
