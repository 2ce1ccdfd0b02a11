"""A segment: the rows of a span of one table that were live at one instant, as columns, in one file that never changes.

    ┌ schema ┬ batch ┬ batch ┬ … ┬ end mark ┬ index ┬ its length, its checksum, magic ┐
    └──────── an Arrow IPC stream ─────────┘  which any Arrow reader opens as it is

A batch has up to `BATCH_ROWS` rows in key order: the columns of one version of the table, then `_begin`, when each row was
written, and `_key`, its key as stored. Each column is compressed by itself (LZ4 frames), so one column is read, checked and
sent without the others. The index says for each batch its first key, its rows, and of each column where its buffers lie and
their checksum; and, over all batches at once, the lowest and highest value of every column that has an order.

Nothing is believed unchecked: the index by its checksum when a file is opened, the buffers of a column by theirs whenever they
are read. What does not fit is `SegmentDamaged`; the reader then reads rows instead. The number of rows of a segment is in
its index, so that a shorter file is no smaller table (I-34).

Pure: bytes in, bytes out; files are the caller's.
"""

from __future__ import annotations

import struct
import zlib
from bisect import bisect_right
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow
import pyarrow.compute as pac

from slackwater.clock.timestamp import Timestamp
from slackwater.codec.arrow import arrow_fields
from slackwater.errors import SegmentDamaged, StorageError
from slackwater.model.kinds import VARIABLE, ColumnKind
from slackwater.model.schema import TableSchema
from slackwater.storage.columns.ipc import Packed, message, packed_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.model.schema import Column
    from slackwater.runtime.seam import StoredFile

pa: Any = pyarrow
pc: Any = pac
BATCH_ROWS = 32_768
MAGIC = b"SWCOLS01"
assert len(MAGIC) == 8, "the trailer has eight bytes for it"
END_OF_STREAM = b"\xff\xff\xff\xff\x00\x00\x00\x00"
BEGIN = pa.field("_begin", pa.int64(), nullable=False)
KEY = pa.field("_key", pa.binary(), nullable=False)
TEXT_BYTES_MAX = 64
"""A column of texts of which one is longer has no lowest and highest: the index stays small."""
UNORDERED = frozenset({ColumnKind.FLOAT, ColumnKind.BOOL, ColumnKind.JSON, ColumnKind.UUID})
GAP_BYTES = 4096
"""Columns that lie no further apart than this are read together."""
_TRAILER = struct.Struct("<QI8s")
_first = itemgetter(0)

Array = np.ndarray[Any, Any]


class ColumnChunk(msgspec.Struct, frozen=True, array_like=True):
    """Where one column of one batch lies, and what its bytes add up to."""

    nulls: int
    buffers: list[tuple[int, int]]
    checksum: int

    @property
    def extent(self) -> tuple[int, int] | None:
        """From where to where its buffers lie."""
        held = [(at, at + size) for at, size in self.buffers if size]
        return (held[0][0], held[-1][1]) if held else None


class StoredBatch(msgspec.Struct, frozen=True, array_like=True):
    """One batch."""

    first: bytes
    """Its first key."""
    rows: int
    stored_bytes: int
    """Of the rows as they are stored, which is what limits count."""
    chunks: list[ColumnChunk]


class SegmentIndex(msgspec.Struct, frozen=True, array_like=True):
    """What is known of a segment without reading its rows."""

    schema: TableSchema
    anchor: int
    start: bytes
    end: bytes
    rows: int
    batches: list[StoredBatch]
    statistics: bytes
    """An Arrow record batch: one row for each batch, with the lowest and highest of each ordered column."""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(SegmentIndex)


