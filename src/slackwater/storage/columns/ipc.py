r"""Arrow IPC messages of record batches, taken apart and put together without touching what they hold.

A record batch travels as a message: a small head that says where each buffer lies, and a body of buffers, each compressed by
itself. So a message of *some* columns of a stored batch is a new head and the bytes of those columns as they are:

    stored    head │ id ▒▒▒ │ name ▒▒▒▒▒▒▒ │ price ▒▒▒▒ │ _begin ▒▒ │ _key ▒▒▒
    sent      head'│ price ▒▒▒▒ │ id ▒▒▒                                            no byte of a column is looked at

pyarrow reads and writes such messages, but gives no access to the compressed buffers; their head is a FlatBuffers table of
five fields, read here by its own offsets and written with fixed ones (Arrow's `format/Message.fbs`, version V5):

    at 16  Message       bodyLength, header ──► RecordBatch, version, kind
    at 48  RecordBatch   length, nodes ──► [(length, nulls)], buffers ──► [(offset, length)], compression ──► LZ4 frames

Only flat columns: one node and two or three buffers each, as all types of a table have.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow

from slackwater.errors import DecodeError

if TYPE_CHECKING:
    from collections.abc import Sequence

pa: Any = pyarrow  # its stubs know neither buffers nor messages
CONTINUATION = b"\xff\xff\xff\xff"
ALIGNMENT = 8
COMPRESSION = "lz4"
_RECORD_BATCH = 3
_V5 = 4
_HEAD = struct.Struct("<I 6H i I q h B x 6H i I q I I 2H i 4x")
"""Everything in front of the nodes: root, two tables with their vtables, and the empty table that means LZ4 frames."""
_NODES_AT = 84
assert _HEAD.size == _NODES_AT, "the nodes follow the head"
_PAIR = struct.Struct("<2q")
_COUNT = struct.Struct("<I")


class Packed(NamedTuple):
    """One column of one batch: its compressed buffers, in the order of Arrow's layout."""

    rows: int
    nulls: int
    buffers: list[memoryview]


class Message(NamedTuple):
    """An encapsulated message in pieces, and where in it the buffers of each column begin."""

    pieces: list[bytes | memoryview]
    places: list[list[int]]

    def joined(self) -> bytes:
        """The message as one piece."""
        return b"".join(self.pieces)


def packed_columns(batch: Any) -> list[Packed]:
    """The columns of a batch, compressed."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=COMPRESSION)
    with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
        writer.write_batch(batch)
    messages = pa.ipc.MessageReader.open_stream(sink.getvalue())
    messages.read_next_message()  # the schema
    found = messages.read_next_message()
    body = memoryview(found.body)
    nodes, buffers = _parse(memoryview(found.metadata))
    columns = []
    at = 0
    for column, (rows, nulls) in zip(batch.columns, nodes, strict=True):
        count = len(column.buffers())
        columns.append(Packed(rows, nulls, [body[place : place + size] for place, size in buffers[at : at + count]]))
        at += count
    if at != len(buffers):
        raise DecodeError("a record batch has other buffers than its columns", columns=len(nodes), buffers=len(buffers))
    assert all(column.rows == batch.num_rows for column in columns), "every column has every row"
    return columns


def message(rows: int, columns: Sequence[Packed]) -> Message:
    """A message of these columns, which have so many rows each."""
    nodes: list[bytes] = []
    pairs: list[bytes] = []
    body: list[bytes | memoryview] = []
    places: list[list[int]] = []
    at = 0
    for column in columns:
        nodes.append(_PAIR.pack(column.rows, column.nulls))
        begins = []
        for buffer in column.buffers:
            begins.append(at)
            size = len(buffer)
            pairs.append(_PAIR.pack(at, size))
            body.append(buffer)
            padding = -size % ALIGNMENT
            if padding:
                body.append(bytes(padding))
            at += size + padding
        places.append(begins)
    assert at % ALIGNMENT == 0, "buffers are aligned"
    assert len(nodes) == len(columns) == len(places), "a node for every column"
    assert all(column.rows == rows for column in columns), "every column has every row"
    assert len(pairs) == sum(len(column.buffers) for column in columns), "a place for every buffer"
    head = _head(rows, nodes, pairs, at)
    return Message([head, *body], [[len(head) + begin for begin in begins] for begins in places])


def _head(rows: int, nodes: list[bytes], pairs: list[bytes], body_bytes: int) -> bytes:
    """The length prefix and the metadata of a message."""
    buffers_at = _NODES_AT + 8 + 16 * len(nodes)
    head = _HEAD.pack(
        16,
        *(12, 20, 16, 18, 4, 8),  # Message: where version, kind, header and bodyLength are
        *(12, 48 - 20, body_bytes, _V5, _RECORD_BATCH),
        *(12, 24, 8, 4, 16, 20),  # RecordBatch: length, nodes, buffers, compression
        *(12, _NODES_AT - 52, rows, buffers_at - 64, 76 - 68),
        *(4, 4, 4),
    )
    metadata = b"".join([head, _COUNT.pack(len(nodes)), *nodes, bytes(4), _COUNT.pack(len(pairs)), *pairs])
    assert len(metadata) == buffers_at + 4 + 16 * len(pairs), "buffers are where the head says"
    assert len(metadata) % ALIGNMENT == 0, "the body is aligned"
    return CONTINUATION + struct.pack("<i", len(metadata)) + metadata


def _parse(metadata: memoryview) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """(nodes, buffers) of the record batch that a message announces."""
    root = struct.unpack_from("<I", metadata, 0)[0]
    header = _field(metadata, root, 2)
    if header is None or metadata[_field(metadata, root, 1) or 0] != _RECORD_BATCH:
        raise DecodeError("an Arrow message is not of a record batch")
    batch = header + struct.unpack_from("<I", metadata, header)[0]
    return _pairs(metadata, _field(metadata, batch, 1)), _pairs(metadata, _field(metadata, batch, 2))


def _field(data: memoryview, table: int, number: int) -> int | None:
    """Where a field of a FlatBuffers table lies."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    size = struct.unpack_from("<H", data, vtable)[0]
    slot = 4 + 2 * number
    offset = struct.unpack_from("<H", data, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else None


def _pairs(data: memoryview, field: int | None) -> list[tuple[int, int]]:
    """A vector of structs of two 64-bit integers."""
    if field is None:
        return []
    at = field + struct.unpack_from("<I", data, field)[0]
    count = struct.unpack_from("<I", data, at)[0]
    return list(struct.iter_unpack("<2q", data[at + 4 : at + 4 + 16 * count]))
