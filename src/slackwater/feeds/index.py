"""Which keys a range has changed lately, by time, on disk; lets a consumer resume after a restart without a full scan.

History is stored by key. A consumer that comes back wants it by time; to find what is new a scan passes all that is old
(measured: finding one per cent of 300 000 versions costs an eleventh of reading everything). So while a range
has a feed, it notes the keys and timestamps of what it commits, without values, in the store's own local state:

    head          { position, gone, floors, chunks [(7, highest, bytes), (8, …)] }
    chunk 7       keys, timestamps       sealed: CHUNK_ROWS each
    chunk 8       keys, timestamps       the last one is open, also in memory, and written again
    in memory     what came since        written with the next flush

A consumer whose `after` is covered (`coverage.py`) gets its history by reading the chunks with something above `after`, and
then just those versions by their full keys: work in proportion to what is new, not to what there is.

What writers pay: nothing. Not their batch, not their step. A block is remembered by two list extensions when the feed reads
it anyway, and written once in `store.flush_interval`, right before the flush. When the feed is let go, the index goes.

Why that survives a crash. The head names the log position that the range had applied when it was written, and that step ends
with the flush: what is on disk afterwards is data up to p, and an index of everything up to p. After a restart the store
replays from its applied position, and before it does, the index is taken up where that position is the head's:

    flush: data ≤ p, head p ── crash ──► data p, head p      the index is whole; what is replayed is added to it
    …and RocksDB flushed by itself       data p + k, head p  k entries are in no index: it is thrown away, and there are scans

A position stands for everything applied before, so an index that was left behind for any reason (its feed was let go, a
snapshot replaced the range, another replica of it came later) is recognized by it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.layout import replica_index
from slackwater.errors import invariant
from slackwater.feeds.coverage import Coverage
from slackwater.model.spans import Span
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from slackwater.model.ids import Position, RangeId
    from slackwater.protocol.feeds.events import Changes
    from slackwater.runtime.seam import Reader
    from slackwater.storage.batch import WriteBatch

CHUNK_ROWS = 1_024
PENDING_ROWS_MAX = 4_096
"""What waits in memory for the next flush; more is written at once."""
CHUNKS_MAX = 4_096


class IndexChunk(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a chunk without reading it."""

    number: int
    highest: int
    bytes: int


class _Head(msgspec.Struct, frozen=True, array_like=True):
    position: int
    gone: int
    floors: list[tuple[bytes, bytes, int]]
    chunks: list[IndexChunk]


class _IndexRows(msgspec.Struct, frozen=True, array_like=True):
    keys: list[bytes]
    timestamps: list[int]


_encoder = msgspec.msgpack.Encoder()
_heads = msgspec.msgpack.Decoder(_Head)
_chunks = msgspec.msgpack.Decoder(_IndexRows)


