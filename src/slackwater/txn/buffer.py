"""Blind writes that are held back until a read must see them.

A Put or Delete has no result, so it can wait for its neighbours: the whole transaction may turn out to be one batch
to one range, which commits in one phase without a single intent. What ends the waiting is a read of a key in the
buffer, a write that needs to see (conditional ones), the bound in bytes, or the commit.

Each key is in the buffer once; the last write wins. Many puts leave as one block (`PutRows`). Pure.
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import accumulate
from operator import add
from typing import TYPE_CHECKING

from slackwater.protocol.range.requests import Delete, Put, PutRows

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackwater.model.spans import Span
    from slackwater.protocol.range.requests import Request

BLOCK_ROWS_MIN = 2
"""From this many puts on they are sent as one block."""
assert BLOCK_ROWS_MIN >= 2, "a single write is no block"


class WriteBuffer:
    """Blind writes of one transaction that have not been sent."""

    def __init__(self, *, bytes_max: int) -> None:
        assert bytes_max >= 0, "a buffer of nothing sends every write at once"
        self._bytes_max = bytes_max
        self._writes: dict[bytes, bytes | None] = {}
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._writes)

    def __len__(self) -> int:
        return len(self._writes)

    @property
    def full(self) -> bool:
        """Whether it is time to send."""
        return self._bytes > self._bytes_max

    def fits(self, key: bytes, value: bytes | None) -> bool:
        """Whether this write may be sent together with what is held back: not if both would be too much for one entry."""
        return not self._writes or self._bytes + len(key) + len(value or b"") <= 2 * self._bytes_max

    def put(self, key: bytes, value: bytes | None) -> None:
        """Set a key; None deletes it."""
        if key in self._writes:
            self._bytes -= len(key) + len(self._writes[key] or b"")
        self._writes[key] = value
        self._bytes += len(key) + len(value or b"")
        assert self._bytes >= 0, "bytes are given back once"

    def touches(self, spans: Iterable[Span]) -> bool:
        """Whether a read of these spans would have to see something in here."""
        if not self._writes:
            return False
        for span in spans:
            if span.is_point:
                if span.start in self._writes:
                    return True
            elif any(key in span for key in self._writes):
                return True
        return False

    def requests(self) -> list[Request]:
        """Everything held back, in key order."""
        requests = _requests(self._writes)
        assert bool(requests) == bool(self._writes), "what is held back is sent"
        return requests

    def divided(self, start: bytes, end: bytes) -> tuple[list[Request], list[Request]]:
        """What lies in `[start, end)`, and what lies elsewhere."""
        inside = {key: value for key, value in self._writes.items() if start <= key < end}
        if len(inside) == len(self._writes):
            return _requests(inside), []
        assert len(inside) < len(self._writes), "some writes are elsewhere"
        return _requests(inside), _requests({k: v for k, v in self._writes.items() if k not in inside})

    def clear(self) -> None:
        """Forget all writes: they were sent, or are void."""
        self._writes.clear()
        self._bytes = 0


def _requests(writes: dict[bytes, bytes | None]) -> list[Request]:
    if None not in writes.values() and len(writes) < BLOCK_ROWS_MIN:  # the row that an autocommit write has
        return [Put(key, value) for key, value in writes.items() if value is not None]
    puts = sorted((key, value) for key, value in writes.items() if value is not None)
    deletes: list[Request] = [Delete(key) for key in sorted(k for k, v in writes.items() if v is None)]
    if len(puts) < BLOCK_ROWS_MIN:
        return [*(Put(key, value) for key, value in puts), *deletes]
    assert len(puts) + len(deletes) == len(writes), "every write is sent once"
    return [PutRows([key for key, _ in puts], [value for _, value in puts]), *deletes]


def chunks(keys: list[bytes], values: list[bytes], *, bytes_max: int) -> list[tuple[list[bytes], list[bytes]]]:
    """Rows in blocks of about `bytes_max` bytes each, at least one row per block."""
    if keys and sum(map(len, keys)) + sum(map(len, values)) <= bytes_max:
        return [(keys, values)]
    ends = list(accumulate(map(add, map(len, keys), map(len, values))))
    out: list[tuple[list[bytes], list[bytes]]] = []
    begin, size = 0, 0
    while begin < len(keys):
        upto = max(bisect_right(ends, size + bytes_max, begin), begin + 1)
        out.append((keys[begin:upto], values[begin:upto]))
        begin, size = upto, ends[upto - 1]
    assert sum(len(block) for block, _ in out) == len(keys), "no row is left out or sent twice"
    assert all(block for block, _ in out), "every block holds a row"
    return out
