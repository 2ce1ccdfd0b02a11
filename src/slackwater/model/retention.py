"""What a range still knows of the past: its threshold, and the instants and spans below it that are kept.

History at or below the threshold may be gone. A protection keeps some of it: either what one instant shows, or all that
happened from an instant on. What is kept of a range is part of its replicated state, because a read below the threshold is
served exactly where, and as long as, every replica agrees that nothing it needs was collected.

    threshold = 60                      ts ──►   10      30          60
    [a, c)  nothing kept                  ......................... │ readable
    [c, f)  kept at 30                    ........ ▪ .............. │ readable       30, and above 60
    [f, k)  kept after 10              .. ▪──────────────────────┼ readable       10 and everything above

One predicate, two users (I-17, I-26): `readable` decides whether a read is answered, `stretches` tells the collector, for each
stretch of keys, down to where history is whole (`floor`) and which instants below it stay. What `readable` says yes to, a
collector that obeys `stretches` never touches; a property test holds the two against each other.

The floor of an entry that keeps everything from `ts` on is `ts`: the state *at* it is complete, and so is every change above
it. A window of changes `(after, upto]` is therefore complete where `after >= floor`; at the floor itself a deletion may be gone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from slackwater.clock.timestamp import Timestamp, show
from slackwater.errors import BelowGcThreshold
from slackwater.model.protection import Kept

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

KEPT_MAX = 32
"""Entries that one range remembers for the sake of protections; with more, its threshold stays below the next one instead."""


class Stretch(NamedTuple):
    """Keys with start <= key < end, for which one rule holds."""

    start: bytes
    end: bytes
    floor: Timestamp
    """The state here is complete, and so is every change above."""
    instants: tuple[Timestamp, ...]
    """Below the floor: what was live here then is complete too."""


def stretches(threshold: Timestamp, kept: Sequence[Kept], start: bytes, end: bytes) -> list[Stretch]:
    """What is complete in [start, end), stretch by stretch, in key order."""
    inside = [k for k in kept if k.start < end and start < k.end and k.ts <= threshold]
    bounds = sorted({start, end, *(b for k in inside for b in (k.start, k.end) if start < b < end)})
    found: list[Stretch] = []
    for low, high in pairwise(bounds):
        here = [k for k in inside if k.start <= low and high <= k.end]
        floor = min([threshold, *(k.ts for k in here if k.after)])
        instants = tuple(sorted({k.ts for k in here if not k.after and k.ts < floor}))
        if found and found[-1].floor == floor and found[-1].instants == instants:
            found[-1] = found[-1]._replace(end=high)
        else:
            found.append(Stretch(low, high, floor, instants))
    return found


def readable(threshold: Timestamp, kept: Sequence[Kept], start: bytes, end: bytes, *, ts: Timestamp) -> bool:
    """Whether a read of [start, end) at `ts` sees all that it should."""
    if ts > threshold:
        return True
    at = start
    for one in sorted((k.start, k.end) for k in kept if k.serves(ts)):
        if one[0] > at:
            return False
        at = max(at, one[1])
        if at >= end:
            return True
    return False


def complete_after(threshold: Timestamp, kept: Sequence[Kept], start: bytes, end: bytes) -> Timestamp:
    """The lowest `after` from which on every change of [start, end) is there."""
    if not kept:
        return threshold
    return Timestamp(max((s.floor for s in stretches(threshold, kept, start, end)), default=threshold))


def clip(kept: Iterable[Kept], start: bytes, end: bytes) -> tuple[Kept, ...]:
    """The part of what is kept that lies in [start, end)."""
    found = (Kept(max(k.start, start), min(k.end, end), k.ts, k.after) for k in kept)
    return tuple(sorted({k for k in found if k.start < k.end}))


def still_there(threshold: Timestamp, kept: Sequence[Kept], wanted: Kept) -> bool:
    """Whether what an entry promises is there now, so that it may be promised from now on."""
    if not wanted.after:
        return readable(threshold, kept, wanted.start, wanted.end, ts=wanted.ts)
    if wanted.ts > threshold:
        return True
    whole = [k for k in kept if k.after]
    return readable(threshold, whole, wanted.start, wanted.end, ts=wanted.ts)


def joined(left: Retained, right: Retained) -> Retained:
    """What two neighbors that become one range know together: nothing that either had is lost.

    The higher threshold holds for both. Where it was lower, all history above that is there, and stays readable.
    """
    threshold = Timestamp(max(left.threshold, right.threshold))
    more = [
        Kept(side.start, side.end, Timestamp(side.threshold + 1), after=True)
        for side in (left, right)
        if side.threshold < threshold
    ]
    kept = tuple(sorted({*left.kept, *right.kept, *more}))
    return Retained(left.start, right.end, threshold, kept)


class Retained(NamedTuple):
    """What one range knows of the past."""

    start: bytes
    end: bytes
    threshold: Timestamp
    kept: tuple[Kept, ...] = ()


class Decision(NamedTuple):
    """How far a range may collect, and what must be kept for it."""

    threshold: Timestamp
    kept: tuple[Kept, ...]


def decide(now: Retained, protections: Iterable[Kept], *, target: Timestamp) -> Decision:
    """The threshold and the entries by which a range honors every protection and collects all else up to `target`.

    A protection *after* a timestamp that covers the whole range stops the threshold below it and needs no entry; so do
    protections beyond KEPT_MAX. The threshold never goes back, and what was collected before a protection came is not
    promised: `protect` has refused that one.
    """
    needed = [k for k in clip(protections, now.start, now.end) if k.ts <= target]
    threshold = target
    for one in needed:
        if one.after and (one.start, one.end) == (now.start, now.end) and one.ts > now.threshold:
            threshold = Timestamp(min(threshold, one.ts - 1))
    needed = [k for k in needed if k.ts <= threshold]
    if len(needed) > KEPT_MAX:
        threshold = Timestamp(min(threshold, sorted(k.ts for k in needed)[KEPT_MAX] - 1))
    threshold = Timestamp(max(threshold, now.threshold))
    return Decision(threshold, entries(now, protections, target=target, threshold=threshold))


def entries(now: Retained, protections: Iterable[Kept], *, target: Timestamp, threshold: Timestamp) -> tuple[Kept, ...]:
    """What must be kept once the threshold is `threshold`: for protections, and of all that is younger than `target`.

    A range may hold history above `target` and below its threshold: after a merge, or where the time to live was raised.
    That is not old enough to be given up, whether protected or not.
    """
    wanted = clip(protections, now.start, now.end)
    needed = {k for k in wanted if k.ts <= threshold and still_there(now.threshold, now.kept, k)}
    for old in now.kept:
        if old.ts > target:
            needed.add(old)
        elif old.after and target < now.threshold:
            needed.add(Kept(old.start, old.end, Timestamp(target + 1), after=True))
    return tuple(sorted(needed))


def too_old(ts: Timestamp, *, threshold: Timestamp, what: str = "history at this timestamp") -> BelowGcThreshold:
    """The error for a read below what is kept; it names the earliest time that can be read."""
    earliest = Timestamp(threshold + 1)
    return BelowGcThreshold(
        f"{what} has been collected; the earliest readable time is {show(earliest)}",
        timestamp=ts,
        threshold=threshold,
        earliest=earliest,
    )
