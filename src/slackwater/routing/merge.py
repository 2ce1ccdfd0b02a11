"""Putting results together again, and counting rows against a limit.

    Rows, Versions,  in the order of the scan, up to the first piece that a limit ended: what lies behind it was
    Blocks           read too far ahead and is dropped, so that the resume key is honest
    Number           the sum
    all others       a request that lives in one range has one piece

`Budget` counts rows and bytes over the ranges that a limited batch visits one after the other. Pure.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import structs

from slackwater.clock.timestamp import MIN
from slackwater.errors import invariant
from slackwater.protocol.range.requests import (
    BatchResult,
    Blocks,
    ClosedResult,
    ExportArrow,
    Number,
    ResolvedResult,
    Result,
    ReverseScan,
    Rows,
    Scan,
    ScanArrow,
    Versions,
)
from slackwater.routing.split import lowest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackwater.protocol.range.requests import Request
    from slackwater.routing.split import Division


def merge_division(requests: Sequence[Request], division: Division, answers: Sequence[BatchResult]) -> BatchResult:
    """The answer to the whole batch from the answers to its shares."""
    results = []
    for request, where in zip(requests, division.places, strict=True):
        results.append(merge(request, [answers[share].results[at] for share, at in where]))
    return combine(results, answers)


def combine(results: list[Result], answers: Sequence[BatchResult]) -> BatchResult:
    """One answer around `results`, with timestamps that hold for all of `answers`."""
    return BatchResult(
        results=results,
        ts=max((a.ts for a in answers), default=MIN),
        txn_write_ts=max((a.txn_write_ts for a in answers), default=MIN),
        served_by=answers[0].served_by,
        by_follower=any(a.by_follower for a in answers),
        served=tuple(served for answer in answers for served in answer.served),
    )


def merge(request: Request, pieces: list[Result]) -> Result:
    """One result from the results of a request's pieces, which are in key order."""
    if len(pieces) == 1:
        return pieces[0]
    if isinstance(request, ReverseScan):
        return join(pieces[::-1])
    return join(pieces)


def join(pieces: list[Result]) -> Result:
    """Results one after the other, in the order of the scan, up to the first that stopped early."""
    first = pieces[0]
    if isinstance(first, Rows):
        keys: list[bytes] = []
        values: list[bytes] = []
        for piece in pieces:
            invariant(isinstance(piece, Rows), "A-merge", kind=type(piece).__name__)
            keys += piece.keys  # type: ignore[union-attr]
            values += piece.values  # type: ignore[union-attr]
            if piece.resume is not None:  # type: ignore[union-attr]
                return Rows(keys, values, piece.resume)  # type: ignore[union-attr]
        return Rows(keys, values)
    if isinstance(first, Versions):
        return _join_versions(pieces)
    if isinstance(first, Blocks):
        return _join_blocks([piece for piece in pieces if isinstance(piece, Blocks)])
    if isinstance(first, ResolvedResult):
        return min((p for p in pieces if isinstance(p, ResolvedResult)), key=lambda p: p.ts)
    if isinstance(first, ClosedResult):
        return min((p for p in pieces if isinstance(p, ClosedResult)), key=lambda p: p.closed)
    if isinstance(first, Number):
        numbers = [piece for piece in pieces if isinstance(piece, Number)]
        return Number(sum(piece.number for piece in numbers), more=any(piece.more for piece in numbers))
    return first


def _join_versions(pieces: list[Result]) -> Versions:
    joined = Versions([], [], [])
    for piece in pieces:
        invariant(isinstance(piece, Versions), "A-merge", kind=type(piece).__name__)
        assert isinstance(piece, Versions)  # for the type checker
        joined.keys.extend(piece.keys)
        joined.timestamps.extend(piece.timestamps)
        joined.values.extend(piece.values)
        if piece.resume is not None:
            return structs.replace(joined, resume=piece.resume)
    return joined


def _join_blocks(pieces: list[Blocks]) -> Blocks:
    joined = Blocks([])
    for piece in pieces:
        before = len(joined.blocks)
        moved = [structs.replace(patch, block=patch.block + before) for patch in piece.patches]
        joined = Blocks(
            joined.blocks + piece.blocks,
            joined.rows + piece.rows,
            joined.rows_read + piece.rows_read,
            joined.bytes_read + piece.bytes_read,
            piece.resume,
            joined.patches + moved,
        )
        if piece.resume is not None:
            break
    return joined


def resume_of(result: Result) -> bytes | None:
    """Where to go on, if a limit ended this result early."""
    return result.resume if isinstance(result, Rows | Versions | Blocks) else None


def unread(request: Request, *, home: bytes) -> bytes:
    """The resume key of a request of which nothing was read: its start, or for a reverse scan its end."""
    return request.end if isinstance(request, ReverseScan) else lowest(request, home=home)


def stopped_at(result: Result | None, request: Request, resume: bytes) -> Result:
    """`result` (None: nothing was read at all) of `request`, marked as ended early at `resume`."""
    if isinstance(result, Rows | Versions | Blocks):
        return result if result.resume is not None else structs.replace(result, resume=resume)
    if result is not None:
        return result
    if isinstance(request, ScanArrow | ExportArrow):
        return Blocks([], resume=resume)
    return Rows([], [], resume) if isinstance(request, Scan | ReverseScan) else Versions([], [], [], resume)


class Budget:
    """Rows and bytes that a limited batch may still return. 0 stands for no limit."""

    __slots__ = ("_bytes", "_keys", "max_bytes", "max_keys")

    def __init__(self, *, max_keys: int, max_bytes: int) -> None:
        self.max_keys = max_keys
        self.max_bytes = max_bytes
        self._keys = 0
        self._bytes = 0

    @property
    def spent(self) -> bool:
        """Whether the next row would be over a limit."""
        return bool(
            (self.max_keys and self._keys >= self.max_keys) or (self.max_bytes and self._bytes >= self.max_bytes)
        )

    def left(self) -> tuple[int, int]:
        """(rows, bytes) for the next range; 0 for no limit. Not to be asked when spent."""
        invariant(not self.spent, "A-budget", keys=self._keys, bytes=self._bytes)
        return (self.max_keys and self.max_keys - self._keys), (self.max_bytes and self.max_bytes - self._bytes)

    def use(self, result: Result) -> None:
        """Count what came back. Only scans count."""
        if isinstance(result, Rows | Versions):
            self._keys += len(result.keys)
            self._bytes += sum(map(len, result.keys)) + sum(map(len, result.values))
        elif isinstance(result, Blocks):
            self._keys += result.rows_read
            self._bytes += result.bytes_read
