r"""The versions of a window of time: what is new since `after`, where most of what is stored is not.

History lies by key, so a walk has to pass every version to find those of a window. How fast it passes them decides what it
costs to come back to a feed for which no index was kept, or to read one day's changes of a year's table:

    stored          a@40   a@25   a@08   b@05   c@03   d@31   e@02          window (20, 30]
    below=False            a@25
    below=True             a@25   a@08                                      what a@25 replaced

The walk reads blocks and tests all their timestamps at once: the last 8 bytes of the keys, joined and seen as integers. Only
what passes is looked at one by one. Nothing of the rest is needed but its key, so the values of a *sparse* block are not
even read: the walk takes keys alone, and gets the values of those that pass by `multi_get`. Where more than one in `SPARSE`
passes it reads pairs. Each block decides for the next one.

A version that is passed over costs 0.4 us this way, three quarters of it the bare step of RocksDB's iterator; it cost 1.15 us
when each was cut, compared and grouped by itself.

Blocks that come out hold *whole* keys, newest version first: the last key is carried over to the next block. So a caller that has
to stop stops between keys, and what a version replaced is always beside it.

Depth. When a block ends inside a key with `RUN` versions or more, at one that is not in the window, the walk seeks: to the
window, or past the key. It goes on in small blocks and seeks sooner (`DEEP_RUN`), because neighbors of a deep key tend to be
deep, and it begins like that, because a span may be one hot key. Every `DEEP_KEYS` seeks it tries larger blocks again.
"""

from __future__ import annotations

from bisect import bisect_left
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slackwater.codec.layout import VERSION_BYTES
from slackwater.errors import invariant
from slackwater.runtime.seam import Family
from slackwater.storage.versions import AFTER_VERSIONS, BLOCK_MAX, BLOCK_MIN, DEEP_KEYS, suffix, tail_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.runtime.seam import Reader

SPARSE = 16
"""Less than one version in so many wanted: a value fetched by itself costs about as much as that many read along."""
NUMPY_FROM = 64
"""Keys in a block from where on testing them together is cheaper than one by one."""
RUN = 64
"""Versions of one key at the end of a block: a seek and beginning again costs as much as about fifty steps."""
DEEP_RUN = BLOCK_MIN // 2
"""The same, of a small block after a seek."""
assert 0 < DEEP_RUN <= RUN, "a run is looked for in small blocks too"
assert DEEP_RUN <= BLOCK_MIN, "a small block can hold a run that is sought past"
assert RUN <= BLOCK_MAX, "a block can hold a run that is sought past"

_mark = itemgetter(slice(-VERSION_BYTES, None))


class Window(NamedTuple):
    """Which keys and which timestamps: start <= key < end, after < ts <= upto."""

    start: bytes
    end: bytes
    after: Timestamp
    upto: Timestamp

    @property
    def tail(self) -> bytes | None:
        """The key inside whose versions all sort beyond the end, if one can be there."""
        tail = tail_key(self.start, self.end)
        return tail if tail is not None and tail >= self.start else None


class WholeKeys(NamedTuple):
    """Stored keys and values of one or more whole keys; `resume` is the key to go on from, None at the end."""

    keys: list[bytes]
    values: list[bytes]
    resume: bytes | None


def in_window(reader: Reader, window: Window, *, below: bool) -> Iterator[WholeKeys]:
    """The versions of the window; with `below` also the one right below each key's oldest. No block is empty."""
    bounds = _bounds(window)
    for number, (low, high) in enumerate(bounds):
        then = window.tail if number == 0 else None
        keys: list[bytes] = []
        values: list[bytes] = []
        for more, found in _walk(reader, low, high, window, below=below):
            keys += more
            values += found
            assert len(keys) == len(values), "a value for every version"
            last = keys[-1][:-8]
            cut = bisect_left(keys, last)
            if cut:
                yield WholeKeys(keys[:cut], values[:cut], last)
                keys, values = keys[cut:], values[cut:]
        if keys:
            yield WholeKeys(keys, values, then)


