"""What happened to the rows of a span in a window of time, block by block.

    stored, newest first        window (10, 30]            out, oldest first
    a@40  a4                    after the window
    a@25  a3                    update  a2 -> a3           a@20  insert            a2
    a@20  a2                    insert                     a@25  update_preimage   a2      (with `before`)
    a@08  (deleted)             before: there was no row   a@25  update_postimage  a3
    b@15  (deleted)             delete of b1               b@15  delete            b1      (with `before`, else the key)
    b@05  b1

The version right below a change says what it changed, so the walk reads blocks of *whole* keys: the last key of a block is
carried over to the next. Everything about a block is then a handful of numpy operations on the timestamps and sizes. A
deletion of nothing changes nothing and is left out, so the same window always gives the same rows, whoever deleted twice.

The version below may itself lie below the window. It is still there: collection keeps the state *at* its threshold
(`storage.gc`), and a window may not begin below that.

Cost. A key with a long tail of versions that are of no interest is left by seeking past them, at the end of a block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from slackwater.model.changes_arrow import DELETE, INSERT, POSTIMAGE, PREIMAGE, ChangeRows
from slackwater.runtime.seam import Family
from slackwater.storage.arrow import BATCH_ROWS, BLOCK_FIRST, BLOCK_PAIRS, ArrowBlock, stamps
from slackwater.storage.intents import conflict, conflicts_in
from slackwater.storage.versions import AFTER_VERSIONS, SKIP_AFTER, suffix, tail_key

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.clock.timestamp import Timestamp
    from slackwater.model.changes_arrow import ChangeDecoder
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import Array

NOTHING = np.zeros(0, np.int64)


class _Window(NamedTuple):
    """After which and up to which timestamp, in the complemented form that sorts descending."""

    newest: int
    oldest: int


class _Pairs(NamedTuple):
    """Stored versions of whole keys, and where to go on after them (None: they are the last)."""

    keys: list[bytes]
    values: list[bytes]
    resume: bytes | None


def scan_changes(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    after: Timestamp,
    upto: Timestamp,
    decoder: ChangeDecoder,
    before: bool = False,
    max_rows: int = 0,
    max_bytes: int = 0,
) -> Iterator[ArrowBlock]:
    """Record batches of the changes of [start, end) with after < ts <= upto, in key order, oldest first within a key.

    Limits cut between blocks of keys, so they are soft. Raises `ConflictError` before the first batch when an intent at
    or below `upto` is in the span: it may yet commit there.
    """
    met = conflicts_in(reader, start, end, upto=upto)
    if met:
        raise conflict(met)
    window = _Window(int.from_bytes(suffix(upto), "big"), int.from_bytes(suffix(after), "big"))
    pending = _Pending()
    rows = size = 0
    for pairs in _whole_keys(reader, start, end, window):
        if pairs.keys:
            size += pending.add(_changes(pairs, window, before=before))
        full = (max_rows and rows + pending.rows >= max_rows) or (max_bytes and size >= max_bytes)
        if pairs.resume is None:
            break
        if full or pending.rows >= BATCH_ROWS:
            rows += pending.rows
            yield pending.block(decoder, pairs.resume)
            if full:
                return
            pending = _Pending()
    if pending.rows:
        yield pending.block(decoder, None)


class _Pending:
    """Changes on their way to the decoder."""

    def __init__(self) -> None:
        self._values: list[bytes] = []
        self._gone: list[bytes] = []
        self._kinds = [NOTHING]
        self._timestamps = [NOTHING]
        self.rows = 0
        self.size = 0

    def add(self, changes: ChangeRows) -> int:
        """Take a block; returns its bytes."""
        self._values += changes.values
        self._gone += changes.gone
        self._kinds.append(changes.kinds)
        self._timestamps.append(changes.timestamps)
        self.rows += len(changes.values)
        size = sum(map(len, changes.values)) + sum(map(len, changes.gone))
        self.size += size
        return size

    def block(self, decoder: ChangeDecoder, resume: bytes | None) -> ArrowBlock:
        """One record batch of all blocks."""
        changes = ChangeRows(self._values, np.concatenate(self._kinds), np.concatenate(self._timestamps), self._gone)
        return ArrowBlock(decoder.decode(changes), resume, self.rows, self.size)


def _changes(pairs: _Pairs, window: _Window, *, before: bool) -> ChangeRows:
    """The changes among the versions of whole keys."""
    marks, same = stamps(pairs.keys)
    live = np.fromiter(map(len, pairs.values), np.int64, len(pairs.values)) > 0
    had = np.zeros(len(live), bool)  # a row was there before this version
    had[:-1] = same[1:] & live[1:]
    at = np.flatnonzero((marks >= window.newest) & (marks < window.oldest) & (live | had))
    if not len(at):
        return ChangeRows([], NOTHING, NOTHING, [])
    if same.any():  # oldest first within each key
        at = at[np.lexsort((-at, np.cumsum(~same)[at]))]
    kinds = np.where(live[at], np.where(had[at], POSTIMAGE, INSERT), DELETE)
    source = at
    if before:
        at, kinds, source = _with_before(at, kinds)
    timestamps = (~marks[at].astype(np.uint64)).view(np.int64)
    values = [pairs.values[i] for i in source.tolist()]
    gone = [] if before else [pairs.keys[i][:-8] for i in at[kinds == DELETE].tolist()]
    return ChangeRows(values, kinds, timestamps, gone)


def _with_before(at: Array, kinds: Array) -> tuple[Array, Array, Array]:
    """(change, kind, version whose value is shown): updates twice, deletions with the row that was there."""
    twice = np.where(kinds == POSTIMAGE, 2, 1)
    at, kinds = np.repeat(at, twice), np.repeat(kinds, twice)
    first = np.cumsum(twice) - twice
    kinds[first[twice == 2]] = PREIMAGE
    older = (kinds == PREIMAGE) | (kinds == DELETE)
    return at, kinds, at + older


def _whole_keys(reader: Reader, start: bytes, end: bytes, window: _Window) -> Iterator[_Pairs]:
    """All stored versions in blocks that hold whole keys; the last one has no `resume`."""
    tail = tail_key(start, end)  # the one key inside whose versions all sort beyond the end
    beyond = tail if tail is not None and tail >= start else None
    yield from _walk(reader, start, end, start, window, then=beyond)
    if beyond is not None:
        yield from _walk(reader, beyond + b"\x80", beyond + AFTER_VERSIONS, start, window, then=None)


def _walk(
    reader: Reader, low: bytes, high: bytes, start: bytes, window: _Window, *, then: bytes | None
) -> Iterator[_Pairs]:
    cursor = reader.cursor(Family.DATA, start=low, end=high)
    keys: list[bytes] = []
    values: list[bytes] = []
    size = BLOCK_FIRST
    while True:
        more, found = cursor.chunk(size)
        if not more:
            yield _Pairs(keys, values, then)
            return
        size = min(2 * size, BLOCK_PAIRS)
        keys, values = keys + more, values + found
        last = keys[-1][:-8]
        if last < start:  # versions of a key that the start extends
            keys, values = [], []
            continue
        cut = _first_of(keys, last)
        skipped = _first_at(keys, start) if keys[0][:-8] < start else 0
        if cut > skipped:
            yield _Pairs(keys[skipped:cut], values[skipped:cut], last)
        keys, values = keys[cut:], values[cut:]
        if len(keys) > SKIP_AFTER:
            keys, values = _skim(keys, values, window)
            mark = int.from_bytes(more[-1][-8:], "big")
            if mark >= window.oldest:
                cursor.seek(last + AFTER_VERSIONS)
            elif mark < window.newest:
                cursor.seek(last + window.newest.to_bytes(8, "big"))


def _skim(keys: list[bytes], values: list[bytes], window: _Window) -> tuple[list[bytes], list[bytes]]:
    """What is of interest among the versions of one key: those of the window, the one below, and the last seen."""
    marks = [int.from_bytes(key[-8:], "big") for key in keys]
    first = next((i for i, mark in enumerate(marks) if mark >= window.newest), len(keys) - 1)
    last = next((i for i, mark in enumerate(marks) if mark >= window.oldest), len(keys) - 1)
    return keys[first : last + 1], values[first : last + 1]


def _first_of(keys: list[bytes], last: bytes) -> int:
    """Where the versions of the last key begin."""
    at = len(keys) - 1
    while at and keys[at - 1][:-8] == last:
        at -= 1
    return at


def _first_at(keys: list[bytes], start: bytes) -> int:
    """Where the keys at or above `start` begin."""
    return next((i for i, key in enumerate(keys) if key[:-8] >= start), len(keys))
