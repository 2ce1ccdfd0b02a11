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
from itertools import count as counting
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import UsageError
from slackwater.runtime.seam import Family
from slackwater.settings import describe
from slackwater.storage.stats import ZERO, Stats, of_versions, without_oldest
from slackwater.storage.versions import AFTER_VERSIONS, BLOCK_MAX, BLOCK_MIN, suffix, tail_key, ts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.model.retention import Stretch
    from slackwater.runtime.seam import Engine, EngineBatch, Reader

CLEAR_VERSIONS_MAX = 500_000
"""Of one range tombstone: they are walked over once more while writers of the span wait."""
SCANNED_MAX = 200_000
"""Versions that one plan walks over before it is handed in, found or not."""
assert SCANNED_MAX <= CLEAR_VERSIONS_MAX, "a span to clear may be longer than what is planned version by version"
assert describe("gc.batch_versions").safe[1] <= SCANNED_MAX, "one plan fills a batch"
assert describe("gc.clear_versions").default <= CLEAR_VERSIONS_MAX, (
    "a span that is worth a range tombstone is not too long for one"
)

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

    def add(self, key: bytes, stored: Sequence[bytes]) -> None:
        """One more key, with its stored versions."""
        if self.start is None:
            self.start = key
        self.versions += len(stored)
        assert stored, "a key has a version"
        if self.versions < self._listed_max:
            self.points.append(GcPoint(key, tuple(map(ts_of, stored)), vanishing=True))


def plan(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    stretches: Sequence[Stretch],
    max_versions: int,
    clear_min: int = 0,
    scanned_max: int = SCANNED_MAX,
) -> GcPlan:
    """Find garbage of [start, end), which the stretches cover; about `max_versions` of it, cleared spans not counted.

    Runs of neighboring keys that go as a whole, with `clear_min` versions or more, may go by range tombstone; 0: none may.
    After `scanned_max` versions the plan is handed in, found or not; in such a run only after SCANNED_MAX.
    """
    assert stretches, "a rule for every part of the span"
    assert max_versions > 0, "a plan gets further"
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
    floor = suffix(rule.floor)
    for key, stored, values in _stored_of(reader, start, end):
        while key >= rule.end:
            rule = next(rules)
            floor = suffix(rule.floor)
        enough = scanned >= (scanned_max if run.start is None else SCANNED_MAX)
        if listed >= max_versions or enough or run.versions >= CLEAR_VERSIONS_MAX:
            close(key)
            assert listed <= total <= scanned, "no more goes than is there (I-26)"
            return GcPlan(points, clears, total, scanned, key, next_at)
        count = len(stored)
        scanned += count
        if count == 1 and values[0]:
            close(key)  # one live version: nothing goes, now or later
            continue
        next_at = Timestamp(min(next_at, _next_at(key, stored, values, floor)))
        if rule.instants:
            going = [ts for ts, _ in garbage(_versions(stored, values), rule.floor, rule.instants)]
        else:
            going = [ts_of(one) for one in stored[_first_going(key, stored, values, floor) :]]
        total += len(going)
        if len(going) == count and (clear_min or run.versions + count < listed_max):
            run.add(key, stored)
            continue
        close(key)
        if going:
            points.append(GcPoint(key, tuple(going), len(going) == count))
            listed += len(going)
    close(end)
    assert listed <= total <= scanned, "no more goes than is there (I-26)"
    return GcPlan(points, clears, total, scanned, None, next_at)


