"""Cursors over RocksDB, and the readers that hand them out.

Measured for 300 000 pairs of 18 + 94 bytes on one loaded core, thousand pairs per second:
`RdictIter` 630, `items()` in a `for` 750, `items()` by `islice` and `zip` 690, `items()` by `islice` flattened with
`chain` and cut by slices 840 (also the kindest to the garbage collector: no pair object outlives its block). To
position: `RdictIter.seek` + key + value 150, `items(from_key=…)` 80. So long chunks stream from `items()`, and short
ones (`POINT_PAIRS_MAX`), and those of pinned snapshots, are pulled from one `RdictIter` that all cursors of a reader
share, each seeking again when another one has moved it.

Keys alone cost less, because no value is copied: `keys()` by `islice` takes 0.31 us for each where `items()` takes 0.45 us,
and 0.47 us instead of 0.66 us through an `RdictIter`. A value wanted after all costs 2 us by `get` of a list.

Streams end early at a damaged block and say nothing; only `RdictIter` has a status. So a stream that ended is looked
behind once, through the shared iterator (`whole.py`). A reverse stream that has left its bounds has shown that there was
more to read, and needs no such look.

Two things of rocksdict 0.3.29 that were found by trying, not by reading: `ReadOptions.set_iterate_lower_bound` sets the
*upper* bound, so lower bounds are kept by hand; and a `Snapshot`'s iterators show later writes, so frozen reads go
through iterators made in time (`rocks.py`).
"""

from __future__ import annotations

from bisect import bisect_right
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import rocksdict

from slackwater.errors import DamageError, StorageError, UsageError
from slackwater.runtime.seam import Family
from slackwater.storage.whole import prove_end

if TYPE_CHECKING:
    from collections.abc import Iterator

Kind = Literal["items", "keys"]
POINT_PAIRS_MAX = 16
"""Chunks up to this long are pulled one by one after a seek; longer ones stream."""

DAMAGE_SIGNS = ("Corruption", "Input/output error", "No such file")
"""In RocksDB's messages: a block that does not check, a sector that cannot be read, a file that is gone."""


def failure(error: Exception, doing: str) -> StorageError:
    """What a bare exception of the engine means for the caller."""
    text = str(error)
    if isinstance(error, rocksdict.DbClosedError) or "closed" in text:
        return StorageError(f"the engine is closed; open it again before {doing}")
    if "No space left" in text:
        return StorageError(f"the disk is full while {doing}; free space and restart the node", reason=text)
    if any(sign in text for sign in DAMAGE_SIGNS):
        return DamageError(f"RocksDB found damage while {doing}; the replica is fetched anew", reason=text)
    return StorageError(f"RocksDB failed while {doing}; its LOG file in the store's directory says more", reason=text)


class _Descending:
    """Turns the order of bytes around, for a binary search in a reversed block."""

    __slots__ = ("key",)

    def __init__(self, key: bytes) -> None:
        self.key = key

    def __lt__(self, other: _Descending) -> bool:
        return other.key < self.key


