"""What one leaseholder tells the next about the reads it has served, in as few bytes as there is room for.

    ReadSummary
        floor      every key was read up to here, for all you know
        entries    [key or span, timestamp, transaction] above the floor, highest timestamp first

A summary can be *collapsed*: keep the newest entries that fit and raise the floor to the newest that does not. Nothing
is lost but precision: a cache to which the smaller summary is applied refuses at least what the larger one would have
refused. With the smallest size it is one timestamp, which is what a lease command carries when it has no room for more.

    full          floor=5   k1@12 A   [a,m)@9   k2@7 B
    two entries   floor=7   k1@12 A   [a,m)@9
    none          floor=12

It travels in the command of a lease transfer and in the answer of a freeze before a merge, so it is encoded (msgpack)
and decoded with suspicion: `decode` raises `DecodeError` and nothing else.

    I-18  Applying decode(encode(s)), or any collapse of s, never lets a write go where s would not have.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from slackwater.clock.timestamp import MAX, MIN, Timestamp
from slackwater.errors import DecodeError, UsageError

TxnId: TypeAlias = bytes

SUMMARY_BYTES_MIN = 16
"""Encoded size of a summary with no entries, at most."""
ENTRIES_MAX = 1 << 20
"""Entries a decoder accepts."""


class ReadEntry(msgspec.Struct, frozen=True, array_like=True):
    """The key `start`, or [start, end) when there is an end, was read at `ts` by `txn` (None: by several)."""

    start: bytes
    end: bytes | None
    ts: Timestamp
    txn: TxnId | None


class ReadSummary(msgspec.Struct, frozen=True, array_like=True):
    """Reads served in the past, possibly rounded up."""

    floor: Timestamp
    entries: tuple[ReadEntry, ...] = ()


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(ReadSummary)


def entry_bytes(entry: ReadEntry) -> int:
    """Encoded size of one entry, at most: an array of bytes, bytes or nil, a 64-bit integer, bytes or nil."""
    return 25 + len(entry.start) + len(entry.end or b"") + len(entry.txn or b"")


def collapse(summary: ReadSummary, *, bytes_max: int) -> ReadSummary:
    """The same summary in at most `bytes_max` encoded bytes: the newest entries that fit, over a higher floor."""
    if bytes_max < SUMMARY_BYTES_MIN:
        raise UsageError(f"a read summary needs at least {SUMMARY_BYTES_MIN} bytes", bytes_max=bytes_max)
    floor = summary.floor
    room = bytes_max - SUMMARY_BYTES_MIN
    # Highest timestamp first; the sort is stable, so equal input gives equal bytes.
    newest_first = sorted(summary.entries, key=lambda entry: -entry.ts)
    for entry in newest_first:
        room -= entry_bytes(entry)
        if room < 0:
            floor = max(floor, entry.ts)
            break
    assert floor >= summary.floor, "what a successor must know only grows"
    kept = ReadSummary(floor, tuple(entry for entry in newest_first if entry.ts > floor))
    assert len(encode(kept)) <= bytes_max, "a summary fits where it goes"
    return kept


def encode(summary: ReadSummary) -> bytes:
    """The summary as bytes."""
    assert all(entry.end is None or entry.start < entry.end for entry in summary.entries), "no entry is empty"
    assert len(summary.entries) <= ENTRIES_MAX, "a decoder accepts what is encoded"
    return _encoder.encode(summary)


def decode(data: bytes) -> ReadSummary:
    """The summary of `encode`; anything else is a DecodeError."""
    try:
        summary = _decoder.decode(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise DecodeError(f"not a read summary: {error}") from None
    if len(summary.entries) > ENTRIES_MAX:
        raise DecodeError("a read summary has too many entries", entries=len(summary.entries), limit=ENTRIES_MAX)
    if not MIN <= summary.floor <= MAX:
        raise DecodeError("a read summary's floor is no timestamp", floor=summary.floor)
    for entry in summary.entries:
        if not MIN <= entry.ts <= MAX or (entry.end is not None and entry.start >= entry.end):
            raise DecodeError("a read summary has an entry that cannot be", entry=entry)
    return summary