def collect_keys(
    reader: Reader, batch: EngineBatch, points: Sequence[GcPoint], *, stretches: Sequence[Stretch]
) -> Collected:
    """Delete the named versions. Refuses what the rule does not allow (I-26); one that is gone already is skipped."""
    count, stats, gone_bytes, gone_keys, gone_weight = 0, ZERO, 0, 0, 0
    ordered = sorted(points)
    rules = iter(stretches)
    rule = next(rules, None)
    floor = b"" if rule is None else suffix(rule.floor)
    found = _stored_of_many(reader, [point.key for point in ordered])
    for (key, named, vanishing), (stored, values) in zip(ordered, found, strict=True):
        while rule is not None and key >= rule.end:
            rule = next(rules, None)
            floor = b"" if rule is None else suffix(rule.floor)
        if rule is None or key < rule.start:
            raise UsageError("a version outside the range is not its to collect (I-26)", key=key)
        there, first = len(stored), len(stored) - len(named)
        times = list(map(ts_of, stored))
        if (
            not rule.instants
            and first >= _first_going(key, stored, values, floor)
            and tuple(times[first:]) == tuple(named)
        ):
            # The oldest versions of the key, as nearly always: none of them hides anything that stays.
            _check_vanishing(key, len(named), there, vanishing=vanishing)
            if named:
                size, weight = without_oldest(key, times, values, len(named))
                gone_bytes, gone_weight = gone_bytes + size, gone_weight + weight
                gone_keys += first == 0
                batch.delete_many(Family.DATA, stored[first:])
                count += len(named)
            continue
        versions = _versions(stored, values)
        going = _named(key, versions, garbage(versions, rule.floor, rule.instants), set(named))
        _check_vanishing(key, len(going), there, vanishing=vanishing)
        assert len(going) <= there, "only what is there goes"
        batch.delete_many(Family.DATA, [key + suffix(ts) for ts, _ in going])
        count += len(going)
        stats = stats.plus(_change(key, versions, going))
    assert count >= 0, "statistics lose what is collected (I-26)"
    named_there = count + stats.versions
    stats = stats.plus(Stats(0, 0, -gone_bytes, -gone_keys, -named_there, -gone_weight))
    assert stats.versions == -count, "statistics lose what is collected (I-26)"
    return Collected(count, stats)


def _check_vanishing(key: bytes, going: int, there: int, *, vanishing: bool) -> None:
    if going and going == there and not vanishing:
        raise UsageError("a key that vanishes must be named as such: its writers have to wait", key=key)


def _first_going(key: bytes, stored: Sequence[bytes], values: Sequence[bytes], floor: bytes) -> int:
    """The place from which on versions may go where no instant is kept: `garbage`, without a tuple for each version."""
    seen = bisect_left(stored, key + floor)  # visible at the floor: it stays, unless what it shows is nothing
    return seen + 1 if seen < len(stored) and values[seen] else seen


def _versions(stored: Sequence[bytes], values: Sequence[bytes]) -> Versions:
    return [(ts_of(one), value) for one, value in zip(stored, values, strict=True)]


def _named(key: bytes, versions: Versions, allowed: Versions, wanted: set[Timestamp]) -> Versions:
    """The versions of a key that a batch names and that are there, if they may go: fewer than could, or some are gone."""
    going = [version for version in versions if version[0] in wanted]
    if not wanted.isdisjoint({ts for ts, _ in versions} - {ts for ts, _ in allowed}):
        raise UsageError("a version is still visible at or above the floor, or at a kept instant (I-26)", key=key)
    if len(going) < len(allowed) and _uncovers(going, allowed):
        raise UsageError("a tombstone goes only with all that it hides (I-26)", key=key)
    assert len(going) <= len(allowed), "no more goes than may (I-26)"
    return going


def check_clear(engine: Engine, start: bytes, end: bytes, *, stretches: Sequence[Stretch] | None) -> Stats | None:
    """The numbers of [start, end) if nothing of it has to stay; `stretches` None: because its table is dropped.

    Intents are unfinished work of transactions: where there is one, the span stays. Long: to be called off the loop.
    """
    assert start < end, "a span that is cleared holds keys"
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
    assert len(going) <= len(versions), "only what is there goes (I-26)"
    return going[::-1]


def _next_at(key: bytes, stored: Sequence[bytes], values: Sequence[bytes], floor: bytes) -> Timestamp:
    """The time since which the oldest garbage that is still visible at or above the floor is garbage."""
    above = min(bisect_left(stored, key + floor), len(stored) - 1)  # that are above the floor and hide an older one
    if above:
        return ts_of(stored[above - 1])
    return ts_of(stored[0]) if not values[0] and stored[0] < key + floor else MAX


