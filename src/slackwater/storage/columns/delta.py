"""What was written in the span of a segment since its anchor: the stored keys of all newer versions, without values.

    segment      a  b  c │ d  e  f │ g          live at the anchor 20, in batches
    delta        c@23   e@31   e@24   x@25      in the order in which they were applied
    buckets      c@23   │ e@31 e@24 │ x@25      by the batch in whose span they are

A read at T looks at those at or below T, newest of each key, and gets their values by their full keys; a key whose newest
version is above T is as it was at the anchor. So a read pays for what has changed, not for what there is.

Reads go batch by batch, and most of what has changed in a batch had changed when the last read came by. So a bucket keeps
what the last read made of it for as long as the next one sees the same changes: a write costs the reads after it one batch
to be made anew, not all of them. `Room` bounds what all segments of a store keep.

Only the loop adds to a delta. A read that goes to a thread takes a `DeltaView`: the first so many entries, which never change.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from contextlib import nullcontext
from itertools import compress, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slackwater.runtime.seam import Family
from slackwater.storage.versions import suffix, ts_of, uncertain

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from contextlib import AbstractContextManager

    from slackwater.clock.timestamp import Timestamp
    from slackwater.runtime.seam import Reader

ROOM_BYTES = 48 << 20
"""Memory for the values of changed rows, and for what was made of them, of all segments of a store."""
ENTRY_BYTES = 192
"""What a value that is kept takes beside its bytes: two objects and a place in a dictionary."""

Array = np.ndarray[Any, Any]


class Room:
    """How much is kept in memory for the changes of one store's segments; changed with its guard held."""

    __slots__ = ("guard", "limit", "used")

    def __init__(self, guard: AbstractContextManager[Any] | None = None, limit: int = ROOM_BYTES) -> None:
        self.guard = nullcontext() if guard is None else guard
        self.limit = limit
        self.used = 0

    def take(self, size: int) -> bool:
        """Whether so much may be kept; it then counts until it is given back."""
        assert size >= 0, "what is kept has a size"
        if self.used + size > self.limit:
            return False
        self.used += size
        return True

    def give_back(self, size: int) -> None:
        """Give back the room of what is no longer kept."""
        self.used -= size
        assert self.used >= 0, "no more is given back than was taken"


class Bucket:
    """The changes in the span of one batch, in the order in which they were applied."""

    __slots__ = ("_all", "_marks", "kept", "numbers", "size", "stored")

    def __init__(self) -> None:
        self.numbers: list[int] = []
        """The place of each in the delta."""
        self.stored: list[bytes] = []
        self._marks: Array = np.zeros(0, np.uint64)
        self._all: tuple[int, Array] = 0, np.zeros(0, bool)
        """The mark of the newest of so many, and a mask of all of them. One value: reads on several threads replace it."""
        self.kept: tuple[Array, Any] | None = None
        """Which changes a read saw, and what it made of them; the mask is not copied."""
        self.size = 0
        """Bytes that this takes of the room."""

    def marks(self, count: int) -> Array:
        """The complemented timestamps of the first `count`."""
        assert count <= len(self.stored), "marks of changes that are there"
        known = self._marks
        if len(known) < count:
            raw = b"".join([stored[-8:] for stored in self.stored[len(known) : count]])
            self._marks = known = np.concatenate([known, np.frombuffer(raw, ">u8").astype(np.uint64)])
            assert len(known) == count, "a timestamp for every change"
        return known[:count]

    def seen(self, count: int, mark: int) -> Array:
        """Which of the first `count` a read at a timestamp with this mark sees.

        Most reads see all of them, and get the same array as the read before: by that they know what was made of it.
        """
        newest, known = self._all
        if len(known) == count and mark <= newest:
            return known
        marks = self.marks(count)
        mask: Array = marks >= mark
        if mask.all():
            self._all = int(marks.min()), mask
        assert len(mask) == count, "a read sees or does not see each change"
        return mask


