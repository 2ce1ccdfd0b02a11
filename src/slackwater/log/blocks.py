"""Blocks: the payloads of one range that became durable together, as one run of bytes.

A row of the SQLite log and a message of the NATS log hold a block, not a payload: a group commit of 256 appends to one
range is one row or one message, so the cost per append is a copy, not an insert or a round trip.

    magic  version  count   crc32 of the rest   length x count     payloads
    +-----+--------+-------+-------------------+------------------+-----------------------
    | 2 B | 2 B    | u32   | u32               | u32 x count      | back to back
    +-----+--------+-------+-------------------+------------------+-----------------------

The checksum is there because neither SQLite nor a file on a laptop notices a flipped bit. A block that does not check
raises `DecodeError`; it is never delivered in part (L-4).
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from typing import TYPE_CHECKING

from slackwater.errors import DecodeError, EntryTooLarge, LogError, UsageError
from slackwater.log.contract import Entry
from slackwater.model.ids import Position

if TYPE_CHECKING:
    from collections.abc import Sequence

_HEADER = struct.Struct("<2sHII")
_MAGIC = b"SB"
_VERSION = 1
_WORD = 4
assert struct.calcsize("<I") == _WORD, "a length has four bytes"
assert array("I").itemsize == _WORD, "lengths are read as wide as they are written"


def encode(payloads: Sequence[bytes]) -> bytes:
    """One block holding the payloads, in order."""
    body = b"".join((struct.pack(f"<{len(payloads)}I", *map(len, payloads)), *payloads))
    block = _HEADER.pack(_MAGIC, _VERSION, len(payloads), zlib.crc32(body)) + body
    assert count(block) == len(payloads), (
        "positions that are counted from the header are those that were given out (L-3)"
    )
    return block


def count(block: bytes) -> int:
    """How many payloads a block holds, by its header alone."""
    if len(block) < _HEADER.size:
        raise DecodeError("a log block is shorter than its header", size=len(block))
    return int(_HEADER.unpack_from(block)[2])


def decode(block: bytes) -> list[bytes]:
    """The payloads of a block, or `DecodeError`."""
    if len(block) < _HEADER.size:
        raise DecodeError("a log block is shorter than its header", size=len(block))
    magic, version, size, crc = _HEADER.unpack_from(block)
    if magic != _MAGIC or version != _VERSION:
        raise DecodeError("not a log block, or one of a version this build cannot read", magic=magic, version=version)
    body = memoryview(block)[_HEADER.size :]
    if len(body) < _WORD * size or zlib.crc32(body) != crc:
        raise DecodeError("a log block does not match its checksum", count=size, size=len(block))
    lengths = array("I", bytes(body[: _WORD * size]))
    if sys.byteorder == "big":
        lengths.byteswap()
    if _WORD * size + sum(lengths) != len(body):
        raise DecodeError("the lengths in a log block do not add up", count=size, size=len(block))
    payloads, at = [], _HEADER.size + _WORD * size
    for length in lengths:
        payloads.append(block[at : at + length])
        at += length
    assert at == len(block), "the payloads are all of the block"
    assert len(payloads) == size, "every payload of a block is read"
    return payloads


def entries(block: bytes, *, first: int) -> list[Entry]:
    """The entries of a block that was read back, the first at `first`. If it does not check, the log is damaged."""
    try:
        payloads = decode(block)
    except DecodeError as error:
        raise LogError(f"the log is damaged: {error}; restore it from a backup", position=first) from error
    if first < 1:
        raise LogError(
            "the log is damaged: a block lies before the first position; restore it from a backup", first=first
        )
    return [Entry(Position(first + i), payload) for i, payload in enumerate(payloads)]


def check_payloads(payloads: Sequence[bytes], *, limit: int) -> int:
    """The bytes of one append in all; raises if there is nothing to append or a payload is over the bound."""
    if not payloads:
        raise UsageError("append needs at least one payload")
    total = 0
    for payload in payloads:
        size = len(payload)
        if size > limit:
            raise EntryTooLarge("a log entry is over log.entry_bytes_max; split the command", size=size, limit=limit)
        total += size
    assert 0 <= total <= limit * len(payloads), "no entry is over the bound"
    return total
