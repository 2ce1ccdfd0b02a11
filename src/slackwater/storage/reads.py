"""Reads at a timestamp: functions over a `Reader`, with no state of their own.

Every read answers for one instant `ts`, as one caller may see it:

    versions   ... 10        20        30 ...          committed, from DATA
                          ts=25  limit=32
    read       20 — or ReadWithinUncertainty, because 30 may have been committed before the reader began: its clock
               can be behind. `uncertain_upto` is that limit; a caller that knows a tighter one for this node (it has
               observed its clock) passes that. A follower read or `AS OF SYSTEM TIME` passes none.
    intents    of others at or below max(ts, uncertain_upto) are in the way: ConflictError names up to a bound of them
               of the caller's own transaction hide the versions below them, whatever their timestamp

Scans stop at `max_rows` or `max_bytes` and say where to go on: forward, `resume` is the next start; reversed, the next
end. A limit cuts before the row that would exceed it, but always lets the first one through.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MIN, Timestamp
from slackwater.runtime.seam import Family
from slackwater.storage.intents import (
    CONFLICTS_MAX,
    conflict,
    conflicts_in,
    decode_intent,
    intents_in,
    is_own,
    own_value,
)
from slackwater.storage.versions import (
    AFTER_VERSIONS,
    BLOCK_MAX,
    BLOCK_MIN,
    Version,
    newest,
    newest_in,
    ts_of,
    uncertain,
    visible,
)
from slackwater.storage.window import Window, first_in_window, in_window

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.model.txns import Intent, Txn
    from slackwater.runtime.seam import Reader


class FoundVersion(NamedTuple):
    """What a point read found: no value when there is none or it was deleted."""

    value: bytes | None
    ts: Timestamp = MIN


class ScannedRows(NamedTuple):
    """Keys, values and when each was written; `resume` is where to go on, or None at the end."""

    keys: list[bytes]
    values: list[bytes]
    timestamps: list[Timestamp]
    resume: bytes | None = None


class VersionRows(NamedTuple):
    """Versions in key order, oldest first within a key; an empty value is a deletion."""

    keys: list[bytes]
    timestamps: list[Timestamp]
    values: list[bytes]
    befores: list[bytes] | None = None
    """With before-images: what each version replaced; empty when there was nothing."""
    resume: bytes | None = None


class Change(NamedTuple):
    """Why a refresh fails: something was written, or is about to be, inside the window."""

    key: bytes
    ts: Timestamp
    intent: Intent | None = None


NOTHING = FoundVersion(None)


def get(
    reader: Reader,
    key: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
    uncertain_upto: Timestamp = MIN,
) -> FoundVersion:
    """The value of one key at `ts`. `sequence` defaults to the transaction's own."""
    raw = reader.get(Family.LOCK, key)
    if raw is not None:
        found = _through_intent(key, raw, ts=max(ts, uncertain_upto), txn=txn, sequence=sequence)
        if found is not None:
            return found
    return _found(newest(reader, key, upto=Timestamp(max(ts, uncertain_upto))), ts, uncertain_upto)


def multi_get(
    reader: Reader,
    keys: Sequence[bytes],
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
    uncertain_upto: Timestamp = MIN,
) -> list[FoundVersion]:
    """The values of many keys at `ts`, in their order: one walk over the sorted keys."""
    if not keys:
        return []
    order = sorted(set(keys))
    bound = Timestamp(max(ts, uncertain_upto))
    cursor = reader.cursor(Family.DATA, start=order[0], end=order[-1] + AFTER_VERSIONS)
    found: dict[bytes, FoundVersion] = {}
    met: list[Intent] = []
    for key, raw in zip(order, reader.multi_get(Family.LOCK, order), strict=True):
        if raw is not None:
            intent = decode_intent(raw)
            if not is_own(intent, txn) and intent.ts <= bound:
                met.append(intent.named(key))
                if len(met) == CONFLICTS_MAX:
                    break
                continue
            own = _through_intent(key, raw, ts=bound, txn=txn, sequence=sequence)
            if own is not None:
                found[key] = own
                continue
        found[key] = _found(newest_in(cursor, key, upto=bound), ts, uncertain_upto)
    if met:
        raise conflict(met)
    assert len(found) == len(order), "an answer for every key"
    return [found[key] for key in keys]


def scan(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    ts: Timestamp,
    txn: Txn | None = None,
    sequence: int | None = None,
    uncertain_upto: Timestamp = MIN,
    reverse: bool = False,
    max_rows: int = 0,
    max_bytes: int = 0,
) -> ScannedRows:
    """The rows of [start, end) at `ts`. A limit of 0 is none."""
    bound = Timestamp(max(ts, uncertain_upto))
    block = min(max(BLOCK_MIN, max_rows + 1), BLOCK_MAX)
    versions = visible(
        reader,
        start,
        end,
        ts=ts,
        uncertain_upto=uncertain_upto,
        reverse=reverse,
        block=block if max_rows else BLOCK_MIN,
    )
    locks = intents_in(reader, start, end, reverse=reverse)
    first = next(locks, None)
    merged = versions if first is None else _merge(versions, first, locks, bound, txn, sequence, reverse=reverse)
    keys: list[bytes] = []
    values: list[bytes] = []
    timestamps: list[Timestamp] = []
    met: list[Intent] = []
    size = 0
    for item in merged:
        if not isinstance(item, Version):
            met.append(item)
            if len(met) == CONFLICTS_MAX:
                break
            continue
        key, written, value = item
        if not value:
            continue
        size += len(key) + len(value)
        if keys and ((max_rows and len(keys) >= max_rows) or (max_bytes and size > max_bytes)):
            if met:
                break
            assert not max_rows or len(keys) <= max_rows, "no more rows than were asked for"
            assert start <= key < end, "what is left lies in the span"
            return ScannedRows(keys, values, timestamps, keys[-1] if reverse else key)
        keys.append(key)
        values.append(value)
        timestamps.append(written)
    if met:
        raise conflict(met)
    assert len(keys) == len(values) == len(timestamps), "a row has a key, a value and a time"
    assert not max_rows or len(keys) <= max_rows, "no more rows than were asked for"
    assert len(keys) < 2 or (keys[0] < keys[-1]) != reverse, "rows come in order, or reversed"
    return ScannedRows(keys, values, timestamps)