def _uncovers(going: Versions, allowed: Versions) -> bool:
    """Whether a tombstone goes before something older that may go too: that would come back to life."""
    newest = max((ts for ts, value in going if not value), default=0)
    gone = {ts for ts, _ in going}
    return any(ts < newest and ts not in gone for ts, _ in allowed)


def _change(key: bytes, versions: Versions, going: Versions) -> Stats:
    """How the statistics change: also for what stays, whose superseding version may be one that goes."""
    if not going:
        return ZERO
    gone = {ts for ts, _ in going}
    stays = [version for version in versions if version[0] not in gone]
    assert len(stays) + len(going) == len(versions), "a version goes or stays"
    return of_versions(key, stays).minus(of_versions(key, versions))


def versions_of(reader: Reader, key: bytes) -> Versions:
    """All versions of one key: none of a key that only begins with it, as others do where it is the bound of a span."""
    cursor = reader.cursor(Family.DATA, start=key + b"\x80", end=key + AFTER_VERSIONS)
    found: Versions = []
    length = len(key) + VERSION_BYTES
    while True:
        keys, values = cursor.chunk(BLOCK_MAX)
        if not keys:
            return found
        found += ((ts_of(one), value) for one, value in zip(keys, values, strict=True) if len(one) == length)


def _stored_of_many(reader: Reader, keys: Sequence[bytes]) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Per key, in ascending order, its stored versions and their values. Neighbors are one stream; far ones cost a seek."""
    if not keys:
        return
    cursor = reader.cursor(Family.DATA, start=keys[0] + b"\x80", end=keys[-1] + AFTER_VERSIONS)
    stored: list[bytes] = []
    values: list[bytes] = []
    at, block = 0, BLOCK_MIN
    for key in keys:
        first, beyond = key + b"\x80", key + AFTER_VERSIONS
        found: list[bytes] = []
        shown: list[bytes] = []
        for reading in counting():
            at = bisect_left(stored, first, at)
            upto = bisect_left(stored, beyond, at)
            found += stored[at:upto]
            shown += values[at:upto]
            at = upto
            if upto < len(stored):
                break
            if reading and not found:  # not neighbors: the next wanted key is worth a seek
                cursor.seek(first)
                block = BLOCK_MIN
            stored, values = cursor.chunk(block)
            at, block = 0, min(2 * block, BLOCK_MAX)
            if not stored:
                break
        yield found, shown


def keys_of(reader: Reader, start: bytes, end: bytes) -> Iterator[tuple[bytes, Versions]]:
    """Per key all its versions, newest first."""
    return ((key, _versions(stored, values)) for key, stored, values in _stored_of(reader, start, end))


def _stored_of(reader: Reader, start: bytes, end: bytes) -> Iterator[tuple[bytes, list[bytes], list[bytes]]]:
    """Per key its stored versions, newest first, and their values: cut out of blocks, not put together one by one."""
    tail = tail_key(start, end)
    spans = [(start, end)]
    if tail is not None and tail >= start:
        spans.append((tail + b"\x80", tail + AFTER_VERSIONS))
    for low, high in spans:
        cursor = reader.cursor(Family.DATA, start=low, end=high)
        block = BLOCK_MIN
        found: list[bytes] = []  # of the last key seen: the next block may go on with it
        shown: list[bytes] = []
        while True:
            stored, values = cursor.chunk(block)
            if not stored:
                break
            block, at = min(2 * block, BLOCK_MAX), 0
            while at < len(stored):
                key = (found[0] if found else stored[at])[:-VERSION_BYTES]
                upto = bisect_left(stored, key + AFTER_VERSIONS, at)
                found += stored[at:upto]
                shown += values[at:upto]
                at = upto
                if at < len(stored):
                    if start <= key < end:
                        yield key, found, shown
                    found, shown = [], []
        if found and start <= (key := found[0][:-VERSION_BYTES]) < end:
            yield key, found, shown