class RocksCursor:
    """A position in one family of a reader: see *Cursors* in the module docstring."""

    __slots__ = (
        "__weakref__",
        "_end",
        "_ended",
        "_family",
        "_from",
        "_kind",
        "_last",
        "_reader",
        "_reverse",
        "_start",
        "_stream",
        "_version",
        "own",
    )

    def __init__(self, reader: RocksReader, family: Family, start: bytes, end: bytes, *, reverse: bool) -> None:
        self._reader = reader
        self._family = family
        self._start = start
        self._end = end
        self._reverse = reverse
        self._from: bytes | None = None  # where to begin; None: at the first (or last) key
        self._last: bytes | None = None  # the last key given since the last seek
        self._stream: Iterator[Any] | None = None
        self._kind: Kind = "items"  # what the stream is of
        self._ended = False  # whether the end was reached, and proven
        self._version = reader.version
        self.own: Any = None  # the shared iterator, while it stands where this cursor left it

    def seek(self, key: bytes) -> None:
        """Move to the first key >= key (forward) or the last key <= key (reverse), inside the bounds."""
        self._from, self._last, self._stream, self.own, self._ended = key, None, None, None, False

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` keys and values from here on, as two lists; advances."""
        if self._nothing(limit):
            return [], []
        try:
            stream = self._streaming(limit, "items")
            if stream is None:
                return self._pull(limit, with_values=True)
            flat = list(chain.from_iterable(islice(stream, limit)))
            keys, values = self._given(flat[::2], limit), flat[1::2]
        except StorageError:
            raise
        except Exception as error:
            raise failure(error, "reading") from error
        assert len(values) >= len(keys), "a value for every key"
        return keys, values if len(keys) == len(values) else values[: len(keys)]

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values."""
        if self._nothing(limit):
            return []
        try:
            stream = self._streaming(limit, "keys")
            if stream is None:
                return self._pull(limit, with_values=False)[0]
            return self._given(list(islice(stream, limit)), limit)
        except StorageError:
            raise
        except Exception as error:
            raise failure(error, "reading") from error

    def _nothing(self, limit: int) -> bool:
        """Whether there is nothing to read; refuses a cursor that is too old."""
        if self._version != self._reader.version:
            raise UsageError("the engine was written to since this cursor was made; read a snapshot instead")
        return self._ended or self._start >= self._end or limit <= 0

    def _streaming(self, limit: int, kind: Kind) -> Iterator[Any] | None:
        """The stream to take from, opened here if need be; None when the shared iterator has to do."""
        if self._stream is not None and self._kind == kind:
            return self._stream
        short = limit <= POINT_PAIRS_MAX and self._family is Family.DATA
        self._stream = None if short else self._open(kind)
        if self._stream is not None:
            self._kind, self.own = kind, None  # the shared iterator stays behind
        return self._stream

    def _given(self, keys: list[bytes], limit: int) -> list[bytes]:
        """What a stream gave, inside the bounds: only a reverse one can have left them. Fewer than wanted: the end."""
        short = len(keys) < limit
        if self._reverse and keys and keys[-1] < self._start:
            keys = keys[: bisect_right(keys, _Descending(self._start), key=_Descending)]
            self._ended, short = True, False
        if keys:
            assert self._last is None or (keys[0] < self._last) is self._reverse, "a cursor only moves on"
            self._last = keys[-1]
        if short:
            prove_end(self._look)
            self._ended = True
        assert len(keys) <= limit, "no more than was asked for"
        assert not keys or self._last == keys[-1], "a cursor goes on behind the last key it gave"
        return keys

    def _look(self) -> bytes | None:
        """The key behind the last one given, if there is one; raises when that cannot be read.

        Below the same bound as the stream where that is possible: what lies beyond it is another range's affair.
        """
        bounded = None if self._reverse else self._reader.bounded(self._family, self._end)
        if bounded is None:
            found = self._pull(1, with_values=False)[0]
            return found[0] if found else None
        self._place(bounded)
        key: bytes | None = bounded.key()
        if key is None or key >= self._end:
            bounded.status()
            return None
        return key

    def drop(self) -> None:
        """Let go of the iterators: the reader is closing and they would keep its files open."""
        self._stream, self.own = iter(()), None

    def _pull(self, limit: int, *, with_values: bool) -> tuple[list[bytes], list[bytes]]:
        iterator = self._reader.shared(self._family, self)
        if self._reverse:
            self._reader.stands.pop(self._family, None)
        if iterator is not self.own:
            if self._reverse or not self._reader.stands_behind(self._family, self._next()):
                self._place(iterator)
            self.own = iterator
        keys: list[bytes] = []
        values: list[bytes] = []
        start, end, key_here, value_here = self._start, self._end, iterator.key, iterator.value
        advance = iterator.prev if self._reverse else iterator.next
        while len(keys) < limit:
            key = key_here()
            if key is None or not start <= key < end:
                iterator.status()
                break
            keys.append(key)
            if with_values:
                values.append(value_here())
            advance()
        assert not with_values or len(keys) == len(values), "a value for every key"
        if keys:
            assert self._last is None or (keys[0] < self._last) is self._reverse, "a cursor only moves on"
            self._last = keys[-1]
        if not self._reverse:
            self._reader.stands[self._family] = (self._next(), key_here())
        return keys, values

    def _next(self) -> bytes:
        """Where a forward cursor goes on."""
        return max(self._start, self._from or b"") if self._last is None else self._last + b"\x00"

    def _place(self, iterator: Any) -> None:
        if not self._reverse:
            iterator.seek(self._next())
            return
        beyond = self._last  # exclusive; `_from` is inclusive
        if beyond is None and (self._from is None or self._from >= self._end):
            beyond = self._end
        iterator.seek_for_prev(self._from if beyond is None else beyond)
        if beyond is not None and iterator.key() == beyond:
            iterator.prev()

    def _open(self, kind: Kind) -> Iterator[Any] | None:
        """A stream from here on; None when only the shared iterator still shows the reader's state."""
        if self._reverse:
            if self._last is not None:
                return None
            at = self._from if self._from is not None and self._from < self._end else None
        else:
            at = self._next()
            if at >= self._end:
                self._ended = True
                return iter(())
        assert at is None or at < self._end, "a stream begins inside its bounds"
        return self._reader.stream(self, self._family, kind, self._end, at, reverse=self._reverse)


class RocksReader:
    """What the engine and its snapshots share: iterators over one state."""

    def __init__(self, what: str) -> None:
        self._what = what
        self.fills_cache = True
        """Whether blocks that are walked over stay in the block cache; single keys that are asked for always do."""
        self._sources: tuple[Any, ...] = ()
        self._shared: dict[Family, Any] = {}
        self._owners: dict[Family, RocksCursor] = {}
        self._cursors: WeakSet[RocksCursor] = WeakSet()
        self.stands: dict[Family, tuple[bytes, bytes | None]] = {}
        """Where the shared iterators stand: after a seek to the first, at the second (None: behind the last key)."""
        self._closed = False
        self.version = 0  # counts the writes of an engine; a snapshot has none

    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> RocksCursor:
        """A cursor over start <= key < end. An engine's ends with the next write; a snapshot's does not."""
        return RocksCursor(self, family, start, end, reverse=reverse)

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end: one seek of the shared iterator, whose user has to seek again."""
        iterator = self.shared(family, None)
        try:
            if not self.stands_behind(family, start):
                iterator.seek(start)
            key: bytes | None = iterator.key()
            self.stands[family] = (start, key)
            assert key is None or key >= start, "an iterator that was not moved stands where a seek would put it"
            if key is None or key >= end:
                iterator.status()  # an iterator that met damage has no key either
                return None
            return key, iterator.value()
        except Exception as error:
            raise failure(error, "reading") from error

    def stands_behind(self, family: Family, key: bytes) -> bool:
        """Whether a seek of the shared iterator to `key` would leave it where it stands.

        Such a seek is not free: it passes whatever was deleted between, a hundred thousand locks after a large commit, and
        a scan that looks for locks block by block would pass all of them for every block.
        """
        low, at = self.stands.get(family, (None, None))
        return low is not None and low <= key and (at is None or key <= at)

    def source(self, family: Family) -> Any:
        """The RocksDB handle of one family; refuses when closed."""
        if self._closed:
            raise StorageError(f"this {self._what} was closed; open it again", family=family.name)
        return self._sources[family]

    def read_options(self) -> Any:
        """How iterators read."""
        options: Any = rocksdict.ReadOptions()  # whose stub does not know the argument of `fill_cache`
        if not self.fills_cache:
            options.fill_cache(v=False)
        return options

    def live(self) -> bool:
        """Whether the engine's present state is this reader's."""
        return True

    def shared(self, family: Family, cursor: RocksCursor | None) -> Any:
        """The one `RdictIter` of the family; its previous user will have to seek again. None: no cursor keeps it."""
        iterator = self._shared.get(family)
        if iterator is None:
            # Another thread may be pinning this snapshot right now: the first one made the right iterator.
            iterator = self._shared.setdefault(family, self.source(family).iter(self.read_options()))
        owner = self._owners.get(family)
        if owner is not cursor:
            if owner is not None:
                owner.own = None
            if cursor is None:
                del self._owners[family]
            else:
                self._owners[family] = cursor
        assert cursor is None or self._owners.get(family) is cursor, "the shared iterator has one owner"
        return iterator

    def stream(
        self, cursor: RocksCursor, family: Family, kind: Kind, end: bytes, at: bytes | None, *, reverse: bool
    ) -> Iterator[Any] | None:
        """A new frozen iterator over pairs or keys below `end`, or None when the engine has moved on.

        A forward stream begins at its lower bound; a reverse one is cut by its cursor.
        """
        source = self.source(family)
        if not self.live():
            return None
        options = self.read_options()
        options.set_iterate_upper_bound(end)
        made = source.items if kind == "items" else source.keys
        stream: Iterator[Any] = iter(made(backwards=reverse, from_key=at, read_opt=options))
        self._cursors.add(cursor)
        return stream if self.live() else None

    def bounded(self, family: Family, end: bytes) -> Any | None:
        """A new `RdictIter` over this reader's state below `end`, or None when the engine has moved on."""
        source = self.source(family)
        if not self.live():
            return None
        options = self.read_options()
        options.set_iterate_upper_bound(end)
        iterator = source.iter(options)
        return iterator if self.live() else None

    def _drop_shared(self) -> None:
        for owner in self._owners.values():
            owner.own = None
        self._shared.clear()
        self._owners.clear()
        self.stands.clear()

    def _drop_iterators(self) -> None:
        self._drop_shared()
        for cursor in list(self._cursors):
            cursor.drop()
