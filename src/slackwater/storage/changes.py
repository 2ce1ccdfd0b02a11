"""What happened to the rows of a span in a window of time, block by block.

    stored, newest first        window (10, 30]            out, oldest first     op       value   before
    a@40  a4                    after the window
    a@25  a3                    update  a2 -> a3           a@20                  insert   a2
    a@20  a2                    insert                     a@25                  update   a3      a2
    a@08  (deleted)             before: there was no row   b@15                  delete           b1
    b@15  (deleted)             delete of b1
    b@05  b1

The version right below a change says what it changed, so what is read is the versions of the window and those right below
them, in blocks of *whole* keys (`storage.window`). Everything about a block is then a handful of numpy operations on the
timestamps and sizes. A deletion of nothing changes nothing and is left out, so the same window always gives the same rows.

The version below may itself lie below the window. It is still there: collection keeps the state *at* its threshold
(`storage.gc`), and a window may not begin below that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from slackwater.codec.changes_arrow import ChangeRows, present
from slackwater.storage.arrow import (
    BATCH_ROWS,
    BLOCK_FIRST,
    BLOCK_PAIRS,
    ArrowBlock,
    even_width,
    refuse_conflicts,
    stamps,
)
from slackwater.storage.versions import suffix
from slackwater.storage.window import WholeKeys, Window, in_window

if TYPE_CHECKING:
    from collections.abc import Iterator

    from slackwater.clock.timestamp import Timestamp
    from slackwater.codec.changes_arrow import ChangeDecoder
    from slackwater.runtime.seam import Reader

NOTHING = np.zeros(0, np.int64)
NEVER = np.zeros(0, bool)


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
    pending = _PendingChanges(before=before)
    rows = size = 0
    looked = start
    for whole in _gathered(in_window(reader, window, below=True)):
        assert whole.resume is None or looked <= whole.resume, "a scan only moves on"
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
            pending = _PendingChanges(before=before)
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
            assert len(keys) == len(values), "a value for every version"
            yield WholeKeys(keys, values, block.resume)
            keys, values, enough = [], [], min(2 * enough, BLOCK_PAIRS)
    if keys:
        yield WholeKeys(keys, values, None)


class _PendingChanges:
    """Changes on their way to the decoder."""

    def __init__(self, *, before: bool) -> None:
        self._values: list[bytes] = []
        self._gone: list[bytes] = []
        self._befores: list[bytes] | None = [] if before else None
        self._had = [NEVER]
        self._timestamps = [NOTHING]
        self.rows = 0
        self.size = 0

    def add(self, changes: ChangeRows) -> int:
        """Take a block; returns its bytes."""
        assert changes.had is not None, "whether a row was there before is known of every change"
        assert len(changes.values) == len(changes.timestamps) == len(changes.had), "of each: value, time, and that"
        assert self._befores is None or changes.befores is not None, "what was there before is known of every change"
        self._values += changes.values
        self._gone += changes.gone
        self._had.append(changes.had)
        self._timestamps.append(np.asarray(changes.timestamps))
        self.rows += len(changes.values)
        size = sum(map(len, changes.values)) + sum(map(len, changes.gone))
        if self._befores is not None and changes.befores is not None:
            self._befores += changes.befores
            size += sum(map(len, changes.befores))
        self.size += size
        return size

    def block(self, decoder: ChangeDecoder, resume: bytes | None) -> ArrowBlock:
        """One record batch of all blocks."""
        assert self.rows == len(self._values), "rows are counted as they come"
        timestamps, had = np.concatenate(self._timestamps), np.concatenate(self._had)
        assert len(timestamps) == len(had) == self.rows, "of each change: when, and whether a row was there before"
        assert self._befores is None or len(self._befores) == self.rows, (
            "what was there before is known of every change"
        )
        changes = ChangeRows(self._values, timestamps, self._gone, had, self._befores)
        return ArrowBlock(decoder.decode(changes), resume, self.rows, self.size)


def _changes(whole: WholeKeys, window: Window, *, before: bool) -> ChangeRows:
    """The changes among the versions of whole keys."""
    marks, same = stamps(whole.keys, even_width(whole.keys))
    live = present(whole.values)
    had = np.zeros(len(live), bool)  # a row was there before this version
    had[:-1] = same[1:] & live[1:]
    at = np.flatnonzero((marks < int.from_bytes(suffix(window.after), "big")) & (live | had))
    if not len(at):
        return ChangeRows([], NOTHING, [], NEVER, [] if before else None)
    if same.any():  # oldest first within each key
        at = at[np.lexsort((-at, np.cumsum(~same)[at]))]
    timestamps = (~marks[at].astype(np.uint64)).view(np.int64)
    assert window.after < int(timestamps.min()), "only changes of the window"
    assert int(timestamps.max()) <= window.upto, "only changes of the window"
    values = [whole.values[i] for i in at.tolist()]
    gone = [whole.keys[i][:-8] for i in at[~live[at]].tolist()]
    assert len(gone) == values.count(b""), "the key of every row that was deleted"
    there = had[at]
    befores = None
    if before:
        befores = [whole.values[i + 1] if was else b"" for i, was in zip(at.tolist(), there.tolist(), strict=True)]
    assert befores is None or len(befores) == len(values), "a row before for every change"
    assert len(timestamps) == len(values), "a time for every change"
    return ChangeRows(values, timestamps, gone, there, befores)