class VisibleChanges(NamedTuple):
    """The changes of one batch that a read sees."""

    bucket: Bucket
    mask: Array
    """Of the bucket's first so many."""

    def made(self) -> Any:
        """What a read made of exactly these changes, if that was kept."""
        kept = self.bucket.kept
        if kept is None or len(kept[0]) > len(self.mask):
            return None
        if kept[0] is self.mask:
            return kept[1]
        known = len(kept[0])
        same = np.array_equal(self.mask[:known], kept[0]) and not self.mask[known:].any()
        return kept[1] if same else None

    def newest(self) -> list[bytes]:
        """The newest of each key, in order."""
        assert len(self.mask) <= len(self.bucket.stored), "a read sees changes that are there"
        ordered = sorted(compress(self.bucket.stored, self.mask.tolist()))
        return [version for before, version in pairwise([b"", *ordered]) if before[:-8] != version[:-8]]


UNCHANGED = VisibleChanges(Bucket(), np.zeros(0, bool))
"""No change is seen."""


class Delta:
    """The stored keys of versions above the anchor of one segment."""

    __slots__ = ("_buckets", "_bytes", "_closed", "_filed", "_room", "_values", "stored")

    def __init__(self, stored: Iterable[bytes] = (), room: Room | None = None) -> None:
        self.stored: list[bytes] = list(stored)
        self._buckets: dict[int, Bucket] = {}
        self._filed = 0
        """How many of them are in buckets."""
        self._values: dict[bytes, bytes] = {}
        """Of versions that were read; a version never changes."""
        self._room = Room() if room is None else room
        self._bytes = 0
        """Of the room."""
        self._closed = False

    def __len__(self) -> int:
        return len(self.stored)

    def frozen(self) -> DeltaView:
        """What there is now."""
        return DeltaView(self, len(self.stored))

    def bucket(self, firsts: Sequence[bytes], number: int, count: int) -> tuple[Bucket, int] | None:
        """The changes in one of the batches that begin at `firsts`, and how many of them are among the first `count`."""
        assert 0 <= count <= len(self.stored), "a count of what was written"
        with self._room.guard:
            for place in range(self._filed, count):
                stored = self.stored[place]
                batch = max(0, bisect_right(firsts, stored[:-8]) - 1)
                bucket = self._buckets.get(batch)
                if bucket is None:
                    bucket = self._buckets[batch] = Bucket()
                bucket.stored.append(stored)
                bucket.numbers.append(place)
            self._filed = max(self._filed, count)
        assert self._filed <= len(self.stored), "what is filed was written"
        found = self._buckets.get(number)
        assert found is None or len(found.stored) == len(found.numbers), "a number for every change"
        upto = 0 if found is None else bisect_left(found.numbers, count)
        return None if found is None or not upto else (found, upto)

    def values(self, reader: Reader, picked: Sequence[bytes]) -> list[bytes | None]:
        """The values of some of them, kept as far as there is room; on any thread."""
        held = self._values
        missing = [version for version in picked if version not in held]
        if not missing:
            return [held[version] for version in picked]
        found = dict(zip(missing, reader.multi_get(Family.DATA, missing), strict=True))
        if self._took(sum(len(value or b"") + ENTRY_BYTES for value in found.values())):
            held.update((key, value) for key, value in found.items() if value is not None)
        return [found[version] if version in found else held[version] for version in picked]

    def keep(self, seen: VisibleChanges, made: Any, size: int) -> None:
        """Keep what a read made of the changes it saw in a batch, if there is room; on any thread."""
        bucket = seen.bucket
        with self._room.guard:
            self._room.give_back(bucket.size)
            self._bytes -= bucket.size
            assert self._bytes >= 0, "a delta gives back no more than it took"
            bucket.kept, bucket.size = None, 0
        if self._took(size):
            shown = np.flatnonzero(seen.mask)
            last = int(shown[-1]) + 1 if len(shown) else 0
            bucket.kept = seen.mask if last == len(seen.mask) else seen.mask[:last], made
            bucket.size = size

    def grew(self, seen: VisibleChanges, size: int) -> bool:
        """Whether there is room for more of what is kept of a batch; on any thread."""
        if seen.bucket.kept is None or not self._took(size):
            return False
        seen.bucket.size += size
        return True

    def _took(self, size: int) -> bool:
        with self._room.guard:
            if self._closed or not self._room.take(size):
                return False
            self._bytes += size
            assert self._bytes <= self._room.used, "what one delta holds is a part of all"
            return True

    def close(self) -> None:
        """Give the room back: the segment is gone."""
        with self._room.guard:
            self._closed = True
            assert self._bytes >= 0, "a delta gives back what it took"
            self._room.give_back(self._bytes)
            self._bytes = 0
            self._values = {}
            for bucket in self._buckets.values():
                bucket.kept, bucket.size = None, 0