class SegmentWriter:
    """Writes one segment, batch by batch."""

    def __init__(
        self, schema: TableSchema, *, anchor: Timestamp, start: bytes, write: Callable[[bytes], object]
    ) -> None:
        self._schema = schema
        self._anchor = anchor
        self._start = start
        self._write = write
        self._ordered = [(at, column) for at, column in enumerate(schema.columns) if column.type.kind not in UNORDERED]
        self._lows: list[list[Any]] = [[] for _ in self._ordered]
        self._highs: list[list[Any]] = [[] for _ in self._ordered]
        self._batches: list[StoredBatch] = []
        self.rows = 0
        self.size = 0
        self._put(bytes(stored_schema(schema).serialize()))

    def add(self, columns: Sequence[Any], begins: Any, keys: Any, *, stored_bytes: int) -> None:
        """Add a batch: Arrow arrays of equal length, of keys above those of the batch before."""
        batch = pa.RecordBatch.from_arrays([*columns, begins, keys], schema=stored_schema(self._schema))
        if not batch.num_rows:
            return
        self._note(columns)
        self._store(packed_columns(batch), StoredBatch(keys[0].as_py(), batch.num_rows, stored_bytes, []))

    def takes(self, segment: Segment, number: int, low: bytes, high: bytes, *, rows: int, size: int) -> bool:
        """Whether a batch may go over as it is: the same columns, all of it in [low, high), and not too large."""
        if not segment.firsts or segment.index.schema != self._schema:
            return False
        batch = segment.index.batches[number]
        whole = low <= batch.first and high == segment.end_of(number)
        return whole and batch.rows <= rows and batch.stored_bytes <= size

    def add_stored(self, segment: Segment, number: int) -> None:
        """Add a batch of another segment of the same version of the table as it is; `SegmentDamaged` unless that is whole."""
        assert segment.index.schema == self._schema, "the same columns"
        stored = segment.index.batches[number]
        packed = segment.packed(number, range(len(stored.chunks)))
        for place, (_, column) in enumerate(self._ordered):
            extremes = segment.statistics(column.id)
            self._lows[place].append(... if extremes is None else extremes[0][number])
            self._highs[place].append(... if extremes is None else extremes[1][number])
        self._store(packed, stored)

    def _store(self, packed: Sequence[Packed], batch: StoredBatch) -> None:
        """Write the columns of a batch; of `batch` everything but where they lie."""
        made = message(batch.rows, packed)
        base = self.size
        chunks = [
            ColumnChunk(
                column.nulls,
                [(base + place, len(b)) for place, b in zip(places, column.buffers, strict=True)],
                checksum(column.buffers),
            )
            for column, places in zip(packed, made.places, strict=True)
        ]
        assert len(chunks) == len(self._schema.columns) + 2, "a chunk for every column, the timestamps and the keys"
        self._put(made.joined())
        self._batches.append(StoredBatch(batch.first, batch.rows, batch.stored_bytes, chunks))
        assert len(self._batches) < 2 or self._batches[-2].first < self._batches[-1].first, "batches are in key order"
        self.rows += batch.rows
        assert self.rows == sum(batch.rows for batch in self._batches), "rows are counted once"

    def finish(self, end: bytes) -> SegmentIndex:
        """Write the rest and the footer; the segment ends before the key `end`."""
        assert self._start < end, "a segment is of a span"
        self._put(END_OF_STREAM)
        statistics = self._statistics().to_pybytes()
        index = SegmentIndex(self._schema, self._anchor, self._start, end, self.rows, self._batches, statistics)
        assert not self._batches or self._start <= self._batches[0].first < end, "keys lie inside the span"
        assert index.rows == sum(batch.rows for batch in index.batches), "rows are counted once"
        raw = _encoder.encode(index)
        assert _decoder.decode(raw).batches == index.batches, "the index of a segment reads as it is written"
        self._put(raw)
        self._put(_TRAILER.pack(len(raw), zlib.crc32(raw), MAGIC))
        return index

    def _put(self, data: bytes) -> None:
        self._write(data)
        self.size += len(data)

    def _note(self, columns: Sequence[Any]) -> None:
        for number, (at, column) in enumerate(self._ordered):
            low, high = _extremes(columns[at], column)
            self._lows[number].append(low)
            self._highs[number].append(high)

    def _statistics(self) -> Any:
        arrays, names = [], []
        fields = stored_schema(self._schema)
        for (at, column), lows, highs in zip(self._ordered, self._lows, self._highs, strict=True):
            if any(low is ... for low in lows):
                continue
            for name, values in (("low", lows), ("high", highs)):
                arrays.append(pa.array(values, fields.field(at).type))
                names.append(f"{name}{column.id}")
        assert all(len(array) == len(self._batches) for array in arrays), "extremes of every batch"
        sink = pa.BufferOutputStream()
        batch = pa.RecordBatch.from_arrays(arrays, names=names)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        return sink.getvalue()


