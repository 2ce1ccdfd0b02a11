"""Reading through intents whose transaction is decided: a `Reader` that shows them as what they have become.

A committed transaction's intents become versions one by one, long after its record has decided for all of them. A reader
that knows the outcome need not wait for that:

    stored   DATA  a@10  c@10            LOCK  b {T, "b2"}   c {T, "c2"}   d {U, "d1"}
    known    T committed at 20; nothing about U
    shown    DATA  a@10  b@20  c@20  c@10    LOCK  d {U, "d1"}

    COMMITTED, same epoch      a version at the commit timestamp, visible or not by the rules of every read; above the
                               bound, up to which this reader looks, nothing: a scan need not step over a million of them
    COMMITTED, other epoch     nothing: that epoch was abandoned
    ABORTED                    nothing
    PENDING above the bound    nothing: it may not commit at or below anything this reader looks at
    not known, or one's own    the intent, as stored

So every read function works on it unchanged, and gives what it would give once all those intents are resolved (property
test `tests/property/test_through.py`). Locks are walked in blocks beside the versions; what is paid per intent is one decode.

The outcome must be final, or for PENDING a lower bound that holds for ever. Where it comes from is the caller's matter
(`replica.fates`). Keys are prefix-free, so intents in key order are versions in the engine's order.
"""

from __future__ import annotations

import abc
from bisect import bisect_left, bisect_right
from itertools import compress, repeat
from operator import itemgetter
from typing import TYPE_CHECKING

from slackwater.codec.layout import VERSION_BYTES
from slackwater.model.txns import TXN_ID_BYTES, Resolution, TxnStatus
from slackwater.runtime.seam import Family
from slackwater.storage.intents import StoredIntent, decode_intent, decode_intents
from slackwater.storage.versions import AFTER_VERSIONS, suffix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from slackwater.clock.timestamp import Timestamp
    from slackwater.runtime.seam import Cursor, Reader

_HEAD = bytes((0x98, 0xC4, TXN_ID_BYTES))
"""How every stored intent begins: eight fields, the first of them the transaction's id."""
_ID = slice(len(_HEAD), len(_HEAD) + TXN_ID_BYTES)
_EXTENSIONS = (1, VERSION_BYTES, VERSION_BYTES + 1)
"""By how many bytes a bound in the DATA family may extend a key (`versions`)."""
LOCKS_AT_ONCE = 512
AHEAD = 64
"""Versions and locks that are read at a time at least."""
assert AHEAD <= LOCKS_AT_ONCE, "locks are read in blocks at least as long as what is read ahead"
_first = itemgetter(0)


def txn_id_of(raw: bytes) -> bytes:
    """Whose a stored intent is, without decoding the rest of it."""
    return raw[_ID] if raw.startswith(_HEAD) else decode_intent(raw).txn_id


