"""Table scans to Arrow: the rows of a span at a timestamp, in record batches, with no Python object per row.

    cursor ──block of (keys, values)──► which are visible? ──► their values ──► BlockDecoder ──► RecordBatch
                                         numpy, whole block       (rows, columns, predicates: model.rows_arrow)

Visibility of a block, newest version first within a key: a version is visible when its timestamp is at or below `ts`
and the version before it, if it is of the same key, is above `ts`. Timestamps are the last 8 bytes of each key, read as
big-endian integers in one view; "same key" compares neighboring keys as one array of fixed-width strings when all keys
of the block are equally long, which is the rule in a table, and as one gather otherwise. Only the last key of a block is
carried over to the next.

Depth. When less than one version in `DEEP_FACTOR` of a block was visible, the scan goes on through `versions.visible`,
which seeks past unwanted versions, for as many rows as a block has; then it tries a block again. So the cost per row
grows with the number of versions only until seeking is cheaper (`bench/storage.py` shows the curve).

A block also says what the newest of all versions in its span was, if the scan saw them all: the maker of a segment
(`storage.columns.build`) then knows what has changed since its anchor. (Where the scan seeks, it does not see them.)

Values hold all columns of their row, so keys are never decoded. Deleted rows are dropped. Intents of others at or below
`ts` are conflicts, and versions in (ts, uncertain_upto] are uncertain, as in every read; a transaction's own writes are
not merged here: scan pairs for that.
"""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.runtime.seam import Family
from slackwater.storage.intents import conflict, conflicts_in
from slackwater.storage.versions import newest, suffix, tail_key, ts_of, uncertain, visible

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from slackwater.codec.rows_arrow import BlockDecoder
    from slackwater.runtime.seam import Reader

BLOCK_FIRST = 64
BLOCK_PAIRS = 2048
BATCH_ROWS = 32_768
"""Rows decoded at once: enough to make numpy's fixed costs small, few enough to stay in the cache."""
DEEP_FACTOR = 32
assert BLOCK_FIRST <= BLOCK_PAIRS <= BATCH_ROWS, "blocks grow up to a batch"
_OLDEST = (1 << 64) - 1
"""The complement of timestamp 0."""

Array = np.ndarray[Any, Any]


class ArrowBlock(NamedTuple):
    """One record batch, and the key to go on from after it (None: it was the last)."""

    batch: Any
    resume: bytes | None
    rows_read: int
    """Rows before predicates: what the limits count."""
    bytes_read: int = 0


class Block(NamedTuple):
    """Visible, undeleted rows and where the walk stands after them."""

    values: list[bytes]
    resume: bytes | None
    mark: int
    """The complemented timestamp of the newest version seen, visible or not; 0 when some were passed over."""
    keys: list[bytes]
    """As stored, where they were asked for."""
    width: int = 0
    """How long each of the keys is; 0: they differ."""

    @property
    def newest(self) -> Timestamp:
        """No version passed is above this; MAX when that is not known."""
        return Timestamp(min(_OLDEST - self.mark, MAX))


def scan_arrow(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    ts: Timestamp,
    decoder: BlockDecoder,
    max_rows: int = 0,
    max_bytes: int = 0,
    uncertain_upto: Timestamp = MIN,
) -> Iterator[ArrowBlock]:
    """Record batches of the rows of [start, end) at `ts`, in key order. Limits cut between blocks, so they are soft.

    Raises `ConflictError` when the walk has passed an intent at or below `ts`, before it shows anything beyond that. An
    empty span gives no batch.
    """
    pending = _Pending()
    rows = size = 0
    for block in _checked_blocks(reader, start, end, ts=ts, uncertain_upto=uncertain_upto):
        size += pending.add(block)
        full = (max_rows and rows + pending.rows >= max_rows) or (max_bytes and size >= max_bytes)
        if block.resume is None:
            break
        if full or pending.rows >= BATCH_ROWS:
            rows += pending.rows
            yield pending.block(decoder, block.resume)
            if full:
                return
            pending = _Pending()
    if pending.rows:
        yield pending.block(decoder, None)


class Count(NamedTuple):
    """How many rows a walk has passed, their bytes, and the key to go on from (None: it has reached the end)."""

    rows: int
    size: int
    resume: bytes | None


def count_rows(
    reader: Reader,
    start: bytes,
    end: bytes,
    *,
    ts: Timestamp,
    max_rows: int = 0,
    max_bytes: int = 0,
    uncertain_upto: Timestamp = MIN,
) -> Count:
    """How many rows `scan_arrow` would show, and it refuses what that refuses; but no value is looked into."""
    rows = size = 0
    for block in _checked_blocks(reader, start, end, ts=ts, uncertain_upto=uncertain_upto):
        rows += len(block.values)
        size += sum(map(len, block.values))
        full = (max_rows and rows >= max_rows) or (max_bytes and size >= max_bytes)
        if block.resume is None or full:
            return Count(rows, size, block.resume)
    raise AssertionError("the last block of a walk is the one that has no more to come")


