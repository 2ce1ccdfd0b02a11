"""Collecting history: which versions may go, and in what order.

Rule (I-26). A version is visible from its own timestamp up to the one above it. It may go when it is visible at no
t >= floor and at no kept instant:

    floor = 35, kept at 12                 a@40   a@30   a@20   a@10
    visible at                             40…    30–39  20–29  10–19
                                           keep   keep   go     keep (12)

A tombstone is visible like any version, but what it shows is nothing: when it is the one visible at the floor, or at a kept
instant, it goes too, provided that every older version of its key goes with it (otherwise they would come back to life).

Floors and instants come from `model.retention.stretches`: the same table by which reads below the threshold are answered or
refused. The threshold itself must be raised, in the replicated log, before anything goes (two phases: architecture section 7).
What is garbage stays garbage: thresholds never go back, and no version is written below one. So a plan made on a snapshot,
off the loop, still holds when its batch is evaluated, and is checked there all the same.

    plan          a walk over a snapshot: keys with the versions to delete, and whole spans in which nothing stays
    collect_keys  the deletions of one batch, each held against the rule again
    check_clear   that nothing of a span stays, so that one range tombstone may take it

Keys that keep their newest version share nothing with writers: what a write changes of the statistics depends on the newest
version alone. A key that goes as a whole does, and must be latched (`vanishing`).
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import UsageError
from slackwater.runtime.seam import Family
from slackwater.storage.stats import ZERO, Stats, of_versions, without_oldest
from slackwater.storage.versions import AFTER_VERSIONS, BLOCK_MAX, BLOCK_MIN, SKIP_AFTER, suffix, tail_key, ts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.model.retention import Stretch
    from slackwater.runtime.seam import Engine, EngineBatch, Reader

CLEAR_VERSIONS_MAX = 500_000
"""Of one range tombstone: they are walked over once more while writers of the span wait."""
SCANNED_MAX = 200_000
"""Versions that one plan walks over before it is handed in, found or not."""
assert SCANNED_MAX <= CLEAR_VERSIONS_MAX, "a span to clear may be longer than what is planned version by version"

Versions = list[tuple[Timestamp, bytes]]
"""Of one key, newest first."""


class GcPoint(NamedTuple):
    """Versions of one key that may go."""

    key: bytes
    timestamps: tuple[Timestamp, ...]
    vanishing: bool = False
    """None of the key's versions stays."""


class GcPlan(NamedTuple):
    """What a walk found."""

    points: list[GcPoint]
    clears: list[tuple[bytes, bytes]]
    """Spans in which nothing stays."""
    versions: int
    """That may go, those of `clears` included."""
    scanned: int
    resume: bytes | None = None
    """Where to go on; None at the end."""
    next_at: Timestamp = MAX
    """Since when the oldest garbage that is not old enough yet is garbage; MAX: there is none."""


class Collected(NamedTuple):
    """What one batch deletes."""

    versions: int
    stats: Stats


class _VersionRun:
    """Neighboring keys of which nothing stays."""

    __slots__ = ("_listed_max", "points", "start", "versions")

    def __init__(self, listed_max: int) -> None:
        self._listed_max = listed_max
        self.start: bytes | None = None
        self.versions = 0
        self.points: list[GcPoint] = []

    def add(self, key: bytes, versions: Versions) -> None:
        """One more key."""
        if self.start is None:
            self.start = key
        self.versions += len(versions)
        if self.versions < self._listed_max:
            self.points.append(GcPoint(key, tuple(ts for ts, _ in versions), vanishing=True))


