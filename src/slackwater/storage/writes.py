"""Writes: what one request adds to a batch, checked against what is there.

A write looks before it leaps, in this order, so that every replica of a retry sees the same error:

    1  an intent of another transaction on the key          ConflictError: push it or wait
    2  a version at or above the write's timestamp          WriteTooOld: retry above it
    3  the condition, if the write has one                  ConditionFailed: carries the actual value
    4  then one pair goes into the batch: a version (DATA) or, in a transaction, an intent (LOCK)

Nothing is written to the engine here: the functions read a `Reader`, add to a `EngineBatch` and return the change of the
statistics. A request that must see the writes of earlier requests of the same batch reads through
`storage.overlay.Overlay`; when no two requests touch one key, the plain reader is right and faster.

`put_rows` is the bulk form: it walks the sorted keys beside one cursor. Where the engine has nothing between two of
them, which is the case when rows are appended or loaded into a gap, one look serves many keys.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import pairwise
from operator import ge
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import ConditionFailed, UsageError, WriteTooOld
from slackwater.runtime.seam import Family
from slackwater.storage.batch import own
from slackwater.storage.intents import (
    CONFLICTS_MAX,
    StoredIntent,
    conflict,
    decode_intent,
    encode_intent,
    intents_in,
    is_own,
    next_intent,
    own_value,
)
from slackwater.storage.reads import scan
from slackwater.storage.stats import ZERO, Stats, added, intent_changed
from slackwater.storage.versions import (
    AFTER_VERSIONS,
    COUNTER_TAG,
    TOMBSTONE,
    Version,
    Walk,
    check_value,
    newest,
    suffix,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.model.txns import Intent, Txn
    from slackwater.runtime.seam import EngineBatch, Reader

COUNTER_BYTES = 8
PASSED_AT_ONCE = 512
PASSED_MAX = 24
"""Stored keys that are passed for each key that is looked for, at most: to seek costs about as much."""
DENSE = 4
"""Where one key in so many is there, they are walked with their values."""


class WrittenVersion(NamedTuple):
    """A write that is in the batch: where it stands in time, and how the statistics change."""

    ts: Timestamp
    stats: Stats


class _Before(NamedTuple):
    """What a write found on its key."""

    prior: Version | None
    raw: bytes | None
    intent: StoredIntent | None
    below: Version | None = None
    """When `prior` is this batch's own version of the key: what that one stands on."""


def put(
    reader: Reader,
    batch: EngineBatch,
    key: bytes,
    value: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
) -> WrittenVersion:
    """Set a key."""
    check_value(value)
    return _write(batch, key, value, _look(reader, batch, key, ts, txn), ts=ts, txn=txn, sequence=sequence)


def delete(
    reader: Reader,
    batch: EngineBatch,
    key: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
) -> WrittenVersion:
    """Remove a key: a tombstone, whether or not there is anything to remove."""
    return _write(batch, key, TOMBSTONE, _look(reader, batch, key, ts, txn), ts=ts, txn=txn, sequence=sequence)


def conditional_put(
    reader: Reader,
    batch: EngineBatch,
    key: bytes,
    value: bytes,
    *,
    expected: bytes | None,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
) -> WrittenVersion:
    """Set a key if it now has `expected` (None: no value); an empty `value` deletes it."""
    before = _look(reader, batch, key, ts, txn)
    repeated = _repeated(before, value, txn, sequence)
    actual = _current(before, txn, sequence)
    if actual != expected and not repeated:
        raise ConditionFailed("the key has another value than expected", key=key, actual=actual)
    return _write(batch, key, value, before, ts=ts, txn=txn, sequence=sequence)


def init_put(
    reader: Reader,
    batch: EngineBatch,
    key: bytes,
    value: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
) -> WrittenVersion:
    """Set a key unless it already has another value; the same value is fine and writes nothing."""
    check_value(value)
    before = _look(reader, batch, key, ts, txn)
    actual = _current(before, txn, sequence)
    if actual == value:
        return WrittenVersion(ts, ZERO)
    if actual is not None:
        raise ConditionFailed("the key already has another value", key=key, actual=actual)
    return _write(batch, key, value, before, ts=ts, txn=txn, sequence=sequence)


def increment(
    reader: Reader,
    batch: EngineBatch,
    key: bytes,
    by: int,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
) -> tuple[int, WrittenVersion]:
    """Add to a counter; absent counts as 0. Returns its new value."""
    before = _look(reader, batch, key, ts, txn)
    if before.intent is not None and txn is not None and before.intent.epoch == txn.epoch:
        done = before.intent.written_at(txn.sequence if sequence is None else sequence)
        if done is not None:  # this very request, again
            return counter_of(done), WrittenVersion(before.intent.ts, ZERO)
    assert before.raw is None or before.intent is not None, "a lock is an intent"
    number = counter_of(_current(before, txn, sequence)) + by
    if not -(1 << 63) <= number < 1 << 63:
        raise UsageError("the counter would leave 64 bits", key=key, by=by)
    return number, _write(batch, key, counter(number), before, ts=ts, txn=txn, sequence=sequence)