def _checked_blocks(
    reader: Reader, start: bytes, end: bytes, *, ts: Timestamp, uncertain_upto: Timestamp
) -> Iterator[Block]:
    """`visible_blocks`, each given only after its span was looked through for intents at or below the bound."""
    bound, looked = Timestamp(max(ts, uncertain_upto)), start
    for block in visible_blocks(reader, start, end, ts=ts, bound=bound):
        upto = block.resume or end
        assert looked <= upto <= end, "a scan only moves on"
        refuse_conflicts(reader, looked, upto, bound=bound)
        looked = upto
        yield block


def refuse_conflicts(reader: Reader, start: bytes, end: bytes, *, bound: Timestamp) -> None:
    """Raise `ConflictError` when an intent at or below `bound` is in [start, end)."""
    met = conflicts_in(reader, start, end, upto=bound) if start < end else []
    if met:
        raise conflict(met)


class _Pending:
    """Values on their way to the decoder, joined block by block while they are in the processor's cache."""

    __slots__ = ("_joined", "_lengths", "rows", "size")

    def __init__(self) -> None:
        self.rows = 0
        self.size = 0
        self._joined: list[bytes] = []
        self._lengths: list[Array] = []

    def add(self, block: Block) -> int:
        """Take a block; returns its bytes."""
        values = block.values
        self.rows += len(values)
        joined = b"".join(values)
        self._joined.append(joined)
        self._lengths.append(np.fromiter(map(len, values), np.int64, len(values)))
        self.size += len(joined)
        return len(joined)

    def block(self, decoder: BlockDecoder, resume: bytes | None) -> ArrowBlock:
        """One record batch of all blocks."""
        assert self.rows == sum(map(len, self._lengths)), "rows are counted as they come"
        offsets = np.zeros(self.rows + 1, np.int64)
        np.cumsum(np.concatenate(self._lengths), out=offsets[1:])
        assert int(offsets[-1]) == self.size, "bytes are counted as they come"
        batch = decoder.decode_buffer(b"".join(self._joined), offsets)
        assert batch.num_rows <= self.rows, "a filter adds no rows"
        return ArrowBlock(batch, resume, self.rows, self.size)


def visible_blocks(
    reader: Reader, start: bytes, end: bytes, *, ts: Timestamp, bound: Timestamp, keyed: bool = False
) -> Iterator[Block]:
    """Blocks of visible values; the last one has no `resume`. Versions in (ts, bound] are uncertain."""
    cursor = reader.cursor(Family.DATA, start=start, end=end)
    newest_wanted = int.from_bytes(suffix(ts), "big")
    last_key, last_seen = b"", False  # the last key of the block before, and whether its visible version was in it
    pairs = BLOCK_FIRST
    while True:
        keys, values = cursor.chunk(pairs)
        if not keys:
            break
        width = even_width(keys)
        marks, same = stamps(keys, width)
        if bound > ts:
            _check_certain(keys, marks, start, ts, bound)
        mask = _visible_mask(keys, marks, same, newest_wanted, last_key, last_seen=last_seen)
        last_key = keys[-1][:-8]
        last_seen = int.from_bytes(keys[-1][-8:], "big") >= newest_wanted
        if keys[0][:-8] < start:  # versions of a key that the start extends
            mask &= np.fromiter((k[:-8] >= start for k in keys), bool, len(keys))
        block = _shown(keys if keyed else [], values, mask)
        at = max(start, last_key + b"\x00" if last_seen else last_key)
        assert at >= start, "a scan only moves on"
        yield block._replace(resume=at, mark=int(marks.min()), width=width)
        if int(mask.sum()) * DEEP_FACTOR < len(keys) and len(keys) >= BLOCK_FIRST:
            deep = _deep(reader, at, end, ts, bound)
            assert deep.resume is None or deep.resume > at, "a scan only moves on"
            assert len(deep.keys) == len(deep.values), "a key for every row"
            yield deep
            if deep.resume is None:
                return
            start = last_key = deep.resume
            last_seen = False
            cursor.seek(start)
            pairs = BLOCK_FIRST
        else:
            pairs = min(2 * pairs, BLOCK_PAIRS)
    yield _tail(reader, start, end, ts, bound)


def _shown(keys: list[bytes], values: list[bytes], mask: Array) -> Block:
    """What the mask shows and is not deleted."""
    if not mask.all():
        chosen = mask.tolist()
        values = list(compress(values, chosen))
        keys = list(compress(keys, chosen))
    if not all(values):
        keys = list(compress(keys, values))
        values = [value for value in values if value]
    assert not keys or len(keys) == len(values), "a key for every value, or none are asked for"
    return Block(values, None, 0, keys)