def first_in_window(reader: Reader, window: Window) -> bytes | None:
    """The stored key of the first version in the window: the newest one of the first key that has any."""
    for low, high in _bounds(window):
        for keys, _ in _walk(reader, low, high, window, below=False):
            return keys[0]
    return None


def _bounds(window: Window) -> list[tuple[bytes, bytes]]:
    """Where the versions of the span's keys lie in the engine's order: within it, and those of the one beyond its end."""
    tail = window.tail
    return [(window.start, window.end)] + ([] if tail is None else [(tail + b"\x80", tail + AFTER_VERSIONS)])


def _walk(
    reader: Reader, low: bytes, high: bytes, window: Window, *, below: bool
) -> Iterator[tuple[list[bytes], list[bytes]]]:
    """Block by block what passes, between two bounds in the engine's order."""
    cursor = reader.cursor(Family.DATA, start=low, end=high)
    newest, oldest = suffix(window.upto), suffix(window.after)
    size, sparse, deep = BLOCK_MIN, False, DEEP_KEYS
    cut: bytes | None = None  # the key whose version in the window was the last of a block: the one below may follow
    while True:
        keys, values = (cursor.keys(size), None) if sparse else cursor.chunk(size)
        if not keys:
            return
        at = _wanted(keys, newest, oldest)
        if at and not (window.start <= keys[at[0]][:-8] and keys[at[-1]][:-8] < window.end):
            at = [i for i in at if window.start <= keys[i][:-8] < window.end]
        last, ends_inside = keys[-1][:-8], bool(at) and at[-1] == len(keys) - 1
        if below:
            at = _with_below(keys, at, cut)
            cut = last if ends_inside else None
        if at:
            yield _picked(reader, keys, values, at)
        sparse = len(at) * SPARSE < len(keys)
        run, mark = DEEP_RUN if deep else RUN, keys[-1][-8:]
        if len(keys) >= run and keys[-run][:-8] == last and not newest <= mark < oldest:
            cursor.seek(last + (newest if mark < newest else AFTER_VERSIONS))
            size, deep = BLOCK_MIN, deep - 1 if deep else DEEP_KEYS
        else:
            size, deep = min(2 * size, BLOCK_MAX), 0


def _wanted(keys: Sequence[bytes], newest: bytes, oldest: bytes) -> Sequence[int]:
    """Which versions of a block are of the window."""
    if len(keys) < NUMPY_FROM:
        return [i for i, key in enumerate(keys) if newest <= key[-8:] < oldest]
    width = len(keys[0])
    if list(map(len, keys)).count(width) == len(keys):  # the rule in a table: no need to cut them
        marks = np.ndarray(len(keys), ">u8", b"".join(keys), width - VERSION_BYTES, width)
    else:
        marks = np.frombuffer(b"".join(map(_mark, keys)), ">u8")
    first, last = int.from_bytes(newest, "big"), int.from_bytes(oldest, "big")
    passed = (marks >= first) & (marks < last)
    if passed.all():
        return range(len(keys))
    found: list[int] = np.flatnonzero(passed).tolist()
    return found


def _with_below(keys: list[bytes], at: Sequence[int], cut: bytes | None) -> Sequence[int]:
    """Add what lies right below the wanted versions, also of the key that the block before was cut in."""
    count = len(keys)
    if len(at) == count:
        return at
    older = [i + 1 for i, after in pairwise([*at, count]) if after - i > 1 and keys[i][:-8] == keys[i + 1][:-8]]
    if cut is not None and keys[0][:-8] == cut and not (at and at[0] == 0):
        older.append(0)
    return sorted([*at, *older])


def _picked(
    reader: Reader, keys: list[bytes], values: list[bytes] | None, at: Sequence[int]
) -> tuple[list[bytes], list[bytes]]:
    """What passed, with its values: those read along, or fetched."""
    assert len(at) <= len(keys), "no more is picked than is there"
    if values is not None and len(at) == len(keys):
        return keys, values
    picked = [keys[i] for i in at]
    if values is not None:
        return picked, [values[i] for i in at]
    fetched = [value for value in reader.multi_get(Family.DATA, picked) if value is not None]
    invariant(len(fetched) == len(picked), "A-one-state", wanted=len(picked), found=len(fetched))
    return picked, fetched