def counter(number: int) -> bytes:
    """A counter's value."""
    assert -(1 << 63) <= number < 1 << 63, "a counter has 64 bits"
    return COUNTER_TAG + number.to_bytes(COUNTER_BYTES, "big", signed=True)


def counter_of(stored: bytes | None) -> int:
    """The number in a counter's value; 0 for none."""
    if stored is None:
        return 0
    if len(stored) != 1 + COUNTER_BYTES or stored[:1] != COUNTER_TAG:
        raise UsageError("the key does not hold a counter", size=len(stored))
    return int.from_bytes(stored[1:], "big", signed=True)


def delete_range(
    reader: Reader,
    batch: EngineBatch,
    start: bytes,
    end: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
    max_keys: int = 0,
) -> tuple[list[bytes], Stats, bytes | None]:
    """Remove every key of [start, end) that has a value: (their keys, statistics, where to go on or None).

    It reads at the top of time, so that a version above `ts` is found and raises `WriteTooOld` rather than surviving.
    """
    rows = scan(reader, start, end, ts=MAX, txn=txn, sequence=sequence, max_rows=max_keys)
    assert not max_keys or len(rows.keys) <= max_keys, "no more keys than were asked for"
    stats = ZERO
    for key in rows.keys:
        stats = stats.plus(delete(reader, batch, key, ts=ts, txn=txn, sequence=sequence).stats)
    return rows.keys, stats, rows.resume


def put_rows(
    reader: Reader,
    batch: EngineBatch,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
    must_be_new: bool = False,
) -> WrittenVersion:
    """Set many keys, sorted and unique. With `must_be_new`, a key that has a value fails all."""
    if not keys:
        return WrittenVersion(ts, ZERO)
    if len(keys) != len(values) or not all(values):
        raise UsageError("put_rows takes as many values as keys, none of them empty", keys=len(keys))
    if not keys[0] or any(map(ge, keys, keys[1:])):
        raise UsageError("put_rows takes sorted, unique keys", key=next(k for b, k in pairwise((b"", *keys)) if k <= b))
    locks = _locks(reader, keys, ts, txn)
    walk = Walk(reader.cursor(Family.DATA, start=keys[0], end=keys[-1] + AFTER_VERSIONS))
    if txn is None and not locks and walk.nothing_from(keys[0]):
        return WrittenVersion(ts, _put_fresh(batch, keys, values, ts))
    fresh_keys: list[bytes] = []
    fresh_values: list[bytes] = []
    stats, top = ZERO, ts
    for key, value in zip(keys, values, strict=True):
        prior = walk.at(key)
        raw = locks.get(key) if locks else None
        if prior is None and raw is None and txn is None:
            fresh_keys.append(key)
            fresh_values.append(value)
            continue
        before = _Before(prior, raw, None if raw is None else decode_intent(raw))
        _check_age(key, prior, ts)
        if must_be_new and not _repeated(before, value, txn, sequence):
            actual = _current(before, txn, sequence)
            if actual is not None:
                raise ConditionFailed("the key already exists", key=key, actual=actual)
        written = _write(batch, key, value, before, ts=ts, txn=txn, sequence=sequence)
        stats, top = stats.plus(written.stats), Timestamp(max(top, written.ts))
    if fresh_keys:
        stats = stats.plus(_put_fresh(batch, fresh_keys, fresh_values, ts))
    assert txn is not None or stats.versions == len(keys), "a version more for every row"
    assert stats.intents <= len(keys), "one intent for every row at most"
    return WrittenVersion(top, stats)


def fill_rows(
    reader: Reader,
    batch: EngineBatch,
    keys: Sequence[bytes],
    values: Sequence[bytes],
    *,
    ts: Timestamp,
    above: Timestamp,
    alone: bool,
) -> tuple[list[bytes], WrittenVersion | None]:
    """Set those of many keys, sorted and unique, that have no version above `above`: (those left out, what was written).

    An intent raises: whether its key was written after `above` is not decided. A key that has the value already is neither
    written nor left out. With `alone`, one that has another value is left out, however old that is.
    """
    if not keys or len(keys) != len(values) or not all(values) or any(map(ge, keys, keys[1:])):
        raise UsageError("fill_rows takes sorted, unique keys and a value for each, none of them empty", keys=len(keys))
    _locks(reader, keys, ts, None)
    there = _newest_of(reader, keys)
    left: list[bytes] = []
    total = len(keys)
    stats, end = ZERO, suffix(ts)
    if there:
        fresh: list[tuple[bytes, bytes]] = []
        for key, value in zip(keys, values, strict=True):
            prior = there.get(key)
            if prior is None:
                fresh.append((key, value))
            elif prior.value == value:
                continue
            elif prior.ts > above or (alone and prior.value):
                left.append(key)
            else:
                batch.put(Family.DATA, key + end, value)
                stats = stats.plus(added(prior, key, ts, value))
        keys, values = [key for key, _ in fresh], [value for _, value in fresh]
    if keys:
        stats = stats.plus(_put_fresh(batch, keys, values, ts))
    assert ts > above, "what was not written after a timestamp is written after it"
    assert stats.versions + len(left) <= total, "a row is written, left out, or there already: never two of these"
    return left, None if stats == ZERO else WrittenVersion(ts, stats)


