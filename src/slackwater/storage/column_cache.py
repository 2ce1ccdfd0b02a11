"""Blocks of columns that were made once and are still right: what makes the second scan of a table cheap.

A scan turns stored rows into Arrow, which costs about a microsecond a row; most of a large table does not change between
two scans of it. So a store keeps the messages it made, with the span of keys that each covers:

    plan p    [a ─── block ─── g)[g ─── block ─── m)     [q ─── block ─── t)
              made of versions   newest version: 17       a gap: scanned up to q
              of a … g only

When may a block be used again? A read at `ts` sees of every key the newest version at or below `ts`. If *all* versions in the
span are at or below `newest`, and nothing was written there since, then every read at `ts >= newest` sees the same rows:
those of the block. Three rules make that so.

    made      Only blocks all of whose versions the scan saw, none of them above its timestamp, are kept (`newest`).
    written   Every write to the store goes through `written` first; blocks with a written key in their span go. What is
              written while a block is being made on a thread is noted in its `Fill`, and such a block is not kept.
    read      `find` is called in the step in which the read's snapshot is taken; only blocks with newest <= ts count.

A value that is not committed yet lies in the LOCK family, not among the versions: whoever uses blocks still looks for
intents in their span. Splits, merges and moves of ranges change no rows; a replica that is removed or replaced clears its
span, which is a range deletion, which clears everything here.

Bounded by `bytes_max`. A table larger than that, scanned again and again, would push out each block just before it is wanted;
so a block that was used within the last `PATIENCE` times as many lookups as there are blocks is not given up for a new one.

Owned by the loop's thread: nothing here may be called from another one. What is kept is never changed.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

from slackwater.codec.layout import VERSION_BYTES
from slackwater.hooks import level, probe
from slackwater.runtime.seam import Family

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.storage.batch import WriteBatch

PATIENCE = 2
TOUCHED_MAX = 256
"""Keys that are noted for a block in the making; when more are written, nothing of it is kept."""
SOFT_FACTOR = 2
"""How many times the limit of an answer its first block may have."""
BLOCK_OVERHEAD_BYTES = 512
"""Counted for each block beside its message."""


class KeptBlock(NamedTuple):
    """The rows with start <= key < end, as one Arrow message."""

    start: bytes
    end: bytes
    message: memoryview
    rows: int
    rows_read: int
    bytes_read: int
    newest: Timestamp
    """No version in the span is above this."""

    @property
    def size(self) -> int:
        """What it counts for."""
        return len(self.message) + len(self.start) + len(self.end) + BLOCK_OVERHEAD_BYTES


class CachedBlocks(NamedTuple):
    """Blocks that follow one another from where was asked; and, if there are none, where the next one begins."""

    blocks: list[KeptBlock]
    until: bytes


class Fill:
    """A span that is being read on a thread, and what was written there meanwhile."""

    __slots__ = ("end", "start", "touched")

    def __init__(self, start: bytes, end: bytes) -> None:
        self.start = start
        self.end = end
        self.touched: list[bytes] | None = []
        """Keys in order of writing; None: more than are noted."""

    def note(self, keys: Sequence[bytes]) -> None:
        """These keys are being written."""
        if self.touched is None:
            return
        self.touched += [key for key in keys if self.start <= key < self.end]
        if len(self.touched) > TOUCHED_MAX:
            self.touched = None

    def spoiled(self, block: KeptBlock) -> bool:
        """Whether the block may not show what is stored now."""
        return self.touched is None or any(block.start <= key < block.end for key in self.touched)


class _Plan:
    """The blocks of one plan: disjoint spans, in order."""

    __slots__ = ("blocks", "starts")

    def __init__(self) -> None:
        self.starts: list[bytes] = []
        self.blocks: dict[bytes, KeptBlock] = {}

    def overlapping(self, start: bytes, end: bytes) -> list[bytes]:
        """Starts of the blocks that share a key with [start, end)."""
        first = bisect_right(self.starts, start) - 1
        if first < 0 or self.blocks[self.starts[first]].end <= start:
            first += 1
        return self.starts[first : bisect_left(self.starts, end)]

    def holding(self, keys: Sequence[bytes]) -> list[bytes]:
        """Starts of the blocks that hold any of these keys, which are in order."""
        found = []
        at = 0
        while at < len(keys):
            place = bisect_right(self.starts, keys[at])
            block = self.blocks[self.starts[place - 1]] if place else None
            if block is not None and keys[at] < block.end:
                found.append(block.start)
                at = bisect_left(keys, block.end, at)
            elif place < len(self.starts):
                at = bisect_left(keys, self.starts[place], at)
            else:
                break
        return found


class ColumnCache:
    """The blocks that one store keeps."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes = 0
        self.hits = 0
        self.misses = 0
        self._plans: dict[bytes, _Plan] = {}
        self._used: OrderedDict[tuple[bytes, bytes], int] = OrderedDict()
        """(plan, start) of every block, the least recently used first, with the number of the lookup."""
        self._fills: dict[Fill, None] = {}
        self._lookups = 0

    def __len__(self) -> int:
        return len(self._used)

    def find(self, plan: bytes, start: bytes, end: bytes, *, ts: Timestamp, max_bytes: int) -> CachedBlocks:
        """Blocks from `start` on, as many as fit in `max_bytes`, stored and as columns; none beyond `end`.

        One block may be a little larger, as limits are soft. One that is much larger was made under another limit; it may
        be too large for an answer.
        """
        self._lookups += 1
        held = self._plans.get(plan)
        if held is None:
            self.misses += 1
            return CachedBlocks([], end)
        found: list[KeptBlock] = []
        at, room = start, SOFT_FACTOR * max_bytes
        while (block := held.blocks.get(at)) is not None and block.end <= end and block.newest <= ts:
            cost = max(block.bytes_read, len(block.message))
            if cost > room:
                break
            found.append(block)
            self._used[plan, at] = self._lookups
            self._used.move_to_end((plan, at))
            at, room = block.end, min(room, max_bytes) - cost
        if found:
            self.hits += 1
            return CachedBlocks(found, at)
        self.misses += 1
        return CachedBlocks([], _next_use(held, start, end, ts))

    def begin(self, start: bytes, end: bytes) -> Fill:
        """A span is about to be read from a snapshot of this moment."""
        fill = Fill(start, end)
        self._fills[fill] = None
        return fill

    def end(self, fill: Fill, plan: bytes = b"", made: Iterable[KeptBlock] = ()) -> None:
        """The read is over; keep what it made, as far as it is still right and there is room."""
        self._fills.pop(fill, None)
        for block in made:
            if fill.spoiled(block):
                probe("columns.spoiled")
            elif self._room_for(block.size):
                self._keep(plan, block)

    def written(self, batch: WriteBatch) -> None:
        """The store is about to write this."""
        if not self._used and not self._fills:
            return
        if batch.ranges[Family.DATA]:
            probe("columns.cleared")
            self.clear()
            for fill in self._fills:
                fill.touched = None
        data = batch.writes[Family.DATA]
        if not data:
            return
        keys = [key[:-VERSION_BYTES] for key in data]
        for fill in self._fills:
            fill.note(keys)
        if len(keys) > 1:
            keys.sort()
        for plan, held in list(self._plans.items()):
            for start in held.holding(keys):
                probe("columns.written_to")
                self._drop(plan, start)

    def clear(self) -> None:
        """Keep nothing."""
        self._plans.clear()
        self._used.clear()
        self.bytes = 0

    def status(self) -> str:
        """One line for scripts, logs and the console."""
        held = f"blocks={len(self._used)} plans={len(self._plans)} bytes={self.bytes}"
        return f"columns {held} hits={self.hits} misses={self.misses}"

    def _keep(self, plan: bytes, block: KeptBlock) -> None:
        held = self._plans.setdefault(plan, _Plan())
        for start in held.overlapping(block.start, block.end):
            self._drop(plan, start)
        held = self._plans.setdefault(plan, held)  # dropping the last block drops its plan
        insort(held.starts, block.start)
        held.blocks[block.start] = block
        self._used[plan, block.start] = self._lookups
        self.bytes += block.size
        level("columns.bytes", self.bytes, self.bytes_max)

    def _room_for(self, size: int) -> bool:
        """Make room by giving up blocks that nobody has used for long."""
        while self.bytes + size > self.bytes_max:
            if not self._used:
                return False
            (plan, start), used = next(iter(self._used.items()))
            if self._lookups - used <= PATIENCE * len(self._used):
                return False
            self._drop(plan, start)
        return True

    def _drop(self, plan: bytes, start: bytes) -> None:
        held = self._plans[plan]
        del held.starts[bisect_left(held.starts, start)]
        self.bytes -= held.blocks.pop(start).size
        del self._used[plan, start]
        if not held.starts:
            del self._plans[plan]


def _next_use(held: _Plan, start: bytes, end: bytes, ts: Timestamp) -> bytes:
    """Where the first block after `start` begins that a read at `ts` can use."""
    for place in range(bisect_right(held.starts, start), len(held.starts)):
        block = held.blocks[held.starts[place]]
        if block.start >= end:
            break
        if block.newest <= ts and block.end <= end:
            return block.start
    return end