def plan(
    reader: Reader, start: bytes, end: bytes, *, stretches: Sequence[Stretch], max_versions: int, clear_min: int = 0
) -> GcPlan:
    """Find garbage of [start, end), which the stretches cover; about `max_versions` of it, cleared spans not counted.

    Runs of neighboring keys that go as a whole, with `clear_min` versions or more, may go by range tombstone; 0: none may.
    """
    found = GcPlan([], [], 0, 0)
    points, clears, listed, total, scanned, next_at = found.points, found.clears, 0, 0, 0, MAX
    listed_max = clear_min or max_versions
    run = _VersionRun(listed_max)

    def close(upto: bytes) -> None:
        nonlocal run, listed
        if run.start is not None and clear_min and run.versions >= clear_min:
            assert run.start < upto, "a span to clear holds keys"
            clears.append((run.start, upto))
        elif run.start is not None:
            points.extend(run.points)
            listed += run.versions
        run = _VersionRun(listed_max)

    rules = iter(stretches)
    rule = next(rules)
    for key, versions in keys_of(reader, start, end):
        while key >= rule.end:
            rule = next(rules)
        if listed >= max_versions or scanned >= SCANNED_MAX or run.versions >= CLEAR_VERSIONS_MAX:
            close(key)
            assert listed <= total <= scanned, "no more goes than is there (I-26)"
            return GcPlan(points, clears, total, scanned, key, next_at)
        scanned += len(versions)
        going = garbage(versions, rule.floor, rule.instants)
        total += len(going)
        if len(versions) > 1 or not versions[0][1]:
            next_at = Timestamp(min(next_at, _next_at(versions, rule.floor)))
        if len(going) == len(versions) and (clear_min or run.versions + len(going) < listed_max):
            run.add(key, versions)
            continue
        close(key)
        if going:
            points.append(GcPoint(key, tuple(ts for ts, _ in going), len(going) == len(versions)))
            listed += len(going)
    close(end)
    assert listed <= total <= scanned, "no more goes than is there (I-26)"
    return GcPlan(points, clears, total, scanned, None, next_at)


def collect_keys(
    reader: Reader, batch: EngineBatch, points: Sequence[GcPoint], *, stretches: Sequence[Stretch]
) -> Collected:
    """Delete the named versions. Refuses what the rule does not allow (I-26); one that is gone already is skipped."""
    count, stats = 0, ZERO
    ordered = sorted(points)
    rules = iter(stretches)
    rule = next(rules, None)
    for (key, named, vanishing), versions in zip(
        ordered, versions_of_many(reader, [point.key for point in ordered]), strict=True
    ):
        while rule is not None and key >= rule.end:
            rule = next(rules, None)
        if rule is None or key < rule.start:
            raise UsageError("a version outside the range is not its to collect (I-26)", key=key)
        going = garbage(versions, rule.floor, rule.instants)
        if len(going) != len(named) or any(ts != name for (ts, _), name in zip(going, named, strict=True)):
            going = _named(key, versions, going, set(named))
        if going and len(going) == len(versions) and not vanishing:
            raise UsageError("a key that vanishes must be named as such: its writers have to wait", key=key)
        assert len(going) <= len(versions), "only what is there goes"
        for ts, _ in going:
            batch.delete(Family.DATA, key + suffix(ts))
        count += len(going)
        stats = stats.plus(_change(key, versions, going))
    assert count >= 0, "statistics lose what is collected (I-26)"
    assert stats.versions == -count, "statistics lose what is collected (I-26)"
    return Collected(count, stats)


def _named(key: bytes, versions: Versions, allowed: Versions, wanted: set[Timestamp]) -> Versions:
    """The versions of a key that a batch names and that are there, if they may go: fewer than could, or some are gone."""
    going = [version for version in versions if version[0] in wanted]
    if not wanted.isdisjoint({ts for ts, _ in versions} - {ts for ts, _ in allowed}):
        raise UsageError("a version is still visible at or above the floor, or at a kept instant (I-26)", key=key)
    if len(going) < len(allowed) and _uncovers(going, allowed):
        raise UsageError("a tombstone goes only with all that it hides (I-26)", key=key)
    return going


def check_clear(engine: Engine, start: bytes, end: bytes, *, stretches: Sequence[Stretch] | None) -> Stats | None:
    """The numbers of [start, end) if nothing of it has to stay; `stretches` None: because its table is dropped.

    Intents are unfinished work of transactions: where there is one, the span stays. Long: to be called off the loop.
    """
    with engine.snapshot(once=True) as frozen:
        if frozen.cursor(Family.LOCK, start=start, end=end).chunk(1)[0]:
            return None
        total = ZERO
        rules = iter(stretches or ())
        rule = next(rules, None)
        for key, versions in keys_of(frozen, start, end):
            while rule is not None and key >= rule.end:
                rule = next(rules)
            if rule is not None and len(garbage(versions, rule.floor, rule.instants)) < len(versions):
                return None
            total = total.plus(of_versions(key, versions))
        return total


