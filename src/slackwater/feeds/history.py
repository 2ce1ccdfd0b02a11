"""What a consumer has missed, read from a snapshot block by block: by passing every key, or by those that an index names.

    Scanning     every version of the span above `after`, by a scan over all of it
    Indexed      the versions that `index.Lookup` names, by their full keys; those collected since are not there any more

Both are read off the loop and no further than they are asked for. Within a key versions ascend; a block is the next part of
the same order, so that nothing is lost or repeated between two of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

from slackwater.clock.timestamp import MAX, Timestamp
from slackwater.codec.layout import versioned
from slackwater.hooks import probe
from slackwater.protocol.feeds.events import Changes
from slackwater.runtime.seam import Family
from slackwater.storage.reads import scan_versions

if TYPE_CHECKING:
    from slackwater.feeds.index import IndexLookup
    from slackwater.feeds.rangefeed import CatchUpScan
    from slackwater.runtime.seam import EngineSnapshot

HISTORY_ROWS = 4_096
"""Versions read at a time."""
FIRST_ROWS = 64


class HistoryBlock(NamedTuple):
    """The next part of a history, and whether it was the last."""

    changes: Changes
    done: bool


class Reading(Protocol):
    """A history that is being read."""

    def next(self, frozen: EngineSnapshot, *, bytes_max: int) -> HistoryBlock:
        """The next block, of about so many bytes."""
        ...


class Scanning:
    """Passes every key. A key's versions stay together."""

    def __init__(self, history: CatchUpScan) -> None:
        self._history = history
        self._start = history.span.start

    def next(self, frozen: EngineSnapshot, *, bytes_max: int) -> HistoryBlock:
        """The next block; intents are watched elsewhere."""
        rows = scan_versions(
            frozen,
            self._start,
            self._history.span.end,
            after=self._history.after,
            upto=MAX,
            max_versions=HISTORY_ROWS,
            max_bytes=bytes_max,
            before_images=self._history.befores,
            ignore_intents=True,
        )
        self._start = rows.resume or self._start
        return HistoryBlock(Changes(rows.keys, list(rows.timestamps), rows.values, rows.befores), rows.resume is None)


class Indexed:
    """Reads what is named. How many rows make a block follows from the size of those before."""

    def __init__(self, lookup: IndexLookup) -> None:
        self._lookup = lookup
        self._versions: list[tuple[bytes, int]] | None = None
        self._at = 0
        self._rows = FIRST_ROWS

    def next(self, frozen: EngineSnapshot, *, bytes_max: int) -> HistoryBlock:
        """The next block."""
        if self._versions is None:
            self._versions = self._lookup.versions(frozen)
        page = self._versions[self._at : self._at + self._rows]
        self._at += len(page)
        stored = [versioned(key, Timestamp(ts)) for key, ts in page]
        values = frozen.multi_get(Family.DATA, stored) if stored else []
        found = [(key, ts, value) for (key, ts), value in zip(page, values, strict=True) if value is not None]
        if len(found) < len(page):
            probe("feeds.indexed_was_collected")
        changes = Changes([key for key, _, _ in found], [ts for _, ts, _ in found], [value for _, _, value in found])
        self._rows = max(1, min(HISTORY_ROWS, 2 * self._rows, self._rows * bytes_max // max(1, changes.size())))
        return HistoryBlock(changes, self._at >= len(self._versions))
