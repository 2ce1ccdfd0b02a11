"""A sorted map of bytes that can be frozen at any moment for next to nothing.

The simulator's engine takes a snapshot for every request it evaluates and at every flush, so the cost that counts is
*snapshot, then write a little*. The map is an array of sorted chunks, copied on write at two levels:

    lows     [ b"" , "g"  , "p"  ]           first key of each chunk (the first is always b"")
    chunks   [  o  ,  o   ,  o   ]
                |     |      |
              a b c  g h k  p q r            keys; values in a parallel list

`fork` shares everything and costs O(1). The next write on either side copies the small top arrays once and then only
the chunks that it touches (at most `CHUNK_KEYS_MAX` keys each). A chunk names its owner by a token; a fork gives both
sides new tokens, so every chunk that existed before is foreign to both and is copied before it is changed. Nothing that
a frozen view can reach is ever mutated: views may be read from another thread.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

CHUNK_KEYS_MAX = 256
assert CHUNK_KEYS_MAX >= 2, "a full chunk can be divided"

Place = tuple[int, int]
"""Chunk number and index inside it. Places of one table compare in key order."""


class _Chunk:
    """A run of sorted keys with their values, owned by one table or shared by several."""

    __slots__ = ("keys", "owner", "values")

    def __init__(self, keys: list[bytes], values: list[bytes], owner: object) -> None:
        self.keys = keys
        self.values = values
        self.owner = owner


class CowTable:
    """A sorted `bytes -> bytes` map with O(1) `fork`."""

    __slots__ = ("_chunks", "_lows", "_shared", "_token", "size")

    def __init__(self) -> None:
        self._token = object()
        self._lows: list[bytes] = [b""]
        self._chunks: list[_Chunk] = [_Chunk([], [], self._token)]
        self._shared = False
        self.size = 0

    def fork(self) -> CowTable:
        """An equal table; from now on neither sees the other's writes."""
        other = CowTable.__new__(CowTable)
        other._lows, other._chunks, other.size = self._lows, self._chunks, self.size
        other._token, self._token = object(), object()
        other._shared = self._shared = True
        assert other.size == self.size, "a fork holds what its origin holds"
        return other

    def get(self, key: bytes) -> bytes | None:
        """The value of one key."""
        chunk = self._chunks[bisect_right(self._lows, key) - 1]
        at = bisect_left(chunk.keys, key)
        return chunk.values[at] if at < len(chunk.keys) and chunk.keys[at] == key else None

    def update(self, writes: Iterable[tuple[bytes, bytes | None]]) -> None:
        """Apply puts and, for None, deletions."""
        for key, value in writes:
            number = bisect_right(self._lows, key) - 1
            keys = self._chunks[number].keys
            at = bisect_left(keys, key)
            present = at < len(keys) and keys[at] == key
            if value is not None:
                chunk = self._owned(number)
                if present:
                    chunk.values[at] = value
                else:
                    self._insert(number, chunk, at, key, value)
            elif present:
                self._remove(number, at, at + 1)

    def delete_range(self, start: bytes, end: bytes) -> None:
        """Delete every key with start <= key < end."""
        first, last = self.place(start), self.place(end)
        for number in range(last[0], first[0] - 1, -1):  # backwards: removing a chunk moves only later ones
            low = first[1] if number == first[0] else 0
            high = last[1] if number == last[0] else len(self._chunks[number].keys)
            if low < high:
                self._remove(number, low, high)

    def place(self, key: bytes) -> Place:
        """Where the first key >= `key` is, or would be."""
        number = bisect_right(self._lows, key) - 1
        return number, bisect_left(self._chunks[number].keys, key)

    def forward(self, first: Place, last: Place, limit: int) -> tuple[list[bytes], list[bytes], Place]:
        """Up to `limit` pairs with first <= place < last, and the place to go on from."""
        keys: list[bytes] = []
        values: list[bytes] = []
        number, at = first
        while limit > 0 and (number, at) < last:
            chunk = self._chunks[number]
            high = last[1] if number == last[0] else len(chunk.keys)
            stop = min(high, at + limit)
            keys += chunk.keys[at:stop]
            values += chunk.values[at:stop]
            limit -= stop - at
            number, at = (number, stop) if stop < high or number == last[0] else (number + 1, 0)
        assert first <= (number, at), "a walk forward does not go back"
        return keys, values, (number, at)

    def backward(self, first: Place, last: Place, limit: int) -> tuple[list[bytes], list[bytes], Place]:
        """Up to `limit` pairs with first <= place < last, last pair first, and the new `last` to go on with."""
        keys: list[bytes] = []
        values: list[bytes] = []
        number, at = last
        while limit > 0 and first < (number, at):
            if at == 0:
                number -= 1
                at = len(self._chunks[number].keys)
                continue
            chunk = self._chunks[number]
            low = first[1] if number == first[0] else 0
            stop = max(low, at - limit)
            keys += chunk.keys[stop:at][::-1]
            values += chunk.values[stop:at][::-1]
            limit -= at - stop
            at = stop
        assert (number, at) <= last, "a walk backward does not go forward"
        return keys, values, (number, at)

    def _top(self) -> None:
        if self._shared:
            self._lows, self._chunks, self._shared = self._lows.copy(), self._chunks.copy(), False

    def _owned(self, number: int) -> _Chunk:
        chunk = self._chunks[number]
        if chunk.owner is not self._token:
            self._top()
            chunk = _Chunk(chunk.keys.copy(), chunk.values.copy(), self._token)
            self._chunks[number] = chunk
        assert chunk.owner is self._token, "only one's own chunks are changed"
        return chunk

    def _insert(self, number: int, chunk: _Chunk, at: int, key: bytes, value: bytes) -> None:
        chunk.keys.insert(at, key)
        chunk.values.insert(at, value)
        self.size += 1
        assert len(chunk.keys) == len(chunk.values), "a value for every key"
        if len(chunk.keys) <= CHUNK_KEYS_MAX:
            return
        # Appends at the end of the table are common (new versions, queues): leave the old chunk full then.
        last = number == len(self._chunks) - 1
        cut = CHUNK_KEYS_MAX if last and at == CHUNK_KEYS_MAX else CHUNK_KEYS_MAX // 2
        right = _Chunk(chunk.keys[cut:], chunk.values[cut:], self._token)
        del chunk.keys[cut:], chunk.values[cut:]
        self._top()
        assert chunk.keys[-1] < right.keys[0], "chunks are in key order"
        self._lows.insert(number + 1, right.keys[0])
        self._chunks.insert(number + 1, right)
        assert len(self._lows) == len(self._chunks), "a lowest key for every chunk"

    def _remove(self, number: int, low: int, high: int) -> None:
        assert low < high, "something is removed"
        chunk = self._owned(number)
        del chunk.keys[low:high], chunk.values[low:high]
        self.size -= high - low
        assert self.size >= 0, "keys are removed once"
        if not chunk.keys and number > 0:
            self._top()
            del self._lows[number], self._chunks[number]
        assert len(self._lows) == len(self._chunks), "a lowest key for every chunk"
        assert self._lows[0] == b"", "the first chunk takes every key below the second"
