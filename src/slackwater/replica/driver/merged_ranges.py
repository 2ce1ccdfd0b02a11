"""Ranges that merged away, and whose logs remain to be trimmed.

A merged range has no replica and no leaseholder any more; the range that absorbed it looks after its log. The log may go once
every replica of the absorber has *durably* applied the merge: one that has not replays it after a crash, and reads the
absorbed range up to its freeze.

    r7 absorbs r9 at position 120      note r7/r9 = 120, on every node that applies the merge, in its engine
    all replicas of r7 durable ≥ 120   a store that has the note trims r9's log, and then forgets
    r3 absorbs r7 at position 200      what r7 looked after is r3's business now: r3/r9 = 200, r3/r7 = 200

The notes are not replicated. They are in the engine, not only in memory, because a node that restarts between the merge
and the trim would otherwise leave the log there for good; every node that has a note acts on it, leaseholder or not, because
the one that leads tomorrow may have got the merged range by a snapshot. Trimming twice does no harm. At most MERGED_MAX
notes per range are kept, the newest.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackwater.codec.keys import unescape
from slackwater.codec.layout import LOCAL, prefix_span, range_local
from slackwater.errors import StorageError
from slackwater.hooks import probe
from slackwater.model.ids import Position, RangeId
from slackwater.runtime.seam import Family
from slackwater.storage.batch import WriteBatch

if TYPE_CHECKING:
    from collections.abc import Collection

    from slackwater.runtime.seam import Engine

MERGED_MAX = 64
"""Absorbed ranges remembered per range."""
_NAME = b"grave"
_ID_BYTES = 8
_HEAD = len(LOCAL) + 1
_LOAD_CHUNK = 1_000
assert _ID_BYTES == 8, "ids of ranges are stored in eight bytes"


class MergedRanges:
    """The notes of one store."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._notes: dict[RangeId, dict[RangeId, Position]] = {}

    def load(self, here: Collection[RangeId]) -> None:
        """Read the notes of ranges that are here; those of ranges that are gone are of no use and are deleted."""
        span = prefix_span(LOCAL + b"r")
        cursor = self._engine.cursor(Family.LOCAL, start=span.start, end=span.end)
        stale = WriteBatch()
        while True:
            keys, values = cursor.chunk(_LOAD_CHUNK)
            if not keys:
                break
            for key, value in zip(keys, values, strict=True):
                note = _read(key, value)
                if note is None:
                    continue
                into, right, position = note
                assert right != into, "a range does not absorb itself"
                if into in here:
                    self._notes.setdefault(into, {})[right] = position
                else:
                    stale.delete(Family.LOCAL, key)
        if len(stale):
            self._engine.write(stale)

    def record(self, right: RangeId, *, into: RangeId, at: Position) -> None:
        """`into` absorbed `right` by the entry at this position, and looks after what `right` looked after.

        A full disk does not stop what was applied already: then the note lives in memory only.
        """
        assert right != into, "a range does not absorb itself"
        assert at > 0, "a merge has a position in the log"
        batch = WriteBatch()
        notes = self._notes.setdefault(into, {})
        for older in self._notes.pop(right, {}):
            batch.delete(Family.LOCAL, _key(right, older))
            notes[older] = at
        notes[right] = at
        assert _read(_key(into, right), bytes(_ID_BYTES)) == (into, right, 0), "a note is found again under its ranges"
        assert right not in self._notes, "a range that was absorbed absorbs nothing"
        for absorbed in list(notes)[:-MERGED_MAX]:
            probe("merged.forgotten")
            del notes[absorbed]
            batch.delete(Family.LOCAL, _key(into, absorbed))
        for absorbed, position in notes.items():
            if position == at:
                batch.put(Family.LOCAL, _key(into, absorbed), position.to_bytes(_ID_BYTES, "big"))
        assert len(notes) <= MERGED_MAX, "notes are bounded"
        try:
            self._engine.write(batch)
        except StorageError:
            probe("merged.not_written")

    def of(self, into: RangeId) -> bool:
        """Whether a range has any to look after."""
        return bool(self._notes.get(into))

    def due(self, into: RangeId, *, upto: Position) -> list[RangeId]:
        """Ranges whose merge lies at or before `upto`: their logs will not be read again."""
        return [right for right, at in self._notes.get(into, {}).items() if at <= upto]

    def forget(self, right: RangeId, *, into: RangeId) -> None:
        """The log has been trimmed."""
        notes = self._notes.get(into, {})
        if notes.pop(right, None) is not None:
            batch = WriteBatch()
            batch.delete(Family.LOCAL, _key(into, right))
            self._engine.write(batch)
        if not notes:
            self._notes.pop(into, None)


def _key(into: RangeId, right: RangeId) -> bytes:
    return range_local(into, _NAME + right.to_bytes(_ID_BYTES, "big"))


def _read(key: bytes, value: bytes) -> tuple[RangeId, RangeId, Position] | None:
    """The note under a key of the LOCAL family, if it is one."""
    into = RangeId(int.from_bytes(key[_HEAD : _HEAD + _ID_BYTES], "big"))
    if not key.startswith(_NAME, _HEAD + _ID_BYTES):
        return None
    name, _ = unescape(key, _HEAD + _ID_BYTES)
    return into, RangeId(int.from_bytes(name[len(_NAME) :], "big")), Position(int.from_bytes(value, "big"))