def _put_fresh(batch: EngineBatch, keys: Sequence[bytes], values: Sequence[bytes], ts: Timestamp) -> Stats:
    """Write values of keys that have no version and no intent; the change of the statistics."""
    end, count = suffix(ts), len(keys)
    size = sum(map(len, keys)) + sum(map(len, values)) + len(end) * count
    batch.put_many(Family.DATA, [key + end for key in keys], values)
    return Stats(size, count, size, count, count)


def _newest_of(reader: Reader, keys: Sequence[bytes]) -> dict[bytes, Version]:
    """The newest versions of those of some keys, sorted, that have any.

    Few have. So what lies among them is passed by its keys alone; where that is much more than they are, or many of them are
    there, each is looked for.
    """
    end, wanted, found = keys[-1] + AFTER_VERSIONS, set(keys), set[bytes]()
    cursor = reader.cursor(Family.DATA, start=keys[0], end=end)
    passed = 0
    while stored := cursor.keys(PASSED_AT_ONCE):
        passed += len(stored)
        found.update(wanted.intersection([key[:-VERSION_BYTES] for key in stored]))
        if passed > PASSED_MAX * bisect_right(keys, stored[-1]) + PASSED_AT_ONCE:
            break
    if stored or len(found) * DENSE > len(keys):
        walk = Walk(reader.cursor(Family.DATA, start=keys[0], end=end))
        return {key: prior for key in keys if (prior := walk.at(key)) is not None}
    return {key: prior for key in found if (prior := newest(reader, key)) is not None}


def _locks(reader: Reader, keys: Sequence[bytes], ts: Timestamp, txn: Txn | None) -> dict[bytes, bytes]:
    locks = dict(intents_in(reader, keys[0], keys[-1] + b"\x00"))
    if not locks:
        return locks
    met: list[Intent] = []
    for key in keys:
        raw = locks.get(key)
        if raw is not None:
            intent = decode_intent(raw)
            if not is_own(intent, txn):
                met.append(intent.named(key))
                if len(met) == CONFLICTS_MAX:
                    break
    if met:
        raise conflict(met)
    return locks


def _look(reader: Reader, batch: EngineBatch, key: bytes, ts: Timestamp, txn: Txn | None) -> _Before:
    raw = reader.get(Family.LOCK, key)
    intent = None if raw is None else decode_intent(raw)
    if intent is not None and not is_own(intent, txn):
        raise conflict([intent.named(key)])
    prior = newest(reader, key)
    if prior is not None and prior.ts == ts and txn is None and own(batch).has(Family.DATA, key + suffix(ts)):
        # An earlier request of the same batch wrote this very version; it is replaced, not superseded.
        below = newest(reader, key, upto=Timestamp(ts - 1))
        assert below is None or below.ts < ts, "what a version stands on is older than it"
        return _Before(prior, raw, intent, below)
    _check_age(key, prior, ts)
    return _Before(prior, raw, intent)


def _check_age(key: bytes, prior: Version | None, ts: Timestamp) -> None:
    if prior is not None and prior.ts >= ts:
        raise WriteTooOld(
            "a version at or above the write's timestamp exists; retry above it", key=key, existing=prior.ts, ts=ts
        )


def _current(before: _Before, txn: Txn | None, sequence: int | None) -> bytes | None:
    """The value that the writer sees now: its own, or the newest committed."""
    if before.intent is not None and txn is not None:
        own = own_value(before.intent, txn, txn.sequence if sequence is None else sequence)
        if own is not None:
            return own or None
    return (before.prior.value or None) if before.prior is not None else None


def _repeated(before: _Before, value: bytes, txn: Txn | None, sequence: int | None) -> bool:
    """Whether this very write was already done: a retry whose first attempt got through."""
    if before.intent is None or txn is None or before.intent.epoch != txn.epoch:
        return False
    return before.intent.written_at(txn.sequence if sequence is None else sequence) == value


def _write(
    batch: EngineBatch,
    key: bytes,
    value: bytes,
    before: _Before,
    *,
    ts: Timestamp,
    txn: Txn | None,
    sequence: int | None,
) -> WrittenVersion:
    if txn is None:
        batch.put(Family.DATA, key + suffix(ts), value)
        if before.prior is not None and before.prior.ts == ts:
            replaced = added(before.below, key, ts, before.prior.value)
            return WrittenVersion(ts, added(before.below, key, ts, value).minus(replaced))
        return WrittenVersion(ts, added(before.prior, key, ts, value))
    number = txn.sequence if sequence is None else sequence
    intent = next_intent(before.intent, txn, ts=ts, sequence=number, value=value)
    if intent is before.intent:
        return WrittenVersion(intent.ts, ZERO)
    after = encode_intent(intent)
    batch.put(Family.LOCK, key, after)
    return WrittenVersion(intent.ts, intent_changed(key, before=before.raw, after=after))
