"""What happened to the rows of a span in a window of time, block by block.

    stored, newest first        window (10, 30]            out, oldest first
    a@40  a4                    after the window
    a@25  a3                    update  a2 -> a3           a@20  insert            a2
    a@20  a2                    insert                     a@25  update_preimage   a2      (with `before`)
    a@08  (deleted)             before: there was no row   a@25  update_postimage  a3
    b@15  (deleted)             delete of b1               b@15  delete            b1      (with `before`, else the key)
    b@05  b1

The version right below a change says what it changed, so what is read is the versions of the window and those right below
them, in blocks of *whole* keys (`storage.window`). Everything about a block is then a handful of numpy operations on the
timestamps and sizes. A deletion of nothing changes nothing and is left out, so the same window always gives the same rows,
whoever deleted twice.

The version below may itself lie below the window. It is still there: collection keeps the state *at* its threshold
(`storage.gc`), and a window may not begin below that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slackwater.codec.changes_arrow import DELETE, INSERT, POSTIMAGE, PREIMAGE, ChangeRows
from slackwater.storage.arrow import BATCH_ROWS, BLOCK_FIRST, BLOCK_PAIRS, ArrowBlock, refuse_conflicts, stamps
from slackwater.storage.versions import suffix
from slackwater.storage.window import WholeKeys, Window, in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.changes_arrow import ChangeDecoder
    from slackwater.runtime.seam import Reader
    from slackwater.storage.arrow import Array

NOTHING = np.zeros(0, np.int64)


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

    Limits cut between blocks of keys, so they are soft. Raises `ConflictError` when the walk has passed an intent at or
    below `upto`, before it shows anything beyond that: it may yet commit there.
    """
    window = Window(start, end, after, upto)
    pending = _PendingChange()
    rows = size = 0
    looked = start
    for whole in _gathered(in_window(reader, window, below=True)):
        refuse_conflicts(reader, looked, whole.resume or end, bound=upto)
        looked = whole.resume or end
        size += pending.add(_changes(whole, window, before=before))
        full = (max_rows and rows + pending.rows >= max_rows) or (max_bytes and size >= max_bytes)
        if whole.resume is None:
            break
        if full or pending.rows >= BATCH_ROWS:
            rows += pending.rows
            yield pending.block(decoder, whole.resume)
            if full:
                return
            pending = _PendingChange()
    refuse_conflicts(reader, looked, end, bound=upto)
    if pending.rows:
        yield pending.block(decoder, None)


def _gathered(blocks: Iterator[WholeKeys]) -> Iterator[WholeKeys]:
    """Larger blocks: few versions come at a time when the window is sparse, and numpy has its price per block."""
    keys: list[bytes] = []
    values: list[bytes] = []
    enough = BLOCK_FIRST
    for block in blocks:
        keys = keys + block.keys if keys else block.keys
        values = values + block.values if values else block.values
        if len(keys) >= enough or block.resume is None:
            yield WholeKeys(keys, values, block.resume)
            keys, values, enough = [], [], min(2 * enough, BLOCK_PAIRS)
    if keys:
        yield WholeKeys(keys, values, None)


class _PendingChange:
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
        assert len(changes.values) == len(changes.kinds) == len(changes.timestamps), (
            "a change has a value, a kind and a time"
        )
        size = sum(map(len, changes.values)) + sum(map(len, changes.gone))
        self.size += size
        return size

    def block(self, decoder: ChangeDecoder, resume: bytes | None) -> ArrowBlock:
        """One record batch of all blocks."""
        assert self.rows == len(self._values), "rows are counted as they come"
        changes = ChangeRows(self._values, np.concatenate(self._kinds), np.concatenate(self._timestamps), self._gone)
        return ArrowBlock(decoder.decode(changes), resume, self.rows, self.size)


def _changes(whole: WholeKeys, window: Window, *, before: bool) -> ChangeRows:
    """The changes among the versions of whole keys."""
    marks, same = stamps(whole.keys)
    live = np.fromiter(map(len, whole.values), np.int64, len(whole.values)) > 0
    had = np.zeros(len(live), bool)  # a row was there before this version
    had[:-1] = same[1:] & live[1:]
    at = np.flatnonzero((marks < int.from_bytes(suffix(window.after), "big")) & (live | had))
    if not len(at):
        return ChangeRows([], NOTHING, NOTHING, [])
    if same.any():  # oldest first within each key
        at = at[np.lexsort((-at, np.cumsum(~same)[at]))]
    kinds = np.where(live[at], np.where(had[at], POSTIMAGE, INSERT), DELETE)
    source = at
    if before:
        at, kinds, source = _with_before(at, kinds)
    timestamps = (~marks[at].astype(np.uint64)).view(np.int64)
    values = [whole.values[i] for i in source.tolist()]
    gone = [] if before else [whole.keys[i][:-8] for i in at[kinds == DELETE].tolist()]
    assert len(values) == len(kinds) == len(timestamps), "a change has a value, a kind and a time"
    return ChangeRows(values, kinds, timestamps, gone)


def _with_before(at: Array, kinds: Array) -> tuple[Array, Array, Array]:
    """(change, kind, version whose value is shown): updates twice, deletions with the row that was there."""
    twice = np.where(kinds == POSTIMAGE, 2, 1)
    at, kinds = np.repeat(at, twice), np.repeat(kinds, twice)
    first = np.cumsum(twice) - twice
    kinds[first[twice == 2]] = PREIMAGE
    older = (kinds == PREIMAGE) | (kinds == DELETE)
    assert len(at) == len(kinds), "a kind for every row"
    return at, kinds, at + older