def scan_versions(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    after: Timestamp,
    upto: Timestamp,
    max_versions: int = 0,
    max_bytes: int = 0,
    before_images: bool = False,
    ignore_intents: bool = False,
) -> VersionRows:
    """Every version with after < ts <= upto in [start, end), tombstones included.

    Limits cut between keys only, so that a key's versions stay together. Intents at or below `upto` are conflicts,
    because they may yet commit there; a feed, which watches intents itself, passes `ignore_intents`.
    """
    rows = VersionRows([], [], [], [] if before_images else None)
    size = 0
    resume: bytes | None = None
    for group in _groups(reader, Window(start, end, after, upto), below=before_images):
        wanted = [v for v in group if v.ts > after]
        size += sum(len(v.key) + len(v.value) for v in wanted)
        full = max_versions and len(rows.keys) + len(wanted) > max_versions
        if rows.keys and (full or (max_bytes and size > max_bytes)):
            resume = wanted[0].key
            break
        for at in range(len(wanted) - 1, -1, -1):
            rows.keys.append(wanted[at].key)
            rows.timestamps.append(wanted[at].ts)
            rows.values.append(wanted[at].value)
            if rows.befores is not None:
                rows.befores.append(group[at + 1].value if at + 1 < len(group) else b"")
    met = [] if ignore_intents else conflicts_in(reader, start, resume or end, upto=upto)
    if met:
        raise conflict(met)
    assert len(rows.keys) == len(rows.timestamps) == len(rows.values), "a version has a key, a time and a value"
    assert rows.befores is None or len(rows.befores) == len(rows.keys), "what was there before every version"
    assert not rows.keys or start <= rows.keys[0] <= rows.keys[-1] < end, "versions come in key order, inside the span"
    assert resume is None or start < resume < end, "what is left lies in the span"
    return rows._replace(resume=resume)


def refresh(
    reader: Reader, start: bytes, end: bytes, *, after: Timestamp, upto: Timestamp, txn: Txn | None = None
) -> Change | None:
    """Whether a read of [start, end) at `after` would have seen the same at `upto`: the first change, or None.

    An intent at or below `after` may be a change too: the read may have passed it by, because its transaction was known to
    commit above `after`, and that commit may be at or below `upto`.
    """
    for intent in conflicts_in(reader, start, end, upto=upto, txn=txn):
        return Change(intent.key, intent.ts, intent)
    stored = first_in_window(reader, Window(start, end, after, upto))
    assert stored is None or after < ts_of(stored) <= upto, "a change inside the window"
    return None if stored is None else Change(stored[:-8], ts_of(stored))


def _found(version: Version | None, ts: Timestamp, limit: Timestamp) -> FoundVersion:
    if version is None:
        return NOTHING
    if version.ts > ts:
        raise uncertain(version.key, version.ts, ts, limit)
    assert version.ts <= ts, "a read sees nothing of its future"
    return FoundVersion(version.value or None, version.ts)


def _through_intent(key: bytes, raw: bytes, *, ts: int, txn: Txn | None, sequence: int | None) -> FoundVersion | None:
    """What an intent makes of a read: its own value, a conflict, or None when it is not in the way."""
    intent = decode_intent(raw)
    if txn is not None and is_own(intent, txn):
        value = own_value(intent, txn, txn.sequence if sequence is None else sequence)
        return None if value is None else FoundVersion(value or None, intent.ts)
    if intent.ts <= ts:
        raise conflict([intent.named(key)])
    return None


def _merge(
    versions: Iterator[Version],
    first: tuple[bytes, bytes],
    locks: Iterator[tuple[bytes, bytes]],
    bound: Timestamp,
    txn: Txn | None,
    sequence: int | None,
    *,
    reverse: bool,
) -> Iterator[Version | Intent]:
    """Versions and intents in one order: own intents hide versions, foreign ones in the way are passed on as such."""
    version = next(versions, None)
    lock: tuple[bytes, bytes] | None = first
    while lock is not None:
        key, raw = lock
        while version is not None and version.key != key and (version.key > key) == reverse:
            yield version
            version = next(versions, None)
        intent = decode_intent(raw)
        if txn is not None and is_own(intent, txn):
            value = own_value(intent, txn, txn.sequence if sequence is None else sequence)
            if value is not None:
                yield Version(key, intent.ts, value)
                if version is not None and version.key == key:
                    version = next(versions, None)
        elif intent.ts <= bound:
            yield intent.named(key)
        lock = next(locks, None)
    if version is not None:
        yield version
        yield from versions


def _groups(reader: Reader, window: Window, *, below: bool) -> Iterator[list[Version]]:
    """Per key its versions in the window, newest first; with `below` also the one below, if there is one."""
    for block in in_window(reader, window, below=below):
        group: list[Version] = []
        current: bytes | None = None
        for stored, value in zip(block.keys, block.values, strict=True):
            key = stored[:-8]
            if key != current:
                if group:
                    yield group
                current, group = key, []
            group.append(Version(key, ts_of(stored), value))
        yield group