def _check_certain(keys: Sequence[bytes], marks: Array, start: bytes, ts: Timestamp, bound: Timestamp) -> None:
    """Refuse to go past a version that may have been written before the read began."""
    wanted, first = int.from_bytes(suffix(ts), "big"), int.from_bytes(suffix(bound), "big")
    for at in np.flatnonzero((marks >= first) & (marks < wanted)).tolist():
        if keys[at][:-8] >= start:
            raise uncertain(keys[at][:-8], ts_of(keys[at]), ts, bound)


def _deep(reader: Reader, at: bytes, end: bytes, ts: Timestamp, bound: Timestamp) -> Block:
    """A block's worth of rows found by seeking; includes the span's tail key when it reaches the end."""
    found = Block([], None, 0, [])
    if at >= end:
        return found
    for count, version in enumerate(visible(reader, at, end, ts=ts, uncertain_upto=bound)):
        if count == BLOCK_PAIRS:
            return found._replace(resume=version.key)
        if version.value:
            found.values.append(version.value)
            found.keys.append(version.key + suffix(version.ts))
    return found


def _tail(reader: Reader, start: bytes, end: bytes, ts: Timestamp, bound: Timestamp) -> Block:
    """The last block: the row, if there is one, whose versions all sort after the end of the span."""
    tail = tail_key(start, end)
    found = None if tail is None or tail < start else newest(reader, tail)
    if tail is None or found is None:
        return Block([], None, _OLDEST, [])
    mark = _OLDEST - found.ts
    if found.ts > bound:
        found = newest(reader, tail, upto=bound)
    if found is not None and found.ts > ts:
        raise uncertain(tail, found.ts, ts, bound)
    if found is None or not found.value:
        return Block([], None, mark, [])
    return Block([found.value], None, mark, [tail + suffix(found.ts)])


def _visible_mask(
    keys: Sequence[bytes], marks: Array, same: Array, newest_wanted: int, last_key: bytes, *, last_seen: bool
) -> Array:
    """Which versions of the block are the newest of their key at or below the wanted timestamp."""
    assert len(keys) == len(marks) == len(same), "a mark for every key"
    old_enough = marks >= newest_wanted
    same[0] = keys[0][:-8] == last_key
    hidden = np.empty(len(keys), bool)  # the version before, of the same key, is already old enough
    hidden[1:] = old_enough[:-1]
    hidden[0] = last_seen
    hidden &= same
    mask: Array = old_enough & ~hidden
    return mask


def even_width(keys: Sequence[bytes]) -> int:
    """How long each of these keys is, which is the same for all in most tables; 0: they differ."""
    width = len(keys[0])
    return width if list(map(len, keys)).count(width) == len(keys) else 0


def stamps(keys: Sequence[bytes], width: int) -> tuple[Array, Array]:
    """The complemented timestamps of stored keys, and whether each is of the same key as the one before it.

    `width` is what `even_width` says.
    """
    assert len(keys[0]) >= 8, "a stored key ends with its timestamp"
    joined = np.frombuffer(b"".join(keys), np.uint8)
    marks, same = _even(joined, width) if width >= 16 else _ragged(keys, joined)
    assert len(marks) == len(same) == len(keys), "a timestamp for every stored key"
    return marks, same


def _even(joined: Array, width: int) -> tuple[Array, Array]:
    """Timestamps, and whether each key equals the one before it, for keys of one length.

    Neighbors that differ nearly always differ in their last eight bytes: whole keys are compared only if some do not.
    """
    words = np.ascontiguousarray(joined.reshape(-1, width)[:, -16:]).view(">u8")
    same = np.zeros(len(words), bool)
    same[1:] = words[1:, 0] == words[:-1, 0]
    if same.any():
        bodies = joined.view([("key", f"S{width - 8}"), ("mark", ">u8")])[
            "key"
        ]  # equal widths: S compares all that counts
        same[1:] &= bodies[1:] == bodies[:-1]
    return words[:, 1], same


def _ragged(keys: Sequence[bytes], joined: Array) -> tuple[Array, Array]:
    """Timestamps, and whether each key equals the one before it, for keys of different lengths."""
    lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    ends = np.cumsum(lengths)
    marks = joined[(ends - 8)[:, None] + np.arange(8)].view(">u8").ravel()
    same = np.zeros(len(keys), bool)
    alike = np.flatnonzero(lengths[1:] == lengths[:-1]) + 1
    if len(alike):
        bodies = lengths[alike] - 8
        starts = ends[alike] - lengths[alike]
        first = np.cumsum(bodies) - bodies
        at = np.arange(int(bodies.sum())) + np.repeat(starts - first, bodies)
        differs = joined[at] != joined[at - np.repeat(lengths[alike], bodies)]
        same[alike] = np.add.reduceat(differs, first) == 0
    return marks, same
