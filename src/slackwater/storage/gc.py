"""Collecting history: which versions may go, and in what order.

Rule (I-26). A version is visible from its own timestamp up to the one above it. It may go when it is visible at no
t >= threshold and at no protected instant:

    threshold = 35, protected at 12        a@40   a@30   a@20   a@10
    visible at                             40…    30–39  20–29  10–19
                                           keep   keep   go     keep (12)

A tombstone is visible like any version, but what it shows is nothing: when it is the one visible at the threshold, it
goes too, provided that every older version of its key goes with it (otherwise they would come back to life). Older
versions go first, so a limit that cuts in the middle of a key never takes a tombstone before what it hides.

The threshold itself must be raised, in the replicated log, before anything goes (two phases: architecture section 7).
Reads at or below it fail; the state *at* the threshold stays complete, so that a feed or backup that stands exactly
there still finds its before-images.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.errors import UsageError
from slackwater.runtime.seam import Family
from slackwater.storage.stats import ZERO, Stats, of_versions
from slackwater.storage.versions import AFTER_VERSIONS, BLOCK_MAX, BLOCK_MIN, suffix, tail_key, ts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.runtime.seam import EngineBatch, Reader

COLLECT_VERSIONS_MAX = 10_000
"""Deletions in one batch when the caller sets no limit of its own."""


class Collected(NamedTuple):
    """What one round put into the batch."""

    versions: int
    stats: Stats
    resume: bytes | None = None
    """Where to go on: a key, possibly the last one again; None at the end."""


class _Old(NamedTuple):
    """A version with what decides about it."""

    ts: Timestamp
    value: bytes
    above: Timestamp
    """The timestamp of the next newer version; MAX for the newest."""


def collect(
    reader: Reader,
    batch: EngineBatch,
    start: bytes,
    end: bytes,
    *,
    threshold: Timestamp,
    protected: Sequence[Timestamp] = (),
    max_versions: int = COLLECT_VERSIONS_MAX,
) -> Collected:
    """Delete garbage of [start, end). `protected` are instants below the threshold that stay readable."""
    instants = sorted(protected)
    count, stats = 0, ZERO
    for key, versions in _keys(reader, start, end):
        if count >= max_versions:
            return Collected(count, stats, key)
        going = _garbage(versions, threshold, instants)
        room = max_versions - count
        cut = len(going) > room
        if cut:  # the oldest go first: a tombstone never before what it hides
            going = going[len(going) - room :]
        for old in going:
            batch.delete(Family.DATA, key + suffix(old.ts))
        count += len(going)
        stats = stats.plus(_change(key, versions, going))
        if cut:
            return Collected(count, stats, key)
    return Collected(count, stats)


def collect_keys(
    reader: Reader, batch: EngineBatch, points: Sequence[tuple[bytes, Timestamp]], *, threshold: Timestamp
) -> Collected:
    """Delete, for each (key, ts), that version and all older ones. Refuses what the rule does not allow (I-26)."""
    count, stats = 0, ZERO
    for key, ts in points:
        versions = [old for _, group in _keys(reader, key, key + b"\x00") for old in group]
        chosen = [old for old in versions if old.ts <= ts]
        allowed = {old.ts for old in _garbage(versions, threshold, [])}
        for old in chosen:
            if old.ts not in allowed:
                raise UsageError(
                    "a version is still visible above the threshold or its removal would uncover others (I-26)",
                    key=key,
                    ts=old.ts,
                    above=old.above,
                    threshold=threshold,
                )
            batch.delete(Family.DATA, key + suffix(old.ts))
        count += len(chosen)
        stats = stats.plus(_change(key, versions, chosen))
    return Collected(count, stats)


def garbage_points(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    threshold: Timestamp,
    protected: Sequence[Timestamp] = (),
    max_keys: int = COLLECT_VERSIONS_MAX,
) -> tuple[list[tuple[bytes, Timestamp]], bytes | None]:
    """(key, ts) such that this version and all older ones are garbage, for `collect_keys`; and where to go on."""
    instants = sorted(protected)
    points: list[tuple[bytes, Timestamp]] = []
    for key, versions in _keys(reader, start, end):
        if len(points) >= max_keys:
            return points, key
        allowed = {old.ts for old in _garbage(versions, threshold, instants)}
        point: Timestamp | None = None
        for old in reversed(versions):
            if old.ts not in allowed:
                break
            point = old.ts
        if point is not None:
            points.append((key, point))
    return points, None


def _garbage(versions: list[_Old], threshold: Timestamp, instants: list[Timestamp]) -> list[_Old]:
    """The versions that may go, newest first."""
    going: list[_Old] = []
    kept_older = False
    for old in reversed(versions):  # oldest first: a tombstone needs to know whether anything older stays
        watched = bisect_left(instants, old.ts) < bisect_left(instants, old.above)
        seen = old.above > threshold or watched
        if seen and (old.value or old.ts > threshold or kept_older):
            kept_older = True
        else:
            going.append(old)
    return going[::-1]


def _change(key: bytes, versions: list[_Old], going: list[_Old]) -> Stats:
    """How the statistics change: also for what stays, whose superseding version may be one that goes."""
    gone = {old.ts for old in going}
    before = of_versions(key, [(old.ts, old.value) for old in versions])
    return of_versions(key, [(old.ts, old.value) for old in versions if old.ts not in gone]).minus(before)


def _keys(reader: Reader, start: bytes, end: bytes) -> Iterator[tuple[bytes, list[_Old]]]:
    """Per key all its versions, newest first."""
    tail = tail_key(start, end)
    spans = [(start, end)]
    if tail is not None and tail >= start:
        spans.append((tail + b"\x80", tail + AFTER_VERSIONS))
    current: bytes | None = None
    versions: list[_Old] = []
    for low, high in spans:
        cursor = reader.cursor(Family.DATA, start=low, end=high)
        block = BLOCK_MIN
        while True:
            keys, values = cursor.chunk(block)
            if not keys:
                break
            block = min(2 * block, BLOCK_MAX)
            for stored, value in zip(keys, values, strict=True):
                key = stored[:-8]
                if not start <= key < end:
                    continue
                if key != current:
                    if current is not None:
                        yield current, versions
                    current, versions = key, []
                above = versions[-1].ts if versions else MAX
                versions.append(_Old(ts_of(stored), value, above))
    if current is not None:
        yield current, versions