class DeltaView:
    """A delta as it was in one step."""

    __slots__ = ("_count", "_more", "delta")

    def __init__(self, delta: Delta, count: int, more: Sequence[bytes] = ()) -> None:
        assert 0 <= count <= len(delta.stored), "a view of what was written"
        self.delta = delta
        self._count = count
        self._more = more

    def __len__(self) -> int:
        return self._count + len(self._more)

    def also(self, stored: Sequence[bytes]) -> DeltaView:
        """With versions that are not in the engine, such as intents that are shown as what they have become."""
        return DeltaView(self.delta, self._count, [*self._more, *stored])

    def values(self, reader: Reader, picked: Sequence[bytes]) -> list[bytes | None]:
        """The values of some of them."""
        if self._more:
            return reader.multi_get(Family.DATA, picked)
        return self.delta.values(reader, picked)

    def seen(self, firsts: Sequence[bytes], number: int, *, ts: Timestamp, bound: Timestamp) -> VisibleChanges | None:
        """What a read at `ts` sees of the changes of a whole batch; None: that is for `visible` to say."""
        if self._more:
            return None
        found = self.delta.bucket(firsts, number, self._count)
        if found is None:
            return UNCHANGED
        bucket, count = found
        mask = bucket.seen(count, _mark(ts))
        if bound > ts and (bucket.marks(count)[~mask] >= _mark(bound)).any():
            return None  # one of them is uncertain
        return VisibleChanges(bucket, mask) if mask.any() else UNCHANGED

    def visible(
        self, firsts: Sequence[bytes], number: int, low: bytes, high: bytes, *, ts: Timestamp, bound: Timestamp
    ) -> list[bytes]:
        """The newest at or below `ts` of each key of a batch with low <= key < high; those in (ts, bound] are uncertain."""
        assert low <= high, "a span"
        found = self.delta.bucket(firsts, number, self._count)
        stored = [*(found[0].stored[: found[1]] if found else ()), *self._more]
        return visible_changes(sorted(v for v in stored if low <= v[:-8] < high), ts=ts, bound=bound)

    def above(self, ts: Timestamp, low: bytes, high: bytes) -> list[bytes]:
        """Those with a timestamp above `ts`, of keys with low <= key < high."""
        newest = suffix(ts)
        stored = [*self.delta.stored[: self._count], *self._more]
        return [version for version in stored if version[-8:] < newest and low <= version[:-8] < high]


def _mark(ts: Timestamp) -> int:
    return int.from_bytes(suffix(ts), "big")


def visible_changes(stored: Sequence[bytes], *, ts: Timestamp, bound: Timestamp) -> list[bytes]:
    """The newest of each key at or below `ts`, of changes in order; those in (ts, bound] are uncertain."""
    newest, first = suffix(ts), suffix(bound)
    picked: list[bytes] = []
    last = b""
    for version in stored:
        mark = version[-8:]
        if mark < newest:
            if mark >= first:
                raise uncertain(version[:-8], ts_of(version), ts, bound)
            continue
        key = version[:-8]
        if key != last:
            picked.append(version)
            last = key
    assert len(picked) <= len(stored), "one version of each key at most"
    return picked