class Through:
    """A base reader, with the intents of decided transactions shown as what became of them."""

    def __init__(self, base: Reader, fate: Callable[[StoredIntent], Resolution | None], *, bound: Timestamp) -> None:
        """`bound` is the highest timestamp that will be looked at."""
        self._base = base
        self._fate = fate
        self._bound = bound
        self._known: dict[bytes, Resolution | None] = {}
        self._clean = (b"", b"")
        self.shown = 0
        """Intents that were shown as versions so far."""

    def get(self, family: Family, key: bytes) -> bytes | None:
        """The value of one key, or None."""
        raw = self._base.get(family, key)
        if family is Family.LOCK:
            return None if raw is None or self.decided(raw) is not None else raw
        if family is Family.DATA and raw is None:
            return self._shown_at(key)
        return raw

    def multi_get(self, family: Family, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of many keys, in their order."""
        found = self._base.multi_get(family, keys)
        if family is Family.LOCK:
            return [None if raw is None or self.decided(raw) is not None else raw for raw in found]
        if family is Family.DATA:
            return [self._shown_at(key) if raw is None else raw for key, raw in zip(keys, found, strict=True)]
        return found

    def cursor(self, family: Family, *, start: bytes, end: bytes, reverse: bool = False) -> Cursor:
        """A cursor over start <= key < end of what is shown."""
        if family is Family.LOCK:
            low, high = self._clean
            if low <= start < high and not reverse:
                start = min(high, end)
            return _Undecided(self, self._base.cursor(family, start=start, end=end, reverse=reverse))
        if family is Family.DATA:
            merge = _Backward if reverse else _Forward
            return merge(self, self._base, start=start, end=end)
        return self._base.cursor(family, start=start, end=end, reverse=reverse)

    def first(self, family: Family, *, start: bytes, end: bytes) -> tuple[bytes, bytes] | None:
        """The first pair with start <= key < end."""
        keys, values = self.cursor(family, start=start, end=end).chunk(1)
        return (keys[0], values[0]) if keys else None

    def decided(self, raw: bytes) -> Resolution | None:
        """What became of the transaction of a stored intent, if that is known and settles this read."""
        txn_id = txn_id_of(raw)
        if txn_id in self._known:
            return self._known[txn_id]
        outcome = self._fate(decode_intent(raw))
        if outcome is not None and outcome.status is TxnStatus.PENDING and outcome.ts <= self._bound:
            outcome = None
        assert outcome is None or outcome.txn_id == txn_id, "the outcome of the intent's own transaction"
        self._known[txn_id] = outcome
        return outcome

    def versions(self, keys: Sequence[bytes], raws: Sequence[bytes]) -> tuple[list[bytes], list[bytes], int]:
        """The versions that stored intents are shown as (stored keys, values), and how many intents stay in the way."""
        if raws and self._one_commit(raws):
            outcome = self.decided(raws[0])
            assert outcome is not None, "the first intent shows what became of all"
            intents, marks = decode_intents(raws), suffix(outcome.ts)
            assert len(intents) == len(keys), "an intent for every key"
            shown = [intent.epoch == outcome.epoch for intent in intents]
            self.shown += sum(shown)
            if all(shown):
                return [key + marks for key in keys], [intent.value for intent in intents], 0
            same_epoch = [intent.value for intent in compress(intents, shown)]
            return [key + marks for key in compress(keys, shown)], same_epoch, 0
        stored: list[bytes] = []
        values: list[bytes] = []
        undecided = 0
        last, marks, epoch = b"", b"", 0
        for key, raw in zip(keys, raws, strict=True):
            txn_id = raw[_ID] if raw.startswith(_HEAD) else txn_id_of(raw)
            if txn_id != last:  # neighbors are mostly of one transaction
                outcome = self.decided(raw)
                last = txn_id
                if outcome is None:
                    marks, epoch = b"", -1
                elif outcome.status is TxnStatus.COMMITTED and outcome.ts <= self._bound:
                    marks, epoch = suffix(outcome.ts), outcome.epoch
                else:
                    marks, epoch = b"", 0
            if marks:
                intent = decode_intent(raw)
                if intent.epoch == epoch:
                    stored.append(key + marks)
                    values.append(intent.value)
            elif epoch < 0:
                undecided += 1
        assert len(stored) == len(values), "a value for every version that is shown"
        assert len(stored) + undecided <= len(keys), "an intent is shown, in the way, or gone"
        self.shown += len(stored)
        return stored, values, undecided

    def _one_commit(self, raws: Sequence[bytes]) -> bool:
        """Whether all intents are of one transaction that is shown as committed, as beside a large commit they are."""
        head = raws[0][: _ID.stop]
        if not head.startswith(_HEAD) or not all(map(bytes.startswith, raws, repeat(head))):
            return False
        outcome = self.decided(raws[0])
        return outcome is not None and outcome.status is TxnStatus.COMMITTED and outcome.ts <= self._bound

    def passed(self, start: bytes, end: bytes) -> None:
        """Note that every intent in [start, end) is decided, so that it need not be looked at again."""
        assert start <= end, "a span is passed from its start to its end"
        low, high = self._clean
        self._clean = (low, max(high, end)) if low <= start <= high and low < high else (start, end)

    def shown_in(self, start: bytes, end: bytes, *, limit: int) -> list[bytes] | None:
        """The stored keys of the versions that intents in [start, end) are shown as; None: more than `limit` intents."""
        cursor = self._base.cursor(Family.LOCK, start=start, end=end)
        found: list[bytes] = []
        seen = 0
        while True:
            keys, raws = cursor.chunk(LOCKS_AT_ONCE)
            if not keys:
                return found
            seen += len(keys)
            if seen > limit:
                return None
            found += self.versions(keys, raws)[0]

    def _shown_at(self, stored: bytes) -> bytes | None:
        key = stored[:-VERSION_BYTES]
        raw = self._base.get(Family.LOCK, key)
        if raw is None:
            return None
        keys, values, _ = self.versions([key], [raw])
        return values[0] if keys == [stored] else None


class _Undecided:
    """The intents that are still in the way."""

    def __init__(self, through: Through, base: Cursor) -> None:
        self._through = through
        self._base = base

    def seek(self, key: bytes) -> None:
        """Move to a key."""
        self._base.seek(key)

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` intents; fewer only at the end."""
        found_keys: list[bytes] = []
        found_raws: list[bytes] = []
        decided = self._through.decided
        while len(found_keys) < limit:
            keys, raws = self._base.chunk(limit - len(found_keys))
            if not keys:
                break
            for key, raw in zip(keys, raws, strict=True):
                if decided(raw) is None:
                    found_keys.append(key)
                    found_raws.append(raw)
        assert len(found_keys) == len(found_raws) <= limit, "no more than was asked for"
        return found_keys, found_raws

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values."""
        return self.chunk(limit)[0]


class _Merged(abc.ABC):
    """Versions, and intents shown as versions, in one order."""

    reverse = False

    def __init__(self, through: Through, base: Reader, *, start: bytes, end: bytes) -> None:
        self._through = through
        self._base = base
        self._start = start
        self._end = end
        self._data = base.cursor(Family.DATA, start=start, end=end, reverse=self.reverse)
        self._at: bytes | None = None
        self._begin()

    def seek(self, key: bytes) -> None:
        """Move to the first stored key >= key (forward) or the last one <= key (reverse), inside the bounds."""
        self._data.seek(key)
        self._at = key
        self._begin()

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` stored keys and values; fewer only at the end."""
        while len(self._ready.keys) < limit and self._more(limit):
            pass
        return self._ready.take(limit)

    def keys(self, limit: int) -> list[bytes]:
        """Like `chunk`, without the values."""
        return self.chunk(limit)[0]

    def _begin(self) -> None:
        """Stand at the place that was sought, or at the first bound."""
        self._ready, self._mine, self._theirs = _Block(), _Block(), _Block()
        self._data_ended = self._locks_ended = False

    @abc.abstractmethod
    def _more(self, limit: int) -> bool:
        """Merge what is known of both sides; False at the end of both."""

    def _read_data(self, limit: int) -> None:
        if not self._theirs.keys and not self._data_ended:
            self._theirs = _Block(*self._data.chunk(limit))
            self._data_ended = not self._theirs.keys

    def _take_locks(self, keys: list[bytes], raws: list[bytes]) -> int:
        """Add what intents are shown as; returns how many of them stay in the way."""
        stored, values, undecided = self._through.versions(keys, raws)
        if stored and not self._inside(stored[0], stored[-1]):
            kept = [(s, v) for s, v in zip(stored, values, strict=True) if self._inside(s, s)]
            stored, values = [s for s, _ in kept], [v for _, v in kept]
        assert len(stored) == len(values), "a value for every version that is shown"
        self._mine.add(_Block(stored, values))
        return undecided

    def _inside(self, first: bytes, last: bytes) -> bool:
        """Whether two stored keys, the first and last of a block, lie within the bounds and beyond where was sought."""
        low, high = (last, first) if self.reverse else (first, last)
        if low < self._start or high >= self._end:
            return False
        return self._at is None or (high <= self._at if self.reverse else low >= self._at)

    def _extended(self, bound: bytes) -> None:
        """Add the one intent, if any, whose key is below a bound that extends it, but whose version is not."""
        for extra in _EXTENSIONS:
            key = bound[:-extra]
            raw = self._base.get(Family.LOCK, key) if key else None
            if raw is not None:
                self._take_locks([key], [raw])


class _Forward(_Merged):
    """In key order.

    Locks are read up to where the versions are known, and no further: a long row of locks that are gone, behind which the
    next one lies, would have to be passed again and again. Walks that seek past single versions do so mostly among what
    was read ahead, where it costs no call into the engine.
    """

    _given: bytes | None
    _last_read: bytes | None

    def seek(self, key: bytes) -> None:
        """Move to the first stored key >= key, inside the bounds."""
        read = self._data_ended or (self._last_read is not None and key <= self._last_read)
        if read and (self._locks_ended or key <= self._next_lock) and self._given is not None and key > self._given:
            self._at = key
            for block in (self._ready, self._mine, self._theirs):
                block.take(bisect_left(block.keys, key))
        else:
            super().seek(key)

    def chunk(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Up to `limit` stored keys and values; fewer only at the end."""
        keys, values = super().chunk(limit)
        assert not keys or self._given is None or keys[0] > self._given, "a walk only moves on"
        if keys:
            self._given = keys[-1]
        return keys, values

    def _begin(self) -> None:
        super()._begin()
        self._last_read = self._given = None
        self._next_lock = self._start if self._at is None else max(self._at, self._start)
        self._extended(self._next_lock)

    def _read_data(self, limit: int) -> None:
        if not self._theirs.keys:
            super()._read_data(max(limit, AHEAD))
            if self._theirs.keys:
                self._last_read = self._theirs.keys[-1]

    def _more(self, limit: int) -> bool:
        self._read_data(limit)
        if not self._locks_ended and (not self._mine.keys or self._mine.keys[0] > self._next_lock):
            self._read_locks(max(limit, AHEAD))
        mine, theirs = self._mine, self._theirs
        if not mine.keys and not theirs.keys:
            return not self._locks_ended
        # Unread locks are shown above `_next_lock`, unread versions lie above the last one that was read.
        upto = [] if self._locks_ended else [self._next_lock]
        if theirs.keys:
            upto.append(theirs.keys[-1])
        if not upto:
            assert not theirs.keys, "nothing stored is passed over"
            low, high = len(mine.keys), 0
        else:
            low, high = bisect_right(mine.keys, min(upto)), bisect_right(theirs.keys, min(upto))
        self._ready.add(_merged(mine.cut(low), theirs.cut(high), reverse=False))
        return True

    def _read_locks(self, limit: int) -> None:
        start, upto = self._next_lock, self._theirs.keys[-1] if self._theirs.keys else self._end
        if start >= upto:
            self._locks_ended = start >= self._end
            return
        keys, raws = self._base.cursor(Family.LOCK, start=start, end=upto).chunk(limit)
        self._next_lock = keys[-1] + AFTER_VERSIONS if len(keys) == limit else upto
        assert self._next_lock > start, "locks are read onwards"
        self._locks_ended = self._next_lock >= self._end
        if not self._take_locks(keys, raws):
            self._through.passed(start, self._next_lock)


class _Backward(_Merged):
    """From the end."""

    reverse = True

    def _begin(self) -> None:
        super()._begin()
        self._locks = self._base.cursor(Family.LOCK, start=self._start, end=self._end, reverse=True)
        if self._at is not None:
            self._locks.seek(self._at)

    def _more(self, limit: int) -> bool:
        self._read_data(limit)
        while not self._mine.keys and not self._locks_ended:
            keys, raws = self._locks.chunk(limit)
            self._take_locks(keys, raws)
            if not keys:
                self._locks_ended = True
                self._extended(self._start)
        mine, theirs = self._mine, self._theirs
        if not mine.keys or not theirs.keys:
            one = mine if mine.keys else theirs
            self._ready.add(one)
            self._mine, self._theirs = _Block(), _Block()
            return bool(one.keys)
        upto = max(mine.keys[-1], theirs.keys[-1])
        low, high = _count_from(mine.keys, upto), _count_from(theirs.keys, upto)
        self._ready.add(_merged(mine.cut(low), theirs.cut(high), reverse=True))
        return True


class _Block:
    """Stored keys and their values, in the order of the cursor."""

    __slots__ = ("keys", "values")

    def __init__(self, keys: list[bytes] | None = None, values: list[bytes] | None = None) -> None:
        self.keys: list[bytes] = [] if keys is None else keys
        self.values: list[bytes] = [] if values is None else values
        assert len(self.keys) == len(self.values), "a value for every key"

    def add(self, other: _Block) -> None:
        """Append another block."""
        if self.keys:
            self.keys += other.keys
            self.values += other.values
        else:
            self.keys, self.values = other.keys, other.values
        assert len(self.keys) == len(self.values), "a value for every key"

    def take(self, limit: int) -> tuple[list[bytes], list[bytes]]:
        """Remove and return the first `limit`."""
        keys, values = self.keys[:limit], self.values[:limit]
        self.keys, self.values = self.keys[limit:], self.values[limit:]
        assert len(keys) == len(values) <= limit, "no more than was asked for"
        return keys, values

    def cut(self, count: int) -> _Block:
        """Remove and return the first `count`."""
        return _Block(*self.take(count))


def _merged(one: _Block, other: _Block, *, reverse: bool) -> _Block:
    if not one.keys or not other.keys:
        return one if one.keys else other
    pairs = list(zip(one.keys + other.keys, one.values + other.values, strict=True))
    pairs.sort(key=_first, reverse=reverse)  # two sorted runs: one pass
    assert len(pairs) == len(one.keys) + len(other.keys), "nothing is lost by merging"
    return _Block([key for key, _ in pairs], [value for _, value in pairs])


def _count_from(keys: list[bytes], upto: bytes) -> int:
    """How many of descending keys are >= upto."""
    low, high = 0, len(keys)
    while low < high:
        middle = (low + high) // 2
        if keys[middle] >= upto:
            low = middle + 1
        else:
            high = middle
    assert 0 <= low <= len(keys), "a place in the block"
    return low