def garbage(versions: Versions, floor: Timestamp, instants: Sequence[Timestamp]) -> Versions:
    """The versions of one key that may go, newest first."""
    if not instants:
        for i, (ts, value) in enumerate(versions):
            if ts <= floor:  # visible at the floor: it stays, unless what it shows is nothing
                return versions[i + 1 :] if value else versions[i:]
        return []
    going: Versions = []
    kept_older = False
    for i in range(len(versions) - 1, -1, -1):  # oldest first: a tombstone needs to know whether anything older stays
        ts, value = versions[i]
        above = versions[i - 1][0] if i else MAX
        seen = above > floor or bisect_left(instants, ts) < bisect_left(instants, above)
        if seen and (value or ts > floor or kept_older):
            kept_older = True
        else:
            going.append(versions[i])
    return going[::-1]


def _next_at(versions: Versions, floor: Timestamp) -> Timestamp:
    """Since when the oldest version that is garbage now, but is still visible at or above the floor, is garbage."""
    newest_ts, newest = versions[0]
    found = MAX if newest or newest_ts <= floor else newest_ts
    for (above, _), _older in pairwise(versions):
        if above <= floor:
            break
        found = above
    return found


def _uncovers(going: Versions, allowed: Versions) -> bool:
    """Whether a tombstone goes before something older that may go too: that would come back to life."""
    newest = max((ts for ts, value in going if not value), default=0)
    gone = {ts for ts, _ in going}
    return any(ts < newest and ts not in gone for ts, _ in allowed)


def _change(key: bytes, versions: Versions, going: Versions) -> Stats:
    """How the statistics change: also for what stays, whose superseding version may be one that goes."""
    if not going:
        return ZERO
    if versions[-len(going) :] == going:
        return without_oldest(key, versions, len(going))
    gone = {ts for ts, _ in going}
    stays = [version for version in versions if version[0] not in gone]
    assert len(stays) + len(going) == len(versions), "a version goes or stays"
    return of_versions(key, stays).minus(of_versions(key, versions))


def versions_of(reader: Reader, key: bytes) -> Versions:
    """All versions of one key."""
    cursor = reader.cursor(Family.DATA, start=key + b"\x80", end=key + AFTER_VERSIONS)
    found: Versions = []
    while True:
        keys, values = cursor.chunk(BLOCK_MAX)
        if not keys:
            return found
        found += ((ts_of(stored), value) for stored, value in zip(keys, values, strict=True))


def versions_of_many(reader: Reader, keys: Sequence[bytes]) -> Iterator[Versions]:
    """Per key, in ascending order, all its versions. Neighbors are read in one stream; far ones cost a seek."""
    if not keys:
        return
    cursor = reader.cursor(Family.DATA, start=keys[0] + b"\x80", end=keys[-1] + AFTER_VERSIONS)
    stored: list[bytes] = []
    values: list[bytes] = []
    at, passed = 0, 0
    for key in keys:
        versions: Versions = []
        while True:
            if at == len(stored):
                stored, values = cursor.chunk(BLOCK_MAX)
                at = 0
                if not stored:
                    break
            here = stored[at][:-VERSION_BYTES]
            if here < key:
                at += 1
                passed += 1
                if passed > SKIP_AFTER:  # not neighbors: the next wanted key is worth a seek
                    cursor.seek(key + b"\x80")
                    stored, at, passed = [], 0, 0
                continue
            if here > key:
                break
            versions.append((ts_of(stored[at]), values[at]))
            at += 1
        passed = 0
        yield versions


def keys_of(reader: Reader, start: bytes, end: bytes) -> Iterator[tuple[bytes, Versions]]:
    """Per key all its versions, newest first."""
    tail = tail_key(start, end)
    spans = [(start, end)]
    if tail is not None and tail >= start:
        spans.append((tail + b"\x80", tail + AFTER_VERSIONS))
    current: bytes | None = None
    versions: Versions = []
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
                if key != current:
                    if current is not None and versions:
                        yield current, versions
                    current, versions = key, []
                    if not start <= key < end:
                        current = None
                        continue
                versions.append((ts_of(stored), value))
    if current is not None and versions:
        yield current, versions