class TimeIndex:
    """The recent keys of one range. Pure: its driver writes its batches."""

    def __init__(self, range_id: RangeId, *, limit: int) -> None:
        self.coverage = Coverage()
        self._range_id = range_id
        self._limit = limit
        self._chunks: list[IndexChunk] = []
        """Sealed ones, oldest first."""
        self._number = 1
        """Of the open chunk."""
        self._last: IndexChunk | None = None
        """The open chunk, as far as it is on disk."""
        self._open = 0
        """How many of the rows in memory that is."""
        self._keys: list[bytes] = []
        self._timestamps: list[int] = []
        self._stale: list[IndexChunk] = []
        """Chunks on disk that mean nothing any more."""
        self._written = False
        """Whether there is a head."""

    @classmethod
    def load(cls, reader: Reader, range_id: RangeId, *, position: Position, limit: int) -> TimeIndex:
        """The index that was left at exactly this position, or a new one."""
        index = cls(range_id, limit=limit)
        raw = reader.get(Family.LOCAL, replica_index(range_id))
        if raw is None:
            return index
        head = _heads.decode(raw)
        index._written = True
        index._number = 1 + max((chunk.number for chunk in head.chunks), default=0)
        if head.position != position:
            index._stale = head.chunks
            return index
        index._chunks = head.chunks
        index.coverage.gone = Timestamp(head.gone)
        index.coverage.floors = {Span(start, end): Timestamp(ts) for start, end, ts in head.floors}
        return index

    @property
    def written(self) -> bool:
        """Whether it has left anything on disk."""
        return self._written

    @property
    def pending(self) -> int:
        """Rows that are only in memory."""
        return len(self._keys) - self._open

    def add(self, changes: Changes) -> None:
        """A block was applied."""
        self._keys += changes.keys
        self._timestamps += changes.timestamps

    def spill(self, batch: WriteBatch, *, position: Position) -> None:
        """Write everything up to this position, which the range has applied."""
        for chunk in self._stale:
            batch.delete(Family.LOCAL, replica_index(self._range_id, chunk.number))
        self._stale = []
        if self.pending:
            self._write(batch)
        self._shrink(batch)
        chunks = self._chunks if self._last is None else [*self._chunks, self._last]
        floors = [(span.start, span.end, int(ts)) for span, ts in self.coverage.floors.items()]
        head = _Head(position, int(self.coverage.gone), floors, chunks)
        batch.put(Family.LOCAL, replica_index(self._range_id), _encoder.encode(head))
        self._written = True

    def clear(self, batch: WriteBatch) -> None:
        """Leave nothing on disk."""
        for chunk in [*self._stale, *self._chunks, IndexChunk(self._number, 0, 0)]:
            batch.delete(Family.LOCAL, replica_index(self._range_id, chunk.number))
        batch.delete(Family.LOCAL, replica_index(self._range_id))
        self._written = False

    def lookup(self, span: Span, after: Timestamp) -> IndexLookup | None:
        """How to find every version of `span` with ts > after that there is now; None: not from here."""
        if not self.coverage.covers(span, after):
            return None
        recent = [(k, ts) for k, ts in zip(self._keys, self._timestamps, strict=True) if ts > after and k in span]
        numbers = [chunk.number for chunk in self._chunks if chunk.highest > after]
        return IndexLookup(self._range_id, numbers, recent, span=span, after=after)

    def _write(self, batch: WriteBatch) -> None:
        """All rows in memory: whole chunks are sealed, what remains is the open one."""
        sealed = 0
        for low in range(0, len(self._keys), CHUNK_ROWS):
            rows = _IndexRows(self._keys[low : low + CHUNK_ROWS], self._timestamps[low : low + CHUNK_ROWS])
            raw = _encoder.encode(rows)
            batch.put(Family.LOCAL, replica_index(self._range_id, self._number), raw)
            self._last = IndexChunk(self._number, max(rows.timestamps), len(raw))
            if len(rows.keys) == CHUNK_ROWS:
                self._chunks.append(self._last)
                self._number, self._last, sealed = self._number + 1, None, low + CHUNK_ROWS
        del self._keys[:sealed], self._timestamps[:sealed]
        self._open = len(self._keys)

    def _shrink(self, batch: WriteBatch) -> None:
        """Let the oldest go, until there is little enough."""
        size = sum(chunk.bytes for chunk in self._chunks)
        while self._chunks and (size > self._limit or len(self._chunks) > CHUNKS_MAX):
            oldest = self._chunks.pop(0)
            size -= oldest.bytes
            self.coverage.let_go(oldest.highest)
            batch.delete(Family.LOCAL, replica_index(self._range_id, oldest.number))


class IndexLookup:
    """The versions that one consumer has missed: found in a snapshot taken in the step in which this was made."""

    def __init__(
        self,
        range_id: RangeId,
        numbers: list[int],
        recent: list[tuple[bytes, int]],
        *,
        span: Span,
        after: Timestamp,
    ) -> None:
        self._range_id = range_id
        self._numbers = numbers
        self._recent = recent
        self._span = span
        self._after = after

    def versions(self, frozen: Reader) -> list[tuple[bytes, int]]:
        """(key, ts) in key order, oldest first within a key."""
        found = set(self._recent)
        keys = [replica_index(self._range_id, number) for number in self._numbers]
        start, end, after = self._span.start, self._span.end, self._after
        for raw in frozen.multi_get(Family.LOCAL, keys) if keys else ():
            invariant(raw is not None, "A-feed-index", range_id=self._range_id)  # lookup and snapshot were one step
            rows = _chunks.decode(raw or b"")
            found.update(
                (key, ts)
                for key, ts in zip(rows.keys, rows.timestamps, strict=True)
                if ts > after and start <= key < end
            )
        return sorted(found)