class Segment:
    """An opened segment."""

    def __init__(self, file: StoredFile) -> None:
        """Opens a file, and checks it as far as the index goes."""
        self._file = file
        self.index = _index_of(file)
        self.anchor = Timestamp(self.index.anchor)
        self.fields = stored_schema(self.index.schema)
        self.firsts = [batch.first for batch in self.index.batches]
        assert all(one < other for one, other in pairwise(self.firsts)), "batches are in key order"
        assert self.index.rows == sum(batch.rows for batch in self.index.batches), "rows are counted once"
        self.places = {column.id: at for at, column in enumerate(self.index.schema.columns)}
        self._statistics: Any = None

    @property
    def size(self) -> int:
        """Bytes on disk."""
        return self._file.size

    def batch_of(self, key: bytes) -> int:
        """The number of the batch in which a key would lie."""
        assert self.index.start <= key <= self.index.end, "a key of this segment's span"
        return max(0, bisect_right(self.firsts, key) - 1)

    def end_of(self, number: int) -> bytes:
        """Where the span of a batch ends."""
        assert 0 <= number <= len(self.firsts), "a batch of this segment"
        return self.firsts[number + 1] if number + 1 < len(self.firsts) else self.index.end

    def packed(self, number: int, places: Sequence[int]) -> list[Packed]:
        """Some columns of a batch as they are stored; `SegmentDamaged` unless they are what was written."""
        assert 0 <= number < len(self.index.batches), "a batch of this segment"
        batch = self.index.batches[number]
        chunks = [batch.chunks[place] for place in places]
        held = self._read(sorted({extent for chunk in chunks if (extent := chunk.extent)}))
        found = []
        for place, chunk in zip(places, chunks, strict=True):
            buffers = [_cut(held, at, size) for at, size in chunk.buffers]
            if checksum(buffers) != chunk.checksum:
                raise SegmentDamaged("a column of a segment is damaged", batch=number, column=place)
            found.append(Packed(batch.rows, chunk.nulls, buffers))
        assert len(found) == len(places), "every column that was asked for"
        return found

    def _read(self, extents: Sequence[tuple[int, int]]) -> list[tuple[int, memoryview]]:
        """What lies between these bounds, in few reads: neighbors are read together."""
        runs: list[list[int]] = []
        for low, high in extents:
            if runs and low - runs[-1][1] <= GAP_BYTES:
                runs[-1][1] = max(runs[-1][1], high)
            else:
                runs.append([low, high])
        assert all(low < high for low, high in runs), "something is read"
        try:
            return [(low, memoryview(self._file.read(low, high - low))) for low, high in runs]
        except StorageError as error:
            raise SegmentDamaged(f"a segment cannot be read: {error}") from None

    def arrays(self, number: int, places: Sequence[int]) -> list[Any]:
        """Some columns of a batch as Arrow arrays."""
        sent = message(self.index.batches[number].rows, self.packed(number, places)).joined()
        schema = pa.schema([self.fields.field(place) for place in places])
        try:
            return list(pa.ipc.read_record_batch(pa.py_buffer(sent), schema).columns)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise SegmentDamaged(f"a batch of a segment cannot be read: {error}", batch=number) from None

    def begins(self, number: int) -> Any:
        """When each row of a batch was written."""
        return self.arrays(number, [len(self.places)])[0]

    def keys(self, number: int) -> Any:
        """The keys of a batch."""
        return self.arrays(number, [len(self.places) + 1])[0]

    def nulls(self, place: int) -> int:
        """How many rows have NULL in a column."""
        return sum(batch.chunks[place].nulls for batch in self.index.batches)

    def statistics(self, column_id: int) -> tuple[Any, Any] | None:
        """The lowest and highest value of a column in each batch, as two arrays; None: not known."""
        if self._statistics is None:
            with pa.ipc.open_stream(self.index.statistics) as stream:
                self._statistics = stream.read_next_batch()
        at = self._statistics.schema.get_field_index(f"low{column_id}")
        return None if at < 0 else (self._statistics.column(at), self._statistics.column(at + 1))

    def verify(self) -> None:
        """Read everything once; `SegmentDamaged` unless all of it is what was written."""
        for number, batch in enumerate(self.index.batches):
            self.packed(number, range(len(batch.chunks)))


def stored_schema(schema: TableSchema) -> Any:
    """The Arrow schema of a segment of a table."""
    fields = arrow_fields(schema.columns)
    return pa.schema([*fields, BEGIN, KEY])


def checksum(buffers: Sequence[memoryview]) -> int:
    """The checksum of the buffers of one column."""
    found = 0
    for buffer in buffers:
        found = zlib.crc32(buffer, found)
    return found


def _cut(held: Sequence[tuple[int, memoryview]], at: int, size: int) -> memoryview:
    """One buffer out of what was read; shorter where the file is."""
    place = bisect_right(held, at, key=_first) - 1
    if not size or place < 0:
        return memoryview(b"")
    low, data = held[place]
    return data[at - low : at - low + size]


def _index_of(file: StoredFile) -> SegmentIndex:
    end = file.size - _TRAILER.size
    if end < 0:
        raise SegmentDamaged("a segment is shorter than its last bytes", size=file.size)
    try:
        size, found, magic = _TRAILER.unpack(file.read(end, _TRAILER.size))
        if magic != MAGIC or size > end:
            raise SegmentDamaged("a file is no segment", size=file.size)
        raw = file.read(end - size, size)
    except (StorageError, struct.error) as error:
        raise SegmentDamaged(f"a segment cannot be read: {error}") from None
    if zlib.crc32(raw) != found:
        raise SegmentDamaged("the index of a segment is damaged", size=file.size)
    try:
        return _decoder.decode(raw)
    except msgspec.MsgspecError as error:  # of another version of this format
        raise SegmentDamaged(f"the index of a segment cannot be read: {error}") from None


def _extremes(array: Any, column: Column) -> tuple[Any, Any]:
    """The lowest and highest value; NULL for both where there is none, `...` where they are not worth keeping."""
    if column.type.kind in VARIABLE and len(array) and (pc.max(pc.binary_length(array)).as_py() or 0) > TEXT_BYTES_MAX:
        return ..., ...
    found = pc.min_max(array)
    return found["min"], found["max"]
